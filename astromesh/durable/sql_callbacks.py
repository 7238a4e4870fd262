"""Callbacks for both databases; triggers of the tables of runs and Tasks make the deliveries.

Queries are in `sql/callbacks.sql`, those of the callbacks of runs alone in `sql/runs.sql`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from astromesh.durable.base import Delivery, DeliveryQuery, StoredCallback, TakenDelivery
from astromesh.storage.queries import Dialect, Row, SqlStore, Transaction


class SqlDeliveries(SqlStore):
    """A DeliveryStore in the database of the runs or Tasks."""

    #: the fragments of `sql/callbacks.sql`
    delivery_tables: ClassVar[Mapping[str, str]]
    shared_files: ClassVar[Sequence[str]] = ("callbacks",)

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        return cls.delivery_tables

    async def take_callbacks(self, now: float, until: float, limit: int) -> tuple[TakenDelivery, ...]:
        rows = await self._queries.write("take_callbacks", now, until, limit)
        return tuple(TakenDelivery(*row) for row in rows)

    async def callback(self, number: int) -> StoredCallback | None:
        rows = await self._queries.read("callback", number)
        return _callback_of(rows[0]) if rows else None

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


class SqlCallbacks(SqlDeliveries):
    """A CallbackStore in the database of the runs."""

    delivery_tables: ClassVar[Mapping[str, str]] = {
        "callbacks": "callbacks",
        "deliveries": "callback_deliveries",
        "subjects": "runs",
        "id": "run_id",
        "target": "agent",
        "is_open": "s.status IN ('queued', 'running', 'waiting')",
        "words": "publisher, name",
    }

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "runs"

    async def callbacks_of(self, run_id: str, publisher: str) -> tuple[StoredCallback, ...]:
        return tuple(map(_callback_of, await self._queries.read("callbacks_of", run_id, publisher)))

    async def set_callback(self, run_id: str, callback: StoredCallback) -> bool:
        async def set_callback(tx: Transaction) -> bool:
            await _delete(tx, run_id, callback.publisher, callback.name)
            return await tx.execute("add_callback", *callback_values(run_id, callback)) > 0

        return await self._queries.transact(set_callback)

    async def delete_callback(self, run_id: str, publisher: str, name: str) -> bool:
        async def delete(tx: Transaction) -> bool:
            return await _delete(tx, run_id, publisher, name)

        return await self._queries.transact(delete)


def callback_values(run_id: str, callback: StoredCallback) -> tuple[object, ...]:
    """Returns the values of the query `add_callback`."""
    url, events, headers, publisher, name = callback
    return run_id, url, json.dumps(events), headers, publisher, name


def _callback_of(row: Row) -> StoredCallback:
    url, events, headers, publisher, name = row
    return StoredCallback(url, tuple(json.loads(events)), bytes(headers), publisher, name)


async def _delete(tx: Transaction, run_id: str, publisher: str, name: str) -> bool:
    await tx.execute("delete_deliveries", run_id, publisher, name)
    return await tx.execute("delete_callback", run_id, publisher, name) > 0
