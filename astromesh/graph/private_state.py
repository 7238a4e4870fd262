"""The private copy of a state on which a plain function works in a thread.

Other nodes work at the same time, and a thread cannot be stopped: after a timeout it may still write. So a
function gets a copy, and its writes come back when it has ended in time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from astromesh.graph.copies import Copies
from astromesh.graph.state import ALL_LISTS, GraphState, ReadOnlyState, SharedState, read_only_view
from astromesh.tools.executor import TOOL_CALLS

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
