"""A store that is locked while the server starts breaks no agent for good."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

SQLITE = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
ASK = {"query": "q", "session_id": "s"}


async def test_an_agent_whose_store_was_locked_at_the_start_works_once_the_lock_is_gone(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, manifest(memory=SQLITE))
    (tmp_path / "data").mkdir()
    with sqlite3.connect(tmp_path / "data" / "astromesh.db", isolation_level=None) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN EXCLUSIVE")
        async with client_of(runtime_of(folder, ScriptedProvider("hello"))) as client:
            locked = await client.post("/v1/agents/helper/run", json=ASK)
            other.execute("COMMIT")
            for _ in range(100):
                healed = await client.post("/v1/agents/helper/run", json=ASK)
                if healed.status_code == 200:
                    break
                await asyncio.sleep(0.1)
    other.close()
    assert (locked.status_code, locked.json()["code"]) == (503, "agent_unavailable")
    assert healed.json()["response"] == "hello"
