"""A store that is locked while the server starts breaks no agent for good."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Self

from astromesh.memory.backends.in_memory import InMemoryConversations, InMemoryOptions
from astromesh.memory.backends.sqlite import SqliteConversations, SqliteOptions
from astromesh.plugins import Deps
from astromesh.runtime.bootstrap import RETRY_SECONDS
from astromesh.testing import ManualClock, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.platform.stores import impatient

SQLITE = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
ASK = {"query": "q", "session_id": "s"}


class Impatient(SqliteConversations):
    @classmethod
    async def open(cls, options: SqliteOptions, deps: Deps) -> Self:
        return await super().open(options, await impatient(deps))


async def test_an_agent_whose_store_was_locked_at_the_start_works_once_the_lock_is_gone(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, manifest(memory=SQLITE))
    (tmp_path / "data").mkdir()
    with closing(sqlite3.connect(tmp_path / "data" / "astromesh.db", isolation_level=None)) as other, other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN EXCLUSIVE")
        clock, stores = ManualClock(), {"conversation_stores": {"sqlite": Impatient}}
        runtime = runtime_of(folder, ScriptedProvider("hello"), clock=clock, plugins=stores)
        async with client_of(runtime) as client, asyncio.timeout(60):
            locked = await client.post("/v1/agents/helper/run", json=ASK)
            other.execute("COMMIT")
            while (healed := await client.post("/v1/agents/helper/run", json=ASK)).status_code != 200:
                clock.advance(RETRY_SECONDS)
                await asyncio.sleep(0.01)
    assert (locked.status_code, locked.json()["code"]) == (503, "agent_unavailable")
    assert healed.json()["response"] == "hello"


class Meeting(InMemoryConversations):
    """A store that opens once two agents wait for theirs."""

    both = asyncio.Event()
    waiting = 0

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        cls.waiting += 1
        if cls.waiting == 2:
            cls.both.set()
        await cls.both.wait()
        return await super().open(options, deps)


async def test_agents_are_opened_at_once(tmp_path: Path) -> None:
    """Where stores do not answer, a start waits for them together; the agents keep their order."""
    memory = {"conversational": {"backend": "meeting", "strategy": "sliding_window"}}
    write(tmp_path, manifest("ann", memory=memory), manifest("bob", memory=memory))
    runtime = runtime_of(
        tmp_path, ScriptedProvider("hello"), plugins={"conversation_stores": {"meeting": Meeting}}
    )
    async with asyncio.timeout(60), runtime:
        assert list(runtime.agents) == ["ann", "bob"]


async def test_every_store_is_asked_whether_it_is_ready(tmp_path: Path) -> None:
    """Two files of one backend are two stores; two agents that share a file share its check."""
    files = {"ann": "a.db", "bob": "b.db", "cid": "b.db"}
    agents = [
        manifest(name, memory={"conversational": {**SQLITE["conversational"], "path": path}})
        for name, path in files.items()
    ]
    async with runtime_of(write(tmp_path, *agents), ScriptedProvider("hello")) as runtime:
        stores = {n: ping for n, ping in runtime.state.checks.items() if n.startswith("store:")}
    assert list(stores) == ["store:conversation_stores:sqlite", "store:conversation_stores:sqlite:2"]
    assert len(set(stores.values())) == 2
