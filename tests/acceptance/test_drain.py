"""`astromesh drain`: a server ends what runs and takes no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import typer

from astromesh.cli.commands.worker import drain
from tests.conftest import ServerFactory
from tests.integration.agents_folder import manifest, write
from tests.platform.model import MockModel

HOLD = """
import asyncio, pathlib

async def hold(query: str) -> str:
    while not pathlib.Path(__file__).with_name("go").exists():
        await asyncio.sleep(0.01)
    return query
"""


def test_a_server_ends_what_runs_and_takes_no_more(
    tmp_path: Path, server_process: ServerFactory, mock_llm: MockModel, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"provider": "openai", "model": "mock+tools=1", "endpoint": mock_llm.url, "api_key": "k"}
    hold = {"name": "hold", "type": "internal", "function": "held_by_test:hold"}
    config = write(tmp_path / "config", manifest("slow", model={"primary": model}, tools=[hold]))
    (config / "held_by_test.py").write_text(HOLD)
    server = server_process(config)
    body = {"query": "hello", "session_id": "s"}

    def told() -> dict[str, Any]:
        (process,) = orjson.loads(capsys.readouterr().out)
        assert process["pid"] == server.pid
        found: dict[str, Any] = process
        return found

    with httpx.Client(base_url=server.url, timeout=60) as client:
        run = client.post("/v1/agents/slow/runs", json=body).json()["run_id"]
        while client.get(f"/v1/runs/{run}").json()["status"] == "queued":
            pass
        with pytest.raises(typer.Exit):
            drain(data=server.data, timeout=0.5, json=True)
        assert told()["active"] == 1
        (config / "go").touch()
        drain(data=server.data, timeout=60.0, json=True)
        process = told()
        assert (process["state"], process["active"]) == ("drained", 0)
        assert client.get(f"/v1/runs/{run}").json()["status"] == "completed"
        refused = client.post("/v1/agents/slow/run", json=body)
        assert (refused.status_code, "shutting_down" in refused.text) == (503, True)
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
    assert server.running


def test_a_folder_without_a_server_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drain(data=tmp_path, timeout=0.0, json=False)
    assert "No server or worker" in capsys.readouterr().err
