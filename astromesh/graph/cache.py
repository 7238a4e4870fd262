"""One execution of a flagged node, and CACHEABLE: results by what their nodes read (document 000).

Results stand in `context["_node_cache"]`. The key is canonical JSON. An input without that form cannot be
compared: the node runs every time, and the log says why. Stored and returned values are copies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.hooks import HookSet
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.records import NO_USAGE, NodeResult, canonical_json
from astromesh.graph.state import NODE_CACHE, NODE_LISTS, GraphState
from astromesh.types import Message

OUTPUT_SUFFIX = "_output"


class Visit:
    """One execution of a flagged node, as the effects of its flags see and change it.

    Args:
        node: The node.
        hooks: The hooks of the engine.
        base: The state at this level.
        config: The config of the execution.

    Attributes:
        state: What the node sees: `base`, or a view of it.
        result: Set by the node, or by an effect that answers instead.
        has_run: Whether the node has run.
        visible_count: The number of messages that NO_HISTORY has left visible.
        cache_key, snapshot: Used by CACHEABLE.
    """

    __slots__ = (
        "base",
        "cache_key",
        "config",
        "has_run",
        "hooks",
        "node",
        "result",
        "snapshot",
        "state",
        "visible_count",
    )

    def __init__(self, node: BaseNode, hooks: HookSet, base: GraphState, config: NodeConfig) -> None:
        self.node = node
        self.hooks = hooks
        self.base = base
        self.state = base
        self.config = config
        self.result: NodeResult | None = None
        self.has_run = False
        self.visible_count = 0
        self.cache_key = b""
        self.snapshot: StateSnapshot | None = None

    @property
    def outcome(self) -> NodeResult:
        """The result, for effects that run after the node."""
        return self.result or NodeResult(self.node.name)

    def show(self, state: GraphState) -> None:
        """Replaces the state that the node sees."""
        self.state = state


class StateSnapshot:
    """What the state holds before a node runs, to find the node's own writes afterwards."""

    __slots__ = ("context", "lengths")

    def __init__(self, state: GraphState) -> None:
        self.context = dict(state.context)
        self.lengths = {name: len(getattr(state, name)) for name in NODE_LISTS}

    def writes(self, state: GraphState) -> StateWrites:
        old = self.context
        context = {
            k: v for k, v in state.context.items() if k != NODE_CACHE and (k not in old or old[k] is not v)
        }
        gathered = {name: getattr(state, name)[length:] for name, length in self.lengths.items()}
        return StateWrites(context, gathered)


class StateWrites:
    """A node's own writes to the state. A cache hit repeats them."""

    __slots__ = ("context", "lists")

    def __init__(self, context: Mapping[str, Any], lists: Mapping[str, list[Any]]) -> None:
        self.context, self.lists = context, lists

    def apply(self, state: GraphState) -> None:
        state.context.update(self.context)
        for name, added in self.lists.items():
            getattr(state, name).extend(added)


def declared_inputs(node: BaseNode, context: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the declared inputs of a node that exist, with their values."""
    return {name: context[name] for name in declared_names(node) if name in context}


def declared_names(node: BaseNode) -> tuple[str, ...]:
    """Returns the names in the context that a node declares to read."""
    if node.inherit_context_from:
        return (*node.input_keys, node.inherit_context_from + OUTPUT_SUFFIX)
    return node.input_keys


def without_history(state: GraphState, *, hidden_loop: bool) -> list[Message]:
    """Returns the system messages, the current question, and the node's own tool loop.

    Args:
        state: The state at the node's level.
        hidden_loop: Whether the messages of the loop stand apart from the state's (ISOLATED_CONTEXT).
    """
    own = {id(message) for message in state.loop}
    question = next((m for m in reversed(state.messages) if m.role == "user" and id(m) not in own), None)
    messages = [m for m in state.messages if m.role == "system" or m is question or id(m) in own]
    return [*messages, *state.loop] if hidden_loop else messages


log = logging.getLogger("astromesh.graph")


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A cached result.

    Args:
        reads: Names in the context that the node declares to read.
        result: The result after SUMMARIZE_OUTPUT.
        writes: What the node itself wrote to the state.
    """

    reads: frozenset[str]
    result: NodeResult
    writes: StateWrites


def look_up(visit: Visit) -> NodeResult | None:
    """Returns the result of an earlier execution with the same inputs, and repeats its writes, at no cost."""
    try:
        visit.cache_key = cache_key(visit)
    except (TypeError, RecursionError) as error:
        _not_cached(visit, "its input", error)
        return None
    entry: CachedResult | None = _entries(visit.base).get(visit.cache_key)
    if entry is None:
        return None
    # the messages are added once more, so they must be copies too
    result, writes = deepcopy((entry.result, entry.writes))
    writes.apply(visit.base)
    return replace(result, usage=NO_USAGE, duration_ms=0.0, transition_reason="cached")


def take_snapshot(visit: Visit) -> None:
    """Records the state, so that the node's own writes can be found."""
    if visit.cache_key:
        visit.snapshot = StateSnapshot(visit.base)


def store(visit: Visit) -> None:
    """Stores a result. Only final answers are stored, never a step of a tool loop."""
    if visit.snapshot is None:
        return
    reads = frozenset(declared_names(visit.node))
    try:
        copies = deepcopy((replace(visit.outcome, exception=None), visit.snapshot.writes(visit.base)))
    except Exception as error:  # noqa: BLE001 (copying runs foreign code; the node has succeeded all the same)
        _not_cached(visit, "its output", error)
        return
    visit.base.context.setdefault(NODE_CACHE, {})[visit.cache_key] = CachedResult(reads, *copies)


def forget_readers(visit: Visit) -> None:
    """STATEFUL: removes results that were computed from this node's output."""
    written = {visit.node.output_key, visit.node.name + OUTPUT_SUFFIX}
    entries = _entries(visit.base)
    for stale in [k for k, entry in entries.items() if entry.reads & written]:
        del entries[stale]


def cache_key(visit: Visit) -> bytes:
    """Returns path and declared inputs.

    Without declared inputs it adds what the node sees of the conversation.

    Raises:
        TypeError: Part of it has no canonical JSON.
    """
    node, state = visit.node, visit.base
    parts: list[Any] = [visit.config.path, declared_inputs(node, state.context)]
    if not node.input_keys and not node.pure:
        parts += [_visible_messages(visit), state.plan, state.observations, state.reflections]
    return canonical_json(parts)


def _visible_messages(visit: Visit) -> list[Any]:
    if NodeFlag.NO_HISTORY in visit.node.flags:
        return list(without_history(visit.base, hidden_loop=False))
    return list(visit.base.messages)


def _not_cached(visit: Visit, what: str, error: BaseException) -> None:
    log.info("%s is not cached: %s: %s", visit.config.path, what, error)


def _entries(state: GraphState) -> dict[bytes, CachedResult]:
    entries: dict[bytes, CachedResult] = state.context.get(NODE_CACHE, {})
    return entries
