"""The inbox in PostgreSQL, for several servers.

Every query is in `sql/inbox.sql` or `sql/postgres/inbox.sql`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from astromesh.channels.base import DeliveryReport, InboundMessage, LeasedQueue, PendingMessage
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, store_queries
from astromesh.storage.postgres import Connection, Postgres, shared_postgres

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("inbox", _PACKAGE, "sql/postgres/inbox")
SQL = store_queries(_PACKAGE, "inbox", "postgres")


class InboxOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PostgresInbox:
    """An Inbox in the database of `storage.url`."""

    Options: ClassVar[type[BaseModel]] = InboxOptions

    def __init__(self, database: Postgres) -> None:
        self._database = database

    @classmethod
    async def open(cls, options: InboxOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a database of a newer astromesh. StoreError: it refuses us."""
        database = await shared_postgres(deps)
        store: Self = await deps.resources.shared((cls, database.address), lambda: cls._opened(database))
        return store

    @classmethod
    @asynccontextmanager
    async def _opened(cls, database: Postgres) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        yield cls(database)

    async def put(self, messages: Sequence[InboundMessage]) -> int:
        columns = [list(column) for column in zip(*messages, strict=True)]
        if not columns:
            return 0
        rows = await self._database.write(SQL["put"], *columns)
        return int(rows[0][0])

    async def take(
        self, holder: str, channels: Sequence[str], now: float, until: float, limit: int
    ) -> tuple[LeasedQueue, ...]:
        rows = await self._database.write(SQL["take"], holder, list(channels), now, until, limit)
        return tuple(LeasedQueue(*row) for row in rows)

    async def next_due(self, channels: Sequence[str]) -> float | None:
        rows = await self._database.read(SQL["next_due"], list(channels))
        due: float | None = rows[0][0]
        return due

    async def renew(self, holder: str, until: float) -> frozenset[str]:
        return frozenset(row[0] for row in await self._database.write(SQL["renew"], holder, until))

    async def pending(self, queue: str, limit: int) -> tuple[PendingMessage, ...]:
        return tuple(PendingMessage(*row) for row in await self._database.read(SQL["waiting"], queue, limit))

    async def begin(self, queue: str, holder: str, upto: int) -> bool:
        return bool(await self._database.write(SQL["begin"], queue, holder, upto))

    async def answer(self, queue: str, holder: str, reply: bytes, upto: int) -> bool:
        return bool(await self._database.write(SQL["answer"], queue, holder, reply, upto))

    async def record_sent(self, queue: str, holder: str, sent: int, report: DeliveryReport) -> bool:
        bound = (queue, holder, sent, report.id, report.state, report.code, report.now)
        return bool(await self._database.write(SQL["sent"], *bound))

    async def finish(self, queue: str, holder: str, now: float) -> None:
        await self._database.transact(partial(_settled, queue, holder, now))

    async def release(self, queue: str, holder: str, due_at: float, attempts: int) -> None:
        await self._database.write(SQL["release"], queue, holder, due_at, attempts)

    async def release_holder(self, holder: str) -> None:
        await self._database.write(SQL["release_holder"], holder)

    async def report(self, reports: Sequence[DeliveryReport]) -> tuple[bool, ...]:
        return await self._database.transact(partial(_reported, reports))

    async def delivery_status(self, id: str) -> tuple[int, str]:
        rows = await self._database.read(SQL["fate"], id)
        return (rows[0][0], rows[0][1]) if rows else (0, "")

    async def erase(self, tenant: str, principal: str) -> int:
        names = ("erase_letters", "erase_sent", "erase_queues")
        return await self._database.transact(partial(_deleted, names, (tenant, principal)))

    async def expire(self, before: float) -> int:
        names = ("expire_letters", "expire_sent", "expire_queues")
        return await self._database.transact(partial(_deleted, names, (before,)))

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the pool closes with the runtime's resources."""


async def _settled(queue: str, holder: str, now: float, connection: Connection) -> None:
    """The queue is locked first, so that the statement after it sees every letter that woke the queue."""
    await connection.execute(SQL["lock"], queue)
    await connection.execute(SQL["settle"], queue, holder, now)


async def _reported(reports: Sequence[DeliveryReport], connection: Connection) -> tuple[bool, ...]:
    """In the order of their ids, so that two servers never wait for one another in a circle."""
    news = [False] * len(reports)
    for place, report in sorted(enumerate(reports), key=lambda one: one[1].id):
        news[place] = bool(await connection.fetchval(SQL["report"], *report))
    return tuple(news)


async def _deleted(names: Sequence[str], bound: tuple[object, ...], connection: Connection) -> int:
    return sum([len(await connection.fetch(SQL[name], *bound)) for name in names])
