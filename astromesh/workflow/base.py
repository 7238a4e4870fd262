"""Shared by the modules of a workflow: JSON values, Tasks, their entries, results, attempts, log and gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import orjson
from msgspec import Struct, structs
from msgspec import field as struct_field

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
        limits: dict[str, float] = {}
        limit = float("inf")
        while path in by_path:
            limits[path] = limit
            limit = min(limit, by_path[path]["forked_from_seq"])
            if not path:
                break
            path = parent_path(path)
        return tuple(e for e in self.trace if e.task in limits and e.seq <= limits[e.task])

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


#: types of records
START, STOP, DEATH = "start", "stop", "death"
#: path of the Task, id of the stage
_Key: TypeAlias = tuple[str, str]


class StageAttempts:
    """How often each stage of one Task began, from its records.

        start    the stage begins; on disk before its operation or agent runs
        stop     the process ends in order, with stages under way
        death    the process of its own that a stage ran in has died

    A stage that began and neither ended nor was stopped ran when its process died, so it may be what killed
    the process: a suspect. Suspects run again in a worker process. The death of a server counts for no stage,
    because it may have had any cause.

    Attributes:
        open: stages that began and did not end, as the records say.
    """

    def __init__(self) -> None:
        self._begun: Counter[_Key] = Counter()
        self._deaths: Counter[_Key] = Counter()
        self.open: set[_Key] = set()

    def apply(self, record: Mapping[str, Any]) -> None:
        """Applies a record of the Task log, in their order."""
        match record["type"]:
            case "start":
                key = record["task"], record["stage"]
                self._begun[key] += 1
                self.open.add(key)
            case "stage":
                self.open.discard((record["entry"]["task"], record["entry"]["stage_id"]))
            case "death":
                self._deaths[record["task"], record["stage"]] += 1
            case "stop":
                self.open.clear()

    def begun(self, task: str, stage: str) -> int:
        """Returns how often a stage has begun."""
        return self._begun.get((task, stage), 0)

    def deaths(self, task: str, stage: str) -> int:
        """Returns how often the process of a stage's own has died."""
        return self._deaths.get((task, stage), 0)


Lineage = Literal["root", "clone", "subtask", "merge"]
#: the token of a running Task is at a stage that is due or in progress, that of a waiting one at a merge
State = Literal["running", "waiting", "forked", "ended", "merged", "cancelled"]

#: position among siblings: edge, item
Order = tuple[tuple[int, int], ...]


class Task(Struct, eq=False):
    """One Task of a run, as the rules see it: mutable, because a split may create ten thousand.

    `path` names the Task within the run by its lineage: `/clauses:review[3]` is subtask 3 of the split
    `clauses` on the edge to `review`; `/=vote` is the Task that the non-closing merge `vote` created. The
    root's path is empty. `id` is the run's id and the path.
    """

    id: str
    path: str
    lineage: Lineage
    parent: Task | None
    order: Order
    depth: int = 0
    stage: str = ""
    state: State = "running"
    status: Status = "success"
    #: input of the next stage, output of the last one
    input: Any = None
    output: Any = None
    error: JsonObject | None = None
    reason: str = ""
    #: label of the edge that a child was created on
    edge: str = ""
    index: int = 0
    #: the edge by which the token came to its stage: (source, label)
    entered_by: tuple[str, str] = ("", "")
    executed: set[str] = struct_field(default_factory=set)
    entries: list[Entry] = struct_field(default_factory=list)
    forked_from_seq: int = 0
    merged_from: tuple[str, ...] = ()
    #: Tasks that the fork at `stage` created, and how many of them live
    children: list[Task] = struct_field(default_factory=list)
    live_children: int = 0
    winner: Task | None = None
    #: the scope of the merge that this Task ended in; a successful early exit below it, which counts if
    #: no merge succeeds
    merged_into: Task | None = None
    early_exit: Task | None = None
    joins: dict[str, Join] | None = None

    @property
    def is_live(self) -> bool:
        return self.state in ("running", "waiting", "forked")

    @property
    def succeeded(self) -> bool:
        return self.state == "ended" and self.status != "failure"

    def to_json(self) -> JsonObject:
        return {
            "task_id": self.id,
            "path": self.path,
            "lineage": self.lineage,
            "parent": self.parent.id if self.parent else None,
            "merged_from": list(self.merged_from),
            "state": self.state,
            "status": self.status,
            "stage": self.stage,
            "edge": self.edge,
            "index": self.index,
            "output": self.output,
            "error": self.error,
            "reason": self.reason,
            "forked_from_seq": self.forked_from_seq,
        }


class Join(Struct, eq=False):
    """A merge within one scope: the Tasks that wait, and how many tokens may still arrive.

    Every move of a token updates `pending`, so that no rule ever looks through all Tasks.
    """

    scope: Task
    merge: str
    pending: int = 0
    waiting: list[Task] = struct_field(default_factory=list)
    failures: list[Task] = struct_field(default_factory=list)
    fired: bool = False
    allow_empty: bool = False
