"""One suite for every episodic store. A new one joins by a line in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.errors import InvalidInput
from astromesh.memory.base import EpisodicStore
from astromesh.plugins import Deps, Plugins
from astromesh.storage.migrations import EXPIRY_PERIOD
from astromesh.testing import ManualClock
from astromesh.types import SessionKey
from tests.platform.stores import deps_of

BACKENDS = ("in_memory", "sqlite", "postgres")
KEY = SessionKey("acme", "support", "s-1")
NOW = 1_700_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=BACKENDS)
async def deps(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Deps]:
    deps = deps_of(request, clock, tmp_path)
    yield deps
    await deps.resources.close()


@pytest.fixture
def backend(request: pytest.FixtureRequest, deps: Deps) -> str:
    return request.node.callspec.params["deps"]


async def opened(backend: str, deps: Deps, **options) -> EpisodicStore:
    return await Plugins().open("episodic_stores", backend, options, deps)


@pytest.fixture
async def store(backend: str, deps: Deps) -> EpisodicStore:
    return await opened(backend, deps)


def numbered(*numbers: int) -> list:
    return [{"event": "tool_call", "n": n} for n in numbers]


async def test_the_newest_events_come_back_oldest_first(store):
    await store.record(KEY, "ann", numbered(1, 2, 3), now=NOW)
    await store.record(KEY, "ann", numbered(4), now=NOW + 1)
    assert await store.recent(KEY, 3) == tuple(numbered(2, 3, 4))
    assert await store.recent(KEY, 100) == tuple(numbered(1, 2, 3, 4))
    assert await store.recent(KEY, 0) == ()


async def test_an_event_comes_back_as_it_was(store):
    event = {
        "event": "tool_call",
        "arguments": {"q": "λ 🎉 \x00 'q\"", "deep": [1, {"x": None}]},
        "ok": True,
        "ms": 1.5,
    }
    await store.record(KEY, "ann", [event], now=NOW)
    assert await store.recent(KEY, 1) == (event,)


async def test_sessions_are_told_apart_by_tenant_agent_and_id(store):
    keys = [KEY, KEY._replace(tenant="other"), KEY._replace(agent="other"), KEY._replace(session_id="other")]
    for n, key in enumerate(keys):
        await store.record(key, "ann", numbered(n), now=NOW)
    for n, key in enumerate(keys):
        assert await store.recent(key, 10) == tuple(numbered(n))


async def test_events_are_shown_to_those_they_were_recorded_for(store):
    await store.record(KEY, "ann", numbered(1), now=NOW)
    await store.record(KEY, "bob", numbered(2), now=NOW)
    assert await store.recent(KEY, 10, owner="ann") == tuple(numbered(1))
    assert await store.recent(KEY, 10, owner="eve") == ()
    assert await store.recent(KEY, 10) == tuple(numbered(1, 2))


async def test_writers_at_once_lose_nothing(store):
    await asyncio.gather(*(store.record(KEY, "ann", numbered(n), now=NOW) for n in range(50)))
    assert {event["n"] for event in await store.recent(KEY, 100)} == set(range(50))


async def test_beyond_the_bound_the_oldest_go(backend, deps):
    store = await opened(backend, deps, keep=3)
    for n in range(6):
        await store.record(KEY, "ann", numbered(n), now=NOW)
    await store.record(KEY._replace(session_id="s-2"), "ann", numbered(*range(10)), now=NOW)
    assert await store.recent(KEY, 100) == tuple(numbered(3, 4, 5))
    assert await store.recent(KEY._replace(session_id="s-2"), 100) == tuple(numbered(7, 8, 9))


async def test_an_erased_session_has_no_events(store):
    other = KEY._replace(session_id="s-2")
    for key in (KEY, other):
        await store.record(key, "ann", numbered(1), now=NOW)
    await store.erase(KEY)
    assert await store.recent(KEY, 10) == ()
    assert await store.recent(other, 10) == tuple(numbered(1))


async def test_erasing_an_owner_leaves_the_others(store):
    elsewhere = KEY._replace(tenant="other")
    await store.record(KEY, "ann", numbered(1, 2), now=NOW)
    await store.record(KEY, "bob", numbered(3), now=NOW)
    await store.record(KEY._replace(agent="sales"), "ann", numbered(4), now=NOW)
    await store.record(elsewhere, "ann", numbered(5), now=NOW)
    assert await store.erase_owner("acme", "ann") == 3
    assert await store.erase_owner("acme", "ann") == 0
    assert await store.recent(KEY, 10) == tuple(numbered(3))
    assert await store.recent(elsewhere, 10) == tuple(numbered(5))


async def test_all_events_of_a_principal_are_found_by_pages(store):
    """Over all agents and sessions, and those of nobody else."""
    await store.record(KEY, "ann", numbered(1, 2, 3), now=NOW)
    await store.record(KEY, "bob", numbered(4), now=NOW)
    await store.record(KEY._replace(agent="sales"), "ann", numbered(5, 6), now=NOW)
    await store.record(KEY._replace(tenant="other"), "ann", numbered(7), now=NOW)
    seen, after = [], 0
    while page := await store.owned("acme", "ann", after=after, limit=2):
        seen += [(one.agent, one.session_id, one.event["n"]) for one in page]
        after = page[-1].number
    assert seen == [*(("support", "s-1", n) for n in (1, 2, 3)), ("sales", "s-1", 5), ("sales", "s-1", 6)]


async def test_agents_that_share_a_place_say_so(backend, deps):
    """So that what a principal has there is shown once."""
    one, other = await opened(backend, deps), await opened(backend, deps)
    await one.record(KEY, "ann", numbered(1), now=NOW)
    shared = await other.owned("acme", "ann") != ()
    assert (one.place == other.place) is shared


async def test_time_over_means_gone_before_anybody_swept(backend, deps, clock):
    store = await opened(backend, deps, ttl=10)
    await store.record(KEY, "ann", numbered(1), now=clock.now())
    clock.advance(9)
    assert await store.recent(KEY, 10) == tuple(numbered(1))
    clock.advance(1)
    assert await store.recent(KEY, 10) == ()


async def test_the_store_expires_by_itself(backend, deps, clock):
    store = await opened(backend, deps, ttl=10)
    await store.record(KEY, "ann", numbered(1), now=clock.now())
    async with asyncio.timeout(20):
        while not clock.sleepers:
            await asyncio.sleep(0.002)
        await clock.run_for(EXPIRY_PERIOD + 1)
        while not clock.sleepers:
            await asyncio.sleep(0.002)
    assert await store.erase_owner("acme", "ann") == 0, "it was there to be deleted"


async def test_what_has_no_json_form_is_refused(store):
    with pytest.raises(InvalidInput):
        await store.record(KEY, "ann", [{"event": "a\ud800b"}], now=NOW)
    await store.record(KEY, "ann", numbered(1), now=NOW)
    assert await store.recent(KEY, 10) == tuple(numbered(1))


async def test_a_sound_store_answers_a_ping(store):
    await store.ping()


async def test_the_event_loop_stays_free(store, free_loop):
    await store.record(KEY, "ann", numbered(1), now=NOW)
    await store.recent(KEY, 10)
    await store.erase_owner("acme", "ann")
