"""Budgets in SQLite. Every query is in `sql/sqlite/budgets.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict

from astromesh.abc.budgets import Account, Amounts, Charge, Refusal, Want
from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.durable.budget_rules import Entry, entries, negative, used_up
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
        return await self._database.write(_reserve, entries(wants, settled))

    async def spent(self, account: Account) -> Amounts:
        return await self._database.read(_spent, account)

    async def expire(self) -> None:
        await self._database.write(_expire, self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write(_erase, (tenant, owner))


def _reserve(connection: sqlite3.Connection, items: Sequence[list[Entry]]) -> Sequence[Refusal | None]:
    return [_reserve_one(connection, item) for item in items]


def _reserve_one(connection: sqlite3.Connection, item: list[Entry]) -> Refusal | None:
    refusal, granted = None, []
    for account, settled, want in item:
        spent = _add(connection, account, settled)
        if want is None or refusal is not None:
            continue
        if key := used_up(spent, want):
            refusal = Refusal(account, key)
        else:
            _add(connection, account, want.amounts)
            granted.append(want)
    if refusal is not None:
        for want in granted:
            _add(connection, want.account, negative(want.amounts))
    return refusal


def _add(connection: sqlite3.Connection, account: Account, amounts: Amounts) -> Amounts:
    return Amounts(*connection.execute(SQL["add"], (*account, *amounts)).fetchone())


def _spent(connection: sqlite3.Connection, items: Sequence[Account]) -> Sequence[Amounts]:
    found = (connection.execute(SQL["spent"], account[:4]).fetchone() for account in items)
    return [Amounts(*row) if row else Amounts() for row in found]


def _expire(connection: sqlite3.Connection, items: Sequence[float]) -> Sequence[None]:
    connection.execute(SQL["expire"], (max(items),))
    return [None] * len(items)


def _erase(connection: sqlite3.Connection, items: Sequence[tuple[str, str]]) -> Sequence[int]:
    return [len(connection.execute(SQL["erase_owner"], item).fetchall()) for item in items]
