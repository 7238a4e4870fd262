"""How Tasks move: state and event in, state and commands out; no I/O, no clock.

The rules (docs/workflows.md, "How Tasks move"):

- Fork: a branch or split passes the token of its Task to the children. The Task has none until it is
  resolved.
- Scope: a token waits at a merge. The merge belongs to the Task, or its nearest ancestor, that executed the
  anchor of the merge (its immediate dominator).
- Count: a merge fires once, when no further token can reach it within its scope.
- Inputs: a merge receives them in the order of its inbound edges, then in the order of the Tasks.
- Continuation: a closing merge, through which every path from its anchor leads, continues the scope itself.
  Any other merge continues in a merged clone.
- Resolution: a forked Task takes its result from its children when all of them are done. A merged clone
  counts before an early exit; of two merged clones counts the merge whose inbound edge is declared first.
- Status: `success`, `partial`, `failure`; a status only ever gets worse.

`StateMachine` holds the state. `begin`, `finish_stage` and `cancel` are its events; each returns the commands
to carry out. The same events in the same order lead to the same state, which is how a run resumes from its
records. No rule looks through all Tasks: each touches only the Tasks and merges that its event concerns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from astromesh.config.workflow import StatusRules
from astromesh.types import JsonObject
from astromesh.workflow.base import Join, Lineage, Status, Task, worst
from astromesh.workflow.merge import merge_error, merge_input
from astromesh.workflow.plan import Edge, ForkChild, Plan, Stage

# -- resolution: the result of a forked Task whose children are all done -------------------------------------


class Resolution(NamedTuple):
    """The result of a forked Task.

    Args:
        merged: whether it ended in a merge further out, with its children.
        merged_into: the scope of that merge.
        early_exit: a successful exit below it, which counts only if no merge succeeds.
    """

    status: Status = "success"
    output: Any = None
    error: JsonObject | None = None
    merged: bool = False
    merged_into: Task | None = None
    early_exit: Task | None = None


def resolve(parent: Task, stage: Stage, rules: StatusRules, first_edge: Callable[[str], int]) -> Resolution:
    """Returns the result of a forked Task.

    Args:
        parent: forked at `stage`; none of its children lives.
        rules: which status failed clones and subtasks lead to.
        first_edge: returns the position of the first inbound edge of a merge.
    """
    outward = [c for c in parent.children if c.state == "merged" and c.merged_into is not parent]
    if outward:
        return Resolution(
            merged=True, merged_into=outward[0].merged_into, early_exit=_first(_successful_exits(parent))
        )
    clones = [c for c in parent.children if c.lineage == "merge" and c.succeeded]
    if clones:
        merged = min(clones, key=lambda clone: first_edge(clone.edge))
        return Resolution(merged.status, merged.output)
    if stage.role == "split":
        return _resolve_split(parent, rules)
    winner = parent.winner or _first(_successful_exits(parent))
    if winner is None:
        return Resolution("failure", error=_no_success_error(parent, stage))
    status = winner.status
    if rules.clone_failures == "partial" and any(_failed(c) for c in parent.children):
        status = worst(status, "partial")
    return Resolution(status, winner.output)


def _resolve_split(parent: Task, rules: StatusRules) -> Resolution:
    """Returns the list of the subtasks' results, for a split without a merge."""
    ended = [c for c in parent.children if c.lineage == "subtask" and c.state in ("ended", "cancelled")]
    output = {"subtasks": [_summary(child) for child in ended]}
    good = [child for child in ended if child.succeeded]
    if not good:
        early = _first(_successful_exits(parent))
        if early is not None:
            return Resolution(early.status, early.output)
        return Resolution("failure", output, _no_success_error(parent, None))
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


def _successful_exits(parent: Task) -> Iterable[Task]:
    """Yields the children that ended successfully by themselves, and early exits below those that merged."""
    for child in parent.children:
        if child.succeeded:
            yield child
        elif child.state == "merged" and child.early_exit is not None:
            yield child.early_exit


def _first(tasks: Iterable[Task]) -> Task | None:
    return min(tasks, key=lambda task: task.order, default=None)


def _failed(child: Task) -> bool:
    return child.state == "ended" and child.status == "failure"


