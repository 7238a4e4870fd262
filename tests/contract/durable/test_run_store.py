"""One suite for every store of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from astromesh.durable.base import (
    CancelRequest,
    IdempotencyKey,
    JournalStep,
    RunChange,
    RunQuery,
    RunRow,
    RunSample,
    RunStore,
    SegmentClaim,
)
from astromesh.errors import IdempotencyConflict, LeaseLost, SessionBusy
from astromesh.plugins import Plugins
from astromesh.telemetry import ids
from astromesh.testing import ManualClock
from astromesh.types import Event, SessionKey, Usage
from tests.platform.stores import deps_of

NOW, LEASE = 1_700_000_000.0, 10.0
KEY = IdempotencyKey("acme", "ann", "runs/support", "k-1", "hash", NOW + 86_400)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=("sqlite", "postgres"))
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[RunStore]:
    deps = deps_of(request, clock, tmp_path)
    opened = await Plugins().open("run_stores", request.param, {}, deps)
    yield opened
    await opened.close()
    await deps.resources.close()


def run(name: str = "run_1", **more) -> RunRow:
    row = RunRow(
        name, "acme", "ann", "support", "s-1", "t" * 32, "queued", NOW,
        durable=True, request={"query": "Hello λ \x00"}, manifest={"kind": "Agent"},
        caller={"user_id": "ann"},
    )  # fmt: skip
    return replace(row, **more)


def event(seq: int, name: str = "node.started", run_id: str = "run_1", **data) -> Event:
    return Event(run_id, seq, NOW + seq, name, data)


async def running(store: RunStore, name: str = "run_1", worker: str = "w1", **more) -> SegmentClaim:
    await store.accept(run(name, **more))
    claimed = await store.claim(name, 1, worker)
    assert claimed is not None
    return SegmentClaim(name, claimed.segment, worker)


# -- accepting -----------------------------------------------------------------------------------------------


async def test_an_accepted_run_is_there_as_it_was_given(store):
    given = run(priority=3, deadline_at=NOW + 60, usage=Usage(3, 4, 1, 0.5, True), attempts=({"a": 1},))
    assert await store.accept(given) == given
    assert await store.get("run_1") == given
    assert await store.get("run_2") is None


async def test_fifty_duplicates_at_once_are_one_run(store):
    """R5: everybody is answered the run that was first."""
    rows = await asyncio.gather(*(store.accept(run(f"run_{n}"), KEY) for n in range(50)))
    assert len({row.run_id for row in rows}) == 1
    assert len((await store.list(RunQuery("acme")))[0]) == 1


async def test_a_key_with_another_body_is_a_conflict_and_of_somebody_else_another_key(store):
    await store.accept(run(), KEY)
    with pytest.raises(IdempotencyConflict, match="another request"):
        await store.accept(run("run_2"), KEY._replace(body_hash="other"))
    for n, other in enumerate((KEY._replace(owner="bob"), KEY._replace(tenant="b"), KEY._replace(route="r"))):
        assert (await store.accept(run(f"run_other_{n}"), other)).run_id == f"run_other_{n}"
    assert await store.get("run_2") is None


async def test_a_key_is_kept_until_its_time_is_over(store, clock):
    await store.accept(run(), KEY)
    clock.advance(86_401)
    assert (await store.accept(run("run_2"), KEY._replace(body_hash="other"))).run_id == "run_2"


async def test_a_key_may_name_what_is_no_run(store, clock):
    """The first id is kept; another body is a conflict; it ends with its time."""
    ids = await asyncio.gather(*(store.reserve_key(KEY, f"task_{n}") for n in range(10)))
    assert len(set(ids)) == 1
    with pytest.raises(IdempotencyConflict, match="another request"):
        await store.reserve_key(KEY._replace(body_hash="other"), "task_x")
    clock.advance(86_401)
    assert await store.reserve_key(KEY, "task_y") == "task_y"


# -- working -------------------------------------------------------------------------------------------------


async def test_one_of_many_workers_gets_a_segment(store):
    await store.accept(run())
    claims = await asyncio.gather(*(store.claim("run_1", 1, f"w{n}") for n in range(10)))
    won = [claimed for claimed in claims if claimed is not None]
    assert len(won) == 1
    assert won[0].status == "running"
    assert await store.claim("run_1", 2, "w1") is None


async def test_steps_events_and_row_are_written_together_or_not_at_all(store):
    claim = await running(store)
    step = JournalStep("react/tool:1", 1, "tool", "h", "intent")
    await store.commit(claim, steps=[step], events=[event(1), event(2, text="λ\x00")])
    await store.commit(
        claim,
        steps=[step._replace(state="done", output={"value": [1, "x"]})],
        events=[event(3)],
        change=RunChange(request={"query": "redacted"}, usage=Usage(5, 6)),
    )
    assert await store.steps("run_1") == (step._replace(state="done", output={"value": [1, "x"]}),)
    assert [(e.seq, e.type, e.data) for e in await store.events("run_1", 1)] == [
        (2, "node.started", {"text": "λ\x00"}),
        (3, "node.started", {}),
    ]
    assert [e.seq for e in await store.events("run_1", 0, 2)] == [1, 2]
    row = await store.get("run_1")
    assert (row.request, row.usage, row.status) == ({"query": "redacted"}, Usage(5, 6), "running")

    stranger = claim._replace(worker="w2")
    for change in (None, RunChange("completed")):
        with pytest.raises(LeaseLost, match="run_1"):
            await store.commit(stranger, steps=[step], events=[event(4)], change=change)
    assert len(await store.events("run_1")) == 3
    assert (await store.get("run_1")).status == "running"


async def test_nothing_is_written_behind_the_end(store):
    """R4: a run ends once."""
    claim = await running(store)
    done = RunChange("completed", result={"response": "Hi"}, finished_at=NOW + 1)
    await store.commit(claim, events=[event(1, "run.completed")], change=done)
    with pytest.raises(LeaseLost):
        await store.commit(claim, events=[event(2)], change=RunChange("failed"))
    assert (await store.cancel("run_1")).status == "completed"
    assert await store.claim("run_1", 1, "w2") is None
    assert await store.advance("run_1", 1) is None
    row = await store.get("run_1")
    assert (row.status, row.result, row.finished_at) == ("completed", {"response": "Hi"}, NOW + 1)


async def test_branches_keep_their_own_steps(store):
    """R17: a step is found by its path, whenever it was made."""
    claim = await running(store)
    steps = [JournalStep(f"graph/{b}", n, "model", f"{b}{n}", "done", {"b": b}) for n in (1, 2) for b in "ba"]
    await asyncio.gather(*(store.commit(claim, steps=[step]) for step in steps))
    assert {(s.path, s.n): s.request_hash for s in await store.steps("run_1")} == {
        ("graph/a", 1): "a1", ("graph/a", 2): "a2", ("graph/b", 1): "b1", ("graph/b", 2): "b2",
    }  # fmt: skip


async def test_a_step_keeps_its_number_its_time_and_its_input(store):
    """A later commit of the same step replaces them."""
    claim = await running(store)
    begun = JournalStep("react", 1, "model", "h", "intent", {"step": 1}, 4, NOW)
    ended = begun._replace(state="done", duration_ms=1.5, about={"name": "m", "in": {"messages": []}})
    await store.commit(claim, steps=[begun])
    assert await store.steps("run_1") == (begun,)
    await store.commit(claim, steps=[ended])
    assert await store.steps("run_1") == (ended,)


# -- waiting -------------------------------------------------------------------------------------------------


async def test_a_decision_counts_once(store):
    claim = await running(store)
    await store.commit(claim, change=RunChange("waiting", waiting_for={"tool": "pay"}, wake_at=NOW + 60))
    (found,) = await store.waiting("acme", "ann")
    assert (found.agent, found.waiting_for) == (run("run_1").agent, {"tool": "pay"})
    assert await store.waiting("acme", "bob") == await store.waiting("other", None) == ()
    decided = JournalStep("wait", 1, "wait", "", "done", {"decision": "approve"})
    rows = await asyncio.gather(*(store.advance("run_1", 1, [decided]) for _ in range(5)))
    (row,) = [row for row in rows if row is not None]
    assert (row.status, row.segment, row.waiting_for, row.wake_at) == ("queued", 2, None, 0.0)
    assert await store.steps("run_1") == (decided,)
    assert await store.waiting("acme", None) == ()


async def test_who_waits_too_long_is_woken(store, clock):
    claim = await running(store)
    await store.commit(claim, change=RunChange("waiting", waiting_for={"tool": "pay"}, wake_at=NOW + 60))
    clock.advance(59)
    assert await store.overdue(LEASE) == ()
    clock.advance(1)
    assert await store.overdue(LEASE) == (("run_1", 2),)
    assert await store.overdue(LEASE) == ()


# -- workers -------------------------------------------------------------------------------------------------


async def test_a_dead_workers_runs_are_taken_over_and_it_cannot_write_any_more(store, clock):
    claim = await running(store)
    await running(store, "run_2", "w2")
    clock.advance(LEASE - 1)
    await store.heartbeat("w2")
    assert await store.overdue(LEASE) == ()
    clock.advance(2)
    assert await store.overdue(LEASE) == (("run_1", 2),)
    with pytest.raises(LeaseLost):
        await store.commit(claim, events=[event(1)])
    taken = await store.claim("run_1", 2, "w2")
    assert (taken.segment, taken.worker) == (2, "w2")


async def test_several_sweepers_take_a_run_over_once(store, clock):
    await running(store)
    clock.advance(LEASE + 1)
    found = await asyncio.gather(*(store.overdue(LEASE) for _ in range(5)))
    assert [due for one in found for due in one] == [("run_1", 2)]


async def test_what_was_accepted_and_never_dispatched_is_found(store, clock):
    await store.accept(run())
    assert await store.overdue(LEASE) == ()
    clock.advance(LEASE + 1)
    assert await store.overdue(LEASE) == (("run_1", 1),)
    assert await store.overdue(LEASE) == ()


async def test_a_deadline_holds_for_the_runs_of_the_dead(store, clock):
    claim = await running(store)
    await store.commit(claim, events=[event(1)], change=RunChange(deadline_at=NOW + 5))
    clock.advance(LEASE + 1)
    assert await store.overdue(LEASE) == ()
    row = await store.get("run_1")
    assert (row.status, row.error["code"]) == ("failed", "deadline_exceeded")
    last = (await store.events("run_1"))[-1]
    assert (last.seq, last.type, last.data["code"]) == (2, "run.failed", "deadline_exceeded")


async def test_a_worker_hands_one_run_back(store):
    """It is due in a new segment, for anybody; who no longer has it cannot."""
    claim = await running(store)
    assert await store.requeue(claim._replace(worker="w2")) is None
    row = await store.requeue(claim)
    assert (row.status, row.segment, row.worker) == ("queued", 2, "")
    assert await store.requeue(claim) is None
    with pytest.raises(LeaseLost):
        await store.commit(claim, events=[event(1)])
    assert (await store.claim("run_1", 2, "w2")).worker == "w2"


async def test_a_worker_that_leaves_hands_its_runs_over(store):
    claim = await running(store)
    assert await store.release_worker("w1") == (("run_1", 2),)
    with pytest.raises(LeaseLost):
        await store.commit(claim)
    assert (await store.claim("run_1", 2, "w2")).worker == "w2"


async def _died(store, run_id: str, segment: int) -> tuple[tuple[str, int], ...]:
    assert await store.claim(run_id, segment, f"w{segment}") is not None
    return await store.release_worker(f"w{segment}", died=True)


async def test_a_plain_run_that_has_not_begun_is_withdrawn_with_its_key(store):
    """By the worker that has it, and nothing else is."""
    plain = run(durable=False, status="running", worker="w")
    await store.accept(plain, KEY)
    await store.accept(run("run_2", durable=True))
    assert await store.claim("run_2", 1, "w") is not None
    for one in (SegmentClaim("run_1", 1, "other"), SegmentClaim("run_2", 1, "w"), SegmentClaim("no", 1, "w")):
        await store.withdraw(one)
    assert (await store.accept(run("run_3"), KEY)).run_id == "run_1"
    await store.withdraw(SegmentClaim("run_1", 1, "w"))
    assert await store.get("run_1") is None
    assert (await store.accept(run("run_3"), KEY)).run_id == "run_3"
    assert await store.get("run_2") is not None


async def test_a_run_whose_process_dies_three_times_in_a_row_fails(store):
    await store.accept(run())
    assert await _died(store, "run_1", 1) == (("run_1", 2),)
    assert await _died(store, "run_1", 2) == (("run_1", 3),)
    assert await _died(store, "run_1", 3) == ()
    ended = await store.get("run_1")
    assert (ended.status, ended.error["code"]) == ("failed", "crashed")
    assert (await store.events("run_1"))[-1].type == "run.failed"


async def test_neither_a_handover_nor_a_death_behind_a_new_step_counts(store):
    await store.accept(run())
    for segment in range(1, 9, 2):
        await _died(store, "run_1", segment)
        assert await store.claim("run_1", segment + 1, "w") is not None
        if segment == 3:
            claim = SegmentClaim("run_1", segment + 1, "w")
            await store.commit(claim, change=RunChange(deaths=0))
        await store.release_worker("w")
        if segment == 5:
            break
    assert ((await store.get("run_1")).status, (await store.get("run_1")).deaths) == ("queued", 1)


async def test_runs_that_may_have_killed_two_processes_are_executed_one_at_a_time(store):
    """The oldest first, beside all others; the next one when it has ended or is no suspect any more."""
    for n in (1, 2, 3):
        await store.accept(run(f"run_{n}", session_id=f"s{n}"))
    for segment in (1, 2):
        for n in (1, 2):
            assert await store.claim(f"run_{n}", segment, f"w{segment}") is not None
        await store.release_worker(f"w{segment}", died=True)
    claims = await asyncio.gather(*(store.claim(f"run_{n}", 3, "w3") for n in (2, 1)))
    assert [claimed and claimed.run_id for claimed in claims] == [None, "run_1"]
    assert await store.claim("run_3", 1, "w3") is not None
    await store.commit(SegmentClaim("run_1", 3, "w3"), change=RunChange(deaths=0))
    assert await store.claim("run_2", 3, "w3") is not None


# -- order in a session --------------------------------------------------------------------------------------


async def test_ordered_runs_of_a_session_begin_one_after_the_other(store):
    """Whoever claims, in whatever order: only the oldest begins, and the next one when it has ended."""
    for n in (1, 2, 3):
        await store.accept(run(f"run_{n}", ordered=True))
    await store.accept(run("run_other", session_id="s-2", ordered=True))
    claims = await asyncio.gather(*(store.claim(f"run_{n}", 1, f"w{n}") for n in (3, 2, 1)))
    assert [claimed and claimed.run_id for claimed in claims] == [None, None, "run_1"]
    assert await store.claim("run_other", 1, "w1") is not None
    assert await store.claim("run_2", 1, "w2") is None
    await store.commit(SegmentClaim("run_1", 1, "w1"), change=RunChange("completed", finished_at=NOW))
    assert await store.next_in_session(claims[2]) == ("run_2", 1)
    assert await store.claim("run_3", 1, "w3") is None
    assert await store.claim("run_2", 1, "w2") is not None
    assert await store.next_in_session(claims[2]) == ("run_3", 1)


async def test_a_run_that_waits_for_a_person_lets_the_next_one_of_its_session_begin(store):
    claim = await running(store, ordered=True)
    await store.accept(run("run_2", ordered=True))
    await store.commit(claim, change=RunChange("waiting", waiting_for={"tool": "pay"}, wake_at=NOW + 60))
    assert await store.claim("run_2", 1, "w2") is not None


async def test_what_must_wait_for_an_older_run_is_not_overdue(store, clock):
    """Where the worker of the older one is dead, that one is due, and the younger one behind it."""
    await running(store, ordered=True)
    await store.accept(run("run_2", ordered=True))
    clock.advance(5)
    assert await store.overdue(LEASE, queued=2.0) == ()
    clock.advance(LEASE)
    assert await store.overdue(LEASE, queued=2.0) == (("run_1", 2),)
    taken = await store.claim("run_1", 2, "w2")
    assert await store.claim("run_2", 1, "w2") is None
    await store.commit(SegmentClaim("run_1", 2, "w2"), change=RunChange("completed", finished_at=NOW))
    assert await store.next_in_session(taken) == ("run_2", 1)


async def test_runs_of_a_session_that_are_not_ordered_begin_at_once(store):
    """Rows of an older version."""
    await running(store)
    await store.accept(run("run_2"))
    assert await store.claim("run_2", 1, "w2") is not None


# -- what is nested ------------------------------------------------------------------------------------------


def below(name: str = "nested", **more: Any) -> RunRow:
    top: dict[str, Any] = {"durable": False, "request": {}, "manifest": None, "status": "running"}
    return run(name, **{**top, "parent": "run_1.call_1", "worker": "run_1", **more})


async def test_a_nested_run_is_written_with_the_run_at_the_top(store, clock):
    """Under that one's claim; begun once, ended once; nobody takes it for a lost one or works on it."""
    claim = await running(store)
    await store.commit(claim, nested=[below()], events=[event(1), event(1, "run.started", "nested")])
    await store.commit(claim, nested=[below(created_at=NOW + 9)], events=[event(2, "tool.started", "nested")])
    assert await store.get("nested") == below()
    assert [(e.seq, e.type) for e in await store.events("nested")] == [
        (1, "run.started"),
        (2, "tool.started"),
    ]
    assert [e.seq for e in await store.events("run_1")] == [1]
    clock.advance(LEASE + 1)
    assert await store.overdue(LEASE) == (("run_1", 2),)
    assert await store.claim("nested", 1, "w2") is None
    assert (await store.get("nested")).status == "running"
    done = below(status="completed", finished_at=NOW + 3, result={"response": "Hi"}, usage=Usage(3, 4))
    with pytest.raises(LeaseLost):
        await store.commit(claim, nested=[done], events=[event(3, "run.completed", "nested")])
    taken = await store.claim("run_1", 2, "w2")
    claim = SegmentClaim("run_1", taken.segment, "w2")
    await store.commit(claim, nested=[done], events=[event(3, "run.completed", "nested")])
    await store.commit(claim, nested=[below()])
    assert await store.get("nested") == done
    assert len(await store.events("nested")) == 3


