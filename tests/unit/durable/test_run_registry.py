"""Who may see, hear and end which runs of this process."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from astromesh.access.scopes import Viewer
from astromesh.api.schemas import RunStateOut
from astromesh.durable.base import RunQuery, RunRow
from astromesh.durable.run_registry import RunRegistry, run_json
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


async def found(registry: RunRegistry, viewer: Viewer = ANN) -> RunRow:
    run = await registry.find("run_1", viewer)
    assert run is not None
    return run


@pytest.mark.parametrize("viewer", STRANGERS, ids=str)
async def test_runs_of_others_do_not_exist(logs: RunLogs, registry: RunRegistry, viewer: Viewer) -> None:
    log = started(logs)
    log.task = asyncio.create_task(asyncio.sleep(60))
    assert await registry.find("run_1", viewer) is None
    assert (await registry.list(RunQuery(*viewer)))[0] == []
    log.task.cancel()


@pytest.mark.parametrize("viewer", [ANN, Viewer("acme", None)], ids=str)
async def test_the_owner_and_who_may_see_all_of_the_tenant_find_it(
    logs: RunLogs, registry: RunRegistry, viewer: Viewer
) -> None:
    started(logs)
    assert (await found(registry, viewer)).status == "running"
    assert len((await registry.list(RunQuery(*viewer)))[0]) == 1


async def test_a_follower_hears_what_was_and_what_comes_until_it_leaves(
    logs: RunLogs, registry: RunRegistry
) -> None:
    log, sink = started(logs), RecordingSink()
    stream = log.stream
    assert stream is not None
    stream.emit("tools.listed", count=0)
    leave = await registry.follow(await found(registry), 1, sink)
    stream.emit("node.started", node="n")
    assert leave is not None
    leave()
    stream.emit("node.finished", node="n")
    assert [(e.seq, e.type) for e in sink.events] == [(2, "tools.listed"), (3, "node.started")]


async def test_the_api_declares_every_key_of_a_run(logs: RunLogs, registry: RunRegistry) -> None:
    started(logs)
    origin = {"run_id": "run_1", "step": 3, "edit": None}
    fork = replace(await found(registry), forked_from={**origin, "accepted_at": 0.0, "inherited": 2})
    fork = replace(fork, request={**fork.request, "not_before": 1.0})
    assert run_json(fork)["forked_from"] == origin
    assert [*run_json(fork), "decisions"] == [*RunStateOut.model_fields]


async def test_of_an_ended_run_nothing_more_will_come(logs: RunLogs, registry: RunRegistry) -> None:
    logs.close(started(logs), 0.0)
    assert await registry.follow(await found(registry), 0, RecordingSink()) is None


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
    run = await found(registry)
    for _ in range(2):
        assert await registry.stop(run)
        await asyncio.sleep(0)
    assert (await registry.ended(run)).status == "failed"
    assert tidied == [True]


async def test_a_cancel_says_so_when_something_does_not_let_go(logs: RunLogs, registry: RunRegistry) -> None:
    log, over = started(logs), asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    log.task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    run = await found(registry)
    assert await registry.stop(run)
    assert run_json(await registry.ended(run))["finished_at"] is None
    assert (await found(registry)).status == "running"
    task = log.task
    over.set()
    await task
