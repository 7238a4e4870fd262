"""Tasks of a process that accepts many, loses answers, loses leases, and keeps what has ended for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.durable.base import IdempotencyKey
from astromesh.durable.leases import EXPIRY_SECONDS, FOLDER, LEASE_SECONDS
from astromesh.durable.tasks import ENDED_TASK_STATUSES, TaskChange, TaskRow
from astromesh.errors import LeaseLost, QueueFull, StoreUnavailable, TaskNotFound
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.tasks import MAX_TAKEOVERS
from astromesh.testing import FaultInjector, ManualClock, RecordingSink
from tests.integration.workflow.folders import runtime_with, small

ME = Viewer("default", "anonymous")
PATIENCE = 30.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config"


def row_of(runtime: AgentRuntime, task_id: str, worker: str, lease_until: float) -> TaskRow:
    """A Task of the workflow `small` as it is on disk."""
    engine = runtime.workflows.loaded.get("small").engine
    assert engine is not None
    return TaskRow(
        task_id, ME.tenant, "anonymous", "small", "s", "queued", runtime.clock.now(),
        engine.project.fingerprint.value, "0" * 31 + "1", True, worker=worker, lease_until=lease_until,
    )  # fmt: skip


async def test_a_queue_is_as_long_as_it_may_be_however_many_come_at_once(
    config: Path, tmp_path: Path
) -> None:
    """E55, with callers that all come while the first Task is on its way to the disk."""
    small(config, op="wait", scheduler="scheduler: {max_concurrency: 1, max_queue_size: 2}\n")
    asked, go = TaskRequest({"go": str(tmp_path / "go")}), tmp_path / "go"
    async with runtime_with(config) as runtime:
        found = await asyncio.gather(
            *(runtime.workflows.accept("small", asked) for _ in range(10)), return_exceptions=True
        )
        go.touch()
        taken = [one for one in found if isinstance(one, TaskRow)]
        async with asyncio.timeout(PATIENCE):
            ended = [await runtime.workflows.tasks.ended(one.task_id, ME) for one in taken]
    assert sum(isinstance(one, QueueFull) for one in found) == 7
    assert [one["status"] for one in ended] == ["success"] * 3


async def test_a_task_is_leased_as_long_as_a_run(config: Path) -> None:
    """By `ASTROMESH_LEASE_SECONDS`, which all processes of a database share."""
    async with runtime_with(small(config)) as runtime:
        before = runtime.clock.now()
        row = await runtime.workflows.accept("small", TaskRequest(21))
        assert before + LEASE_SECONDS <= row.lease_until <= runtime.clock.now() + LEASE_SECONDS


async def test_a_task_that_its_process_does_not_know_it_has_ends_all_the_same(config: Path) -> None:
    """As where the answer was lost to what accepted it or took it over: in time its lease is over."""
    async with runtime_with(small(config)) as runtime:
        workflows = runtime.workflows
        row = row_of(runtime, "task_1", workflows.worker, runtime.clock.now() - 1.0)
        begin = {"type": "begin", "task_id": "task_1", "workflow": "small", "start": "s", "input": 21}
        await (await workflows.store()).accept(row, [begin])
        workflows.resume_left()
        async with asyncio.timeout(PATIENCE):
            ended = await workflows.tasks.ended("task_1", ME)
    assert (ended["status"], ended["output"]) == ("success", 42)


async def test_all_that_a_dead_worker_had_is_taken_over_at_once_however_much(config: Path) -> None:
    """More than one look takes: the rest does not wait until its lease is over."""
    runtime, count = runtime_with(small(config)), MAX_TAKEOVERS + 1
    async with runtime:
        workflows, lease = runtime.workflows, runtime.clock.now() + 3600.0
        store = await workflows.store()
        for n in range(count):
            begin = {"type": "begin", "task_id": f"task_{n}", "workflow": "small", "start": "s", "input": n}
            await store.accept(row_of(runtime, f"task_{n}", "dead", lease), [begin])
        left = runtime.data_dir / "tasks" / FOLDER / "dead"
        left.parent.mkdir(parents=True)
        left.touch()
        workflows.resume_left()
        async with asyncio.timeout(PATIENCE):
            ended = [await workflows.tasks.ended(f"task_{n}", ME) for n in range(count)]
    assert {one["status"] for one in ended} == {"success"} and not left.exists()


async def test_a_cancel_of_a_task_that_another_process_has_by_now_ends_it_here_alone(
    config: Path, tmp_path: Path
) -> None:
    small(config, op="wait", scheduler="scheduler: {max_concurrency: 1}\n")
    asked = TaskRequest({"go": str(tmp_path / "go")})
    async with runtime_with(config) as runtime:
        workflows = runtime.workflows
        _, second = [await workflows.accept("small", asked) for _ in range(2)]
        store, live = await workflows.store(), workflows.records.live[second.task_id]
        until = runtime.clock.now() + 60.0
        taken = await store.take("another", [workflows.worker], until, 10)
        assert second.task_id in {row.task_id for row in taken}
        workflows.stop(second.task_id)
        assert live.work is not None
        await asyncio.wait([live.work], timeout=PATIENCE)
        kept = await store.get(second.task_id)
        assert live.work.exception() is None
    assert kept is not None and kept.worker == "another" and kept.status not in ENDED_TASK_STATUSES


async def test_two_repetitions_of_a_request_whose_process_died_with_its_key_are_one_task(
    config: Path,
) -> None:
    """The process has stored the key and no Task, so both repetitions store that Task."""
    key = IdempotencyKey("default", "anonymous", "workflows/small", "k", "hash", 2e10)
    async with runtime_with(small(config)) as runtime:
        reserved = await (await runtime.durable.open()).reserve_key(key, "task_of_the_dead")
        rows = await asyncio.gather(
            *(runtime.workflows.accept("small", TaskRequest(21), key=key) for _ in range(2))
        )
        async with asyncio.timeout(PATIENCE):
            ended = await runtime.workflows.tasks.ended(reserved, ME)
    assert [row.task_id for row in rows] == [reserved] * 2
    assert (ended["status"], ended["output"]) == ("success", 42)


async def test_a_store_that_is_away_delays_a_task_and_fails_none(config: Path) -> None:
    async with runtime_with(small(config)) as runtime:
        workflows = runtime.workflows
        away = [StoreUnavailable("away"), StoreUnavailable("away")]
        workflows.records.store = store = FaultInjector(await workflows.store(), commit=away)
        row = await workflows.accept("small", TaskRequest(21))
        async with asyncio.timeout(PATIENCE):
            ended = await workflows.tasks.ended(row.task_id, ME)
    assert (ended["status"], ended["output"]) == ("success", 42)
    assert store.calls.count("commit") >= len(away)


async def test_a_follower_hears_all_although_the_store_is_away_for_a_moment(config: Path) -> None:
    async with runtime_with(small(config)) as runtime:
        workflows, sink, heard = runtime.workflows, RecordingSink(), asyncio.Event()
        result = await workflows.run("small", TaskRequest(21))
        away = [StoreUnavailable("away"), StoreUnavailable("away")]
        workflows.records.store = FaultInjector(await workflows.store(), records=away)
        await workflows.tasks.follow(result.task_id, ME, 0, sink, heard.set)
        await asyncio.wait_for(heard.wait(), PATIENCE)
    assert sink.events and sink.events[-1].type == "task.finished"


async def test_a_follower_hears_the_end_of_a_task_that_could_not_be_stored(
    config: Path, tmp_path: Path
) -> None:
    small(config, op="wait")
    async with runtime_with(config) as runtime:
        workflows, sink, heard = runtime.workflows, RecordingSink(), asyncio.Event()
        store = FaultInjector(await workflows.store(), accept=[StoreUnavailable("away")])
        workflows.records.store = store
        running = asyncio.create_task(workflows.run("small", TaskRequest({"go": str(tmp_path / "go")})))
        while not workflows.records.live:
            await asyncio.sleep(0.01)
        await workflows.tasks.follow(next(iter(workflows.records.live)), ME, 0, sink, heard.set)
        (tmp_path / "go").touch()
        assert (await running).status == "success"
        await asyncio.wait_for(heard.wait(), PATIENCE)
    assert sink.events[-1].type == "task.finished"


async def test_who_follows_a_task_of_another_process_is_released_when_it_is_erased(config: Path) -> None:
    async with runtime_with(small(config)) as runtime:
        workflows, heard = runtime.workflows, asyncio.Event()
        row = row_of(runtime, "task_1", "another", runtime.clock.now() + 3600.0)
        begin = {"type": "begin", "task_id": "task_1", "workflow": "small", "start": "s", "input": 21}
        store = await workflows.store()
        await store.accept(row, [begin])
        await workflows.tasks.follow("task_1", ME, 0, RecordingSink(), heard.set)
        await store.take(workflows.worker, ["another"], runtime.clock.now() + 3600.0, 1)
        result: dict[str, Any] = {"output": None, "error": None, "metadata": {}}
        change = TaskChange("task_1", workflows.worker, end=("failure", result, runtime.clock.now()))
        await store.commit(change)
        assert await store.erase_owner(ME.tenant, "anonymous") == 1
        await asyncio.wait_for(heard.wait(), PATIENCE)


async def test_a_task_that_is_lost_in_the_middle_of_a_stage_is_left_as_it_is(config: Path) -> None:
    """Somebody else works on it: it must not fail here."""
    async with runtime_with(small(config)) as runtime:
        workflows = runtime.workflows
        workflows.records.store = store = FaultInjector(await workflows.store(), commit=[LeaseLost("lost")])
        row = await workflows.accept("small", TaskRequest(21))
        async with asyncio.timeout(PATIENCE):
            while row.task_id in workflows.records.live:
                await asyncio.sleep(0.01)
        kept = await store.get(row.task_id)
    assert kept is not None and kept.status not in ENDED_TASK_STATUSES


async def test_ended_tasks_go_by_age_with_what_they_left(config: Path) -> None:
    """`storage.keep_days` is for them, too."""
    clock = ManualClock()
    small(config)
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
    (config / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"keep_days": 1}}}))
    async with runtime_with(config, clock=clock) as runtime:
        workflows = runtime.workflows
        result = await workflows.run("small", TaskRequest(21))
        assert (await workflows.tasks.state(result.task_id, ME))["output"] == 42
        clock.advance(86_400.0)
        async with asyncio.timeout(PATIENCE):
            while True:
                clock.advance(EXPIRY_SECONDS)
                await asyncio.sleep(0.01)
                try:
                    await workflows.tasks.task(result.task_id, ME)
                except TaskNotFound:
                    break
        assert await (await workflows.store()).records(result.task_id) == ()
