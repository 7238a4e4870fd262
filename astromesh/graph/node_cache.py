"""The keyword `cache`: results of a node that last across runs, for some seconds.

They stand in the engine's store, or in the memory of the engine. The key is canonical JSON of the graph, the
node, and what the node declares to read, or else everything that it sees. What JSON cannot carry is not
cached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, Protocol

import orjson

from astromesh.errors import described, is_failure
from astromesh.graph.call_record import known_contents
from astromesh.graph.effects import declared_inputs
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.node_json import NotRecordable, Snapshot, apply_writes, result_of, result_to_json
from astromesh.graph.policies import CachePolicy
from astromesh.graph.records import NodeResult, canonical_json
from astromesh.graph.runner import Call, Wrapper
from astromesh.graph.state import NODE_LISTS, RESERVED_KEYS, GraphState
from astromesh.graph.transitions import Send
from astromesh.telemetry.clock import Clock
from astromesh.types import Command, JsonObject

log = logging.getLogger("astromesh.graph")
#: Results that an engine without a store keeps. More push the oldest ones out.
MAX_RESULTS = 10_000


class CacheStore(Protocol):
    """A store of results. `stored_runs.GraphRuns` is one."""

    async def cached(self, key: str) -> str | None: ...

    async def store_cached(self, key: str, value: str, seconds: float) -> None: ...


class NodeCache:
    """The results of the nodes of one engine, as JSON.

    Args:
        opened: Opens the engine's store. None: they are kept in memory.
    """

    def __init__(
        self, clock: Clock, opened: Callable[[], AbstractAsyncContextManager[CacheStore]] | None = None
    ) -> None:
        self._clock, self._opened = clock, opened
        self._results: dict[str, tuple[str, float]] = {}

    async def get(self, key: str) -> str | None:
        """Returns a result that has not expired."""
        if self._opened is not None:
            async with self._opened() as store:
                return await store.cached(key)
        value, expires_at = self._results.get(key, ("", 0.0))
        return value if expires_at > self._clock.now() else None

    async def put(self, key: str, value: str, seconds: float) -> None:
        if self._opened is not None:
            async with self._opened() as store:
                await store.store_cached(key, value, seconds)
            return
        self._results.pop(key, None)
        self._results[key] = (value, self._clock.now() + seconds)
        while len(self._results) > MAX_RESULTS:
            del self._results[next(iter(self._results))]


NodeCall = Call[GraphState, NodeConfig, NodeResult]


def with_cache(node: Any, policy: CachePolicy) -> Wrapper[GraphState, NodeConfig, NodeResult]:
    """Answers with a result of an earlier run for the same inputs, at no cost, and repeats its writes."""

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            cache = config.runtime.cache
            try:
                key = _key(node, policy, state, config)
            except (TypeError, RecursionError) as error:
                log.info("%s is not cached: its input: %s", config.path, error)
                return await call(state, config)
            except BaseException as error:  # `policy.key` is foreign code
                if not is_failure(error):
                    raise
                text = f"The function `key` of the cache failed: {described(error)}"
                return NodeResult(config.node.name, error=text, exception=error)
            found = await _look_up(cache, key, config)
            if found is not None:
                return _restored(node, orjson.loads(found), state)
            before = Snapshot(state)
            lengths = {name: len(getattr(state, name)) for name in NODE_LISTS}
            result = await call(state, config)
            if (entry := _entry(result, before, lengths, state)) is not None:
                await cache.put(key, entry, policy.seconds)
            return result

        return run

    return wrap


def _key(node: Any, policy: CachePolicy, state: GraphState, config: NodeConfig) -> str:
    """Returns the key of a visit.

    Raises:
        TypeError: Part of what the node reads has no canonical JSON.
    """
    parts: list[Any] = [config.runtime.graph_name, config.path, type(node).__name__, node.instructions]
    if not policy.shared and (caller := config.caller) is not None:
        parts.append([caller.tenant_id, caller.user_id])
    if callable(policy.key):
        parts.append(policy.key(state))
    else:
        parts += [policy.key, declared_inputs(node, state.context)]
        if not node.input_keys and not node.pure:
            context = {key: value for key, value in state.context.items() if key not in RESERVED_KEYS}
            parts += [list(state.messages), state.plan, state.observations, state.reflections, context]
    return sha256(canonical_json(parts)).hexdigest()


async def _look_up(cache: NodeCache, key: str, config: NodeConfig) -> str | None:
    """Looks a result up. A journal keeps whether there was one: a resumed visit does as it did before."""
    journal = config.scope.journal
    if journal is None:
        return await cache.get(key)
    found: list[str | None] = []

    async def look() -> JsonObject:
        found.append(await cache.get(key))
        return {"hit": found[0] is not None}

    visit = config.runtime.counts.get(config.path, 0)
    recorded = await journal.call(f"{config.path}/cache:{visit}", "", config.node.name, look, once=False)
    if not found and recorded["hit"]:
        found.append(await cache.get(key))
    return found[0] if found else None


def _entry(result: NodeResult, before: Snapshot, lengths: Mapping[str, int], state: GraphState) -> str | None:
    """Returns a result with the writes of its node, as JSON. None: it is not cached."""
    output = result.output
    is_command = isinstance(output, Command) or (
        isinstance(output, list | tuple) and any(isinstance(one, Send) for one in output)
    )
    if result.error or result.stop_reason or result.skipped or result.wants_tools or is_command:
        return None
    try:
        writes = before.writes(state)
        if any(same != lengths[name] for name, (same, _) in writes.get("lists", {}).items()):
            return None  # it has changed earlier items
        data = result_to_json(result, state.messages[lengths["messages"] :])
    except NotRecordable as error:
        log.info("%s is not cached: its output: %s", result.node_name, error)
        return None
    for key in ("usage", "duration_ms"):
        data.pop(key, None)
    return orjson.dumps({"result": data, "writes": writes}).decode()


def _restored(node: Any, entry: JsonObject, state: GraphState) -> NodeResult:
    added = entry["writes"].get("lists", {})
    lists = {name: (len(getattr(state, name)), items) for name, (_, items) in added.items()}
    own = apply_writes(state, {**entry["writes"], "lists": lists})
    return result_of(node.name, entry["result"], own, node.output_schema, known_contents(state.messages))
