"""Writes the data of this folder with the version whose data a newer one must open.

Run it in a checkout of that version: `PYTHONPATH=. .venv/bin/python PATH/old_data/generate.py`.
`tests/reliability/test_old_data.py` opens what it writes.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.platform.astromesh import ServerProcess
from tests.platform.model import MockModel
from tests.platform.postgres import BINARIES, PostgresServer

HERE = Path(__file__).parent
SCOPES = (
    "agents:run",
    "runs:read",
    "runs:decide",
    "sessions:read",
    "workflows:run",
    "workflows:read",
    "rag:query",
    "rag:write",
)
DOCUMENTS = {
    "tea": "# Tea\n\nSteep green tea at 80 degrees for two minutes.",
    "refunds": "# Refunds\n\nWe refund an order within thirty days.",
    "coffee": "# Coffee\n\nGrind the beans just before you brew.",
}
#: the process dies after its first tool call
FAILPOINT = {"ASTROMESH_FAILPOINT": "tool_done"}
#: as SQLite's dump writes a time
_TIME = re.compile(r"\b1\.\d{9,}e\+09\b")


class Client:
    """Calls one server with one API key."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self._key = url, key

    def text(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as found:
            return found.read().decode()

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return json.loads(self.text(path, body))

    def wait(self, path: str, arrived: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Calls the path until the response fits, for a minute."""
        for _ in range(1200):
            if arrived(found := self.call(path)):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{path} still returns {found}")


def fill(client: Client) -> dict[str, str]:
    """Makes some data of each kind; returns the ids that the test needs."""
    session = {"session_id": "s-1"}
    for query in ("What is owed?", "Charge it."):
        client.call("/v1/agents/teller/run", {"query": query, **session})
    completed = client.call("/v1/agents/teller/runs", {"query": "Charge it again.", **session})["run_id"]
    client.wait(f"/v1/runs/{completed}", lambda run: run["status"] == "completed")
    waiting = client.call("/v1/agents/payer/runs", {"query": "Pay.", "session_id": "s-2"})["run_id"]
    client.wait(f"/v1/runs/{waiting}", lambda run: run["status"] == "waiting")
    task = client.call("/v1/workflows/double/runs", {"input": {"amount": 21}})["task_id"]
    client.wait(f"/v1/tasks/{task}", lambda found: found["status"] == "success")
    documents = [{"id": name, "text": text} for name, text in DOCUMENTS.items()]
    client.call("/v1/rag/handbook/documents", {"documents": documents})
    time.sleep(2)  # a run's answer is added to semantic memory after the run
    return {"completed": completed, "waiting": waiting, "task": task}


def generate(target: Path, work: Path, env: Mapping[str, str]) -> None:
    """Fills the data folder of a server, and dumps its SQLite files to `target`."""
    work.mkdir()
    config = shutil.copytree(HERE / "config", work / "config")
    server = ServerProcess(work, config, env=env)
    server.data.mkdir()
    program = [str(Path(sys.executable).parent / "astromesh"), "keys", "create", "old", "--json"]
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    created = subprocess.run(
        [*program, *scopes, "--data", str(server.data)], stdout=subprocess.PIPE, cwd=work, check=True
    )
    key = json.loads(created.stdout)["token"]
    server.start()
    ids = fill(Client(server.url, key))
    server.terminate()
    dying = ServerProcess(work, config, env={**env, **FAILPOINT})
    dying.start()
    question = {"query": "Charge.", "session_id": "s-3"}
    ids["interrupted"] = Client(dying.url, key).call("/v1/agents/teller/runs", question)["run_id"]
    dying.wait()
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(server.data.rglob("*.db")):
        dump = target / file.relative_to(server.data).with_suffix(".sql")
        dump.parent.mkdir(parents=True, exist_ok=True)
        dump.write_text("".join(f"{statement}\n" for statement in dump_sqlite(file)))
    facts = {"key": key, "written_at": int(time.time()), **ids}
    (target / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")


def dump_sqlite(file: Path) -> Iterator[str]:
    """The statements that make the file again; a full-text index consists of the tables below it."""
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL %'").fetchall()
        indexes = tuple(f'INSERT INTO "{name}" ' for (name,) in rows)
        yield from (statement for statement in database.iterdump() if not statement.startswith(indexes))


def dump_postgres(url: str, target: Path) -> None:
    options = ["--no-owner", "--no-privileges", "--no-comments"]
    dump = subprocess.run(
        [BINARIES / "pg_dump", *options, url], stdout=subprocess.PIPE, text=True, check=True
    )
    skipped = ("--", "\\restrict", "\\unrestrict")
    lines = [line for line in dump.stdout.splitlines() if line and not line.startswith(skipped)]
    target.write_text("\n".join(lines) + "\n")


def clean(file: Path) -> None:
    """Shortens times, and takes out the name of this machine."""
    text = _TIME.sub(lambda time: f"{float(time[0]):.6f}", file.read_text())
    file.write_text(text.replace(socket.gethostname(), "host"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model, postgres = MockModel(work), PostgresServer()
        model.start()
        postgres.start()
        try:
            env = {"MODEL_URL": model.url}
            generate(HERE / "sqlite", work / "sqlite", env)
            env |= {"DATABASE_URL": postgres.url, "MEMORY": "postgres", "PASSAGES": "pgvector"}
            generate(HERE / "postgres", work / "postgres", env)
            dump_postgres(postgres.url, HERE / "postgres" / "server.sql")
        finally:
            model.close()
            postgres.close()
    for file in HERE.glob("*/**/*.sql"):
        clean(file)


if __name__ == "__main__":
    main()
