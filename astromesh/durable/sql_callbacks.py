"""The callbacks of runs, for both databases: queries in `sql/runs.sql`; a trigger makes the deliveries."""

from __future__ import annotations

from typing import ClassVar

from astromesh.durable.base import Delivery, DeliveryQuery, TakenDelivery
from astromesh.storage.queries import SqlStore, Transaction


class SqlCallbacks(SqlStore):
    """A CallbackStore in the database of the runs."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "runs"

    async def take_callbacks(self, now: float, until: float, limit: int) -> tuple[TakenDelivery, ...]:
        rows = await self._queries.write("take_callbacks", now, until, limit)
        return tuple(TakenDelivery(*row) for row in rows)

    async def callback(self, number: int) -> tuple[str, bytes] | None:
        rows = await self._queries.read("callback", number)
        return (rows[0][0], bytes(rows[0][1])) if rows else None

    async def end_callback_attempt(
        self, id: int, state: str, due_at: float, http_status: int, error: str
    ) -> None:
        await self._queries.write("end_callback_attempt", id, state, due_at, http_status, error)

    async def callbacks_expected(self) -> bool:
        return bool((await self._queries.read("callbacks_expected"))[0][0])

    async def callbacks(self, filter: DeliveryQuery) -> tuple[Delivery, ...]:
        return tuple(Delivery(*row) for row in await self._queries.read("callbacks", *filter))

    async def retry_callback(self, id: int, tenant: str, owner: str | None) -> bool:
        async def retry(tx: Transaction) -> bool:
            return await tx.execute("retry_callback", id, tenant, owner) > 0

        return await self._queries.transact(retry)
