"""A SQLite file with one writer thread and one reader thread: the event loop never waits for the disk.

In WAL mode readers do not wait for the writer, and several processes may use the file. Every commit survives
the death of the process (kill -9). A commit that is marked `synced` also survives a loss of power, with all
commits before it, for one sync of the disk. A loss of power may undo the commits after the last synced one,
and the file stays consistent (sqlite.org/pragma.html#pragma_synchronous). Deleted content is overwritten
(`secure_delete`).
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel

from astromesh.errors import AstromeshError, StoreUnavailable
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, migrate, store_schema
from astromesh.storage.private_files import private_file, private_folder
from astromesh.storage.queries import Dialect, Row, SqlStore, Transaction, TransactionWork, queries_of
from astromesh.storage.writer_thread import UNSYNCED, ConnectionThread, Item, Result, Work

T = TypeVar("T")

FILE = "astromesh.db"
SQLITE_URL = "sqlite:///"
#: the documented default, which means: in the data folder
DEFAULT_URL = "sqlite:///.astromesh/astromesh.db"

#: seconds that SQLite itself waits for a lock, so that two processes alternate without longer pauses
_LOCK_SECONDS = 0.02
#: seconds after which a log is emptied that must not keep what it has
_SCRUB_SECONDS = 2.0
#: statements that a connection keeps compiled
_CACHED = 256
#: bytes that a ping writes after a write has failed
_PING_BYTES = 16 * 1024

_PRAGMAS = (
    "journal_mode = WAL",
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 67108864",
    "temp_store = MEMORY",
    "secure_delete = ON",
    "trusted_schema = OFF",
)


class Database:
    """An async context manager; used by one event loop.

    Args:
        path: the file. It and its folder are created if they are missing.
        deadline: seconds that a caller waits for a locked database before it receives StoreUnavailable.
        synchronous: whether `synced` commits are synced (`storage.sqlite.synchronous` in runtime.yaml).
    """

    def __init__(
        self, path: Path, *, deadline: float = 5.0, synchronous: Literal["full", "normal"] = "full"
    ) -> None:
        self.path = path
        self._deadline = deadline
        self._syncs = synchronous == "full"
        self._threads: tuple[ConnectionThread, ConnectionThread] | None = None
        self._scrubbing: asyncio.Task[None] | None = None
        self._must_scrub = False

    async def __aenter__(self) -> Self:
        writer = ConnectionThread(self.path, self._open_writer, "BEGIN IMMEDIATE", self._deadline)
        try:
            await writer.submit(_read_schema, None)  # creates the file and its WAL before the first read
        except BaseException:
            await writer.stop()
            raise
        self._threads = writer, ConnectionThread(self.path, self._open_reader, "BEGIN", self._deadline)
        if self._has_log():  # of a process that died before it emptied the log
            self._begin_scrubbing()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writer, reader = self._opened
        if self._scrubbing is not None:
            self._scrubbing.cancel()
            await asyncio.wait([self._scrubbing])
        if self._must_scrub:  # the last process that closes the file removes its log, and others may be left
            with suppress(StoreUnavailable):
                await writer.submit(_truncate_log, None, outside=True)
        await reader.stop()
        await writer.stop()

    def read(self, work: Work[Item, Result], item: Item) -> asyncio.Future[Result]:
        """Runs `work` in a read transaction, together with other queued jobs.

        Raises (when awaited):
            StoreUnavailable: the file is locked beyond the deadline, unreadable or closed.
            StoreError: a statement was rejected.
        """
        return self._opened[1].submit(work, item)

    def write(self, work: Work[Item, Result], item: Item, *, synced: bool = False) -> asyncio.Future[Result]:
        """Runs `work` in a write transaction, together with other queued jobs. Returns when committed.

        Args:
            synced: The commit survives a loss of power, with the jobs that share it.
        """
        return self._opened[0].submit(work, item, synced=synced and self._syncs)

    def write_or_withdraw(self, work: Work[Item, Result], item: Item) -> Coroutine[Any, Any, Result]:
        """Does what `write` does. A cancelled caller withdraws it, or receives the result once started."""
        return self._opened[0].submit_or_withdraw(work, item)

    async def migrate(self, schema: Schema) -> None:
        """Brings one schema up to date.

        Raises:
            ConfigError: a newer astromesh wrote the file.
        """
        if await self.write(migrate, schema):
            self.scrub_soon()

    async def ping(self) -> None:
        """Raises StoreUnavailable if the file cannot be read, or locked for writing.

        After a write has failed, e.g. on a full disk, each ping writes until that works.
        """
        writer = self._opened[0]
        failed = writer.unavailable
        await asyncio.gather(
            self.read(_read_schema, None), self.write(_write_pages if failed else _read_schema, None)
        )
        if failed:
            writer.unavailable = False

    async def scrub(self) -> None:
        """Empties the write-ahead log, so that no erased data is left in it.

        Raises:
            StoreUnavailable: a process reads from the log for longer than the deadline.
        """
        ends = time.monotonic() + self._deadline
        while await self._opened[0].submit(_truncate_log, None, outside=True):
            if time.monotonic() >= ends:
                raise StoreUnavailable(f"The log of {self.path.name} is in use; try again.")
            await asyncio.sleep(_LOCK_SECONDS)

    def scrub_soon(self) -> None:
        """Does what `scrub` does, in a few seconds or when the file is closed. Calls until then share it."""
        self._must_scrub = True
        self._begin_scrubbing()

    def _begin_scrubbing(self) -> None:
        if self._scrubbing is None or self._scrubbing.done():
            self._scrubbing = asyncio.create_task(self._scrub_later())

    async def _scrub_later(self) -> None:
        waiting = True
        while waiting:
            await asyncio.sleep(_SCRUB_SECONDS)
            self._must_scrub = False  # what is overwritten from here on needs another one
            try:
                await self.scrub()
            except StoreUnavailable:
                self._must_scrub = True
            waiting = self._must_scrub

    def _has_log(self) -> bool:
        log = self.path.with_name(f"{self.path.name}-wal")
        return log.exists() and log.stat().st_size > 0

    @property
    def _opened(self) -> tuple[ConnectionThread, ConnectionThread]:
        if self._threads is None:
            raise RuntimeError("Enter the database first: async with Database(path) as database.")
        return self._threads

    def _open_writer(self) -> sqlite3.Connection:
        private_folder(self.path.parent)
        private_file(self.path)  # its log and index get the same mode
        connection = self._connect(*_PRAGMAS, UNSYNCED)
        connection.create_function("sha256", 1, _sha256, deterministic=True)  # for migrations
        return connection

    def _open_reader(self) -> sqlite3.Connection:
        return self._connect(*_PRAGMAS[1:], "query_only = ON")

    def _connect(self, *pragmas: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_LOCK_SECONDS, isolation_level=None, cached_statements=_CACHED
        )
        try:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection


async def shared_database(deps: Deps, path: str = "") -> Database:
    """Returns the database of a file, which is opened once per runtime.

    Args:
        path: as written in YAML, relative to the data folder; empty for the runtime's own file.
    """
    file = (deps.data_dir / path if path else default_file(deps)).absolute()
    opened: Database = await deps.resources.shared(
        ("sqlite", file), lambda: Database(file, synchronous=deps.sqlite_synchronous)
    )
    return opened


def default_file(deps: Deps) -> Path:
    """Returns the runtime's own file."""
    if deps.storage_url.startswith(SQLITE_URL) and deps.storage_url != DEFAULT_URL:
        return Path(deps.storage_url.removeprefix(SQLITE_URL))
    return deps.data_dir / FILE


