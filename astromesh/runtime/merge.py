"""Messages that arrive close together become one run (`sessions.concurrency: merge`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from astromesh.abc.clock import Clock
from astromesh.types import SessionKey

M = TypeVar("M")
T = TypeVar("T")
Group = tuple[SessionKey, str]


class Merging:
    """The windows that are open now, by session and owner; one that has closed leaves no trace."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.open: dict[Group, _Window[Any, Any]] = {}

    async def join(
        self, group: Group, message: M, seconds: float, work: Callable[[Sequence[M]], Awaitable[T]]
    ) -> T:
        """Runs `work` once with all messages of a window; everybody gets its result.

        The work is that of the first caller. It goes on until the last caller has gone.

        Args:
            seconds: length of the window, from its first message.
        """
        window = self.open.get(group)
        if window is None:
            window = self.open[group] = _Window(self, group, seconds, work)
        result: T = await window.result(message)
        return result


class _Window(Generic[M, T]):
    def __init__(
        self, merging: Merging, group: Group, seconds: float, work: Callable[[Sequence[M]], Awaitable[T]]
    ) -> None:
        self._merging, self._group, self._seconds, self._work = merging, group, seconds, work
        self._messages: list[M] = []
        self._callers = 0
        self._task = asyncio.create_task(self._run())

    async def result(self, message: M) -> T:
        self._messages.append(message)
        self._callers += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._callers -= 1
            if not self._callers and not self._task.done():
                await self._abandon()

    async def _run(self) -> T:
        try:
            await self._merging.clock.sleep(self._seconds)
        finally:
            self._close()
        return await self._work(self._messages)

    async def _abandon(self) -> None:
        self._close()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _close(self) -> None:
        if self._merging.open.get(self._group) is self:
            del self._merging.open[self._group]
