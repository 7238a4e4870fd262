"""What waits and runs, and processes that take no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from astromesh.telemetry.clock import iso_time
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, store_in, write

PATIENCE = 30.0


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_queues_count_what_waits_and_runs_and_who_executes_it(
    tmp_path: Path, request: pytest.FixtureRequest, backend: str
) -> None:
    if backend == "postgres":
        store_in(tmp_path, request.getfixturevalue("postgres_database"))
    go_on = asyncio.Event()

    async def answers(_: Any) -> str:
        await go_on.wait()
        return "done"

    write(tmp_path, manifest("a", queue={"max_running": 1}), manifest("b"))
    runtime = runtime_of(tmp_path, ScriptedProvider(answers, repeat=True))
    async with client_of(runtime) as client:
        for session in ("s1", "s2", "s3"):
            body = {"query": "hello", "session_id": session}
            assert (await client.post("/v1/agents/a/runs", json=body)).status_code == 202
        async with asyncio.timeout(PATIENCE):
            while not (found := (await client.get("/v1/queues")).json())["queues"][0]["running"]:
                await asyncio.sleep(0.01)
        (queue,) = found["queues"]
        assert {**queue, "oldest_at": bool(queue["oldest_at"])} == {
            "agent": "a", "queued": 2, "later": 0, "running": 1, "waiting": 0, "oldest_at": True,
        }  # fmt: skip
        (worker,) = found["workers"]
        assert (worker["worker"], worker["running"]) == (runtime.durable.worker, 1)
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            while (await client.get("/v1/queues")).json()["queues"]:
                await asyncio.sleep(0.01)
        later = runtime.clock.now() + 3600
        body = {"query": "hello", "session_id": "s", "not_before": iso_time(later)}
        assert (await client.post("/v1/agents/b/runs", json=body)).status_code == 202
        (queue,) = (await client.get("/v1/queues")).json()["queues"]
        assert (queue["agent"], queue["queued"], queue["later"], queue["oldest_at"]) == ("b", 0, 1, None)
