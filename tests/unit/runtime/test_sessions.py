"""One run at a time per session, and the four policies for a message that comes meanwhile."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence

import pytest

from astromesh.errors import Interrupted, LeaseLost, SessionBusy
from astromesh.runtime.sessions import MergeWindows, Sessions
from astromesh.testing import ManualClock
from astromesh.types import SessionKey

KEY = SessionKey("acme", "support", "s-1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sessions(clock: ManualClock) -> Sessions:
    return Sessions(clock)


async def turns_of_the_loop(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Visit:
    """A run in a session: enters, stays until let go, notes when."""

    def __init__(self, sessions: Sessions, log: list[str], name: str, policy="enqueue", **options) -> None:
        self.go = asyncio.Event()
        self._log = log
        self.task = asyncio.create_task(self._run(sessions, name, policy, options))

    async def _run(self, sessions, name, policy, options) -> str:
        async with sessions.enter(KEY, policy, **options):
            self._log.append(f"+{name}")
            try:
                await self.go.wait()
            finally:
                self._log.append(f"-{name}")
        return name


# -- enqueue -------------------------------------------------------------------------------------------------


async def test_messages_wait_their_turn_first_come_first_served(sessions):
    log: list[str] = []
    visits = [Visit(sessions, log, str(n)) for n in range(5)]
    for visit in visits:
        visit.go.set()
    assert await asyncio.gather(*(v.task for v in visits)) == ["0", "1", "2", "3", "4"]
    assert log == [f"{sign}{n}" for n in range(5) for sign in "+-"]
    assert sessions.active == {}


async def test_other_sessions_do_not_wait(sessions):
    async with sessions.enter(KEY), sessions.enter(KEY._replace(session_id="s-2")):
        assert len(sessions.active) == 2


async def test_who_waits_too_long_is_told_so_and_leaves_the_queue(sessions, clock):
    log: list[str] = []
    first, second, third = (Visit(sessions, log, n, timeout=t) for n, t in (("1", 60), ("2", 60), ("3", 90)))
    await turns_of_the_loop()
    await clock.run_for(60)
    with pytest.raises(SessionBusy, match="60 s"):
        await second.task
    first.go.set()
    third.go.set()
    assert await third.task == "3"
    assert log == ["+1", "-1", "+3", "-3"]
    assert sessions.active == {}


async def test_a_seat_that_is_given_at_the_last_moment_is_given(sessions, clock):
    """The time is over and the seat is free in the same turn of the loop, which says nothing of errors."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    log: list[str] = []
    first, second = (Visit(sessions, log, n) for n in "12")
    await turns_of_the_loop()
    clock.advance(60)
    first.go.set()
    second.go.set()
    assert await second.task == "2"
    await turns_of_the_loop()
    assert errors == []


async def test_who_does_not_say_otherwise_waits_sixty_seconds(sessions, clock):
    async with sessions.enter(KEY):
        waiting = asyncio.create_task(sessions.enter(KEY).__aenter__())
        await clock.run_for(59.9)
        assert not waiting.done()
        await clock.run_for(0.1)
        with pytest.raises(SessionBusy, match="60 s"):
            await waiting


def test_windows_go_by_the_clock_of_the_sessions(sessions, clock):
    assert sessions.merging.clock is clock


async def test_a_session_holds_no_endless_queue(sessions):
    async with sessions.enter(KEY):
        waiting = [asyncio.create_task(sessions.enter(KEY).__aenter__()) for _ in range(1000)]
        await turns_of_the_loop(1)
        with pytest.raises(SessionBusy, match=r"^1000 messages wait for this session; "):
            await sessions.enter(KEY).__aenter__()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert sessions.active == {}


async def test_who_goes_away_while_waiting_leaves_the_queue(sessions, clock):
    log: list[str] = []
    first, second, third = (Visit(sessions, log, n) for n in "123")
    await turns_of_the_loop()
    second.task.cancel()
    await turns_of_the_loop()
    assert len(sessions.active[KEY].waiting) == 1
    first.go.set()
    third.go.set()
    assert await third.task == "3"
    await turns_of_the_loop()
    assert (log, sessions.active, clock.sleepers) == (["+1", "-1", "+3", "-3"], {}, 0)


async def test_a_seat_given_to_somebody_who_has_just_gone_goes_on_to_the_next(sessions):
    log: list[str] = []
    first, second, third = (Visit(sessions, log, n) for n in "123")
    await turns_of_the_loop()
    first.go.set()
    while "-1" not in log:
        await asyncio.sleep(0)
    second.task.cancel()  # it holds the seat by now, but has not run yet
    third.go.set()
    assert await third.task == "3"
    assert second.task.cancelled()
    assert sessions.active == {}


async def test_a_run_that_fails_gives_its_seat_back(sessions):
    async def fail() -> None:
        async with sessions.enter(KEY):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  the bare one above
        await fail()
    assert sessions.active == {}


# -- reject --------------------------------------------------------------------------------------------------


