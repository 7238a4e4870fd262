"""One suite for the session leases of every store that several processes may share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.errors import LeaseLost
from astromesh.memory.base import ConversationStore, SessionLease
from astromesh.plugins import Plugins
from astromesh.testing import ManualClock
from astromesh.types import SessionKey, Turn
from tests.platform.stores import deps_of

KEY, OTHER = SessionKey("acme", "support", "s-1"), SessionKey("acme", "support", "s-2")
TURNS = [Turn("user", "Hello"), Turn("assistant", "Hi")]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=("sqlite", "postgres", "redis"))
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[ConversationStore]:
    deps = deps_of(request, clock, tmp_path)
    opened = await Plugins().open("conversation_stores", request.param, {}, deps)
    yield opened
    await opened.close()
    await deps.resources.close()


async def test_one_of_many_holds_a_session(store):
    tokens = await asyncio.gather(*(store.leases.take(KEY, f"p{n}", 10) for n in range(10)))
    assert sum(token is not None for token in tokens) == 1
    assert await store.leases.take(OTHER, "p0", 10) is not None


async def test_a_session_is_free_when_given_back_or_when_its_holder_is_silent(store, clock):
    first = await store.leases.take(KEY, "a", 10)
    await store.leases.release(SessionLease(KEY, first))
    second = await store.leases.take(KEY, "b", 10)
    clock.advance(9)
    assert await store.leases.renew([SessionLease(KEY, second)], 10) == (False,)
    clock.advance(9)
    assert await store.leases.take(KEY, "c", 10) is None
    clock.advance(2)
    third = await store.leases.take(KEY, "c", 10)
    assert len({first, second, third}) == 3
    assert await store.leases.renew([SessionLease(KEY, second), SessionLease(KEY, third)], 10) == (
        None,
        False,
    )


async def test_who_lost_a_lease_writes_nothing_and_gives_nothing_back(store, clock):
    lost = await store.leases.take(KEY, "a", 10)
    await store.append(KEY, "ann", TURNS, token=lost)
    clock.advance(11)
    held = await store.leases.take(KEY, "b", 10)
    with pytest.raises(LeaseLost, match="s-1"):
        await store.append(KEY, "ann", TURNS, token=lost)
    await store.leases.release(SessionLease(KEY, lost))
    assert await store.leases.take(KEY, "c", 10) is None
    assert await store.append(KEY, "ann", TURNS, token=held) == 4
    await store.leases.release(SessionLease(KEY, held))
    with pytest.raises(LeaseLost):
        await store.append(KEY, "ann", TURNS, token=held)
    assert (await store.recall(KEY, 10)).last_seq == 4


async def test_a_holder_hears_that_somebody_asks_for_its_session(store):
    token = await store.leases.take(KEY, "a", 10)
    await store.leases.interrupt(OTHER)
    assert await store.leases.renew([SessionLease(KEY, token)], 10) == (False,)
    await store.leases.interrupt(KEY)
    assert await store.leases.renew([SessionLease(KEY, token)], 10) == (True,)
    await store.leases.release(SessionLease(KEY, token))
    fresh = await store.leases.take(KEY, "b", 10)
    assert await store.leases.renew([SessionLease(KEY, fresh)], 10) == (False,)
