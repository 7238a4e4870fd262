"""One run of a workflow: carries out the commands of the state machine, stage by stage.

Stages run within the slots that all runs of an engine share, and hold none while they wait for somebody. Each
is committed to the Task log and reported to the listeners. `TaskProjection` computes the same events from the
records alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

from astromesh.config.workflow import ContextProfile, TaskSpec
from astromesh.errors import UnreadableModule
from astromesh.graph.scope import Journal, Scope
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import Emitter
from astromesh.types import Event, JsonObject
from astromesh.workflow.base import (
    CONTEXT,
    STEP,
    Entry,
    OpenJournal,
    StageAttempts,
    Task,
    TaskLog,
    TaskResult,
)
from astromesh.workflow.concurrency import StageSlots, Stopwatch, TaskSlot
from astromesh.workflow.memory import ContextPackage, RunMemory, package_from_json
from astromesh.workflow.plan import Plan, Stage
from astromesh.workflow.snapshot import CODE_CHANGED
from astromesh.workflow.stages import (
    StageCall,
    StageExecution,
    complete_entry,
    failing_call,
    route,
    stage_error,
)
from astromesh.workflow.state_machine import (
    CancelStage,
    Command,
    CompleteRun,
    EmitEvent,
    Outcome,
    StartStage,
    StateMachine,
)

#: stages that one worker runs before it yields to the event loop, if none of them waits for anything
_STAGES_PER_YIELD = 32

log = get_logger("astromesh.workflows")


@dataclass(frozen=True, slots=True)
class ExecutionSetup:
    """The objects that all runs of one engine share.

    Args:
        call: the compiled call of a stage.
        log: commits each stage before it counts; None for runs that are not durable.
        timeout: seconds that a run may take; 0: no limit.
        records_calls: whether the record of a stage contains its calls.
        journals: opens the journal of a Task; None: its interrupted stages repeat calls.
        observe: receives each record of a Task, by its id, once it counts; entries then have their `seq`.
    """

    name: str
    plan: Plan
    call: Callable[[Stage], StageCall]
    slots: StageSlots
    clock: Clock
    log: TaskLog | None = None
    timeout: float = 0.0
    records_calls: bool = False
    journals: OpenJournal | None = None
    observe: Callable[[str, JsonObject], None] | None = None


class RunState:
    """The state of a run and its entries. The same stages in the same order always produce the same state."""

    def __init__(self, plan: Plan, run_id: str) -> None:
        self.machine = StateMachine(plan, run_id)
        self.trace: list[Entry] = []

    def finish_stage(self, task: Task, entry: Entry, outcome: Outcome) -> list[Command]:
        """Applies the outcome of a stage of a running Task."""
        machine = self.machine
        machine.seq += 1
        entry.seq = machine.seq
        self.trace.append(entry)
        task.entries.append(entry)
        _trim_history(task, machine.plan.task)
        return machine.finish_stage(task, outcome)

    def apply(self, record: Mapping[str, Any]) -> tuple[Entry | None, list[Command]]:
        """Applies a record of the Task log; returns the entry of a stage that counts, and the commands."""
        machine = self.machine
        match record["type"]:
            case "begin":
                return None, machine.begin(record["input"])
            case "cancel":
                return None, machine.cancel(record["reason"])
            case "stage":
                entry = Entry.from_json(record["entry"])
                task = machine.tasks.get(entry.task)
                if task is not None and task.state == "running":
                    entry.input = task.input  # shared with the Task, as in the run that wrote the record
                    stage = machine.plan.stages[entry.stage]
                    outcome = (
                        Outcome(entry.output, entry.error) if entry.error else route(stage, entry.output)
                    )
                    return entry, self.finish_stage(task, entry, outcome)
        return None, []


def _trim_history(task: Task, rules: TaskSpec) -> None:
    """Trims a Task's own history to `last:N` or `none`; the trace of the run stays whole."""
    retention = rules.history_retention
    if retention != "all":
        limit = 1 if retention == "none" else int(retention.partition(":")[2])
        del task.entries[:-limit]


