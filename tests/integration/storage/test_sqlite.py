"""The SQLite layer against real files: group commit, faults, locks, full disks, crashes, migrations."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import NOT_DONE, ConfigError, InvalidInput, StoreError, StoreUnavailable
from astromesh.memory.backends.sqlite import SCHEMA, SQL, SqliteConversations
from astromesh.storage.migrations import Schema, statements
from astromesh.storage.sqlite import Database
from astromesh.telemetry.clock import SystemClock
from astromesh.types import SessionKey, Turn

KEY = SessionKey("acme", "support", "s-1")
PAIR = (Turn("user", "question"), Turn("assistant", "answer"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "astromesh.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    async with Database(path, deadline=0.4) as opened:
        await opened.write(create, None)
        yield opened


def create(connection, items):
    connection.execute("CREATE TABLE IF NOT EXISTS notes (n INTEGER PRIMARY KEY, batch INTEGER)")
    return items


def insert(connection, items):
    connection.executemany("INSERT INTO notes VALUES (?, ?)", [(n, len(items)) for n in items])
    return items


def count(connection, items):
    (total,) = connection.execute("SELECT count(*) FROM notes").fetchone()
    return [total] * len(items)


async def conversations(database: Database) -> SqliteConversations:
    await database.migrate(SCHEMA)
    return SqliteConversations(database, SystemClock())


# -- group commit --------------------------------------------------------------------------------------------


async def test_what_waits_is_done_in_few_transactions_and_each_gets_its_own_result(database):
    """A first job holds the writer; the hundred queued meanwhile go into one call of the work."""
    gate = threading.Event()

    def hold(connection, items):
        gate.wait(10)
        return items

    held = database.write(hold, None)
    waiting = [database.write(insert, n) for n in range(100)]
    gate.set()
    await held
    assert await asyncio.gather(*waiting) == list(range(100))
    assert (
        await database.read(lambda c, items: [c.execute("SELECT min(batch) FROM notes").fetchone()[0]], 0)
        == 100
    )


async def test_a_bad_job_fails_alone(database):
    """Of a batch with a duplicate key and a bug, everybody else is committed, once."""

    def bug(connection, items):
        raise ZeroDivisionError

    jobs = [database.write(insert, n) for n in (1, 2, 2, 3)] + [
        database.write(bug, 0),
        database.write(insert, 4),
    ]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(r) for r in results] == [int, int, StoreError, int, ZeroDivisionError, int]
    assert await database.read(count, 0) == 4


async def test_an_exception_as_result_is_raised_to_its_caller_alone(database):
    def picky(connection, items):
        return [ValueError("odd") if n % 2 else n for n in items]

    results = await asyncio.gather(*(database.write(picky, n) for n in range(4)), return_exceptions=True)
    assert [type(r).__name__ for r in results] == ["int", "ValueError", "int", "ValueError"]


async def test_who_stops_waiting_does_not_take_its_job_back(database):
    task = asyncio.ensure_future(database.write(insert, 1))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await database.write(insert, 2)
    assert await database.read(count, 0) == 2


async def test_a_decided_job_is_taken_back_by_a_cancel_before_it_begins(database, path):
    """Whoever gave it up does it again: it must not stand there twice."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.ensure_future(database.write_or_withdraw(insert, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert cancelled.value.args == (NOT_DONE,)
        other.execute("ROLLBACK")
    await database.write_or_withdraw(insert, 2)
    assert await database.read(count, 0) == 1


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_a_decided_job_that_has_begun_is_awaited_by_its_cancelled_caller(database, ends):
    """What cannot be taken back counts as done, or as failed."""
    begun, gate = threading.Event(), threading.Event()

    def slowly(connection, items):
        begun.set()
        gate.wait(30)
        if ends == "badly":
            raise ValueError("odd")
        return insert(connection, items)

    task = asyncio.ensure_future(database.write_or_withdraw(slowly, 1))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    if ends == "badly":
        with pytest.raises(ValueError, match="odd"):
            await task
    else:
        assert await task == 1
    assert await database.read(count, 0) == (ends == "well")


async def test_queued_work_is_done_before_the_database_closes(path):
    async with Database(path) as database:
        await database.write(create, None)
        for n in range(1000):
            database.write(insert, n)  # nobody awaits it
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (1000,)


async def test_a_closed_database_says_so(path):
    async with Database(path) as database:
        pass
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.write(insert, 1)