async def test_reject_says_busy_at_once(sessions):
    async with sessions.enter(KEY):
        with pytest.raises(SessionBusy, match=r"^The session is answering another message; send this one "):
            await sessions.enter(KEY, "reject").__aenter__()
    async with sessions.enter(KEY, "reject"):
        pass
    assert sessions.active == {}


# -- interrupt -----------------------------------------------------------------------------------------------


async def test_the_newer_message_takes_the_place_when_the_older_run_has_left(sessions):
    log: list[str] = []
    older = Visit(sessions, log, "1", "interrupt")
    await turns_of_the_loop()
    newer = Visit(sessions, log, "2", "interrupt")
    newer.go.set()
    assert await newer.task == "2"
    with pytest.raises(Interrupted):
        await older.task
    assert log == ["+1", "-1", "+2", "-2"]
    assert sessions.active == {}


async def test_of_many_messages_only_the_newest_is_answered(sessions):
    log: list[str] = []
    visits = [Visit(sessions, log, str(n), "interrupt") for n in range(6)]
    await turns_of_the_loop()
    visits[-1].go.set()
    results = await asyncio.gather(*(v.task for v in visits), return_exceptions=True)
    assert [type(r) for r in results[:-1]] == [Interrupted] * 5
    assert {str(r) for r in results[:-1]} == {"A newer message of the session replaced this one."}
    assert results[-1] == "5"
    assert sessions.active == {}


async def test_an_interrupted_run_may_finish_its_cleaning_first(sessions):
    """The partial text is written before the newer run enters."""
    log: list[str] = []

    async def older() -> None:
        async with sessions.enter(KEY, "interrupt"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await turns_of_the_loop()
                log.append("partial text kept")
                raise

    task = asyncio.create_task(older())
    await turns_of_the_loop()
    async with sessions.enter(KEY, "interrupt"):
        log.append("newer")
    with pytest.raises(Interrupted):
        await task
    assert log == ["partial text kept", "newer"]
    assert task.cancelling() == 0


async def test_a_cancel_from_elsewhere_stays_a_cancel(sessions):
    log: list[str] = []
    older = Visit(sessions, log, "1", "interrupt")
    await turns_of_the_loop()
    older.task.cancel()
    async with sessions.enter(KEY, "interrupt"):  # before the older one has heard of it
        assert (await asyncio.gather(older.task, return_exceptions=True))[
            0
        ].__class__ is asyncio.CancelledError
    assert sessions.active == {}


async def test_a_run_that_is_cancelled_and_not_interrupted_is_cancelled(sessions):
    visit = Visit(sessions, [], "1")
    await turns_of_the_loop()
    visit.task.cancel()
    await asyncio.gather(visit.task, return_exceptions=True)
    assert visit.task.cancelled()
    assert sessions.active == {}


async def test_a_run_that_fails_while_it_is_interrupted_has_failed(sessions):
    async def fail() -> None:
        async with sessions.enter(KEY) as seat:
            seat.interrupt()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("while cleaning") from None

    with pytest.raises(ValueError, match="while cleaning"):
        await asyncio.create_task(fail())
    assert sessions.active == {}


async def test_one_who_was_given_the_seat_in_that_moment_is_interrupted_too(sessions):
    log: list[str] = []
    first, second = (Visit(sessions, log, n) for n in "12")
    await turns_of_the_loop()
    first.go.set()
    while "-1" not in log:
        await asyncio.sleep(0)
    async with sessions.enter(KEY, "interrupt"):  # before the second has run again
        with pytest.raises(Interrupted, match=r"^A newer message"):
            await second.task
    assert log == ["+1", "-1"]
    assert sessions.active == {}


# -- a lease that is lost ------------------------------------------------------------------------------------


async def stay(sessions: Sessions, *happens: str) -> None:
    """A run to whose seat things happen while it waits."""
    async with sessions.enter(KEY) as seat:
        for what in happens:
            getattr(seat, what)()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("happens", "error", "message"),
    [
        (["lose"], LeaseLost, r"^Another process has taken the session over, and nothing was stored"),
        (["lose", "lose"], LeaseLost, "^Another process"),
        (["lose", "interrupt"], LeaseLost, "^Another process"),
        (["interrupt", "lose"], Interrupted, "^A newer message"),
        (["interrupt", "interrupt"], Interrupted, "^A newer message"),
    ],
)
async def test_what_happens_first_to_a_run_is_how_it_ends(sessions, happens, error, message):
    with pytest.raises(error, match=message):
        await asyncio.create_task(stay(sessions, *happens))
    assert sessions.active == {}


async def test_a_seat_where_nobody_sits_cannot_be_lost(sessions):
    seat = sessions.enter(KEY)
    seat.lose()
    async with seat:
        pass
    assert sessions.active == {}