def started_data(task_id: str, record: Mapping[str, Any]) -> JsonObject:
    """Returns the content of the event `task.started`."""
    return {"task": task_id, "start": record["start"]}


def finished_data(task_id: str, entry: Entry) -> JsonObject:
    """Returns the content of the event `stage.finished`."""
    data: JsonObject = {
        "task": task_id,
        "stage": entry.stage,
        "status": entry.status,
        "duration_ms": round((entry.finished_at - entry.started_at) * 1000, 3),
    }
    return {**data, "error": entry.error["code"]} if entry.error else data


class Execution:
    """One run of a workflow, from its first stage to its last.

    Args:
        scope: id, events, caller, deadline and ledger of the run.
        memory: what its stages remember; None where it is neither read nor stored.
        slot: its place among the Tasks of the engine, which it holds.
        records_starts: whether the log holds the starts of stages, too, as a run that may be resumed needs.
    """

    def __init__(
        self,
        setup: ExecutionSetup,
        scope: Scope,
        memory: RunMemory | None,
        slot: TaskSlot,
        *,
        records_starts: bool = True,
    ) -> None:
        self._setup, self._scope, self._memory = setup, scope, memory
        self._records_starts = records_starts
        self._empty = RunMemory({}, (), {})
        self._state = RunState(setup.plan, scope.run_id)
        self.machine = self._state.machine
        self._ready: deque[StartStage] = deque()
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._cancelled_workers: set[asyncio.Task[None]] = set()
        self._uncommitted: list[tuple[JsonObject, Callable[[], object]]] = []
        self._attempts = StageAttempts()
        self._journal: Journal | None = None
        #: done when the newest step of the journal is on disk
        self._last_step: asyncio.Future[None] | None = None
        self._suspects: frozenset[tuple[str, str]] = frozenset()
        self._committing = False
        self._ended = asyncio.Event()
        self._events: Emitter = scope.events
        self._group: asyncio.TaskGroup | None = None
        #: the task that runs the group, until it leaves it
        self._owner: asyncio.Task[Any] | None = None
        #: whether it ended; whether no further stage begins, because this process ends
        self._done, self._stopping = False, False
        self._slot, self._stopwatch = slot, Stopwatch(setup.clock)
        #: workers of stages; how often each of them waits now; those that have given their slot back
        self._stage_workers: set[asyncio.Task[None]] = set()
        self._suspended: Counter[asyncio.Task[None]] = Counter()
        self._slotless: set[asyncio.Task[None]] = set()
        self._notes: set[tuple[str, ...]] = set()
        #: whether everything that could run waits for a person or the inspector
        self.is_idle = False

    # -- lifecycle -------------------------------------------------------------------------------------------

    async def begin(self, input: Any) -> TaskResult:
        """Runs to the end. Cancelling the caller cancels the run."""
        self._open_journal(())
        record = {"type": "begin", "task_id": self.machine.run_id, "workflow": self._setup.name,
                  "start": self._setup.plan.start, "input": input}  # fmt: skip
        if self._setup.log is not None:
            await self._setup.log.commit(self.machine.run_id, [record])
        self._observe(record)
        return await self._run_commands(self.machine.begin(input))

    async def resume(self, records: Iterable[Mapping[str, Any]]) -> TaskResult:
        """Continues where the records end: only stages that are not in them run."""
        recorded = list(records)
        is_fork = "forked_from" in recorded[0]
        steps = [record for record in recorded if record["type"] == STEP]
        self._open_journal(steps, is_fork=is_fork, accepted_at=recorded[0].get("at", 0.0))
        if is_fork and self._memory is not None:
            self._memory.fork([record for record in recorded if record["type"] == CONTEXT])
        commands = self._replay(recorded)
        self._suspects = frozenset(self._attempts.open)
        self._warn_of_repeats(commands)
        return await self._run_commands(commands)

    def _open_journal(
        self, steps: Sequence[Mapping[str, Any]], *, is_fork: bool = False, accepted_at: float = 0.0
    ) -> None:
        if self._setup.journals is not None and self._setup.log is not None:
            self._journal = self._setup.journals(
                self.machine.run_id,
                steps,
                self,
                is_fork=is_fork,
                is_durable=self._records_starts,
                accepted_at=accepted_at,
            )

    def commit(self, record: JsonObject) -> None:
        """See `RecordWriter`."""
        self._last_step = asyncio.get_running_loop().create_future()
        self._commit(record, partial(_set_written, self._last_step))

    def suspend(self) -> None:
        """Prepares the end of this process: what is cancelled next is not the end of the Task."""
        if self._journal is not None:
            self._journal.suspend()

    def stop_starting(self) -> None:
        """Begins no further stage, because this process ends; those that run go on."""
        self._stopping = True
        self._ready.clear()
        self._setup.slots.withdraw(self)

    @property
    def is_resting(self) -> bool:
        """Whether it goes on, every record is on disk, and no stage runs but those that wait for somebody."""
        due = self._done or self._uncommitted or self._committing
        return not due and len(self._suspended) == len(self._stage_workers)

    async def flush(self) -> None:
        """See `RecordWriter`."""
        if self._last_step is not None:
            await self._last_step

    def _warn_of_repeats(self, commands: Iterable[Command]) -> None:
        """Logs interrupted operations that run a second time and are not marked `idempotent`."""
        for command in commands:
            if isinstance(command, StartStage):
                task = command.task
                node = self._setup.plan.stages[task.stage].node
                if self._attempts.begun(task.path, task.stage) and node.op and node.idempotent is None:
                    log.warning("stage_may_run_twice", task_id=task.id, stage=task.stage)

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancels the run, which ends with status failure and this reason."""
        record: JsonObject = {"type": "cancel", "reason": reason}
        if self._setup.log is None:
            self._dispatch(self._cancel(record))
        else:
            self._commit(record, lambda: self._dispatch(self._cancel(record)))

    def _cancel(self, record: JsonObject) -> Sequence[Command]:
        commands = self.machine.cancel(record["reason"])
        self._observe(record)
        return commands

    async def _run_commands(self, commands: Sequence[Command]) -> TaskResult:
        self._events.emit("task.started", task=self.machine.run_id, start=self._setup.plan.start)
        try:
            async with asyncio.TaskGroup() as group:
                self._group, self._owner = group, asyncio.current_task()
                self._begin_commit()  # a run may be cancelled while its first record is committed
                timer = group.create_task(self._enforce_timeout()) if self._setup.timeout else None
                self._dispatch(commands)
                try:
                    await self._ended.wait()
                finally:
                    self._owner = None
                if timer is not None:
                    timer.cancel()
        finally:
            self._done = True
            self._setup.slots.withdraw(self)
        return await self._result()

    async def _enforce_timeout(self) -> None:
        await self._stopwatch.reach(self._setup.timeout)
        self.cancel("timeout")

    async def _result(self) -> TaskResult:
        root = self.machine.root
        if self._memory is not None:
            await self._memory.commit()
        record = {"type": "end", "status": root.status, "output": root.output, "error": root.error}
        if self._setup.log is not None:
            await self._setup.log.commit(self.machine.run_id, [record])
        self._observe(record)
        return TaskResult(
            self.machine.run_id,
            self._setup.name,
            root.status,
            None if root.status == "failure" and root.error and root.state == "cancelled" else root.output,
            root.error,
            tuple(task.to_json() for task in self.machine.tasks.values()),
            tuple(self._state.trace),
        )

    # -- commands --------------------------------------------------------------------------------------------

    def _dispatch(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case StartStage() if self._stopping:
                    pass  # the records lead the next process to it
                case StartStage():
                    self._ready.append(command)
                    self._setup.slots.request(self, self.begin_stage)
                case CancelStage():
                    self._cancel_stage(command.task)
                case EmitEvent():
                    self._events.emit(command.type, **command.data)
                case CompleteRun():
                    self._done = True
                    self._setup.slots.withdraw(self)
                    self._ended.set()

    def _cancel_stage(self, task: Task) -> None:
        under_way = self._workers.pop(task.path, None)
        if under_way is not None and under_way is not asyncio.current_task():
            self._cancelled_workers.add(under_way)
            under_way.cancel()

    # -- stages ----------------------------------------------------------------------------------------------

    def begin_stage(self) -> None:
        if self._group is None or self._done:
            self._setup.slots.release()
            return
        worker = self._group.create_task(self._run_stages())
        self._stage_workers.add(worker)
        # not in a `finally`: a worker that is cancelled before its first step never reaches it
        worker.add_done_callback(self._release_slot)

    def _release_slot(self, worker: asyncio.Task[None]) -> None:
        self._stage_workers.discard(worker)
        self._suspended.pop(worker, None)
        if worker in self._slotless:
            self._slotless.discard(worker)
        else:
            self._setup.slots.release()
        self._note_idleness()

    # -- waits -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _suspend(self, worker: asyncio.Task[None]) -> AsyncGenerator[None, None]:
        """Gives the slot of a stage back while it waits; the clock of the Task stands if all of it waits."""
        if worker not in self._slotless:
            self._slotless.add(worker)
            self._setup.slots.release()
        self._suspended[worker] += 1
        self._note_idleness()
        resumes = True
        try:
            yield
        except asyncio.CancelledError:  # the stage ends, or one of its calls: there is nothing to wait for
            resumes = False
            self._resumed(worker)
            raise
        finally:
            if resumes:
                await self._resume_stage(worker)

    async def _resume_stage(self, worker: asyncio.Task[None]) -> None:
        await self._slot.take()
        if self._suspended[worker] == 1:
            await self._setup.slots.acquire(self)
            self._slotless.discard(worker)
        self._resumed(worker)

    def _resumed(self, worker: asyncio.Task[None]) -> None:
        self._suspended[worker] -= 1
        if self._suspended[worker] <= 0:
            del self._suspended[worker]
        self._note_idleness()

    def _note_idleness(self) -> None:
        """Gives the place of the Task back once all of it waits; `_resume_stage` takes one again."""
        due = self._ready or self._uncommitted or self._committing
        self.is_idle = not due and 0 < len(self._suspended) == len(self._stage_workers)
        if self.is_idle:
            self._stopwatch.stop()
            self._slot.give_back()
        else:
            self._stopwatch.start()

    def _tell(self, record: JsonObject) -> None:
        """Commits a record that changes no state, once, whatever part of the Task is run again."""
        if self._setup.log is not None and (key := _note_key(record)) not in self._notes:
            self._notes.add(key)
            self._commit(record, _nothing)

    async def _run_stages(self) -> None:
        """Runs one stage after the other until another run waits longer for the slot.

        A single successor of a stage comes next, else the stage of this run that has waited longest, unless
        code of a stage has changed the context of this worker.
        """
        me, context = asyncio.current_task(), copy_context()
        assert me is not None
        command: StartStage | None = self._ready.popleft() if self._ready else None
        for count in itertools.count(1):
            if command is not None and command.task.state == "running":
                command = self._continue_with(await self._execute_or_cancel(command, me))
            elif _is_unchanged(context) and self._takes_turn():
                command = self._ready.popleft() if self._ready else None
            else:
                return
            if count % _STAGES_PER_YIELD == 0:
                await asyncio.sleep(0)

    def _takes_turn(self) -> bool:
        """Whether the slot of a worker whose stage has ended goes to a stage of this run."""
        return not self._stopping and self._setup.slots.take_turn(self, self.begin_stage)

    def _continue_with(self, commands: Sequence[Command]) -> StartStage | None:
        """Carries out the commands after a stage. Returns a single further stage, which the worker runs."""
        runs = [command for command in commands if isinstance(command, StartStage)]
        if len(runs) != 1 or self._setup.slots.has_waiters or self._stopping:
            self._dispatch(commands)
            return None
        self._dispatch([command for command in commands if command is not runs[0]])
        return runs[0]

    async def _execute_or_cancel(self, command: StartStage, me: asyncio.Task[None]) -> Sequence[Command]:
        try:
            return await self._execute(command, me)
        except asyncio.CancelledError:
            if me not in self._cancelled_workers:
                raise
            task = command.task  # the Task was cancelled, not the run
            self._events.emit(
                "stage.finished", task=task.id, stage=task.stage, status="failure", error="cancelled"
            )
            return ()
        finally:
            self._workers.pop(command.task.path, None)
            if me in self._cancelled_workers:
                self._cancelled_workers.discard(me)
                me.uncancel()

    async def _execute(self, command: StartStage, me: asyncio.Task[None]) -> Sequence[Command]:
        task = command.task
        stage = self._setup.plan.stages[task.stage]
        now = self._setup.clock.now
        entry = Entry(task.path, stage.id, task.input, now())
        memory = self._memory or self._empty
        job = StageExecution(task, entry, self.machine, memory, self._scope, self._attempts)
        job.is_suspect = (task.path, stage.id) in self._suspects
        job.suspended, job.tell = partial(self._suspend, me), self._tell
        job.run_journal = self._journal
        if self._setup.log is not None and self._records_starts:
            job.write = self._write
            job.journal = self._journal
        self._events.emit("stage.started", task=task.id, stage=stage.id)
        if command.error is not None:
            outcome = Outcome(error=command.error)
        else:
            self._workers[task.path] = me
            outcome = await self._outcome(stage, job, me)
            self._workers.pop(task.path, None)
        return self._complete_stage(job, stage, outcome)

    async def _outcome(self, stage: Stage, job: StageExecution, me: asyncio.Task[None]) -> Outcome:
        try:
            return await self._call(stage)(job, None)
        except asyncio.CancelledError as error:
            if me in self._cancelled_workers or self._owner is None or self._owner.cancelling():
                raise
            while me.uncancel():  # the code of the stage has cancelled its own task
                pass
            return Outcome(error=stage_error(error))

    def _call(self, stage: Stage) -> StageCall:
        """Returns the call of a stage. A Task that can be resumed is left until its code can be imported."""
        try:
            return self._setup.call(stage)
        except UnreadableModule as error:
            if self._setup.log is not None and self._records_starts:
                raise
            return failing_call(error)

    def _complete_stage(self, job: StageExecution, stage: Stage, outcome: Outcome) -> Sequence[Command]:
        output = outcome.output
        if stage.role == "decision" and outcome.edge is not None:
            # in the form that the stage returned, so that the record leads to the same edge again
            output = _recorded_decision(stage, outcome)
        if stage.role == "exit" and outcome.error is not None:
            outcome = outcome._replace(error={**outcome.error, "output": job.entry.input})
        complete_entry(job, outcome, self._setup.clock.now(), output)
        if self._setup.log is None:
            return self._apply(job, outcome, {"type": "stage"})
        record: JsonObject = {"type": "stage", "entry": job.entry.to_json()}
        if job.calls is not None:
            record |= job.calls.to_json()
        elif self._setup.records_calls:  # it failed before, e.g. because its memory could not be read
            record["begun"] = False
        self._commit(record, lambda: self._dispatch(self._apply(job, outcome, record)))
        return ()

    def _apply(self, job: StageExecution, outcome: Outcome, record: JsonObject) -> Sequence[Command]:
        """Applies an outcome to the state; the stage counts from here on."""
        if job.task.state != "running":
            return ()
        commands = self._state.finish_stage(job.task, job.entry, outcome)
        self._remember(job.entry, commands)
        self._events.emit("stage.finished", **finished_data(job.task.id, job.entry))
        if self._setup.observe is not None:
            self._observe({**record, "entry": job.entry.to_json()})
        return commands

    def _observe(self, record: JsonObject) -> None:
        if self._setup.observe is not None:
            self._setup.observe(self.machine.run_id, record)

    def _remember(self, entry: Entry, commands: Sequence[Command]) -> None:
        """Adds the output of a stage to the memory of its Task, then merges the memory of its inputs."""
        if self._memory is None:
            return
        if entry.error is None:
            passes_on = self._setup.plan.stages[entry.stage].passes_on
            self._memory.remember(self.machine.tasks[entry.task], entry, passes_on=passes_on)
        for command in commands:
            if isinstance(command, EmitEvent) and command.type == "merge.fired":
                start = len(self.machine.run_id)
                into = self.machine.tasks[command.data["task"][start:]]
                inputs = [self.machine.tasks[one[start:]] for one in command.data["inputs"]]
                self._memory.merge(into, [one for one in inputs if one is not into], self.machine.seq)

    # -- durability ------------------------------------------------------------------------------------------

    def _commit(self, record: JsonObject, on_disk: Callable[[], object]) -> None:
        """Commits a record with the next batch, then calls `on_disk`."""
        self._uncommitted.append((record, on_disk))
        self._begin_commit()

    async def _write(self, record: JsonObject) -> None:
        """Returns when a record is on disk."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commit(record, partial(_set_written, written))
        await written
        self._attempts.apply(record)

    def _begin_commit(self) -> None:
        if self._uncommitted and not self._committing and self._group is not None:
            self._committing, commit = True, self._commit_all()
            try:
                self._group.create_task(commit)
            except RuntimeError:  # the group ends, and so does this process's part of the Task
                commit.close()
                raise

    async def _commit_all(self) -> None:
        """Commits all records that were made meanwhile at once, then applies them in this order."""
        assert self._setup.log is not None
        try:
            while self._uncommitted:
                batch, self._uncommitted = self._uncommitted, []
                await self._setup.log.commit(self.machine.run_id, [record for record, _ in batch])
                for _, on_disk in batch:
                    on_disk()
        finally:
            self._committing = False
            self._note_idleness()

    def _replay(self, records: Iterable[Mapping[str, Any]]) -> list[Command]:
        due: dict[str, StartStage] = {}
        ended: list[Command] = []
        for record in records:
            self._attempts.apply(record)
            if record["type"] in NOTES:
                self._notes.add(_note_key(record))
            entry, commands = self._state.apply(record)
            if entry is not None:
                del due[entry.task]
                self._remember(entry, commands)
            for command in commands:
                if isinstance(command, StartStage):
                    due[command.task.path] = command
                elif isinstance(command, CancelStage):
                    due.pop(command.task.path, None)
                elif isinstance(command, CompleteRun):
                    ended.append(command)
        return [*due.values(), *ended]