async def test_what_is_nested_ends_with_the_run_at_the_top(store):
    """Whichever way that one ends without it: cancelled while it waits, failed in a later segment."""
    claim = await running(store)
    await store.commit(claim, nested=[below()], change=RunChange("waiting", waiting_for={"kind": "approval"}))
    await store.cancel("run_1")
    assert (await store.get("nested")).status == "cancelled"
    assert [e.type for e in await store.events("nested")] == ["run.cancelled"]
    claim = await running(store, "run_2", session_id="s-2")
    await store.commit(claim, nested=[below("other", parent="run_2.c", worker="run_2")])
    await store.release_worker("w1")
    taken = await store.claim("run_2", 2, "w2")
    failed = RunChange("failed", error={"code": "x", "detail": "y"}, finished_at=NOW + 5)
    await store.commit(SegmentClaim("run_2", taken.segment, "w2"), change=failed)
    assert (await store.get("other")).status == "failed"
    assert (await store.events("other"))[-1].type == "run.failed"


# -- cancelling ----------------------------------------------------------------------------------------------


# -- sessions and queues -------------------------------------------------------------------------------------


async def test_a_run_is_refused_while_another_of_its_session_is_queued_or_running(store):
    """`reject`: of ten at once one is let in; one that waits for a person is in nobody's way."""
    rows = [run(f"run_{n}", ordered=True) for n in range(10)]
    answers = await asyncio.gather(
        *(store.accept(row, policy="reject") for row in rows), return_exceptions=True
    )
    (kept,) = [answer for answer in answers if isinstance(answer, RunRow)]
    assert sum(isinstance(answer, SessionBusy) for answer in answers) == 9
    await store.claim(kept.run_id, 1, "w1")
    with pytest.raises(SessionBusy):
        await store.accept(run("run_x", ordered=True), policy="reject")
    assert (
        await store.accept(run("run_y", session_id="s-2", ordered=True), policy="reject")
    ).run_id == "run_y"
    await store.commit(
        SegmentClaim(kept.run_id, 1, "w1"), change=RunChange("waiting", waiting_for={"kind": "approval"})
    )
    assert (await store.accept(run("run_z", ordered=True), policy="reject")).run_id == "run_z"