def _no_success_error(parent: Task, stage: Stage | None) -> JsonObject:
    """Returns the error of a Task whose children all failed; its code says whether a merge waited."""
    merge_waited = any(join.failures for join in (parent.joins or {}).values())
    code = "no_successful_inputs" if merge_waited else "no_successful_child"
    errors = [c.error["code"] for c in parent.children if c.error]
    codes = f": {', '.join(dict.fromkeys(errors))}" if errors else ""
    return {
        "code": code,
        "message": f"None of {len(parent.children)} children succeeded{codes}.",
        "stage": parent.stage,
    }


# -- commands ------------------------------------------------------------------------------------------------


class StartStage(NamedTuple):
    """Execute the Task's stage on its input. With an `error` the stage has failed already."""

    task: Task
    error: JsonObject | None = None


class CancelStage(NamedTuple):
    """Cancel the stage of a Task that was cancelled, if it is in progress."""

    task: Task


class EmitEvent(NamedTuple):
    """Send an event to the listeners."""

    type: str
    data: JsonObject


class CompleteRun(NamedTuple):
    """The root Task has ended."""

    task: Task


Command = StartStage | CancelStage | EmitEvent | CompleteRun


class Outcome(NamedTuple):
    """The outcome of a stage.

    Args:
        error: `{code, message}` where it failed.
        edge: the selected edge of a decision.
        parts: the children of a fork.
    """

    output: Any = None
    error: JsonObject | None = None
    edge: Edge | None = None
    parts: Sequence[ForkChild] = ()


