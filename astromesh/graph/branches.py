"""Branches of a graph that run at once: where they begin and meet, how they end, and what they write.

a fork, or sends              each target begins a branch, on a copy of the state
a node that branches reach    waits for them, by its `join`:
    all                       for every branch that can still reach it
    any, N                    for the first, or the first N. Others that can reach it are cancelled
the writes of those that met  are merged in the order of the targets, whatever ended first
the last ones that wait       go on as the run: the state before has everything merged
a branch that fails           cancels the others. Nothing is merged, an error edge of the source leads on

The children that a node runs concurrently are branches, too. What they write, and what remains of it:

lists (messages, plan, …)     what each has added, in the order of the nodes
a key that one has deleted    is deleted, unless another has written it
a key with a reducer          the reducer's value, one node after another
other keys of the context     the value, if all have written the same. Else it is an error
under PARALLEL_SAFE           the context is shared and not copied: the last write remains
NAME_output of nested nodes   the value, if all agree. Else it stays inside: many works have equal parts
items of a FanOutNode         keep every output of their nodes to themselves
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from astromesh.errors import BranchDropped, BranchFailed, ConflictingWrites, GraphError, described, is_failure
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.node_config import MAX_CONCURRENCY, Child
from astromesh.graph.plan import Plan, Step, as_branch
from astromesh.graph.private_state import Copies, is_same
from astromesh.graph.records import END, OUTPUT_SUFFIX, NodeResult, StopReason
from astromesh.graph.state import (
    HUMAN_DECISIONS,
    NODE_CACHE,
    RESERVED_KEYS,
    GraphState,
    NodeLimits,
    engine_forget,
    engine_write,
    retries_key,
)
from astromesh.graph.topology import ahead_of, joins, nested_nodes
from astromesh.graph.transitions import END_TRANSITION, FORK, Transition, condition_holds, sends_in

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


# -- forks, sends and joins -------------------------------------------------------------------------------


#: Runs a plan with a state, its nodes at a prefix. Returns the last result, an error, the reason of its end.
Traverse: TypeAlias = Callable[[Plan, GraphState, str], Awaitable[tuple[NodeResult | None, str, StopReason]]]


class BranchedRun(Protocol):
    """The members of a run that its branches use. `run.Run` has them."""

    @property
    def stopping(self) -> bool:
        """Whether the run is being stopped."""

    def limits_within(self, path: str) -> NodeLimits: ...

    def drop(self, path: str) -> None:
        """Records, in a durable run, that a branch ends at a node."""

    def note_error(self, path: str, result: NodeResult) -> None:
        """Adds a failure to the report, to the events and to the log."""


@dataclass(slots=True, eq=False)
class Token:
    """A branch on its way.

    Args:
        place: Its place among the branches, for the order in which writes are merged.
        at: The node at which it begins or waits, or the end.
        prefix: That of the paths of its nodes.
        last: Its last result.
    """

    place: int
    at: str
    branch: Branch
    prefix: str
    last: NodeResult | None = None

    @property
    def now(self) -> str:
        """The node at which it is."""
        return self.branch.state.current_node or self.at


class Branching:
    """The branches that begin after one visit of a node.

    Args:
        run: The run.
        traverse: Runs a plan.
        plan: The plan of the graph.
        step: The node after which the branches begin.
        state: The state of this level.
        prefix: That of the paths of the graph's nodes.
    """

    def __init__(
        self, run: BranchedRun, traverse: Traverse, plan: Plan, step: Step, state: GraphState, prefix: str
    ) -> None:
        assert plan.graph is not None
        self._run, self._traverse, self._plan, self._graph = run, traverse, plan, plan.graph
        self._step, self._state, self._prefix = step, state, prefix
        self._before = dict(state.context)
        self._places = asyncio.Semaphore(MAX_CONCURRENCY)
        self._stops: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: dict[asyncio.Task[None], Token] = {}
        self._waiting: list[Token] = []
        self._ended: list[Token] = []

    async def run(self, result: NodeResult, reason: str) -> tuple[Transition, NodeResult]:
        """Runs the branches to their ends, or to the last node where they meet.

        Args:
            result: Of the node after which they begin.
            reason: That of its transition: `fork` or `send`.

        Returns:
            The node at which the run goes on, with the reason of the last result, and this result.
        """
        if reason == FORK and self._step.fork is not None:
            self._places = asyncio.Semaphore(self._step.fork.max_concurrency)
        try:
            tokens = list(self._begin(result, reason))
            self._stops = joins(self._graph, self._step.name, [token.at for token in tokens])
            for token in tokens:
                self._go_on(token)
            name = await self._until_the_last_meet()
            rest = sorted([*self._ended, *self._waiting], key=_place)
            merge(self._state, [token.branch for token in rest])
        except BranchFailed as failed:
            return self._take_error_edge(failed.result)
        except GraphError as error:  # their writes cannot be merged
            failed_merge = NodeResult(self._step.name, error=str(error), exception=error)
            self._run.note_error(self._prefix + self._step.name, failed_merge)
            return self._take_error_edge(failed_merge)
        finally:
            await _cancel(self._tasks)
        last = next((token.last for token in reversed(rest) if token.last is not None), result)
        return Transition(name, last.transition_reason), last

    def _begin(self, result: NodeResult, reason: str) -> Iterator[Token]:
        if reason == FORK and self._step.fork is not None:
            for place, name in enumerate(self._step.fork.targets):
                yield Token(place, name, self._branch(name, name), self._prefix)
            return
        for place, send in enumerate(sends_in(result.output, recorded=True)):
            label = f"{send.node}[{place}]"
            branch = self._branch(send.node, label, {"item": send.value, "index": place})
            prefix = f"{self._prefix}{label}/"  # several may go to one node
            branch.state.limits = self._run.limits_within(prefix)
            yield Token(place, send.node, branch, prefix)

    def _branch(self, name: str, label: str, values: Mapping[str, Any] | None = None) -> Branch:
        if name not in self._plan.steps:
            missing = f"There is no node {name!r} in {self._plan.name!r}."
            raise BranchFailed(NodeResult(self._step.name, error=missing))
        state = self._state.fork({})
        state.current_node = ""
        child = Child(self._plan.steps[name].node, label, values or {})
        return Branch(child, label, state, self._before).begin()

    def _go_on(self, token: Token, *, has_met: bool = False) -> None:
        """Starts a token, unless it is at a node that waits for others."""
        if token.at in self._stops and not has_met:
            self._waiting.append(token)
        else:
            task = asyncio.ensure_future(self._walk(token))
            self._running[task] = token
            self._tasks.append(task)

    async def _walk(self, token: Token) -> None:
        """Runs a token to its end or to the next node where branches meet."""
        plan, state = as_branch(self._plan, token.at, self._stops - {token.at}), token.branch.state
        async with self._places:
            last, stuck, _ = await self._traverse(plan, state, token.prefix)
        token.last = last or token.last
        if not self._run.stopping:
            newest = state.last_result
            if stuck:
                raise BranchFailed(NodeResult(token.now, error=stuck))
            if newest is not None and newest.open_error:
                raise BranchFailed(newest)
        token.at = state.current_node if state.current_node in plan.stops else END

    async def _until_the_last_meet(self) -> str:
        """Returns the node at which the last ones wait, or the end."""
        while True:
            await self._meet()
            if not self._running:
                return self._waiting[0].at if self._waiting else END
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            tokens = sorted(
                ((self._running.pop(task), task) for task in done), key=lambda one: _place(one[0])
            )
            for token, task in tokens:
                try:
                    task.result()
                except BranchDropped:  # by the join that an earlier process has come to
                    continue
                (self._ended if token.at == END else self._waiting).append(token)
            if self._run.stopping:
                return END

    async def _meet(self) -> None:
        """Lets those go on that wait where nobody else is waited for, unless they are the last ones."""
        while self._waiting:
            ready = next(
                (name for name in dict.fromkeys(t.at for t in self._waiting) if self._is_ready(name)), ""
            )
            if not ready and not self._running:
                ready = min(self._waiting, key=_place).at  # they wait for each other
            if not ready:
                return
            late = {task: token for task, token in self._running.items() if self._can_reach(token, ready)}
            self._running = {task: token for task, token in self._running.items() if task not in late}
            for token in late.values():
                self._run.drop(token.prefix + token.now)
            await _cancel(late)
            met = sorted((token for token in self._waiting if token.at == ready), key=_place)
            if not self._running and len(met) == len(self._waiting):
                return
            self._waiting = [token for token in self._waiting if token.at != ready]
            self._go_on(self._joined(ready, met), has_met=True)

    def _is_ready(self, name: str) -> bool:
        count = sum(token.at == name for token in self._waiting)
        join = self._plan.steps[name].node.join if name in self._plan.steps else "all"
        if isinstance(join, int) and count >= join:
            return True
        others = [*self._running.values(), *(token for token in self._waiting if token.at != name)]
        return join == "any" or not any(self._can_reach(token, name) for token in others)

    def _can_reach(self, token: Token, name: str) -> bool:
        return name in ahead_of(self._graph, token.now, self._step.name)

    def _joined(self, name: str, met: Sequence[Token]) -> Token:
        """Returns the one token as which several go on."""
        whole = self._branch(name, met[0].branch.name).met([token.branch for token in met])
        last = next((token.last for token in reversed(met) if token.last is not None), None)
        return Token(met[0].place, name, whole, self._prefix, last)

    def _take_error_edge(self, failed: NodeResult) -> tuple[Transition, NodeResult]:
        step, state = self._step, self._state
        state.node_history.append(failed)
        edges = (
            transition
            for test, transition in step.edges
            if test is not None and condition_holds(test, transition, failed, state)
        )
        transition = next(edges, step.on_error)
        failed.handled = bool(transition.target)
        return transition if transition.target else END_TRANSITION, failed


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _place(token: Token) -> int:
    return token.place
