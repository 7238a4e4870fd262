"""Tasks and joins as the rules see them; slotted, because a split may create ten thousand."""

from __future__ import annotations

from typing import Any, Literal

from astromesh.types import JsonObject
from astromesh.workflow.base import Entry, Status

Lineage = Literal["root", "clone", "subtask", "merge"]
#: the token of a running Task is at a stage that is due or in progress, that of a waiting one at a merge
State = Literal["running", "waiting", "forked", "ended", "merged", "cancelled"]

#: position among siblings: edge, item
Order = tuple[tuple[int, int], ...]


class Task:
    """One Task of a run.

    `path` names the Task within the run by its lineage: `/clauses:review[3]` is subtask 3 of the split
    `clauses` on the edge to `review`; `/=vote` is the Task that the non-closing merge `vote` created. The
    root's path is empty. `id` is the run's id and the path.
    """

    __slots__ = (
        "children", "depth", "early_exit", "edge", "entered_by", "entries", "error", "executed",
        "forked_from_seq", "id", "index", "input", "joins", "lineage", "live_children", "merged_from",
        "merged_into", "order", "output", "parent", "path", "reason", "stage", "state", "status", "winner",
    )  # fmt: skip

    def __init__(self, id: str, path: str, lineage: Lineage, parent: Task | None, order: Order) -> None:
        self.id, self.path, self.lineage, self.parent, self.order = id, path, lineage, parent, order
        self.depth: int = 0
        self.stage = ""
        self.state: State = "running"
        self.status: Status = "success"
        #: input of the next stage, output of the last one
        self.input: Any = None
        self.output: Any = None
        self.error: JsonObject | None = None
        self.reason = ""
        #: label of the edge that a child was created on
        self.edge = ""
        self.index = 0
        #: the edge by which the token came to its stage: (source, label)
        self.entered_by: tuple[str, str] = ("", "")
        self.executed: set[str] = set()
        self.entries: list[Entry] = []
        self.forked_from_seq = 0
        self.merged_from: tuple[str, ...] = ()
        #: Tasks that the fork at `stage` created, and how many of them live
        self.children: list[Task] = []
        self.live_children = 0
        self.winner: Task | None = None
        #: the scope of the merge that this Task ended in; a successful early exit below it, which counts if
        #: no merge succeeds
        self.merged_into: Task | None = None
        self.early_exit: Task | None = None
        self.joins: dict[str, Join] | None = None

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


class Join:
    """A merge within one scope: the Tasks that wait, and how many tokens may still arrive.

    Every move of a token updates `pending`, so that no rule ever looks through all Tasks.
    """

    __slots__ = ("allow_empty", "failures", "fired", "merge", "pending", "scope", "waiting")

    def __init__(self, scope: Task, merge: str) -> None:
        self.scope, self.merge = scope, merge
        self.pending = 0
        self.waiting: list[Task] = []
        self.failures: list[Task] = []
        self.fired = False
        self.allow_empty = False
