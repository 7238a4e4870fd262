"""The copies on which concurrent nodes work, and what becomes of their writes.

what the nodes write            what remains
lists (messages, plan, …)       what each has added, in the order of the nodes
a key that one has deleted      is deleted, unless another has written it
a key with a reducer            the reducer's value, one node after another
other keys of the context       the value, if all have written the same. Else it is an error
under PARALLEL_SAFE             the context is shared and not copied: the last write remains
NAME_output of nested nodes     the value, if all agree. Else it stays inside: many works have equal parts
items of a FanOutNode           keep every output of their nodes to themselves
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from astromesh.errors import ConflictingWrites, GraphError, described, is_failure
from astromesh.graph.copies import Copies, is_same
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.node_config import Child
from astromesh.graph.records import OUTPUT_SUFFIX
from astromesh.graph.state import (
    HUMAN_DECISIONS,
    NODE_CACHE,
    RESERVED_KEYS,
    GraphState,
    engine_forget,
    engine_write,
    retries_key,
)
from astromesh.graph.topology import nested_nodes

_READONLY, _SAFE = BIT[NodeFlag.READONLY], BIT[NodeFlag.PARALLEL_SAFE]
#: Reserved keys whose values are mappings, which are united.
_UNITED_KEYS = frozenset({NODE_CACHE, HUMAN_DECISIONS})


#: The value of a key that was deleted.
DELETED: Final = object()


class Write(NamedTuple):
    """A value that a branch has written under a key, or DELETED."""

    branch: Branch
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One of several concurrent children.

    Args:
        name: Its part of the path.
        state: The state on which it works.
        before: The context before it.
        is_safe: Whether it has the flag PARALLEL_SAFE.
        parts: The branches that met before this one, which it continues.
        joined: The context as it was when they had met.
        copies: The copies of containers on which it works.
    """

    child: Child
    name: str
    state: GraphState
    before: Mapping[str, Any]
    is_safe: bool = False
    parts: Sequence[Branch] = ()
    joined: Mapping[str, Any] = field(default_factory=dict)
    copies: Copies = field(default_factory=Copies)

    def begin(self) -> Branch:
        """Gives the child its own context. Returns the branch."""
        copy = self.copies.copy
        self.copies.keep(self.child.source)
        copied = {key: value if key in RESERVED_KEYS else copy(value) for key, value in self.before.items()}
        self.state.context = {**copied, **self.child.context}
        return self

    def met(self, parts: Sequence[Branch]) -> Branch:
        """Returns the branch as which others go on that have met, with their writes.

        Raises:
            ConflictingWrites, GraphError: See `merge`.
        """
        merge(self.state, parts)
        return replace(self, parts=parts, joined=dict(self.state.context))

    def writes(self) -> dict[str, list[Write]]:
        """Returns what the child has written to its context or deleted, without what it keeps to itself.

        A reducer gets each write of the parts, not the value that it has made of them.
        """
        own, private = self.child.context, self.output_names(keys=True) if self.child.is_item else ()
        context, restored = self.state.context, self.copies.restored
        found = {
            key: [Write(self, value)]
            for key, value in ((key, restored(value)) for key, value in context.items())
            if not (key in self.before and self.before[key] is value)
            and not (key in own and own[key] is value)
            and key not in private
        }
        for key in self.before.keys() - context.keys() - own.keys() - RESERVED_KEYS - set(private):
            found[key] = [Write(self, DELETED)]
        for key, values in (self.state.updates or {}).items():
            if key in found and key in self.state.reducers:
                found[key] = [Write(self, value) for value in values]
        for key, writes in writes_of(self.parts).items():
            if key in found and key in self.state.reducers and self.joined.get(key) is found[key][0].value:
                found[key] = writes
        return found

    def output_names(self, *, keys: bool = False) -> set[str]:
        """Returns the keys under which the engine writes for the child and all nodes in it: `NAME_output`.

        Args:
            keys: Whether their `output_key`s belong to it.
        """
        nodes = [*nested_nodes(self.child.node)]
        names = {node.name for node in nodes} | {result.node_name for result in self.state.node_history}
        written = {key for name in names for key in (name + OUTPUT_SUFFIX, retries_key(name))}
        return written | {node.output_key for node in nodes if keys}


