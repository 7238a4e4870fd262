"""Processes of one database of which some take requests and others work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from astromesh.access.scopes import Viewer
from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.runtime.runs import Decision
from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.types import CallerContext
from tests.integration.agents_folder import client_of, manifest, runtime_of, store_in, write
from tests.integration.durable.listeners import Heard
from tests.integration.durable.test_durable_runs import asks, lookup, tool
from tests.integration.workflow.folders import small

PATIENCE = 60.0
_END_LISTENERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
)


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient, AgentRuntime]]:
    """A process that takes requests, one that works, and the runtime of the second."""
    api, worker = (runtime_of(folder, ScriptedProvider("Hi", repeat=True)) for _ in range(2))
    api.durable.executes = False
    app = create_app(worker, takes_requests=False)
    async with client_of(api) as client, app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as other:
            yield client, other, worker


async def ended(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while (found := (await client.get(path)).json())["status"] in ("queued", "running"):
            await asyncio.sleep(0.05)
    state: dict[str, Any] = found
    return state


async def test_a_process_that_only_takes_requests_finds_the_traces_of_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path, manifest())
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hi"))) as client:
        body = {"query": "Hello", "session_id": "s"}
        done = (await client.post("/v1/agents/helper/run", json=body)).json()
    api = runtime_of(tmp_path, ScriptedProvider())
    api.durable.executes = False
    async with client_of(api) as client:
        trace = await client.get(f"/v1/traces/{done['metadata']['trace_id']}")
    assert trace.status_code == 200


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_one_process_takes_requests_and_another_works(
    tmp_path: Path, request: pytest.FixtureRequest, backend: str
) -> None:
    small(tmp_path, op="double")
    write(tmp_path, manifest())
    if backend == "postgres":
        store_in(tmp_path, request.getfixturevalue("postgres_database"))
    body = {"query": "Hello", "session_id": "s"}
    async with fleet(tmp_path) as (api, other, worker):
        accepted = await api.post("/v1/agents/helper/runs", json=body)
        run = accepted.json()["run_id"]
        task = (await api.post("/v1/workflows/small/runs", json={"input": 21})).json()["task_id"]
        keyed = await api.post("/v1/agents/helper/run", json=body, headers={"Idempotency-Key": "k"})
        assert keyed.json()["response"] == "Hi"  # a caller waits: the process that took it answers
        assert (await ended(api, f"/v1/runs/{run}"))["status"] == "completed"
        assert (await ended(api, f"/v1/tasks/{task}"))["status"] == "success"
        row = await worker.durable.store.get(run)
        assert row is not None
        assert row.worker == worker.durable.worker
        for path, status in (("/health/ready", 200), ("/metrics", 200), ("/v1/agents", 404), ("/", 404)):
            assert (await other.get(path)).status_code == status


async def test_a_process_that_takes_requests_stores_decisions_of_callers_with_a_token(tmp_path: Path) -> None:
    """Another process continues the run; the token is no reason to refuse its caller's own decision."""
    alice, at = CallerContext("alice", bearer_token="t"), Viewer("default", "alice")
    write(tmp_path, manifest(tools=[tool(effect="write", approval="required")]))
    provider, used = ScriptedProvider(asks("a"), "done"), lookup()
    async with asyncio.timeout(PATIENCE):
        api, worker = (
            runtime_of(tmp_path, provider, plugins={"tools": {"lookup": plugin_of(used)}}) for _ in range(2)
        )
        api.durable.executes = False
        async with client_of(api), client_of(worker):
            await worker.durable.start()
            request = RunRequest("Do it", "s")
            run = (await api.runner.accept(api.agent("helper"), request, caller=alice)).run_id
            for status in ("waiting", "completed"):
                while (await api.runs.get(run, at))["status"] != status:
                    await asyncio.sleep(0.02)
                if status == "waiting":
                    await api.runs.resume(run, at, alice, Decision("approve"))
    assert used.calls == [{"query": "a"}]


async def test_a_process_that_takes_requests_does_not_execute_the_task_that_it_forks(tmp_path: Path) -> None:
    small(tmp_path, op="double")
    write(tmp_path, manifest())
    async with fleet(tmp_path) as (api, _, worker):
        accepted = await api.post("/v1/workflows/small/runs", json={"input": 21})
        path = f"/v1/tasks/{accepted.json()['task_id']}"
        await ended(api, path)
        fork = (await api.post(f"{path}/fork", json={"at": 2})).json()["task_id"]
        assert (await ended(api, f"/v1/tasks/{fork}"))["status"] == "success"
        live = {file.name for file in (worker.data_dir / "tasks" / "workers").iterdir()}
        runtime: AgentRuntime = api._transport.app.state.runtime  # type: ignore[attr-defined]
    assert worker.workflows.worker in live
    assert runtime.workflows.worker not in live


async def test_events_of_another_process_arrive_by_notification_and_by_polls_when_the_connection_is_lost(
    tmp_path: Path, postgres_database: str
) -> None:
    """A run begins at once elsewhere, its events are whole, and a lost connection leaves no gap."""
    go_on = asyncio.Event()

    async def answers(_: Any) -> str:
        await go_on.wait()
        return "one two three"

    write(tmp_path, manifest())
    store_in(tmp_path, postgres_database)
    provider = ScriptedProvider(answers, repeat=True)
    api, worker = (runtime_of(tmp_path, provider) for _ in range(2))
    api.durable.executes = False
    async with client_of(api) as client, client_of(worker):
        for lost in (False, True):
            go_on.clear()
            body = {"query": "Hello", "session_id": "s"}
            run = (await client.post("/v1/agents/helper/runs", json=body)).json()["run_id"]
            heard = Heard()
            leave = await api.runs.follow(run, Viewer("default", None), 0, heard)
            async with asyncio.timeout(PATIENCE):
                while not api.durable.hears_others or not heard.events:
                    await asyncio.sleep(0.02)
                if lost:
                    connection = await asyncpg.connect(postgres_database)
                    await connection.execute(_END_LISTENERS)
                    await connection.close()
                go_on.set()
                await heard.ended.wait()
            assert leave is not None
            leave()
            assert [event.seq for event in heard.events] == list(range(1, len(heard.events) + 1))
            row = await worker.durable.store.get(run)
            assert row is not None
            assert row.worker == worker.durable.worker
