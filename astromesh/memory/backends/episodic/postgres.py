"""Events in PostgreSQL. Every query is in `sql/postgres/episodes.sql`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, Self

import orjson
from pydantic import BaseModel, Field, SecretStr

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.stores import OwnedEvent
from astromesh.memory.backends.episodic.event import EpisodicOptions, packed
from astromesh.memory.backends.expiry import expiring
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.postgres import Postgres, shared_postgres
from astromesh.types import JsonObject, SessionKey

_PACKAGE = "astromesh.memory.backends"
SCHEMA = Schema("episodes", _PACKAGE, "sql/postgres/episodes")
SQL = queries(_PACKAGE, "sql/postgres/episodes.sql")

#: events deleted in one statement
_CHUNK = 1000


class PostgresOptions(EpisodicOptions):
    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


class PostgresEvents:
    """An EpisodicStore over one database, which it shares with others."""

    Options: ClassVar[type[BaseModel]] = PostgresOptions

    def __init__(self, database: Postgres, options: PostgresOptions, clock: Clock) -> None:
        self._database, self._options, self._clock = database, options, clock

    @classmethod
    async def open(cls, options: PostgresOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a database of a newer astromesh. StoreError: it refuses us."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        store = cls(database, options, deps.clock)
        await deps.resources.shared((cls, database.address), store._opened)
        return store

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        await self._database.migrate(SCHEMA)
        async with expiring(self.expire, self._clock):
            yield

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        expires_at = now + self._options.ttl if self._options.ttl else 0.0
        newest = packed(events)[-self._options.keep :]
        await self._database.write(SQL["record"], *key, owner, expires_at, newest, self._options.keep)

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        rows = await self._database.read(SQL["recent"], *key, owner, self._clock.now(), limit)
        return tuple(orjson.loads(row[0]) for row in reversed(rows))

    @property
    def place(self) -> Hashable:
        return self._database

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        bound = (tenant, owner, after, self._clock.now(), limit)
        rows = await self._database.read(SQL["owned"], *bound)
        return tuple(OwnedEvent(row[0], row[1], row[2], orjson.loads(row[3])) for row in rows)

    async def erase(self, key: SessionKey) -> None:
        await self._database.write(SQL["erase"], *key)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write_in_chunks(SQL["erase_owner"], tenant, owner, chunk=_CHUNK)

    async def expire(self, now: float) -> int:
        return await self._database.write_in_chunks(SQL["expire"], now, chunk=_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the pool closes with the runtime's resources."""
