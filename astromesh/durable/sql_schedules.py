"""The schedules, for both databases: queries in `sql/runs.sql`, beside the runs and keys of their firings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from astromesh.durable.base import Schedule, ScheduleQuery
from astromesh.storage.queries import SqlStore, Transaction


class SqlSchedules(SqlStore):
    """A ScheduleStore in the database of the runs."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "runs"

    async def add_schedule(self, schedule: Schedule, limit: int) -> bool:
        async def add(tx: Transaction) -> bool:
            who = (schedule.tenant, schedule.owner)
            await tx.lock("schedules", *who)
            if (await tx.fetch("count_schedules", *who))[0][0] >= limit:
                return False
            await tx.execute("add_schedule", *schedule)
            return True

        return await self._queries.transact(add, synced=True)

    async def replace_file_schedules(self, schedules: Sequence[Schedule], kept: Collection[str]) -> None:
        async def replace(tx: Transaction) -> None:
            await tx.lock("schedules")
            present = {one.id for one in schedules}
            for stored, kind, target in await tx.fetch("file_schedules"):
                if stored not in present and f"{kind} {target}" not in kept:
                    await tx.execute("delete_schedule", stored)
            for one in schedules:
                await tx.execute("add_schedule", *one)

        await self._queries.transact(replace, synced=True)

    async def take_schedules(self, now: float, until: float, limit: int) -> tuple[Schedule, ...]:
        return tuple(Schedule(*row) for row in await self._queries.write("take_schedules", now, until, limit))

    async def next_schedule(self) -> float | None:
        due_at: float | None = (await self._queries.read("next_schedule"))[0][0]
        return due_at

    async def settle_schedule(self, settled: Schedule, instant: float, run_expires_at: float) -> None:
        async def settle(tx: Transaction) -> None:
            outcome = (settled.instant, settled.due_at, settled.last_at, settled.last_id, settled.error)
            await tx.execute("settle_schedule", settled.id, instant, *outcome)
            await tx.execute("shorten_key", settled.last_id, run_expires_at)

        await self._queries.transact(settle, synced=True)

    async def postpone_schedule(self, id: str, instant: float, due_at: float, error: str) -> None:
        await self._queries.write("postpone_schedule", id, instant, due_at, error)

    async def schedule(self, id: str, tenant: str, owner: str | None) -> Schedule | None:
        rows = await self._queries.read("schedule", id, tenant, owner)
        return Schedule(*rows[0]) if rows else None

    async def schedules(self, filter: ScheduleQuery) -> tuple[Schedule, ...]:
        return tuple(Schedule(*row) for row in await self._queries.read("schedules", *filter))

    async def pause_schedule(self, id: str, paused: bool, instant: float, due_at: float) -> None:
        await self._queries.write("pause_schedule", id, int(paused), instant, due_at)

    async def delete_schedule(self, id: str) -> None:
        await self._queries.write("delete_schedule", id, synced=True)
