"""The workflows of a runtime and their Tasks: every transport runs them here (workflow.md E55, E56).

A Task of `accept` is on disk before the caller hears of it. It is the process's that has its lease; one that
dies leaves it to the next one, which goes on from the records: only stages that are not among them run again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from socket import gethostname
from typing import Protocol

import structlog

from astromesh.abc.durable import IdempotencyKey
from astromesh.abc.events import EventSink
from astromesh.abc.tasks import Artifact, TaskRow, TaskStatus, TaskStore
from astromesh.errors import (
    AstromeshError,
    InvalidInput,
    LeaseLost,
    QueueFull,
    ShuttingDown,
    StoreError,
    TaskNotFound,
)
from astromesh.runtime import ids
from astromesh.runtime.kept_tasks import KeptTasks, answer_of
from astromesh.runtime.loaded_workflows import LoadedWorkflows
from astromesh.runtime.presence import Presence
from astromesh.runtime.recorded import caller_of, caller_to_json
from astromesh.runtime.retention import Kept, expire
from astromesh.runtime.task_asked import Asked
from astromesh.runtime.task_log import LiveTask, TaskRecords
from astromesh.runtime.task_metrics import TaskMetrics
from astromesh.runtime.task_replays import Replays
from astromesh.runtime.task_traces import TaskTraces
from astromesh.runtime.workflows import Host as WorkflowHost
from astromesh.runtime.writer import ended, surely
from astromesh.telemetry.metrics import Metrics
from astromesh.telemetry.outages import Outages
from astromesh.telemetry.traces import Traced
from astromesh.types import CallerContext, JsonObject
from astromesh.workflow.cassette import Cassette
from astromesh.workflow.engine import Engine
from astromesh.workflow.evaluation import cases_of, judged
from astromesh.workflow.result import TaskResult
from astromesh.workflow.tape import Recorder
from astromesh.workflow.values import NotJson, canonical

#: seconds after which a worker that is not heard of is dead, and between two signs of life
LEASE, BEAT = 15.0, 1.0
#: Tasks that one look takes over
AT_ONCE = 50
#: seconds between two looks for a Task that somebody waits for, and for one that another request has named
_LOOK, _PATIENCE = 0.05, 2.0
#: seconds between two tries where the queue is full
_ROOM = 0.2

log = structlog.get_logger("astromesh.workflows")
outages = Outages(log, "task_store_away", "task_store_back")


class Host(WorkflowHost, Protocol):
    """What the Tasks need of the runtime."""

    metrics: Metrics

    @property
    def kept(self) -> Kept: ...

    async def open_tasks(self) -> TaskStore: ...

    async def named(self, key: IdempotencyKey, kept_as: str) -> str: ...

    def export(self, run: Traced) -> None: ...


def _logged(live: LiveTask, record: JsonObject) -> None:
    """One line for each Task, as for each run."""
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
            stages=sum(1 for told in live.records if told["type"] == "stage"),
        )


class Workflows:
    """Opened with the runtime; the store opens with the first Task.

    Args:
        presence: which workers of this machine live.
    """

    def __init__(self, host: Host, presence: Presence) -> None:
        self._host, self._presence = host, presence
        self.worker = f"{gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        recorder = Recorder()
        self.records = TaskRecords(self.worker, host.clock, recorder)
        self.loaded = LoadedWorkflows(host, self.records, recorder)
        self.tasks = KeptTasks(self.loaded, self.records.live, self.store, self._stop)
        self.replays = Replays(host, self.loaded, self.tasks)
        self.records.listeners += [
            TaskMetrics(host.metrics.tally, self.loaded.metrics_of),
            self.loaded.observed,
            TaskTraces(host.export),
            _logged,
        ]
        self._opening = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._draining = False

    # -- life ----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads every folder; a broken one harms nobody else."""
        await self.loaded.load()

    def take_up(self) -> None:
        """Begins to work on what earlier processes have left, in the background."""
        if self.loaded:
            self._keep()

    def drain(self) -> None:
        """Takes no new Tasks."""
        self._draining = True

    @property
    def answering(self) -> bool:
        """Whether a Task goes on that somebody waits for, and nobody takes over."""
        return any(one.work is not None and not one.row.durable for one in self.records.live.values())

    async def close(self) -> None:
        """Takes no new Tasks; durable ones that run are left to whoever comes next."""
        self._draining = True
        await ended(self._keeping)  # first, so that nothing is taken over any more
        await ended(self._expiring)
        for live in tuple(self.records.live.values()):
            await ended(live.work)
        await self.loaded.close()
        if self._keeping is not None and self.records.store is not None:
            with suppress(StoreError):
                await self.records.store.beat(self.worker, 0.0)
            self._presence.leave(self.worker)

    async def store(self) -> TaskStore:
        async with self._opening:
            if self.records.store is None:
                self.records.store = store = await self._host.open_tasks()
                delete = partial(_expire, store)
                self._expiring = asyncio.create_task(expire(delete, self._host.clock, self._host.kept.days))
            return self.records.store

    # -- running -------------------------------------------------------------------------------------------

    async def run(
        self,
        name: str,
        asked: Asked,
        *,
        caller: CallerContext | None = None,
        sinks: Sequence[EventSink] = (),
    ) -> TaskResult:
        """Runs a Task to its end and keeps what it left. Cancelling the caller cancels the Task.

        Args:
            sinks: listeners to its events as they happen, those of models and tools too.

        Raises:
            WorkflowNotFound, WorkflowUnavailable, InvalidInput, QueueFull: there is no Task then.
        """
        engine = self.loaded.ready(name)
        self._admit()
        begin = self._begin(engine, asked, "task_" + ids.ulid())
        await self.store()
        engine.require_room()
        row = self._row(engine, asked, begin, caller, durable=False)
        live = self.records.live[row.task_id] = LiveTask(row, [begin])
        live.work = asyncio.current_task()
        try:
            return await self._run(engine, live, sinks)
        finally:
            self._forget(live)

    async def _run(self, engine: Engine, live: LiveTask, sinks: Sequence[EventSink]) -> TaskResult:
        try:
            result = await self._carried_out(engine, live, sinks)
        except asyncio.CancelledError:
            result = self._cancelled(live)
            await asyncio.shield(self._noted(live, result))
            if live.cancelled and live.work is not None and live.work.uncancel() == 0:
                return result
            raise
        await self._noted(live, result)
        return result

    async def _noted(self, live: LiveTask, result: TaskResult) -> None:
        """A store that is away costs what the Task left, never its answer."""
        try:
            await self.records.end(live, result)
        except StoreError as error:
            log.warning("task_not_kept", task_id=live.id, error=str(error))

    async def answer(
        self, name: str, asked: Asked, key: IdempotencyKey, *, caller: CallerContext | None = None
    ) -> JsonObject:
        """A Task that its caller has named, when it has ended; asked for twice it is one. It is durable."""
        row, store = await self.accept(name, asked, caller=caller, key=key), await self.store()
        while not row.finished_at:
            await asyncio.sleep(_LOOK)
            if (found := await store.get(row.task_id)) is None:
                raise TaskNotFound(f"The Task {row.task_id!r} was erased.")
            row = found
        said = answer_of(row)
        return {key: said[key] for key in ("task_id", "workflow", "status", "output", "error", "metadata")}

    async def _of_name(self, key: IdempotencyKey, task_id: str) -> tuple[str, TaskRow | None]:
        """The id under which a Task of this name is kept, and the Task where there is one."""
        kept = await self._host.named(key, task_id)
        if kept == task_id:
            return kept, None
        store, tries = await self.store(), int(_PATIENCE / _LOOK)
        for _ in range(tries):  # whoever has named it keeps it in a moment, or has died before
            if (row := await store.get(kept)) is not None:
                return kept, row
            await asyncio.sleep(_LOOK)
        return kept, None

    async def accept(
        self,
        name: str,
        asked: Asked,
        *,
        caller: CallerContext | None = None,
        key: IdempotencyKey | None = None,
    ) -> TaskRow:
        """A durable Task: on disk when this returns, and worked on from then.

        Args:
            key: the caller's own name of this request; the Task that has it already is answered.

        Raises:
            StoreUnavailable, and as `run`: it was not accepted.
            IdempotencyConflict: the key was used with another body.
        """
        engine = self.loaded.ready(name)
        self._admit()
        task_id = "task_" + ids.ulid()
        begin = self._begin(engine, asked, task_id)
        if key is not None:
            kept, there = await self._of_name(key, task_id)
            if there is not None:
                return there
            begin = {**begin, "task_id": kept}
        store = await self.store()
        self._keep()
        self._require_room(engine, name)
        row = self._row(engine, asked, begin, caller, durable=True)
        live = self.records.live[row.task_id] = LiveTask(row, [begin])  # which takes its place at once
        try:
            await store.accept(row, [begin])
        except BaseException:
            self._forget(live)
            raise
        self._take_on(engine, live)
        return row

    def _require_room(self, engine: Engine, name: str) -> None:
        rules = engine.project.scheduler
        mine = sum(1 for live in self.records.live.values() if live.row.workflow == name)
        if mine >= rules.max_concurrency + rules.max_queue_size:
            raise QueueFull(
                f"{rules.max_queue_size} Tasks of {name!r} wait already (scheduler.max_queue_size)."
            )

    def _admit(self) -> None:
        if self._draining:
            raise ShuttingDown("The server is shutting down; send the request again.")

    def _begin(self, engine: Engine, asked: Asked, task_id: str) -> JsonObject:
        start = engine.project.plan(asked.start).start
        try:
            value = canonical(asked.input)
        except NotJson as error:
            raise InvalidInput(f"The input of a Task {error}") from error
        about = {"task_id": task_id, "workflow": engine.project.name, "start": start}
        caused = {"traceparent": asked.caused_by.header} if asked.caused_by.trace_id else {}
        return {"type": "begin", **about, "input": value, **caused}

    def _row(
        self,
        engine: Engine,
        asked: Asked,
        begin: JsonObject,
        caller: CallerContext | None,
        *,
        durable: bool,
    ) -> TaskRow:
        now = self._host.clock.now()
        told = caller or CallerContext()
        return TaskRow(
            begin["task_id"], told.tenant_id or "default", told.user_id or "anonymous", begin["workflow"],
            begin["start"], "queued", now, engine.project.fingerprint.value,
            asked.caused_by.trace_id or ids.trace_id(),
            durable, caller_to_json(told), dict(asked.metadata), self.worker, now + LEASE,
        )  # fmt: skip

    def _take_on(self, engine: Engine, live: LiveTask) -> None:
        self.records.live[live.id] = live
        live.work = asyncio.create_task(self._work(engine, live))

    async def _work(self, engine: Engine, live: LiveTask) -> None:
        """Works on a durable Task until it has ended, or somebody else has it."""
        try:
            await self._work_off(engine, live)
        except Exception as error:  # the border of a background run: it ends the Task, not the server
            if _is_lost(error):
                log.warning("task_lost", task_id=live.id, error=str(error))
                return
            log.exception("task_crashed", task_id=live.id)
            why = {"code": "internal", "message": "The Task failed for an internal reason."}
            with suppress(AstromeshError):
                await self._kept(live, self._failure(live, why))
        finally:
            self._forget(live)

    async def _work_off(self, engine: Engine, live: LiveTask) -> None:
        try:
            await self._kept(live, await self._patiently(engine, live))
        except asyncio.CancelledError:
            if not live.cancelled:
                raise
            await self._kept(live, self._cancelled(live))

    async def _patiently(self, engine: Engine, live: LiveTask) -> TaskResult:
        if live.row.fingerprint != engine.project.fingerprint.value:
            message = "The workflow was changed while the Task was interrupted; send its input again."
            return self._failure(live, {"code": "manifest_changed", "message": message})
        while True:
            try:
                return await self._carried_out(engine, live)
            except QueueFull:
                await self._host.clock.sleep(_ROOM)

    async def _carried_out(
        self, engine: Engine, live: LiveTask, sinks: Sequence[EventSink] = ()
    ) -> TaskResult:
        live.begun = True
        row = live.row
        if len(live.records) == 1:
            self.loaded.observed(live, live.records[0])
        result = await engine.resume(
            live.records,
            caller=caller_of(row.caller),
            trace_id=row.trace_id,
            sampled=live.caused_by.sampled,
            sinks=(self._host.metrics, *sinks),
        )
        if row.metadata:
            result.metadata["request"] = dict(row.metadata)
        return result

    async def _kept(self, live: LiveTask, result: TaskResult) -> None:
        await surely(partial(self.records.end, live, result))

    def _cancelled(self, live: LiveTask) -> TaskResult:
        """It was cancelled before its turn, or with its caller (E50)."""
        live.records.append({"type": "cancel", "reason": "cancelled"})
        return self._failure(live, {"code": "cancelled", "message": "The Task was cancelled."})

    def _failure(self, live: LiveTask, error: JsonObject) -> TaskResult:
        stamp = {"path": [], "run_fingerprint": live.row.fingerprint, "trace_id": live.row.trace_id}
        return TaskResult(live.id, live.row.workflow, "failure", None, error, metadata=stamp)

    def _forget(self, live: LiveTask) -> None:
        self.records.live.pop(live.id, None)
        self.loaded.forget(live)
        live.told()

    # -- keeping and taking over ---------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._keeping is None:
            self._presence.enter(self.worker)
            self._keeping = asyncio.create_task(self._tend())

    async def _tend(self) -> None:
        store = await surely(self.store)
        while True:
            try:
                await self._look(store)
            except (AstromeshError, OSError) as error:  # the next look may find it
                outages.away(str(error))
            else:
                outages.back()
            await self._host.clock.sleep(BEAT)

    async def _look(self, store: TaskStore) -> None:
        until = self._host.clock.now() + LEASE
        for task_id in await store.beat(self.worker, until, tuple(self.records.live)):
            self._stop(task_id)
        dead = await asyncio.to_thread(self._presence.dead)
        taken = await store.take(self.worker, dead, until, AT_ONCE)
        for row in taken:
            if row.task_id not in self.records.live:
                await self._take_over(store, row)
        for worker in dead if len(taken) < AT_ONCE else ():  # else the dead have left more
            self._presence.forget(worker)

    async def _take_over(self, store: TaskStore, row: TaskRow) -> None:
        """What is not taken on here is taken over by whoever comes when its lease is over."""
        if (engine := self.loaded.engine(row.workflow)) is None:
            log.warning("task_waits_for_its_workflow", task_id=row.task_id, workflow=row.workflow)
            return
        log.info("task_taken_up", task_id=row.task_id, workflow=row.workflow)
        self._take_on(engine, LiveTask(row, await store.records(row.task_id)))

    def _stop(self, task_id: str) -> bool:
        live = self.records.live.get(task_id)
        if live is None:
            return False
        if self.loaded.ready(live.row.workflow).cancel(task_id):
            return True
        if live.work is not None and not live.cancelled:  # it waits for its turn
            live.cancelled = True
            live.work.cancel()
        return True

    # -- evaluating ---------------------------------------------------------------------------------------

    async def evaluate(self, name: str, suite: str = "", tag: str = "") -> JsonObject:
        """Runs the cases of evaluations.yaml, from their cassettes where they name one; kept as artifact.

        Raises:
            InvalidInput: no such suite, or a cassette that is none.
        """
        engine = self.loaded.ready(name)
        project = engine.project
        reports = []
        for case in cases_of(project, suite, tag):
            asked, divergence = Asked(case.spec.input, case.spec.start), None
            if case.spec.replay:
                cassette = Cassette.read(project.folder / case.spec.replay)
                report, result = await self.replays.played(name, cassette, asked.input, asked.start)
                divergence = report["divergence"]
            else:
                result = await self.run(name, asked)
            reports.append(judged(project, case, result, divergence))
        passed = all(report["passed"] for report in reports)
        found = {"workflow": name, "passed": passed, "cases": reports}
        return {**found, "evaluation_id": await self._keep_evaluation(engine, found)}

    async def _keep_evaluation(self, engine: Engine, found: JsonObject) -> str:
        begin = self._begin(engine, Asked(), "eval_" + ids.ulid())
        row, now = self._row(engine, Asked(), begin, None, durable=False), self._host.clock.now()
        status: TaskStatus = "success" if found["passed"] else "failure"
        row = replace(row, status=status, finished_at=now, result={"output": found}, worker="")
        kept = Artifact(row.task_id, 1, "evaluation", "", "", "", now, row.fingerprint, found)
        await (await self.store()).accept(row, [], [kept])
        return row.task_id


async def _expire(store: TaskStore, before: float) -> None:
    while await store.expire(before):  # so many at once
        pass


def _is_lost(error: Exception) -> bool:
    """Whether nothing else is wrong than that somebody else has the Task."""
    alone = isinstance(error, ExceptionGroup) and error.split(LeaseLost)[1] is None
    return alone or isinstance(error, LeaseLost)
