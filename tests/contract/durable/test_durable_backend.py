"""One suite for every dispatcher of segments."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from astromesh.durable.base import DurableBackend, RunRow
from astromesh.errors import AstromeshError
from astromesh.net.http import Http
from astromesh.plugins import Plugins
from astromesh.testing import ManualClock
from tests.platform.stores import deps_of

PATIENCE = 30.0


@pytest.fixture(params=["in_process", "restate"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DurableBackend]:
    options: dict[str, Any] = {}
    if request.param == "restate":
        server = request.getfixturevalue("restate_server")
        own = {"listen": "127.0.0.1:0", "admin_url": server.admin_url}
        options = {"url": server.url, "restate": own}
    async with Http() as http:
        deps = deps_of(request, ManualClock(), tmp_path, http=http)
        opened = await Plugins().open("durable_backends", request.param, options, deps)
        yield opened
        await opened.close()
        await deps.resources.close()


async def send(backend: DurableBackend, row: RunRow) -> None:
    """Dispatches as the sweep does: again until it is accepted."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await backend.dispatch(row)
            except AstromeshError:  # a server that has not heard of this process yet
                await asyncio.sleep(0.05)


def no_wake(name: str) -> None:
    assert name == "queued"  # a server that is new to the backend


def run(name: str, session: str = "", segment: int = 1, priority: int = 0) -> RunRow:
    return RunRow(
        name, "acme", "ann", "support", session or name, "t" * 32, "queued", 1.0,
        durable=True, segment=segment, priority=priority, ordered=True,
    )  # fmt: skip


class Worker:
    """Notes what it is given; a second time it does nothing, as the claim of a segment has it."""

    def __init__(self) -> None:
        self.given: Counter[tuple[str, int]] = Counter()
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()

    async def __call__(self, run_id: str, segment: int) -> bool:
        assert asyncio.get_running_loop() is self.loop
        self.given[run_id, segment] += 1
        self.changed.set()
        return True

    async def until(self, *wanted: tuple[str, int]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not set(wanted) <= set(self.given):
                self.changed.clear()
                await self.changed.wait()


async def test_every_segment_is_given_to_the_loop_that_started_the_backend(backend):
    worker = Worker()
    await backend.start(worker, no_wake)
    runs = [run(f"run_{n}") for n in range(20)]
    for one in runs:
        await send(backend, one)
    await worker.until(*((one.run_id, 1) for one in runs))


async def test_the_next_segment_of_a_run_is_another_dispatch(backend):
    worker = Worker()
    await backend.start(worker, no_wake)
    await send(backend, run("run_1"))
    await worker.until(("run_1", 1))
    await send(backend, run("run_1", segment=2))
    await worker.until(("run_1", 2))


async def test_a_segment_that_nobody_claimed_may_be_dispatched_again(backend):
    """What a drained process was given is given to somebody once more."""
    worker = Worker()
    await backend.start(worker, no_wake)
    async with asyncio.timeout(PATIENCE):
        while worker.given["run_1", 1] < 2:  # as sweeps do, until the first call has ended
            await send(backend, run("run_1"))
            await asyncio.sleep(0.01)


async def test_a_long_segment_does_not_hold_up_the_others(backend):
    going, free = asyncio.Event(), asyncio.Event()
    worker = Worker()

    async def work(run_id: str, segment: int) -> bool:
        if run_id == "long":
            going.set()
            await free.wait()
        return await worker(run_id, segment)

    await backend.start(work, no_wake)
    await send(backend, run("long"))
    await asyncio.wait_for(going.wait(), PATIENCE)
    await send(backend, run("short"))
    await worker.until(("short", 1))
    free.set()
    await worker.until(("long", 1))


async def test_a_drained_backend_begins_nothing(backend):
    worker = Worker()
    await backend.start(worker, no_wake)
    await backend.drain()
    with suppress(AstromeshError):
        await backend.dispatch(run("late"))
    await backend.close()
    assert not worker.given


async def test_segments_of_a_session_do_not_overlap_and_keep_their_order(backend):
    """The second one is dispatched while the first one is active."""
    begun, active, most = [], 0, 0
    worker = Worker()

    async def work(run_id: str, segment: int) -> bool:
        nonlocal active, most
        begun.append(run_id)
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.05)
        active -= 1
        return await worker(run_id, segment)

    await backend.start(work, no_wake)
    names = [f"run_{n}" for n in range(5)]
    for name in names:
        await send(backend, run(name, session="s-1"))
    await worker.until(*((name, 1) for name in names))
    assert (begun, most) == (names, 1)


async def test_a_backend_that_places_segments_repeats_what_nobody_could_execute(backend):
    if not backend.places:
        return  # the sweep of a worker does
    worker, refusals = Worker(), 3

    async def work(run_id: str, segment: int) -> bool:
        nonlocal refusals
        refusals -= 1
        return refusals < 0 and await worker(run_id, segment)

    await backend.start(work, no_wake)
    await send(backend, run("run_1"))
    await worker.until(("run_1", 1))


async def test_a_backend_with_timers_wakes_a_process_once_at_a_time(backend):
    if not backend.places:
        return  # its processes look once a second
    worker, woken, changed = Worker(), [], asyncio.Event()

    def wake(name: str) -> None:
        if name != "queued":
            woken.append(name)
            changed.set()

    await backend.start(worker, wake)
    await send(backend, run("run_1"))
    for _ in range(3):
        await backend.wake_at("runs", ManualClock().now() + 0.5)
    await asyncio.wait_for(changed.wait(), PATIENCE)
    await send(backend, run("run_2"))
    await worker.until(("run_2", 1))
    assert woken == ["runs"]
