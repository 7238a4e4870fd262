"""The clock, passed as an argument so that tests can control time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


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
    sleep = staticmethod(asyncio.sleep)
