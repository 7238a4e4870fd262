"""R1: the server is killed at each named place of a run with three tools: nothing lost, nothing twice."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

import pytest

from astromesh.durable.failpoints import PLACES, TOOL_INTENT, VARIABLE
from tests.reliability.calls import PATIENCE, call, events_of, until
from tests.reliability.payment_agent import LEASE, charges, config


@pytest.fixture(params=("sqlite", "postgres"))
def store(request) -> str:
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else ""


def killed_and_restarted(server, folder: Path) -> tuple[str, dict[str, Any]]:
    """Accepts a run, waits for the death, starts the server again without a failpoint; the run at rest."""
    asked = {"query": "Charge three times.", "session_id": "s-1"}
    try:
        run_id = call(f"{server.url}/v1/agents/teller/runs", asked)["run_id"]
    except (
        OSError,
        urllib.error.URLError,
    ):  # it died before it could answer: the run is on disk all the same
        run_id = ""
    server.wait(PATIENCE)
    server.disarm(VARIABLE)
    server.start()
    if not run_id:
        run_id = until(lambda: call(f"{server.url}/v1/runs")["runs"], "no run was found")[0]["run_id"]

    def rests() -> dict[str, Any] | None:
        run = call(f"{server.url}/v1/runs/{run_id}")
        return run if run["status"] not in ("queued", "running") else None

    return run_id, until(rests, "the run did not come to rest")


@pytest.mark.parametrize("place", [place for place in PLACES if place != TOOL_INTENT])
def test_a_run_survives_a_kill_at_each_place(place, store, tmp_path, mock_llm, forked_server):
    """With a tool that may be repeated every run completes, with both turns once and one last event.

    Such a tool has no intent.
    """
    folder = config(tmp_path / "config", mock_llm.url, "read", store)
    env = {"EFFECTS": str(tmp_path / "effects"), VARIABLE: place, **LEASE}
    server = forked_server(folder, env=env)
    run_id, run = killed_and_restarted(server, tmp_path)
    assert run["status"] == "completed", run
    assert run["result"]["metadata"]["tools_called"] == ["charge"] * 3
    events = events_of(server.url, run_id)
    assert [seq for seq, _, _ in events] == list(range(1, len(events) + 1))
    names = [name for _, name, _ in events]
    assert names.count("run.started") == names.count("run.completed") == 1
    assert [data["id"] for _, name, data in events if name == "tool.finished"] == [
        data["id"] for _, name, data in events if name == "tool.started"
    ]
    turns = call(f"{server.url}/v1/agents/teller/sessions/s-1")["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    effects = charges(tmp_path / "effects")
    assert set(effects) == {"round 0", "round 1", "round 2"}
    assert joined_text(events) == run["result"]["response"]


@pytest.mark.parametrize("place", ["tool_intent", "tool_done", "after_model"])
def test_what_must_not_happen_twice_happens_once_or_is_put_to_a_person(
    place, tmp_path, mock_llm, forked_server
):
    """A tool that is not idempotent is called once; where nobody knows, a person is asked, and may say no."""
    folder = config(tmp_path / "config", mock_llm.url, "write")
    env = {"EFFECTS": str(tmp_path / "effects"), VARIABLE: f"{place}:2", **LEASE}
    server = forked_server(folder, env=env)
    run_id, run = killed_and_restarted(server, tmp_path)
    if place == "tool_intent":
        assert run["status"] == "waiting"
        assert (run["waiting_for"]["kind"], run["waiting_for"]["name"]) == ("unknown_outcome", "charge")
        assert [a["run_id"] for a in call(f"{server.url}/v1/approvals")["approvals"]] == [run_id]
        call(f"{server.url}/v1/runs/{run_id}/resume", {"decision": "deny"})

    def ended() -> dict[str, Any] | None:
        found = call(f"{server.url}/v1/runs/{run_id}")
        return found if found["status"] == "completed" else None

    until(ended, "the run did not complete")
    effects = charges(tmp_path / "effects")
    assert len(effects) == len(set(effects)) == (2 if place == "tool_intent" else 3)
    unknown = [
        data for _, name, data in events_of(server.url, run_id)
        if name == "tool.finished" and data.get("error") == "unknown_outcome"
    ]  # fmt: skip
    assert len(unknown) == (1 if place == "tool_intent" else 0)


def joined_text(events: list[tuple[int, str, dict[str, Any]]]) -> str:
    """The text of the newest step, as a reader of the events has it."""
    text: dict[int, str] = {}
    for _, name, data in events:
        if name == "model.restarted":
            text.pop(data["step"], None)
        elif name == "model.delta" and data["role"] == "assistant":
            text[data["step"]] = text.get(data["step"], "") + data["content"]
    return text[max(text)]
