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
    """Where a writer commits: counts, and refuses once it is told to."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.lost = False

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        await asyncio.sleep(0)
        if self.lost:
            raise LeaseLost("Somebody else has it.")
        self.made.append((len(steps), len(events)))


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
