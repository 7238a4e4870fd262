"""One run: carries out what `Flow` decides, stage by stage, and tells the log and the listeners."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from astromesh.abc.clock import Clock
from astromesh.abc.events import Emitter
from astromesh.config.workflow.nodes import TaskSpec
from astromesh.node.scope import Scope
from astromesh.types import JsonObject
from astromesh.workflow.flow import Command, End, Flow, Notice, Outcome, Run, Stop
from astromesh.workflow.memory import RunMemory
from astromesh.workflow.plan import Plan, Stage
from astromesh.workflow.result import Entry, TaskResult
from astromesh.workflow.seams import TaskLog
from astromesh.workflow.slots import Slots
from astromesh.workflow.stages import Job, StageCall, complete, route
from astromesh.workflow.task import Task

#: stages that one worker runs, if none waits for anything, before it lets others have the event loop
_BREATH = 32

log = structlog.get_logger("astromesh.workflows")


@dataclass(frozen=True, slots=True)
class Setup:
    """What the runs of one engine share.

    Args:
        call: the compiled call of a stage.
        log: where stages are committed before they count, or None.
        timeout: seconds that a run may take; 0: any.
    """

    name: str
    plan: Plan
    call: Callable[[Stage], StageCall]
    slots: Slots
    clock: Clock
    log: TaskLog | None = None
    timeout: float = 0.0
    metadata: Mapping[str, Any] | None = None


class Execution:
    """One run of a workflow, from its first stage to its last.

    Args:
        scope: id, events, caller, deadline and ledger of the run.
        memory: what its stages remember; None where nobody reads or keeps it.
    """

    def __init__(self, setup: Setup, scope: Scope, memory: RunMemory | None) -> None:
        self._setup, self._scope, self._memory = setup, scope, memory
        self._empty = RunMemory({}, (), {})
        self.flow = Flow(setup.plan, scope.run_id)
        self.trace: list[Entry] = []
        self._ready: deque[Run] = deque()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._stopped: set[asyncio.Task[None]] = set()
        self._uncommitted: list[tuple[JsonObject, Job | None, Outcome | str]] = []
        self._committing = False
        self._ended = asyncio.Event()
        self._events: Emitter = scope.events
        self._group: asyncio.TaskGroup | None = None
        self._done = False

    # -- life ------------------------------------------------------------------------------------------------

    async def begin(self, input: Any) -> TaskResult:
        """Runs to the end. Cancelling the caller cancels the run."""
        if self._setup.log is not None:
            record = {"type": "begin", "task_id": self.flow.run_id, "workflow": self._setup.name,
                      "start": self._setup.plan.start, "input": input}  # fmt: skip
            await self._setup.log.commit(self.flow.run_id, [record])
        return await self._carry_out(self.flow.begin(input))

    async def resume(self, records: Iterable[Mapping[str, Any]]) -> TaskResult:
        """Goes on where the records end: only stages that are not among them run (E56)."""
        told = list(records)
        commands = self._replay(told)
        if len(told) > 1:
            self._warn_of_repeats(commands)
        return await self._carry_out(commands)

    def _warn_of_repeats(self, commands: Iterable[Command]) -> None:
        """A stage that was cut off runs a second time; whoever wrote it did not say that it may."""
        for command in commands:
            if isinstance(command, Run):
                node = self._setup.plan.stages[command.task.stage].node
                if (node.op or node.agent) and not node.idempotent:
                    log.warning("stage_may_run_twice", task_id=command.task.id, stage=command.task.stage)

    def cancel(self, reason: str = "cancelled") -> None:
        """Stops the run; it ends with status failure and this reason."""
        if self._setup.log is None:
            self._take(self.flow.cancel(reason))
        else:
            self._commit({"type": "cancel", "reason": reason}, None, reason)

    async def _carry_out(self, commands: Sequence[Command]) -> TaskResult:
        self._events.emit("task.started", task=self.flow.run_id, start=self._setup.plan.start)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._begin_commit()  # a run may be cancelled while its first record is committed
                timer = group.create_task(self._limit()) if self._setup.timeout else None
                self._take(commands)
                await self._ended.wait()
                if timer is not None:
                    timer.cancel()
        finally:
            self._done = True
            self._setup.slots.forget(self)
        return await self._result()

    async def _limit(self) -> None:
        await self._setup.clock.sleep(self._setup.timeout)
        self.cancel("timeout")

    async def _result(self) -> TaskResult:
        root = self.flow.root
        if self._memory is not None:
            await self._memory.commit()
        if self._setup.log is not None:
            record = {"type": "end", "status": root.status, "output": root.output, "error": root.error}
            await self._setup.log.commit(self.flow.run_id, [record])
        return TaskResult(
            self.flow.run_id,
            self._setup.name,
            root.status,
            None if root.status == "failure" and root.error and root.state == "cancelled" else root.output,
            root.error,
            tuple(task.to_json() for task in self.flow.tasks.values()),
            tuple(self.trace),
            dict(self._setup.metadata or {}),
        )

    # -- commands --------------------------------------------------------------------------------------------

    def _take(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Run():
                    self._ready.append(command)
                    self._setup.slots.want(self)
                case Stop():
                    self._stop(command.task)
                case Notice():
                    self._events.emit(command.type, **command.data)
                case End():
                    self._done = True
                    self._setup.slots.forget(self)
                    self._ended.set()

    def _stop(self, task: Task) -> None:
        under_way = self._under_way.pop(task.path, None)
        if under_way is not None and under_way is not asyncio.current_task():
            self._stopped.add(under_way)
            under_way.cancel()

    # -- stages ----------------------------------------------------------------------------------------------

    def begin_stage(self) -> None:
        if self._group is None or self._done:
            self._setup.slots.give_back()
            return
        worker = self._group.create_task(self._work())
        # not in a `finally`: a worker that is cancelled before its first step never comes to it
        worker.add_done_callback(self._gave_back)

    def _gave_back(self, worker: asyncio.Task[None]) -> None:
        self._setup.slots.give_back()

    async def _work(self) -> None:
        """Runs one stage, and those that follow it alone as long as nobody else waits for the slot."""
        me = asyncio.current_task()
        assert me is not None
        command: Run | None = self._ready.popleft() if self._ready else None
        for count in itertools.count(1):
            if command is None or command.task.state != "running":
                return
            command = self._next(await self._execute_or_stop(command, me))
            if count % _BREATH == 0:
                await asyncio.sleep(0)

    def _next(self, commands: Sequence[Command]) -> Run | None:
        """Carries out what follows a stage; a single further stage is left to the worker."""
        runs = [command for command in commands if isinstance(command, Run)]
        if len(runs) != 1 or self._setup.slots.is_wanted:
            self._take(commands)
            return None
        self._take([command for command in commands if command is not runs[0]])
        return runs[0]

    async def _execute_or_stop(self, command: Run, me: asyncio.Task[None]) -> Sequence[Command]:
        try:
            return await self._execute(command, me)
        except asyncio.CancelledError:
            if me not in self._stopped:
                raise
            task = command.task  # it was cancelled, not the run
            self._events.emit(
                "stage.finished", task=task.id, stage=task.stage, status="failure", error="cancelled"
            )
            return ()
        finally:
            self._under_way.pop(command.task.path, None)
            if me in self._stopped:
                self._stopped.discard(me)
                me.uncancel()

    async def _execute(self, command: Run, me: asyncio.Task[None]) -> Sequence[Command]:
        task = command.task
        stage = self._setup.plan.stages[task.stage]
        now = self._setup.clock.now
        entry = Entry(task.path, stage.id, task.input, now())
        job = Job(task, entry, self.flow, self._memory or self._empty, self._scope)
        self._events.emit("stage.started", task=task.id, stage=stage.id)
        if command.refused is not None:
            outcome = Outcome(error=command.refused)
        else:
            self._under_way[task.path] = me
            outcome = await self._setup.call(stage)(job, None)
            self._under_way.pop(task.path, None)
        return self._finished(job, stage, outcome)

    def _finished(self, job: Job, stage: Stage, outcome: Outcome) -> Sequence[Command]:
        output = outcome.output
        if stage.role == "decision" and outcome.edge is not None:
            # as the stage said it, so that the record leads to the same edge again
            output = _as_said(stage, outcome)
        if stage.role == "exit" and outcome.error is not None:
            outcome = outcome._replace(error={**outcome.error, "output": job.entry.input})
        complete(job, outcome, self._setup.clock.now(), output)
        if self._setup.log is None:
            return self._apply(job, outcome)
        self._commit({"type": "stage", "entry": job.entry.to_json()}, job, outcome)
        return ()

    def _apply(self, job: Job, outcome: Outcome) -> Sequence[Command]:
        """The stage counts from here on."""
        if job.task.state != "running":
            return ()
        commands = self._count(job, outcome)
        entry = job.entry
        self._events.emit(
            "stage.finished",
            task=job.task.id,
            stage=entry.stage,
            status=entry.status,
            duration_ms=round((entry.finished_at - entry.started_at) * 1000, 3),
            **({"error": entry.error["code"]} if entry.error else {}),
        )
        return commands

    def _count(self, job: Job, outcome: Outcome) -> list[Command]:
        entry, task, flow = job.entry, job.task, self.flow
        flow.seq += 1
        entry.seq = flow.seq
        self.trace.append(entry)
        task.entries.append(entry)
        _retain(task, self._setup.plan.task)
        if self._memory is not None and outcome.error is None:
            self._memory.remember(task, entry)
        commands = flow.finished(task, outcome)
        if self._memory is not None:
            self._merge_memory(commands)
        return commands

    def _merge_memory(self, commands: Sequence[Command]) -> None:
        assert self._memory is not None
        for command in commands:
            if isinstance(command, Notice) and command.type == "merge.fired":
                start = len(self.flow.run_id)
                into = self.flow.tasks[command.data["task"][start:]]
                inputs = [self.flow.tasks[one[start:]] for one in command.data["inputs"]]
                self._memory.merge(into, [one for one in inputs if one is not into], self.flow.seq)

    # -- durability ------------------------------------------------------------------------------------------

    def _commit(self, record: JsonObject, job: Job | None, outcome: Outcome | str) -> None:
        self._uncommitted.append((record, job, outcome))
        self._begin_commit()

    def _begin_commit(self) -> None:
        if self._uncommitted and not self._committing and self._group is not None:
            self._committing = True
            self._group.create_task(self._commit_all())

    async def _commit_all(self) -> None:
        """One commit for all that has ended meanwhile; it counts afterwards, in the order of the records."""
        assert self._setup.log is not None
        try:
            while self._uncommitted:
                batch, self._uncommitted = self._uncommitted, []
                await self._setup.log.commit(self.flow.run_id, [record for record, _, _ in batch])
                for _, job, outcome in batch:
                    if job is None or isinstance(outcome, str):
                        self._take(self.flow.cancel(str(outcome)))
                    else:
                        self._take(self._apply(job, outcome))
        finally:
            self._committing = False

    def _replay(self, records: Iterable[Mapping[str, Any]]) -> list[Command]:
        due: dict[str, Run] = {}
        ended: list[Command] = []
        for record in records:
            commands: list[Command] = []
            match record["type"]:
                case "begin":
                    commands = self.flow.begin(record["input"])
                case "cancel":
                    commands = self.flow.cancel(record["reason"])
                case "stage":
                    due.pop(record["entry"]["task"], None)
                    commands = self._replayed(Entry.from_json(record["entry"]))
            for command in commands:
                if isinstance(command, Run):
                    due[command.task.path] = command
                elif isinstance(command, Stop):
                    due.pop(command.task.path, None)
                elif isinstance(command, End):
                    ended.append(command)
        return [*due.values(), *ended]

    def _replayed(self, entry: Entry) -> list[Command]:
        task = self.flow.tasks[entry.task]
        if task.state != "running":
            return []
        entry.input = task.input  # shared with the Task, as in the run that wrote it
        stage = self._setup.plan.stages[entry.stage]
        outcome = Outcome(entry.output, entry.error) if entry.error else route(stage, entry.output)
        return self._count(Job(task, entry, self.flow, self._empty, self._scope), outcome)


def _as_said(stage: Stage, outcome: Outcome) -> Any:
    key = stage.node.selection_key or "selected_edge"
    assert outcome.edge is not None
    said = outcome.output
    if isinstance(said, dict) and said.get(key) == outcome.edge.label and "output" not in said:
        return said
    return {key: outcome.edge.label, "output": said}


def _retain(task: Task, rules: TaskSpec) -> None:
    """`last:N` and `none` bound what a Task keeps of its own history; the trace is the run's."""
    kept = rules.history_retention
    if kept != "all":
        most = 1 if kept == "none" else int(kept.partition(":")[2])
        del task.entries[:-most]
