"""Time, as an argument, so that tests own it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


def ms_since(started: float) -> float:
    """Milliseconds since a reading of `time.perf_counter`, to the microsecond.

    Rounding to an integer costs a third of what `round(…, 3)` does, and a run asks ten times.
    """
    return round((time.perf_counter() - started) * 1e6) / 1000
