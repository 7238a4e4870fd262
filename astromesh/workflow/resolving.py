"""R6: what a forked Task comes to when all its children are done. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from astromesh.config.workflow.nodes import StatusRules
from astromesh.types import JsonObject
from astromesh.workflow.plan import Stage
from astromesh.workflow.result import Status, worst
from astromesh.workflow.task import Task


class Resolution(NamedTuple):
    """What a forked Task comes to.

    Args:
        merged: it flowed into a merge further out, with its children.
        into: the scope of that merge.
        early: a successful exit below it, which counts only if no merge succeeds (E7).
    """

    status: Status = "success"
    output: Any = None
    error: JsonObject | None = None
    merged: bool = False
    into: Task | None = None
    early: Task | None = None


def resolve(parent: Task, stage: Stage, rules: StatusRules) -> Resolution:
    """R6 for one Task.

    Args:
        parent: forked at `stage`; none of its children lives.
        rules: what failed clones and subtasks mean.
    """
    outward = [c for c in parent.brood if c.state == "merged" and c.into is not parent]
    if outward:
        return Resolution(merged=True, into=outward[0].into, early=_first(_exits(parent)))
    merged = _first(c for c in parent.brood if c.lineage == "merge" and c.succeeded)
    if merged is not None:
        return Resolution(merged.status, merged.output)
    if stage.role == "split":
        return _subtasks(parent, rules)
    winner = parent.winner or _first(_exits(parent))
    if winner is None:
        return Resolution("failure", error=_no_success(parent, stage))
    status = winner.status
    if rules.clone_failures == "partial" and any(_failed(c) for c in parent.brood):
        status = worst(status, "partial")
    return Resolution(status, winner.output)


def _subtasks(parent: Task, rules: StatusRules) -> Resolution:
    """Without a merge, the result is the list of what the subtasks came to (E28)."""
    ended = [c for c in parent.brood if c.lineage == "subtask" and c.state in ("ended", "cancelled")]
    output = {"subtasks": [_summary(child) for child in ended]}
    good = [child for child in ended if child.succeeded]
    if not good:
        early = _first(_exits(parent))
        if early is not None:
            return Resolution(early.status, early.output)
        return Resolution("failure", output, _no_success(parent, None))
    status = worst(*(child.status for child in good))
    if len(good) < len(ended) and rules.subtask_failures == "partial":
        status = worst(status, "partial")
    return Resolution(status, output)


def _summary(child: Task) -> JsonObject:
    summary: JsonObject = {
        "task_id": child.id,
        "edge": child.edge,
        "index": child.index,
        "status": child.status,
        "output": child.output if child.succeeded else None,
    }
    if child.error or child.reason:
        summary["error"] = child.error or {"code": child.reason, "message": "The subtask was cancelled."}
    return summary


def _exits(parent: Task) -> Iterable[Task]:
    """Children that ended successfully by themselves, and early exits below those that merged."""
    for child in parent.brood:
        if child.succeeded:
            yield child
        elif child.state == "merged" and child.early is not None:
            yield child.early


def _first(tasks: Iterable[Task]) -> Task | None:
    return min(tasks, key=lambda task: task.order, default=None)


def _failed(child: Task) -> bool:
    return child.state == "ended" and child.status == "failure"


def _no_success(parent: Task, stage: Stage | None) -> JsonObject:
    """All children failed; where a merge waited for them, that is what it lacked (E33)."""
    lacking = any(join.failures for join in (parent.joins or {}).values())
    code = "no_successful_inputs" if lacking else "no_successful_child"
    errors = [c.error["code"] for c in parent.brood if c.error]
    said = f": {', '.join(dict.fromkeys(errors))}" if errors else ""
    return {
        "code": code,
        "message": f"None of {len(parent.brood)} children succeeded{said}.",
        "stage": parent.stage,
    }