async def test_a_newer_run_ends_the_older_ones_of_its_session(store):
    """`interrupt`: one that nobody works on has ended, the worker of another is told."""
    await running(store, ordered=True)
    await store.accept(run("run_2", ordered=True))
    await store.accept(run("run_3", ordered=True, session_id="s-2"))
    await store.accept(run("run_4", ordered=True), policy="interrupt")
    states = [(await store.get(f"run_{n}")).status for n in (1, 2, 3, 4)]
    assert states == ["running", "cancelled", "queued", "queued"]
    assert await store.cancelling("w1") == ("run_1",)
    assert (await store.events("run_2"))[-1].type == "run.cancelled"


async def test_the_places_of_messages_decide_which_one_is_the_newer(store):
    """`interrupt`: the transaction of an older message may come later."""
    for name, place in (("run_1", 2), ("run_2", 1)):
        await store.accept(run(name, ordered=True, request={"place": place}), policy="interrupt")
    assert [(await store.get(f"run_{n}")).status for n in (1, 2)] == ["queued", "queued"]
    await store.accept(run("run_3", ordered=True, request={"place": 3}), policy="interrupt")
    assert [(await store.get(f"run_{n}")).status for n in (1, 2, 3)] == ["cancelled", "cancelled", "queued"]


async def test_messages_within_a_window_become_one_run(store, clock):
    """`merge`: in the order in which they came, with one id for all, until the window closes."""
    window = {"ordered": True, "wake_at": NOW + 0.5}
    first = await store.accept(run("run_0", request={"query": "m0"}, **window), policy="merge")
    more = [run(f"run_{n}", request={"query": f"m{n}"}, **window) for n in range(1, 20)]
    assert {row.run_id for row in await asyncio.gather(*(store.accept(r, policy="merge") for r in more))} == {
        "run_0"
    }
    told = (await store.get(first.run_id)).request["query"].split("\n")
    assert told[0] == "m0"
    assert sorted(told) == sorted(f"m{n}" for n in range(20))
    assert await store.claim("run_0", 1, "w1") is None
    assert await store.overdue(LEASE, queued=0.1) == ()
    clock.advance(0.6)
    late = run("run_x", request={"query": "late"}, ordered=True, wake_at=NOW + 1.1)
    assert (await store.accept(late, policy="merge")).run_id == "run_x"
    assert await store.overdue(LEASE, queued=0.1) == (("run_0", 1),)
    begun = await store.claim("run_0", 1, "w1")
    assert begun is not None
    assert (begun.wake_at, begun.request["query"].count("\n")) == (0.0, 19)


