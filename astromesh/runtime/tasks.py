"""The workflows of a runtime and their Tasks, for every transport.

A Task of `accept` is on disk before the caller receives its id. The process with its lease executes it. If
that process dies, the next one continues from the records: only stages without a record run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from astromesh.access.scopes import Viewer
from astromesh.durable.base import IdempotencyKey, StoredCallback
from astromesh.durable.callbacks import CallbackSource
from astromesh.durable.fork import Edit
from astromesh.durable.leases import (
    LEASE_SECONDS,
    SWEEP_SECONDS,
    PeriodicJob,
    Worker,
    WorkerHeartbeat,
    cancel_and_wait,
    expiry_job,
)
from astromesh.durable.serialization import caller_of, caller_to_json
from astromesh.durable.tasks import Artifact, TaskQueueDepth, TaskRow, TaskStatus, TaskStore
from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import (
    AstromeshError,
    Conflict,
    InvalidInput,
    LeaseLost,
    MissingExtra,
    QueueFull,
    ShuttingDown,
    StoreError,
    TaskNotFound,
    UnknownPlugin,
    UnreadableModule,
    is_failure,
)
from astromesh.evaluation.base import DEFAULT_OPTIONS, Judge, OnResult, Options
from astromesh.evaluation.dataset import select, workflow_cases
from astromesh.evaluation.evaluate import Results, evaluation_of, run_cases
from astromesh.logs import OutageLog, get_logger
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.runner import AgentRunner, callback_of
from astromesh.runtime.task_journal import forked_records, step_at
from astromesh.runtime.task_log import LiveTask, TaskMetrics, TaskRecords, TaskTraces
from astromesh.runtime.task_view import TaskReplays, TaskView, WorkflowTarget, task_json
from astromesh.runtime.task_waits import TaskWaits
from astromesh.runtime.workflows import WorkflowRegistry, agent_process
from astromesh.telemetry import ids
from astromesh.telemetry.clock import interval_sleep
from astromesh.telemetry.events import EventSink
from astromesh.types import CallerContext, JsonObject, ManifestSnapshot
from astromesh.workflow.base import START, STOP, Entry, NotJson, TaskResult, canonical, result_metadata
from astromesh.workflow.engine import Engine
from astromesh.workflow.history import fits
from astromesh.workflow.snapshot import changed_operations, code_change_record, code_changes

#: Tasks that one sweep takes over
MAX_TAKEOVERS = 50
#: seconds between two polls for a Task with a waiting caller; seconds to wait for a Task whose key exists
_POLL_SECONDS, _KEYED_TASK_SECONDS = 0.05, 2.0
#: seconds between two attempts to start a Task while the queue is full
_QUEUE_RETRY_SECONDS = 0.2

log = get_logger("astromesh.workflows")
outages = OutageLog(log, "task_store_away", "task_store_back")


def _log_task(live: LiveTask, record: JsonObject) -> None:
    """Logs one line for each Task, as for each run."""
    if record["type"] == "end":
        row, error = live.row, record["error"] or {}
        log.info(
            "task",
            status=record["status"],
            reason=error.get("code", "completed"),
            workflow=row.workflow,
            task_id=row.task_id,
            trace_id=row.trace_id,
            duration_ms=round(max(record["at"] - row.created_at, 0.0) * 1000, 3),
            stages=sum(1 for earlier in live.records if earlier["type"] == "stage"),
        )


class WorkflowTasks:
    """The workflows and Tasks of one runtime. The store opens with the first Task.

    Args:
        heartbeat: The live workers of this data folder.

    Attributes:
        loaded: The workflows.
        waits: Stages that wait for a person or for the inspector.
        tasks: Queries and actions on Tasks.
        replays: Runs ended Tasks again.
    """

    def __init__(self, runner: AgentRunner, heartbeat: WorkerHeartbeat) -> None:
        self._runner, self._clock = runner, runner.clock
        self._worker = Worker(self, heartbeat, outages, sleep=interval_sleep(runner.clock))
        self.worker = self._worker.name
        self.records = TaskRecords(self.worker, runner.clock)
        self.waits = TaskWaits(
            self.worker, self.records.live, self.store, runner.clock, self._worker.stop_requested
        )
        self.loaded = WorkflowRegistry(runner.directory, self.records, self.waits, agent_process)
        self.tasks = TaskView(self.loaded, self.records.live, self.store, self.stop, self.waits)
        self.replays = TaskReplays(runner.directory, self.loaded, self.tasks)
        self.records.listeners += [
            TaskMetrics(runner.metrics.tally, self.loaded.metrics_of),
            self.loaded.notify_observers,
            TaskTraces(runner.export),
            _log_task,
            self._wake_callbacks,
        ]
        if runner.callbacks is not None:
            runner.callbacks.add(CallbackSource("task", self.store_if_used, self._message_of))
        self._opening = asyncio.Lock()
        self._expiry: PeriodicJob | None = None
        self._draining = False

    # -- life ----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads every folder. A broken folder does not affect the others."""
        await self.loaded.load()

    def resume_left(self) -> None:
        """Starts to resume the Tasks of earlier processes, in the background."""
        if self.loaded:
            self._worker.start()

    def refuse(self) -> None:
        """Accepts no new Tasks."""
        self._draining = True

    async def drain(self) -> None:
        """Accepts no new Tasks, and begins no further stage of durable ones."""
        self.refuse()
        await self._worker.drain()
        for live in self.records.live.values():
            if not live.row.durable or live.work is None:
                continue
            if live.engine is None or not live.engine.stop_starting(live.id):
                live.work.cancel()  # it waits for its turn

    @property
    def _executes(self) -> bool:
        """Whether this process executes durable Tasks, or only accepts them for others."""
        return self._runner.durable.executes

    @property
    def is_busy(self) -> bool:
        """Whether a Task has a waiting caller, which no other process can take over, or runs a stage."""
        return self.busy > 0

    @property
    def busy(self) -> int:
        """How many Tasks there are of which `is_busy` speaks."""
        return sum(
            one.work is not None
            and not (one.row.durable and one.engine is not None and one.engine.is_resting(one.id))
            for one in self.records.live.values()
        )

    async def close(self) -> None:
        """Accepts no new Tasks and leaves durable ones to other processes."""
        self.refuse()
        await self._worker.drain()
        if self._expiry is not None:
            await self._expiry.close()
        for live in tuple(self.records.live.values()):
            if live.row.durable and live.engine is not None:
                live.engine.suspend(live.id)
            await cancel_and_wait(live.work)
        await self.loaded.close()
        with suppress(StoreError):  # then the leases expire
            await self._worker.close()

    async def store(self) -> TaskStore:
        async with self._opening:
            if self.records.store is None:
                self.records.store = store = await self._runner.stores.open_tasks()
                delete = partial(_expire, store)
                self._expiry = expiry_job(delete, self._clock, self._runner.stores.retention.days)
                self._expiry.start()
            return self.records.store

    async def store_if_used(self) -> TaskStore | None:
        """Returns the store if it may hold Tasks of other or earlier processes, else None."""
        if self.records.store is None and not self._runner.stores.may_hold_runs:
            return None
        return await self.store()

    async def queues(self) -> tuple[TaskQueueDepth, ...]:
        """Returns the queues of workflows with open durable Tasks."""
        store = await self.store_if_used()
        return () if store is None else await store.queues()

    # -- callbacks -----------------------------------------------------------------------------------------

    def _callback(self, engine: Engine, request: TaskRequest) -> StoredCallback | None:
        """Raises: InvalidInput: the server has no secret for callbacks."""
        callback = request.callback or callback_of(engine.project.workflow.callback)
        return self._runner.stored_callback(callback)

    def has_callback(self, name: str, request: TaskRequest) -> bool:
        """Whether a Task has a callback, so that it must be durable. Raises: as `run`."""
        return self._callback(self.loaded.require_engine(name), request) is not None

    def _wake_callbacks(self, live: LiveTask, record: JsonObject) -> None:
        if record["type"] == "end" and live.row.durable and self._runner.callbacks is not None:
            self._runner.callbacks.run_ended()

    async def _message_of(self, task_id: str, publisher: str) -> JsonObject | None:
        """Returns a Task with the questions that it waits for, as `GET /v1/tasks/{task_id}` does."""
        row = await (await self.store()).get(task_id)
        return None if row is None else await self.tasks.message(row)

    # -- running -------------------------------------------------------------------------------------------

    async def run(
        self,
        name: str,
        request: TaskRequest,
        *,
        caller: CallerContext | None = None,
        sinks: Sequence[EventSink] = (),
        engine: Engine | None = None,
    ) -> TaskResult:
        """Executes a Task to its end and stores its records. Cancelling the caller cancels the Task.

        Args:
            sinks: Listeners to its events, those of models and tools included.
            engine: Replaces that of the workflow.

        Raises:
            WorkflowNotFound, WorkflowUnavailable, InvalidInput, QueueFull: no Task was made.
        """
        engine = engine or self.loaded.require_engine(name)
        self._admit()
        if request.callback is not None:
            raise InvalidInput("callback: only a durable Task may have one (accept).", param="callback")
        begin = self._begin(engine, request, ids.new_id("task_"))
        await self.store()
        engine.require_capacity()
        row = self._row(engine, request, begin, caller, durable=False)
        live = self.records.live[row.task_id] = LiveTask(row, [begin], engine)
        live.work, live.has_begun = asyncio.current_task(), True
        self._worker.watch_requests()
        try:
            return await self._run(engine, live, sinks)
        finally:
            self._forget(live)

    async def _run(self, engine: Engine, live: LiveTask, sinks: Sequence[EventSink]) -> TaskResult:
        try:
            result = await self._execute(engine, live, sinks)
        except asyncio.CancelledError:
            result = self._cancelled(live)
            await asyncio.shield(self._try_store_end(live, result))
            if live.cancelled and live.work is not None and live.work.uncancel() == 0:
                return result
            raise
        await self._try_store_end(live, result)
        return result

    async def _try_store_end(self, live: LiveTask, result: TaskResult) -> None:
        """Stores the end of a Task. An unavailable store loses the records, never the answer."""
        try:
            await self.records.end(live, result, await self.loaded.redactors(live.records))
        except StoreError as error:
            log.warning("task_not_kept", task_id=live.id, error=str(error))

    async def answer(
        self,
        name: str,
        request: TaskRequest,
        key: IdempotencyKey | None,
        *,
        caller: CallerContext | None = None,
    ) -> JsonObject:
        """Returns a durable Task at its end. A repeated request with the same key is the same Task."""
        row, store = await self.accept(name, request, caller=caller, key=key), await self.store()
        while not row.finished_at:
            await asyncio.sleep(_POLL_SECONDS)
            if (found := await store.get(row.task_id)) is None:
                raise TaskNotFound(f"The Task {row.task_id!r} was erased.")
            row = found
        task = task_json(row)
        return {key: task[key] for key in ("task_id", "workflow", "status", "output", "error", "metadata")}

    async def _find_by_key(self, key: IdempotencyKey, task_id: str) -> tuple[str, TaskRow | None]:
        """Returns the Task id of a key, and the Task if it exists."""
        reserved_id = await (await self._runner.durable.open()).reserve_key(key, task_id)
        if reserved_id == task_id:
            return reserved_id, None
        store, tries = await self.store(), int(_KEYED_TASK_SECONDS / _POLL_SECONDS)
        for _ in range(tries):  # the process with the key stores the Task in a moment, or has died before
            if (row := await store.get(reserved_id)) is not None:
                return reserved_id, row
            await asyncio.sleep(_POLL_SECONDS)
        return reserved_id, None

    async def accept(
        self,
        name: str,
        request: TaskRequest,
        *,
        caller: CallerContext | None = None,
        key: IdempotencyKey | None = None,
        pause_before: Collection[str] | None = None,
    ) -> TaskRow:
        """Accepts a durable Task: on disk when this returns, and executed from then.

        Args:
            key: The caller's `Idempotency-Key`. The Task that has the key already is returned.
            pause_before: Stages that it pauses before; empty: every one; None: those of its manifest.

        Raises:
            StoreUnavailable, and as `run`: it was not accepted.
            IdempotencyConflict: the key was used with another body.
        """
        engine = self.loaded.require_engine(name)
        self._admit()
        callback = self._callback(engine, request)
        task_id = ids.new_id("task_")
        begin = self._begin(engine, request, task_id)
        if key is not None:
            task_id, earlier = await self._find_by_key(key, task_id)
            if earlier is not None:
                return earlier
            begin = {**begin, "task_id": task_id}
        store = await self.store()
        if self._executes:
            self._worker.start()
        self._require_room(engine, name)
        row = self._row(engine, request, begin, caller, durable=True)
        if pause_before is not None:
            inspection = {"all_stages": not pause_before, "before": sorted(pause_before)}
            row = replace(row, inspection=inspection)
        live = LiveTask(row, [begin], engine)
        row = await self._accept_once(key, store, live, engine.project.snapshot, callback)
        if callback is not None and self._runner.callbacks is not None:
            self._runner.callbacks.wake()
        return row

    async def _accept_once(
        self,
        key: IdempotencyKey | None,
        store: TaskStore,
        live: LiveTask,
        snapshot: ManifestSnapshot,
        callback: StoredCallback | None = None,
    ) -> TaskRow:
        """Accepts a Task, or returns the one that another request with its key has stored meanwhile."""
        try:
            await self._accept(store, live, snapshot, callback)
        except StoreError:
            if key is None or (earlier := await store.get(live.id)) is None:
                raise
            return earlier
        return live.row

    async def _accept(
        self,
        store: TaskStore,
        live: LiveTask,
        snapshot: ManifestSnapshot,
        callback: StoredCallback | None,
    ) -> None:
        """Stores a durable Task and begins to execute it, or leaves it to another process."""
        if not self._executes:
            row = replace(live.row, worker="", lease_until=0.0)
            await store.accept(row, live.records, (), snapshot, callback)
            return
        self.records.live.setdefault(live.id, live)  # it counts in `_require_room` at once
        try:
            await store.accept(live.row, live.records, (), snapshot, callback)
        except BaseException:
            self._forget(live)
            raise
        self._start_work(live)

    async def fork(
        self,
        task_id: str,
        viewer: Viewer,
        at: int,
        edit: Edit | None,
        caller: CallerContext,
        key: IdempotencyKey | None = None,
    ) -> TaskRow:
        """Accepts a Task that has the steps of another one before a step, and continues from there.

        Args:
            at: number of the step.
            caller: who starts it. It runs for the owner of the Task, as this caller if it is theirs.

        Raises:
            TaskNotFound: there is no such Task or step.
            InvalidInput: the step cannot be edited like that.
            Conflict: the steps before do not fit the present manifests.
            WorkflowNotFound, WorkflowUnavailable, QueueFull, ShuttingDown, StoreUnavailable: not accepted.
        """
        origin = await self.tasks.task(task_id, viewer)
        records, steps = await self.tasks.records(origin), await self.tasks.steps(origin)
        found = step_at(steps, at, task_id)
        copied = forked_records(task_id, records, steps, found, edit)
        engine = self.loaded.require_engine(origin.workflow)
        snapshot = await self._fork_snapshot(origin, edit)
        self._admit()
        new_id = ids.new_id("task_")
        if key is not None:
            new_id, earlier = await self._find_by_key(key, new_id)
            if earlier is not None:
                return earlier
        forked_from = {"task_id": task_id, "step": at, "edit": edit.kind if edit else None}
        begin = {**records[0], "task_id": new_id, "forked_from": forked_from}
        begin.pop("traceparent", None)
        if edit is not None and edit.kind == "query":
            begin["input"] = canonical(edit.value)
        plan = self.loaded.plan_of(replace(origin, snapshot=snapshot.id), snapshot.content)
        if not fits(plan, new_id, [begin, *copied]):
            raise Conflict(f"The steps of {task_id!r} before {at} do not fit the manifests of the fork.")
        if self._executes:
            self._worker.start()
        self._require_room(engine, origin.workflow)
        own = (caller.tenant_id or "default", caller.user_id or "anonymous") == (origin.tenant, origin.owner)
        now = self._clock.now()
        row = replace(
            origin, task_id=new_id, status="queued", created_at=now, trace_id=ids.trace_id(), durable=True,
            caller=caller_to_json(caller) if own else origin.caller, worker=self.worker,
            lease_until=now + LEASE_SECONDS, cancelling=False, finished_at=0.0, result=None,
            snapshot=snapshot.id, inspection=None, control=0, forked_from=forked_from,
        )  # fmt: skip
        return await self._accept_once(key, await self.store(), LiveTask(row, [begin, *copied]), snapshot)

    async def _fork_snapshot(self, origin: TaskRow, edit: Edit | None) -> ManifestSnapshot:
        """Returns the manifests of a fork: those of its Task, unless the edit changes them."""
        known = await self.tasks.snapshot(origin)
        present = self.loaded.require_engine(origin.workflow).project.snapshot
        if known is None or (edit is not None and edit.kind == "manifest"):
            return present
        if edit is not None and edit.kind == "model":
            return self.loaded.with_model(known, edit.value)
        return ManifestSnapshot(origin.snapshot, known)

    def _require_room(self, engine: Engine, name: str) -> None:
        rules = engine.project.scheduler
        active = sum(
            1 for live in self.records.live.values() if live.row.workflow == name and not live.is_idle
        )
        if active >= rules.max_concurrency + rules.max_queue_size:
            raise QueueFull(
                f"{rules.max_queue_size} Tasks of {name!r} wait already (scheduler.max_queue_size)."
            )

    def _admit(self) -> None:
        if self._draining:
            raise ShuttingDown("The server is shutting down; send the request again.")

    def _begin(self, engine: Engine, request: TaskRequest, task_id: str) -> JsonObject:
        start = engine.project.plan(request.start).start
        try:
            value = canonical(request.input)
        except NotJson as error:
            raise InvalidInput(f"The input of a Task {error}") from error
        about = {"task_id": task_id, "workflow": engine.project.name, "start": start}
        caused = {"traceparent": request.caused_by.header} if request.caused_by.trace_id else {}
        return {"type": "begin", **about, "input": value, **caused, "at": self._clock.now()}

    def _row(
        self,
        engine: Engine,
        request: TaskRequest,
        begin: JsonObject,
        caller: CallerContext | None,
        *,
        durable: bool,
    ) -> TaskRow:
        now = self._clock.now()
        caller = caller or CallerContext()
        return TaskRow(
            begin["task_id"], caller.tenant_id or "default", caller.user_id or "anonymous", begin["workflow"],
            begin["start"], "queued", now, engine.project.fingerprint.value,
            request.caused_by.trace_id or ids.trace_id(),
            durable, caller_to_json(caller), dict(request.metadata), self.worker, now + LEASE_SECONDS,
            snapshot=engine.project.snapshot.id,
        )  # fmt: skip

    def _start_work(self, live: LiveTask) -> None:
        self.records.live[live.id] = live
        live.work = self._worker.execute(live.id, self._work(live))
        self._worker.watch_requests()

    async def _work(self, live: LiveTask) -> None:
        """Executes a durable Task until it ends or another worker takes it over."""
        live.has_begun = True
        try:
            await self._work_off(live)
        except BaseException as error:  # border of a background run: an error ends the Task, not the server
            if not is_failure(error):
                raise
            if _is_lost(error):
                log.warning("task_lost", task_id=live.id, error=str(error))
                return
            if isinstance(error, UnreadableModule):  # until its lease expires; then the next worker tries
                log.error(
                    "task_waits_for_its_code", task_id=live.id, workflow=live.row.workflow, error=str(error)
                )
                return
            log.exception("task_crashed", task_id=live.id)
            why = {"code": "internal", "message": "The Task failed for an internal reason."}
            with suppress(AstromeshError):
                await self._store_end(live, self._failure(live, why))
        finally:
            self._forget(live)

    async def _work_off(self, live: LiveTask) -> None:
        try:
            await self._store_end(live, await self._execute_when_free(live))
        except UnreadableModule:
            await self._note_stop(live)
            raise
        except asyncio.CancelledError:
            if not live.cancelled:
                await self._note_stop(live)
                raise
            await self._store_end(live, self._cancelled(live))

    async def _note_stop(self, live: LiveTask) -> None:
        """Records that this process leaves the Task in order, so that no stage is suspected of its end."""
        if not live.committing and any(record["type"] == START for record in live.records):
            with suppress(AstromeshError):
                await self.records.commit(live.id, [{"type": STOP}])

    async def _execute_when_free(self, live: LiveTask) -> TaskResult:
        if live.cancelled or (live.engine is None and live.row.cancelling):
            return self._cancelled(live)
        if live.engine is None and (error := await self._take_up(live)):
            return self._failure(live, error)
        engine = live.engine
        assert engine is not None
        while True:
            try:
                return await self._execute(engine, live)
            except QueueFull:
                await self._clock.sleep(_QUEUE_RETRY_SECONDS)
            except (UnknownPlugin, MissingExtra) as error:  # a model, tool or pattern of earlier manifests
                return self._failure(live, {"code": "missing", "message": str(error)})

    async def _take_up(self, live: LiveTask) -> JsonObject | None:
        """Opens the manifests that a Task of an earlier process was accepted with, and notes changed code.

        Returns:
            Why the Task cannot go on, or None.

        Raises:
            UnreadableModule: it can go on as soon as its code can be imported.
        """
        row = live.row
        snapshot = await (await self.store()).snapshot(row.snapshot) if row.snapshot else None
        try:
            engine = await self.loaded.engine_of(row, snapshot)
        except UnreadableModule:
            raise
        except AstromeshError as error:
            return {"code": error.code, "message": f"The Task cannot go on under its manifests: {error}"}
        if snapshot is None:
            if not fits(self.loaded.plan_of(row, None), row.task_id, live.records):
                message = "The workflow was changed while the Task was interrupted; send its input again."
                return {"code": "manifest_changed", "message": message}
        elif changed := changed_operations(live.records, snapshot, engine.project.operations):
            if engine.project.workflow.task.on_code_change == "fail":
                message = f"The code of {', '.join(changed)} changed while the Task was interrupted"
                return {"code": "code_changed", "message": f"{message} (task.on_code_change: fail)."}
            record = code_change_record(changed, engine.project.operations, self._clock.now())
            await self.records.commit(live.id, [record])
        live.engine = engine
        return None

    async def _execute(self, engine: Engine, live: LiveTask, sinks: Sequence[EventSink] = ()) -> TaskResult:
        row = live.row
        if len(live.records) == 1:
            self.loaded.notify_observers(live, live.records[0])
        result = await engine.resume(
            live.records,
            caller=caller_of(row.caller),
            trace_id=row.trace_id,
            sampled=live.caused_by.sampled,
            sinks=(self._runner.metrics, *sinks),
            records_starts=row.durable,
        )
        result.metadata["run_fingerprint"] = row.fingerprint
        if changes := code_changes(live.records):
            result.metadata["code_changes"] = changes
        if row.metadata:
            result.metadata["request"] = dict(row.metadata)
        return result

    async def _store_end(self, live: LiveTask, result: TaskResult) -> None:
        redactors = await self.loaded.redactors(live.records)
        await retry_while_unavailable(partial(self.records.end, live, result, redactors))

    def _cancelled(self, live: LiveTask) -> TaskResult:
        """Returns the result of a Task that was cancelled before its turn, or with its caller."""
        live.records.append({"type": "cancel", "reason": "cancelled"})
        return self._failure(live, {"code": "cancelled", "message": "The Task was cancelled."})

    def _failure(self, live: LiveTask, error: JsonObject) -> TaskResult:
        """Returns the result of a Task that ends outside of its engine, with the stages that it has run."""
        row = live.row
        trace = tuple(Entry.from_json(r["entry"]) for r in live.records if r["type"] == "stage")
        result = TaskResult(live.id, row.workflow, "failure", None, error, trace=trace)
        since = (self._clock.now() - row.created_at) * 1000
        metadata = result_metadata(result, since, row.trace_id) | {"run_fingerprint": row.fingerprint}
        return replace(result, metadata=metadata)

    def _forget(self, live: LiveTask) -> None:
        if self.records.live.get(live.id) is live:  # another request with its key may have been faster
            del self.records.live[live.id]
            self.loaded.forget(live)
        live.notify()

    # -- the queue that the worker leases from -------------------------------------------------------------

    async def renew_leases(self, worker: str) -> Collection[str]:
        """Renews the leases of active Tasks. A lost one is noticed by the commit that its Task makes next."""
        await (await self.store()).heartbeat(worker, self._lease_end, tuple(self.records.live))
        return ()

    def has_work(self) -> bool:
        return bool(self.records.live)

    async def cancel_requested(self, worker: str) -> Collection[str]:
        controls = await (await self.store()).controls(worker) if self.records.live else ()
        self.waits.apply(controls)
        return [one.task_id for one in controls if one.cancelling]

    async def sweep(self, worker: str) -> float:
        await self._take(worker)
        return SWEEP_SECONDS

    async def take_over(self, worker: str, dead: str) -> None:
        while await self._take(worker, dead) == MAX_TAKEOVERS:
            pass

    async def release_leases(self, worker: str) -> None:
        await (await self.store()).heartbeat(worker, 0.0)

    @property
    def _lease_end(self) -> float:
        return self._clock.now() + LEASE_SECONDS

    async def _take(self, worker: str, *dead: str) -> int:
        """Takes Tasks of dead workers, and those whose lease has expired. Returns their number.

        Without its workflow here, a Task waits until its lease expires again.
        """
        store = await self.store()
        rows = await store.take(worker, dead, self._lease_end, MAX_TAKEOVERS)
        for row in rows:
            if row.task_id in self.records.live:
                continue
            if not row.cancelling and not self.loaded.may_execute(row):
                log.warning("task_waits_for_its_workflow", task_id=row.task_id, workflow=row.workflow)
                continue
            log.info("task_taken_up", task_id=row.task_id, workflow=row.workflow)
            self._start_work(LiveTask(row, await store.records(row.task_id)))
        return len(rows)

    def stop(self, task_id: str) -> bool:
        """Starts to cancel a Task. Returns False if this process does not execute it."""
        live = self.records.live.get(task_id)
        if live is None:
            return False
        if live.engine is not None and live.engine.cancel(task_id):
            return True
        if live.work is not None and not live.cancelled:  # it waits for its turn
            live.cancelled = True
            if live.has_begun:  # asyncio throws a task away that is cancelled before
                live.work.cancel()
        return True

    # -- evaluating ---------------------------------------------------------------------------------------

    async def evaluate(  # noqa: PLR0913 (which cases, and how they run)
        self,
        name: str,
        suite: str = "",
        tag: str = "",
        *,
        case: str = "",
        models: Sequence[str] = (),
        options: Options = DEFAULT_OPTIONS,
        judge: Judge | None = None,
        on_result: OnResult = lambda _: None,
    ) -> JsonObject:
        """Runs the cases of a workflow, from their recordings if they name one. Stores an artifact.

        Args:
            suite: The name of a suite of evaluations.yaml or of a dataset, or the file of one. Empty: all.
            models: Each in its turn replaces every model of the workflow and runs all cases live. Empty: its
                own.

        Raises:
            InvalidInput: there is no such suite or case, or a recording cannot be read.
        """
        engine = self.loaded.require_engine(name)
        cases = select(workflow_cases(engine.project.folder, engine.project.evaluations, suite), tag, case)
        started = self._clock.now()
        results: list[Results] = []
        for model in models or ("",):
            used = await self._engine_with(engine, model) if model else engine
            target = WorkflowTarget(engine.project, partial(self.run, engine=used), self.replays)
            left = options.max_cost_usd - sum(one.spent for one in results)
            of_model = replace(options, max_cost_usd=left, model=model, live=options.live or bool(model))
            results.append(await run_cases(target, cases, of_model, judge, on_result))
        begin = self._begin(engine, TaskRequest(), ids.new_id("eval_"))
        row = self._row(engine, TaskRequest(), begin, None, durable=False)
        evaluation = evaluation_of(target, row.task_id, started, results).to_json()
        await self._store_evaluation(engine, row, evaluation)
        return evaluation

    async def _engine_with(self, engine: Engine, model: str) -> Engine:
        """Returns an engine of the same workflow whose models are all this one."""
        snapshot = self.loaded.with_model(engine.project.snapshot.content, model)
        begin = self._begin(engine, TaskRequest(), "")
        row = replace(self._row(engine, TaskRequest(), begin, None, durable=False), snapshot=snapshot.id)
        return await self.loaded.engine_of(row, snapshot.content)

    async def _store_evaluation(self, engine: Engine, row: TaskRow, evaluation: JsonObject) -> None:
        now = self._clock.now()
        status: TaskStatus = "success" if evaluation["passed"] else "failure"
        row = replace(row, status=status, finished_at=now, result={"output": evaluation}, worker="")
        artifact = Artifact(row.task_id, 1, "evaluation", "", "", "", now, row.fingerprint, evaluation)
        await (await self.store()).accept(row, [], [artifact], engine.project.snapshot)


async def _expire(store: TaskStore, before: float) -> None:
    while await store.expire(before):  # a batch at a time
        pass


def _is_lost(error: BaseException) -> bool:
    """Whether the only error is that another worker has the Task."""
    group = isinstance(error, ExceptionGroup) and error.split(LeaseLost)[1] is None
    return group or isinstance(error, LeaseLost)
