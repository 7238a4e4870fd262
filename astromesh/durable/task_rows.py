"""Tasks as rows: the same columns in every database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from astromesh.abc.tasks import Artifact, TaskRow
from astromesh.types import JsonObject

COLUMNS = (
    "task_id", "tenant", "owner", "workflow", "start_node", "status", "created_at", "fingerprint", "trace_id",
    "durable", "caller", "metadata", "worker", "lease_until", "cancelling", "finished_at", "result",
)  # fmt: skip
_JSON = {"caller", "metadata", "result"}
_FLAGS = {"durable", "cancelling"}


def with_columns(queries: dict[str, str], mark: str = "?") -> dict[str, str]:
    """Queries in which COLUMNS and VALUES stand for those of a Task."""
    values = ", ".join("?" if mark == "?" else f"${n}" for n in range(1, len(COLUMNS) + 1))
    return {
        name: text.replace("COLUMNS", ", ".join(COLUMNS)).replace("VALUES_OF_IT", values)
        for name, text in queries.items()
    }


def values_of(row: TaskRow) -> tuple[Any, ...]:
    return tuple(_bound(name, getattr(row, "start" if name == "start_node" else name)) for name in COLUMNS)


def row_of(values: Sequence[Any]) -> TaskRow:
    return TaskRow(
        **{
            ("start" if name == "start_node" else name): _read(name, value)
            for name, value in zip(COLUMNS, values, strict=True)
        }
    )


def artifact_values(one: Artifact) -> tuple[Any, ...]:
    return (*one[:-1], text_of(one.content))


def artifact_of(values: Sequence[Any]) -> Artifact:
    return Artifact._make((*values[:-1], orjson.loads(values[-1])))


def record_values(task_id: str, first: int, records: Sequence[JsonObject]) -> list[tuple[str, int, str]]:
    return [(task_id, n, text_of(record)) for n, record in enumerate(records, first)]


def text_of(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def lost(task_id: str) -> str:
    return f"The Task {task_id!r} is no longer this worker's, or it has ended."


def _bound(name: str, value: Any) -> Any:
    if name in _JSON:
        return None if value is None else text_of(value)
    return int(value) if name in _FLAGS else value


def _read(name: str, value: Any) -> Any:
    if name in _JSON:
        return None if value is None else orjson.loads(value)
    return bool(value) if name in _FLAGS else value
