"""Tasks of workflows in SQLite. Every query is in `sql/tasks.sql` or `sql/sqlite/tasks.sql`.

Commits of concurrent Tasks share one transaction (`storage.writer_thread`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self, TypeAlias

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
from astromesh.storage.sqlite import Database, shared_database
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("tasks", _PACKAGE, "sql/sqlite/tasks")
SQL = task_queries("sqlite")
_Named: TypeAlias = tuple[str, tuple[Any, ...]]
_Accepted: TypeAlias = tuple[TaskRow, Sequence[JsonObject], Sequence[Artifact]]


class SqliteTasks:
    """A TaskStore in the runtime's own file; several processes of one machine may share it."""

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

    async def accept(
        self, row: TaskRow, records: Sequence[JsonObject], artifacts: Sequence[Artifact] = ()
    ) -> None:
        await self._database.write(_accept, (row, records, artifacts))

    async def commit(self, change: TaskChange) -> None:
        await self._database.write(_commit, change)

    async def get(self, task_id: str) -> TaskRow | None:
        rows = await self._database.read(_rows, ("get", (task_id,)))
        return task_of(rows[0]) if rows else None

    async def list(
        self, tenant: str, owner: str | None, workflow: str = "", status: str = "", limit: int = 50
    ) -> tuple[TaskRow, ...]:
        rows = await self._database.read(_rows, ("list", (tenant, owner, workflow, status, limit)))
        return tuple(map(task_of, rows))

    async def records(self, task_id: str, after: int = 0) -> tuple[JsonObject, ...]:
        rows = await self._database.read(_rows, ("records", (task_id, after)))
        return tuple(orjson.loads(row[0]) for row in rows)

    async def artifacts(self, tenant: str, owner: str | None, filter: ArtifactFilter) -> tuple[Artifact, ...]:
        rows = await self._database.read(_rows, ("artifacts", (tenant, owner, *filter)))
        return tuple(map(artifact_of, rows))

    async def take(self, worker: str, dead: Sequence[str], until: float, limit: int) -> tuple[TaskRow, ...]:
        bound = (worker, until, self._clock.now(), orjson.dumps(list(dead)).decode(), limit)
        rows = await self._database.write(_rows, ("take", bound))
        return tuple(sorted(map(task_of, rows), key=lambda row: (row.created_at, row.task_id)))

    async def heartbeat(self, worker: str, until: float, tasks: Collection[str] | None = None) -> None:
        only = None if tasks is None else orjson.dumps(list(tasks)).decode()
        await self._database.write(_change, ("beat", (worker, until, only)))

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._database.read(_rows, ("cancelling", (worker,))))

    async def cancel(self, task_id: str) -> bool:
        return await self._database.write(_change, ("cancel", (task_id,)))

    async def expire(self, before: float) -> int:
        return await self._database.write(_delete, ("expired", (before,)))

    async def erase_owner(self, tenant: str, owner: str) -> int:
        await self._database.write(_change, ("cancel_owned", (tenant, owner)))
        return await self._database.write(_delete, ("owned", (tenant, owner)))

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the file closes with the runtime's resources."""


# -- in the database's threads -------------------------------------------------------------------------------


def _accept(connection: sqlite3.Connection, items: Sequence[_Accepted]) -> Sequence[None]:
    connection.executemany(SQL["accept"], [task_values(row) for row, _, _ in items])
    _add(connection, [v for row, records, _ in items for v in record_values(row.task_id, 1, records)],
         [one for _, _, artifacts in items for one in artifacts])  # fmt: skip
    return [None] * len(items)


def _commit(connection: sqlite3.Connection, items: Sequence[TaskChange]) -> Sequence[LeaseLost | None]:
    held = [_is_held(connection, change) for change in items]
    mine = [change for change, good in zip(items, held, strict=True) if good]
    _add(
        connection,
        [values for c in mine for values in record_values(c.task_id, c.first, c.records)],
        [one for change in mine for one in change.artifacts],
    )
    for change in mine:
        if change.end is not None:
            status, result, at = change.end
            connection.execute(SQL["end"], (change.task_id, change.worker, status, json_text(result), at))
    return [None if good else LeaseLost(task_lost(c.task_id)) for c, good in zip(items, held, strict=True)]


def _is_held(connection: sqlite3.Connection, change: TaskChange) -> bool:
    return connection.execute(SQL["hold"], (change.task_id, change.worker)).rowcount > 0


def _add(
    connection: sqlite3.Connection, records: Iterable[tuple[str, int, str]], artifacts: Iterable[Artifact]
) -> None:
    connection.executemany(SQL["add_record"], records)
    connection.executemany(SQL["add_artifact"], map(artifact_values, artifacts))


def _rows(connection: sqlite3.Connection, items: Sequence[_Named]) -> Sequence[list[tuple[Any, ...]]]:
    return [connection.execute(SQL[name], bound).fetchall() for name, bound in items]


def _change(connection: sqlite3.Connection, items: Sequence[_Named]) -> Sequence[bool]:
    return [connection.execute(SQL[name], bound).rowcount > 0 for name, bound in items]


def _delete(connection: sqlite3.Connection, items: Sequence[_Named]) -> Sequence[int]:
    return [_deleted(connection, name, bound) for name, bound in items]


def _deleted(connection: sqlite3.Connection, name: str, bound: tuple[Any, ...]) -> int:
    gone = connection.execute(SQL[name], bound).fetchall()
    for query in ("delete_records", "delete_artifacts", "delete"):
        connection.executemany(SQL[query], gone)
    return len(gone)
