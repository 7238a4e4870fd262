"""Budgets in SQLite. Every query is in `sql/sqlite/budgets.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict

from astromesh.abc.budgets import Account, Amounts, Charge, Refusal, Want
from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.durable.budget_rules import Entry, added, entries, negative, refused
from astromesh.storage.database import Database, shared_database
from astromesh.storage.migrations import Schema, queries

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("budgets", _PACKAGE, "sql/sqlite/budgets")
SQL = queries(_PACKAGE, "sql/sqlite/budgets.sql")


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

    async def reserve(self, wants: Sequence[Want], settled: Sequence[Charge] = ()) -> Refusal | None:
        return await self._database.write(_reserve, (entries(wants, settled), self._clock.now()))

    async def spent(self, account: Account) -> Amounts:
        return await self._database.read(_spent, (account, self._clock.now()))

    async def renew(self, holder: str, expires_at: float) -> None:
        await self._database.write(_run, ("renew", (holder, expires_at)))

    async def leave(self, holder: str) -> None:
        await self._database.write(_run, ("leave", (holder,)))

    async def expire(self) -> None:
        await self._database.write(_expire, self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write(_erase, (tenant, owner))


def _reserve(
    connection: sqlite3.Connection, items: Sequence[tuple[list[Entry], float]]
) -> Sequence[Refusal | None]:
    return [_reserve_one(connection, *item) for item in items]


def _reserve_one(connection: sqlite3.Connection, item: list[Entry], now: float) -> Refusal | None:
    refusal: Refusal | None = None
    granted: list[Want] = []
    for account, settled, want, ended in item:
        connection.executemany(SQL["let_go"], [(hold,) for hold in ended])
        spent = _add(connection, account, settled)
        if want is None or refusal is not None:
            continue
        refusal = refused(spent, _held(connection, want, now), want)
        if refusal is None:
            _grant(connection, want)
            granted.append(want)
    if refusal is not None:
        for want in granted:
            _take_back(connection, want)
    return refusal


def _held(connection: sqlite3.Connection, want: Want, now: float) -> Amounts:
    """What is reserved, without what this run had reserved in a process before."""
    if want.hold is not None:
        connection.execute(SQL["clear"], (*want.account[:4], now, want.hold.run_id, want.hold.holder))
    return Amounts(*connection.execute(SQL["held"], (*want.account[:4], now)).fetchone())


def _grant(connection: sqlite3.Connection, want: Want) -> None:
    if want.hold is None:
        _add(connection, want.account, want.amounts)
    else:
        connection.execute(SQL["hold"], (*want.account[:4], *want.hold, *want.amounts))


def _take_back(connection: sqlite3.Connection, want: Want) -> None:
    if want.hold is None:
        _add(connection, want.account, negative(want.amounts))
    else:
        connection.execute(SQL["let_go"], (want.hold.id,))


def _add(connection: sqlite3.Connection, account: Account, amounts: Amounts) -> Amounts:
    return Amounts(*connection.execute(SQL["add"], (*account, *amounts)).fetchone())


def _spent(connection: sqlite3.Connection, items: Sequence[tuple[Account, float]]) -> Sequence[Amounts]:
    return [_spent_one(connection, *item) for item in items]


def _spent_one(connection: sqlite3.Connection, account: Account, now: float) -> Amounts:
    row = connection.execute(SQL["spent"], account[:4]).fetchone()
    held = connection.execute(SQL["held"], (*account[:4], now)).fetchone()
    return added(Amounts(*row) if row else Amounts(), Amounts(*held))


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
