"""The Tasks that this process executes, with their records, metrics and traces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from astromesh.config.workflow import METRICS
from astromesh.durable.failpoints import parse_failpoint
from astromesh.durable.recording import Redactor
from astromesh.durable.tasks import Artifact, TaskChange, TaskControl, TaskRow, TaskStore
from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import StoreError
from astromesh.runtime.task_journal import redacted_steps, redacted_waits
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.ids import TraceParent, read_traceparent
from astromesh.telemetry.metrics import Labels, MetricValues
from astromesh.telemetry.traces import TracedRun
from astromesh.types import Event, JsonObject
from astromesh.workflow.base import TaskResult, stage_path, task_path
from astromesh.workflow.engine import Engine

#: where a test can kill a process (see `failpoints`): before and after the commit of stages, at the end
STAGE_DONE, STAGE_KEPT, BEFORE_END = "stage_done", "stage_kept", "before_end"
PLACES = (STAGE_DONE, STAGE_KEPT, BEFORE_END)
VARIABLE = "ASTROMESH_TASK_FAILPOINT"
#: every record has its own numbers for artifacts, so that an artifact written twice replaces itself
_NUMBERS_PER_RECORD = 1000


def _ignore(place: str) -> None:
    """Does nothing: no failpoint is set."""


reach: Callable[[str], None] = (
    parse_failpoint(os.environ[VARIABLE], PLACES) if os.environ.get(VARIABLE) else _ignore
)


def _reach_each(place: str, records: Sequence[JsonObject]) -> None:
    """Reaches a failpoint once for each stage of a commit."""
    for record in records:
        if record["type"] == "stage":
            reach(place)


#: receives every record once it is stored
Listener = Callable[["LiveTask", JsonObject], None]


class LiveTask:
    """A Task that this process executes.

    Args:
        row: The row as it was accepted.
        records: The records of earlier processes.
        engine: What executes it; None until that is known, for a Task of an earlier process.
    """

    def __init__(self, row: TaskRow, records: Sequence[JsonObject], engine: Engine | None = None) -> None:
        self.row, self.engine = row, engine
        self.records: list[JsonObject] = list(records)
        #: how many of them are on disk
        self.stored = len(self.records) if row.durable else 0
        self.changed = asyncio.Event()
        #: set when somebody has acted on the Task: decided, paused, released
        self.controlled = asyncio.Event()
        self._control, self._inspection = row.control, row.inspection
        self.cancelled = False
        #: whether a commit has begun whose outcome is not known
        self.committing = False
        #: when its first stage began, once that is known
        self.begun_at = 0.0
        self.work: asyncio.Task[Any] | None = None
        #: whether `work` has made its first step
        self.has_begun = False

    @property
    def id(self) -> str:
        return self.row.task_id

    @property
    def is_running(self) -> bool:
        """Whether the Task has left the queue."""
        return self.engine is not None and self.engine.is_running(self.id)

    @property
    def is_idle(self) -> bool:
        """Whether all of the Task waits for a person or the inspector."""
        return self.engine is not None and self.engine.is_idle(self.id)

    @property
    def caused_by(self) -> TraceParent:
        """The trace context of the caller."""
        return read_traceparent(self.records[0].get("traceparent"))

    def pauses(self, stage: str) -> bool:
        """Whether an operator wants the Task to pause before a stage."""
        inspection = self._inspection
        return inspection is not None and (inspection["all_stages"] or stage in inspection["before"])

    def apply(self, control: TaskControl) -> None:
        """Takes over what others want of the Task, unless it is known."""
        if control.control > self._control:
            self._control, self._inspection = control.control, control.inspection
            news, self.controlled = self.controlled, asyncio.Event()
            news.set()

    def notify(self) -> None:
        """Wakes the followers."""
        news, self.changed = self.changed, asyncio.Event()
        news.set()


class TaskRecords:
    """The TaskLog of all engines of a runtime."""

    def __init__(self, worker: str, clock: Clock) -> None:
        self._worker, self._clock = worker, clock
        self.live: dict[str, LiveTask] = {}
        self.listeners: list[Listener] = []
        self.store: TaskStore | None = None

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        """See `TaskLog`. `end` writes the last record, because it knows the outcome of the Task."""
        live = self.live[task_id]
        fresh = [record for record in records if record["type"] not in ("begin", "end")]
        if live.row.durable and fresh and self.store is not None:
            _reach_each(STAGE_DONE, fresh)
            first = len(live.records) + 1
            made = [one for n, r in enumerate(fresh, first) for one in artifacts_of(live.row, n, r)]
            change = TaskChange(task_id, self._worker, first, fresh, made)
            live.committing = True
            live.apply(await retry_while_unavailable(partial(self.store.commit, change)))
            live.committing = False
            _reach_each(STAGE_KEPT, fresh)
            live.stored += len(fresh)
        self._notify(live, fresh)

    async def end(self, live: LiveTask, result: TaskResult, redactors: Mapping[str, Redactor | None]) -> None:
        """Stores the end of a Task; of one that is not durable it stores all.

        Args:
            redactors: What the steps of runs of agents pass before they are stored for good.
        """
        assert self.store is not None
        redacted = redacted_steps(live.records, redactors)
        records = [redacted.get(n, record) for n, record in enumerate(live.records, 1)]
        record = {"type": "end", "status": result.status, "error": result.error, "at": self._clock.now()}
        row, now = live.row, self._clock.now()
        outcome = {"output": result.output, "error": result.error, "metadata": result.metadata}
        telemetry = self._telemetry(live, len(live.records) + 1, result)
        reach(BEFORE_END)
        if row.durable:
            ended = (result.status, outcome, now)
            last = [*records[live.stored :], record]
            first = live.stored + 1
            replaced = {n: record for n, record in redacted.items() if n < first}
            has_rules = any(redactors.values())
            waits = redacted_waits(await self.store.waits(row.task_id), redactors) if has_rules else ()
            change = TaskChange(row.task_id, self._worker, first, last, [telemetry], ended, replaced, waits)
            await self.store.commit(change)
        else:
            made = [one for n, r in enumerate(records, 1) for one in artifacts_of(row, n, r)]
            ended_row = replace(
                row, status=result.status, finished_at=now, result=outcome, worker="", lease_until=0.0
            )
            manifests = live.engine.project.snapshot if live.engine is not None else None
            try:
                await self.store.accept(ended_row, [*records, record], [*made, telemetry], manifests)
            except StoreError:  # the Task has ended all the same
                self._notify(live, [record])
                raise
        self._notify(live, [record])

    def _notify(self, live: LiveTask, records: Sequence[JsonObject]) -> None:
        live.records += records
        for listener in self.listeners:
            for record in records:
                listener(live, record)
        live.notify()

    def _telemetry(self, live: LiveTask, n: int, result: TaskResult) -> Artifact:
        """Returns the telemetry of the whole Task as an artifact."""
        row = live.row
        content = {
            "status": result.status,
            "queued_ms": round(max(_first_start(live) - row.created_at, 0.0) * 1000, 3),
            **result.metadata,
            "stages": [
                {"task": e.task, "stage": e.stage, "status": e.status,
                 "duration_ms": round((e.finished_at - e.started_at) * 1000, 3)}
                for e in result.trace
            ],
        }  # fmt: skip
        at = self._clock.now()
        return Artifact(
            row.task_id, n * _NUMBERS_PER_RECORD, "telemetry", "", "", "", at, row.fingerprint, content
        )


def artifacts_of(row: TaskRow, n: int, record: Mapping[str, Any]) -> list[Artifact]:
    """Returns the artifacts of the n-th record of a Task: the output of a stage, the results of its tools."""
    if record["type"] != "stage":
        return []
    entry = record["entry"]
    place = (entry["task"], entry["node_id"], entry["stage_id"], entry["finished_at"], row.fingerprint)
    made: list[Artifact] = []
    if entry["status"] == "success":
        made.append(Artifact(row.task_id, n * _NUMBERS_PER_RECORD, "output", *place, entry["output"]))
    for k, call in enumerate(entry["tool_calls"][: _NUMBERS_PER_RECORD - 1], 1):
        made.append(Artifact(row.task_id, n * _NUMBERS_PER_RECORD + k, "tool", *place, call))
    return made


def _first_start(live: LiveTask) -> float:
    first = next((r["entry"]["started_at"] for r in live.records if r["type"] == "stage"), 0.0)
    return float(first)


# -- metrics (document 004, section 8.4) ---------------------------------------------------------------------


class TaskMetrics:
    """A listener to the records of Tasks.

    Args:
        tally: The counters and histograms.
        names_of: Returns the metrics that a workflow enables, by its name.
    """

    def __init__(self, tally: MetricValues, names_of: Callable[[str], frozenset[str]]) -> None:
        self._tally, self._names_of = tally, names_of

    def __call__(self, live: LiveTask, record: JsonObject) -> None:
        names, name = self._names_of(live.row.workflow), live.row.workflow
        if record["type"] == "stage":
            self._stage(names, name, record["entry"])
            if not live.begun_at:
                live.begun_at = record["entry"]["started_at"]
                waited = max(live.begun_at - live.row.created_at, 0.0)
                self._observe(names, "queue_latency", (name,), waited)
        elif record["type"] == "end":
            took = max(record["at"] - live.row.created_at, 0.0)
            self._observe(names, "task_total_duration", (name, record["status"]), took)

    def _stage(self, names: frozenset[str], name: str, entry: JsonObject) -> None:
        took = entry["finished_at"] - entry["started_at"]
        self._observe(names, "node_execution_duration", (name, entry["node_id"]), took)
        if "node_execution_count" in names:
            counter = self._tally.counter(METRICS["node_execution_count"][1])
            counter[name, entry["node_id"], entry["status"]] += 1
        for call in entry["tool_calls"]:
            labels = (name, entry["node_id"], call["tool"])
            self._observe(names, "tool_invocation_duration", labels, call["duration_ms"] / 1000)

    def _observe(self, names: frozenset[str], metric: str, labels: Labels, seconds: float) -> None:
        if metric in names:
            self._tally.histogram(METRICS[metric][1])[labels].observe(seconds)


# -- traces: a root and its stages, which are parents of the runs of agents ----------------------------------


class TaskTrace(NamedTuple):
    """The trace of a Task. Its agent is its workflow."""

    run_id: str
    trace_id: str
    session_id: str
    agent: str
    status: str
    events: Sequence[Event]
    parent: str = ""
    remote_span: str = ""
    sampled: bool | None = None


class TaskTraces:
    """A listener to the records of Tasks.

    Args:
        export: Receives the trace of a Task that has ended.
    """

    def __init__(self, export: Callable[[TracedRun], None]) -> None:
        self._export = export

    def __call__(self, live: LiveTask, record: JsonObject) -> None:
        if record["type"] == "end":
            self._export(task_trace(live, record))


def task_trace(live: LiveTask, end: JsonObject) -> TaskTrace:
    """Returns the trace of a Task with this last record."""
    row, caused_by = live.row, live.caused_by
    return TaskTrace(
        row.task_id, row.trace_id, row.task_id, row.workflow, end["status"], tuple(_trace_events(live, end)),
        remote_span=caused_by.span_id, sampled=caused_by.sampled,
    )  # fmt: skip


def _trace_events(live: LiveTask, end: JsonObject) -> Iterator[Event]:
    task = live.id
    yield Event(task, 1, live.row.created_at, "task.started", {})
    entries = [record["entry"] for record in live.records if record["type"] == "stage"]
    for n, entry in enumerate(entries, 2):
        yield Event(task, n, entry["finished_at"], "stage.finished", _stage_data(entry))
    yield Event(task, len(entries) + 2, end["at"], "task.finished", {"status": end["status"]})


def _stage_data(entry: JsonObject) -> JsonObject:
    """Returns what happened in a stage, without content."""
    data = {
        "id": stage_path(task_path(entry["task"]), entry["stage_id"]),
        "node": entry["node_id"],
        "status": entry["status"],
        "ok": entry["status"] != "failure",
        "duration_ms": (entry["finished_at"] - entry["started_at"]) * 1000,
    }
    return {**data, "error": entry["error"]["code"]} if entry["error"] else data