async def test_a_reader_cannot_write(database):
    with pytest.raises(StoreError):
        await database.read(insert, 1)
    assert await database.read(count, 0) == 0


# -- faults --------------------------------------------------------------------------------------------------


async def test_a_lock_beyond_the_deadline_is_unavailable_and_then_heals(database, path):
    store = await conversations(database)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        results = await asyncio.gather(
            *(store.append(KEY, "ann", PAIR) for _ in range(5)), store.ping(), return_exceptions=True
        )
        assert [type(r) for r in results] == [StoreUnavailable] * 6
        assert "locked" in str(results[0])
        assert (await store.recall(KEY, 10)).last_seq == 0  # readers go on
        other.execute("ROLLBACK")
    assert await store.append(KEY, "ann", PAIR) == 2
    await store.ping()


async def test_a_short_lock_is_waited_for(database, path):
    store = await conversations(database)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        waiting = asyncio.ensure_future(store.append(KEY, "ann", PAIR))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        other.execute("COMMIT")
        assert await waiting == 2


async def test_a_full_disk_refuses_whole_appends_and_then_heals(database):
    store = await conversations(database)
    assert await store.append(KEY, "ann", PAIR) == 2

    def limit(connection, items):
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        return [connection.execute(f"PRAGMA max_page_count = {pages + n}").fetchone()[0] for n in items]

    await database.write(limit, 0)
    big = Turn("assistant", "x" * 50_000)
    results = await asyncio.gather(
        *(store.append(KEY, "ann", (PAIR[0], big)) for _ in range(3)), return_exceptions=True
    )
    assert {type(r) for r in results} == {StoreUnavailable}
    assert "full" in str(results[0])
    assert (await store.recall(KEY, 10)).last_seq == 2
    await database.write(limit, 1000)
    assert await store.append(KEY, "ann", (PAIR[0], big)) == 4
    assert [t.seq for t in (await store.recall(KEY, 10)).turns] == [1, 2, 3, 4]


class Crowded(Database):
    """A database on a disk that has room for so many pages."""

    room = 1 << 30

    def _open_writer(self) -> sqlite3.Connection:
        connection = super()._open_writer()
        connection.execute(f"PRAGMA max_page_count = {self.room}")
        return connection


def pages(connection, items):
    return [connection.execute("PRAGMA page_count").fetchone()[0] for _ in items]


async def test_once_a_full_disk_was_met_a_ping_tells_until_there_is_room(path):
    async with Crowded(path) as database:
        store = await conversations(database)
        await store.append(KEY, "ann", PAIR)
        big = Turn("assistant", "x" * 50_000)
        database.room = 1  # of the connection that is made behind the first fault
        await database.write(fill, None)
        await store.ping()  # nobody knows yet, and a ping writes nothing
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="full"):
                await store.append(KEY, "ann", (PAIR[0], big))
            with pytest.raises(StoreUnavailable, match="full"):
                await store.ping()
        database.room = 1 << 30
        await store.ping()
        held = await database.write(pages, None)
        for _ in range(3):
            await store.ping()
        assert await database.write(pages, None) == held
        assert ("ping",) not in await database.read(named, None)
        assert await store.append(KEY, "ann", (PAIR[0], big)) == 4


def fill(connection, items):
    return [connection.execute("PRAGMA max_page_count = 1").fetchone() for _ in items]


def named(connection, items):
    return [connection.execute("SELECT name FROM sqlite_schema").fetchall() for _ in items]


async def test_a_turn_that_cannot_be_written_takes_its_pair_with_it_and_nobody_elses(database):
    store = await conversations(database)
    await store.append(KEY, "ann", PAIR)
    nothing: Any = None
    broken = (PAIR[0], PAIR[1]._replace(content=nothing))
    keys = [KEY._replace(session_id=f"other-{n}") for n in range(9)]
    results = await asyncio.gather(
        store.append(KEY, "ann", broken),
        *(store.append(key, "ann", PAIR) for key in keys),
        return_exceptions=True,
    )
    assert isinstance(results[0], StoreError)
    assert results[1:] == [2] * 9
    assert (await store.recall(KEY, 10)).last_seq == 2


async def test_text_that_is_no_unicode_is_the_callers_fault(database):
    store = await conversations(database)
    with pytest.raises(InvalidInput, match="surrogate"):
        await store.append(KEY, "ann", [Turn("user", "\ud800")])
    assert await store.append(KEY, "ann", PAIR) == 2


