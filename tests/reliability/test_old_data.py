"""A data folder and a PostgreSQL schema of an earlier version: the server migrates them when it starts.

`old_data/generate.py` wrote them. Their times are moved, so that nothing has expired.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerFactory
from tests.platform.model import MockModel
from tests.platform.postgres import BINARIES, execute
from tests.reliability.calls import PATIENCE
from tests.reliability.old_data.generate import Client
from tests.reliability.payment_agent import LEASE

OLD = Path(__file__).parent / "old_data"
#: a time of the dump: ten digits, and perhaps a fraction
_TIME = re.compile(r"\b1\d{9}(?:\.\d+)?\b")
#: seconds around the moment of writing within which a number is a time
_BEFORE, _AFTER = 3600, 30 * 86400


def moved(dump: str, written_at: float) -> str:
    """The dump as if it was written a minute ago, so that the leases of its process have ended."""
    later = time.time() - 60 - written_at

    def move(found: re.Match[str]) -> str:
        number = float(found[0])
        return f"{number + later:.6f}" if -_BEFORE < number - written_at < _AFTER else found[0]

    return _TIME.sub(move, dump)


def restore(folder: Path, data: Path, written_at: float, url: str) -> None:
    for dump in folder.rglob("*.sql"):
        script = moved(dump.read_text(), written_at)
        if dump.name == "server.sql":
            command = [str(BINARIES / "psql"), url, "-Xq", "-v", "ON_ERROR_STOP=1"]
            subprocess.run(command, input=script, text=True, check=True, stdout=subprocess.DEVNULL)
            continue
        file = data / dump.relative_to(folder).with_suffix(".db")
        file.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(file)
        database.executescript(script)
        database.close()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.timeout(PATIENCE * 2)
def test_the_data_of_the_version_before_is_whole(
    store: str,
    tmp_path: Path,
    mock_llm: MockModel,
    server_process: ServerFactory,
    request: pytest.FixtureRequest,
    subtests: pytest.Subtests,
) -> None:
    facts = json.loads((OLD / store / "facts.json").read_text())
    url = request.getfixturevalue("postgres_database") if store == "postgres" else ""
    restore(OLD / store, tmp_path / "data", facts["written_at"], url)
    config = shutil.copytree(OLD / "config", tmp_path / "config")
    env = {"ASTROMESH_DATA_DIR": str(tmp_path / "data"), "MODEL_URL": mock_llm.url, **LEASE}
    if url:
        env |= {"DATABASE_URL": url, "MEMORY": "postgres", "PASSAGES": "pgvector"}
    client = Client(server_process(config, env=env).url, facts["key"])

    with subtests.test("a completed run and its events"):
        run = client.call(f"/v1/runs/{facts['completed']}")
        assert (run["status"], run["result"]["response"].strip()) == ("completed", "Both are done.")
        events = client.text(f"/v1/runs/{facts['completed']}/events")
        numbers = [int(number) for number in re.findall(r"^id: (\d+)$", events, re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert re.findall(r"^event: (.*)$", events, re.MULTILINE)[-1] == "run.completed"
    with subtests.test("plain runs"):
        listed = client.call("/v1/runs?agent=teller")["runs"]
        assert [run["status"] for run in listed if run["session_id"] == "s-1"] == ["completed"] * 3
    with subtests.test("a run that waits for approval"):
        [approval] = client.call("/v1/approvals")["approvals"]
        assert (approval["run_id"], approval["arguments"]) == (facts["waiting"], {"query": "round 0"})
        client.call(f"/v1/runs/{facts['waiting']}/resume", {"decision": "approve"})
        path = f"/v1/runs/{facts['waiting']}"
        run = client.wait(path, lambda found: found["status"] not in ("waiting", "queued", "running"))
        assert (run["status"], run["result"]["response"].strip()) == ("completed", "Paid.")
    with subtests.test("a session, and semantic and episodic memory"):
        question = {"query": "Are both done?", "session_id": "s-1"}
        run_id = client.call("/v1/agents/teller/run", question)["run_id"]
        events = client.text(f"/v1/runs/{run_id}/events")
        [data] = re.findall(r"^event: memory.loaded\ndata: (.*)$", events, re.MULTILINE)
        loaded = json.loads(data)
        assert (loaded["turns"], loaded["semantic"], loaded["episodic"]) == (6, 2, 6)
        turns = client.call("/v1/agents/teller/sessions/s-1")["turns"]
        questions = [turn["content"] for turn in turns if turn["role"] == "user"]
        assert questions == ["What is owed?", "Charge it.", "Charge it again.", "Are both done?"]
        shown = next(body for body in reversed(mock_llm.requests()) if "messages" in body)["messages"]
        assert [m["content"] for m in shown if m["role"] == "user"] == questions
    with subtests.test("a Task"):
        task = client.call(f"/v1/tasks/{facts['task']}")
        assert (task["status"], task["output"]) == ("success", {"amount": 42})
        trace: dict[str, Any] = client.call(f"/v1/tasks/{facts['task']}/trace")
        assert [entry["node_id"] for entry in trace["trace"]] == ["take", "double", "done"]
    with subtests.test("knowledge"):
        query = {"query": "How long do I steep tea?", "top_k": 1}
        [passage] = client.call("/v1/rag/handbook/query", query)["passages"]
        assert (passage["document"], passage["text"][-12:]) == ("tea", "two minutes.")
    with subtests.test("a run whose process died behind its first tool"):
        run = client.wait(f"/v1/runs/{facts['interrupted']}", lambda found: found["status"] != "running")
        assert (run["status"], run["result"]["response"].strip()) == ("completed", "Both are done.")
    if url:
        with subtests.test("the schema of the library that dispatched runs"):
            schemas = (
                "select schema_name from information_schema.schemata where schema_name like 'astromesh%'"
            )
            assert execute(url, schemas) == "astromesh"
