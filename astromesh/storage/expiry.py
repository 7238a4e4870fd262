"""Keeps stores open: migrates their tables, and deletes expired rows periodically."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from astromesh.errors import StoreError
from astromesh.logs import get_logger
from astromesh.storage.migrations import Schema
from astromesh.telemetry.clock import Clock

#: seconds between two sweeps
EXPIRY_PERIOD = 60.0
#: seconds after its end when a lease that was not released is deleted
LEASE_GRACE_SECONDS = 3600.0

log = get_logger("astromesh.memory")


class MigratedDatabase(Protocol):
    async def migrate(self, schema: Schema) -> None: ...


class ExpiringStore(Protocol):
    async def expire(self, now: float) -> int: ...


Store = TypeVar("Store", bound=ExpiringStore)


@asynccontextmanager
async def opened_store(
    database: MigratedDatabase, schema: Schema, store: Store, clock: Clock
) -> AsyncIterator[Store]:
    """Migrates the tables of a store, and deletes its expired rows while it is open."""
    await database.migrate(schema)
    async with expire_periodically(store.expire, clock):
        yield store


@asynccontextmanager
async def expire_periodically(expire: Callable[[float], Awaitable[int]], clock: Clock) -> AsyncIterator[None]:
    """Args: expire: deletes what expired before a time in seconds since the epoch; returns the number."""
    task = asyncio.create_task(_expire_forever(expire, clock))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _expire_forever(expire: Callable[[float], Awaitable[int]], clock: Clock) -> None:
    while True:
        try:
            if count := await expire(clock.now()):
                log.info("sessions_expired", count=count)
        except StoreError as error:  # the next sweep tries again
            log.warning("sessions_not_expired", error=str(error))
        await clock.sleep(EXPIRY_PERIOD)
