"""The function of a node in a worker process: both sides of the call.

The state goes there as JSON, and what the function has written comes back. See `node_json`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from msgspec import convert, to_builtins

from astromesh.graph.call_record import known_contents
from astromesh.graph.node_json import Snapshot, apply_writes, context_to_json, result_of, result_to_json
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.tools.process_pool import Port, call_in_process
from astromesh.types import JsonObject, Message


def function_name(function: Callable[..., Any]) -> str:
    """Returns `module:qualname` of a function that other processes can import, or an empty string."""
    module, qualname = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    own = not module or module == "__main__" or not qualname or "<" in qualname
    return "" if own else f"{module}:{qualname}"


async def call_in_worker(
    node: str, function: str, state: GraphState, *, max_memory_mb: int = 0
) -> NodeResult:
    """Calls a function with a copy of the state in a worker process, and writes to the state what it writes.

    Args:
        node: Its name.
        function: See `function_name`.

    Raises:
        NotRecordable: The context holds a value that has no JSON form.
        ForeignError: The function raised an exception, or its result has no JSON form.
        ProcessDied: Its process died.
    """
    payload = {"node": node, "function": function, "state": _state_to_json(state)}
    found = await call_in_process(f"{__name__}:{run_function.__name__}", payload, max_memory_mb=max_memory_mb)
    own = apply_writes(state, found["writes"])
    if found["stop"] is not None:
        state.stop(*found["stop"])
    return result_of(node, found["result"], own, contents=known_contents(state.messages))


def _state_to_json(state: GraphState) -> JsonObject:
    return {
        "messages": to_builtins(state.messages),
        "context": context_to_json(state.context),
        "visited": state.visited,
        "plan": state.plan,
        "observations": state.observations,
        "reflections": state.reflections,
        "history": [[result.node_name, result_to_json(result, ())] for result in state.node_history],
    }


async def run_function(payload: JsonObject, port: Port) -> JsonObject:
    """Runs the function of a node in a worker process; see `tools.process_pool`."""
    found = resolve_name(payload["function"])
    function = getattr(found, "function", found)  # behind the decorator stands a node
    state = _state_of(payload["state"])
    before = Snapshot(state)
    value = function(state)
    value = await value if inspect.isawaitable(value) else value
    result = value if isinstance(value, NodeResult) else NodeResult(payload["node"], value)
    writes = before.writes(state)
    same, _ = writes.get("lists", {}).get("messages", (len(state.messages), ()))
    shared = state.shared
    stop = None if shared.stop_reason is None else [shared.stop_reason, shared.error]
    return {"writes": writes, "result": result_to_json(result, state.messages[same:]), "stop": stop}


def _state_of(data: JsonObject) -> GraphState:
    state = GraphState(convert(data["messages"], list[Message]), data["context"])
    state.visited, state.plan = data["visited"], data["plan"]
    state.observations, state.reflections = data["observations"], data["reflections"]
    contents = known_contents(state.messages)
    state.node_history = [result_of(name, result, contents=contents) for name, result in data["history"]]
    return state
