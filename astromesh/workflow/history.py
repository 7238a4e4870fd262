"""The history of a Task from its records, whatever became of the manifests that it ran under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from astromesh.types import Event, JsonObject
from astromesh.workflow.base import Entry
from astromesh.workflow.execution import RunState, TaskProjection, finished_data, started_data
from astromesh.workflow.plan import Plan


class History(Protocol):
    """What the records of a Task say: its entries by `seq`, its descendants, its events.

    Attributes:
        trace: Entries of stages that counted.
        records: Their records.
        tasks: The state of the Task and its descendants.
        reachable: How many stages its start reaches; None where the manifests are lost.
    """

    trace: list[JsonObject]
    records: list[Mapping[str, Any]]

    @property
    def tasks(self) -> list[JsonObject]: ...

    @property
    def reachable(self) -> int | None: ...

    def apply(self, records: Iterable[Mapping[str, Any]]) -> list[Event]:
        """Applies further records and returns their events."""


def history_of(plan: Plan | None, task_id: str, records: Sequence[Mapping[str, Any]]) -> History:
    """Returns the empty history of a Task, for its records so far and further ones.

    Args:
        plan: of the manifests that it may have run under; None: they are lost.
    """
    if plan is not None and fits(plan, task_id, records):
        return TaskProjection(plan, task_id)
    return PlainHistory(task_id)


#: how the state machine fails on records of other manifests
_MISFITS = (LookupError, TypeError, ValueError, AttributeError, AssertionError)


def fits(plan: Plan | None, task_id: str, records: Iterable[Mapping[str, Any]]) -> bool:
    """Returns whether these records can come from this plan."""
    if plan is None:
        return False
    state = RunState(plan, task_id)
    try:
        return all(_follows(state, record) for record in records)
    except _MISFITS:
        return False


def _follows(state: RunState, record: Mapping[str, Any]) -> bool:
    """Applies a record. Returns whether it is one that the plan leads to."""
    tasks, kind = state.machine.tasks, record["type"]
    if kind == "begin" and record["start"] != state.machine.plan.start:
        return False
    if kind == "stage":
        task = tasks.get(record["entry"]["task"])
        if task is None or (task.state == "running" and task.stage != record["entry"]["stage_id"]):
            return False
    if kind == "end" and record["status"] != "failure" and state.machine.root.state != "ended":
        return False
    state.apply(record)
    return True


class PlainHistory:
    """The records as they are: without routes, clones and merges, which only the manifests know."""

    reachable: int | None = None

    def __init__(self, task_id: str) -> None:
        self._task_id, self._seq = task_id, 0
        self._tasks: dict[str, JsonObject] = {}
        self.trace: list[JsonObject] = []
        self.records: list[Mapping[str, Any]] = []

    @property
    def tasks(self) -> list[JsonObject]:
        return list(self._tasks.values())

    def apply(self, records: Iterable[Mapping[str, Any]]) -> list[Event]:
        return [event for record in records for event in self._events(record)]

    def _events(self, record: Mapping[str, Any]) -> Iterator[Event]:
        match record["type"]:
            case "begin":
                self._tasks[""] = self._task("", "running", "success", record["start"])
                yield self._event("task.started", started_data(self._task_id, record))
            case "stage":
                entry = Entry.from_json(record["entry"])
                self.records.append(record)
                self.trace.append({**record["entry"], "seq": len(self.trace) + 1})
                self._tasks[entry.task] = self._task(
                    entry.task, "running", entry.status, entry.stage, entry.output, entry.error
                )
                data = finished_data(self._task_id + entry.task, entry)
                yield self._event("stage.finished", data, entry.finished_at)
            case "end":
                for path, task in self._tasks.items():
                    self._tasks[path] = {**task, "state": "ended"}
                root = {"status": record["status"], "error": record.get("error")}
                self._tasks[""] = {**self._tasks.get("", {}), **root}
                data = {"task": self._task_id, "status": record["status"], "state": "ended"}
                if record.get("error"):
                    data["error"] = record["error"]["code"]
                yield self._event("task.finished", data, record.get("at", 0.0))

    def _task(
        self, path: str, state: str, status: str, stage: str, output: Any = None, error: Any = None
    ) -> JsonObject:
        return {
            "task_id": self._task_id + path, "path": path, "state": state, "status": status, "stage": stage,
            "output": output, "error": error,
        }  # fmt: skip

    def _event(self, type: str, data: JsonObject, at: float = 0.0) -> Event:
        self._seq += 1
        return Event(self._task_id, self._seq, at, type, data)
