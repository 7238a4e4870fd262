"""The open runtimes of an agent: one for each event loop, closed with the loop or with the agent.

Connections belong to an event loop. A program may call `asyncio.run` several times with one agent, so each
loop has a runtime of its own. Nobody has to close it: asyncio closes async generators at the end of a loop,
and one of them stands guard here. It closes them all at once, in no order: so it does not learn of those
that the runtime has opened and closes itself.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

from astromesh.plugins import OPENS_RESOURCE
from astromesh.runtime.engine import AgentRuntime


class OpenRuntimes:
    """The runtimes of one agent.

    Args:
        make: Returns a runtime that is not open yet. It must not refer to the agent.
        owner: The agent. When nobody refers to it any more, its runtimes are closed.
    """

    def __init__(self, make: Callable[[], AgentRuntime], owner: object) -> None:
        self._make = make
        self._loops: dict[asyncio.AbstractEventLoop, _LoopRuntime] = {}
        weakref.finalize(owner, _abandon, self._loops).atexit = False

    async def current(self) -> AgentRuntime:
        """Returns the open runtime of this event loop. The first call opens it.

        Raises:
            ConfigError: The agent cannot be opened.
        """
        loop = asyncio.get_running_loop()
        _hide_resources()
        found = self._loops.get(loop)
        if found is None:
            for ended in [one for one in self._loops if one.is_closed()]:
                del self._loops[ended]
            found = self._loops[loop] = _LoopRuntime()
        return found.runtime or await found.open(self._make)

    async def close(self) -> None:
        """Closes the runtime of this event loop; the next run opens another one."""
        found = self._loops.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()


class _LoopRuntime:
    """The runtime of one event loop."""

    def __init__(self) -> None:
        self.runtime: AgentRuntime | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        self._opening = asyncio.Lock()

    async def open(self, make: Callable[[], AgentRuntime]) -> AgentRuntime:
        async with self._opening:
            await _close_abandoned()
            if self.runtime is None:
                runtime = make()
                await runtime.bootstrap()
                self._guard = self._closing_with_loop(runtime)
                await anext(self._guard)
                self.runtime = runtime
        return self.runtime

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.aclose()

    async def _closing_with_loop(self, runtime: AgentRuntime) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.runtime = None
            try:
                await runtime.close()
            except asyncio.CancelledError:  # closing comes first: it does not wait for anybody
                await runtime.close()
                raise


class _AllButResources:
    """Tells a loop of the async generators that begin, but not of those that hold resources."""

    def __init__(self, tell: Callable[[AsyncGenerator[Any, Any]], None]) -> None:
        self._tell = tell

    def __call__(self, begun: AsyncGenerator[Any, Any]) -> None:
        if not OPENS_RESOURCE.get():
            self._tell(begun)


def _hide_resources() -> None:
    tell = sys.get_asyncgen_hooks().firstiter
    if tell is not None and not isinstance(tell, _AllButResources):
        sys.set_asyncgen_hooks(firstiter=_AllButResources(tell))


#: runtimes whose agents are gone: closed with their loop, or when the next agent opens one there
_ABANDONED: dict[asyncio.AbstractEventLoop, list[_LoopRuntime]] = {}


def _abandon(loops: dict[asyncio.AbstractEventLoop, _LoopRuntime]) -> None:
    for loop, left in loops.items():
        if left.runtime is not None:
            _ABANDONED.setdefault(loop, []).append(left)
    loops.clear()


async def _close_abandoned() -> None:
    for ended in [one for one in _ABANDONED if one.is_closed()]:
        del _ABANDONED[ended]
    left = _ABANDONED.pop(asyncio.get_running_loop(), [])
    while left:
        await left.pop().close()
