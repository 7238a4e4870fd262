"""Tasks of workflows in PostgreSQL. Every query is in `sql/tasks.sql` or `sql/postgres/tasks.sql`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Self

import orjson
from pydantic import BaseModel, ConfigDict

from astromesh.durable.base import Artifact, ArtifactFilter, TaskChange, TaskRow
from astromesh.durable.rows import (
    artifact_of,
    artifact_values,
    json_text,
    record_values,
    task_lost,
    task_of,
    task_queries,
    task_values,
)
from astromesh.errors import LeaseLost
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema
from astromesh.storage.postgres import Connection, Postgres, shared_postgres
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("tasks", _PACKAGE, "sql/postgres/tasks")
SQL = task_queries("postgres")


class PostgresTasks:
    """A TaskStore in the database of `storage.url`, for several servers."""

    class Options(BaseModel):
        """None: `storage.url` of runtime.yaml says where."""

        model_config = ConfigDict(extra="forbid")

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database, self._clock = database, clock

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a database of a newer astromesh. StoreError: it refuses us."""
        database = await shared_postgres(deps)
        await database.migrate(SCHEMA)
        return cls(database, deps.clock)

    async def accept(
        self, row: TaskRow, records: Sequence[JsonObject], artifacts: Sequence[Artifact] = ()
    ) -> None:
        await self._database.transact(partial(_accepted, row, records, artifacts))

    async def commit(self, change: TaskChange) -> None:
        if not await self._database.transact(partial(_committed, change)):
            raise LeaseLost(task_lost(change.task_id))

    async def get(self, task_id: str) -> TaskRow | None:
        rows = await self._database.read(SQL["get"], task_id)
        return task_of(tuple(rows[0])) if rows else None

    async def list(
        self, tenant: str, owner: str | None, workflow: str = "", status: str = "", limit: int = 50
    ) -> tuple[TaskRow, ...]:
        rows = await self._database.read(SQL["list"], tenant, owner, workflow, status, limit)
        return tuple(task_of(tuple(row)) for row in rows)

    async def records(self, task_id: str, after: int = 0) -> tuple[JsonObject, ...]:
        rows = await self._database.read(SQL["records"], task_id, after)
        return tuple(orjson.loads(row[0]) for row in rows)

    async def artifacts(self, tenant: str, owner: str | None, filter: ArtifactFilter) -> tuple[Artifact, ...]:
        rows = await self._database.read(SQL["artifacts"], tenant, owner, *filter)
        return tuple(artifact_of(tuple(row)) for row in rows)

    async def take(self, worker: str, dead: Sequence[str], until: float, limit: int) -> tuple[TaskRow, ...]:
        bound = (worker, until, self._clock.now(), list(dead), limit)
        rows = await self._database.write(SQL["take"], *bound)
        found = [task_of(tuple(row)) for row in rows]
        return tuple(sorted(found, key=lambda row: (row.created_at, row.task_id)))

    async def heartbeat(self, worker: str, until: float, tasks: Collection[str] | None = None) -> None:
        await self._database.write(SQL["beat"], worker, until, None if tasks is None else list(tasks))

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._database.read(SQL["cancelling"], worker))

    async def cancel(self, task_id: str) -> bool:
        return bool(await self._database.write(SQL["cancel"], task_id))

    async def expire(self, before: float) -> int:
        return await self._database.transact(partial(_deleted, "expired", (before,)))

    async def erase_owner(self, tenant: str, owner: str) -> int:
        await self._database.write(SQL["cancel_owned"], tenant, owner)
        return await self._database.transact(partial(_deleted, "owned", (tenant, owner)))

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the pool closes with the runtime's resources."""


async def _accepted(
    row: TaskRow, records: Sequence[JsonObject], artifacts: Sequence[Artifact], connection: Connection
) -> None:
    await connection.execute(SQL["accept"], *task_values(row))
    await _added(record_values(row.task_id, 1, records), artifacts, connection)


async def _committed(change: TaskChange, connection: Connection) -> bool:
    if not await connection.fetch(SQL["hold"], change.task_id, change.worker):
        return False
    await _added(record_values(change.task_id, change.first, change.records), change.artifacts, connection)
    if change.end is not None:
        status, result, at = change.end
        await connection.execute(SQL["end"], change.task_id, change.worker, status, json_text(result), at)
    return True


async def _added(
    records: Sequence[tuple[str, int, str]], artifacts: Sequence[Artifact], connection: Connection
) -> None:
    if records:
        await connection.executemany(SQL["add_record"], records)
    if artifacts:
        await connection.executemany(SQL["add_artifact"], [artifact_values(one) for one in artifacts])


async def _deleted(name: str, bound: tuple[Any, ...], connection: Connection) -> int:
    gone = [row[0] for row in await connection.fetch(SQL[name], *bound)]
    for query in ("delete_records", "delete_artifacts", "delete"):
        await connection.execute(SQL[query], gone)
    return len(gone)
