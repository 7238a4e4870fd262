"""Events in SQLite, by default in the file of the conversations: step 11 is then one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, Field

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.stores import OwnedEvent
from astromesh.memory.backends.episodic.event import EpisodicOptions, packed
from astromesh.memory.backends.expiry import expiring
from astromesh.storage.database import Database, shared_database
from astromesh.storage.migrations import Schema, queries
from astromesh.types import JsonObject, SessionKey

_PACKAGE = "astromesh.memory.backends"
SCHEMA = Schema("episodes", _PACKAGE, "sql/sqlite/episodes")
SQL = queries(_PACKAGE, "sql/sqlite/episodes.sql")

#: events deleted in one transaction
_CHUNK = 1000


class SqliteOptions(EpisodicOptions):
    path: str = Field(
        "", description="Database file, relative to the data folder; empty: the runtime's own file."
    )


class SqliteEvents:
    """An EpisodicStore over one SQLite file, which it may share with others."""

    Options: ClassVar[type[BaseModel]] = SqliteOptions

    def __init__(self, database: Database, options: SqliteOptions, clock: Clock) -> None:
        self._database, self._options, self._clock = database, options, clock

    @classmethod
    async def open(cls, options: SqliteOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        database = await shared_database(deps, options.path)
        store = cls(database, options, deps.clock)
        await deps.resources.shared((cls, database.path), store._opened)
        return store

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        await self._database.migrate(SCHEMA)
        async with expiring(self.expire, self._clock):
            yield

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        expires_at = now + self._options.ttl if self._options.ttl else 0.0
        recorded = Recorded(key, owner, packed(events), expires_at, self._options.keep)
        await self._database.write(_record, recorded)

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        return await self._database.read(_recent, (*key, owner, self._clock.now(), limit))

    @property
    def place(self) -> Hashable:
        return self._database

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        bound = (tenant, owner, after, self._clock.now(), limit)
        rows = await self._database.read(_rows, ("owned", bound))
        return tuple(OwnedEvent(row[0], row[1], row[2], orjson.loads(row[3])) for row in rows)

    async def erase(self, key: SessionKey) -> None:
        await self._database.change(SQL["erase"], *key)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.change_in_chunks(SQL["erase_owner"], tenant, owner, chunk=_CHUNK)

    async def expire(self, now: float) -> int:
        return await self._database.change_in_chunks(SQL["expire"], now, chunk=_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the database closes with the runtime's resources."""


class Recorded(NamedTuple):
    """Args: events: JSON; expires_at: seconds since the epoch, 0 never; keep: events of the session."""

    key: SessionKey
    owner: str
    events: Sequence[str]
    expires_at: float
    keep: int


def _record(connection: sqlite3.Connection, items: Sequence[Recorded]) -> Sequence[None]:
    for key, owner, events, expires_at, keep in items:
        connection.execute(SQL["record"], (*key, owner, expires_at, f"[{','.join(events)}]"))
        connection.execute(SQL["trim"], (*key, keep))
    return [None] * len(items)


def _recent(
    connection: sqlite3.Connection, items: Sequence[tuple[object, ...]]
) -> Sequence[tuple[JsonObject, ...]]:
    found = [connection.execute(SQL["recent"], item).fetchone() for item in items]
    return [tuple(map(orjson.loads, orjson.loads(row[0])))[::-1] for row in found]


def _rows(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[list[tuple[Any, ...]]]:
    return [connection.execute(SQL[name], bound).fetchall() for name, bound in items]