async def test_twenty_messages_at_once_become_one_run(store):
    """Nobody was first: one of them is."""
    rows = [run(f"run_{n}", request={"query": f"m{n}"}, ordered=True, wake_at=NOW + 0.5) for n in range(20)]
    kept = await asyncio.gather(*(store.accept(row, policy="merge") for row in rows))
    assert len({row.run_id for row in kept}) == 1
    assert len((await store.list(RunQuery("acme")))[0]) == 1


async def test_what_is_not_of_the_same_kind_or_owner_is_not_merged(store):
    window: dict[str, Any] = {"ordered": True, "wake_at": NOW + 0.5}
    await store.accept(run(**window), policy="merge")
    for name, more in (
        ("other_owner", {"owner": "bob"}),
        ("other_session", {"session_id": "s-2"}),
        ("own_history", {"request": {"query": "x", "history": []}}),
        ("kept_nowhere", {"request": {"query": "x", "persist": False}}),
    ):
        assert (await store.accept(run(name, **{**window, **more}), policy="merge")).run_id == name
    again = await store.accept(run("again", **window), KEY, policy="merge")
    assert again.run_id == "run_1"
    assert (await store.accept(run("again", **window), KEY, policy="merge")).run_id == "run_1"
    assert (await store.get("run_1")).request["query"].count("\n") == 1, "a duplicate says nothing again"


