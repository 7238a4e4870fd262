"""The store of Tasks of workflows, for both databases. The queries are in `sql/tasks.sql`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import orjson

from astromesh.durable.base import Artifact, ArtifactFilter, TaskChange, TaskRow
from astromesh.durable.rows import Column, columns_of
from astromesh.errors import LeaseLost
from astromesh.storage.queries import Dialect, Queries, Row, SqlStore, Transaction
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, ManifestSnapshot

_FIELDS = tuple(columns_of(TaskRow))
#: `start` is a word of SQL
_COLUMNS = tuple("start_node" if field.name == "start" else field.name for field in _FIELDS)

#: a store writes the manifests of its Tasks again after this time. Those that no Task refers to, and that no
#: store has written for a day, are deleted: so never under a Task that is accepted at that moment
SNAPSHOT_REFRESH_SECONDS, SNAPSHOT_GRACE_SECONDS = 3600.0, 86400.0


class SqlTasks(SqlStore):
    """A TaskStore over one database, which it may share with others."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "tasks"

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        mark = "?" if dialect == "sqlite" else "$"
        values = (f"{mark}{n}" for n in range(1, len(_COLUMNS) + 1))
        return {"columns": ", ".join(_COLUMNS), "values": ", ".join(values)}

    def __init__(self, queries: Queries, clock: Clock) -> None:
        super().__init__(queries, clock)
        self._written_snapshots: dict[str, float] = {}

    async def accept(
        self,
        row: TaskRow,
        records: Sequence[JsonObject],
        artifacts: Sequence[Artifact] = (),
        snapshot: ManifestSnapshot | None = None,
    ) -> None:
        now = self._clock.now()
        if snapshot and now - self._written_snapshots.get(snapshot.id, 0.0) < SNAPSHOT_REFRESH_SECONDS:
            snapshot = None

        async def accept(tx: Transaction) -> None:
            if snapshot is not None:
                await tx.execute("add_snapshot", snapshot.id, _json_text(snapshot.content), now)
            await tx.execute("accept", *_task_values(row))
            await _add(row.task_id, 1, records, artifacts, tx)

        await self._queries.transact(accept, synced=True)
        if snapshot is not None:
            self._written_snapshots[snapshot.id] = now

    async def snapshot(self, id: str) -> JsonObject | None:
        rows = await self._queries.read("snapshot", id)
        return orjson.loads(rows[0][0]) if rows else None

    async def commit(self, change: TaskChange) -> None:
        async def commit(tx: Transaction) -> bool:
            if not await tx.execute("hold", change.task_id, change.worker):
                return False
            await _add(change.task_id, change.first, change.records, change.artifacts, tx)
            if change.end is not None:
                status, result, at = change.end
                await tx.execute("end", change.task_id, change.worker, status, _json_text(result), at)
            return True

        if not await self._queries.transact(commit, synced=change.end is not None):
            raise LeaseLost(f"The Task {change.task_id!r} is no longer this worker's, or it has ended.")

    async def get(self, task_id: str) -> TaskRow | None:
        rows = await self._queries.read("get", task_id)
        return _task_of(rows[0]) if rows else None

    async def list(
        self, tenant: str, owner: str | None, workflow: str = "", status: str = "", limit: int = 50
    ) -> tuple[TaskRow, ...]:
        return tuple(map(_task_of, await self._queries.read("list", tenant, owner, workflow, status, limit)))

    async def records(self, task_id: str, after: int = 0) -> tuple[JsonObject, ...]:
        return tuple(orjson.loads(row[0]) for row in await self._queries.read("records", task_id, after))

    async def artifacts(self, tenant: str, owner: str | None, filter: ArtifactFilter) -> tuple[Artifact, ...]:
        return tuple(map(_artifact_of, await self._queries.read("artifacts", tenant, owner, *filter)))

    async def take(self, worker: str, dead: Sequence[str], until: float, limit: int) -> tuple[TaskRow, ...]:
        rows = await self._queries.write("take", worker, until, self._clock.now(), list(dead), limit)
        return tuple(sorted(map(_task_of, rows), key=lambda row: (row.created_at, row.task_id)))

    async def heartbeat(self, worker: str, until: float, tasks: Collection[str] | None = None) -> None:
        await self._queries.write("heartbeat", worker, until, None if tasks is None else list(tasks))

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._queries.read("cancelling", worker))

    async def cancel(self, task_id: str) -> bool:
        return bool(await self._queries.write("cancel", task_id, synced=True))

    async def expire(self, before: float) -> int:
        unused_since = self._clock.now() - SNAPSHOT_GRACE_SECONDS

        async def expire(tx: Transaction) -> int:
            deleted = await _delete(tx, "expired", before)
            await tx.execute("delete_snapshots", unused_since)
            return deleted

        return await self._queries.transact(expire)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        await self._queries.write("cancel_owned", tenant, owner)
        return await self._queries.transact(lambda tx: _delete(tx, "owned", tenant, owner))


async def _add(
    task_id: str,
    first: int,
    records: Sequence[JsonObject],
    artifacts: Sequence[Artifact],
    tx: Transaction,
) -> None:
    rows = [(task_id, n, _json_text(record)) for n, record in enumerate(records, first)]
    await tx.execute_many("add_record", rows)
    await tx.execute_many("add_artifact", [(*one[:-1], _json_text(one.content)) for one in artifacts])


async def _delete(tx: Transaction, query: str, *values: object) -> int:
    tasks = [row[0] for row in await tx.fetch(query, *values)]
    for name in ("delete_records", "delete_artifacts", "delete"):
        await tx.execute(name, tasks)
    return len(tasks)


def _task_values(row: TaskRow) -> list[Any]:
    return [_column_value(field, getattr(row, field.name)) for field in _FIELDS]


def _task_of(row: Row) -> TaskRow:
    values = zip(_FIELDS, row, strict=True)
    return TaskRow(**{field.name: _field_value(field, value) for field, value in values})


def _column_value(field: Column, value: Any) -> Any:
    if field.json:
        return None if value is None else _json_text(value)
    return int(value) if field.sql_type == "boolean" else value


def _field_value(field: Column, value: Any) -> Any:
    if field.json:
        return None if value is None else orjson.loads(value)
    return bool(value) if field.sql_type == "boolean" else value


def _artifact_of(row: Row) -> Artifact:
    *plain, content = row
    return Artifact._make((*plain, orjson.loads(content)))


def _json_text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
