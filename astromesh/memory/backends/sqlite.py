"""Conversations, their leases, and events in SQLite. Every query is in `sql/sqlite/`.

Events are by default in the file of the conversations, so that step 11 is one transaction. The functions that
take a connection run in the database's threads, each for all waiting items (`astromesh.storage`).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.durable.base import SessionLease, SessionLeases
from astromesh.errors import LeaseLost, SessionNotFound
from astromesh.memory.base import (
    EpisodicOptions,
    OwnedEvent,
    RecalledTurns,
    SessionInfo,
    Summary,
    encode_events,
)
from astromesh.plugins import Deps
from astromesh.storage.expiry import LEASE_GRACE_SECONDS, expire_periodically
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.single_process_lock import SingleProcessLock
from astromesh.storage.sqlite import Database, shared_database
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SessionKey, Turn

# -- events --------------------------------------------------------------------------------------------------

_PACKAGE = "astromesh.memory.backends"
EVENT_SCHEMA = Schema("episodes", _PACKAGE, "sql/sqlite/episodes")
EVENT_SQL = queries(_PACKAGE, "sql/sqlite/episodes.sql")
#: events deleted in one transaction
_EVENT_CHUNK = 1000


class SqliteEventOptions(EpisodicOptions):
    path: str = Field(
        "", description="Database file, relative to the data folder; empty: the runtime's own file."
    )


class SqliteEvents:
    """An EpisodicStore over one SQLite file, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = SqliteEventOptions

    def __init__(self, database: Database, options: SqliteEventOptions, clock: Clock) -> None:
        self._database, self._options, self._clock = database, options, clock

    @classmethod
    async def open(cls, options: SqliteEventOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: a newer astromesh wrote it."""
        database = await shared_database(deps, options.path)
        store = cls(database, options, deps.clock)
        await deps.resources.shared((cls, database.path), store._open_shared)
        return store

    @asynccontextmanager
    async def _open_shared(self) -> AsyncIterator[None]:
        await self._database.migrate(EVENT_SCHEMA)
        async with expire_periodically(self.expire, self._clock):
            yield

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        expires_at = now + self._options.ttl if self._options.ttl else 0.0
        recorded = RecordRequest(key, owner, encode_events(events), expires_at, self._options.keep)
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
        rows = await self._database.read(_event_rows, ("owned", bound))
        return tuple(OwnedEvent(row[0], row[1], row[2], orjson.loads(row[3])) for row in rows)

    async def erase(self, key: SessionKey) -> None:
        await self._database.change(EVENT_SQL["erase"], *key)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.change_in_chunks(
            EVENT_SQL["erase_owner"], tenant, owner, chunk=_EVENT_CHUNK
        )

    async def expire(self, now: float) -> int:
        return await self._database.change_in_chunks(EVENT_SQL["expire"], now, chunk=_EVENT_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Does nothing: the database closes with the runtime's resources."""


class RecordRequest(NamedTuple):
    """Args: events: JSON; expires_at: seconds since the epoch, 0 never; keep: events of the session."""

    key: SessionKey
    owner: str
    events: Sequence[str]
    expires_at: float
    keep: int


def _record(connection: sqlite3.Connection, items: Sequence[RecordRequest]) -> Sequence[None]:
    for key, owner, events, expires_at, keep in items:
        connection.execute(EVENT_SQL["record"], (*key, owner, expires_at, f"[{','.join(events)}]"))
        connection.execute(EVENT_SQL["trim"], (*key, keep))
    return [None] * len(items)


def _recent(
    connection: sqlite3.Connection, items: Sequence[tuple[object, ...]]
) -> Sequence[tuple[JsonObject, ...]]:
    found = [connection.execute(EVENT_SQL["recent"], item).fetchone() for item in items]
    return [tuple(map(orjson.loads, orjson.loads(row[0])))[::-1] for row in found]


def _event_rows(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[list[tuple[Any, ...]]]:
    return [connection.execute(EVENT_SQL[name], bound).fetchall() for name, bound in items]


# -- session leases ------------------------------------------------------------------------------------------

LEASE_SQL = queries("astromesh.memory.backends", "sql/sqlite/leases.sql")


class SqliteLeases:
    """SessionLeases in the file of the turns; used only while several processes share that file."""

    def __init__(self, database: Database, clock: Clock, sole: SingleProcessLock) -> None:
        self._database = database
        self._clock = clock
        self.process_lock = sole

    @property
    def shared(self) -> bool:
        return not self.process_lock.exclusive

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        self.process_lock.before_sharing.append(work)

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()
        return await self._database.write(_take_leases, (*key, holder, now, now + seconds))

    async def renew(self, held: Sequence[SessionLease], seconds: float) -> tuple[bool | None, ...]:
        until = self._clock.now() + seconds
        return await self._database.write(_renew_leases, tuple((one.token, until) for one in held))

    async def release(self, held: SessionLease) -> None:
        await self._database.write(_run_lease_queries, ("release", (held.token,)))

    async def interrupt(self, key: SessionKey) -> None:
        await self._database.write(_run_lease_queries, ("interrupt", tuple(key)))

    async def forget(self, before: float) -> None:
        """Deletes leases that ended before a time and were never released."""
        await self._database.write(_run_lease_queries, ("forget", (before,)))


def holds_lease(connection: sqlite3.Connection, key: SessionKey, token: int) -> bool:
    """Whether its holder still has a lease. Runs inside a transaction."""
    return connection.execute(LEASE_SQL["holds"], (*key, token)).fetchone() is not None


def _take_leases(connection: sqlite3.Connection, items: Sequence[tuple[object, ...]]) -> Sequence[int | None]:
    return [_take_lease(connection, item) for item in items]


def _take_lease(connection: sqlite3.Connection, item: tuple[object, ...]) -> int | None:
    connection.execute(LEASE_SQL["clear"], item[:5])
    row = connection.execute(LEASE_SQL["take"], item).fetchone()
    return int(row[0]) if row else None


def _renew_leases(
    connection: sqlite3.Connection, items: Sequence[tuple[tuple[int, float], ...]]
) -> Sequence[tuple[bool | None, ...]]:
    return [tuple(_renew_lease(connection, one) for one in held) for held in items]


def _renew_lease(connection: sqlite3.Connection, one: tuple[int, float]) -> bool | None:
    row = connection.execute(LEASE_SQL["renew"], one).fetchone()
    return bool(row[0]) if row else None


def _run_lease_queries(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[None]:
    for name, bound in items:
        connection.execute(LEASE_SQL[name], bound)
    return [None] * len(items)


SCHEMA = Schema("conversations", _PACKAGE, "sql/sqlite/conversations")
SQL = queries(_PACKAGE, "sql/sqlite/conversations.sql")
_RECALL, _ADVANCE, _ADD_TURN, _ADD_PAIR = SQL["recall"], SQL["advance"], SQL["add_turn"], SQL["add_pair"]
#: sessions deleted in one transaction, so that other writers are not blocked
_CHUNK = 200


class SqliteOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str = Field(
        "", description="Database file, relative to the data folder; empty: the runtime's own file."
    )


class SqliteConversations:
    """A ConversationStore over one SQLite file, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = SqliteOptions

    def __init__(self, database: Database, clock: Clock, leases: SqliteLeases | None = None) -> None:
        self._database = database
        self._clock = clock
        self.leases: SessionLeases | None = leases
        self._leases = leases

    @classmethod
    async def open(cls, options: SqliteOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: a newer astromesh wrote it."""
        database = await shared_database(deps, options.path)
        store: Self = await deps.resources.shared(
            (cls, database.path), lambda: cls._open_shared(database, deps.clock)
        )
        return store

    @classmethod
    @asynccontextmanager
    async def _open_shared(cls, database: Database, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        async with SingleProcessLock(database.path) as sole:
            leases = SqliteLeases(database, clock, sole)
            if sole.exclusive:
                await leases.forget(math.inf)  # left by a killed process
            store = cls(database, clock, leases)
            async with expire_periodically(store.expire, clock):
                yield store

    async def recall(self, key: SessionKey, limit: int) -> RecalledTurns:
        return await self._database.read(recall, (key, limit, self._clock.now()))

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        item = AppendRequest(key, owner, turns, expires_at, self._clock.now(), token)
        return await self._database.write_or_withdraw(append, item)

    async def written(self, key: SessionKey, run_id: str) -> bool:
        return bool(await self._database.read(_rows, ("written", (*key, run_id, self._clock.now()))))

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        await self._database.write(set_summary, (key, summary))

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        rows = await self._database.read(_rows, ("page", (*key, self._clock.now(), after, limit)))
        return tuple(map(Turn._make, rows))

    async def info(self, key: SessionKey) -> SessionInfo | None:
        rows = await self._database.read(_rows, ("info", (*key, self._clock.now())))
        return SessionInfo(*rows[0]) if rows else None

    async def sessions(
        self, tenant: str, agent: str, *, owner: str | None = None, after: str = "", limit: int = 50
    ) -> tuple[SessionInfo, ...]:
        name, extra = ("list", ()) if owner is None else ("list_owned", (owner,))
        bound = (tenant, agent, after, self._clock.now(), limit, *extra)
        return tuple(SessionInfo(*row) for row in await self._database.read(_rows, (name, bound)))

    async def owned(
        self, tenant: str, owner: str, *, after: SessionKey | None = None, limit: int = 50
    ) -> tuple[SessionKey, ...]:
        _, *place = after or ("", "", "")
        bound = (tenant, owner, *place, self._clock.now(), limit)
        return tuple(SessionKey(*row) for row in await self._database.read(_rows, ("owned", bound)))

    async def erase(self, key: SessionKey) -> bool:
        return await self._database.change(SQL["erase"], *key) > 0

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.change_in_chunks(SQL["erase_owner"], tenant, owner, chunk=_CHUNK)

    async def expire(self, now: float) -> int:
        if self._leases is not None:
            await self._leases.forget(now - LEASE_GRACE_SECONDS)
        return await self._database.change_in_chunks(SQL["expire"], now, chunk=_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Does nothing: the database closes with the runtime's resources."""


class AppendRequest(NamedTuple):
    """One append. Args: now: seconds since the epoch."""

    key: SessionKey
    owner: str
    turns: Sequence[Turn]
    expires_at: float
    now: float
    token: int


def recall(
    connection: sqlite3.Connection, items: Sequence[tuple[SessionKey, int, float]]
) -> Sequence[RecalledTurns]:
    """Reads the end of each session: its row, then its newest turns by their key."""
    return [_recall(connection, key, limit, now) for key, limit, now in items]


def _recall(connection: sqlite3.Connection, key: SessionKey, limit: int, now: float) -> RecalledTurns:
    row = connection.execute(_RECALL, (*key, now, limit)).fetchone()
    if row is None:
        return _NO_SESSION
    owner, last_seq, text, upto, turns = row
    summary = Summary(text, upto) if text is not None else None
    return RecalledTurns(tuple(map(Turn._make, orjson.loads(turns))), summary, owner, last_seq)


def append(connection: sqlite3.Connection, items: Sequence[AppendRequest]) -> Sequence[int | BaseException]:
    """Appends all turns of each item; none if the session has another owner."""
    return [_append(connection, item) for item in items]


def _append(connection: sqlite3.Connection, item: AppendRequest) -> int | BaseException:
    key, owner, turns, expires_at, now, token = item
    if token and not holds_lease(connection, key, token):
        return LeaseLost(
            f"Another process has taken over the session {key.session_id!r}. Send this message again."
        )
    bound = (*key, owner, len(turns), now, expires_at)
    row = connection.execute(_ADVANCE, bound).fetchone()
    if row is None and connection.execute(SQL["erase_expired"], (*key, now)).rowcount:
        row = connection.execute(_ADVANCE, bound).fetchone()
    if row is None:
        return SessionNotFound(f"There is no session {key.session_id!r}.")
    session, last_seq = row
    first = last_seq - len(turns) + 1
    rows = [
        (t.role, t.content, seq, round(t.created_at or now, 3), t.run_id, t.status, t.tokens, session)
        for seq, t in enumerate(turns, first)
    ]
    if len(rows) == 2:
        connection.execute(_ADD_PAIR, rows[0] + rows[1])
    else:
        connection.executemany(_ADD_TURN, rows)
    return int(last_seq)


def set_summary(
    connection: sqlite3.Connection, items: Sequence[tuple[SessionKey, Summary]]
) -> Sequence[None]:
    """Stores summaries that cover more turns than the stored ones."""
    connection.executemany(SQL["summarise"], [(*key, s.text, s.upto) for key, s in items])
    return [None] * len(items)


def _rows(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[list[tuple[Any, ...]]]:
    return [connection.execute(SQL[name], bound).fetchall() for name, bound in items]


_NO_SESSION = RecalledTurns()
