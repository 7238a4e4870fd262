"""Session leases in PostgreSQL. Every query is in `sql/postgres/leases.sql`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from astromesh.abc.clock import Clock
from astromesh.abc.leases import Held
from astromesh.storage.migrations import queries
from astromesh.storage.postgres import Postgres
from astromesh.types import SessionKey

SQL = queries("astromesh.memory.backends", "sql/postgres/leases.sql")


class PostgresLeases:
    """SessionLeases in the database of the turns."""

    shared = True

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing: the store is always shared."""

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()
        rows = await self._database.write(SQL["take"], *key, holder, now, now + seconds)
        return int(rows[0][0]) if rows else None

    async def renew(self, held: Sequence[Held], seconds: float) -> tuple[bool | None, ...]:
        columns = [[one.key[n] for one in held] for n in range(3)]
        tokens = [one.token for one in held]
        rows = await self._database.write(SQL["renew"], *columns, tokens, self._clock.now() + seconds)
        asked = {row[0]: bool(row[1]) for row in rows}
        return tuple(asked.get(token) for token in tokens)

    async def release(self, held: Held) -> None:
        await self._database.write(SQL["release"], *held.key, held.token)

    async def interrupt(self, key: SessionKey) -> None:
        await self._database.write(SQL["interrupt"], *key)

    async def holds(self, held: Held) -> bool:
        """Whether a lease is still its holder's."""
        return bool(await self._database.read(SQL["holds"], *held.key, held.token))

    async def forget(self, before: float) -> None:
        """Deletes leases that ended before a time; nobody holds them, or ever gave them back."""
        await self._database.write(SQL["forget"], before)
