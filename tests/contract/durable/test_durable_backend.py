"""One suite for every dispatcher of segments."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.durable.base import DurableBackend, RunRow
from astromesh.plugins import Plugins
from astromesh.testing import ManualClock
from tests.platform.stores import deps_of

PATIENCE = 30.0


@pytest.fixture(params=["in_process"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DurableBackend]:
    name, request.param = request.param, "sqlite"
    deps = deps_of(request, ManualClock(), tmp_path)
    opened = await Plugins().open("durable_backends", name, {}, deps)
    yield opened
    await opened.close()
    await deps.resources.close()


def run(name: str, session: str = "", segment: int = 1, priority: int = 0) -> RunRow:
    return RunRow(
        name, "acme", "ann", "support", session or name, "t" * 32, "queued", 1.0,
        durable=True, segment=segment, priority=priority,
    )  # fmt: skip


class Worker:
    """Notes what it is given; a second time it does nothing, as the claim of a segment has it."""

    def __init__(self) -> None:
        self.given: Counter[tuple[str, int]] = Counter()
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()

    async def __call__(self, run_id: str, segment: int) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.given[run_id, segment] += 1
        self.changed.set()

    async def until(self, *wanted: tuple[str, int]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not set(wanted) <= set(self.given):
                self.changed.clear()
                await self.changed.wait()


async def test_every_segment_is_given_to_the_loop_that_started_the_backend(backend):
    worker = Worker()
    await backend.start(worker)
    runs = [run(f"run_{n}") for n in range(20)]
    for one in runs:
        await backend.dispatch(one)
    await worker.until(*((one.run_id, 1) for one in runs))


async def test_the_next_segment_of_a_run_is_another_dispatch(backend):
    worker = Worker()
    await backend.start(worker)
    await backend.dispatch(run("run_1"))
    await worker.until(("run_1", 1))
    await backend.dispatch(run("run_1", segment=2))
    await worker.until(("run_1", 2))


async def test_a_segment_that_nobody_claimed_may_be_dispatched_again(backend):
    """What a drained process was given is given to somebody once more."""
    worker = Worker()
    await backend.start(worker)
    for times in (1, 2):
        await backend.dispatch(run("run_1"))
        async with asyncio.timeout(PATIENCE):
            while worker.given["run_1", 1] < times:
                await asyncio.sleep(0.01)


async def test_a_long_segment_does_not_hold_up_the_others(backend):
    going, free = asyncio.Event(), asyncio.Event()
    worker = Worker()

    async def work(run_id: str, segment: int) -> None:
        if run_id == "long":
            going.set()
            await free.wait()
        await worker(run_id, segment)

    await backend.start(work)
    await backend.dispatch(run("long"))
    await asyncio.wait_for(going.wait(), PATIENCE)
    await backend.dispatch(run("short"))
    await worker.until(("short", 1))
    free.set()
    await worker.until(("long", 1))


async def test_a_drained_backend_begins_nothing(backend):
    worker = Worker()
    await backend.start(worker)
    await backend.drain()
    await backend.dispatch(run("late"))
    await backend.close()
    assert not worker.given