async def test_a_file_that_is_no_database_is_named(path):
    path.parent.mkdir()
    path.write_bytes(b"this is a text file, and long enough to look at " * 50)
    with pytest.raises(StoreUnavailable, match=r"astromesh\.db is not a SQLite database"):
        async with Database(path):
            pass


async def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable, match="folder"):
        async with Database(tmp_path / "file" / "astromesh.db"):
            pass


# -- crash and two processes ---------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from pathlib import Path
from astromesh.telemetry.clock import SystemClock
from astromesh.memory.backends.sqlite import SCHEMA, SqliteConversations
from astromesh.storage.sqlite import Database
from astromesh.types import SessionKey, Turn

async def main(path, name, rounds):
    async with Database(Path(path)) as database:
        await database.migrate(SCHEMA)
        store = SqliteConversations(database, SystemClock())
        async def write(who):
            for n in range(rounds):
                text = f"{name}-{who}-{n}"
                pair = [Turn("user", text), Turn("assistant", text)]
                await store.append(SessionKey("t", "a", "s"), "ann", pair)
                print(text, flush=True)
        await asyncio.gather(*(write(who) for who in range(5)))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start_writer(path: Path, name: str, rounds: int) -> subprocess.Popen[str]:
    path.parent.mkdir(exist_ok=True)
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


async def stored(path: Path) -> tuple[Turn, ...]:
    async with Database(path) as database:
        store = await conversations(database)
        return (await store.recall(SessionKey("t", "a", "s"), 100_000)).turns


