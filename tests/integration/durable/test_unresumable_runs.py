"""A process that cannot work on what was accepted before it says why."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from structlog.testing import capture_logs

from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write


async def test_a_database_of_a_newer_astromesh_is_told_at_the_start(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper"))
    async with runtime_of(tmp_path, ScriptedProvider()) as runtime:
        await runtime.durable.open()
        file = runtime.data_dir / "astromesh.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE schemas SET version = 99 WHERE name = 'runs'")
        database.commit()
    with capture_logs() as lines:
        async with runtime_of(tmp_path, ScriptedProvider()) as runtime:
            runtime.resume_pending()
            async with asyncio.timeout(20):
                while not any(line["event"] == "runs_not_taken_up" for line in lines):
                    await asyncio.sleep(0.01)
    (told,) = (line for line in lines if line["event"] == "runs_not_taken_up")
    assert told["log_level"] == "error" and "newer astromesh" in told["error"]
