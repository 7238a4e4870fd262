"""R18: what an answer has promised is synced to the disk first, so that a loss of power takes nothing back.

A power cut is simulated: after each commit that SQLite syncs (`synchronous=FULL`), the file and its log are
copied. The copy is what survives at any later moment. A server that starts on the copy is the one after the
cut.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.keys import ApiKeyRequest, ApiKeyStore
from astromesh.access.scopes import Viewer
from astromesh.channels.base import DeliveryReport, InboundMessage
from astromesh.durable.base import IdempotencyKey
from astromesh.durable.leases import LEASE_SECONDS
from astromesh.durable.sqlite import SqliteInbox
from astromesh.errors import NotFound
from astromesh.plugins import Deps, Resources
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest, TaskRequest
from astromesh.runtime.runs import Decision
from astromesh.storage.sqlite import FILE, Database
from astromesh.testing import ManualClock, RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import CallerContext, ToolCall
from tests.integration.agents_folder import LaterClock, client_of, manifest, runtime_of, write

ME = Viewer("default", "anonymous")
PATIENCE = 30.0
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
PAYS = {"name": "pay", "type": "pay", "effect": "external"}
CALL = [ToolCall("call_1", "pay", '{"query": "rent"}')]


class Disk:
    """The disk below every SQLite file of a test.

    Attributes:
        survives: The folder with what a power cut would leave of the data folder.
        syncs: The number of synced commits.
    """

    def __init__(self, folder: Path) -> None:
        self.survives = folder / "survives"
        self.syncs = 0
        self._lock = threading.Lock()  # nobody reads half a copy

    def synced(self, file: Path) -> None:
        with self._lock:
            self.syncs += 1
            self.survives.mkdir(exist_ok=True)
            for suffix in ("", "-wal"):
                part = file.with_name(file.name + suffix)
                if part.exists():
                    shutil.copyfile(part, self.survives / part.name)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Reads what survives. Nothing survives where nothing was synced."""
        with self._lock:
            if not (self.survives / FILE).exists():
                return []
            with sqlite3.Connection(self.survives / FILE) as connection:
                found = connection.execute(query, values).fetchall()
            connection.close()
            return found


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Disk:
    made = Disk(tmp_path)

    class Watched(sqlite3.Connection):
        writes = False

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            done = super().execute(statement, *values)
            if statement.startswith("BEGIN"):
                self.writes = statement == "BEGIN IMMEDIATE"
            full = self.writes and super().execute("PRAGMA synchronous").fetchone()[0] == 2
            if statement == "COMMIT" and full:
                made.synced(Path(super().execute("PRAGMA database_list").fetchone()[2]))
            return done

    def connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        return Watched(*arguments, **named)

    monkeypatch.setattr(sqlite3, "connect", connect)
    return made


@asynccontextmanager
async def working(
    folder: Path, provider: ScriptedProvider, tool: RecordingTool | None = None, **more: Any
) -> AsyncIterator[AgentRuntime]:
    plugins = {"tools": {"pay": plugin_of(tool or RecordingTool("pay", "paid", parameters=QUERY))}}
    runtime = runtime_of(folder, provider, plugins=plugins, **more)
    await runtime.bootstrap()
    await runtime.durable.start()
    try:
        yield runtime
    finally:
        await runtime.close(grace=0.0)


