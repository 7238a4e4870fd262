"""The trace of a Task: its root and its stages, which the runs of its agents stand under."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from astromesh.runtime.task_log import LiveTask
from astromesh.telemetry.traces import Traced
from astromesh.types import Event, JsonObject
from astromesh.workflow.agents import place_of
from astromesh.workflow.tape import path_of


class TaskTrace(NamedTuple):
    """What a Task left, as something that has spans. Its agent is its workflow."""

    run_id: str
    trace_id: str
    session_id: str
    agent: str
    status: str
    events: Sequence[Event]
    parent: str = ""
    remote_span: str = ""
    sampled: bool | None = None


class TaskTraces:
    """A listener to the records of Tasks.

    Args:
        export: takes the trace of one that has ended.
    """

    def __init__(self, export: Callable[[Traced], None]) -> None:
        self._export = export

    def __call__(self, live: LiveTask, record: JsonObject) -> None:
        if record["type"] == "end":
            self._export(trace_of(live, record))


def trace_of(live: LiveTask, end: JsonObject) -> TaskTrace:
    """The trace of a Task with this last record."""
    row, caused_by = live.row, live.caused_by
    return TaskTrace(
        row.task_id, row.trace_id, row.task_id, row.workflow, end["status"], tuple(_events(live, end)),
        remote_span=caused_by.span_id, sampled=caused_by.sampled,
    )  # fmt: skip


def _events(live: LiveTask, end: JsonObject) -> Iterator[Event]:
    task = live.id
    yield Event(task, 1, live.row.created_at, "task.started", {})
    entries = [record["entry"] for record in live.records if record["type"] == "stage"]
    for n, entry in enumerate(entries, 2):
        yield Event(task, n, entry["finished_at"], "stage.finished", _stage(entry))
    yield Event(task, len(entries) + 2, end["at"], "task.finished", {"status": end["status"]})


def _stage(entry: JsonObject) -> JsonObject:
    """What happened, and nothing of what was said."""
    told = {
        "id": place_of(path_of(entry["task"]), entry["stage_id"]),
        "node": entry["node_id"],
        "status": entry["status"],
        "ok": entry["status"] != "failure",
        "duration_ms": (entry["finished_at"] - entry["started_at"]) * 1000,
    }
    return {**told, "error": entry["error"]["code"]} if entry["error"] else told
