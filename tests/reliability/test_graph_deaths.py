"""Servers killed at each named place of a graph's run: finished nodes never run again, no path changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astromesh.durable.failpoints import NODE_INTENT, VARIABLE
from tests.platform.model import MockModel
from tests.reliability.calls import call, events_of, until
from tests.reliability.payment_agent import LEASE, charges, graph_config
from tests.reliability.test_kill_at_failpoints import killed_and_restarted


@pytest.fixture(params=("sqlite", "postgres"))
def store(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else ""


@pytest.mark.parametrize(
    "place", ["before_model:2", "after_model", "node_intent:2", "node_done", "node_done:3"]
)
def test_a_graph_goes_on_where_it_was_and_charges_once(
    place: str, store: str, tmp_path: Path, mock_llm: MockModel, forked_server: Any
) -> None:
    """A random way is taken once; a charge that may have happened is put to a person."""
    folder = graph_config(tmp_path / "config", mock_llm.url, store)
    env = {"EFFECTS": str(tmp_path / "effects"), VARIABLE: place, **LEASE}
    server = forked_server(folder, env=env)
    run_id, run = killed_and_restarted(server, tmp_path)
    asks = place.startswith(NODE_INTENT)
    if asks:
        waits = run["waiting_for"]
        assert (run["status"], waits["kind"], waits["name"]) == ("waiting", "unknown_outcome", "charge1")
        call(f"{server.url}/v1/runs/{run_id}/resume", {"decision": "approve"})

    def ended() -> dict[str, Any] | None:
        found = call(f"{server.url}/v1/runs/{run_id}")
        return found if found["status"] == "completed" else None

    run = until(ended, "the run did not complete")
    assert charges(tmp_path / "effects") == ["round 0", "round 1", "round 2"]
    events = events_of(server.url, run_id)
    started = [data["node"] for _, name, data in events if name == "node.started"]
    assert (started[0], started[2:]) == ("pick", ["charge0", "charge1", "charge2", "say"])
    assert len({"pa", "pb"} & set(started)) == 1
    usage = [data["usage"]["input_tokens"] for _, name, data in events if name == "model.finished"]
    assert run["result"]["metadata"]["usage"]["input_tokens"] == sum(usage)
    assert [seq for seq, _, _ in events] == list(range(1, len(events) + 1))