async def test_no_more_runs_of_an_agent_are_running_than_may(store):
    """Over all workers, however many ask at once; others are not counted, and the next one is by priority."""
    for n in range(8):
        await store.accept(run(f"run_{n}", session_id=f"s-{n}", priority=-n))
    limits = {"support": 3}
    claims = await asyncio.gather(*(store.claim(f"run_{n}", 1, f"w{n}", limits) for n in range(8)))
    (done, *_) = begun = [row for row in claims if row is not None]
    assert len(begun) == 3
    await store.accept(run("other", agent="sales"))
    assert await store.claim("other", 1, "w1", limits) is not None
    assert await store.queued("support", "acme") == (5, NOW)
    assert await store.queued("support", "globex") == (0, 0.0)
    assert await store.overdue(LEASE, queued=0.0001, limits=limits) == ()
    claim = SegmentClaim(done.run_id, 1, done.worker)
    await store.commit(claim, change=RunChange("completed", finished_at=NOW))
    left = [n for n in range(8) if f"run_{n}" not in {row.run_id for row in begun}]
    (first,) = await store.next_of_agent("support")
    assert first[:4] == (f"run_{max(left)}", 1, "acme", -max(left))
    assert await store.claim(f"run_{max(left)}", 1, "w1", limits) is not None
    assert await store.next_of_agent("nobody") == ()


async def test_every_tenant_has_its_share_of_a_sweep(store, clock):
    """However many runs of another one wait, and since when; what is left of a share waits for the next."""
    for n in range(9):
        await store.accept(run(f"noisy_{n}", session_id=f"s-{n}", priority=-n))
    for n in range(2):
        await store.accept(run(f"quiet_{n}", session_id=f"q-{n}", tenant="globex"))
    await store.accept(run("later", tenant="initech", wake_at=NOW + 60))
    heads = await store.next_of_agent("support")
    assert {(one.run_id, one.tenant) for one in heads} == {("noisy_8", "acme"), ("quiet_0", "globex")}
    assert heads[0].number != heads[1].number
    clock.advance(1)
    due = await store.overdue(LEASE, 6, queued=0.5)
    assert {run_id for run_id, _ in due} == {"noisy_8", "noisy_7", "quiet_0", "quiet_1"}


async def test_what_is_overdue_comes_by_priority(store, clock):
    for n, priority in enumerate((5, 0, -5)):
        await store.accept(run(f"run_{n}", priority=priority, session_id=f"s-{n}"))
    clock.advance(3)
    assert await store.overdue(LEASE, 1, queued=2.0) == (("run_2", 1),)
    assert await store.overdue(LEASE, 1, queued=2.0) == (("run_1", 1),)


async def test_cancel_ends_what_nobody_works_on_at_once(store):
    await store.accept(run())
    assert (await store.cancel("run_1")).status == "cancelled"
    assert [e.type for e in await store.events("run_1")] == ["run.cancelled"]
    assert await store.claim("run_1", 1, "w1") is None
    assert (await store.cancel("run_1")).status == "cancelled"
    assert len(await store.events("run_1")) == 1
    assert await store.cancel("run_9") is None


async def test_cancel_tells_the_worker_and_holds_where_it_is_dead(store, clock):
    await running(store)
    row = await store.cancel("run_1")
    assert (row.status, row.cancelling) == ("running", True)
    assert await store.cancelling("w1") == ("run_1",)
    assert await store.cancelling("w2") == ()
    clock.advance(LEASE + 1)
    assert await store.overdue(LEASE) == ()
    assert (await store.get("run_1")).status == "cancelled"