class StateMachine:
    """The state of one run.

    Args:
        plan: compiled for the run's start.
        run_id: prefix of the Tasks' ids; the rest is their path.
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
        self._changed_joins: deque[Join] = deque()
        self._resolvable: deque[Task] = deque()

    # -- events ----------------------------------------------------------------------------------------------

    def begin(self, input: Any) -> list[Command]:
        """Begins the run, unless it was cancelled before."""
        if not self.root.is_live:
            return [CompleteRun(self.root)]
        self.root.input = self.root.output = input
        self._enter(self.root, self.plan.start, ("", ""))
        return self._settle()

    def finish_stage(self, task: Task, outcome: Outcome) -> list[Command]:
        """Applies the outcome of a stage, unless its Task has been cancelled meanwhile."""
        if task.state != "running":
            return []
        stage = self.plan.stages[task.stage]
        task.executed.add(stage.id)
        if outcome.error is not None:
            self._failed(task, stage, outcome.error)
        else:
            self._succeeded(task, stage, outcome)
        return self._settle()

    def cancel(self, reason: str) -> list[Command]:
        """Cancels the whole run; no merge fires for it."""
        if not self.root.is_live:
            return []
        self.root.error = {"code": reason, "message": _CANCEL_MESSAGES.get(reason, "The Task was cancelled.")}
        self._cancel([self.root], reason)
        self._commands.append(CompleteRun(self.root))
        return self._settle()

    def fork_limit_error(self, task: Task, children: int) -> JsonObject | None:
        """Returns the error of a fork that exceeds a limit, or None."""
        rules = self.plan.task
        if children and task.depth + 1 > rules.max_depth:
            return _limit_error(
                f"The stage {task.stage!r} would nest forks {task.depth + 1} deep; the limit is "
                f"{rules.max_depth} (task.max_depth)."
            )
        if self.live + children > rules.max_live_tasks:
            return _limit_error(
                f"{self.live} Tasks are active; {children} more of the stage {task.stage!r} would exceed "
                f"{rules.max_live_tasks} (task.max_live_tasks)."
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
                self._commands.append(EmitEvent("decision.taken", data))
                self._follow(task, edge)
            case "branch" | "split":
                self._fork(task, stage, outcome.parts)
            case _:
                self._follow(task, stage.out[0])

    def _failed(self, task: Task, stage: Stage, error: JsonObject) -> None:
        """After a failed stage, continues, goes to the error exit, or ends the Task."""
        if stage.continues:
            task.status = worst(task.status, "partial")
            self._continue_after_failure(task, stage)
            return
        task.error = {**error, "stage": stage.id}
        for merge in stage.open:
            self._join(task, merge).failures.append(task)
        if stage.node.on_failure:
            task.status = "failure"
            self._follow(task, Edge(-1, stage.id, stage.node.on_failure, "on_failure"))
        else:
            self._end(task, "failure")

    def _continue_after_failure(self, task: Task, stage: Stage) -> None:
        if stage.role == "branch":
            self._fork(task, stage, [ForkChild(edge, 0, task.output) for edge in stage.out])
        elif stage.role == "decision":
            target = stage.node.default_edge
            self._follow(task, next(e for e in stage.out if target in (e.label, e.target)))
        else:
            self._follow(task, stage.out[0])

    def _follow(self, task: Task, edge: Edge) -> None:
        task.input = task.output
        self._enter(task, edge.target, (edge.source, edge.label))

    def _enter(self, task: Task, stage: str, edge: tuple[str, str]) -> None:
        """Moves the token to a stage; at a merge it waits."""
        before, task.stage, task.entered_by = task.stage, stage, edge
        self._token_moved(task, before, stage)
        found = self.plan.stages[stage]
        if found.anchor:
            task.state = "waiting"
            join = self._join(task, stage)
            assert not join.fired, "a token arrived at a merge that had fired"
            join.waiting.append(task)
            self._changed_joins.append(join)
        else:
            task.state = "running"
            self._commands.append(StartStage(task))

    # -- counts ---------------------------------------------------------------------------------------------

    def _join(self, task: Task, merge: str) -> Join:
        """Returns the merge within its scope: the Task or nearest ancestor that executed its anchor."""
        anchor = self.plan.stages[merge].anchor
        scope = task
        while anchor not in scope.executed:
            assert scope.parent is not None, "no ancestor executed the anchor of a merge"
            scope = scope.parent
        if scope.joins is None:
            scope.joins = {}
        join = scope.joins.get(merge)
        if join is None:
            join = scope.joins[merge] = Join(scope, merge)
        return join

    def _token_moved(self, task: Task, before: str, after: str) -> None:
        """Updates the tokens that merges expect after a move from one stage to another; '' means no stage."""
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
                    self._changed_joins.append(join)

    # -- forks -----------------------------------------------------------------------------------------------

    def _fork(self, task: Task, stage: Stage, parts: Sequence[ForkChild]) -> None:
        """Passes the token to the children; the Task has none until it is resolved."""
        lineage: Lineage = "clone" if stage.role == "branch" else "subtask"
        task.state, task.children, task.winner, task.live_children = "forked", [], None, len(parts)
        if not parts:
            self._token_moved(task, stage.id, "")
            self._split_nothing(task, stage)
            return
        kind = "task.cloned" if lineage == "clone" else "task.split"
        self._commands.append(EmitEvent(kind, {"task": task.id, "stage": stage.id, "children": len(parts)}))
        many = stage.role == "split" and stage.node.split is not None and stage.node.split.mode == "items"
        for part in parts:
            mark = f"[{part.position}]" if many else ""
            order = (*task.order, (part.edge.position, part.position))
            child = self._child(task, lineage, f"/{stage.id}:{part.edge.target}{mark}", order)
            child.input = child.output = part.value
            child.edge, child.index = part.edge.label, part.position
            child.status = "success"
            self._enter(child, part.edge.target, (stage.id, part.edge.label))
        self._token_moved(task, stage.id, "")

    def _child(self, parent: Task, lineage: Lineage, name: str, order: Any) -> Task:
        path = parent.path + name
        child = Task(self.run_id + path, path, lineage, parent, order)
        child.depth, child.forked_from_seq = parent.depth + 1, self.seq
        parent.children.append(child)
        self.tasks[path] = child
        self.live += 1
        return child

    def _split_nothing(self, task: Task, stage: Stage) -> None:
        """Fires the closing merge without inputs, or ends the Task."""
        if stage.collector:
            join = self._join(task, stage.collector)
            if join.scope is task and self.plan.stages[stage.collector].closing:
                join.allow_empty = True
                self._fire(join)
                return
        task.output = {"subtasks": []}
        self._end(task, task.status)

    # -- merges ----------------------------------------------------------------------------------------------

    def _settle(self) -> list[Command]:
        """Fires the merges that expect no more tokens, then resolves forked Tasks; returns all commands."""
        while self._changed_joins or self._resolvable:
            while self._changed_joins:
                join = self._changed_joins.popleft()
                if not join.fired and not join.pending and self._can_fire(join):
                    self._fire(join)
            if self._resolvable:
                self._resolve_children(self._resolvable.popleft())
        commands, self._commands = self._commands, []
        return commands

    def _can_fire(self, join: Join) -> bool:
        if not join.scope.is_live:
            return False
        if join.waiting:
            return True
        # every input has failed
        stage = self.plan.stages[join.merge]
        least = stage.node.merge.min_success if stage.node.merge else 1
        return bool(join.failures) and join.scope.state == "forked" and (stage.closing or not least)

    def _fire(self, join: Join) -> None:
        """Runs the merge once for its scope, in that Task itself or in a merged clone of it."""
        join.fired = True
        scope, stage = join.scope, self.plan.stages[join.merge]
        positions = self.plan.inbound[join.merge]
        inputs = sorted(join.waiting, key=lambda task: (positions[task.entered_by], task.order))
        failures = sorted(join.failures, key=lambda task: task.order)
        join.waiting, join.failures = [], failures
        task = self._merge_task(scope, stage, inputs)
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
        self._commands.append(EmitEvent("merge.fired", data))
        self._commands.append(
            StartStage(task, None if join.allow_empty else merge_error(stage.node, inputs, failures))
        )

    def _merge_task(self, scope: Task, stage: Stage, inputs: list[Task]) -> Task:
        """Returns the Task that runs the merge and ends the other arrivals."""
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
            scope.live_children += 1
        self._token_moved(task, "", stage.id)
        for one in inputs:
            self._token_moved(one, one.stage, "")
            one.state, one.merged_into = "merged", scope
            self.live -= 1
            self._child_done(one)
        return task

    # -- ends ------------------------------------------------------------------------------------------------

    def _end(self, task: Task, status: Status) -> None:
        held = task.state != "forked"
        task.state, task.status = "ended", status
        self.live -= 1
        if held:
            self._token_moved(task, task.stage, "")
        self._emit_finished(task)
        if task.parent is None:
            self._commands.append(CompleteRun(task))
        else:
            self._child_done(task)

    def _emit_finished(self, task: Task) -> None:
        data = {"task": task.id, "status": task.status, "state": task.state}
        if task.error:
            data["error"] = task.error["code"]
        self._commands.append(EmitEvent("task.finished", data))

    def _child_done(self, child: Task) -> None:
        """Counts a child that ended or merged, which may resolve its parent."""
        parent = child.parent
        if parent is None or parent.state != "forked":
            return
        parent.live_children -= 1
        stage = self.plan.stages[parent.stage]
        if child.state == "ended":
            self._cancel_siblings(parent, child, stage)
        if not parent.live_children:
            self._resolvable.append(parent)

    def _cancel_siblings(self, parent: Task, child: Task, stage: Stage) -> None:
        """Cancels the siblings after the first success of a branch without a merge, or a failed subtask."""
        if stage.role == "branch" and not stage.recombined:
            if child.succeeded and parent.winner is None:
                parent.winner = child
                if stage.node.branch is None or stage.node.branch.on_exit == "cancel_siblings":
                    self._cancel([one for one in parent.children if one.is_live], "cancelled")
        elif stage.role == "split" and not child.succeeded:
            split = stage.node.split
            if split is not None and split.on_failure == "fail_fast":
                rest = [one for one in parent.children if one.is_live and one.state != "waiting"]
                self._cancel(rest, "cancelled")

    def _resolve_children(self, parent: Task) -> None:
        """Gives a Task whose children are all done its result."""
        if parent.state != "forked" or parent.live_children:
            return
        stage, rules = self.plan.stages[parent.stage], self.plan.task.status
        found: Resolution = resolve(parent, stage, rules, self.plan.first_edge)
        if found.merged:
            parent.state, parent.early_exit = "merged", found.early_exit
            parent.merged_into = found.merged_into
            self.live -= 1
            self._child_done(parent)
            return
        parent.output = found.output
        parent.error = found.error
        self._end(parent, worst(parent.status, found.status))

    # -- cancelling ------------------------------------------------------------------------------------------

    def _cancel(self, tasks: Sequence[Task], reason: str) -> None:
        """Cancels Tasks and their descendants. Merges treat them as absent, not as failed."""
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
                waiting.extend(task.children)
            else:
                self._withdraw(task, before)
            self._emit_finished(task)
            if id(task) in tops and task.parent is not None and task.parent.state == "forked":
                task.parent.live_children -= 1
                if not task.parent.live_children:
                    self._resolvable.append(task.parent)

    def _withdraw(self, task: Task, before: str) -> None:
        if before == "running":
            self._commands.append(CancelStage(task))
        else:
            join = self._join(task, task.stage)
            if join.scope.is_live:
                join.waiting.remove(task)
        self._token_moved(task, task.stage, "")


_CANCEL_MESSAGES = {"timeout": "The Task exceeded its time limit."}


def _limit_error(message: str) -> JsonObject:
    return {"code": "limit_exceeded", "message": message}
