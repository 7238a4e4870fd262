"""Conversations, their leases, and events in a SQL database: what SQLite and PostgreSQL share.

The queries of both databases are in `sql/`, those of one database in `sql/sqlite/` and `sql/postgres/`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, ClassVar

import orjson

from astromesh.memory.base import (
    NO_SESSION,
    EpisodicOptions,
    OwnedEvent,
    RecalledTurns,
    SessionInfo,
    SessionLease,
    Summary,
    session_info,
)
from astromesh.storage.migrations import LEASE_GRACE_SECONDS
from astromesh.storage.queries import Queries, SqlStore, write_in_chunks
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SessionKey, Turn

_PACKAGE = "astromesh.memory.backends"
#: sessions and events deleted in one transaction, so that other writers are not blocked
_SESSION_CHUNK, _EVENT_CHUNK = 200, 1000


class SqlLeases(SqlStore):
    """SessionLeases in the database of the turns."""

    package: ClassVar[str] = _PACKAGE
    name: ClassVar[str] = "leases"

    @property
    def shared(self) -> bool:
        return True

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does nothing: the store is always shared."""

    async def release(self, held: SessionLease) -> None:
        await self._queries.write("release", *held.key.columns, held.token)

    async def interrupt(self, key: SessionKey) -> None:
        await self._queries.write("interrupt", *key.columns)

    async def forget(self, before: float) -> None:
        """Deletes leases that ended before a time and were never released."""
        await self._queries.write("forget", before)


class SqlConversations(SqlStore):
    """A ConversationStore over one database, which other stores may share. Subclasses append and migrate."""

    package: ClassVar[str] = _PACKAGE
    name: ClassVar[str] = "conversations"
    #: makes a turn of its columns
    turn: Callable[[Iterable[Any]], Turn] = Turn._make

    def __init__(self, queries: Queries, clock: Clock, leases: SqlLeases | None) -> None:
        super().__init__(queries, clock)
        self._leases = leases

    async def recall(self, key: SessionKey, limit: int) -> RecalledTurns:
        rows = await self._queries.read("recall", *key.columns, self._clock.now(), limit)
        if not rows:
            return NO_SESSION
        owner, last_seq, text, upto, turns = rows[0]
        summary = Summary(text, upto) if text is not None else None
        found = orjson.loads(turns) if isinstance(turns, str) else turns
        return RecalledTurns(tuple(map(self.turn, found)), summary, owner, last_seq)

    async def written(self, key: SessionKey, run_id: str) -> bool:
        return bool(await self._queries.read("written", *key.columns, run_id, self._clock.now()))

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        await self._queries.write("summarise", *key.columns, summary.text, summary.upto)

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        rows = await self._queries.read("page", *key.columns, self._clock.now(), after, limit)
        return tuple(map(self.turn, rows))

    async def info(self, key: SessionKey) -> SessionInfo | None:
        rows = await self._queries.read("info", *key.columns, self._clock.now())
        return session_info(*rows[0]) if rows else None

    async def sessions(
        self, tenant: str, agent: str, *, owner: str | None = None, after: str = "", limit: int = 50
    ) -> tuple[SessionInfo, ...]:
        name, extra = ("list", ()) if owner is None else ("list_owned", (owner,))
        rows = await self._queries.read(name, tenant, agent, after, self._clock.now(), limit, *extra)
        return tuple(session_info(*row) for row in rows)

    async def owned(
        self, tenant: str, owner: str, *, after: SessionKey | None = None, limit: int = 50
    ) -> tuple[SessionKey, ...]:
        _, *place = after.columns if after is not None else ("", "", "")
        rows = await self._queries.read("owned", tenant, owner, *place, self._clock.now(), limit)
        return tuple(SessionKey.of_columns(*row) for row in rows)

    async def erase(self, key: SessionKey) -> bool:
        return bool(await self._queries.write("erase", *key.columns))

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await write_in_chunks(self._queries, "erase_owner", tenant, owner, chunk=_SESSION_CHUNK)

    async def expire(self, now: float) -> int:
        if self._leases is not None:
            await self._leases.forget(now - LEASE_GRACE_SECONDS)
        return await write_in_chunks(self._queries, "expire", now, chunk=_SESSION_CHUNK)


class SqlEvents(SqlStore):
    """An EpisodicStore over one database, which other stores may share. Subclasses record and migrate."""

    package: ClassVar[str] = _PACKAGE
    name: ClassVar[str] = "episodes"

    def __init__(self, queries: Queries, clock: Clock, options: EpisodicOptions, place: Hashable) -> None:
        super().__init__(queries, clock)
        self._options, self.place = options, place

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        [(events,)] = await self._queries.read("recent", *key.columns, owner, self._clock.now(), limit)
        return tuple(map(orjson.loads, orjson.loads(events)))[::-1]

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        rows = await self._queries.read("owned", tenant, owner, after, self._clock.now(), limit)
        return tuple(
            OwnedEvent(
                row[0], row[1], SessionKey.of_columns(tenant, row[1], row[2]).session_id, orjson.loads(row[3])
            )
            for row in rows
        )

    async def erase(self, key: SessionKey) -> None:
        await self._queries.write("erase", *key.columns)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await write_in_chunks(self._queries, "erase_owner", tenant, owner, chunk=_EVENT_CHUNK)

    async def expire(self, now: float) -> int:
        return await write_in_chunks(self._queries, "expire", now, chunk=_EVENT_CHUNK)

    def _expires_at(self, now: float) -> float:
        return now + self._options.ttl if self._options.ttl else 0.0