# -- owners --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["enqueue", "reject", "interrupt"])
async def test_nobody_waits_for_or_interrupts_the_session_of_another(sessions, policy):
    """Equal ids of two principals are two sessions."""
    async with sessions.enter(KEY), sessions.enter(KEY._replace(owner="bob"), policy):
        assert len(sessions.active) == 2


# -- merge ---------------------------------------------------------------------------------------------------


class Answering:
    """The work of a merged run."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.cancelled = 0
        self.go = asyncio.Event()

    async def __call__(self, messages: Sequence[str]) -> str:
        text = " & ".join(messages)
        self.texts.append(text)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"answer to {text!r}"


async def test_messages_within_a_window_are_one_run_with_one_answer(clock):
    merging, work = MergeWindows(clock), Answering()
    work.go.set()
    first = asyncio.create_task(merging.join(KEY, "Hello", 0.5, work))
    await clock.run_for(0.3)
    second = asyncio.create_task(merging.join(KEY, "are you there?", 0.5, work))
    await clock.run_for(0.1)
    assert work.texts == []
    await clock.run_for(0.1)
    third = asyncio.create_task(merging.join(KEY, "Bye", 0.5, work))
    await clock.run_for(0.5)
    both = "answer to 'Hello & are you there?'"
    assert [await first, await second, await third] == [both, both, "answer to 'Bye'"]
    assert work.texts == ["Hello & are you there?", "Bye"]
    assert merging.open == {}


async def test_sessions_and_owners_are_not_merged(clock):
    merging, work = MergeWindows(clock), Answering()
    work.go.set()
    groups = [KEY, KEY._replace(owner="bob"), KEY._replace(session_id="s-2")]
    tasks = [asyncio.create_task(merging.join(group, "x", 0.5, work)) for group in groups]
    await clock.run_for(0.5)
    await asyncio.gather(*tasks)
    assert work.texts == ["x", "x", "x"]


async def test_an_error_is_the_result_of_all(clock):
    async def fail(messages: Sequence[str]) -> str:
        raise SessionBusy(" & ".join(messages))

    merging = MergeWindows(clock)
    tasks = [asyncio.create_task(merging.join(KEY, "x", 0.5, fail)) for _ in range(3)]
    await clock.run_for(0.5)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(r) for r in results] == ["x & x & x"] * 3


async def test_the_run_goes_on_until_the_last_caller_has_gone(clock):
    merging, work = MergeWindows(clock), Answering()
    first, second = (asyncio.create_task(merging.join(KEY, t, 0.5, work)) for t in "ab")
    await clock.run_for(0.5)
    first.cancel()
    await turns_of_the_loop()
    assert work.cancelled == 0
    second.cancel()
    await turns_of_the_loop()
    assert work.cancelled == 1
    assert first.cancelled()
    assert second.cancelled()


async def test_a_window_that_everybody_left_is_no_trap_for_the_next(clock):
    merging, work = MergeWindows(clock), Answering()
    work.go.set()
    gone = asyncio.create_task(merging.join(KEY, "gone", 0.5, work))
    await turns_of_the_loop()
    gone.cancel()
    await turns_of_the_loop()
    later = asyncio.create_task(merging.join(KEY, "later", 0.5, work))
    await clock.run_for(0.5)
    assert await later == "answer to 'later'"
    assert work.texts == ["later"]


# -- any interleaving, and no garbage ------------------------------------------------------------------------


async def test_never_two_at_once_whatever_happens(sessions, clock):
    """Visits that wait, give up, go away and interrupt: one is inside, all end, nothing stays."""
    inside = most = 0

    async def visit(n: int) -> None:
        nonlocal inside, most
        policy = ("enqueue", "enqueue", "enqueue", "reject", "interrupt")[n % 5] if n % 50 == 4 else "enqueue"
        async with sessions.enter(KEY, policy, 0.2 + n % 7):
            inside += 1
            most = max(most, inside)
            try:
                for _ in range(n % 4):
                    await asyncio.sleep(0)
            finally:
                inside -= 1

    tasks = []
    for n in range(600):
        tasks.append(asyncio.create_task(visit(n)))
        if n % 3 == 0:
            await asyncio.sleep(0)
        if n % 11 == 0:
            tasks[-(n % 5) - 1 if n > 5 else -1].cancel()
        if n % 40 == 0:
            clock.advance(1)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = {type(r) for r in results}
    assert kinds <= {type(None), SessionBusy, Interrupted, asyncio.CancelledError}
    assert {type(None), Interrupted, asyncio.CancelledError} <= kinds
    assert (most, inside, sessions.active) == (1, 0, {})
    await turns_of_the_loop()
    assert clock.sleepers == 0


async def test_sessions_that_ended_leave_nothing_behind(sessions):
    async def many(count: int) -> None:
        for n in range(count):
            async with sessions.enter(KEY._replace(session_id=str(n))):
                pass

    await many(100)
    gc.collect()
    gc.freeze()  # what there was before is not looked at again
    before = sys.getallocatedblocks()
    await many(20_000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 100
    assert sessions.active == {}