def _is_unchanged(before: Context) -> bool:
    """Whether the variables of the current context are those of an earlier one."""
    now = copy_context()
    return len(now) == len(before) and all(before.get(variable) is value for variable, value in now.items())


def _nothing() -> None:
    """Follows a record that changes no state."""


def _set_written(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)


#: type of a record that changes no state → its event
NOTES: Mapping[str, str] = {"asked": "stage.waiting", "decided": "stage.decided"}


def _note_key(record: Mapping[str, Any]) -> tuple[str, ...]:
    return (record["type"], record["task"], record["stage"], record["ticket"])


def _recorded_decision(stage: Stage, outcome: Outcome) -> Any:
    key = stage.node.selection_key or "selected_edge"
    assert outcome.edge is not None
    output = outcome.output
    if isinstance(output, dict) and output.get(key) == outcome.edge.label and "output" not in output:
        return output
    return {key: outcome.edge.label, "output": output}


# -- one recorded stage once more ------------------------------------------------------------------------


class _RecordedMemory(RunMemory):
    """Memory that returns one recorded package."""

    def __init__(self, package: ContextPackage) -> None:
        super().__init__({}, (), {})
        self._package = package

    async def package(self, task: Task, profile: ContextProfile, query: str) -> ContextPackage:
        return self._package


