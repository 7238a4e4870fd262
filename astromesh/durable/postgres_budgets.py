"""Budgets in PostgreSQL. Every query is in `sql/budgets.sql` or `sql/postgres/budgets.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

from pydantic import BaseModel, ConfigDict

from astromesh.durable.base import BudgetAccount, BudgetAmounts, BudgetCharge, BudgetRefusal, Reservation
from astromesh.durable.budgets import Entry, add_amounts, entries_of, negate, refusal_of
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, store_queries
from astromesh.storage.postgres import Connection, Postgres, shared_postgres
from astromesh.telemetry.clock import Clock

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("budgets", _PACKAGE, "sql/postgres/budgets")
SQL = store_queries(_PACKAGE, "budgets", "postgres")


class PostgresBudgets:
    """A BudgetStore over one database, for several servers."""

    class Options(BaseModel):
        """None: `storage.url` of runtime.yaml says where."""

        model_config = ConfigDict(extra="forbid")

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database, self._clock = database, clock

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        """Raises: ConfigError: a database of a newer astromesh. StoreError: it refuses us."""
        database = await shared_postgres(deps)
        await database.migrate(SCHEMA)
        return cls(database, deps.clock)

    async def reserve(
        self, reservations: Sequence[Reservation], settled: Sequence[BudgetCharge] = ()
    ) -> BudgetRefusal | None:
        return await self._database.transact(
            partial(_reserve, entries_of(reservations, settled), self._clock.now())
        )

    async def spent(self, account: BudgetAccount) -> BudgetAmounts:
        rows = await self._database.read(SQL["spent"], *account[:4])
        held = await self._database.read(SQL["held"], *account[:4], self._clock.now())
        return add_amounts(BudgetAmounts(*rows[0]) if rows else BudgetAmounts(), BudgetAmounts(*held[0]))

    async def renew(self, holder: str, expires_at: float) -> None:
        await self._database.write(SQL["renew"], holder, expires_at)

    async def release_holder(self, holder: str) -> None:
        await self._database.write(SQL["leave"], holder)

    async def expire(self) -> None:
        for name in ("expire", "expire_holds"):
            await self._database.write(SQL[name], self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return len(await self._database.write(SQL["erase_owner"], tenant, owner))


async def _reserve(item: list[Entry], now: float, connection: Connection) -> BudgetRefusal | None:
    refusal: BudgetRefusal | None = None
    granted: list[Reservation] = []
    for account, settled, want, ended in item:
        for hold in ended:
            await connection.execute(SQL["let_go"], hold)
        spent = await _add(account, settled, connection)
        if want is None or refusal is not None:
            continue
        refusal = refusal_of(spent, await _held(want, now, connection), want)
        if refusal is None:
            await _grant(want, connection)
            granted.append(want)
    if refusal is not None:
        for want in granted:
            await _take_back(want, connection)
    return refusal


async def _held(want: Reservation, now: float, connection: Connection) -> BudgetAmounts:
    """What is reserved, without what this run had reserved in a process before."""
    if want.hold is not None:
        mine = (now, want.hold.run_id, want.hold.holder)
        await connection.execute(SQL["clear"], *want.account[:4], *mine)
    rows = await connection.fetch(SQL["held"], *want.account[:4], now)
    return BudgetAmounts(*rows[0])


async def _grant(want: Reservation, connection: Connection) -> None:
    if want.hold is None:
        await _add(want.account, want.amounts, connection)
    else:
        await connection.execute(SQL["hold"], *want.account[:4], *want.hold, *want.amounts)


async def _take_back(want: Reservation, connection: Connection) -> None:
    if want.hold is None:
        await _add(want.account, negate(want.amounts), connection)
    else:
        await connection.execute(SQL["let_go"], want.hold.id)


async def _add(account: BudgetAccount, amounts: BudgetAmounts, connection: Connection) -> BudgetAmounts:
    rows = await connection.fetch(SQL["add"], *account, *amounts)
    return BudgetAmounts(*rows[0])