async def test_a_cancel_that_comes_as_its_run_begins_to_wait_is_not_lost(store):
    """The worker polls for cancels, and may end its segment before it sees one."""
    claim = await running(store)
    await store.cancel("run_1")
    waits = RunChange(status="waiting", waiting_for={"kind": "approval"}, wake_at=NOW + 600)
    await store.commit(claim, change=waits)
    assert await store.overdue(LEASE) == ()
    assert (await store.get("run_1")).status == "cancelled"
    assert [e.type for e in await store.events("run_1")] == ["run.cancelled"]


@pytest.mark.parametrize("ending", ["cancelled", "interrupted", "crashed", "too late"])
async def test_the_record_of_a_run_that_ends_without_its_rules_is_raw_until_it_is_redacted(
    store, clock, ending
):
    claim = await running(store, deadline_at=NOW + 5.0, ordered=True)
    step = JournalStep("model", 1, "model", "hash", "done", {"text": "raw"})
    question = Event("run_1", 1, NOW, "run.waiting", {"approval": "raw"})
    await store.commit(claim, steps=[step], events=[question])
    if ending in ("cancelled", "interrupted"):
        await store.requeue(claim)
        assert await store.raw() == ()
    if ending == "cancelled":
        await store.cancel("run_1")
    elif ending == "interrupted":
        await store.accept(run("run_2"), policy="interrupt")
    elif ending == "crashed":
        await store.release_worker("w1", died=True)
        for segment in (2, 3):
            await _died(store, "run_1", segment)
    else:
        clock.advance(LEASE + 1)
        await store.overdue(LEASE)
    assert [row.run_id for row in await store.raw()] == ["run_1"]
    gone = step._replace(path="gone")
    changed = [step._replace(output={"text": "[X]"}), gone]
    for _ in range(2):  # another process has been faster
        await store.redact("run_1", changed, [Event("run_1", 1, NOW, "run.waiting", {"approval": "[X]"})])
        changed = [step]
    assert await store.raw() == ()
    assert [(s.output, s.request_hash) for s in await store.steps("run_1")] == [({"text": "[X]"}, "")]
    assert [e.data["approval"] for e in await store.events("run_1", 0, 1)] == ["[X]"]


# -- lists, retention, erasing -------------------------------------------------------------------------------


async def test_lists_are_by_tenant_owner_and_filter_newest_first(store):
    for n, more in enumerate(
        ({}, {"owner": "bob"}, {"agent": "sales"}, {"session_id": "s-2"}, {"tenant": "b"})
    ):
        await store.accept(run(f"run_{n}", usage=Usage(10**n, 0), **more))

    async def listed(wanted: RunQuery):
        rows, used = await store.list(wanted)
        assert await store.count(wanted) == (4 if wanted.limit == 2 else len(rows))
        return [row.run_id[-1] for row in rows], used.input_tokens

    assert await listed(RunQuery("acme")) == (["3", "2", "1", "0"], 1111)
    assert await listed(RunQuery("acme", "ann")) == (["3", "2", "0"], 1101)
    assert await listed(RunQuery("acme", agent="sales")) == (["2"], 100)
    assert await listed(RunQuery("acme", session="s-2")) == (["3"], 1000)
    assert await listed(RunQuery("acme", status="failed")) == ([], 0)
    assert await listed(RunQuery("acme", limit=2)) == (["3", "2"], 1111)


async def test_a_list_is_filtered_by_time_cost_and_duration(store) -> None:
    for n in range(3):
        ended = {"finished_at": NOW + n * 10, "status": "completed"} if n < 2 else {}
        made = ids.first_id("run_", NOW + n)
        await store.accept(run(made, created_at=NOW, usage=Usage(10**n, cost_usd=n / 10), **ended))

    async def listed(**query: Any) -> tuple[int, int]:
        rows, usage = await store.list(RunQuery("acme", **query))
        assert await store.count(RunQuery("acme", **query)) == len(rows)
        return len(rows), usage.input_tokens

    second = ids.first_id("run_", NOW + 1)
    assert await listed(since=second) == (2, 110)
    assert await listed(until=second) == (1, 1)
    assert await listed(since=second, until=second) == (0, 0)
    assert await listed(min_cost_usd=0.15) == (1, 100)
    assert await listed(min_seconds=10.0) == (1, 10)
    assert await listed(min_seconds=10.1) == (0, 0)


async def test_a_list_is_filtered_by_tags_and_metadata(store) -> None:
    said: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"plan": "gold", "seats": 5, "trial": False}, ("beta", 'a"b')),
        ({"plan": "silver", "o": {"plan": "gold"}}, ("beta,old",)),
        ({"plan": ["gold"], "a.b": "é"}, ()),
        ({}, ()),
    ]
    for number, (metadata, tags) in enumerate(said):
        await store.accept(run(str(number), metadata=metadata, tags=tags, usage=Usage(10**number)))

    async def listed(**query: Any) -> tuple[list[str], int]:
        rows, usage = await store.list(RunQuery("acme", **query))
        assert await store.count(RunQuery("acme", **query)) == len(rows)
        return [row.run_id for row in rows], usage.input_tokens

    def has(*pairs: str) -> dict[str, Any]:
        return {"metadata": tuple(tuple(pair.split("=")) for pair in pairs)}

    assert await listed(tags=("beta",)) == (["0"], 1)
    assert await listed(tags=('a"b', "beta")) == (["0"], 1)
    assert await listed(tags=("beta", "beta,old")) == ([], 0)
    assert await listed(tags=("bet",)) == ([], 0)
    assert await listed(**has("plan=gold")) == (["0"], 1)
    assert await listed(**has("seats=5")) == (["0"], 1)
    assert await listed(**has("trial=false")) == (["0"], 1)
    assert await listed(**has("a.b=é")) == (["2"], 100)
    assert await listed(**has("o=gold")) == ([], 0)
    assert await listed(**has("plan=gold", "seats=5", "trial=false")) == (["0"], 1)
    assert await listed(**has("plan=gold", "seats=6")) == ([], 0)
    assert await listed(**has("plan=gold", "none=null")) == ([], 0)
    assert await listed(tags=("beta",), **has("plan=silver")) == ([], 0)
    (row,), _ = await store.list(RunQuery("acme", tags=("beta",)))
    assert (row.metadata, row.tags) == said[0]


