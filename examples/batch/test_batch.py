"""Every message is sorted, and a second call of the program begins no second run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime

HERE = Path(__file__).parent
MESSAGES = HERE / "messages.jsonl"


def test_every_message_is_sorted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    from sort_messages import results, submit

    with TestClient(create_app(AgentRuntime(HERE / "config", data_dir=tmp_path, env={}))) as client:
        runs = submit(client, MESSAGES)
        sorted_messages = dict(results(client, runs))
        again = submit(client, MESSAGES)
    assert sorted_messages == {
        "m1": {"team": "billing", "urgency": 3},
        "m2": {"team": "delivery", "urgency": 2},
        "m3": {"team": "other", "urgency": 1},
    }
    assert again == runs
    assert "sort_messages" in sys.modules
