"""The support bot over HTTP: what it cites, and that nothing is refunded without a decision."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime

HERE = Path(__file__).parent
REFUND = "Please refund order 1001, it arrived broken. It was 20 euros."


def server(data: Path) -> TestClient:
    return TestClient(create_app(AgentRuntime(HERE / "config", data_dir=data, env={})))


def state(client: TestClient, run_id: str, *wanted: str) -> dict[str, Any]:
    """Returns the run once it has one of these statuses."""
    while (run := dict[str, Any](client.get(f"/v1/runs/{run_id}").json()))["status"] not in wanted:
        time.sleep(0.02)
    return run


def test_an_answer_cites_the_handbook(tmp_path: Path) -> None:
    with server(tmp_path) as client:
        question = {"query": "Who pays the shipping of a return?", "session_id": "s"}
        answer = client.post("/v1/agents/support/run", json=question).json()
    assert "if the item is damaged" in answer["response"]
    assert [one["document"] for one in answer["citations"]] == ["returns.md"]


@pytest.mark.parametrize(
    ("decision", "response"),
    [("approve", "I have refunded 20 euros for order 1001."), ("deny", "I may not refund this order.")],
)
def test_a_person_decides_about_a_refund(tmp_path: Path, decision: str, response: str) -> None:
    with server(tmp_path) as client:
        made = client.post("/v1/agents/support/runs", json={"query": REFUND, "session_id": "s"}).json()
        waiting = state(client, made["run_id"], "waiting")
        assert waiting["waiting_for"]["name"] == "refund"
        client.post(f"/v1/runs/{made['run_id']}/resume", json={"decision": decision})
        ended = state(client, made["run_id"], "completed", "failed")
    assert ended["result"]["response"] == response
