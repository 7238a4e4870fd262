"""CACHEABLE: results of a run by what their nodes read, in `context["_node_cache"]` (document 000).

The key is canonical JSON: an input that has none cannot be told from another, so that its node runs every
time, and the log says why. What is kept and what is handed out are copies.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from astromesh.graph.canonical import canonical
from astromesh.graph.flags import NodeFlag
from astromesh.graph.own_keys import NODE_CACHE
from astromesh.graph.records import ZERO, NodeResult
from astromesh.graph.state import GraphState
from astromesh.graph.visit import (
    OUTPUT_SUFFIX,
    Traces,
    Visit,
    Writes,
    declared_inputs,
    declared_names,
    without_history,
)

log = logging.getLogger("astromesh.graph")


@dataclass(frozen=True, slots=True)
class CachedResult:
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
    try:
        visit.cache_key = key(visit)
    except (TypeError, RecursionError) as error:
        _not_cached(visit, "its input", error)
        return None
    entry: CachedResult | None = _entries(visit.base).get(visit.cache_key)
    if entry is None:
        return None
    # messages are said once more, so they are new ones, too
    result, writes = deepcopy((entry.result, entry.writes))
    writes.repeat(visit.base)
    return replace(result, usage=ZERO, duration_ms=0.0, transition_reason="cached")


def remember_before(visit: Visit) -> None:
    """Marks the state, so that the node's own writes can be told."""
    if visit.cache_key:
        visit.before = Traces(visit.base)


def store(visit: Visit) -> None:
    """Keeps a result; called with final answers only, never with a step of a tool loop."""
    if visit.before is None:
        return
    reads = frozenset(declared_names(visit.step.node))
    try:
        kept = deepcopy((replace(visit.done, exception=None), visit.before.written(visit.base)))
    except Exception as error:  # noqa: BLE001 (copying runs anybody's code; the node has succeeded all the same)
        _not_cached(visit, "its output", error)
        return
    visit.base.context.setdefault(NODE_CACHE, {})[visit.cache_key] = CachedResult(reads, *kept)


def forget_readers(visit: Visit) -> None:
    """STATEFUL: drops what was computed from this node's output."""
    written = {visit.step.node.output_key, visit.step.name + OUTPUT_SUFFIX}
    entries = _entries(visit.base)
    for stale in [k for k, entry in entries.items() if entry.reads & written]:
        del entries[stale]


def key(visit: Visit) -> bytes:
    """Path and declared inputs; where none are declared, what the node sees of the conversation as well.

    Raises:
        TypeError: something of it has no canonical JSON.
    """
    node, state = visit.step.node, visit.base
    parts: list[Any] = [visit.config.path, declared_inputs(node, state.context)]
    if not node.input_keys and not node.pure:
        parts += [_visible_messages(visit), state.plan, state.observations, state.reflections]
    return canonical(parts)


def _visible_messages(visit: Visit) -> list[Any]:
    if NodeFlag.NO_HISTORY in visit.step.node.flags:
        return list(without_history(visit.base, hidden_loop=False))
    return list(visit.base.messages)


def _not_cached(visit: Visit, what: str, error: BaseException) -> None:
    log.info("%s is not cached: %s: %s", visit.config.path, what, error)


def _entries(state: GraphState) -> dict[bytes, CachedResult]:
    entries: dict[bytes, CachedResult] = state.context.get(NODE_CACHE, {})
    return entries
