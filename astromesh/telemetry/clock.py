"""The clock, passed as an argument so that tests can control time, and time limits that can stand still."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self

#: by which a loop that counts in milliseconds wakes early
_ROUNDING_SECONDS = 0.001


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never decrease."""

    async def sleep(self, seconds: float) -> None: ...


def iso_time(seconds: float) -> str:
    """Returns seconds since the epoch in ISO 8601, e.g. `2024-05-01T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class SystemClock:
    """The system's time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Sleeps for so many seconds or more. A loop may wake early, by its own rounded time (uvloop)."""
        ends, left = time.monotonic() + seconds, seconds
        while True:
            await asyncio.sleep(left + _ROUNDING_SECONDS)
            if (left := ends - time.monotonic()) <= 0:
                return


#: milliseconds between two ticks, and where they lie: processes that start together do not wake together
_TICK_MS, _PHASE_MS = 1000, int(time.monotonic() * 1000) % 1000


def seconds_to_tick(seconds: float, now: float) -> float:
    """Returns the seconds until the last common tick of this process within so many seconds.

    What waits for ticks wakes together, so that an idle process wakes once a second and not once for each of
    its jobs. A wait that is shorter than a tick stays as it is.

    Args:
        now: of `time.monotonic`.
    """
    wait_ms = seconds * 1000
    if wait_ms < _TICK_MS:
        return seconds
    now_ms = now * 1000 - _PHASE_MS
    due_ms = (now_ms + wait_ms + 1.0) // _TICK_MS * _TICK_MS  # a loop may wake early by a millisecond
    return math.ceil(due_ms - now_ms) / 1000  # uvloop counts whole ones, so that all wake in one turn


async def sleep_to_tick(seconds: float) -> None:
    """Sleeps for `seconds_to_tick`."""
    await asyncio.sleep(seconds_to_tick(seconds, time.monotonic()))


def interval_sleep(clock: Clock) -> Callable[[float], Awaitable[None]]:
    """Returns how a job sleeps between two calls: to a common tick, or by a clock that a test moves."""
    return sleep_to_tick if isinstance(clock, SystemClock) else clock.sleep


class TimeLimit:
    """`asyncio.timeout`, which stands still while the work in it waits for a person (`standing_still`).

    Args:
        seconds: of the work; None: no limit.
        moved: receives the seconds for which the limit stood, each time.
    """

    def __init__(self, seconds: float | None, moved: Callable[[float], None] | None = None) -> None:
        self._timeout, self._moved = asyncio.timeout(seconds), moved
        self._stops, self._since = 0, 0.0
        self._is_over = False
        self._ends: float | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._token: Token[tuple[TimeLimit, ...]] = _LIMITS.set((*_LIMITS.get(), self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _LIMITS.reset(self._token)
        self._is_over = (
            True  # what was begun in it and goes on, e.g. the stage behind clones, may still stand
        )
        # a cancelled timer keeps its context, and so this limit, until its time: the run must go before
        self._moved = None
        await self._timeout.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        """Whether the work was cancelled by this limit."""
        return self._timeout.expired()

    def _runs(self) -> bool:
        return not self._is_over and not self.expired()

    def stop(self) -> None:
        """Stands still until `start` was called as often."""
        if not self._stops:
            self._since = asyncio.get_running_loop().time()
            self._ends = self._timeout.when()
            if self._ends is not None and self._runs():
                self._timeout.reschedule(None)
        self._stops += 1

    def start(self) -> None:
        self._stops -= 1
        if self._stops:
            return
        stood = asyncio.get_running_loop().time() - self._since
        if self._ends is not None and self._runs():
            self._timeout.reschedule(self._ends + stood)
        if self._moved is not None:
            self._moved(stood)


#: the limits of the work that the current code is part of
_LIMITS: ContextVar[tuple[TimeLimit, ...]] = ContextVar("astromesh_time_limits", default=())


@contextmanager
def standing_still() -> Iterator[None]:
    """Stops every limit of the work that the current code is part of."""
    limits = _LIMITS.get()
    for limit in limits:
        limit.stop()
    try:
        yield
    finally:
        for limit in limits:
            limit.start()