async def test_kill_9_during_writes_loses_nothing_that_was_answered(path):
    writer = start_writer(path, "w", 100_000)
    assert writer.stdout is not None
    answered = [await asyncio.to_thread(writer.stdout.readline) for _ in range(300)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = await asyncio.to_thread(writer.communicate)
    answered += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    turns = await stored(path)
    assert {line.strip() for line in answered} <= {t.content for t in turns}
    assert [t.seq for t in turns] == list(range(1, len(turns) + 1))
    assert [t.role for t in turns] == ["user", "assistant"] * (len(turns) // 2)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_two_processes_write_one_session(path):
    """Both create the file and its schema at once; no turn is lost, no pair is torn apart."""
    writers = [start_writer(path, name, 20) for name in ("one", "two")]
    ends = await asyncio.gather(*(asyncio.to_thread(w.communicate) for w in writers))
    assert [w.returncode for w in writers] == [0, 0]
    assert all(len(out.splitlines()) == 100 for out, _ in ends)
    turns = await stored(path)
    assert [t.seq for t in turns] == list(range(1, 401))
    assert all(q.content == a.content for q, a in zip(turns[::2], turns[1::2], strict=True))


# -- cost ----------------------------------------------------------------------------------------------------


async def test_recall_does_not_grow_with_the_session(database):
    """The work of a recall, counted in steps of SQLite's machine, is the same for 10 and for 10,000 turns."""
    store = await conversations(database)
    short, long = KEY, KEY._replace(session_id="long")
    for key, pairs in ((short, 5), (long, 5000)):
        await store.append(key, "ann", PAIR * pairs)

    def effort(connection, items):
        steps = []
        for key in items:
            ticks = 0

            def tick() -> int:
                nonlocal ticks
                ticks += 1
                return 0

            connection.set_progress_handler(tick, 1)
            connection.execute(SQL["recall"], (*key.columns, 0.0, 10)).fetchone()
            connection.set_progress_handler(None, 1)
            steps.append(ticks)
        return steps

    await database.read(effort, short)  # the first statement of a connection reads the schema, too
    few = await database.read(effort, short)
    many = await database.read(effort, long)
    assert abs(many - few) <= 2


async def test_no_hot_query_scans_a_table(database):
    await database.migrate(SCHEMA)

    def plan(connection, items):
        return [
            [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [0] * parameters)]
            for sql, parameters in items
        ]

    hot = {"recall": 5, "page": 6, "info": 4, "list": 5, "list_owned": 6, "erase_owner": 3, "expire": 2}
    for name, parameters in hot.items():
        steps = await database.read(plan, (SQL[name], parameters))
        assert [s for s in steps if s.startswith("SCAN")] == [], f"{name}: {steps}"


# -- migrations ----------------------------------------------------------------------------------------------


async def test_overwritten_text_leaves_the_file_and_its_log_while_the_file_is_open(database, path):
    """Also what is overwritten while the log is being emptied, and with another process that reads."""
    async with Database(path) as other:
        for text in ("first secret", "second secret"):
            await database.write(note, text)
            assert text in on_disk(path)
            await database.write(note, "nothing")
            database.scrub_soon()
            await other.read(count, None)
            async with asyncio.timeout(30):
                while text in on_disk(path):
                    await asyncio.sleep(0.02)


async def test_a_log_that_a_dead_process_left_is_emptied(database, path, tmp_path):
    """It had begun to overwrite a text."""
    await database.write(note, "secret")
    await database.write(note, "nothing")
    left = tmp_path / "left" / path.name
    shutil.copytree(path.parent, left.parent)
    assert "secret" in on_disk(left)
    async with Database(left):
        async with asyncio.timeout(30):
            while "secret" in on_disk(left):
                await asyncio.sleep(0.02)


def note(connection, items):
    connection.execute("CREATE TABLE IF NOT EXISTS texts (n INTEGER PRIMARY KEY, text TEXT)")
    connection.executemany("INSERT OR REPLACE INTO texts VALUES (1, ?)", [(text,) for text in items])
    return items


def on_disk(path: Path) -> str:
    return "".join(file.read_bytes().decode("latin-1") for file in path.parent.glob(f"{path.name}*"))


async def test_a_newer_schema_is_refused_with_what_to_do(database):
    await database.migrate(SCHEMA)
    await database.write(
        lambda c, items: [c.execute("UPDATE schemas SET version = 99").rowcount for _ in items], None
    )
    with pytest.raises(ConfigError, match=r"newer astromesh.*version 99.*Upgrade"):
        await database.migrate(SCHEMA)


async def test_migrations_run_once_and_in_order(database, tmp_path, monkeypatch):
    package = tmp_path / "steps_package"
    (package / "sql").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sql" / "0001_first.sql").write_text("CREATE TABLE a (x);\nINSERT INTO a VALUES (1);\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    schema = Schema("steps", "steps_package", "sql")
    await asyncio.gather(*(database.migrate(schema) for _ in range(3)))
    (package / "sql" / "0002_second.sql").write_text("INSERT INTO a SELECT x + 1 FROM a;\n")
    await database.migrate(schema)
    rows = await database.read(lambda c, items: [c.execute("SELECT x FROM a ORDER BY x").fetchall()], None)
    assert rows == [(1,), (2,)]


async def test_a_migration_that_fails_leaves_nothing(database, tmp_path, monkeypatch):
    package = tmp_path / "broken_package"
    (package / "sql").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sql" / "0001_broken.sql").write_text(
        "CREATE TABLE half (x);\nINSERT INTO nowhere VALUES (1);\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StoreError, match="nowhere"):
        await database.migrate(Schema("broken", "broken_package", "sql"))
    tables = await database.read(
        lambda c, items: [c.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone()],
        None,
    )
    assert tables == (0,)


def test_a_script_is_cut_at_its_statements():
    script = "-- c\nCREATE TABLE a (x);\nCREATE TRIGGER t AFTER DELETE ON a\nBEGIN\n  DELETE FROM a;\nEND;\n"
    assert len(list(statements(script))) == 2
    with pytest.raises(ConfigError, match="middle of a statement"):
        list(statements("CREATE TABLE a (x"))


async def test_nobody_else_can_read_the_file_its_log_or_the_folders_that_were_made(tmp_path):
    """What exists keeps its modes: an operator may have given a group access."""
    (tmp_path / "old").mkdir(0o755)
    (tmp_path / "old" / "shared.db").touch(0o640)
    (tmp_path / "old" / "shared.db").chmod(0o640)
    async with (
        Database(tmp_path / "new" / "data" / "a.db") as first,
        Database(tmp_path / "old" / "shared.db") as second,
    ):
        for database in (first, second):
            await database.write(create, None)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {
        "new": 0o700, "data": 0o700, "a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600,
        "old": 0o755, "shared.db": 0o640, "shared.db-wal": 0o640, "shared.db-shm": 0o640,
    }  # fmt: skip


# -- a process that is stopped while it writes ---------------------------------------------------------------

HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE held (x)")
print("held", flush=True)
time.sleep(600)
"""


async def test_a_stopped_process_that_holds_the_file_is_named(database: Database, path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert await asyncio.to_thread(process.stdout.readline) == "held\n"
            with pytest.raises(StoreUnavailable, match="locked by another process"):
                await database.write(create, None)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(StoreUnavailable, match=f"process {process.pid} .* -CONT {process.pid}"):
                await database.write(create, None)
        finally:
            process.kill()
    await database.write(create, None)