async def test_samples_and_totals_are_of_top_runs_since_an_id(store):
    early, late = (ids.first_id("run_", NOW + at) for at in (0, 60))
    await store.accept(run(f"{early}0", created_at=NOW, usage=Usage(10, 1, cost_usd=0.5)))
    await store.accept(run(f"{late}1", created_at=NOW + 60, status="failed", finished_at=NOW + 61))
    await store.accept(run(f"{late}2", parent=f"{late}1.call", usage=Usage(100, 0)))
    await store.accept(run(f"{late}3", tenant="b", usage=Usage(1000, 0)))
    assert await store.totals("acme", None, early) == (2, 1, 11, 0.5)
    assert await store.totals("acme", "bob", early) == (0, 0, 0, 0.0)
    assert await store.totals("acme", "ann", late) == (1, 1, 0, 0.0)
    newest = RunSample(NOW + 60, NOW + 61, "failed", 0, 0.0)
    assert await store.samples("acme", None, early, 10) == (newest, RunSample(NOW, 0.0, "queued", 11, 0.5))
    assert await store.samples("acme", None, early, 1) == (newest,)


async def test_a_nested_runs_usage_is_counted_once(store):
    await store.accept(run("run_1", usage=Usage(10, 1)))
    await store.accept(run("run_2", agent="helper", parent="run_1.call_1", usage=Usage(4, 1)))
    assert (await store.list(RunQuery("acme")))[1].input_tokens == 10
    assert (await store.list(RunQuery("acme", agent="helper")))[1].input_tokens == 4


async def test_notes_of_plain_runs_are_kept_once(store):
    plain = run("run_1", status="completed", durable=False, finished_at=NOW + 1)
    for _ in range(2):
        await store.archive([(plain, [event(1, data="x")])])
    rows, _ = await store.list(RunQuery("acme"))
    assert [(row.run_id, row.durable, row.status) for row in rows] == [("run_1", False, "completed")]
    assert await store.trace(plain.trace_id) == ((plain, (event(1, data="x"),)),)
    assert await store.trace("other") == ()


async def test_notes_of_many_runs_are_kept_each_with_its_own_trace(store):
    plain = [
        run(f"run_{n:03}", trace_id=f"trace_{n}", status="completed", durable=False, finished_at=NOW + n)
        for n in range(70)
    ]
    notes = [(one, [event(1, run_id=one.run_id, data=one.run_id)]) for one in plain]
    await store.archive(notes[:33])
    await store.archive(notes[20:])
    rows, _ = await store.list(RunQuery("acme", limit=100))
    assert rows == tuple(reversed(plain))
    rows, _ = await store.list(RunQuery("acme", limit=3, after="run_040"))
    assert [row.run_id for row in rows] == ["run_039", "run_038", "run_037"]
    for one, events in notes:
        assert await store.trace(one.trace_id) == ((one, tuple(events)),)


async def test_a_note_may_have_keys_that_are_no_text(store):
    await store.archive([(run("run_1", status="completed", durable=False), [event(1, counts={1: "one"})])])
    assert (await store.trace(run("run_1").trace_id))[0][1] == (event(1, counts={"1": "one"}),)


async def test_old_runs_and_too_many_go_with_their_logs(store):
    for n in range(6):
        claim = await running(store, f"run_{n}")
        done = RunChange("completed", finished_at=NOW + n)
        steps = [JournalStep("a", 1, "model", "h", "done", {})]
        await store.commit(claim, steps=steps, events=[event(1, run_id=f"run_{n}")], change=done)
    await running(store, "run_9")
    assert await store.expire(NOW + 2, 100) == 2
    assert await store.expire(0.0, 3) == 1
    rows, _ = await store.list(RunQuery("acme"))
    assert [row.run_id for row in rows] == ["run_9", "run_5", "run_4", "run_3"]
    assert await store.events("run_0") == await store.steps("run_0") == ()


async def test_erasing_a_principal_leaves_nothing_of_it_that_has_ended(store):
    claim = await running(store)
    await store.commit(claim, events=[event(1)], change=RunChange("completed", finished_at=NOW))
    await store.accept(run("run_2"), KEY)
    await running(store, "run_3")
    await store.accept(run("run_4", owner="bob"))
    assert await store.erase_owner("acme", "ann") == 2  # one had ended, one that waited has been ended
    rows, _ = await store.list(RunQuery("acme"))
    assert [(row.run_id, row.cancelling) for row in rows] == [("run_4", False), ("run_3", True)]
    assert await store.events("run_1") == ()
    assert (await store.accept(run("run_5"), KEY._replace(body_hash="new"))).run_id == "run_5"


async def test_a_queued_run_may_be_asked_for_before_a_worker_counts_as_dead(store, clock):
    """Dispatching again is harmless, so that it need not wait as long as a takeover does."""
    await store.accept(run())
    clock.advance(3.0)
    assert await store.overdue(LEASE) == ()
    assert await store.overdue(LEASE, queued=2.0) == (("run_1", 1),)
    assert await store.overdue(LEASE, queued=2.0) == ()


