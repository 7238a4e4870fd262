"""Tasks as the rules see them. Unfrozen and slotted: a split makes ten thousand."""

from __future__ import annotations

from typing import Any, Literal

from astromesh.types import JsonObject
from astromesh.workflow.result import Entry, Status

Lineage = Literal["root", "clone", "subtask", "merge"]
#: a running Task has its token at a stage that is due or under way, a waiting one at a merge
State = Literal["running", "waiting", "forked", "ended", "merged", "cancelled"]

#: position among siblings: edge, item
Order = tuple[tuple[int, int], ...]


class Task:
    """One Task of a run.

    `path` names it within the run by its lineage: `/clauses:review[3]` is subtask 3 of the split `clauses` on
    the edge to `review`, `/=vote` what the merge `vote` made without closing. The root's path is empty. `id`
    is the run's id and the path.
    """

    __slots__ = (
        "brood", "came_by", "depth", "early", "edge", "entries", "error", "forked_from_seq", "id",
        "index", "input", "into", "joins", "left", "lineage", "merged_from", "order", "output", "parent",
        "path", "ran", "reason", "stage", "state", "status", "winner",
    )  # fmt: skip

    def __init__(self, id: str, path: str, lineage: Lineage, parent: Task | None, order: Order) -> None:
        self.id, self.path, self.lineage, self.parent, self.order = id, path, lineage, parent, order
        self.depth: int = 0
        self.stage = ""
        self.state: State = "running"
        self.status: Status = "success"
        #: what the next stage works on, and what the last one put out
        self.input: Any = None
        self.output: Any = None
        self.error: JsonObject | None = None
        self.reason = ""
        #: the edge by which it was made: target and label of a child
        self.edge = ""
        self.index = 0
        #: the edge by which the token came to its stage: (source, label)
        self.came_by: tuple[str, str] = ("", "")
        self.ran: set[str] = set()
        self.entries: list[Entry] = []
        self.forked_from_seq = 0
        self.merged_from: tuple[str, ...] = ()
        #: what has been forked off by the fork at `stage`, and how many of them live
        self.brood: list[Task] = []
        self.left = 0
        self.winner: Task | None = None
        #: the Task whose merge took it in; a successful early exit below it, if no merge succeeds (E7)
        self.into: Task | None = None
        self.early: Task | None = None
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
    """A merge within one scope: who waits, and how many tokens may still come (R2, R3).

    `pending` is kept up to date by every move of a token, so that no rule ever looks through all Tasks.
    """

    __slots__ = ("allow_empty", "failures", "fired", "merge", "pending", "scope", "waiting")

    def __init__(self, scope: Task, merge: str) -> None:
        self.scope, self.merge = scope, merge
        self.pending = 0
        self.waiting: list[Task] = []
        self.failures: list[Task] = []
        self.fired = False
        self.allow_empty = False
