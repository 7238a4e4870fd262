"""Tasks and joins as the rules see them: mutable structs, because a split may create ten thousand."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from astromesh.types import JsonObject
from astromesh.workflow.base import Entry, Status

Lineage = Literal["root", "clone", "subtask", "merge"]
#: the token of a running Task is at a stage that is due or in progress, that of a waiting one at a merge
State = Literal["running", "waiting", "forked", "ended", "merged", "cancelled"]

#: position among siblings: edge, item
Order = tuple[tuple[int, int], ...]


class Task(Struct, eq=False):
    """One Task of a run.

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
    executed: set[str] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    forked_from_seq: int = 0
    merged_from: tuple[str, ...] = ()
    #: Tasks that the fork at `stage` created, and how many of them live
    children: list[Task] = field(default_factory=list)
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
    waiting: list[Task] = field(default_factory=list)
    failures: list[Task] = field(default_factory=list)
    fired: bool = False
    allow_empty: bool = False
