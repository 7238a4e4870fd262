"""The page's origin may call the agent, and gets its answer in pieces of AG-UI."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime

HERE = Path(__file__).parent
PAGE = "http://127.0.0.1:8080"


def test_the_page_gets_the_answer(tmp_path: Path) -> None:
    message = {"id": "m1", "role": "user", "content": "What is the oldest piece here?"}
    body = {"threadId": "tab-1", "runId": "r1", "messages": [message]}
    runtime = AgentRuntime(HERE / "config", data_dir=tmp_path, env={})
    with TestClient(create_app(runtime, cors_origins=[PAGE]), base_url="http://127.0.0.1:8000") as client:
        answer = client.post("/v1/agents/guide/agui", json=body, headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    text = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert text == "The oldest piece is a clay bowl in room 2, about 7,000 years old."
