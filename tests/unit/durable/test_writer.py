"""The writer of a durable run's segment: what it sends to the store, and when it need not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from astromesh.durable.base import JournalStep, RunChange, RunRow, RunStore, SegmentClaim
from astromesh.durable.writer import SegmentWriter
from astromesh.errors import LeaseLost
from astromesh.types import Event

STEP = JournalStep("react", 1, "model", "h", "done", {})
EVENT = Event("run_1", 1, 0.0, "model.finished", {})


class Commits:
    """Where a writer commits: counts, and refuses once it is told to.

    Attributes:
        free: a commit is answered while it is set.
    """

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.events: list[Event] = []
        self.changes: list[RunChange | None] = []
        self.lost = False
        self.free = asyncio.Event()
        self.free.set()

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        await asyncio.sleep(0)
        if self.lost:
            raise LeaseLost("Somebody else has it.")
        self.made.append((len(steps), len(events)))
        self.events += events
        self.changes.append(change)
        await self.free.wait()


def writer_to(commits: Commits, lost: list[Any]) -> SegmentWriter:
    return SegmentWriter(
        cast("RunStore", commits), SegmentClaim("run_1", 1, "w1"), lambda: lost.append(1), lambda events: None
    )


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