# -- stores that run on both databases -----------------------------------------------------------------------

# `json_each` reads what is an array in PostgreSQL
sqlite3.register_adapter(list, lambda values: orjson.dumps(values).decode())

#: rows that one INSERT may write, most first, and its values; SQLite takes 32,766
_INSERT_ROWS, _INSERT_VALUES = (64, 32, 16, 8, 4, 2), 4096
#: characters of one INSERT of many rows: SQLite keeps a copy of them until the same statement writes others
_INSERT_CHARACTERS = 256 * 1024
_INSERT = re.compile(r"(INSERT .+\sVALUES )(\(.+?\))(\s+ON CONFLICT .+)?", re.DOTALL)


#: a part of a transaction that takes the items of several calls at once
BatchWork: TypeAlias = Callable[[Sequence[Item], Transaction], Coroutine[Any, Any, Sequence[Result]]]


class SqliteTransaction:
    """A `Transaction` on one connection. No statement waits, so its coroutines never do either."""

    __slots__ = ("_connection", "_statements")

    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._connection, self._statements = connection, statements

    async def fetch(self, query: str, *values: object) -> list[Row]:
        return self._connection.execute(self._statements[query], values).fetchall()

    async def execute(self, query: str, *values: object) -> int:
        return self._connection.execute(self._statements[query], values).rowcount

    async def execute_many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """Writes many rows by few statements, where each inserts: one costs nearly as much as its rows."""
        statement, at = self._statements[query], 0
        for size in _INSERT_ROWS if len(rows) > 1 and _inserts(statement) else ():
            while at + size <= len(rows) and size * len(rows[0]) <= _INSERT_VALUES:
                values = tuple(chain.from_iterable(rows[at : at + size]))
                if _characters(values) > _INSERT_CHARACTERS:
                    break  # fewer rows may be within it
                self._connection.execute(_insert_of_rows(statement, size), values)
                at += size
        self._connection.executemany(statement, rows[at:])

    async def lock(self, *name: str) -> None:
        """Does nothing: the file has one writer."""


