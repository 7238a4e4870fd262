"""Leases are renewed whatever comes while a store is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from astromesh.memory.base import SessionLease
from astromesh.runtime.sessions import SessionLeaseHolder, SessionLock, Sessions
from astromesh.types import SessionKey


class SlowLeases:
    """A store of leases that answers a renewal when it is let go."""

    shared = True

    def __init__(self) -> None:
        self.asked = 0
        self.renewed = asyncio.Event()
        self.answering = asyncio.Event()

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None: ...

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        return 7

    async def interrupt(self, key: SessionKey) -> None: ...

    async def renew(self, held: Sequence[SessionLease], seconds: float) -> tuple[bool | None, ...]:
        self.asked += 1
        self.renewed.set()
        await self.answering.wait()
        return (False,) * len(held)

    async def release(self, held: SessionLease) -> None: ...


async def test_a_store_that_comes_while_another_is_asked_ends_no_renewing() -> None:
    """Else a long run's lease would end, and another process would take its session."""
    leases, store = SessionLeaseHolder(), SlowLeases()
    key = SessionKey("default", "helper", "s", "anonymous")
    seat = SessionLock(Sessions(), key, "enqueue", 1.0)
    leases.sessions_under(store).add(seat)
    await leases.take(store, seat)
    await store.renewed.wait()
    leases.sessions_under(SlowLeases())
    store.renewed.clear()
    store.answering.set()
    async with asyncio.timeout(20):
        await store.renewed.wait()
    assert store.asked == 2
    await leases.close()
