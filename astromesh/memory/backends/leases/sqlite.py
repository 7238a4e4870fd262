"""Session leases in SQLite. Every query is in `sql/sqlite/leases.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence

from astromesh.abc.clock import Clock
from astromesh.abc.leases import Held
from astromesh.storage.database import Database
from astromesh.storage.migrations import queries
from astromesh.storage.sole import Sole
from astromesh.types import SessionKey

SQL = queries("astromesh.memory.backends", "sql/sqlite/leases.sql")


class SqliteLeases:
    """SessionLeases in the file of the turns; needed only while several processes use that file."""

    def __init__(self, database: Database, clock: Clock, sole: Sole) -> None:
        self._database = database
        self._clock = clock
        self.sole = sole

    @property
    def shared(self) -> bool:
        return not self.sole.alone

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        self.sole.before_sharing.append(work)

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()
        return await self._database.write(_take, (*key, holder, now, now + seconds))

    async def renew(self, held: Sequence[Held], seconds: float) -> tuple[bool | None, ...]:
        until = self._clock.now() + seconds
        return await self._database.write(_renew, tuple((one.token, until) for one in held))

    async def release(self, held: Held) -> None:
        await self._database.write(_run, ("release", (held.token,)))

    async def interrupt(self, key: SessionKey) -> None:
        await self._database.write(_run, ("interrupt", tuple(key)))

    async def forget(self, before: float) -> None:
        """Deletes leases that ended before a time; nobody holds them, or ever gave them back."""
        await self._database.write(_run, ("forget", (before,)))


def holds(connection: sqlite3.Connection, key: SessionKey, token: int) -> bool:
    """Inside a transaction: whether a lease is still its holder's."""
    return connection.execute(SQL["holds"], (*key, token)).fetchone() is not None


def _take(connection: sqlite3.Connection, items: Sequence[tuple[object, ...]]) -> Sequence[int | None]:
    return [_take_one(connection, item) for item in items]


def _take_one(connection: sqlite3.Connection, item: tuple[object, ...]) -> int | None:
    connection.execute(SQL["clear"], item[:5])
    row = connection.execute(SQL["take"], item).fetchone()
    return int(row[0]) if row else None


def _renew(
    connection: sqlite3.Connection, items: Sequence[tuple[tuple[int, float], ...]]
) -> Sequence[tuple[bool | None, ...]]:
    return [tuple(_renew_one(connection, one) for one in held) for held in items]


def _renew_one(connection: sqlite3.Connection, one: tuple[int, float]) -> bool | None:
    row = connection.execute(SQL["renew"], one).fetchone()
    return bool(row[0]) if row else None


def _run(connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]) -> Sequence[None]:
    for name, bound in items:
        connection.execute(SQL[name], bound)
    return [None] * len(items)
