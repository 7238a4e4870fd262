"""A run whose server has died is ended by a worker that has nothing of it but the database."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import asyncpg
import yaml

from astromesh.durable.failpoints import TOOL_DONE, VARIABLE
from tests.platform.astromesh import CHILD, PROGRAM, ROOT
from tests.platform.processes import Command, Server, plain_environment
from tests.reliability.calls import call
from tests.reliability.payment_agent import LEASE, agent, charges, config

PATIENCE = 90.0


def worker_of(home: Path, folder: Path, effects: Path) -> Server:
    """`astromesh worker` with a data folder of its own, as on another machine."""
    home.mkdir()
    settings = {
        "ASTROMESH_DATA_DIR": str(home / "data"),
        "PYTHONPATH": f"{CHILD}:{ROOT}",
        "EFFECTS": str(effects),
        **LEASE,
    }
    command = Command([PROGRAM, "worker", "--config", str(folder)], plain_environment(home, settings), home)
    log = home / "worker.log"
    return Server(command, log, lambda: log.exists() and "executes durable runs" in log.read_text())


async def ended(url: str, run_id: str) -> dict[str, Any]:
    connection = await asyncpg.connect(url)
    try:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            row = await connection.fetchrow(
                "SELECT status, segment, result FROM astromesh.runs WHERE run_id = $1", run_id
            )
            assert row is not None
            if row["status"] not in ("queued", "running"):
                return dict(row)
            await asyncio.sleep(0.1)
    finally:
        await connection.close()
    raise AssertionError(f"the run did not end within {PATIENCE:g} s")


def test_a_worker_takes_over_what_a_dead_server_had(tmp_path, mock_llm, forked_server, postgres_database):
    """Killed behind its first tool; the worker takes it up once the lease is over; SIGTERM ends it well."""
    effects = tmp_path / "effects"
    folder = config(tmp_path / "config", mock_llm.url, "write", postgres_database)
    server = forked_server(folder, env={"EFFECTS": str(effects), VARIABLE: TOOL_DONE, **LEASE})
    body = json.dumps({"query": "Charge three times.", "session_id": "s-1"}).encode()
    asked = urllib.request.Request(
        f"{server.url}/v1/agents/teller/runs", body, {"content-type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=30) as answer:
        run_id = json.load(answer)["run_id"]
    server.wait(PATIENCE)
    worker = worker_of(tmp_path / "worker", folder, effects)
    worker.start()
    try:
        row = asyncio.run(ended(postgres_database, run_id))
        assert (row["status"], row["segment"]) == ("completed", 2)
        assert sorted(charges(effects)) == ["round 0", "round 1", "round 2"]
        worker.signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()


def test_a_server_that_was_first_in_its_data_folder_takes_over(tmp_path, mock_llm, forked_server):
    """It has started before there was a store of runs, and accepts none itself."""
    effects = tmp_path / "effects"
    folder = config(tmp_path / "config", mock_llm.url, "write")
    manifest = agent(mock_llm.url, "write", "")
    del manifest["spec"]["memory"]  # nothing is stored but accepted runs
    (folder / "agents" / "teller.agent.yaml").write_text(yaml.safe_dump(manifest))
    env = {"ASTROMESH_DATA_DIR": str(tmp_path / "shared"), "EFFECTS": str(effects), **LEASE}
    first = forked_server(folder, env=env)
    dies = forked_server(folder, env={**env, VARIABLE: TOOL_DONE})
    run_id = call(f"{dies.url}/v1/agents/teller/runs", {"query": "Charge.", "session_id": "s"})["run_id"]
    dies.wait(PATIENCE)
    end = time.monotonic() + PATIENCE
    while (status := call(f"{first.url}/v1/runs/{run_id}")["status"]) != "completed":
        assert time.monotonic() < end, status
        time.sleep(0.2)
    assert sorted(charges(effects)) == ["round 0", "round 1", "round 2"]
