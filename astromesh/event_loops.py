"""What an object opens in each event loop, closed with the loop or with the object.

Connections belong to an event loop. A program may call `asyncio.run` several times with one agent or engine,
so each loop has a runtime, or models, of its own. Nobody has to close them: asyncio closes its async
generators at the end of a loop, and a generator of this module then closes what is open. asyncio closes all
of them at once, in no order, so those that hold resources are hidden from it: their owners close them.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar

from astromesh.plugins import OPENS_RESOURCE


class Openable(Protocol):
    """What is opened and closed in an event loop."""

    async def bootstrap(self) -> None: ...

    async def close(self) -> None: ...


T = TypeVar("T", bound=Openable)


class OpenPerLoop(Generic[T]):
    """What one object has open, by event loop.

    Args:
        make: Returns what is not open yet. It must not refer to the owner.
        owner: When nobody refers to it any more, all is closed.
    """

    def __init__(self, make: Callable[[], T], owner: object) -> None:
        self._make = make
        self._loops: dict[asyncio.AbstractEventLoop, _InLoop[T]] = {}
        weakref.finalize(owner, _abandon, self._loops).atexit = False

    async def current(self) -> T:
        """Returns what is open in this event loop. The first call opens it.

        Raises:
            ConfigError: It cannot be opened.
        """
        loop = asyncio.get_running_loop()
        _hide_resources()
        found = self._loops.get(loop)
        if found is None:
            for ended in [one for one in self._loops if one.is_closed()]:
                del self._loops[ended]
            found = self._loops[loop] = _InLoop()
        return found.opened or await found.open(self._make)

    async def close(self) -> None:
        """Closes what is open in this event loop. The next call of `current` opens it again."""
        found = self._loops.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()


class _InLoop(Generic[T]):
    """What is open in one event loop."""

    def __init__(self) -> None:
        self.opened: T | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        self._opening = asyncio.Lock()

    async def open(self, make: Callable[[], T]) -> T:
        async with self._opening:
            await _close_abandoned()
            if self.opened is None:
                made = make()
                await made.bootstrap()
                self._guard = self._closing_with_loop(made)
                await anext(self._guard)
                self.opened = made
        return self.opened

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.aclose()

    async def _closing_with_loop(self, made: T) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.opened = None
            try:
                await made.close()
            except asyncio.CancelledError:  # closing comes first: it does not wait for anybody
                await made.close()
                raise


class _AllButResources:
    """Tells a loop of the async generators that begin, but not of those that hold resources."""

    def __init__(self, notify: Callable[[AsyncGenerator[Any, Any]], None]) -> None:
        self._notify = notify

    def __call__(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not OPENS_RESOURCE.get():
            self._notify(generator)


def _hide_resources() -> None:
    hook = sys.get_asyncgen_hooks().firstiter
    if hook is not None and not isinstance(hook, _AllButResources):
        sys.set_asyncgen_hooks(firstiter=_AllButResources(hook))


#: what is open and has no owner any more: closed with their loop, or when somebody opens something there
_ABANDONED: dict[asyncio.AbstractEventLoop, list[_InLoop[Any]]] = {}


def _abandon(loops: dict[asyncio.AbstractEventLoop, _InLoop[Any]]) -> None:
    for loop, left in loops.items():
        if left.opened is not None:
            _ABANDONED.setdefault(loop, []).append(left)
    loops.clear()


async def _close_abandoned() -> None:
    for ended in [one for one in _ABANDONED if one.is_closed()]:
        del _ABANDONED[ended]
    left = _ABANDONED.pop(asyncio.get_running_loop(), [])
    while left:
        await left.pop().close()
