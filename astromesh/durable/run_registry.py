"""The runs of this process that callers ask about: find, list, follow, cancel (api.md section 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from astromesh.access.scopes import Viewer
from astromesh.errors import EventsGone, InvalidInput, RunNotFound
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import EventSink
from astromesh.telemetry.run_log import RunLog, RunLogs
from astromesh.types import JsonObject, Usage

#: seconds for which the events of an ended run can be read again
EVENT_RETENTION_SECONDS = 300.0


class RunFilter(NamedTuple):
    """What a list is limited to; empty: everything. `limit`: most lines."""

    agent: str = ""
    session: str = ""
    status: str = ""
    limit: int = 50


class Runs(Protocol):
    """The seam between the routes and whoever keeps runs.

    Raises (all of them):
        RunNotFound: there is none of this id, or not for this viewer.
        EventsGone: there was one, and what is asked for is no longer kept.
    """

    async def get(self, run_id: str, viewer: Viewer) -> JsonObject:
        """One run as api.md section 1 shows it."""

    async def list(self, viewer: Viewer, wanted: RunFilter) -> tuple[list[JsonObject], Usage]:
        """The newest first, and what all that fit have used; a nested run is part of the one above it."""

    async def follow(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        """Sends the events behind `after`, then those that come.

        Returns a function that ends it, or None where the run has ended and nothing will come.

        Raises:
            RunNotFound, EventsGone
            InvalidInput: the run continues, and has not come to an event `after` yet.
        """

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject:
        """Ends a run and all that it started; what it had said is kept. No new side effect starts after."""


class RunRegistry:
    """`Runs` of this process.

    Args:
        logs: the records.
        clock: for how long they are kept.
        patience: seconds that a cancel waits for the run's end; a tool may take longer to let go.
    """

    def __init__(self, logs: RunLogs, clock: Clock, cancel_timeout: float = 10.0) -> None:
        self._logs = logs
        self._clock = clock
        self._cancel_timeout = cancel_timeout

    async def get(self, run_id: str, viewer: Viewer) -> JsonObject:
        return _to_json(self._find(run_id, viewer))

    async def list(
        self, viewer: Viewer, wanted: RunFilter, running: bool = False
    ) -> tuple[list[JsonObject], Usage]:
        """Args: running: only those that have not ended."""
        found = [
            log
            for log in self._logs.newest()
            if not log.durable
            and log.visible(*viewer)
            and _matches(log, wanted)
            and not (running and log.ended_at is not None)
        ]
        return [_to_json(log) for log in found[: wanted.limit]], _total_usage(found)

    async def follow(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        log = self._find(run_id, viewer)
        if log.ended_at is not None and self._clock.monotonic() - log.ended_at > EVENT_RETENTION_SECONDS:
            raise EventsGone(
                f"Events are kept for {EVENT_RETENTION_SECONDS:g} s; GET /v1/runs/{run_id} has the result."
            )
        stream, events = log.stream, log.after(after)
        for event in events:
            sink.send(event)
        if stream is None:
            return None
        if not events and after > log.dropped_through and not log.after(after - 1):
            raise event_not_reached(run_id, after)
        stream.add(sink)
        return lambda: stream.remove(sink)

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject:
        log = self._find(run_id, viewer)
        self.stop(run_id, viewer)
        try:
            async with asyncio.timeout(self._cancel_timeout):
                await log.wait()
        except TimeoutError:
            pass  # something in it does not let go; its status says `running`
        return _to_json(log)

    def stop(self, run_id: str, viewer: Viewer) -> bool:
        """Starts to cancel a run; False where it had ended.

        Raises:
            RunNotFound, EventsGone: as in `Runs`.
        """
        log = self._find(run_id, viewer)
        if log.task is None:
            return False
        if not log.cancel_requested:  # a second cancel would cut short what the first one tidies up
            log.cancel_requested = True
            log.task.cancel()
        return True

    def _find(self, run_id: str, viewer: Viewer) -> RunLog:
        log = self._logs.find(run_id)
        if log is not None and log.visible(*viewer):
            return log
        if self._logs.was_dropped(run_id, *viewer):
            raise EventsGone(f"The run {run_id!r} is no longer kept.")
        raise RunNotFound(f"There is no run {run_id!r}.")


def event_not_reached(run_id: str, after: int) -> InvalidInput:
    """Who follows a run from a number on that it has not reached would hear nothing, perhaps for ever."""
    return InvalidInput(
        f"The run {run_id!r} has not come to an event {after} yet; resume behind one you have seen."
    )


def _matches(log: RunLog, wanted: RunFilter) -> bool:
    return (
        wanted.agent in ("", log.agent)
        and wanted.session in ("", log.session_id)
        and wanted.status in ("", log.status)
    )


def _total_usage(found: Sequence[RunLog]) -> Usage:
    ids = {log.run_id for log in found}
    tops = (log for log in found if log.parent.partition(".")[0] not in ids)
    return sum((log.meter.usage for log in tops), Usage())


def outcome_of(log: RunLog) -> tuple[JsonObject | None, JsonObject | None]:
    """Result and error of a run, as far as it has come."""
    data = log.events[-1].data if log.events and log.ended_at is not None else {}
    error = {"code": data["code"], "detail": data["detail"]} if "code" in data else None
    return _result(log.status, data), error


def _to_json(log: RunLog) -> JsonObject:
    status, last = log.status, log.events[-1] if log.events else None
    result, error = outcome_of(log)
    return {
        "run_id": log.run_id,
        "agent": log.agent,
        "session_id": log.session_id,
        "status": status,
        "created_at": iso_time(log.events[0].ts) if log.events else None,
        "finished_at": iso_time(last.ts) if last and log.ended_at is not None else None,
        "result": result,
        "error": error,
        "usage": log.meter.usage.to_json(),
        "attempts": list(log.attempts),
        "waiting_for": last.data.get("approval") if last and status == "waiting" else None,
    }


def _result(status: str, data: JsonObject) -> JsonObject | None:
    """The whole answer; of a run that has none, what it had said."""
    if status == "completed":
        return data
    return partial_result(data)


def partial_result(last: JsonObject) -> JsonObject | None:
    """What a run without an answer has left: text, and tools that could not be stopped."""
    return {key: last[key] for key in ("response", "uncancellable") if last.get(key)} or None


def iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
