"""How long what has ended is kept: runs with steps, events and traces, Tasks with all that they left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from astromesh.abc.clock import Clock
from astromesh.errors import AstromeshError

#: seconds between two looks
EXPIRY_SECONDS = 60.0

log = structlog.get_logger("astromesh.runs")


class Kept(NamedTuple):
    """What is kept: `days` behind the end, and so many `runs` at most."""

    days: float = 30.0
    runs: int = 10_000


async def expire(delete: Callable[[float], Awaitable[object]], clock: Clock, days: float) -> None:
    """Deletes what is too old, every minute, for as long as this is awaited.

    Args:
        delete: what ended before a time, in seconds since the epoch.
    """
    while True:
        await clock.sleep(EXPIRY_SECONDS)
        try:
            await delete(clock.now() - days * 86_400.0)
        except AstromeshError as error:  # the next look may find the store again
            log.warning("runs_not_expired", error=str(error))
