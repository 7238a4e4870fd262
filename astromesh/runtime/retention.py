"""How long ended runs are kept, with steps, events and traces: by age and number, the oldest go first."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from astromesh.abc.clock import Clock
from astromesh.abc.durable import RunStore
from astromesh.errors import AstromeshError

#: seconds between two looks
EXPIRY_SECONDS = 60.0

log = structlog.get_logger("astromesh.runs")


class Kept(NamedTuple):
    """What is kept: `days` behind a run's end, and so many `runs` at most."""

    days: float = 30.0
    runs: int = 10_000


async def expire(store: RunStore, clock: Clock, kept: Kept) -> None:
    """Deletes what is beyond the bounds, every minute, for as long as this is awaited."""
    while True:
        await clock.sleep(EXPIRY_SECONDS)
        try:
            await store.expire(clock.now() - kept.days * 86_400.0, kept.runs)
        except AstromeshError as error:  # the next look may find the store again
            log.warning("runs_not_expired", error=str(error))
