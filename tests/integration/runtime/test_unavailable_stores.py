"""What could not be opened at the start is named, told once, tried again, and no fault of a manifest."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from structlog.testing import capture_logs

from astromesh.errors import StoreUnavailable
from astromesh.memory.backends.in_memory import InMemoryConversations, InMemoryOptions
from astromesh.plugins import Deps
from astromesh.runtime.bootstrap import MAX_RETRY_SECONDS, RETRY_SECONDS
from astromesh.testing import ManualClock, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.knowledge.rag_files import pipeline_file

SQLITE = {"conversational": {"backend": "sqlite", "strategy": "sliding_window"}}
ASK = {"query": "q", "session_id": "s"}
RAG = [{"name": "kb", "type": "rag", "pipeline": "k"}]


async def test_a_file_that_is_no_database_is_named_and_the_server_is_not_ready(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(memory=SQLITE))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "astromesh.db").write_bytes(b"\x93noise" * 4000)
    async with client_of(runtime_of(folder, ScriptedProvider("hello"))) as client:
        ready = await client.get("/health/ready")
        answer = await client.post("/v1/agents/helper/run", json=ASK)
        (listed,) = (await client.get("/v1/agents")).json()["agents"]
    assert (ready.status_code, ready.json()["status"]) == (503, "not_ready")
    assert ready.json()["checks"] == {
        "store:conversation_stores:sqlite": "overloaded",
        "provider:scripted/test-model": "ok",
    }
    assert ready.json()["agents_unavailable"] == ["helper"]
    why = "The database astromesh.db is not a SQLite database; move the file away."
    assert (answer.status_code, answer.json()["code"]) == (503, "agent_unavailable")
    assert answer.json()["detail"] == f"The agent 'helper' cannot run now: {why}"
    assert listed["errors"] == [why]


async def test_a_cloud_without_credentials_is_skipped_and_another_model_answers(tmp_path: Path) -> None:
    cloud = {"provider": "vertex", "model": "gemini-2.5-flash", "credentials_file": "absent.json"}
    other = {"provider": "scripted", "model": "test-model"}
    agents = (
        manifest(model={"primary": cloud, "fallback": [other]}),
        manifest("lonely", model={"primary": cloud}),
    )
    with capture_logs() as logs:
        async with client_of(runtime_of(write(tmp_path, *agents), ScriptedProvider("hello"))) as client:
            ready = (await client.get("/health/ready")).json()
            answer = (await client.post("/v1/agents/helper/run", json=ASK)).json()
            listed = {one["name"]: one for one in (await client.get("/v1/agents")).json()["agents"]}
    assert answer["response"] == "hello"
    assert ready["agents_unavailable"] == ["lonely"]
    assert "absent.json" in str(listed["lonely"]["errors"])
    skipped = [one for one in logs if one["event"] == "provider_skipped"]
    assert {(one["agent"], one["provider"]) for one in skipped} >= {("helper", "vertex/gemini-2.5-flash")}


class Away(InMemoryConversations):
    """A store that opens once it has failed for each of these reasons."""

    reasons: list[str]

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        if cls.reasons:
            raise StoreUnavailable(cls.reasons.pop(0))
        return await super().open(options, deps)


async def test_what_cannot_be_opened_is_told_once_for_each_reason_and_tried_ever_more_rarely(
    tmp_path: Path,
) -> None:
    class Store(Away):
        reasons = ["locked"] * 12 + ["gone"] * 2

    memory = {"conversational": {"backend": "away", "strategy": "sliding_window"}}
    folder, clock = write(tmp_path, manifest(memory=memory)), ManualClock()
    plugins = {"conversation_stores": {"away": Store}}
    runtime = runtime_of(folder, ScriptedProvider("hi"), plugins=plugins, clock=clock)
    with capture_logs() as logged:
        async with asyncio.timeout(60), client_of(runtime) as client:
            before = await client.get("/health/ready")
            while "helper" not in runtime.agents:
                clock.advance(RETRY_SECONDS)
                await asyncio.sleep(0)
            after = await client.get("/health/ready")
            answer = await client.post("/v1/agents/helper/run", json=ASK)
    told = [(one["event"], one.get("error")) for one in logged if one.get("agent") == "helper"]
    assert told[:3] == [
        ("agent_unavailable", "locked"),
        ("agent_unavailable", "gone"),
        ("agent_available", None),
    ]
    waits = [wait for wait in clock.slept if RETRY_SECONDS <= wait < MAX_RETRY_SECONDS]
    assert waits[0] == RETRY_SECONDS
    assert waits == sorted(waits)
    assert MAX_RETRY_SECONDS in clock.slept
    assert (before.status_code, after.status_code, answer.status_code) == (503, 200, 200)
    assert before.json()["checks"]["store:conversation_stores:away"] == "overloaded"
    assert after.json()["agents_unavailable"] == []


async def test_a_pipeline_that_cannot_be_opened_is_named_where_it_is_needed(tmp_path: Path) -> None:
    """Both agents work once its index can be opened."""
    folder = write(tmp_path, manifest(tools=RAG), manifest("plain"))
    pipeline_file(folder, "k", sources=[{"path": "../docs"}])
    (folder / "docs").mkdir()
    index = tmp_path / "data" / "rag" / "k.db"
    index.parent.mkdir(parents=True)
    index.write_bytes(b"\x93noise" * 4000)
    clock = ManualClock()
    runtime = runtime_of(folder, ScriptedProvider("hello", "hello"), clock=clock)
    async with asyncio.timeout(60), client_of(runtime) as client:
        ready = await client.get("/health/ready")
        needs = await client.post("/v1/agents/helper/run", json=ASK)
        plain = await client.post("/v1/agents/plain/run", json=ASK)
        index.unlink()
        while "helper" not in runtime.agents:
            clock.advance(RETRY_SECONDS)
            await asyncio.sleep(0.001)
        healed = await client.get("/health/ready")
    assert (ready.status_code, plain.status_code, healed.status_code) == (503, 200, 200)
    assert ready.json()["checks"]["store:rag:k"] not in ("ok", "")
    said = "The agent 'helper' cannot run now: The RAG pipeline `k` could not be opened: "
    assert needs.json()["detail"].startswith(said)
    assert "is not a SQLite database" in needs.json()["detail"]


async def test_an_agent_that_its_own_file_breaks_leaves_the_server_ready_while_others_work(
    tmp_path: Path,
) -> None:
    broken = manifest("broken", orchestration={"patern": "react"})
    async with client_of(runtime_of(write(tmp_path / "a", manifest(), broken), ScriptedProvider())) as client:
        some = await client.get("/health/ready")
    async with client_of(runtime_of(write(tmp_path / "b", broken), ScriptedProvider())) as client:
        none = await client.get("/health/ready")
        answer = await client.post("/v1/agents/broken/run", json=ASK)
    assert (some.status_code, some.json()["agents_unavailable"]) == (200, ["broken"])
    assert (none.status_code, none.json()["agents_unavailable"]) == (503, ["broken"])
    assert "has 1 fault in its manifest" in answer.json()["detail"]
