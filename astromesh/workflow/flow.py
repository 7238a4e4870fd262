"""The rules R1 to R7 (workflow.md section 3): state and event in, state and commands out; no I/O, no clock.

`Flow` is the state. `begin`, `finished` and `cancel` are its events; each answers what is to be done now. The
same events in the same order lead to the same state, which is how a run is taken up again from its records.
Nothing here looks through all Tasks: each rule touches the Tasks and merges that an event is about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from astromesh.types import JsonObject
from astromesh.workflow.joining import merge_input, refusal
from astromesh.workflow.plan import Edge, Plan, Stage
from astromesh.workflow.resolving import Resolution, resolve
from astromesh.workflow.result import Status, worst
from astromesh.workflow.routing import Part
from astromesh.workflow.task import Join, Lineage, Task


class Run(NamedTuple):
    """Execute the Task's stage on its input; where `refused` says why not, the stage has failed already."""

    task: Task
    refused: JsonObject | None = None


class Stop(NamedTuple):
    """The Task was cancelled: stop its stage if it is under way."""

    task: Task


class Notice(NamedTuple):
    """Something happened that listeners are told."""

    type: str
    data: JsonObject


class End(NamedTuple):
    """The root Task has ended."""

    task: Task


Command = Run | Stop | Notice | End


class Outcome(NamedTuple):
    """What a stage came to.

    Args:
        error: `{code, message}` where it failed.
        edge: of a decision: the selected one.
        parts: of a fork: what becomes of each child.
    """

    output: Any = None
    error: JsonObject | None = None
    edge: Edge | None = None
    parts: Sequence[Part] = ()


