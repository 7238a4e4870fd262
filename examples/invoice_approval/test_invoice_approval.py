"""Small invoices are paid at once, large ones when a person has agreed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime

HERE = Path(__file__).parent
SMALL = "Invoice A-1 for paper: please pay 20 euros."
LARGE = "Invoice A-2 for a new roof: please pay 5000 euros."


def submit(client: TestClient, mail: str) -> str:
    answer = client.post("/v1/workflows/invoices/runs", json={"input": {"mail": mail}})
    return str(answer.raise_for_status().json()["task_id"])


def settled(client: TestClient, task: str) -> dict[str, Any]:
    """Returns the Task once it has ended or asks a person."""
    while True:
        state = dict[str, Any](client.get(f"/v1/tasks/{task}").json())
        if state["finished_at"] is not None or state["waiting_for"]:
            return state
        time.sleep(0.02)


@pytest.mark.parametrize(("label", "paid"), [("pay", True), ("refuse", False)])
def test_a_person_decides_about_a_large_one(tmp_path: Path, label: str, paid: bool) -> None:
    with TestClient(create_app(AgentRuntime(HERE / "config", data_dir=tmp_path, env={}))) as client:
        assert settled(client, submit(client, SMALL))["output"]["paid"] is True
        task = submit(client, LARGE)
        (question,) = settled(client, task)["waiting_for"]
        assert (question["stage"], question["edges"]) == ("review", ["pay", "refuse"])
        decision = {"decision": "answer", "answer": label}
        client.post(f"/v1/tasks/{task}/decide", json=decision).raise_for_status()
        while (ended := settled(client, task))["finished_at"] is None:
            time.sleep(0.02)
        assert ended["output"]["paid"] is paid
