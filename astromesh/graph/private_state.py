"""The private copy of a state on which a function of a node works: in a thread, or in a worker process.

Other nodes work at the same time, and a thread cannot be stopped: after a timeout it may still write. So a
function gets a copy, and its writes come back when it has ended in time. A worker process gets the state as
JSON, and sends back what the function has written; see `node_json`.

Containers (dict, list, set) are copied at every depth, other values are not: copying runs foreign code.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from msgspec import convert, to_builtins

from astromesh.graph.call_record import known_contents
from astromesh.graph.node_json import Snapshot, apply_writes, context_to_json, result_of, result_to_json
from astromesh.graph.records import NodeResult
from astromesh.graph.state import ALL_LISTS, GraphState, ReadOnlyState, SharedState, read_only_view
from astromesh.tools.executor import TOOL_CALLS
from astromesh.tools.process_pool import Port, call_in_process
from astromesh.types import JsonObject, Message

_CONTAINERS = frozenset({dict, list, set})


class Copies:
    """Copies values, and finds the original of a copy that nobody has changed."""

    __slots__ = ("_copies", "_origins")

    def __init__(self) -> None:
        #: copies by identity of the original, for aliases and cycles, and originals by that of the copy
        self._copies: dict[int, Any] = {}
        self._origins: dict[int, Any] = {}

    def keep(self, value: Any) -> None:
        """Makes no copy of a value, wherever it stands."""
        self._copies[id(value)] = value

    def copy(self, value: Any) -> Any:
        """Returns a copy of a container, any other value itself."""
        return value if type(value) not in _CONTAINERS else self._made(value)

    def _made(self, value: Any) -> Any:
        found = self._copies.get(id(value))
        if found is None:  # noted before its items, which may contain it
            found = self._copies[id(value)] = value.copy()
            self._origins[id(found)] = value
            if type(value) is not set:
                for key, item in value.items() if type(value) is dict else enumerate(value):
                    if type(item) in _CONTAINERS:
                        found[key] = self._made(item)
        return found

    def restored(self, value: Any) -> Any:
        """Returns the original of a copy that has not changed, any other value itself."""
        origin = self._origins.get(id(value), value)
        return origin if origin is value or is_same(origin, value) else value


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal. Values that cannot be compared are not."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 (comparing runs foreign code: arrays have no truth value)
        return False


# -- a private copy of a state ----------------------------------------------------------------------------


_LISTS = (*ALL_LISTS, "visited")


class PrivateState:
    """A copy of a state, and how its changes come back.

    Attributes:
        state: The copy.
    """

    def __init__(self, original: GraphState) -> None:
        self._original = original
        self._copies = copies = Copies()
        copy = original.view([], {key: copies.copy(value) for key, value in original.context.items()})
        for name in _LISTS:
            setattr(copy, name, [copies.copy(item) for item in getattr(original, name)])
        self._keys = frozenset(copy.context)
        if isinstance(original, ReadOnlyState):
            copy = read_only_view(copy)
        shared = original.shared
        if isinstance(shared, SharedState):  # a stop that the function asks for is a write, too
            copy.shared = SharedState(shared.ledger, shared.locals, shared.stop_reason, shared.error)
        self.state = copy

    def rejoin(self) -> None:
        """Connects the copy with the run again: the function has left its thread."""
        state, shared = self.state, self._original.shared
        if state.shared is not shared:
            if state.shared.stop_reason is not None and shared.stop_reason is None:
                shared.stop_reason, shared.error = state.shared.stop_reason, state.shared.error
            state.shared = shared

    def write_back(self) -> None:
        """Writes what the function has changed to the original."""
        self.rejoin()
        original, state = self._original, self.state
        original.current_node = state.current_node
        if not isinstance(state, ReadOnlyState):
            self._write_context()
        for name in _LISTS:
            before, now = getattr(original, name), getattr(state, name)
            if (
                type(now) is not list or type(before) is not list
            ):  # what the loop reports, or cannot be written
                if type(before) is list and not isinstance(now, list):
                    setattr(original, name, now)
                continue
            items = [self._copies.restored(item) for item in now]
            if len(items) != len(before) or any(a is not b for a, b in zip(items, before, strict=True)):
                before[:] = items

    def _write_context(self) -> None:
        original, now = self._original, self.state.context
        if type(now) is not dict:
            original.context = now
            return
        context = original.context
        for key in self._keys - now.keys():
            context.pop(key, None)
        for key, value in now.items():
            restored = self._copies.restored(value)
            if key not in context or context[key] is not restored:
                context[key] = restored


async def call_in_thread(
    name: str, function: Callable[..., tuple[Any]], state: GraphState, *others: Any
) -> Any:
    """Calls a plain function in a tool thread on a private copy of the state. Awaits its value if it can.

    The writes of a function that was cancelled or timed out are dropped.

    Args:
        name: Of the node, for messages.
        function: Takes the state and `others`. Returns its value in a tuple, so that no thread awaits it.

    Raises:
        ToolBusy: Too many earlier calls of the function still hang, or no thread is free.
    """
    private = PrivateState(state)
    has_ended = True
    try:
        (value,) = await TOOL_CALLS.call(function, {}, name, is_async=False, args=(private.state, *others))
        private.rejoin()
        return await value if inspect.isawaitable(value) else value
    except asyncio.CancelledError:
        has_ended = False
        raise
    finally:
        if has_ended:
            private.write_back()


# -- in a worker process ----------------------------------------------------------------------------------


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
