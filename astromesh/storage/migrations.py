"""Numbered schema migrations and named queries, stored in `sql/` files beside the store that owns them.

A store is opened with its tables migrated, and its expired rows are deleted periodically while it is open.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol, TypeVar

from astromesh.errors import ConfigError, StoreError
from astromesh.logs import get_logger
from astromesh.storage.queries import Dialect, SqlStore, to_sqlite
from astromesh.telemetry.clock import Clock

_VERSIONS = (
    "CREATE TABLE IF NOT EXISTS schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
)
_READ = "SELECT version FROM schemas WHERE name = ?"
_WRITE = "INSERT INTO schemas VALUES (?, ?) ON CONFLICT DO UPDATE SET version = excluded.version"
_NUMBERED = re.compile(r"(\d{4})_\w+\.sql")
_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one adapter.

    Args:
        name: unique within a database, e.g. `conversations`.
        package: package that holds the folders.
        folder: of `0001_what.sql`, `0002_what.sql`, …: each leads from the version before to its own.
        shared: folder of more migrations, for both databases and written for PostgreSQL; the numbers of both
            folders are one sequence.
    """

    name: str
    package: str
    folder: str
    shared: str = ""

    def steps(self, dialect: Dialect = "postgres") -> list[str]:
        """Returns the migrations in order; the n-th leads to version n."""
        found = self._read(self.folder)
        if self.shared:
            shared = self._read(self.shared)
            found |= {name: to_sqlite(text) if dialect == "sqlite" else text for name, text in shared.items()}
        return [text for _, text in sorted(found.items())]

    def missing_steps(self, version: int, dialect: Dialect) -> list[str]:
        """Returns the migrations after a version. Raises: ConfigError: a newer astromesh wrote the tables."""
        steps = self.steps(dialect)
        if version > len(steps):
            raise ConfigError(
                f"A newer astromesh wrote the tables of {self.name}: they have version {version}, and this "
                f"one knows version {len(steps)}. Upgrade astromesh, or use another database or data folder."
            )
        return steps[version:]

    def _read(self, folder: str) -> dict[str, str]:
        path = files(self.package).joinpath(folder)
        found = path.iterdir() if path.is_dir() else ()
        return {file.name: file.read_text("utf-8") for file in found if _NUMBERED.fullmatch(file.name)}


def store_schema(store: type[SqlStore], dialect: Dialect) -> Schema:
    """Returns the tables of a store in one database."""
    return Schema(store.name, store.package, f"sql/{dialect}/{store.name}", f"sql/{store.name}")


def migrate(connection: sqlite3.Connection, schemas: Sequence[Schema]) -> Sequence[bool]:
    """Executes the missing migrations in the transaction of the writer, so that two processes do it once.

    Returns:
        Whether tables of an earlier version were changed.
    """
    changed = []
    connection.execute(_VERSIONS)
    for schema in schemas:
        row = connection.execute(_READ, (schema.name,)).fetchone()
        version = row[0] if row else 0
        missing = schema.missing_steps(version, "sqlite")
        for step in missing:
            for statement in statements(step):
                connection.execute(statement)
        if missing:
            connection.execute(_WRITE, (schema.name, version + len(missing)))
        changed.append(bool(version and missing))
    return changed


def statements(script: str) -> Iterator[str]:
    """Yields the statements of a script. (`executescript` would commit the transaction.)"""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        raise ConfigError(f"A migration ends in the middle of a statement: {pending.strip()[:80]}")


def queries(package: str, path: str) -> Mapping[str, str]:
    """Returns the queries of a file by name. Each starts with a line `-- name: what_it_is`."""
    parts = _NAMED.split(files(package).joinpath(path).read_text("utf-8"))
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


#: seconds between two sweeps
EXPIRY_PERIOD = 60.0
#: seconds after its end when a lease that was not released is deleted
LEASE_GRACE_SECONDS = 3600.0

log = get_logger("astromesh.memory")


class MigratedDatabase(Protocol):
    async def migrate(self, schema: Schema) -> None: ...


class ExpiringStore(Protocol):
    async def expire(self, now: float) -> int: ...


Store = TypeVar("Store", bound=ExpiringStore)


@asynccontextmanager
async def opened_store(
    database: MigratedDatabase, schema: Schema, store: Store, clock: Clock
) -> AsyncIterator[Store]:
    """Migrates the tables of a store, and deletes its expired rows while it is open."""
    await database.migrate(schema)
    async with expire_periodically(store.expire, clock):
        yield store


@asynccontextmanager
async def expire_periodically(expire: Callable[[float], Awaitable[int]], clock: Clock) -> AsyncIterator[None]:
    """Args: expire: deletes what expired before a time in seconds since the epoch; returns the number."""
    task = asyncio.create_task(_expire_forever(expire, clock))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _expire_forever(expire: Callable[[float], Awaitable[int]], clock: Clock) -> None:
    while True:
        try:
            if count := await expire(clock.now()):
                log.info("sessions_expired", count=count)
        except StoreError as error:  # the next sweep tries again
            log.warning("sessions_not_expired", error=str(error))
        await clock.sleep(EXPIRY_PERIOD)
