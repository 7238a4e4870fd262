"""Budgets in PostgreSQL. Every query is in `sql/postgres/budgets.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

from pydantic import BaseModel, ConfigDict

from astromesh.abc.budgets import Account, Amounts, Charge, Refusal, Want
from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.durable.budget_rules import Entry, entries, negative, used_up
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.postgres import Connection, Postgres, shared_postgres

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("budgets", _PACKAGE, "sql/postgres/budgets")
SQL = queries(_PACKAGE, "sql/postgres/budgets.sql")


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

    async def reserve(self, wants: Sequence[Want], settled: Sequence[Charge] = ()) -> Refusal | None:
        return await self._database.transact(partial(_reserve, entries(wants, settled)))

    async def spent(self, account: Account) -> Amounts:
        rows = await self._database.read(SQL["spent"], *account[:4])
        return Amounts(*rows[0]) if rows else Amounts()

    async def expire(self) -> None:
        await self._database.write(SQL["expire"], self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return len(await self._database.write(SQL["erase_owner"], tenant, owner))


async def _reserve(item: list[Entry], connection: Connection) -> Refusal | None:
    refusal, granted = None, []
    for account, settled, want in item:
        spent = await _add(account, settled, connection)
        if want is None or refusal is not None:
            continue
        if key := used_up(spent, want):
            refusal = Refusal(account, key)
        else:
            await _add(account, want.amounts, connection)
            granted.append(want)
    if refusal is not None:
        for want in granted:
            await _add(want.account, negative(want.amounts), connection)
    return refusal


async def _add(account: Account, amounts: Amounts, connection: Connection) -> Amounts:
    rows = await connection.fetch(SQL["add"], *account, *amounts)
    return Amounts(*rows[0])
