"""Budgets in SQLite. Every query is in `sql/budgets.sql` or `sql/sqlite/budgets.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict

from astromesh.durable.base import BudgetAccount, BudgetAmounts, BudgetCharge, BudgetRefusal, Reservation
from astromesh.durable.budgets import Entry, add_amounts, entries_of, negate, refusal_of
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, store_queries
from astromesh.storage.sqlite import Database, shared_database
from astromesh.telemetry.clock import Clock

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("budgets", _PACKAGE, "sql/sqlite/budgets")
SQL = store_queries(_PACKAGE, "budgets", "sqlite")


class SqliteBudgets:
    """A BudgetStore over one SQLite file, which several processes may use."""

    class Options(BaseModel):
        """None: `storage.url` of runtime.yaml says where."""

        model_config = ConfigDict(extra="forbid")

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        database = await shared_database(deps)
        await database.migrate(SCHEMA)
        return cls(database, deps.clock)

    async def reserve(
        self, reservations: Sequence[Reservation], settled: Sequence[BudgetCharge] = ()
    ) -> BudgetRefusal | None:
        return await self._database.write(_reserve, (entries_of(reservations, settled), self._clock.now()))

    async def spent(self, account: BudgetAccount) -> BudgetAmounts:
        return await self._database.read(_spent, (account, self._clock.now()))

    async def renew(self, holder: str, expires_at: float) -> None:
        await self._database.write(_run, ("renew", (holder, expires_at)))

    async def release_holder(self, holder: str) -> None:
        await self._database.write(_run, ("leave", (holder,)))

    async def expire(self) -> None:
        await self._database.write(_expire, self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write(_erase, (tenant, owner))


def _reserve(
    connection: sqlite3.Connection, items: Sequence[tuple[list[Entry], float]]
) -> Sequence[BudgetRefusal | None]:
    return [_reserve_one(connection, *item) for item in items]


def _reserve_one(connection: sqlite3.Connection, item: list[Entry], now: float) -> BudgetRefusal | None:
    refusal: BudgetRefusal | None = None
    granted: list[Reservation] = []
    for account, settled, want, ended in item:
        connection.executemany(SQL["let_go"], [(hold,) for hold in ended])
        spent = _add(connection, account, settled)
        if want is None or refusal is not None:
            continue
        refusal = refusal_of(spent, _held(connection, want, now), want)
        if refusal is None:
            _grant(connection, want)
            granted.append(want)
    if refusal is not None:
        for want in granted:
            _take_back(connection, want)
    return refusal


def _held(connection: sqlite3.Connection, want: Reservation, now: float) -> BudgetAmounts:
    """What is reserved, without what this run had reserved in a process before."""
    if want.hold is not None:
        connection.execute(SQL["clear"], (*want.account[:4], now, want.hold.run_id, want.hold.holder))
    return BudgetAmounts(*connection.execute(SQL["held"], (*want.account[:4], now)).fetchone())


def _grant(connection: sqlite3.Connection, want: Reservation) -> None:
    if want.hold is None:
        _add(connection, want.account, want.amounts)
    else:
        connection.execute(SQL["hold"], (*want.account[:4], *want.hold, *want.amounts))


def _take_back(connection: sqlite3.Connection, want: Reservation) -> None:
    if want.hold is None:
        _add(connection, want.account, negate(want.amounts))
    else:
        connection.execute(SQL["let_go"], (want.hold.id,))


def _add(connection: sqlite3.Connection, account: BudgetAccount, amounts: BudgetAmounts) -> BudgetAmounts:
    return BudgetAmounts(*connection.execute(SQL["add"], (*account, *amounts)).fetchone())


def _spent(
    connection: sqlite3.Connection, items: Sequence[tuple[BudgetAccount, float]]
) -> Sequence[BudgetAmounts]:
    return [_spent_one(connection, *item) for item in items]


def _spent_one(connection: sqlite3.Connection, account: BudgetAccount, now: float) -> BudgetAmounts:
    row = connection.execute(SQL["spent"], account[:4]).fetchone()
    held = connection.execute(SQL["held"], (*account[:4], now)).fetchone()
    return add_amounts(BudgetAmounts(*row) if row else BudgetAmounts(), BudgetAmounts(*held))


def _run(connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]) -> Sequence[None]:
    for name, bound in items:
        connection.execute(SQL[name], bound)
    return [None] * len(items)


def _expire(connection: sqlite3.Connection, items: Sequence[float]) -> Sequence[None]:
    for name in ("expire", "expire_holds"):
        connection.execute(SQL[name], (max(items),))
    return [None] * len(items)


def _erase(connection: sqlite3.Connection, items: Sequence[tuple[str, str]]) -> Sequence[int]:
    return [len(connection.execute(SQL["erase_owner"], item).fetchall()) for item in items]
