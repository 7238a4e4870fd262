"""Conversations, their leases, and events in PostgreSQL: what is different there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from pydantic import BaseModel

from astromesh.memory.backends.sql import SqlConversations, SqlEvents, SqlLeases
from astromesh.memory.base import (
    EpisodicOptions,
    RecalledTurns,
    SessionLease,
    Summary,
    encode_events,
    lease_lost,
    no_session,
)
from astromesh.plugins import Deps
from astromesh.storage.migrations import opened_store, store_schema
from astromesh.storage.postgres import (
    Postgres,
    PostgresOptions,
    PostgresQueries,
    escape_nul,
    shared_postgres,
    unescape_nul,
)
from astromesh.storage.queries import SqlStore, store_queries
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SessionKey, Turn

SCHEMA, EVENT_SCHEMA = store_schema(SqlConversations, "postgres"), store_schema(SqlEvents, "postgres")


class PostgresEventOptions(EpisodicOptions, PostgresOptions):
    pass


class PostgresLeases(SqlLeases):
    """SessionLeases in the database of the turns."""

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()
        rows = await self._queries.write("take", *key.columns, holder, now, now + seconds)
        return int(rows[0][0]) if rows else None

    async def renew(self, held: Sequence[SessionLease], seconds: float) -> tuple[bool | None, ...]:
        columns = [[one.key.columns[n] for one in held] for n in range(3)]
        tokens = [one.token for one in held]
        rows = await self._queries.write("renew", *columns, tokens, self._clock.now() + seconds)
        interrupts = {row[0]: bool(row[1]) for row in rows}
        return tuple(interrupts.get(token) for token in tokens)

    async def holds(self, held: SessionLease) -> bool:
        """Whether its holder still has a lease."""
        return bool(await self._queries.read("holds", *held.key.columns, held.token))


def _turn(row: Iterable[Any]) -> Turn:
    role, content, *rest = row
    return Turn(role, unescape_nul(content), *rest)


class PostgresConversations(SqlConversations):
    """A ConversationStore over one database, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = PostgresOptions
    turn = staticmethod(_turn)

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self.leases = PostgresLeases(_queries(SqlLeases, database), clock)
        super().__init__(_queries(SqlConversations, database), clock, self.leases)
        self._database = database

    @classmethod
    async def open(cls, options: PostgresOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a newer astromesh wrote the tables. StoreError: no permission."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        made = cls(database, deps.clock)
        store: Self = await deps.resources.shared(
            (cls, database), lambda: opened_store(database, SCHEMA, made, deps.clock)
        )
        return store

    async def recall(self, key: SessionKey, limit: int) -> RecalledTurns:
        recalled = await super().recall(key, limit)
        if recalled.summary is None:
            return recalled
        return replace(recalled, summary=replace(recalled.summary, text=unescape_nul(recalled.summary.text)))

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        await super().set_summary(key, replace(summary, text=escape_nul(summary.text)))

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        now = self._clock.now()
        authors = [t.author for t in turns]
        bound = (*key.columns, owner, now, expires_at, *_columns(turns, now), token, authors)
        rows = await self._database.decide(_APPEND, *bound)
        if not rows and await self._queries.write("erase_expired", *key.columns, now):
            rows = await self._database.decide(_APPEND, *bound)
        if not rows and token and not await self.leases.holds(SessionLease(key, token)):
            raise lease_lost(key)
        if not rows:
            raise no_session(key)
        return int(rows[0][0])


class PostgresEvents(SqlEvents):
    """An EpisodicStore over one database, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = PostgresEventOptions

    @classmethod
    async def open(cls, options: PostgresEventOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a newer astromesh wrote the tables. StoreError: no permission."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        store = cls(_queries(cls, database), deps.clock, options, database)
        await deps.resources.shared(
            (cls, database), lambda: opened_store(database, EVENT_SCHEMA, store, deps.clock)
        )
        return store

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        keep = self._options.keep
        newest = encode_events(events)[-keep:]
        await self._queries.write("record", *key.columns, owner, self._expires_at(now), newest, keep)


def _queries(store: type[SqlStore], database: Postgres) -> PostgresQueries:
    return PostgresQueries(database, store_queries(store.package, store.name, "postgres", {}))


_APPEND = store_queries(SqlConversations.package, SqlConversations.name, "postgres", {})["append"]


def _columns(turns: Sequence[Turn], now: float) -> tuple[list[Any], ...]:
    """The turns as one array for each column, so that any number of turns is one statement."""
    return (
        [t.role for t in turns],
        [escape_nul(t.content) for t in turns],
        [round(t.created_at or now, 3) for t in turns],
        [t.run_id for t in turns],
        [t.status for t in turns],
        [t.tokens for t in turns],
    )