class SqliteQueries:
    """`Queries` in a SQLite file.

    Args:
        statements: by the names of the queries.
    """

    dialect: ClassVar[Dialect] = "sqlite"

    def __init__(self, database: Database, statements: Mapping[str, str]) -> None:
        self._database, self._statements = database, statements

    async def read(self, query: str, *values: object) -> Sequence[Row]:
        return await self._database.read(_fetch_all, (self._statements[query], values))

    async def write(self, query: str, *values: object, synced: bool = False) -> Sequence[Row]:
        return await self._database.write(_fetch_all, (self._statements[query], values), synced=synced)

    async def transact(self, work: TransactionWork[T], *, synced: bool = False) -> T:
        result: T = await self._database.write(_transact_all, (self._statements, work), synced=synced)
        return result

    def batched(self, work: BatchWork[Item, Result]) -> Callable[..., Awaitable[Result]]:
        """Returns a function of one item that executes `work` with those of calls that share the transaction.

        Args:
            work: returns one result for each item, in order. If it raises, each item is repeated alone.
        """

        def execute(connection: sqlite3.Connection, items: Sequence[Item]) -> Sequence[Result]:
            return _finish(work(items, SqliteTransaction(connection, self._statements)))

        return partial(self._database.write, execute)

    def scrub_soon(self) -> None:
        self._database.scrub_soon()

    async def ping(self) -> None:
        await self._database.ping()


class SqliteStore(SqlStore):
    """A store in the runtime's own file, which several processes of one machine may share."""

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: a newer astromesh wrote it."""
        database = await shared_database(deps)
        await database.migrate(store_schema(cls, "sqlite"))
        statements = queries_of(cls, "sqlite")
        return cls(SqliteQueries(database, statements), deps.clock)


@lru_cache
def _inserts(statement: str) -> bool:
    """Whether a statement is an INSERT of one row."""
    return _INSERT.fullmatch(statement) is not None


@lru_cache
def _insert_of_rows(statement: str, rows: int) -> str:
    """An INSERT of one row, as one of many rows."""
    found = _INSERT.fullmatch(statement)
    assert found is not None, statement
    head, values, tail = found.groups(default="")
    values = re.sub(r"\?\d+", "?", values)
    return f"{head}{', '.join([values] * rows)}{tail}"


def _characters(values: Iterable[Any]) -> int:
    return sum([len(one) for one in values if (kind := type(one)) is str or kind is bytes])


def _fetch_all(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[list[Row]]:
    return [connection.execute(statement, values).fetchall() for statement, values in items]


def _transact_all(
    connection: sqlite3.Connection, items: Sequence[tuple[Mapping[str, str], TransactionWork[Any]]]
) -> Sequence[Any]:
    """Executes transactions as one. If one raises before it changes anything, the others are not undone."""
    results: list[Any] = []
    for statements, work in items:
        changes = connection.total_changes
        try:
            results.append(_finish(work(SqliteTransaction(connection, statements))))
        except AstromeshError as error:
            if connection.total_changes != changes:
                raise
            results.append(error)
    return results


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Returns what a coroutine returns that never waits."""
    try:
        work.send(None)
    except StopIteration as returned:
        result: T = returned.value
        return result
    work.close()
    raise RuntimeError("A transaction may await nothing but its own statements.")


def _sha256(text: str) -> str:
    """The hex digits that PostgreSQL's `encode(sha256(…), 'hex')` returns."""
    return sha256(text.encode()).hexdigest()


def _truncate_log(connection: sqlite3.Connection, items: Sequence[None]) -> Sequence[bool]:
    """Returns whether the log still has data."""
    return [bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]) for _ in items]


def _read_schema(connection: sqlite3.Connection, items: Sequence[None]) -> Sequence[None]:
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return items


def _write_pages(connection: sqlite3.Connection, items: Sequence[None]) -> Sequence[None]:
    """Writes some pages, and frees them in the same transaction."""
    connection.execute("CREATE TABLE ping (room BLOB)")
    connection.execute("INSERT INTO ping VALUES (zeroblob(?))", (_PING_BYTES,))
    connection.execute("DROP TABLE ping")
    return items
