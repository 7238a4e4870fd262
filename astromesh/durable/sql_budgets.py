"""The store of budgets, for both databases. The queries are in `sql/budgets.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from astromesh.durable.base import BudgetAccount, BudgetAmounts, BudgetCharge, BudgetRefusal, Reservation
from astromesh.durable.budgets import Entry, add_amounts, entries_of, grant_of, negate
from astromesh.storage.queries import SqlStore, Transaction


class SqlBudgets(SqlStore):
    """A BudgetStore over one database, which it may share with others."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "budgets"

    async def reserve(
        self, reservations: Sequence[Reservation], settled: Sequence[BudgetCharge] = ()
    ) -> BudgetRefusal | tuple[BudgetAmounts, ...]:
        entries = entries_of(reservations, settled)
        granted = await self._queries.transact(partial(_reserve, entries, self._clock.now()))
        if isinstance(granted, BudgetRefusal):
            return granted
        return tuple(granted[want.account[:4]] for want in reservations)

    async def spent(self, account: BudgetAccount) -> BudgetAmounts:
        rows = await self._queries.read("spent", *account[:4])
        reserved = await self._queries.read("reserved", *account[:4], self._clock.now())
        spent = BudgetAmounts(*rows[0]) if rows else BudgetAmounts()
        return add_amounts(spent, BudgetAmounts(*reserved[0]))

    async def accounts(
        self, tenant: str, owner: str | None, limit: int
    ) -> tuple[tuple[BudgetAccount, BudgetAmounts], ...]:
        rows = await self._queries.read("accounts", tenant, owner, self._clock.now(), limit)
        columns = map(tuple, rows)
        return tuple((BudgetAccount(*row[:6]), BudgetAmounts(*row[6:])) for row in columns)

    async def renew(self, holder: str, expires_at: float) -> None:
        await self._queries.write("renew", holder, expires_at)

    async def release_holder(self, holder: str) -> None:
        await self._queries.write("release_holder", holder)

    async def expire(self) -> None:
        for query in ("expire", "expire_holds"):
            await self._queries.write(query, self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return len(await self._queries.write("erase_owner", tenant, owner))


async def _reserve(
    entries: Sequence[Entry], now: float, tx: Transaction
) -> BudgetRefusal | dict[tuple[str, ...], BudgetAmounts]:
    """Returns the granted amounts by account, or why none is granted."""
    refusal: BudgetRefusal | None = None
    granted: dict[tuple[str, ...], BudgetAmounts] = {}
    wants: list[Reservation] = []
    for account, settled, want, ended in entries:
        for hold in ended:
            await tx.execute("release", hold)
        spent = await _add(account, settled, tx)
        if want is None or refusal is not None:
            continue
        grant = grant_of(spent, await _reserved(want, now, tx), want)
        if isinstance(grant, BudgetRefusal):
            refusal = grant
            continue
        wants.append(want._replace(amounts=grant))
        await _grant(wants[-1], tx)
        granted[want.account[:4]] = grant
    if refusal is None:
        return granted
    for want in wants:
        await _take_back(want, tx)
    return refusal


async def _reserved(want: Reservation, now: float, tx: Transaction) -> BudgetAmounts:
    """Returns what is reserved, without what this run has reserved in an earlier process."""
    if want.hold is not None:
        hold = want.hold
        await tx.execute("delete_stale_holds", *want.account[:4], now, hold.run_id, hold.holder)
    return BudgetAmounts(*(await tx.fetch("reserved", *want.account[:4], now))[0])


async def _grant(want: Reservation, tx: Transaction) -> None:
    if want.hold is None:
        await _add(want.account, want.amounts, tx)
    else:
        await tx.execute("reserve", *want.account[:4], *want.hold, *want.amounts)


async def _take_back(want: Reservation, tx: Transaction) -> None:
    if want.hold is None:
        await _add(want.account, negate(want.amounts), tx)
    else:
        await tx.execute("release", want.hold.id)


async def _add(account: BudgetAccount, amounts: BudgetAmounts, tx: Transaction) -> BudgetAmounts:
    return BudgetAmounts(*(await tx.fetch("add", *account, *amounts))[0])
