"""E54: pauses, steps and replays act on a Task wherever it runs, and outlive its process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from astromesh.testing import ManualClock
from tests.integration.agents_folder import client_of
from tests.integration.workflow.folders import ENDED, idle, runtime_with, small, until

RUNS, PATIENCE = "/v1/workflows/small/runs", 60.0


@pytest.fixture(params=("sqlite", "postgres"))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A configuration folder whose runtimes share one database."""
    folder = tmp_path / "config"
    folder.mkdir()
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": url}}}))
    return folder


async def accepted(client: httpx.AsyncClient, input: Any) -> str:
    task_id: str = (await client.post(RUNS, json={"input": input})).json()["task_id"]
    return task_id


async def act(client: httpx.AsyncClient, task_id: str, action: str, **body: Any) -> httpx.Response:
    return await client.post(f"/v1/tasks/{task_id}/{action}", json=body or None)


async def paused(client: httpx.AsyncClient, task_id: str, stage: str) -> dict[str, Any]:
    """The Task as soon as this stage of it is paused."""
    async with asyncio.timeout(PATIENCE):
        while True:
            task: dict[str, Any] = (await client.get(f"/v1/tasks/{task_id}")).json()
            if [one["stage"] for one in task["paused"]] == [stage]:
                return task
            await asyncio.sleep(0.02)


async def test_every_action_reaches_a_task_of_another_process(config: Path, tmp_path: Path) -> None:
    small(config, op="wait")
    go = tmp_path / "go"
    one, two = (client_of(runtime_with(config)) for _ in range(2))
    async with one as here, two as there:
        task_id = await accepted(here, {"go": str(go)})
        await until(there, task_id, "running")
        unknown = await act(there, task_id, "pause", before=["e", "nope"])
        assert unknown.status_code == 422 and "no stage 'nope'" in unknown.json()["detail"]
        assert (await act(there, task_id, "pause", before=["e"])).status_code == 200
        go.touch()
        task = await paused(there, task_id, "e")
        assert task["paused"][0]["input"] == {"go": str(go)}
        assert task["stages"] == [{"task": "", "stage": "e", "state": "paused"}]
        assert (await act(there, task_id, "step")).status_code == 200
        ended = await until(there, task_id, *ENDED)
        replayed = (await act(there, task_id, "replay")).json()
        late = [(await act(there, task_id, action)).status_code for action in ("pause", "step", "resume")]
    assert ended["status"] == "success" and ended["paused"] == []
    assert replayed["same"] and replayed["path"] == ["s", "x", "e"]
    assert late == [409, 409, 409]


async def test_a_pause_counts_for_the_stage_after_the_one_that_runs(config: Path, tmp_path: Path) -> None:
    """However soon that follows: the commit of a stage brings the news of the pause."""
    small(config, op="wait")
    one, two = (client_of(runtime_with(config)) for _ in range(2))
    async with one as here, two as there:
        for n in range(5):
            go = tmp_path / f"go-{n}"
            task_id = await accepted(here, {"go": str(go)})
            await until(there, task_id, "running")
            await act(there, task_id, "pause")
            go.touch()
            await paused(there, task_id, "e")
            await act(there, task_id, "resume")
            assert (await until(there, task_id, *ENDED))["status"] == "success"


async def test_a_pause_outlives_its_process(config: Path) -> None:
    """The stage waits in the next process too; a step goes one stage further, and that waits again."""
    small(config, extra="task: {pause_before: [x]}\n")
    async with client_of(runtime_with(config)) as client:
        task_id = await accepted(client, 21)
        await paused(client, task_id, "x")
        await act(client, task_id, "pause", before=["e"])
    async with client_of(runtime_with(config)) as client:
        task = await paused(client, task_id, "x")
        assert task["paused"][0]["input"] == 21
        await act(client, task_id, "step")
        await paused(client, task_id, "e")
    async with client_of(runtime_with(config)) as client:
        await paused(client, task_id, "e")
        assert (await act(client, task_id, "resume")).status_code == 200
        ended = await until(client, task_id, *ENDED)
    assert (ended["status"], ended["output"]) == ("success", 42)


async def test_what_is_paused_counts_for_no_limit(config: Path) -> None:
    limits = (
        "scheduler: {max_concurrency: 1, max_queue_size: 1, max_stage_concurrency: 1, task_timeout_s: 1.5}\n"
    )
    small(config, extra="task: {pause_before: [x]}\n", scheduler=limits)
    runtime = runtime_with(config, clock=(clock := ManualClock()))
    async with client_of(runtime) as client:
        ids = []
        for n in range(4):
            ids.append(await accepted(client, n))
            await paused(client, ids[-1], "x")
        await idle(runtime)
        clock.advance(1.6)
        for task_id in ids:
            await act(client, task_id, "resume")
        ended = [await until(client, task_id, *ENDED) for task_id in ids]
    assert [one["output"] for one in ended] == [0, 2, 4, 6]


async def test_a_paused_task_is_cancelled(config: Path) -> None:
    small(config, extra="task: {pause_before: [x]}\n")
    async with client_of(runtime_with(config)) as client:
        task_id = await accepted(client, 1)
        await paused(client, task_id, "x")
        ended = (await act(client, task_id, "cancel")).json()
    assert (ended["status"], ended["error"]["code"], ended["paused"]) == ("failure", "cancelled", [])
