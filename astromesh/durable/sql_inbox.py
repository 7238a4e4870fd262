"""The store of the inbox, for both databases. The queries are in `sql/inbox.sql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from astromesh.channels.base import (
    ChannelBacklog,
    DeliveryReport,
    InboundMessage,
    LeasedQueue,
    PendingMessage,
)
from astromesh.storage.queries import SqlStore, Transaction


class SqlInbox(SqlStore):
    """An Inbox over one database, which it may share with others."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "inbox"

    async def put(self, messages: Sequence[InboundMessage]) -> int:
        async def put(tx: Transaction) -> int:
            return sum([await _add(message, tx) for message in messages])

        return await self._queries.transact(put, synced=True)

    async def take(
        self, holder: str, channels: Sequence[str], now: float, until: float, limit: int
    ) -> tuple[LeasedQueue, ...]:
        rows = await self._queries.write("take", holder, list(channels), now, until, limit)
        return tuple(LeasedQueue(*row) for row in rows)

    async def next_due(self, channels: Sequence[str]) -> float | None:
        due: float | None = (await self._queries.read("next_due", list(channels)))[0][0]
        return due

    async def backlog(self) -> Mapping[str, ChannelBacklog]:
        waiting: dict[str, int] = {row[0]: row[1] for row in await self._queries.read("waiting")}
        retried: dict[str, int] = {row[0]: row[1] for row in await self._queries.read("retried")}
        names = waiting.keys() | retried.keys()
        return {name: ChannelBacklog(waiting.get(name, 0), retried.get(name, 0)) for name in names}

    async def renew(self, holder: str, until: float) -> frozenset[str]:
        return frozenset(row[0] for row in await self._queries.write("renew", holder, until))

    async def pending(self, queue: str, limit: int) -> tuple[PendingMessage, ...]:
        return tuple(PendingMessage(*row) for row in await self._queries.read("pending", queue, limit))

    async def begin(self, queue: str, holder: str, upto: int) -> bool:
        return bool(await self._queries.write("begin", queue, holder, upto, synced=True))

    async def answer(self, queue: str, holder: str, reply: bytes, upto: int) -> bool:
        async def answer(tx: Transaction) -> bool:
            if not await tx.execute("answer", queue, holder, reply, upto):
                return False
            await tx.execute("delete_contents", queue, upto)
            return True

        return await self._queries.transact(answer, synced=True)

    async def record_sent(self, queue: str, holder: str, sent: int, report: DeliveryReport) -> bool:
        async def record(tx: Transaction) -> bool:
            if report.id:
                await tx.execute("add_sent", report.id, queue, report.state, report.code, report.now)
            return await tx.execute("sent", queue, holder, sent) > 0

        return await self._queries.transact(record, synced=True)

    async def finish(self, queue: str, holder: str, now: float) -> None:
        async def finish(tx: Transaction) -> None:
            await tx.execute("lock", queue)
            await tx.execute("finish", queue, holder, now)

        await self._queries.transact(finish)

    async def release(self, queue: str, holder: str, due_at: float, attempts: int) -> None:
        await self._queries.write("release", queue, holder, due_at, attempts)

    async def retry_now(self, queue: str, now: float) -> None:
        await self._queries.write("retry_now", queue, now)

    async def release_holder(self, holder: str) -> None:
        await self._queries.write("release_holder", holder)

    async def report(self, reports: Sequence[DeliveryReport]) -> tuple[bool, ...]:
        async def store(tx: Transaction) -> tuple[bool, ...]:
            """In the order of the ids, so that two servers never wait for each other in a circle."""
            new = [False] * len(reports)
            for place, report in sorted(enumerate(reports), key=lambda one: one[1].id):
                rows = await tx.fetch("report", *report)
                new[place] = bool(rows and rows[0][0])
            return tuple(new)

        return await self._queries.transact(store, synced=True)

    async def delivery_status(self, id: str) -> tuple[int, str]:
        rows = await self._queries.read("delivery_status", id)
        return (rows[0][0], rows[0][1]) if rows else (0, "")

    async def erase(self, tenant: str, principal: str) -> int:
        return await self._delete("erase", tenant, principal)

    async def expire(self, before: float) -> int:
        return await self._delete("expire", before)

    async def _delete(self, what: str, *values: object) -> int:
        async def delete(tx: Transaction) -> int:
            names = (f"{what}_letters", f"{what}_sent", f"{what}_queues")
            return sum([await tx.execute(name, *values) for name in names])

        return await self._queries.transact(delete)


async def _add(message: InboundMessage, tx: Transaction) -> bool:
    """Stores a message that is new, and makes its queue due."""
    m = message
    if not await tx.execute("add", m.channel, m.id, m.queue, m.content, m.due_at, m.now):
        return False
    await tx.execute("wake", m.queue, m.channel, m.tenant, m.principal, m.address, m.due_at, m.now)
    return True
