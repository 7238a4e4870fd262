"""The writer of a durable run's segment: what it sends to the store, and when it need not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from astromesh.durable.base import JournalStep, RunChange, RunRow, RunStatus, RunStore, SegmentClaim
from astromesh.durable.writer import SegmentWriter, retry_while_unavailable
from astromesh.errors import AstromeshError, LeaseLost, StoreError
from astromesh.types import Event

STEP = JournalStep("react", 1, "model", "h", "done", {})
EVENT, SECOND = (Event("run_1", n, 0.0, "model.finished", {}) for n in (1, 2))


class Commits:
    """Where a writer commits: counts, and refuses once it is told to.

    Attributes:
        free: a commit is answered while it is set.
        refused: raised by one commit.
        away: how many commits fail because the store is unavailable.
        scrubbed: after how many commits the log of the database was told to be scrubbed.
    """

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.steps: list[JournalStep] = []
        self.events: list[Event] = []
        self.changes: list[RunChange | None] = []
        self.nested: list[RunRow] = []
        self.claims = set[SegmentClaim]()
        self.scrubbed: list[int] = []
        self.lost = False
        self.refused: Exception | None = None
        self.away = 0
        self.free = asyncio.Event()
        self.free.set()

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        await asyncio.sleep(0)
        if self.lost:
            raise LeaseLost("Somebody else has it.")
        if self.away:
            self.away -= 1
            raise StoreError("away")
        if self.refused is not None:
            error, self.refused = self.refused, None
            raise error
        self.claims.add(claim)
        self.made.append((len(steps), len(events)))
        self.steps += steps
        self.events += events
        self.changes.append(change)
        self.nested += nested
        await self.free.wait()

    def scrub_soon(self) -> None:
        self.scrubbed.append(len(self.made))


CLAIM = SegmentClaim("run_1", 1, "w1")


def writer_to(commits: Commits, lost: list[Any], written: list[Event] | None = None) -> SegmentWriter:
    seen = [] if written is None else written
    return SegmentWriter(cast("RunStore", commits), CLAIM, lambda: lost.append(1), seen.extend)


async def test_a_lease_that_a_step_has_just_shown_is_not_asked_for_again() -> None:
    """Events alone may come later; at first, and where steps wait, a commit is made."""
    commits = Commits()
    writer = writer_to(commits, [])
    await writer.require_lease()
    assert len(commits.made) == 1
    writer.step(STEP)
    await writer.require_lease()
    assert commits.made[1:] == [(1, 0)]
    writer.event(EVENT)
    await writer.require_lease()
    assert len(commits.made) == 2
    await writer.finish(RunChange("completed"))
    assert commits.made[2:] == [(0, 1)]


async def test_who_has_lost_the_run_never_passes_a_hold() -> None:
    commits = Commits()
    lost: list[Any] = []
    writer = writer_to(commits, lost)
    writer.step(STEP)
    await writer.flush()
    commits.lost = True
    writer.step(STEP)
    holding = asyncio.create_task(writer.require_lease())
    while not lost:
        await asyncio.sleep(0)
    late = asyncio.create_task(writer.require_lease())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not holding.done()
    assert not late.done()
    for task in (holding, late):
        task.cancel()


async def test_a_flush_returns_when_what_was_added_before_it_is_on_disk() -> None:
    """What is added during a commit is in the next one, and so is the flush that waits for it."""
    commits = Commits()
    commits.free.clear()
    writer = writer_to(commits, [])
    writer.step(STEP)
    first = asyncio.create_task(writer.flush())
    while not commits.made:
        await asyncio.sleep(0)
    writer.step(STEP._replace(n=2))
    second = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    commits.free.set()
    await first
    assert not second.done()
    await second
    assert commits.made == [(1, 0), (1, 0)]


async def test_an_event_is_written_although_nobody_waits_for_it() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    writer.event(EVENT)
    async with asyncio.timeout(30):
        while not commits.made:
            await asyncio.sleep(0.01)
    assert commits.events == [EVENT]


async def test_the_last_event_is_written_with_the_end_and_not_before() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    writer.event(EVENT, last=True)
    await writer.flush()
    assert commits.events == []
    assert await writer.finish(RunChange("completed"))
    assert commits.events == [EVENT]
    assert commits.changes[-1] == RunChange("completed")
    assert not await writer.finish(RunChange("failed"))
    assert commits.changes[-1] == RunChange("completed")


async def test_a_step_that_ends_clears_a_run_whose_processes_have_died() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    writer.is_suspect = True
    for step in (STEP._replace(state="intent"), STEP, STEP._replace(n=2)):
        writer.step(step)
        await writer.flush()
    assert commits.changes == [None, RunChange(deaths=0), None]


def run(name: str, status: RunStatus = "running") -> RunRow:
    return RunRow(name, "acme", "ann", "helper", "s", "t", status, 0.0)


async def test_what_comes_together_is_one_transaction_and_the_later_value_counts() -> None:
    commits, written = Commits(), list[Event]()
    writer = writer_to(commits, [], written)

    writer.step(STEP._replace(state="intent"))
    writer.step(STEP)
    writer.step(STEP._replace(path="tool"))
    writer.event(EVENT)
    writer.event(SECOND)
    writer.change(RunChange("running", wake_at=1.0))
    writer.change(RunChange(wake_at=2.0))
    writer.nested(run("run_2"))
    writer.nested(run("run_2", "completed"))
    writer.nested(run("run_3"))
    await writer.flush()
    assert commits.steps == [STEP, STEP._replace(path="tool")]
    assert commits.events == written == [EVENT, SECOND]
    assert commits.changes == [RunChange("running", wake_at=2.0)]
    assert commits.nested == [run("run_2", "completed"), run("run_3")]
    assert commits.claims == {CLAIM}
    await writer.flush()  # there is nothing more to write
    assert commits.made == [(2, 2)]


@pytest.mark.parametrize("what", ["step", "change", "nested"])
async def test_a_lease_is_confirmed_by_the_commit_of_what_waits(what: str) -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    await writer.require_lease()
    if what == "step":
        writer.step(STEP)
    elif what == "change":
        writer.change(RunChange("running"))
    else:
        writer.nested(run("run_2"))
    await writer.require_lease()
    assert len(commits.made) == 2


async def test_a_lease_is_not_taken_for_confirmed_while_a_commit_is_on_its_way() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    await writer.require_lease()
    commits.free.clear()
    writer.event(EVENT)
    flushed = asyncio.create_task(writer.flush())
    while len(commits.made) < 2:
        await asyncio.sleep(0)
    held = asyncio.create_task(writer.require_lease())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not held.done()
    commits.free.set()
    await asyncio.gather(flushed, held)


async def test_a_nested_run_is_written_although_nobody_waits_for_it() -> None:
    commits = Commits()
    writer_to(commits, []).nested(run("run_2"))
    async with asyncio.timeout(30):
        while not commits.made:
            await asyncio.sleep(0.01)
    assert commits.nested == [run("run_2")]


async def test_a_text_that_is_overwritten_leaves_the_log_of_the_database_once() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    writer.step(STEP)
    await writer.flush()
    assert commits.scrubbed == []
    writer.scrub_soon()
    writer.step(STEP)
    await writer.flush()
    writer.step(STEP)
    await writer.flush()
    assert commits.scrubbed == [2]


async def test_a_store_that_is_away_gets_everything_when_it_is_back() -> None:
    commits, written = Commits(), list[Event]()
    writer = writer_to(commits, [], written)
    commits.away = 2
    writer.step(STEP)
    writer.event(EVENT)
    async with asyncio.timeout(30):
        await writer.flush()
    assert (commits.away, commits.steps, commits.events, written) == (0, [STEP], [EVENT], [EVENT])


async def test_work_is_repeated_while_the_store_is_away_and_its_result_returned() -> None:
    attempts = list[int]()

    async def work() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise StoreError("The disk is full.")
        return "done"

    with capture_logs() as logged:
        async with asyncio.timeout(30):
            assert await retry_while_unavailable(work) == "done"
    assert len(attempts) == 3
    assert [(line["event"], line["error"]) for line in logged] == [("run_store_away", "The disk is full.")]


async def test_steps_that_the_store_refuses_fail_the_run_which_ends_with_the_rest() -> None:
    """What is added during the refused commit is newer than what that had."""
    commits = Commits()
    writer = writer_to(commits, [])
    commits.refused = cause = ValueError("not JSON")
    writer.step(STEP)
    writer.event(EVENT)
    writer.change(RunChange("running", wake_at=1.0))
    writer.nested(run("run_2"))
    writer.nested(run("run_3"))
    refused = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)  # the writer begins
    await asyncio.sleep(0)  # and commits

    writer.event(SECOND)
    writer.change(RunChange(wake_at=2.0))
    writer.nested(run("run_3", "completed"))
    with pytest.raises(AstromeshError, match="Steps of the run cannot be stored: not JSON") as raised:
        await refused
    assert raised.value.__cause__ is cause
    while not commits.events:  # nobody has to ask for it
        await asyncio.sleep(0)
    with pytest.raises(AstromeshError, match="cannot be stored"):
        await writer.flush()
    assert await writer.finish(RunChange("failed"))
    assert commits.steps == []
    assert commits.events == [EVENT, SECOND]
    changes = [change for change in commits.changes if change is not None]
    assert changes[0].wake_at == 2.0
    assert changes[-1].status == "failed"
    assert commits.nested == [run("run_2"), run("run_3", "completed")]


async def test_events_that_the_store_refuses_are_not_written_again() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    commits.refused = ValueError("not JSON")
    writer.event(EVENT)
    with pytest.raises(AstromeshError, match="not JSON"):
        await writer.flush()
    assert await writer.finish(RunChange("failed"))
    assert (commits.events, commits.changes) == ([], [RunChange("failed")])


async def test_an_end_without_its_refused_steps_is_written_before_it_returns() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    commits.refused = ValueError("not JSON")
    writer.step(STEP)
    writer.event(EVENT, last=True)
    assert await writer.finish(RunChange("completed"))
    assert (commits.steps, commits.events, commits.changes) == ([], [EVENT], [RunChange("completed")])


async def test_an_end_that_the_store_refuses_raises() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    commits.refused = ValueError("not JSON")
    writer.event(EVENT, last=True)
    with pytest.raises(AstromeshError, match="not JSON"):
        await writer.finish(RunChange("completed"))
    assert (commits.made, writer.closed) == ([], True)


async def test_a_writer_without_its_lease_writes_nothing_more_and_says_so_once() -> None:
    commits, lost = Commits(), list[Any]()
    writer = writer_to(commits, lost)
    commits.lost = True
    writer.event(EVENT)
    async with asyncio.timeout(30):
        while not lost:
            await asyncio.sleep(0.01)
    commits.lost = False
    writer.event(EVENT)
    writer.step(STEP)
    assert not await writer.finish(RunChange("completed"))
    await asyncio.sleep(0.1)
    assert (commits.made, lost, writer.closed) == ([], [1], True)


async def test_an_end_that_finds_the_lease_lost_is_no_end() -> None:
    commits, lost = Commits(), list[Any]()
    writer = writer_to(commits, lost)
    commits.lost = True
    writer.event(EVENT, last=True)
    async with asyncio.timeout(30):
        assert not await writer.finish(RunChange("completed"))
    assert (commits.made, lost) == ([], [1])


async def test_a_closed_writer_drops_what_waits() -> None:
    commits = Commits()
    writer = writer_to(commits, [])
    writer.event(EVENT)
    writer.close()
    await asyncio.sleep(0.1)
    writer.event(EVENT)
    await asyncio.sleep(0.1)
    assert commits.made == []
