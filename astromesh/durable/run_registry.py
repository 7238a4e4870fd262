"""The stores of runs that callers ask about share one record and one interface (docs/api.md, Runs).

A plain run is in the memory of its process (`RunRegistry`), and its row is written after its end
(`RunArchive`). A durable run is in the database (`astromesh.runtime.runs.StoredRuns`) from its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from astromesh.access.scopes import Viewer
from astromesh.durable.base import ENDED_STATUSES, RunQuery, RunRow, RunStore
from astromesh.errors import AstromeshError, EventsGone, InvalidInput, StoreUnavailable
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock, iso_time
from astromesh.telemetry.events import EventSink
from astromesh.telemetry.run_log import RunLog, RunLogs
from astromesh.telemetry.traces import trace_events
from astromesh.types import JsonObject, Usage

#: seconds for which the events of an ended run can be read again
EVENT_RETENTION_SECONDS = 300.0


class RunRecords(Protocol):
    """A store of runs."""

    async def find(self, run_id: str, viewer: Viewer) -> RunRow | None:
        """Returns a run; None if the store does not have it, or this viewer may not see it."""

    async def list(self, query: RunQuery) -> tuple[list[RunRow], Usage]:
        """Returns the newest runs first, by id, and the usage of all that match, whatever the page.

        A nested run is part of the run above it.
        """

    async def follow(self, run: RunRow, after: int, sink: EventSink) -> Callable[[], None] | None:
        """Sends the events after `after`, then new ones.

        Returns a function that ends it, or None if the run has ended and no event will come.

        Raises:
            EventsGone: events after `after` are no longer stored.
            InvalidInput: the run has no event `after`.
        """

    async def stop(self, run: RunRow) -> bool:
        """Starts to cancel a run and all that it started. Returns False if it has ended."""

    async def ended(self, run: RunRow) -> RunRow:
        """Returns the run when it has ended, or its current row when the wait times out."""


class RunRegistry:
    """`RunRecords` in the memory of this process: the active runs, and the newest ended ones.

    Args:
        cancel_timeout: seconds that `ended` waits. A tool may take longer to end.
    """

    def __init__(self, logs: RunLogs, clock: Clock, cancel_timeout: float = 10.0) -> None:
        self._logs = logs
        self._clock = clock
        self._cancel_timeout = cancel_timeout

    async def find(self, run_id: str, viewer: Viewer, *, durable: bool = False) -> RunRow | None:
        """`durable`: find a part of a durable run, too. The database has more of it."""
        log = self._logs.find(run_id)
        if log is None or not log.visible(*viewer) or (log.durable and not durable):
            return None
        return row_of(log)

    async def list(self, query: RunQuery, *, active: bool = False) -> tuple[list[RunRow], Usage]:
        """`active`: list active runs only."""
        found = [
            log
            for log in self._logs.newest()
            if not log.durable
            and log.visible(query.tenant, query.owner)
            and query.agent in ("", log.agent)
            and query.session in ("", log.session_id)
            and query.status in ("", log.status)
            and query.matches(log.metadata, log.tags)
            and query.matches_outcome(log.run_id, log.meter.usage.cost_usd, _seconds_of(log))
            and not (active and log.ended_at is not None)
        ]
        of_page = [log for log in found if not query.after or log.run_id < query.after]
        of_page.sort(key=lambda log: log.run_id, reverse=True)
        return [row_of(log) for log in of_page[: query.limit]], _total_usage(found)

    async def follow(self, run: RunRow, after: int, sink: EventSink) -> Callable[[], None] | None:
        log = self._logs.find(run.run_id)
        if log is None or self._is_past(log):
            raise EventsGone(
                f"Events are stored for {EVENT_RETENTION_SECONDS:g} s; "
                f"GET /v1/runs/{run.run_id} has the result."
            )
        stream, events = log.stream, log.after(after)
        if not events and after > log.dropped_through and not log.after(after - 1):
            raise event_not_reached(run.run_id, after, has_ended=stream is None)
        for event in events:
            sink.send(event)
        if stream is None:
            return None
        stream.add(sink)
        return lambda: stream.remove(sink)

    def _is_past(self, log: RunLog) -> bool:
        return log.ended_at is not None and self._clock.monotonic() - log.ended_at > EVENT_RETENTION_SECONDS

    async def stop(self, run: RunRow) -> bool:
        log = self._logs.find(run.run_id)
        if log is None or log.task is None:
            return False
        if not log.cancel_requested:  # a second cancel would interrupt the clean-up of the first one
            log.cancel_requested = True
            log.task.cancel()
        return True

    async def ended(self, run: RunRow) -> RunRow:
        log = self._logs.find(run.run_id)
        if log is None:
            return run
        with suppress(TimeoutError):  # something does not end; its status is `running`
            async with asyncio.timeout(self._cancel_timeout):
                await log.wait()
        return row_of(log)


def event_not_reached(run_id: str, after: int, *, has_ended: bool) -> InvalidInput:
    """The error for a reader that would receive nothing, perhaps for ever. `run_id`: of a run or Task."""
    state = "has ended without" if has_ended else "does not have"
    return InvalidInput(f"{run_id!r} {state} an event {after}. Resume after an event that you have received.")


def _total_usage(found: Sequence[RunLog]) -> Usage:
    ids = {log.run_id for log in found}
    tops = (log for log in found if log.parent.partition(".")[0] not in ids)
    return sum((log.meter.usage for log in tops), Usage())


def _seconds_of(log: RunLog) -> float | None:
    """Returns how long a run took; None: it has not ended."""
    return log.events[-1].ts - log.events[0].ts if log.ended_at is not None and log.events else None


def row_of(log: RunLog) -> RunRow:
    """Returns the row of a run of this process in its current state."""
    status = log.status
    if log.ended_at is not None and status not in ENDED_STATUSES:
        status = "failed"
    created_at = finished_at = 0.0
    result = error = None
    if log.events:
        created_at, last = log.events[0].ts, log.events[-1]
        if status in ENDED_STATUSES:
            finished_at, data = last.ts, last.data
            error = {"code": data["code"], "detail": data["detail"]} if "code" in data else None
            result = data if status == "completed" else partial_result(data)
    return RunRow(
        log.run_id, log.tenant, log.owner, log.agent, log.session_id, log.trace_id, status,  # type: ignore[arg-type]
        created_at, log.parent, finished_at=finished_at, result=result, error=error, usage=log.meter.usage,
        attempts=tuple(log.attempts), metadata=dict(log.metadata), tags=log.tags,
    )  # fmt: skip


def partial_result(last: JsonObject) -> JsonObject | None:
    """Returns what a run without an answer leaves: text, errors of nodes, tools that did not stop."""
    return {key: last[key] for key in ("response", "metadata", "uncancellable") if last.get(key)} or None


def run_json(row: RunRow) -> JsonObject:
    """Returns a run as `GET /v1/runs/{id}` shows it (docs/api.md, Runs).

    The API drops what `RunStateOut` (api/schemas.py) does not declare.
    """
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "session_id": row.session_id,
        "status": row.status,
        "created_at": iso_time(row.created_at) if row.created_at else None,
        "finished_at": iso_time(row.finished_at) if row.finished_at else None,
        "result": row.result,
        "error": row.error and {key: row.error[key] for key in ("code", "detail")},
        "usage": row.usage.to_json(),
        "attempts": list(row.attempts),
        "waiting_for": row.waiting_for,
        "metadata": row.metadata,
        "tags": list(row.tags),
        **({"not_before": iso_time(later)} if (later := row.request.get("not_before")) else {}),
        **({} if row.forked_from is None else {"forked_from": shown_origin(row.forked_from)}),
    }


def shown_origin(forked_from: JsonObject) -> JsonObject:
    """Returns the run that a run was forked from, as callers see it."""
    return {key: forked_from[key] for key in ("run_id", "step", "edit")}


#: seconds after which ended runs are written, so that active runs do not wait for that, and seconds between
#: two attempts while the store is unavailable
_DELAY_SECONDS, _RETRY_SECONDS = 1.0, 1.0
#: number of runs that are written at once, of one batch, and of waiting runs at most
_FLUSH_SIZE, _BATCH_SIZE, _MAX_WAITING = 512, 256, 10_000

log = get_logger("astromesh.runs")


class RunArchive:
    """Archives plain runs: a row and a trace each, written after the run has ended.

    A run costs one append to a list. Rows and traces are built and written in batches. A killed process loses
    the runs of the last second from the archive, and no turn of a conversation. While the store is
    unavailable, the runs wait for it.

    Args:
        store: opens the store of runs, or returns the open one.
    """

    def __init__(self, store: Callable[[], Awaitable[RunStore]]) -> None:
        self._store = store
        self._waiting: list[RunLog] = []
        #: runs that the store did not accept, and the reason
        self._unwritten: list[RunLog] = []
        self._store_error: StoreUnavailable | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, ended: RunLog) -> None:
        """Adds a run that has ended."""
        self._waiting.append(ended)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._begin)
        elif len(self._waiting) == _FLUSH_SIZE and not self._unwritten:
            self._begin()

    async def flush(self) -> None:
        """Writes everything so far to the store.

        Raises:
            StoreUnavailable: some runs wait for the store.
        """
        self._begin()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._unwritten and self._store_error is not None:
            raise self._store_error

    async def close(self) -> None:
        """Makes the last attempt."""
        try:
            await self.flush()
        except StoreUnavailable as error:
            _log_dropped(len(self._unwritten), error)
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._waiting, self._unwritten = [*self._unwritten, *self._waiting], [], []
        if len(ended) > _MAX_WAITING:
            _log_dropped(len(ended) - _MAX_WAITING, self._store_error)
            del ended[:-_MAX_WAITING]
        if ended:
            task = asyncio.create_task(self._write(ended))
            self._tasks.add(task)
            task.add_done_callback(partial(self._written, len(ended)))

    def _written(self, count: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a fault of the store's own code
            _log_dropped(count, error)

    async def _write(self, ended: Sequence[RunLog]) -> None:
        try:
            store = await self._store()
            while ended:
                batch, later = ended[:_BATCH_SIZE], ended[_BATCH_SIZE:]
                recordings = {one.run_id: one.recording for one in batch if one.recording is not None}
                runs = [(row_of(one), trace_events(one.events)) for one in batch if one.events]
                await store.archive(runs, recordings)
                for one in batch:
                    one.recording = None
                    one.pack()
                ended = later
                if not self._unwritten:
                    self._store_error = None
        except StoreUnavailable as error:
            self._wait(ended, error)
        except AstromeshError as error:  # no caller waits for the archive
            _log_dropped(len(ended), error)

    def _wait(self, ended: Sequence[RunLog], error: StoreUnavailable) -> None:
        if self._store_error is None:
            log.warning("notes_wait_for_store", count=len(ended), error=str(error))
        self._unwritten += ended
        self._store_error = error
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._begin)


def _log_dropped(count: int, error: BaseException | None) -> None:
    log.warning("runs_not_noted", count=count, error=str(error))
