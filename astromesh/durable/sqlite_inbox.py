"""The inbox in SQLite. Every query is in `sql/inbox.sql` or `sql/sqlite/inbox.sql`.

The functions of a connection run in the database's threads, each for all the items that wait: a hundred
webhooks at once cost one transaction (`storage.lane`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

import orjson
from pydantic import BaseModel, ConfigDict

from astromesh.channels.base import DeliveryReport, InboundMessage, LeasedQueue, PendingMessage
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, store_queries
from astromesh.storage.sqlite import Database, shared_database

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("inbox", _PACKAGE, "sql/sqlite/inbox")
SQL = store_queries(_PACKAGE, "inbox", "sqlite")


class InboxOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SqliteInbox:
    """An Inbox in the runtime's own file; several processes of one machine may share it."""

    Options: ClassVar[type[BaseModel]] = InboxOptions

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, options: InboxOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        database = await shared_database(deps)
        store: Self = await deps.resources.shared((cls, database.path), lambda: cls._opened(database))
        return store

    @classmethod
    @asynccontextmanager
    async def _opened(cls, database: Database) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        yield cls(database)

    async def put(self, messages: Sequence[InboundMessage]) -> int:
        return await self._database.write(_put, messages)

    async def take(
        self, holder: str, channels: Sequence[str], now: float, until: float, limit: int
    ) -> tuple[LeasedQueue, ...]:
        bound = (holder, orjson.dumps(list(channels)).decode(), now, until, limit)
        return tuple(LeasedQueue(*row) for row in await self._database.write(_rows, ("take", bound)))

    async def next_due(self, channels: Sequence[str]) -> float | None:
        rows = await self._database.read(_rows, ("next_due", (orjson.dumps(list(channels)).decode(),)))
        due: float | None = rows[0][0]
        return due

    async def renew(self, holder: str, until: float) -> frozenset[str]:
        rows = await self._database.write(_rows, ("renew", (holder, until)))
        return frozenset(row[0] for row in rows)

    async def pending(self, queue: str, limit: int) -> tuple[PendingMessage, ...]:
        rows = await self._database.read(_rows, ("waiting", (queue, limit)))
        return tuple(PendingMessage(*row) for row in rows)

    async def begin(self, queue: str, holder: str, upto: int) -> bool:
        return await self._database.write(_change, ("begin", (queue, holder, upto)))

    async def answer(self, queue: str, holder: str, reply: bytes, upto: int) -> bool:
        return await self._database.write(_answer, (queue, holder, reply, upto))

    async def record_sent(self, queue: str, holder: str, sent: int, report: DeliveryReport) -> bool:
        return await self._database.write(_sent, (queue, holder, sent, report))

    async def finish(self, queue: str, holder: str, now: float) -> None:
        await self._database.write(_change, ("settle", (queue, holder, now)))

    async def release(self, queue: str, holder: str, due_at: float, attempts: int) -> None:
        await self._database.write(_change, ("release", (queue, holder, due_at, attempts)))

    async def release_holder(self, holder: str) -> None:
        await self._database.write(_change, ("release_holder", (holder,)))

    async def report(self, reports: Sequence[DeliveryReport]) -> tuple[bool, ...]:
        return await self._database.write(_report, reports)

    async def delivery_status(self, id: str) -> tuple[int, str]:
        rows = await self._database.read(_rows, ("fate", (id,)))
        return (rows[0][0], rows[0][1]) if rows else (0, "")

    async def erase(self, tenant: str, principal: str) -> int:
        names = ("erase_letters", "erase_sent", "erase_queues")
        return await self._database.write(_delete, (names, (tenant, principal)))

    async def expire(self, before: float) -> int:
        names = ("expire_letters", "expire_sent", "expire_queues")
        return await self._database.write(_delete, (names, (before,)))

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the database closes with the runtime's resources."""


# -- in the database's threads -------------------------------------------------------------------------------


def _put(connection: sqlite3.Connection, items: Sequence[Sequence[InboundMessage]]) -> Sequence[int]:
    return [sum(_add_message(connection, letter) for letter in letters) for letters in items]


def _add_message(connection: sqlite3.Connection, letter: InboundMessage) -> int:
    own = (letter.channel, letter.id, letter.queue, letter.content, letter.due_at, letter.now)
    if not connection.execute(SQL["add"], own).rowcount:
        return 0
    connection.execute(
        SQL["wake"],
        (
            letter.queue,
            letter.channel,
            letter.tenant,
            letter.principal,
            letter.address,
            letter.due_at,
            letter.now,
        ),
    )
    return 1


def _answer(connection: sqlite3.Connection, items: Sequence[tuple[str, str, bytes, int]]) -> Sequence[bool]:
    return [_answer_one(connection, *item) for item in items]


def _answer_one(connection: sqlite3.Connection, queue: str, holder: str, reply: bytes, upto: int) -> bool:
    held = connection.execute(SQL["answer"], (queue, holder, reply, upto)).rowcount > 0
    if held:
        connection.execute(SQL["forget"], (queue, upto))
    return held


def _sent(
    connection: sqlite3.Connection, items: Sequence[tuple[str, str, int, DeliveryReport]]
) -> Sequence[bool]:
    done = []
    for queue, holder, sent, report in items:
        if report.id:
            connection.execute(SQL["note_sent"], (report.id, queue, report.state, report.code, report.now))
        done.append(connection.execute(SQL["sent"], (queue, holder, sent)).rowcount > 0)
    return done


def _report(
    connection: sqlite3.Connection, items: Sequence[Sequence[DeliveryReport]]
) -> Sequence[tuple[bool, ...]]:
    return [tuple(_report_one(connection, report) for report in reports) for reports in items]


def _report_one(connection: sqlite3.Connection, report: DeliveryReport) -> bool:
    found = connection.execute(SQL["report"], report).fetchall()
    return bool(found and found[0][0])


def _rows(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[list[tuple[Any, ...]]]:
    return [connection.execute(SQL[name], bound).fetchall() for name, bound in items]


def _change(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[bool]:
    return [connection.execute(SQL[name], bound).rowcount > 0 for name, bound in items]


def _delete(
    connection: sqlite3.Connection, items: Sequence[tuple[tuple[str, ...], tuple[object, ...]]]
) -> Sequence[int]:
    return [sum(connection.execute(SQL[name], bound).rowcount for name in names) for names, bound in items]
