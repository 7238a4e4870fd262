"""What a run leaves behind: entries of the history and the result of a Task. Frozen once written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from astromesh.types import JsonObject

Status = Literal["success", "failure", "partial"]
#: statuses only ever get worse (R7)
RANK: Mapping[str, int] = {"success": 0, "partial": 1, "failure": 2}


def worst(*statuses: Status) -> Status:
    return max(statuses, key=RANK.__getitem__)


class Entry:
    """One execution of a stage (E51). Times are seconds since the epoch."""

    __slots__ = (
        "context_hash", "context_items", "edge", "error", "finished_at", "input", "output", "schema_in",
        "schema_out", "seq", "stage", "started_at", "status", "task", "tool_calls", "usage",
    )  # fmt: skip

    def __init__(self, task: str, stage: str, input: Any, started_at: float) -> None:
        self.task, self.stage, self.input, self.started_at = task, stage, input, started_at
        self.seq = 0
        self.status: Status = "success"
        self.output: Any = None
        self.error: JsonObject | None = None
        self.edge = ""
        self.tool_calls: tuple[JsonObject, ...] = ()
        self.context_hash = ""
        self.context_items: tuple[str, ...] = ()
        self.schema_in = self.schema_out = ""
        self.usage: JsonObject | None = None
        self.finished_at = 0.0

    @property
    def node(self) -> str:
        return self.stage.partition("#")[0]

    def to_json(self) -> JsonObject:
        return {
            "seq": self.seq,
            "task": self.task,
            "stage_id": self.stage,
            "node_id": self.node,
            "status": self.status,
            "input": self.input,
            "output": self.output,
            "error": self.error,
            "edge": self.edge,
            "tool_calls": list(self.tool_calls),
            "context_hash": self.context_hash,
            "context_items": list(self.context_items),
            "schema_in": self.schema_in,
            "schema_out": self.schema_out,
            "usage": self.usage,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        entry = cls(data["task"], data["stage_id"], data["input"], data["started_at"])
        for key in (
            "seq",
            "status",
            "output",
            "error",
            "edge",
            "context_hash",
            "schema_in",
            "schema_out",
            "usage",
        ):
            setattr(entry, key, data[key])
        entry.finished_at = data["finished_at"]
        entry.tool_calls, entry.context_items = tuple(data["tool_calls"]), tuple(data["context_items"])
        return entry


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a Task of the user ended.

    Args:
        status: by R7.
        output: what its exit put out, or `{"subtasks": […]}` of a split without a merge.
        error: `{code, message, stage}` where it failed.
        tasks: the Task and all its descendants, as they ended, by path.
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
        """Entries by node (document 004, section 1.1)."""
        found: dict[str, list[Entry]] = {}
        for entry in self.trace:
            found.setdefault(entry.node, []).append(entry)
        return found

    @property
    def path(self) -> tuple[str, ...]:
        """The stages in the order in which they ended."""
        return tuple(entry.stage for entry in self.trace)

    def full_history(self, path: str) -> tuple[Entry, ...]:
        """What a Task and those that it descends from did, in order: its own whole, theirs up to the fork."""
        by_path = {task["path"]: task for task in self.tasks}
        wanted: dict[str, float] = {}
        limit = float("inf")
        while path in by_path:
            wanted[path] = limit
            limit = min(limit, by_path[path]["forked_from_seq"])
            if not path:
                break
            path = parent_of(path)
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
        return {**self.to_json(), "tasks": list(self.tasks), "trace": _listed(self.trace)}


def parent_of(path: str) -> str:
    """The path of the Task that this one descends from."""
    return path.rpartition("/")[0]


def _listed(entries: Iterable[Entry]) -> list[JsonObject]:
    return [entry.to_json() for entry in entries]


def metadata_of(result: TaskResult, latency_ms: float, trace_id: str = "") -> JsonObject:
    """What callers are told beside the output (api.md section 1)."""
    usage = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "cost_usd": 0.0}
    for entry in result.trace:
        for key in usage:
            usage[key] += (entry.usage or {}).get(key, 0)
    told = {"path": list(result.path), "usage": usage, "latency_ms": round(latency_ms, 3)}
    return {**told, "trace_id": trace_id} if trace_id else told