def writes_of(branches: Sequence[Branch]) -> dict[str, list[Write]]:
    """Returns the writes of branches by key, in their order."""
    found: dict[str, list[Write]] = {}
    for branch in branches:
        for key, writes in branch.writes().items():
            found.setdefault(key, []).extend(writes)
    return found


def merge(state: GraphState, branches: Sequence[Branch]) -> None:
    """Adds the writes of branches that began at one state to this state, or to a copy of it.

    Raises:
        ConflictingWrites, GraphError: Two differ, or a reducer failed. Nothing was added to the context.
    """
    written = writes_of([branch for branch in branches if branch.state.context is not state.context])
    merged = {key: value for key, writes in written.items() for value in _merged(state, key, writes)}
    if state.updates is not None:
        for key in state.reducers.keys() & written.keys():
            state.updates.setdefault(key, []).extend(_values(written[key]))
    state.extend_lists([branch.state for branch in branches])
    for key, value in merged.items():
        if value is DELETED:
            engine_forget(state.context, key)
        else:
            engine_write(state.context, key, value)


class Branches:
    """The concurrent children of a node.

    Args:
        state: The state of the node.
        children: In the order in which their writes are merged.
    """

    def __init__(self, state: GraphState, children: Sequence[Child]) -> None:
        self._state, self._before = state, dict(state.context)
        self._children = children
        self._branches: dict[int, Branch] = {}

    def begin(self, index: int, mask: int) -> Branch:
        """Returns the branch of a child, which is about to run. `mask` are its flags."""
        child, state = self._children[index], self._state
        is_safe = bool(mask & _SAFE) and not mask & _READONLY
        fork = state.fork({})
        if is_safe and not child.context and type(state.context) is dict:
            fork.context = state.context
        else:
            fork.context = {**self._before, **child.context}
        branch = Branch(child, child.name or child.node.name, fork, self._before, is_safe)
        self._branches[index] = branch if mask & (_SAFE | _READONLY) else branch.begin()
        return branch

    def merge(self) -> None:
        """Adds the writes of all branches to the state.

        Raises:
            ConflictingWrites: Nothing was added to the context.
        """
        merge(self._state, [self._branches[index] for index in sorted(self._branches)])


def _merged(state: GraphState, key: str, writes: Sequence[Write]) -> Sequence[Any]:
    """Returns the merged value of a key, or nothing if it stays inside the branches."""
    values = _values(writes)
    if values and (reducer := state.reducers.get(key)) is not None:
        if key in (before := writes[0].branch.before):
            values.insert(0, before[key])
        merged, *others = values
        for value in others:
            try:
                merged = reducer(merged, value)
            except BaseException as error:  # a reducer is foreign code
                if not is_failure(error):
                    raise
                raise GraphError(f"The reducer of {key!r} failed: {described(error)}") from error
        return (merged,)
    if key in _UNITED_KEYS:
        return ({name: value for mapping in values for name, value in mapping.items()},)
    if key not in RESERVED_KEYS and (conflict := _conflict(writes)) is not None:
        if all(key in branch.output_names() for branch in conflict):
            return ()
        raise ConflictingWrites(key, (conflict[0].name, conflict[1].name))
    return [writes[-1].value]


def _values(writes: Sequence[Write]) -> list[Any]:
    return [write.value for write in writes if write.value is not DELETED]


def _conflict(writes: Sequence[Write]) -> tuple[Branch, Branch] | None:
    """Returns two branches that wrote different values. PARALLEL_SAFE permits it."""
    counted = [write for write in writes if not write.branch.is_safe]
    for write in counted[1:]:
        if not is_same(counted[0].value, write.value):
            return counted[0].branch, write.branch
    return None
