"""Conversations in PostgreSQL. Every query is in `sql/postgres/conversations.sql`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.leases import Held
from astromesh.abc.stores import Recalled, SessionInfo, Summary
from astromesh.errors import LeaseLost, SessionNotFound
from astromesh.memory.backends.expiry import LEFT_SECONDS, expiring
from astromesh.memory.backends.leases.postgres import PostgresLeases
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.postgres import Postgres, shared_postgres
from astromesh.storage.postgres_text import restored, stored
from astromesh.types import SessionKey, Turn

_PACKAGE = "astromesh.memory.backends"
SCHEMA = Schema("conversations", _PACKAGE, "sql/postgres/conversations")
SQL = queries(_PACKAGE, "sql/postgres/conversations.sql")

#: sessions deleted in one statement, so that others get their turn in between
_CHUNK = 200


class PostgresOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


class PostgresConversations:
    """A ConversationStore over one database, which it shares with others."""

    Options: ClassVar[type[BaseModel]] = PostgresOptions

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.leases = PostgresLeases(database, clock)

    @classmethod
    async def open(cls, options: PostgresOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a database of a newer astromesh. StoreError: it refuses us."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        store: Self = await deps.resources.shared(
            (cls, database.address), lambda: cls._opened(database, deps.clock)
        )
        return store

    @classmethod
    @asynccontextmanager
    async def _opened(cls, database: Postgres, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        store = cls(database, clock)
        async with expiring(store.expire, clock):
            yield store

    async def recall(self, key: SessionKey, limit: int) -> Recalled:
        rows = await self._database.read(SQL["recall"], *key, self._clock.now(), limit)
        if not rows:
            return _NOTHING
        owner, last_seq, text, upto, turns = rows[0]
        summary = Summary(restored(text), upto) if text is not None else None
        return Recalled(tuple(map(_turn, turns)), summary, owner, last_seq)

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        now = self._clock.now()
        bound = (*key, owner, now, expires_at, *_columns(turns, now), token)
        rows = await self._database.decide(SQL["append"], *bound)
        if not rows and await self._database.write(SQL["erase_expired"], *key, now):
            rows = await self._database.decide(SQL["append"], *bound)
        if not rows and token and not await self.leases.holds(Held(key, token)):
            raise LeaseLost(f"The session {key.session_id!r} has been taken over; send this message again.")
        if not rows:
            raise SessionNotFound(f"There is no session {key.session_id!r}.")
        return int(rows[0][0])

    async def written(self, key: SessionKey, run_id: str) -> bool:
        return bool(await self._database.read(SQL["written"], *key, run_id, self._clock.now()))

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        await self._database.write(SQL["summarise"], *key, stored(summary.text), summary.upto)

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        rows = await self._database.read(SQL["page"], *key, self._clock.now(), after, limit)
        return tuple(map(_turn, rows))

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
        await self.leases.forget(now - LEFT_SECONDS)
        return await self._database.write_in_chunks(SQL["expire"], now, chunk=_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the pool closes with the runtime's resources."""


def _columns(turns: Sequence[Turn], now: float) -> tuple[list[Any], ...]:
    """The turns as arrays, one by column, so that any number of them is one statement."""
    return (
        [t.role for t in turns],
        [stored(t.content) for t in turns],
        [round(t.created_at or now, 3) for t in turns],
        [t.run_id for t in turns],
        [t.status for t in turns],
        [t.tokens for t in turns],
    )


def _turn(row: Iterable[Any]) -> Turn:
    role, content, *rest = row
    return Turn(role, restored(content), *rest)


_NOTHING = Recalled()
