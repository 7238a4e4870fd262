"""Messages of one session that two servers accept in turn are answered in the order of acceptance."""

from __future__ import annotations

import signal

from tests.reliability.calls import call, until
from tests.reliability.payment_agent import LEASE, config

RUNS = 10
PATIENCE = 60.0


def turns(url: str) -> list[dict]:
    return call(f"{url}/v1/agents/teller/sessions/s-1")["turns"]


def accept(servers, count: int, first: int = 0) -> list[str]:
    accepted = []
    for n in range(first, first + count):
        url = servers[n % len(servers)].url
        body = {"query": f"message {n}", "session_id": "s-1"}
        accepted.append(call(f"{url}/v1/agents/teller/runs", body)["run_id"])
    return accepted


def ended(url: str, run_ids: list[str]) -> bool:
    return all(call(f"{url}/v1/runs/{name}")["status"] == "completed" for name in run_ids)


def in_order(url: str) -> bool:
    said = turns(url)
    asked = [turn["content"] for turn in said if turn["role"] == "user"]
    assert [turn["role"] for turn in said] == ["user", "assistant"] * RUNS
    assert asked == [f"message {n}" for n in range(RUNS)]
    return True


def test_ten_runs_of_one_session_over_two_servers_are_in_order_though_one_dies(
    tmp_path, mock_llm, forked_server, postgres_database
):
    """Accepted in turn by two processes over one database; the survivor takes over what was under way."""
    folder = config(tmp_path / "config", mock_llm.url, "read", postgres_database)
    env = {"EFFECTS": str(tmp_path / "effects"), **LEASE}
    dead, alive = (forked_server(folder, env=env) for _ in range(2))
    run_ids = accept([dead, alive], RUNS)
    dead.signal(signal.SIGKILL)
    dead.wait(PATIENCE)
    until(lambda: ended(alive.url, run_ids), "the runs did not complete")
    assert in_order(alive.url)
