"""CACHEABLE: results of a run by what their nodes read, in `context["_node_cache"]` (document 000)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from astromesh.graph.flags import NodeFlag
from astromesh.graph.records import ZERO, NodeResult
from astromesh.graph.state import GraphState
from astromesh.graph.visit import (
    NODE_CACHE,
    OUTPUT_SUFFIX,
    Traces,
    Visit,
    Writes,
    declared_inputs,
    declared_names,
    without_history,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached result.

    Args:
        reads: names in the context that the node declares to read.
        result: as the node gave it, after SUMMARIZE_OUTPUT.
        writes: what the node wrote to the state by itself.
    """

    reads: frozenset[str]
    result: NodeResult
    writes: Writes


def look_up(visit: Visit) -> NodeResult | None:
    """The result of an earlier execution with the same inputs, its writes repeated, at no cost."""
    visit.cache_key = key(visit)
    entry: Entry | None = _entries(visit.base).get(visit.cache_key)
    if entry is None:
        return None
    entry.writes.repeat(visit.base)
    said = [replace(message) for message in entry.result.messages_added]  # said once more
    return replace(entry.result, usage=ZERO, duration_ms=0.0, transition_reason="cached", messages_added=said)


def remember_before(visit: Visit) -> None:
    """Marks the state, so that the node's own writes can be told."""
    visit.before = Traces(visit.base)


def store(visit: Visit) -> None:
    """Keeps a result; called with final answers only, never with a step of a tool loop."""
    if visit.before is None:
        return
    reads = frozenset(declared_names(visit.step.node))
    kept = replace(visit.done, exception=None)
    writes = visit.before.written(visit.base)
    visit.base.context.setdefault(NODE_CACHE, {})[visit.cache_key] = Entry(reads, kept, writes)


def forget_readers(visit: Visit) -> None:
    """STATEFUL: drops what was computed from this node's output."""
    written = {visit.step.node.output_key, visit.step.name + OUTPUT_SUFFIX}
    entries = _entries(visit.base)
    for stale in [k for k, entry in entries.items() if entry.reads & written]:
        del entries[stale]


def key(visit: Visit) -> str:
    """Path and declared inputs; where none are declared, what the node sees of the conversation as well."""
    node, state = visit.step.node, visit.base
    parts: list[Any] = [visit.config.path, declared_inputs(node, state.context)]
    if not node.input_keys and not node.pure:
        parts += [_visible_messages(visit), state.plan, state.observations, state.reflections]
    return repr(parts)


def _visible_messages(visit: Visit) -> list[Any]:
    if NodeFlag.NO_HISTORY in visit.step.node.flags:
        return list(without_history(visit.base, hidden_loop=False))
    return list(visit.base.messages)


def _entries(state: GraphState) -> dict[str, Entry]:
    entries: dict[str, Entry] = state.context.get(NODE_CACHE, {})
    return entries
