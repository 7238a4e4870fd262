"""Conversations in SQLite. Every query is in `sql/sqlite/conversations.sql`.

The functions of a connection run in the database's threads, each for all the items that wait
(`storage.lane`).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.leases import SessionLeases
from astromesh.abc.stores import Recalled, SessionInfo, Summary
from astromesh.errors import LeaseLost, SessionNotFound
from astromesh.memory.backends.expiry import LEFT_SECONDS, expiring
from astromesh.memory.backends.leases.sqlite import SqliteLeases, holds
from astromesh.storage.database import Database, shared_database
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.sole import Sole
from astromesh.types import SessionKey, Turn

_PACKAGE = "astromesh.memory.backends"
SCHEMA = Schema("conversations", _PACKAGE, "sql/sqlite/conversations")
SQL = queries(_PACKAGE, "sql/sqlite/conversations.sql")
_RECALL, _ADVANCE, _ADD_TURN, _ADD_PAIR = SQL["recall"], SQL["advance"], SQL["add_turn"], SQL["add_pair"]

#: sessions deleted in one transaction, so that others get their turn in between
_CHUNK = 200


class SqliteOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str = Field(
        "", description="Database file, relative to the data folder; empty: the runtime's own file."
    )


class SqliteConversations:
    """A ConversationStore over one SQLite file, which it may share with others."""

    Options: ClassVar[type[BaseModel]] = SqliteOptions

    def __init__(self, database: Database, clock: Clock, leases: SqliteLeases | None = None) -> None:
        self._database = database
        self._clock = clock
        self.leases: SessionLeases | None = leases
        self._leases = leases

    @classmethod
    async def open(cls, options: SqliteOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        database = await shared_database(deps, options.path)
        store: Self = await deps.resources.shared(
            (cls, database.path), lambda: cls._opened(database, deps.clock)
        )
        return store

    @classmethod
    @asynccontextmanager
    async def _opened(cls, database: Database, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        async with Sole(database.path) as sole:
            leases = SqliteLeases(database, clock, sole)
            if sole.alone:
                await leases.forget(math.inf)  # what a process left that was killed
            store = cls(database, clock, leases)
            async with expiring(store.expire, clock):
                yield store

    async def recall(self, key: SessionKey, limit: int) -> Recalled:
        return await self._database.read(recall, (key, limit, self._clock.now()))

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        item = Appended(key, owner, turns, expires_at, self._clock.now(), token)
        return await self._database.decide(append, item)

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
            await self._leases.forget(now - LEFT_SECONDS)
        return await self._database.change_in_chunks(SQL["expire"], now, chunk=_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the database closes with the runtime's resources."""


class Appended(NamedTuple):
    """One append. `now` in seconds since the epoch."""

    key: SessionKey
    owner: str
    turns: Sequence[Turn]
    expires_at: float
    now: float
    token: int


def recall(
    connection: sqlite3.Connection, items: Sequence[tuple[SessionKey, int, float]]
) -> Sequence[Recalled]:
    """The end of each session: its row, then its newest turns by their key."""
    return [_recall(connection, key, limit, now) for key, limit, now in items]


def _recall(connection: sqlite3.Connection, key: SessionKey, limit: int, now: float) -> Recalled:
    row = connection.execute(_RECALL, (*key, now, limit)).fetchone()
    if row is None:
        return _NOTHING
    owner, last_seq, text, upto, turns = row
    summary = Summary(text, upto) if text is not None else None
    return Recalled(tuple(map(Turn._make, orjson.loads(turns))), summary, owner, last_seq)


def append(connection: sqlite3.Connection, items: Sequence[Appended]) -> Sequence[int | BaseException]:
    """Appends all turns of each item, or none where the session is somebody else's."""
    return [_append(connection, item) for item in items]


def _append(connection: sqlite3.Connection, item: Appended) -> int | BaseException:
    key, owner, turns, expires_at, now, token = item
    if token and not holds(connection, key, token):
        return LeaseLost(f"The session {key.session_id!r} has been taken over; send this message again.")
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
    """Keeps summaries that reach farther than the one there is."""
    connection.executemany(SQL["summarise"], [(*key, s.text, s.upto) for key, s in items])
    return [None] * len(items)


def _rows(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[list[tuple[Any, ...]]]:
    return [connection.execute(SQL[name], bound).fetchall() for name, bound in items]


_NOTHING = Recalled()
