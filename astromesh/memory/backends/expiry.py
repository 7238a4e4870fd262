"""Deletes what has expired, from time to time, for as long as a store is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from astromesh.abc.clock import Clock
from astromesh.errors import StoreError

#: seconds between two looks
PERIOD = 60.0
#: seconds for which a lease that nobody gave back is left behind its end
LEFT_SECONDS = 3600.0

log = structlog.get_logger("astromesh.memory")


@asynccontextmanager
async def expiring(expire: Callable[[float], Awaitable[int]], clock: Clock) -> AsyncIterator[None]:
    """Args: expire: deletes what is over at a time, in seconds since the epoch; answers how much."""
    task = asyncio.create_task(_keep_expiring(expire, clock))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_expiring(expire: Callable[[float], Awaitable[int]], clock: Clock) -> None:
    while True:
        try:
            if count := await expire(clock.now()):
                log.info("sessions_expired", count=count)
        except StoreError as error:  # the next look may find the store again
            log.warning("sessions_not_expired", error=str(error))
        await clock.sleep(PERIOD)