class Flow:
    """One run of a workflow.

    Args:
        plan: compiled for the run's start.
        run_id: ids of Tasks are this and their path.
    """

    def __init__(self, plan: Plan, run_id: str) -> None:
        self.plan = plan
        self.run_id = run_id
        self.root = Task(run_id, "", "root", None, ())
        #: every Task by path
        self.tasks: dict[str, Task] = {"": self.root}
        self.live = 1
        #: entries written so far
        self.seq = 0
        self._commands: list[Command] = []
        self._touched: deque[Join] = deque()
        self._decided: deque[Task] = deque()

    # -- events ----------------------------------------------------------------------------------------------

    def begin(self, input: Any) -> list[Command]:
        """The run begins, unless it was cancelled before."""
        if not self.root.is_live:
            return [End(self.root)]
        self.root.input = self.root.output = input
        self._enter(self.root, self.plan.start, ("", ""))
        return self._settled()

    def finished(self, task: Task, outcome: Outcome) -> list[Command]:
        """A stage has come to something; what a cancelled Task still does counts for nothing."""
        if task.state != "running":
            return []
        stage = self.plan.stages[task.stage]
        task.ran.add(stage.id)
        if outcome.error is not None:
            self._failed(task, stage, outcome.error)
        else:
            self._succeeded(task, stage, outcome)
        return self._settled()

    def cancel(self, reason: str) -> list[Command]:
        """The whole run is cancelled; merges never fire for it (E50)."""
        if not self.root.is_live:
            return []
        self.root.error = {"code": reason, "message": _REASONS.get(reason, "The Task was cancelled.")}
        self._cancel([self.root], reason)
        self._commands.append(End(self.root))
        return self._settled()

    def limit(self, task: Task, children: int) -> JsonObject | None:
        """Why a Task may not fork into so many now, or None (E18)."""
        rules = self.plan.task
        if children and task.depth + 1 > rules.max_depth:
            return _limit(f"Forks may be {rules.max_depth} deep (task.max_depth).")
        if self.live + children > rules.max_live_tasks:
            return _limit(
                f"{self.live} Tasks live; {children} more would exceed {rules.max_live_tasks} "
                "(task.max_live_tasks)."
            )
        return None

    # -- after a stage ---------------------------------------------------------------------------------------

    def _succeeded(self, task: Task, stage: Stage, outcome: Outcome) -> None:
        task.output = outcome.output
        match stage.role:
            case "exit":
                status: Status = "failure" if stage.node.always_fail else task.status
                if stage.node.always_fail and task.error is None:
                    message = f"The Task ended at the error exit {stage.id!r}."
                    task.error = {"code": "error_exit", "message": message, "stage": stage.id}
                self._end(task, status)
            case "decision":
                edge = outcome.edge
                assert edge is not None
                data = {"task": task.id, "stage": stage.id, "edge": edge.label, "to": edge.target}
                self._commands.append(Notice("decision.taken", data))
                self._follow(task, edge)
            case "branch" | "split":
                self._fork(task, stage, outcome.parts)
            case _:
                self._follow(task, stage.out[0])

    def _failed(self, task: Task, stage: Stage, error: JsonObject) -> None:
        """A failed stage: the Task goes on (E42), goes to its error exit (E43), or ends."""
        if stage.continues:
            task.status = worst(task.status, "partial")
            self._go_on(task, stage)
            return
        task.error = {**error, "stage": stage.id}
        for merge in stage.open:
            self._join(task, merge).failures.append(task)
        if stage.node.on_failure:
            task.status = "failure"
            self._follow(task, Edge(-1, stage.id, stage.node.on_failure, "on_failure"))
        else:
            self._end(task, "failure")

    def _go_on(self, task: Task, stage: Stage) -> None:
        if stage.role == "branch":
            self._fork(task, stage, [Part(edge, 0, task.output) for edge in stage.out])
        elif stage.role == "decision":
            wanted = stage.node.default_edge
            self._follow(task, next(e for e in stage.out if wanted in (e.label, e.target)))
        else:
            self._follow(task, stage.out[0])

    def _follow(self, task: Task, edge: Edge) -> None:
        task.input = task.output
        self._enter(task, edge.target, (edge.source, edge.label))

    def _enter(self, task: Task, stage: str, by: tuple[str, str]) -> None:
        """The token goes to a stage; at a merge it waits (R2)."""
        before, task.stage, task.came_by = task.stage, stage, by
        self._moved(task, before, stage)
        found = self.plan.stages[stage]
        if found.anchor:
            task.state = "waiting"
            join = self._join(task, stage)
            assert not join.fired, "a token came to a merge that had fired (E36)"
            join.waiting.append(task)
            self._touched.append(join)
        else:
            task.state = "running"
            self._commands.append(Run(task))

    # -- counts (R3) -----------------------------------------------------------------------------------------

    def _join(self, task: Task, merge: str) -> Join:
        """The merge within its scope: the nearest self or ancestor that executed its anchor (R2)."""
        anchor = self.plan.stages[merge].anchor
        scope = task
        while anchor not in scope.ran:
            assert scope.parent is not None, "no ancestor executed the anchor of a merge"
            scope = scope.parent
        if scope.joins is None:
            scope.joins = {}
        join = scope.joins.get(merge)
        if join is None:
            join = scope.joins[merge] = Join(scope, merge)
        return join

    def _moved(self, task: Task, before: str, after: str) -> None:
        """A token left a stage for another one; '' is nowhere. What merges may expect changes with it."""
        stages = self.plan.stages
        old = stages[before].open if before else ()
        new = stages[after].open if after else ()
        if old == new:
            return
        for merge in new:
            if merge not in old:
                self._join(task, merge).pending += 1
        for merge in old:
            if merge not in new:
                join = self._join(task, merge)
                join.pending -= 1
                if not join.pending:
                    self._touched.append(join)

    # -- forks -----------------------------------------------------------------------------------------------

    def _fork(self, task: Task, stage: Stage, parts: Sequence[Part]) -> None:
        """R1: the Task has no token until it is resolved; its children carry tokens."""
        lineage: Lineage = "clone" if stage.role == "branch" else "subtask"
        task.state, task.brood, task.winner, task.left = "forked", [], None, len(parts)
        if not parts:
            self._moved(task, stage.id, "")
            self._nothing_to_split(task, stage)
            return
        many = stage.role == "split" and stage.node.split is not None and stage.node.split.mode == "items"
        for part in parts:
            mark = f"[{part.number}]" if many else ""
            order = (*task.order, (part.edge.position, part.number))
            child = self._child(task, lineage, f"/{stage.id}:{part.edge.target}{mark}", order)
            child.input = child.output = part.value
            child.edge, child.index = part.edge.label, part.number
            child.status = "success"
            self._enter(child, part.edge.target, (stage.id, part.edge.label))
        self._moved(task, stage.id, "")
        kind = "task.cloned" if lineage == "clone" else "task.split"
        self._commands.append(Notice(kind, {"task": task.id, "stage": stage.id, "children": len(parts)}))

    def _child(self, parent: Task, lineage: Lineage, name: str, order: Any) -> Task:
        path = parent.path + name
        child = Task(self.run_id + path, path, lineage, parent, order)
        child.depth, child.forked_from_seq = parent.depth + 1, self.seq
        parent.brood.append(child)
        self.tasks[path] = child
        self.live += 1
        return child

    def _nothing_to_split(self, task: Task, stage: Stage) -> None:
        """E25: a closing merge fires with no inputs, or the Task is done."""
        if stage.collector:
            join = self._join(task, stage.collector)
            if join.scope is task and self.plan.stages[stage.collector].closing:
                join.allow_empty = True
                self._fire(join)
                return
        task.output = {"subtasks": []}
        self._end(task, task.status)

    # -- merges ----------------------------------------------------------------------------------------------

    def _settled(self) -> list[Command]:
        """Merges whose last expected token has come or gone fire first, then forked Tasks are resolved."""
        while self._touched or self._decided:
            while self._touched:
                join = self._touched.popleft()
                if not join.fired and not join.pending and self._due(join):
                    self._fire(join)
            if self._decided:
                self._resolved(self._decided.popleft())
        commands, self._commands = self._commands, []
        return commands

    def _due(self, join: Join) -> bool:
        if not join.scope.is_live:
            return False
        if join.waiting:
            return True
        # E33: every input failed
        stage = self.plan.stages[join.merge]
        least = stage.node.merge.min_success if stage.node.merge else 1
        return bool(join.failures) and join.scope.state == "forked" and (stage.closing or not least)

    def _fire(self, join: Join) -> None:
        """R4 and R5: the merge runs once for its scope, in that Task itself or in a merged clone of it."""
        join.fired = True
        scope, stage = join.scope, self.plan.stages[join.merge]
        positions = self.plan.inbound[join.merge]
        inputs = sorted(join.waiting, key=lambda task: (positions[task.came_by], task.order))
        failures = sorted(join.failures, key=lambda task: task.order)
        join.waiting, join.failures = [], failures
        task = self._merging(scope, stage, inputs)
        excluded: tuple[Status, ...] = ("partial",) if failures else ()
        task.status = worst(task.status, *(one.status for one in inputs), *excluded)
        task.input = merge_input(inputs, failures)
        task.state = "running"
        data = {
            "task": task.id,
            "stage": stage.id,
            "inputs": [one.id for one in inputs],
            "failures": [one.id for one in failures],
        }
        self._commands.append(Notice("merge.fired", data))
        self._commands.append(Run(task, None if join.allow_empty else refusal(stage.node, inputs, failures)))

    def _merging(self, scope: Task, stage: Stage, inputs: list[Task]) -> Task:
        """Whose stage the merge is (R5); the other arrivals have become part of it."""
        if len(inputs) == 1 and inputs[0] is scope:
            return scope
        if stage.closing:
            task, scope.stage = scope, stage.id
            scope.state = "running"
        else:
            order = inputs[0].order if inputs else scope.order
            task = self._child(scope, "merge", f"/={stage.id}", order)
            task.edge, task.stage = stage.id, stage.id
            task.merged_from = tuple(one.id for one in inputs)
            scope.left += 1
        self._moved(task, "", stage.id)
        for one in inputs:
            self._moved(one, one.stage, "")
            one.state, one.into = "merged", scope
            self.live -= 1
            self._child_done(one)
        return task

    # -- ends ------------------------------------------------------------------------------------------------

    def _end(self, task: Task, status: Status) -> None:
        held = task.state != "forked"
        task.state, task.status = "ended", status
        self.live -= 1
        if held:
            self._moved(task, task.stage, "")
        self._tell_end(task)
        if task.parent is None:
            self._commands.append(End(task))
        else:
            self._child_done(task)

    def _tell_end(self, task: Task) -> None:
        data = {"task": task.id, "status": task.status, "state": task.state}
        if task.error:
            data["error"] = task.error["code"]
        self._commands.append(Notice("task.finished", data))

    def _child_done(self, child: Task) -> None:
        """A child ended or merged: its parent may be decided by that (R6)."""
        parent = child.parent
        if parent is None or parent.state != "forked":
            return
        parent.left -= 1
        stage = self.plan.stages[parent.stage]
        if child.state == "ended":
            self._hurry(parent, child, stage)
        if not parent.left:
            self._decided.append(parent)

    def _hurry(self, parent: Task, child: Task, stage: Stage) -> None:
        """The first success of a branch without a merge decides it; a failure may end a split at once."""
        if stage.role == "branch" and not stage.recombined:
            if child.succeeded and parent.winner is None:
                parent.winner = child
                if stage.node.branch is None or stage.node.branch.on_exit == "cancel_siblings":
                    self._cancel([one for one in parent.brood if one.is_live], "cancelled")
        elif stage.role == "split" and not child.succeeded:
            split = stage.node.split
            if split is not None and split.on_failure == "fail_fast":
                rest = [one for one in parent.brood if one.is_live and one.state != "waiting"]
                self._cancel(rest, "cancelled")

    def _resolved(self, parent: Task) -> None:
        """R6: all children are done."""
        if parent.state != "forked" or parent.left:
            return
        found: Resolution = resolve(parent, self.plan.stages[parent.stage], self.plan.task.status)
        if found.merged:
            parent.state, parent.early = "merged", found.early
            parent.into = found.into
            self.live -= 1
            self._child_done(parent)
            return
        parent.output = found.output
        parent.error = found.error
        self._end(parent, worst(parent.status, found.status))

    # -- cancelling ------------------------------------------------------------------------------------------

    def _cancel(self, tasks: Sequence[Task], reason: str) -> None:
        """Cancels Tasks with all below them (E50). For merges they are absent, not failed."""
        waiting = deque(tasks)
        tops = set(map(id, tasks))
        while waiting:
            task = waiting.popleft()
            if not task.is_live:
                continue
            before, task.state = task.state, "cancelled"
            task.status, task.reason = "failure", reason
            self.live -= 1
            if before == "forked":
                waiting.extend(task.brood)
            else:
                self._withdraw(task, before)
            self._tell_end(task)
            if id(task) in tops and task.parent is not None and task.parent.state == "forked":
                task.parent.left -= 1
                if not task.parent.left:
                    self._decided.append(task.parent)

    def _withdraw(self, task: Task, before: str) -> None:
        if before == "running":
            self._commands.append(Stop(task))
        else:
            join = self._join(task, task.stage)
            if join.scope.is_live:
                join.waiting.remove(task)
        self._moved(task, task.stage, "")


_REASONS = {"timeout": "The Task took longer than it may."}


def _limit(message: str) -> JsonObject:
    return {"code": "limit_exceeded", "message": message}
