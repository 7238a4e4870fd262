"""Shared by the modules of a workflow: JSON values, entries and results of Tasks, Task log and gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson
from msgspec import Struct, structs

from astromesh.graph.node_json import not_finite
from astromesh.graph.scope import Journal
from astromesh.types import JsonObject

_PLAIN = (str, int, float, bool, type(None))


class NotJson(ValueError):
    """A value that has no JSON form."""

    code = "invalid_output"


def canonical(value: Any) -> Any:
    """Returns an unshared copy of a value in JSON form: tuples become lists.

    Raises:
        NotJson: the value has no JSON form; the message says why.
    """
    if type(value) in (bool, type(None)) or (type(value) is str and value.isascii()):
        return value
    try:
        encoded = orjson.dumps(value)
    except (orjson.JSONEncodeError, TypeError) as error:
        raise NotJson(f"is not a JSON value: {error}") from error
    if fault := not_finite(value, encoded):
        raise NotJson(f"is not a JSON value: {fault}")
    return orjson.loads(encoded)


def private_copy(value: Any) -> Any:
    """Returns a copy, which its receiver may change, of a canonical value."""
    return value if type(value) in _PLAIN else orjson.loads(orjson.dumps(value))


class StageFault(Exception):
    """A stage failed with its own code, for example because its output names no known edge."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


def task_path(task: str) -> str:
    """Returns the path of a Task within its run, from its id; ids of runs contain no slash."""
    _, slash, rest = task.partition("/")
    return slash + rest


def parent_path(path: str) -> str:
    """Returns the path of the Task that this one descends from."""
    return path.rpartition("/")[0]


def stage_path(path: str, stage: str) -> str:
    """Returns the path of a stage of a Task, which is the prefix of its agents' runs."""
    return f"{path}@{stage}".lstrip("/@")


Status = Literal["success", "failure", "partial"]
#: a status only ever gets worse
RANK: Mapping[str, int] = {"success": 0, "partial": 1, "failure": 2}


def worst(*statuses: Status) -> Status:
    return max(statuses, key=RANK.__getitem__)


class Entry(Struct):
    """One execution of a stage in the history, immutable once written.

    Times are seconds since the epoch.
    """

    task: str
    stage: str
    input: Any
    started_at: float
    seq: int = 0
    status: Status = "success"
    output: Any = None
    error: JsonObject | None = None
    edge: str = ""
    tool_calls: Sequence[JsonObject] = ()
    context_hash: str = ""
    context_items: Sequence[str] = ()
    schema_in: str = ""
    schema_out: str = ""
    usage: JsonObject | None = None
    finished_at: float = 0.0

    @property
    def node(self) -> str:
        return self.stage.partition("#")[0]

    def to_json(self) -> JsonObject:
        """Returns the entry as a record and the API show it: `stage` is `stage_id` there."""
        data = structs.asdict(self)
        return {"stage_id": data.pop("stage"), "node_id": self.node, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        fields = {name: data[name] for name in cls.__struct_fields__ if name != "stage"}
        return cls(**fields, stage=data["stage_id"])


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a Task that a user started.

    Args:
        status: the worst of its stages and inputs.
        output: output of its exit, or `{"subtasks": […]}` of a split without a merge.
        error: `{code, message, stage}` where it failed.
        tasks: final state of the Task and all its descendants, by path.
        trace: every entry, by `seq`.
    """

    task_id: str
    workflow: str
    status: Status
    output: Any = None
    error: JsonObject | None = None
    tasks: tuple[JsonObject, ...] = field(default=(), repr=False)
    trace: tuple[Entry, ...] = field(default=(), repr=False)
    metadata: JsonObject = field(default_factory=dict, repr=False)

    @property
    def history(self) -> dict[str, list[Entry]]:
        """Entries by node."""
        found: dict[str, list[Entry]] = {}
        for entry in self.trace:
            found.setdefault(entry.node, []).append(entry)
        return found

    @property
    def path(self) -> tuple[str, ...]:
        """The stages in the order in which they ended."""
        return tuple(entry.stage for entry in self.trace)

    def full_history(self, path: str) -> tuple[Entry, ...]:
        """Returns the entries of a Task and, up to each fork, of its ancestors, in order."""
        by_path = {task["path"]: task for task in self.tasks}
        wanted: dict[str, float] = {}
        limit = float("inf")
        while path in by_path:
            wanted[path] = limit
            limit = min(limit, by_path[path]["forked_from_seq"])
            if not path:
                break
            path = parent_path(path)
        return tuple(e for e in self.trace if e.task in wanted and e.seq <= wanted[e.task])

    def to_json(self) -> JsonObject:
        return {
            "task_id": self.task_id,
            "workflow": self.workflow,
            "status": self.status,
            "output": self.output,
            "error": self.error,
            "metadata": self.metadata,
        }

    def with_trace(self) -> JsonObject:
        trace = [entry.to_json() for entry in self.trace]
        return {**self.to_json(), "tasks": list(self.tasks), "trace": trace}


def result_metadata(result: TaskResult, latency_ms: float, trace_id: str = "") -> JsonObject:
    """Returns the `metadata` of a response: path, usage, latency and trace id (docs/api.md)."""
    usage = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "cost_usd": 0.0}
    for entry in result.trace:
        for key in usage:
            usage[key] += (entry.usage or {}).get(key, 0)
    metadata = {"path": list(result.path), "usage": usage, "latency_ms": round(latency_ms, 3)}
    return {**metadata, "trace_id": trace_id} if trace_id else metadata


class RecordWriter(Protocol):
    """Writes records of one Task, in order."""

    def commit(self, record: JsonObject) -> None:
        """Adds a record to the next commit."""

    async def flush(self) -> None:
        """Returns when everything added so far is on disk."""


#: type of the records of a journal: a step of the work inside a stage
STEP = "step"
#: type of a record of a fork: the context that a stage received, whose calls it has in part
CONTEXT = "context"


class OpenJournal(Protocol):
    """Opens the journal of a Task from the steps in its records."""

    def __call__(
        self,
        task_id: str,
        records: Sequence[Mapping[str, Any]],
        writer: RecordWriter,
        *,
        is_fork: bool,
        is_durable: bool,
        accepted_at: float,
    ) -> Journal: ...


class TaskLog(Protocol):
    """Stores the records of runs, so that a killed run repeats only its interrupted stages.

    A record is a JSON object. The first is `{type: begin, task_id, workflow, start, input}`. A
    `{type: stage, entry}` follows for each stage (`Entry.to_json`) in the order in which they count, perhaps
    `{type: cancel, reason}`, and last `{type: end, status, …}`. That of a fork begins with records of another
    Task, and its first one has `forked_from`. Routes, clones, merges and memory are
    computed again from the records.
    """

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        """Stores records, in this order, in one commit. They count once this has returned."""


class Gate(Protocol):
    """Awaited before a stage that it applies to, which begins when it returns. The inspector is one."""

    def applies(self, task: str, stage: str) -> bool:
        """Returns whether a stage of a Task has to wait now."""

    async def __call__(self, task: str, stage: str, input: Any, context: JsonObject | None) -> None: ...
