"""The clock, passed as an argument so that tests can control time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never decrease."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The system's time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


def ms_since(started: float) -> float:
    """Returns the milliseconds since a reading of `time.perf_counter`, to the microsecond.

    Rounding to an integer costs a third of `round(…, 3)`, and a run measures ten times.
    """
    return round((time.perf_counter() - started) * 1e6) / 1000