# -- runs of one process -------------------------------------------------------------------------------------


async def plain(store: RunStore, name: str = "run_1", worker: str = "w1") -> None:
    """A run that its caller has named, under way in a process that lives."""
    await store.heartbeat(worker)
    await store.accept(run(name, durable=False, status="running", worker=worker), KEY._replace(key=name))


async def test_a_plain_run_ends_in_its_own_process(store):
    """Its row takes the result, and refuses a second one."""
    await plain(store)
    await store.commit(
        SegmentClaim("run_1", 1, "w1"), change=RunChange(status="completed", result={"response": "Hi"})
    )
    found = await store.get("run_1")
    assert found is not None and (found.status, found.result) == ("completed", {"response": "Hi"})
    with pytest.raises(LeaseLost):
        await store.commit(SegmentClaim("run_1", 1, "w1"), change=RunChange(status="failed"))


async def test_a_plain_run_of_a_dead_process_has_failed_and_its_key_is_free(store, clock):
    """One of a process that lives goes on; nothing is dispatched by either."""
    await plain(store, "run_dead", "w1")
    clock.advance(LEASE + 1)
    await plain(store, "run_live", "w2")
    assert await store.overdue(LEASE) == ()
    dead, live = await store.get("run_dead"), await store.get("run_live")
    assert dead is not None and live is not None
    assert (dead.status, dead.error["code"], live.status) == ("failed", "interrupted", "running")
    again = await store.accept(run("run_2"), KEY._replace(key="run_dead"))
    assert again.run_id == "run_2"
    assert (await store.accept(run("run_3"), KEY._replace(key="run_live"))).run_id == "run_live"


async def test_the_answer_to_a_key_is_kept_as_long_as_the_key(store, clock):
    """Others of the same age go when there are too many."""
    for name in ("run_named", "run_other"):
        key = KEY if name == "run_named" else None
        await store.accept(run(name, status="completed", finished_at=NOW), key)
    assert await store.expire(NOW - 1, 0) == 1
    assert await store.get("run_named") is not None
    clock.advance(86_401)
    assert await store.expire(NOW - 1, 0) == 1


async def test_a_process_is_asked_to_end_a_run_and_answers(store, clock):
    assert await store.cancel_answer("run_1") == (False, None)
    await store.request_cancel(CancelRequest("run_1", "acme", None))
    await store.request_cancel(CancelRequest("run_2/a", "acme", "ann"))
    asked = await store.cancel_requests(NOW - 1)
    assert sorted(asked) == [("run_1", "acme", None), ("run_2/a", "acme", "ann")]
    assert await store.cancel_requests(NOW) == ()
    await store.answer_cancel("run_1", None)
    assert await store.cancel_answer("run_1") == (True, None)
    assert [one.run_id for one in await store.cancel_requests(NOW - 1)] == ["run_2"]
    await store.answer_cancel("run_1", {"status": "cancelled"})
    assert await store.cancel_answer("run_1") == (True, {"status": "cancelled"})
    clock.advance(60)
    await store.request_cancel(CancelRequest("run_3/a", "acme", "ann"))
    await store.delete_cancel("run_3/a", NOW + 1)
    assert await store.cancel_requests(0.0) == () and await store.cancel_answer("run_1") == (False, None)


# -- attachments ---------------------------------------------------------------------------------------------


async def test_attachments_are_stored_once_and_deleted_with_the_last_run_or_the_session(
    store: RunStore, clock: ManualClock
) -> None:
    def asks(name: str, *hashes: str, **more: Any) -> RunRow:
        attached = [{"media_type": "image/png", "name": "", "sha256": one} for one in hashes]
        return run(name, request={"query": "?", "attachments": attached}, **more)

    picture, sound = {"aa": b"picture"}, {"bb": b"sound"}
    await store.accept(asks("run_1", "aa", "bb"), attachments={**picture, **sound})
    await store.accept(asks("run_2", "aa", session_id="s-2"), attachments=picture)
    await store.accept(asks("run_3", "aa", tenant="other"), attachments=picture)
    await store.accept(asks("run_4", "aa", "bb", session_id="s-3"))  # a fork: what it refers to is stored
    assert await store.attachments("run_4") == await store.attachments("run_1") == {**picture, **sound}
    assert await store.erase_attachments(SessionKey("acme", "support", "s-1", "ann")) == 2
    assert await store.attachments("run_1") == {}
    assert await store.attachments("run_4") == {**picture, **sound}
    for name in ("run_2", "run_4"):
        await store.cancel(name)
        await store.delete(name)
    await store.accept(asks("run_5", "aa", "bb"))
    assert await store.attachments("run_5") == {}  # nothing was left in the tenant
    assert await store.attachments("run_3") == picture
    await store.cancel("run_3")
    assert await store.erase_owner("other", "ann") == 1
    await store.accept(asks("run_6", "aa", tenant="other"))
    assert await store.attachments("run_6") == {}


async def test_merged_messages_keep_the_attachments_of_both(store: RunStore) -> None:
    def asks(name: str, sha256: str) -> RunRow:
        attached = [{"media_type": "image/png", "name": "", "sha256": sha256}]
        return run(name, request={"query": name, "attachments": attached}, wake_at=NOW + 60, ordered=True)

    await store.accept(asks("run_1", "aa"), None, "merge", attachments={"aa": b"1"})
    merged = await store.accept(asks("run_2", "bb"), None, "merge", attachments={"bb": b"2"})
    assert merged.run_id == "run_1"
    assert await store.attachments("run_1") == {"aa": b"1", "bb": b"2"}
    stored = await store.get("run_1")
    assert stored is not None
    assert [one["sha256"] for one in stored.request["attachments"]] == ["aa", "bb"]