async def rerun_stage(
    plan: Plan, call: StageCall, scope: Scope, entry: Mapping[str, Any], context: JsonObject | None
) -> JsonObject:
    """Runs a recorded stage once more and returns the new entry.

    Args:
        call: the stage, compiled with a replay in front of models and tools.
        entry: as recorded.
        context: the recorded context package, or None.
    """
    path, now = entry["task"], scope.clock.now
    machine = StateMachine(plan, scope.run_id)
    task = Task(scope.run_id + path, path, "root", None, ())
    again = Entry(path, entry["stage_id"], entry["input"], now())
    memory = _RecordedMemory(package_from_json(context))
    execution = StageExecution(task, again, machine, memory, scope, StageAttempts())
    outcome = await call(execution, None)
    complete_entry(execution, outcome, now(), outcome.output)
    return again.to_json()


# -- events from records -----------------------------------------------------------------------------------


class TaskProjection:
    """Applies the records of one Task in order. The same records lead to the same, equally numbered events.

    Args:
        plan: of the manifests that the Task began with.

    `trace` contains the entries that counted, not those of a Task after its cancellation.
    """

    def __init__(self, plan: Plan, task_id: str) -> None:
        self._state, self._task_id, self._seq = RunState(plan, task_id), task_id, 0
        self._is_finished = False
        self.trace: list[JsonObject] = []
        self.records: list[Mapping[str, Any]] = []

    @property
    def reachable(self) -> int | None:
        """Returns how many stages the start of the Task reaches."""
        return len(self._state.machine.plan.stages)

    @property
    def tasks(self) -> list[JsonObject]:
        """Returns the current state of the Task and its descendants."""
        return [task.to_json() for task in self._state.machine.tasks.values()]

    def apply(self, records: Iterable[Mapping[str, Any]]) -> list[Event]:
        """Applies further records and returns their events."""
        return [event for record in records for event in self._events(record)]

    def _events(self, record: Mapping[str, Any]) -> Iterator[Event]:
        entry, commands = self._state.apply(record)
        at = 0.0
        if record["type"] == "begin":
            yield self._event("task.started", started_data(self._task_id, record))
        elif record["type"] == "end" and not self._is_finished:
            data = {"task": self._task_id, "status": record["status"], "state": "ended"}
            if record.get("error"):
                data["error"] = record["error"]["code"]
            yield self._event("task.finished", data, record.get("at", 0.0))
        elif entry is not None:
            at = entry.finished_at
            self.trace.append({**record["entry"], "seq": entry.seq})
            self.records.append(record)
            yield self._event("stage.finished", finished_data(self._task_id + entry.task, entry), at)
        elif record["type"] in NOTES:
            at = record["at"]
            hidden = ("type", "task", "ticket")
            data = {key: value for key, value in record.items() if key not in hidden}
            yield self._event(NOTES[record["type"]], {"task": self._task_id + record["task"], **data}, at)
        elif record["type"] == CODE_CHANGED:
            at = record["at"]
            data = {"task": self._task_id, "modules": record["changed"]}
            yield self._event("task.code_changed", data, at)
        for command in commands:
            if isinstance(command, StartStage):
                data = {"task": command.task.id, "stage": command.task.stage}
                yield self._event("stage.started", data, at)
            elif isinstance(command, EmitEvent):
                root = command.type == "task.finished" and command.data["task"] == self._task_id
                self._is_finished = self._is_finished or root
                yield self._event(command.type, command.data, at)

    def _event(self, type: str, data: JsonObject, at: float = 0.0) -> Event:
        self._seq += 1
        return Event(self._task_id, self._seq, at, type, data)
