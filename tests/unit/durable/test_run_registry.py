"""Who may see, hear and end which runs of this process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from astromesh.access.scopes import Viewer
from astromesh.durable.run_registry import RunFilter, RunRegistry
from astromesh.errors import RunNotFound
from astromesh.graph.ledger import RunLedger
from astromesh.telemetry.events import EventStream
from astromesh.telemetry.run_log import RunLog, RunLogs
from astromesh.testing import ManualClock, RecordingSink

ANN = Viewer("acme", "ann")
STRANGERS = [Viewer("acme", "bob"), Viewer("other", "ann"), Viewer("other", None)]


@pytest.fixture
def logs() -> RunLogs:
    return RunLogs()


@pytest.fixture
def registry(logs: RunLogs) -> RunRegistry:
    return RunRegistry(logs, ManualClock(), cancel_timeout=0.05)


def started(logs: RunLogs, run_id: str = "run_1", parent: str = "") -> RunLog:
    log = RunLog(run_id, "t", "acme", "ann", "helper", "s", parent, RunLedger(), [])
    log.stream = EventStream(run_id, (), log)
    log.stream.emit("run.started", agent="helper")
    logs.open(log)
    return log


@pytest.mark.parametrize("viewer", STRANGERS, ids=str)
async def test_runs_of_others_do_not_exist(logs: RunLogs, registry: RunRegistry, viewer: Viewer) -> None:
    log = started(logs)
    log.task = asyncio.create_task(asyncio.sleep(60))
    calls: list[Any] = [
        registry.get("run_1", viewer),
        registry.cancel("run_1", viewer),
        registry.follow("run_1", viewer, 0, RecordingSink()),
    ]
    for call in calls:
        with pytest.raises(RunNotFound):
            await call
    assert (await registry.list(viewer, RunFilter()))[0] == []
    assert not log.task.cancelling()
    log.task.cancel()


@pytest.mark.parametrize("viewer", [ANN, Viewer("acme", None)], ids=str)
async def test_the_owner_and_who_may_see_all_of_the_tenant_find_it(
    logs: RunLogs, registry: RunRegistry, viewer: Viewer
) -> None:
    started(logs)
    assert (await registry.get("run_1", viewer))["status"] == "running"
    assert len((await registry.list(viewer, RunFilter()))[0]) == 1


async def test_a_follower_hears_what_was_and_what_comes_until_it_leaves(
    logs: RunLogs, registry: RunRegistry
) -> None:
    log, sink = started(logs), RecordingSink()
    stream = log.stream
    assert stream is not None
    stream.emit("tools.listed", count=0)
    leave = await registry.follow("run_1", ANN, 1, sink)
    stream.emit("node.started", node="n")
    assert leave is not None
    leave()
    stream.emit("node.finished", node="n")
    assert [(e.seq, e.type) for e in sink.events] == [(2, "tools.listed"), (3, "node.started")]


async def test_of_an_ended_run_nothing_more_will_come(logs: RunLogs, registry: RunRegistry) -> None:
    logs.close(started(logs), 0.0)
    assert await registry.follow("run_1", ANN, 0, RecordingSink()) is None


async def test_a_second_cancel_does_not_cut_short_what_the_first_one_tidies_up(
    logs: RunLogs, registry: RunRegistry
) -> None:
    log, tidied = started(logs), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            tidied.append(True)
            logs.close(log, 0.0)

    log.task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await asyncio.gather(registry.cancel("run_1", ANN), registry.cancel("run_1", ANN))
    assert tidied == [True]


async def test_a_cancel_says_so_when_something_does_not_let_go(logs: RunLogs, registry: RunRegistry) -> None:
    log, over = started(logs), asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    log.task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    state = await registry.cancel("run_1", ANN)
    assert (state["status"], state["finished_at"]) == ("running", None)
    task = log.task
    over.set()
    await task
