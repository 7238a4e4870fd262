"""R14: a server ends among a hundred runs. R7: the database goes away under a whole server."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.reliability.calls import PATIENCE, call, until
from tests.reliability.payment_agent import LEASE, agent

RUNS = 100


def folder_of(folder: Path, endpoint: str, model: str, url: str) -> Path:
    """One agent without tools, over this database."""
    teller = agent(endpoint, "read", "postgres")
    teller["spec"]["model"]["primary"]["model"] = model
    del teller["spec"]["tools"]
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "teller.agent.yaml").write_text(yaml.safe_dump(teller))
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
    (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": url}}}))
    return folder


def accepted(url: str, session: str) -> str:
    body = {"query": "Hello", "session_id": session}
    run_id: str = call(f"{url}/v1/agents/teller/runs", body)["run_id"]
    return run_id


class Refused(Exception):
    """What a server answered instead of 202."""

    def __init__(self, error: urllib.error.HTTPError) -> None:
        self.status, self.retry_after = error.code, error.headers.get("retry-after")
        self.code = json.loads(error.read()).get("code")


def tried(url: str, session: str) -> str:
    """Raises: Refused."""
    try:
        return accepted(url, session)
    except urllib.error.HTTPError as error:
        raise Refused(error) from error


def all_complete(url: str, run_ids: list[str]) -> bool:
    listed = call(f"{url}/v1/runs?status=completed&limit=1000")["runs"]
    return set(run_ids) <= {run["run_id"] for run in listed}


def roles(url: str, session: str) -> list[str]:
    turns = call(f"{url}/v1/agents/teller/sessions/{session}")["turns"]
    return [turn["role"] for turn in turns]


def test_sigterm_among_a_hundred_runs_loses_none(tmp_path, mock_llm, forked_server, postgres_database):
    """New requests get 503, what runs is finished, the rest is another server's; each is answered once."""
    folder = folder_of(tmp_path / "config", mock_llm.url, "mock+latency=1000", postgres_database)
    leaving, staying = (forked_server(folder, env=LEASE) for _ in range(2))
    run_ids = [accepted(leaving.url, f"s-{n}") for n in range(RUNS)]
    leaving.signal(signal.SIGTERM)

    def refused() -> Refused | None:
        try:
            run_ids.append(tried(leaving.url, f"s-{len(run_ids)}"))
        except Refused as answer:
            return answer
        return None

    answer = until(refused, "no new run was refused")
    assert (answer.status, answer.code) == (503, "shutting_down")
    assert answer.retry_after
    assert leaving.wait(PATIENCE) == 0
    until(lambda: all_complete(staying.url, run_ids), "not all runs completed")
    assert all(roles(staying.url, f"s-{n}") == ["user", "assistant"] for n in range(len(run_ids)))


class Client(threading.Thread):
    """Sends messages until it is told to stop, each to a session of its own."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self.url, self.prefix = url, name
        self.accepted: dict[str, str] = {}
        self.refused: list[Refused] = []
        self.broken: list[OSError] = []
        self.going = True

    def run(self) -> None:
        while self.going:
            session = f"{self.prefix}-{len(self.accepted) + len(self.refused)}"
            try:
                self.accepted[tried(self.url, session)] = session
            except Refused as answer:
                self.refused.append(answer)
            except OSError as error:  # a server that hangs or hangs up
                self.broken.append(error)
            time.sleep(0.01)


def more(clients: list[Client], count: int = 5) -> None:
    """Returns when so many further runs were accepted."""
    before = sum(len(client.accepted) for client in clients)
    until(lambda: sum(len(c.accepted) for c in clients) >= before + count, "no more runs were accepted")


def test_a_database_that_comes_and_goes_costs_no_accepted_run(
    tmp_path: Path, mock_llm: Any, forked_server: Any, postgres_server: Any, postgres_database: str
) -> None:
    """Backends cut off twice, the server away once: 202 or 503, and every 202 is answered."""
    server = forked_server(folder_of(tmp_path / "config", mock_llm.url, "mock", postgres_database), env=LEASE)
    clients = [Client(server.url, name) for name in ("a", "b", "c")]
    for client in clients:
        client.start()
    for _ in range(2):
        more(clients)
        postgres_server.terminate_backends()
    more(clients)
    postgres_server.stop()
    time.sleep(0.3)
    postgres_server.start()
    more(clients)
    for client in clients:
        client.going = False
    for client in clients:
        client.join(PATIENCE)
    assert [error for client in clients for error in client.broken] == []
    refused = [answer for client in clients for answer in client.refused]
    assert {answer.status for answer in refused} <= {503}
    assert all(answer.retry_after for answer in refused)
    sessions = {run_id: session for client in clients for run_id, session in client.accepted.items()}
    until(lambda: all_complete(server.url, list(sessions)), "accepted, and lost")
    assert all(roles(server.url, session) == ["user", "assistant"] for session in sessions.values())
    assert call(f"{server.url}/health/ready")["status"] == "ready"
