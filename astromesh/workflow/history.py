"""The history of a Task from its records, and the file of a recorded Task, `*.cassette.json`.

A history shows records whatever became of the manifests that their Task ran under.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from astromesh.errors import InvalidInput
from astromesh.types import Event, JsonObject
from astromesh.workflow.base import Entry
from astromesh.workflow.execution import RunState, TaskProjection, finished_data, started_data
from astromesh.workflow.journal import comparable_fields
from astromesh.workflow.memory import InMemoryLayer, LayerStore, item_from_json
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


RECORDING_VERSION = 1
_MAX_ITEMS = 1_000_000
#: keys of a recorded call that a replay does not need
_TIMES = frozenset({"started_at", "duration_ms"})


@dataclass(frozen=True, slots=True)
class Recording:
    """The input of a run and every response that came from outside of it.

    Args:
        stages: `{task, stage, status, code, edge, output_hash, output, calls, started_at}` in the order in
            which they counted, with `begun: false` where a stage failed before it began, `edited: true` where
            a fork has the output of a stage that did not run, and `edits` of its requests to models.
        memory: items of project and global memory that its stages received.
        task_id: that of the Task; empty in recordings of earlier versions.
    """

    workflow: str
    start: str
    input: Any
    status: str
    stages: tuple[JsonObject, ...] = field(repr=False)
    run_fingerprint: str = ""
    memory: tuple[JsonObject, ...] = field(default=(), repr=False)
    task_id: str = ""

    @property
    def path(self) -> list[str]:
        return [stage["stage"] for stage in self.stages]

    def memory_layers(self) -> dict[str, LayerStore]:
        """Returns private in-memory stores with the recorded items."""
        layers: dict[str, LayerStore] = {}
        for layer in ("task", "project", "global"):
            items = [item_from_json(one) for one in self.memory if one["layer"] == layer]
            layers[layer] = InMemoryLayer(_MAX_ITEMS, items)
        return layers

    def to_json(self) -> JsonObject:
        return {
            "version": RECORDING_VERSION, "workflow": self.workflow, "task_id": self.task_id,
            "start": self.start, "input": self.input, "status": self.status,
            "run_fingerprint": self.run_fingerprint, "memory": list(self.memory), "stages": list(self.stages),
        }  # fmt: skip

    @classmethod
    def from_records(
        cls, history: History, records: Sequence[Mapping[str, Any]], status: str, fingerprint: str = ""
    ) -> Recording:
        """Creates a recording from the records of a Task, which contain the calls of its stages.

        Args:
            history: empty.
        """
        begin = records[0]
        history.apply(records)
        stages = tuple(map(_stage_record, history.records))
        memory = _shared_memory_items(record.get("context") for record in history.records)
        return cls(
            begin["workflow"], begin["start"], begin["input"], status, stages, fingerprint, memory,
            begin["task_id"],
        )  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """Creates a recording from JSON.

        Raises:
            KeyError, TypeError: the data is not a recording.
            InvalidInput: it has another version.
        """
        if data["version"] != RECORDING_VERSION:
            raise InvalidInput(
                f"The recording has version {data['version']}, which this astromesh does not read. Record it "
                "again with 'astromesh workflow record'."
            )
        return cls(
            data["workflow"], data["start"], data["input"], data["status"], tuple(data["stages"]),
            data["run_fingerprint"], tuple(data["memory"]), data.get("task_id", ""),
        )  # fmt: skip

    @classmethod
    def read(cls, file: Path) -> Recording:
        """Reads a file.

        Raises:
            InvalidInput: the file does not exist or is not a recording.
        """
        try:
            return cls.from_json(orjson.loads(file.read_bytes()))
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise InvalidInput(f"{file} is not a recording: {error!r}.") from error

    def write(self, file: Path) -> None:
        """Writes a file. Raises: InvalidInput: it cannot be written."""
        content = orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        except OSError as error:
            raise InvalidInput(f"Cannot write {file}: {error.strerror}.") from error


def _shared_memory_items(contexts: Iterable[JsonObject | None]) -> tuple[JsonObject, ...]:
    """Returns the items of project and global memory of these context packages, each once."""
    found: dict[tuple[str, str], JsonObject] = {}
    for context in contexts:
        for item in context["items"] if context else ():
            if item["layer"] != "task":
                found.setdefault((item["layer"], item["id"]), item)
    return tuple(found.values())


def _stage_record(record: Mapping[str, Any]) -> JsonObject:
    entry = record["entry"]
    calls = [{k: v for k, v in call.items() if k not in _TIMES} for call in record.get("calls", ())]
    found = {**comparable_fields(entry), "output": entry["output"], "calls": calls}
    found["started_at"] = record.get("began_at", entry["started_at"])
    found |= {key: record[key] for key in ("edited", "edits", "task_id") if record.get(key)}
    return found if record.get("begun", True) else {**found, "begun": False}
