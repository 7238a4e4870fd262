"""One suite for every conversation store. A new backend joins by one line in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.errors import InvalidInput, SessionNotFound
from astromesh.memory.base import ConversationStore, Summary
from astromesh.plugins import Plugins
from astromesh.storage.migrations import EXPIRY_PERIOD
from astromesh.testing import ManualClock
from astromesh.types import SessionKey, Turn
from tests.platform.stores import deps_of

BACKENDS = ("in_memory", "sqlite", "postgres", "redis")
KEY = SessionKey("acme", "support", "s-1")
ASKED, ANSWERED = Turn("user", "How do I reset it?"), Turn("assistant", "Press the button.")
NOW = 1_700_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=BACKENDS)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[ConversationStore]:
    deps = deps_of(request, clock, tmp_path)
    opened = await Plugins().open("conversation_stores", request.param, {}, deps)
    yield opened
    await opened.close()
    await deps.resources.close()


async def converse(store: ConversationStore, key: SessionKey, count: int, owner: str = "ann") -> None:
    for n in range(count):
        turns = [Turn("user", f"question {n}"), Turn("assistant", f"answer {n}")]
        await store.append(key, owner, turns)


# -- what is written is what is read -------------------------------------------------------------------------


async def test_an_unknown_session_has_nothing(store):
    recalled = await store.recall(KEY, 10)
    assert (recalled.turns, recalled.owner, recalled.last_seq, recalled.summary) == ((), None, 0, None)
    assert await store.info(KEY) is None
    assert await store.page(KEY) == ()
    assert await store.erase(KEY) is False


async def test_a_store_knows_whether_a_run_has_written_its_turns(store):
    """R1: a run that is taken up again behind its append writes nothing twice."""
    await store.append(KEY, "ann", [ASKED._replace(run_id="run_1"), ANSWERED._replace(run_id="run_1")])
    await converse(store, KEY, 30)
    assert await store.written(KEY, "run_1") is True
    assert await store.written(KEY, "run_2") is False
    assert await store.written(KEY._replace(session_id="other"), "run_1") is False
    await store.append(
        KEY._replace(session_id="brief"), "ann", [ASKED._replace(run_id="run_3")], expires_at=NOW
    )
    assert await store.written(KEY._replace(session_id="brief"), "run_3") is False


async def test_a_cancelled_append_tells_whether_its_turns_are_written(store):
    """Whatever it had come to: the run is completed where they are, and tried again where they are not."""
    told, kept = [], []
    for steps in range(12):
        key = KEY._replace(session_id=f"cut-{steps}")
        task = asyncio.create_task(store.append(key, "ann", [ASKED, ANSWERED]))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        seq = (await asyncio.gather(task, return_exceptions=True))[0]
        told.append(seq == 2)
    await store.append(KEY._replace(session_id="last"), "ann", [ASKED])  # what was queued is written by now
    for steps in range(12):
        kept.append((await store.recall(KEY._replace(session_id=f"cut-{steps}"), 10)).last_seq == 2)
    assert told == kept


async def test_turns_come_back_whole_and_numbered(store):
    turn = Turn(
        "user",
        "Zeile 1\nλ 🎉 \x00 'q\"",
        created_at=NOW + 0.125,
        run_id="run_1",
        tokens=7,
        author="tea-agent",
    )
    cut = Turn("assistant", "", run_id="run_1", status="partial")
    assert await store.append(KEY, "ann", [turn, cut]) == 2
    expected = (turn._replace(seq=1), cut._replace(seq=2, created_at=NOW))
    assert (await store.recall(KEY, 10)).turns == expected
    assert await store.page(KEY) == expected


async def test_recall_answers_the_newest_oldest_first(store):
    await converse(store, KEY, 5)
    recalled = await store.recall(KEY, 3)
    assert [t.seq for t in recalled.turns] == [8, 9, 10]
    assert recalled.last_seq == 10
    assert (await store.recall(KEY, 0)).turns == ()
    assert len((await store.recall(KEY, 1000)).turns) == 10


async def test_sessions_are_told_apart_by_tenant_agent_and_id(store):
    keys = [KEY, KEY._replace(tenant="other"), KEY._replace(agent="other"), KEY._replace(session_id="other")]
    for n, key in enumerate(keys):
        await store.append(key, f"owner-{n}", [Turn("user", str(n))])
    for n, key in enumerate(keys):
        recalled = await store.recall(key, 10)
        assert ([t.content for t in recalled.turns], recalled.owner) == ([str(n)], f"owner-{n}")


async def test_writers_at_once_lose_nothing_and_mix_nothing(store):
    """Ten writers append pairs to one session: every pair is there, unbroken, numbered without a gap."""

    async def write(who: int) -> None:
        for n in range(20):
            await store.append(KEY, "ann", [Turn("user", f"{who}/{n}"), Turn("assistant", f"{who}/{n}")])

    await asyncio.gather(*(write(who) for who in range(10)))
    turns = (await store.recall(KEY, 1000)).turns
    assert [t.seq for t in turns] == list(range(1, 401))
    assert [t.role for t in turns] == ["user", "assistant"] * 200
    assert all(q.content == a.content for q, a in zip(turns[::2], turns[1::2], strict=True))
    assert {t.content for t in turns} == {f"{who}/{n}" for who in range(10) for n in range(20)}


# -- owners --------------------------------------------------------------------------------------------------


async def test_the_first_principal_owns_the_session(store):
    await store.append(KEY, "ann", [ASKED, ANSWERED])
    with pytest.raises(SessionNotFound):
        await store.append(KEY, "bob", [ASKED, ANSWERED])
    recalled = await store.recall(KEY, 10)
    assert (recalled.owner, recalled.last_seq) == ("ann", 2)


async def test_of_two_first_principals_one_gets_the_session(store):
    results = await asyncio.gather(
        *(store.append(KEY, owner, [ASKED, ANSWERED]) for owner in ("ann", "bob", "eve")),
        return_exceptions=True,
    )
    assert sorted(type(r).__name__ for r in results) == ["SessionNotFound", "SessionNotFound", "int"]
    assert (await store.info(KEY)).turns == 2


async def test_erasing_an_owner_leaves_the_others(store):
    for n in range(450):
        await store.append(KEY._replace(session_id=f"a{n}"), "ann", [ASKED])
    await store.append(KEY, "bob", [ASKED])
    await store.append(KEY._replace(tenant="other"), "ann", [ASKED])
    assert await store.erase_owner("acme", "ann") == 450
    assert await store.erase_owner("acme", "ann") == 0
    assert await store.info(KEY) is not None
    assert await store.info(KEY._replace(tenant="other")) is not None
    assert await store.page(KEY._replace(session_id="a1")) == ()


async def test_all_sessions_of_a_principal_are_found_by_pages(store, clock):
    """Over all agents, those of nobody else, and none whose time is over."""
    keys = [SessionKey("acme", agent, f"s{n}") for agent in ("sales", "support") for n in range(4)]
    for key in reversed(keys):
        await store.append(key, "ann", [ASKED])
    await store.append(KEY, "bob", [ASKED])
    await store.append(KEY._replace(tenant="other"), "ann", [ASKED])
    await store.append(KEY._replace(session_id="s0a"), "ann", [ASKED], expires_at=NOW + 1)
    clock.advance(2)
    seen, last = [], None
    while page := await store.owned("acme", "ann", after=last, limit=3):
        assert len(page) <= 3
        seen += page
        last = page[-1]
    assert seen == keys
    assert await store.owned("acme", "nobody") == ()


# -- paging --------------------------------------------------------------------------------------------------


async def test_pages_of_a_session_join_to_the_whole_while_it_grows(store):
    await converse(store, KEY, 10)
    seen, after = [], 0
    while page := await store.page(KEY, after=after, limit=7):
        seen += page
        after = page[-1].seq
        if len(seen) == 7:
            await converse(store, KEY, 1)
    assert [t.seq for t in seen] == list(range(1, 23))


async def test_pages_of_sessions_are_ordered_and_may_be_limited_to_an_owner(store):
    for n in range(10):
        await store.append(KEY._replace(session_id=f"s{n}"), "ann" if n % 2 else "bob", [ASKED, ANSWERED])
    await store.append(KEY._replace(agent="other"), "ann", [ASKED])
    everyone = await store.sessions("acme", "support", limit=4)
    assert [s.session_id for s in everyone] == ["s0", "s1", "s2", "s3"]
    rest = await store.sessions("acme", "support", after=KEY._replace(session_id="s3").columns[2])
    assert [s.session_id for s in rest] == ["s4", "s5", "s6", "s7", "s8", "s9"]
    anns = await store.sessions("acme", "support", owner="ann", after="s2", limit=3)
    assert [(s.session_id, s.owner, s.turns) for s in anns] == [
        ("s3", "ann", 2),
        ("s5", "ann", 2),
        ("s7", "ann", 2),
    ]


async def test_info_tells_age_and_size(store, clock):
    await converse(store, KEY, 1)
    clock.advance(5)
    await converse(store, KEY, 1)
    info = await store.info(KEY)
    assert (info.turns, info.created_at, info.updated_at, info.owner) == (4, NOW, NOW + 5, "ann")


# -- summaries -----------------------------------------------------------------------------------------------


async def test_a_summary_is_recalled_and_only_moves_forward(store):
    await converse(store, KEY, 5)
    for summary in (Summary("up to 4", 4), Summary("older", 2), Summary("of the future", 11)):
        await store.set_summary(KEY, summary)
    recalled = await store.recall(KEY, 2)
    assert recalled.summary == Summary("up to 4", 4)
    assert [t.seq for t in recalled.turns] == [9, 10]
    await store.set_summary(KEY, Summary("up to 6", 6))
    assert (await store.recall(KEY, 2)).summary == Summary("up to 6", 6)


async def test_a_summary_of_nothing_makes_no_session(store):
    await store.set_summary(KEY, Summary("ghost", 1))
    assert await store.info(KEY) is None


# -- erasing and expiry --------------------------------------------------------------------------------------


async def test_an_erased_session_is_gone_and_begins_anew(store):
    await converse(store, KEY, 3)
    await store.set_summary(KEY, Summary("old", 4))
    assert await store.erase(KEY) is True
    assert await store.info(KEY) is None
    assert await store.append(KEY, "bob", [ASKED]) == 1
    recalled = await store.recall(KEY, 10)
    assert ([t.content for t in recalled.turns], recalled.summary) == ([ASKED.content], None)


async def test_time_over_means_gone_before_anybody_swept(store, clock):
    await store.append(KEY, "ann", [ASKED], expires_at=NOW + 10)
    clock.advance(9)
    await store.append(KEY, "ann", [ANSWERED], expires_at=clock.now() + 10)
    clock.advance(9)
    assert (await store.recall(KEY, 10)).last_seq == 2
    clock.advance(1)
    assert (await store.recall(KEY, 10)).owner is None
    assert await store.info(KEY) is None
    assert await store.page(KEY) == ()
    assert await store.sessions("acme", "support") == ()
    assert await store.append(KEY, "bob", [ASKED]) == 1
    assert [t.seq for t in (await store.recall(KEY, 10)).turns] == [1]


async def test_expire_deletes_what_is_over_and_nothing_else(store, clock):
    for n in range(450):
        await store.append(KEY._replace(session_id=f"t{n}"), "ann", [ASKED], expires_at=NOW + 1 + n)
    await store.append(KEY, "ann", [ASKED])
    assert await store.expire(NOW + 300) == 300
    assert await store.expire(NOW + 300) == 0
    assert len(await store.sessions("acme", "support", limit=1000)) == 151


async def test_the_store_expires_by_itself(store, clock):
    await store.append(KEY, "ann", [ASKED], expires_at=NOW + 10)
    await sweeper_sleeps(clock)
    await clock.run_for(EXPIRY_PERIOD + 1)
    await sweeper_sleeps(clock)
    assert await store.expire(clock.now()) == 0, "it was there to be deleted"


async def sweeper_sleeps(clock: ManualClock) -> None:
    """The sweeper has done its work, which may be in a thread, and waits for the next time."""
    async with asyncio.timeout(20):
        while not clock.sleepers:
            await asyncio.sleep(0.002)


# -- cancelled callers ---------------------------------------------------------------------------------------


async def test_a_cancel_leaves_no_append_half_done(store):
    """Step 11 writes both turns or none."""
    await converse(store, KEY, 1)
    task = asyncio.create_task(store.append(KEY, "ann", [ASKED, ANSWERED]))
    await asyncio.sleep(0)
    task.cancel()
    seq = (await asyncio.gather(task, return_exceptions=True))[0]
    assert await store.append(KEY, "ann", [ASKED]) == (5 if seq == 4 else 3)
    pairs = ["user", "assistant"] * (2 if seq == 4 else 1)
    assert [t.role for t in (await store.recall(KEY, 10)).turns] == [*pairs, "user"]


# -- errors --------------------------------------------------------------------------------------------------


async def test_text_that_is_none_is_refused(store, request):
    """Half of a surrogate pair has no UTF-8; it must not break the store for others."""
    if request.node.callspec.params["store"] == "in_memory":
        return
    with pytest.raises(InvalidInput, match="surrogate"):
        await store.append(KEY, "ann", [Turn("user", "a\ud800b")])
    await converse(store, KEY, 1)
    assert (await store.recall(KEY, 10)).last_seq == 2


async def test_a_sound_store_answers_a_ping(store):
    await store.ping()


async def test_the_event_loop_stays_free(store, free_loop):
    await converse(store, KEY, 3)
    await store.recall(KEY, 10)
    await store.erase_owner("acme", "ann")