async def until_status(runtime: AgentRuntime, run_id: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while (run := await runtime.runs.get(run_id, ME))["status"] not in statuses:
            await asyncio.sleep(0.01)
    return run


async def accept(runtime: AgentRuntime, key: IdempotencyKey | None = None) -> str:
    row = await runtime.runner.accept(runtime.agent("helper"), RunRequest("Pay", "s-1"), key=key)
    return row.run_id


def after_the_cut(tmp_path: Path, disk: Disk) -> Path:
    """A folder with the same agents and the data that survived."""
    folder = tmp_path / "after"
    shutil.copytree(tmp_path / "agents", folder / "agents")
    shutil.copytree(disk.survives, folder / "data")
    return folder


async def test_an_accepted_run_is_synced_before_the_answer(tmp_path, disk):
    async with working(write(tmp_path, manifest()), ScriptedProvider("hello")) as runtime:
        run_id = await accept(runtime)
        assert disk.rows("SELECT run_id FROM runs") == [(run_id,)]
        await until_status(runtime, run_id, "completed")


async def test_an_intent_is_synced_before_the_call_and_a_person_is_asked_after_the_cut(tmp_path, disk):
    """The power fails while the tool is called: the next server does not call it a second time by itself."""
    seen: list[Any] = []

    async def pay(query: str) -> str:
        seen.append(disk.rows("SELECT state FROM run_steps WHERE kind = 'tool'"))
        await asyncio.Event().wait()
        return "never"

    folder = write(tmp_path, manifest(tools=[PAYS]))
    async with working(folder, ScriptedProvider(CALL), RecordingTool("pay", pay, parameters=QUERY)) as one:
        run_id = await accept(one)
        async with asyncio.timeout(PATIENCE):
            while not seen:
                await asyncio.sleep(0.01)
        after = after_the_cut(tmp_path, disk)
    assert seen == [[("intent",)]]
    again = RecordingTool("pay", "paid", parameters=QUERY)
    clock = LaterClock()
    clock.later = LEASE_SECONDS  # of the server that is gone
    async with working(after, ScriptedProvider("done", repeat=True), again, clock=clock) as two:
        run = await until_status(two, run_id, "waiting", "completed", "failed")
    assert (run["status"], again.calls) == ("waiting", [])


async def test_an_approval_is_synced_before_its_answer(tmp_path, disk):
    paid = RecordingTool("pay", "paid", parameters=QUERY)
    folder = write(tmp_path, manifest(tools=[{**PAYS, "approval": "required"}]))
    async with working(folder, ScriptedProvider(CALL, "done"), paid) as runtime:
        run_id = await accept(runtime)
        await until_status(runtime, run_id, "waiting")
        await runtime.runs.resume(run_id, ME, CallerContext(), Decision("approve"))
        found = disk.rows("SELECT state FROM run_steps WHERE kind = 'wait'")
        assert found == [("done",)]
        await until_status(runtime, run_id, "completed")


async def test_an_answered_cancel_is_synced(tmp_path, disk):
    async def hangs(_: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    async with working(write(tmp_path, manifest()), ScriptedProvider(hangs)) as runtime:
        run_id = await accept(runtime)
        await until_status(runtime, run_id, "running")
        await runtime.runs.cancel(run_id, ME)
        await until_status(runtime, run_id, "cancelled")
        assert disk.rows("SELECT status FROM runs") == [("cancelled",)]


async def test_the_row_of_an_idempotency_key_is_synced(tmp_path, disk):
    """A plain run with a key is not executed a second time after the cut."""
    folder = write(tmp_path, manifest())
    body = {"query": "Hello", "session_id": "s-1"}
    provider = ScriptedProvider("first", "second")
    async with client_of(runtime_of(folder, provider)) as client:
        one = await client.post("/v1/agents/helper/run", json=body, headers={"Idempotency-Key": "k-1"})
        assert one.json()["response"] == "first"
        after = after_the_cut(tmp_path, disk)
    async with client_of(runtime_of(after, ScriptedProvider("second"))) as client:
        two = await client.post("/v1/agents/helper/run", json=body, headers={"Idempotency-Key": "k-1"})
    assert two.json()["response"] == "first"


async def test_an_accepted_task_and_its_end_are_synced(tmp_path, disk):
    place = tmp_path / "workflows" / "letters"
    place.mkdir(parents=True)
    nodes = [
        {"id": "in", "kind": "deterministic", "role": "start", "default": True, "context": "none"},
        {"id": "out", "kind": "deterministic", "role": "exit", "context": "none"},
    ]
    workflow = {"version": 1, "workflow": "letters", "nodes": nodes}
    workflow["edges"] = [{"from": "in", "to": "out"}]
    (place / "workflow.yaml").write_text(yaml.safe_dump(workflow))
    async with working(write(tmp_path, manifest()), ScriptedProvider("x")) as runtime:
        row = await runtime.workflows.accept("letters", TaskRequest({"n": 1}))
        assert disk.rows("SELECT task_id FROM tasks") == [(row.task_id,)]
        async with asyncio.timeout(PATIENCE):
            while disk.rows("SELECT status FROM tasks") != [("success",)]:
                await asyncio.sleep(0.01)


async def test_webhook_messages_and_what_was_sent_are_synced(tmp_path, disk):
    deps = Deps(data_dir=tmp_path, resources=Resources())
    inbox = await SqliteInbox.open(SqliteInbox.Options(), deps)
    try:
        message = InboundMessage("whatsapp", "m-1", "q-1", "default", "ada", b"+1", b"hi", 0.5, 0.5)
        await inbox.put([message])
        assert disk.rows("SELECT count(*) FROM inbox_letters") == [(1,)]
        before = disk.syncs
        await inbox.take("me", ["whatsapp"], 1.0, 100.0, 10)
        assert disk.syncs == before
        assert await inbox.begin("q-1", "me", 1)
        assert await inbox.answer("q-1", "me", b"reply", 1)
        assert await inbox.record_sent("q-1", "me", 1, DeliveryReport("r-1", 1, 2.0))
        assert disk.syncs == before + 3
    finally:
        await deps.resources.close()


async def test_a_revoked_key_stays_revoked(tmp_path, disk):
    async with Database(tmp_path / FILE) as database:
        store = await ApiKeyStore.open(database, ManualClock())
        key, _ = await store.create(ApiKeyRequest("ops", frozenset({"runs"})))
        await store.revoke(key.id)
        assert disk.rows("SELECT count(*) FROM api_keys WHERE revoked_at > 0") == [(1,)]
        with pytest.raises(NotFound):
            await store.revoke("unknown")


async def test_turns_of_plain_runs_are_not_synced(tmp_path, disk):
    """They are not promised: a sync for each answer would cost more than the answer."""
    folder = write(tmp_path, manifest(memory={"conversational": {"backend": "sqlite"}}))
    async with client_of(runtime_of(folder, ScriptedProvider("a", repeat=True))) as client:
        for query in ("one", "two", "three", "four"):
            body = {"query": query, "session_id": "s-1"}
            assert (await client.post("/v1/agents/helper/run", json=body)).status_code == 200
        assert disk.syncs <= 1  # who looks for schedules opens the store of runs meanwhile


async def test_normal_syncs_nothing(tmp_path, disk):
    (tmp_path / "runtime.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "astromesh/v1",
                "kind": "RuntimeConfig",
                "spec": {"storage": {"sqlite": {"synchronous": "normal"}}},
            }
        )
    )
    async with working(write(tmp_path, manifest()), ScriptedProvider("hello")) as runtime:
        run_id = await accept(runtime)
        await until_status(runtime, run_id, "completed")
    assert disk.syncs == 0
