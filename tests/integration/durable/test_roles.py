"""Processes of one database of which some take requests and others work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, store_in, write
from tests.integration.workflow.folders import small

PATIENCE = 60.0


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
