"""Conversations, their leases, and events in SQLite: what is different there.

Events are by default in the file of the conversations, so that step 11 is one transaction. Functions that
take a connection run in the thread of the database, each for all waiting items (`storage.writer_thread`).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from astromesh.memory.backends.sql import SqlConversations, SqlEvents, SqlLeases
from astromesh.memory.base import (
    EpisodicOptions,
    SessionLease,
    SessionLeases,
    encode_events,
    lease_lost,
    no_session,
)
from astromesh.plugins import Deps
from astromesh.storage.migrations import expire_periodically, opened_store, store_schema
from astromesh.storage.queries import SqlStore, Transaction, store_queries
from astromesh.storage.single_process_lock import SingleProcessLock
from astromesh.storage.sqlite import Database, SqliteQueries, shared_database
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SessionKey, Turn

SCHEMA, EVENT_SCHEMA = store_schema(SqlConversations, "sqlite"), store_schema(SqlEvents, "sqlite")
SQL = store_queries(SqlConversations.package, SqlConversations.name, "sqlite", {})
_ADVANCE, _ADD_TURN, _ADD_PAIR = SQL["advance"], SQL["add_turn"], SQL["add_pair"]
_HOLDS = store_queries(SqlLeases.package, SqlLeases.name, "sqlite", {})["holds"]


class SqliteOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str = Field(
        "", description="Database file, relative to the data folder; empty: the runtime's own file."
    )


class SqliteEventOptions(EpisodicOptions, SqliteOptions):
    pass


class SqliteLeases(SqlLeases):
    """SessionLeases in the file of the turns; used only while several processes share that file."""

    def __init__(self, database: Database, clock: Clock, lock: SingleProcessLock) -> None:
        super().__init__(_queries(SqlLeases, database), clock)
        self._lock = lock

    @property
    def shared(self) -> bool:
        return not self._lock.exclusive

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        self._lock.before_sharing.append(work)

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()

        async def take(tx: Transaction) -> int | None:
            await tx.execute("clear", *key.columns, holder, now)
            rows = await tx.fetch("take", *key.columns, holder, now, now + seconds)
            return int(rows[0][0]) if rows else None

        return await self._queries.transact(take)

    async def renew(self, held: Sequence[SessionLease], seconds: float) -> tuple[bool | None, ...]:
        until = self._clock.now() + seconds

        async def renew(tx: Transaction) -> tuple[bool | None, ...]:
            rows = [await tx.fetch("renew", one.token, until) for one in held]
            return tuple(bool(found[0][0]) if found else None for found in rows)

        return await self._queries.transact(renew)


class SqliteConversations(SqlConversations):
    """A ConversationStore over one SQLite file, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = SqliteOptions

    def __init__(self, database: Database, clock: Clock, leases: SqliteLeases | None = None) -> None:
        super().__init__(_queries(SqlConversations, database), clock, leases)
        self._database = database
        self.leases: SessionLeases | None = leases

    @classmethod
    async def open(cls, options: SqliteOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: a newer astromesh wrote it."""
        database = await shared_database(deps, options.path)
        store: Self = await deps.resources.shared(
            (cls, database), lambda: cls._open_shared(database, deps.clock)
        )
        return store

    @classmethod
    @asynccontextmanager
    async def _open_shared(cls, database: Database, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        async with SingleProcessLock(database.path) as lock:
            leases = SqliteLeases(database, clock, lock)
            if lock.exclusive:
                await leases.forget(math.inf)  # left by a killed process
            store = cls(database, clock, leases)
            async with expire_periodically(store.expire, clock):
                yield store

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        item = AppendRequest(key, owner, turns, expires_at, self._clock.now(), token)
        return await self._database.write_or_withdraw(_append_all, item)


class AppendRequest(NamedTuple):
    """One append. Args: now: seconds since the epoch."""

    key: SessionKey
    owner: str
    turns: Sequence[Turn]
    expires_at: float
    now: float
    token: int


class SqliteEvents(SqlEvents):
    """An EpisodicStore over one SQLite file, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = SqliteEventOptions

    @classmethod
    async def open(cls, options: SqliteEventOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: a newer astromesh wrote it."""
        database = await shared_database(deps, options.path)
        store = cls(_queries(cls, database), deps.clock, options, database)
        await deps.resources.shared(
            (cls, database), lambda: opened_store(database, EVENT_SCHEMA, store, deps.clock)
        )
        return store

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        encoded = f"[{','.join(encode_events(events))}]"

        async def record(tx: Transaction) -> None:
            await tx.execute("record", *key.columns, owner, self._expires_at(now), encoded)
            await tx.execute("trim", *key.columns, self._options.keep)

        await self._queries.transact(record)


def _queries(store: type[SqlStore], database: Database) -> SqliteQueries:
    return SqliteQueries(database, store_queries(store.package, store.name, "sqlite", {}))


def _append_all(
    connection: sqlite3.Connection, items: Sequence[AppendRequest]
) -> Sequence[int | BaseException]:
    return [_append(connection, item) for item in items]


def _append(connection: sqlite3.Connection, item: AppendRequest) -> int | BaseException:
    """Appends all turns; none if the session has another owner or the lease is lost."""
    key, owner, turns, expires_at, now, token = item
    if token and connection.execute(_HOLDS, (*key.columns, token)).fetchone() is None:
        return lease_lost(key)
    bound = (*key.columns, owner, len(turns), now, expires_at)
    row = connection.execute(_ADVANCE, bound).fetchone()
    if row is None and connection.execute(SQL["erase_expired"], (*key.columns, now)).fetchall():
        row = connection.execute(_ADVANCE, bound).fetchone()
    if row is None:
        return no_session(key)
    session, last_seq = row
    first = last_seq - len(turns) + 1
    rows = [
        (
            t.role,
            t.content,
            seq,
            round(t.created_at or now, 3),
            t.run_id,
            t.status,
            t.tokens,
            t.author,
            session,
        )
        for seq, t in enumerate(turns, first)
    ]
    if len(rows) == 2:
        connection.execute(_ADD_PAIR, rows[0] + rows[1])
    else:
        connection.executemany(_ADD_TURN, rows)
    return int(last_seq)
