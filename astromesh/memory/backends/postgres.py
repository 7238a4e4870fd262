"""Conversations, their leases, and events in PostgreSQL. Every query is in `sql/postgres/`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.durable.base import SessionLease
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
from astromesh.storage.postgres import Postgres, escape_nul, shared_postgres, unescape_nul
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SessionKey, Turn

# -- events --------------------------------------------------------------------------------------------------

_PACKAGE = "astromesh.memory.backends"
EVENT_SCHEMA = Schema("episodes", _PACKAGE, "sql/postgres/episodes")
EVENT_SQL = queries(_PACKAGE, "sql/postgres/episodes.sql")
#: events deleted in one statement
_EVENT_CHUNK = 1000


class PostgresEventOptions(EpisodicOptions):
    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


class PostgresEvents:
    """An EpisodicStore over one database, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = PostgresEventOptions

    def __init__(self, database: Postgres, options: PostgresEventOptions, clock: Clock) -> None:
        self._database, self._options, self._clock = database, options, clock

    @classmethod
    async def open(cls, options: PostgresEventOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a newer astromesh wrote the database. StoreError: it refuses us."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        store = cls(database, options, deps.clock)
        await deps.resources.shared((cls, database.address), store._open_shared)
        return store

    @asynccontextmanager
    async def _open_shared(self) -> AsyncIterator[None]:
        await self._database.migrate(EVENT_SCHEMA)
        async with expire_periodically(self.expire, self._clock):
            yield

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        expires_at = now + self._options.ttl if self._options.ttl else 0.0
        newest = encode_events(events)[-self._options.keep :]
        await self._database.write(EVENT_SQL["record"], *key, owner, expires_at, newest, self._options.keep)

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        rows = await self._database.read(EVENT_SQL["recent"], *key, owner, self._clock.now(), limit)
        return tuple(orjson.loads(row[0]) for row in reversed(rows))

    @property
    def place(self) -> Hashable:
        return self._database

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        bound = (tenant, owner, after, self._clock.now(), limit)
        rows = await self._database.read(EVENT_SQL["owned"], *bound)
        return tuple(OwnedEvent(row[0], row[1], row[2], orjson.loads(row[3])) for row in rows)

    async def erase(self, key: SessionKey) -> None:
        await self._database.write(EVENT_SQL["erase"], *key)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write_in_chunks(
            EVENT_SQL["erase_owner"], tenant, owner, chunk=_EVENT_CHUNK
        )

    async def expire(self, now: float) -> int:
        return await self._database.write_in_chunks(EVENT_SQL["expire"], now, chunk=_EVENT_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Does nothing: the pool closes with the runtime's resources."""


# -- session leases ------------------------------------------------------------------------------------------

LEASE_SQL = queries("astromesh.memory.backends", "sql/postgres/leases.sql")


class PostgresLeases:
    """SessionLeases in the database of the turns."""

    shared = True

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does nothing: the store is always shared."""

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()
        rows = await self._database.write(LEASE_SQL["take"], *key, holder, now, now + seconds)
        return int(rows[0][0]) if rows else None

    async def renew(self, held: Sequence[SessionLease], seconds: float) -> tuple[bool | None, ...]:
        columns = [[one.key[n] for one in held] for n in range(3)]
        tokens = [one.token for one in held]
        rows = await self._database.write(LEASE_SQL["renew"], *columns, tokens, self._clock.now() + seconds)
        interrupts = {row[0]: bool(row[1]) for row in rows}
        return tuple(interrupts.get(token) for token in tokens)

    async def release(self, held: SessionLease) -> None:
        await self._database.write(LEASE_SQL["release"], *held.key, held.token)

    async def interrupt(self, key: SessionKey) -> None:
        await self._database.write(LEASE_SQL["interrupt"], *key)

    async def holds(self, held: SessionLease) -> bool:
        """Whether its holder still has a lease."""
        return bool(await self._database.read(LEASE_SQL["holds"], *held.key, held.token))

    async def forget(self, before: float) -> None:
        """Deletes leases that ended before a time and were never released."""
        await self._database.write(LEASE_SQL["forget"], before)


SCHEMA = Schema("conversations", _PACKAGE, "sql/postgres/conversations")
SQL = queries(_PACKAGE, "sql/postgres/conversations.sql")
#: sessions deleted in one statement, so that other writers are not blocked
_CHUNK = 200


class PostgresOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


class PostgresConversations:
    """A ConversationStore over one database, which other stores may share."""

    Options: ClassVar[type[BaseModel]] = PostgresOptions

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.leases = PostgresLeases(database, clock)

    @classmethod
    async def open(cls, options: PostgresOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a newer astromesh wrote the database. StoreError: it refuses us."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        store: Self = await deps.resources.shared(
            (cls, database.address), lambda: cls._open_shared(database, deps.clock)
        )
        return store

    @classmethod
    @asynccontextmanager
    async def _open_shared(cls, database: Postgres, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        store = cls(database, clock)
        async with expire_periodically(store.expire, clock):
            yield store

    async def recall(self, key: SessionKey, limit: int) -> RecalledTurns:
        rows = await self._database.read(SQL["recall"], *key, self._clock.now(), limit)
        if not rows:
            return _NO_SESSION
        owner, last_seq, text, upto, turns = rows[0]
        summary = Summary(unescape_nul(text), upto) if text is not None else None
        return RecalledTurns(tuple(map(_decode_turn, turns)), summary, owner, last_seq)

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        now = self._clock.now()
        bound = (*key, owner, now, expires_at, *_columns(turns, now), token)
        rows = await self._database.decide(SQL["append"], *bound)
        if not rows and await self._database.write(SQL["erase_expired"], *key, now):
            rows = await self._database.decide(SQL["append"], *bound)
        if not rows and token and not await self.leases.holds(SessionLease(key, token)):
            raise LeaseLost(
                f"Another process has taken over the session {key.session_id!r}. Send this message again."
            )
        if not rows:
            raise SessionNotFound(f"There is no session {key.session_id!r}.")
        return int(rows[0][0])

    async def written(self, key: SessionKey, run_id: str) -> bool:
        return bool(await self._database.read(SQL["written"], *key, run_id, self._clock.now()))

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        await self._database.write(SQL["summarise"], *key, escape_nul(summary.text), summary.upto)

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        rows = await self._database.read(SQL["page"], *key, self._clock.now(), after, limit)
        return tuple(map(_decode_turn, rows))

    async def info(self, key: SessionKey) -> SessionInfo | None:
        rows = await self._database.read(SQL["info"], *key, self._clock.now())
        return SessionInfo(*rows[0]) if rows else None

    async def sessions(
        self, tenant: str, agent: str, *, owner: str | None = None, after: str = "", limit: int = 50
    ) -> tuple[SessionInfo, ...]:
        name, extra = ("list", ()) if owner is None else ("list_owned", (owner,))
        rows = await self._database.read(SQL[name], tenant, agent, after, self._clock.now(), limit, *extra)
        return tuple(SessionInfo(*row) for row in rows)

    async def owned(
        self, tenant: str, owner: str, *, after: SessionKey | None = None, limit: int = 50
    ) -> tuple[SessionKey, ...]:
        _, *place = after or ("", "", "")
        rows = await self._database.read(SQL["owned"], tenant, owner, *place, self._clock.now(), limit)
        return tuple(SessionKey(*row) for row in rows)

    async def erase(self, key: SessionKey) -> bool:
        return bool(await self._database.write(SQL["erase"], *key))

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write_in_chunks(SQL["erase_owner"], tenant, owner, chunk=_CHUNK)

    async def expire(self, now: float) -> int:
        await self.leases.forget(now - LEASE_GRACE_SECONDS)
        return await self._database.write_in_chunks(SQL["expire"], now, chunk=_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Does nothing: the pool closes with the runtime's resources."""


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


def _decode_turn(row: Iterable[Any]) -> Turn:
    role, content, *rest = row
    return Turn(role, unescape_nul(content), *rest)


_NO_SESSION = RecalledTurns()
