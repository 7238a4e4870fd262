"""Budgets in PostgreSQL. Every query is in `sql/postgres/budgets.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

from pydantic import BaseModel, ConfigDict

from astromesh.abc.budgets import Account, Amounts, Charge, Refusal, Want
from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.durable.budget_rules import Entry, added, entries, negative, refused
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
        return await self._database.transact(partial(_reserve, entries(wants, settled), self._clock.now()))

    async def spent(self, account: Account) -> Amounts:
        rows = await self._database.read(SQL["spent"], *account[:4])
        held = await self._database.read(SQL["held"], *account[:4], self._clock.now())
        return added(Amounts(*rows[0]) if rows else Amounts(), Amounts(*held[0]))

    async def renew(self, holder: str, expires_at: float) -> None:
        await self._database.write(SQL["renew"], holder, expires_at)

    async def leave(self, holder: str) -> None:
        await self._database.write(SQL["leave"], holder)

    async def expire(self) -> None:
        for name in ("expire", "expire_holds"):
            await self._database.write(SQL[name], self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return len(await self._database.write(SQL["erase_owner"], tenant, owner))


async def _reserve(item: list[Entry], now: float, connection: Connection) -> Refusal | None:
    refusal: Refusal | None = None
    granted: list[Want] = []
    for account, settled, want, ended in item:
        for hold in ended:
            await connection.execute(SQL["let_go"], hold)
        spent = await _add(account, settled, connection)
        if want is None or refusal is not None:
            continue
        refusal = refused(spent, await _held(want, now, connection), want)
        if refusal is None:
            await _grant(want, connection)
            granted.append(want)
    if refusal is not None:
        for want in granted:
            await _take_back(want, connection)
    return refusal


async def _held(want: Want, now: float, connection: Connection) -> Amounts:
    """What is reserved, without what this run had reserved in a process before."""
    if want.hold is not None:
        mine = (now, want.hold.run_id, want.hold.holder)
        await connection.execute(SQL["clear"], *want.account[:4], *mine)
    rows = await connection.fetch(SQL["held"], *want.account[:4], now)
    return Amounts(*rows[0])


async def _grant(want: Want, connection: Connection) -> None:
    if want.hold is None:
        await _add(want.account, want.amounts, connection)
    else:
        await connection.execute(SQL["hold"], *want.account[:4], *want.hold, *want.amounts)


async def _take_back(want: Want, connection: Connection) -> None:
    if want.hold is None:
        await _add(want.account, negative(want.amounts), connection)
    else:
        await connection.execute(SQL["let_go"], want.hold.id)


async def _add(account: Account, amounts: Amounts, connection: Connection) -> Amounts:
    rows = await connection.fetch(SQL["add"], *account, *amounts)
    return Amounts(*rows[0])
