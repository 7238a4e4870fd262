"""The helper mends the project once the new file is approved."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime

HERE = Path(__file__).parent


def state(client: TestClient, run_id: str, *wanted: str) -> dict[str, Any]:
    """Returns the run once it has one of these statuses."""
    while (run := dict[str, Any](client.get(f"/v1/runs/{run_id}").json()))["status"] not in wanted:
        time.sleep(0.05)
    return run


@pytest.mark.timeout(300)  # three programs start, one after the other
def test_the_fault_is_mended_after_an_approval(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE, tmp_path / "helper")
    broken = (folder / "project" / "prices.py").read_text()
    runtime = AgentRuntime(folder / "config", data_dir=tmp_path / "data", env={"PYTHON": sys.executable})
    with TestClient(create_app(runtime)) as client:
        while client.get("/v1/agents").json()["agents"][0]["status"] != "ready":
            time.sleep(0.05)  # the MCP server starts
        body = {"query": "The tests fail. Please mend it.", "session_id": "s"}
        run_id = client.post("/v1/agents/coder/runs", json=body).raise_for_status().json()["run_id"]
        waiting = state(client, run_id, "waiting", "failed")
        assert waiting["waiting_for"]["name"] == "write_file", waiting
        assert (folder / "project" / "prices.py").read_text() == broken
        client.post(f"/v1/runs/{run_id}/resume", json={"decision": "approve"}).raise_for_status()
        ended = state(client, run_id, "completed", "failed")
    assert "the tests pass" in ended["result"]["response"]
    assert "1 + rate" in (folder / "project" / "prices.py").read_text()
