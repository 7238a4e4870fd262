"""The Tasks that this process works on, and the log that keeps what their stages came to.

A durable Task's records are on disk before they count; those of other Tasks are kept when the Task has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from astromesh.abc.clock import Clock
from astromesh.abc.tasks import Artifact, TaskChange, TaskRow, TaskStatus, TaskStore
from astromesh.runtime.failpoints import armed
from astromesh.runtime.writer import surely
from astromesh.telemetry.traceparent import TraceParent, read_traceparent
from astromesh.types import JsonObject
from astromesh.workflow.result import TaskResult
from astromesh.workflow.tape import Recorder

#: where a process can be made to die (see `failpoints`): before and behind the commit of stages, at the end
STAGE_DONE, STAGE_KEPT, BEFORE_END = "stage_done", "stage_kept", "before_end"
PLACES = (STAGE_DONE, STAGE_KEPT, BEFORE_END)
VARIABLE = "ASTROMESH_TASK_FAILPOINT"
#: artifacts of one record have numbers of their own: what is written twice replaces itself
_NUMBERS = 1000


def _nothing(place: str) -> None:
    """Nobody asked for a failure."""


passing: Callable[[str], None] = armed(os.environ[VARIABLE], PLACES) if os.environ.get(VARIABLE) else _nothing


def _pass(place: str, records: Sequence[JsonObject]) -> None:
    """Once for each stage that is committed together."""
    for _ in records:
        passing(place)


#: told of every record once it counts
Listener = Callable[["LiveTask", JsonObject], None]


class LiveTask:
    """A Task that this process works on.

    Args:
        row: as it was accepted.
        records: those that are there already.
    """

    def __init__(self, row: TaskRow, records: Sequence[JsonObject]) -> None:
        self.row = row
        self.records: list[JsonObject] = list(records)
        #: how many of them are on disk
        self.kept = len(self.records) if row.durable else 0
        self.news = asyncio.Event()
        self.begun = self.cancelled = False
        #: when its first stage began, once that is known
        self.begun_at = 0.0
        self.work: asyncio.Task[Any] | None = None

    @property
    def id(self) -> str:
        return self.row.task_id

    @property
    def caused_by(self) -> TraceParent:
        """Where the trace of whoever asked for it stands."""
        return read_traceparent(self.records[0].get("traceparent"))

    def told(self) -> None:
        """Wakes whoever follows."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class TaskRecords:
    """The TaskLog of all engines of a runtime.

    Args:
        recorder: where the calls of each stage were written down.
    """

    def __init__(self, worker: str, clock: Clock, recorder: Recorder) -> None:
        self._worker, self._clock, self._recorder = worker, clock, recorder
        self.live: dict[str, LiveTask] = {}
        self.listeners: list[Listener] = []
        self.store: TaskStore | None = None

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        """See `TaskLog`. The last record is left to `end`, which knows all that came of the Task."""
        live = self.live[task_id]
        kept = [
            self._recorder.enriched(task_id, record)
            for record in records
            if record["type"] not in ("begin", "end")
        ]
        if live.row.durable and kept and self.store is not None:
            _pass(STAGE_DONE, kept)
            first = len(live.records) + 1
            made = [one for n, r in enumerate(kept, first) for one in artifacts_of(live.row, n, r)]
            change = TaskChange(task_id, self._worker, first, kept, made)
            await surely(partial(self.store.commit, change))
            _pass(STAGE_KEPT, kept)
            live.kept += len(kept)
        self._tell(live, kept)

    async def end(self, live: LiveTask, result: TaskResult) -> None:
        """Keeps how a Task ended, and where it was not durable all of it."""
        assert self.store is not None
        record = {"type": "end", "status": result.status, "error": result.error, "at": self._clock.now()}
        row, told = live.row, {"output": result.output, "error": result.error, "metadata": result.metadata}
        snapshot = self._snapshot(live, len(live.records) + 1, result)
        passing(BEFORE_END)
        if row.durable:
            ended = (result.status, told, self._clock.now())
            last = [*live.records[live.kept :], record]
            first = live.kept + 1
            await self.store.commit(TaskChange(row.task_id, self._worker, first, last, [snapshot], ended))
        else:
            made = [one for n, r in enumerate(live.records, 1) for one in artifacts_of(row, n, r)]
            await self.store.accept(
                _ended(row, result.status, told, self._clock.now()),
                [*live.records, record],
                [*made, snapshot],
            )
        self._tell(live, [record])

    def _tell(self, live: LiveTask, records: Sequence[JsonObject]) -> None:
        live.records += records
        for listener in self.listeners:
            for record in records:
                listener(live, record)
        live.told()

    def _snapshot(self, live: LiveTask, n: int, result: TaskResult) -> Artifact:
        """The telemetry of the whole Task."""
        row = live.row
        content = {
            "status": result.status,
            "queued_ms": round(max(_begun_at(live) - row.created_at, 0.0) * 1000, 3),
            **result.metadata,
            "stages": [
                {"task": e.task, "stage": e.stage, "status": e.status,
                 "duration_ms": round((e.finished_at - e.started_at) * 1000, 3)}
                for e in result.trace
            ],
        }  # fmt: skip
        at = self._clock.now()
        return Artifact(row.task_id, n * _NUMBERS, "telemetry", "", "", "", at, row.fingerprint, content)


def artifacts_of(row: TaskRow, n: int, record: Mapping[str, Any]) -> list[Artifact]:
    """What the n-th record of a Task leaves: the validated output of a stage, the answers of its tools."""
    if record["type"] != "stage":
        return []
    entry = record["entry"]
    place = (entry["task"], entry["node_id"], entry["stage_id"], entry["finished_at"], row.fingerprint)
    made: list[Artifact] = []
    if entry["status"] == "success":
        made.append(Artifact(row.task_id, n * _NUMBERS, "output", *place, entry["output"]))
    for k, call in enumerate(entry["tool_calls"][: _NUMBERS - 1], 1):
        made.append(Artifact(row.task_id, n * _NUMBERS + k, "tool", *place, call))
    return made


def _begun_at(live: LiveTask) -> float:
    first = next((r["entry"]["started_at"] for r in live.records if r["type"] == "stage"), 0.0)
    return float(first)


def _ended(row: TaskRow, status: TaskStatus, result: JsonObject, at: float) -> TaskRow:
    return TaskRow(
        row.task_id, row.tenant, row.owner, row.workflow, row.start, status, row.created_at, row.fingerprint,
        row.trace_id, row.durable, row.caller, row.metadata, finished_at=at, result=result,
    )  # fmt: skip
