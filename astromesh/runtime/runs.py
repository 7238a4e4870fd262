"""Runs and traces of a runtime, plain and durable: find, list, follow, cancel, decide, wait."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from time import monotonic, time
from typing import Literal, NamedTuple

from msgspec.structs import replace

from astromesh.access.scopes import Viewer
from astromesh.durable.approvals import decisions_of, questions_in
from astromesh.durable.base import (
    ENDED_STATUSES,
    JournalStep,
    RunQuery,
    RunRow,
    RunSample,
    RunStore,
    RunTotals,
    WaitingRun,
)
from astromesh.durable.remote_runs import RemoteCancel, RemoteEvents
from astromesh.durable.run_registry import (
    RunArchive,
    RunRecords,
    RunRegistry,
    event_not_reached,
    run_json,
)
from astromesh.durable.run_worker import RunWorker
from astromesh.errors import (
    ApprovalRequired,
    Conflict,
    EventsGone,
    Interrupted,
    NotDurable,
    RunFailed,
    RunNotFound,
    StoreError,
)
from astromesh.runtime.records import RunAnswer
from astromesh.telemetry import ids
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import (
    TERMINAL_EVENTS,
    WAITING,
    EventSink,
    send_stored,
    send_to_sinks,
    send_what_fits,
)
from astromesh.telemetry.run_log import RunLogs
from astromesh.telemetry.traces import build_spans
from astromesh.tools.base import CLIENT_TOOL
from astromesh.types import CallerContext, Event, JsonObject, Usage

#: seconds between two polls for events of a run that another process works on, and of one that waits
_POLL_SECONDS, _WAITING_POLL_SECONDS = 0.075, 1.0
#: and of one whose process tells of its events; seconds between two looks whether a run was erased
_HEARING_POLL_SECONDS, _ERASED_POLL_SECONDS = 2.0, 2.0


#: events of one read, and of one trace
_PAGE, _MAX_EVENTS = 1000, 10_000
#: runs of one session that are ended with it
_MAX_OPEN_RUNS = 1000
#: newest runs of an agent whose manifests are compared
_MAX_VERSION_RUNS = 1000


class Decision(NamedTuple):
    """The decision of a person.

    Args:
        arguments: Arguments of an approved call that replace those of the model.
        answer: The answer to a question.
        question: The id of the question. None: the oldest one.
        note: Why. It is shown with the decision, and the model reads it with a call that is denied.
    """

    decision: Literal["approve", "deny", "answer"]
    arguments: JsonObject | None = None
    answer: object = None
    question: str | None = None
    note: str | None = None

    def to_json(self) -> JsonObject:
        """Returns what is set. The decision `answer` has an answer, null too."""
        values = {key: value for key, value in self._asdict().items() if value is not None}
        return {**values, "answer": self.answer} if self.decision == "answer" else values


class RunPage(NamedTuple):
    """A page of a list of runs, as JSON.

    Args:
        next: `after` of the next page; None: there is none.
        usage: Of all runs that match.
    """

    runs: Sequence[JsonObject]
    next: str | None
    usage: Usage


class AgentVersion(NamedTuple):
    """One manifest of an agent, and the runs that were accepted with it; times in seconds since the epoch."""

    source: str
    runs: int
    first_run_at: float
    last_run_at: float


class _Rows(NamedTuple):
    rows: Sequence[RunRow]
    usage: Usage
    next: str | None


class Runs:
    """Every run of a runtime, wherever it is stored: in this process, in the database, in another process.

    Args:
        durable: The worker of durable runs, whose store has the rows.
        is_busy: Returns whether this process has active runs.

    Attributes:
        logs: The runs of this process: the active ones, and the newest that have ended.
        archive: Writes the rows of plain runs after their end.
        remote_cancel: Cancels runs for other processes, and runs of other processes.

    Methods with a `run_id` raise RunNotFound if there is no such run, or not for this viewer, and EventsGone
    if there was one and it is no longer stored.
    """

    def __init__(self, durable: RunWorker, clock: Clock, is_busy: Callable[[], bool]) -> None:
        self.logs, self._clock, self._durable = RunLogs(), clock, durable
        self._local = RunRegistry(self.logs, clock)
        self._stored = StoredRuns(durable)
        self.archive = RunArchive(durable.open)
        self._remote_events = RemoteEvents(durable, self.logs, clock)
        self.remote_cancel = RemoteCancel(durable, self._local, clock, is_busy, self.archive.flush)
        self.remote_cancel.also = self._remote_events.poll
        durable.requested = self._requested

    async def close(self) -> None:
        """Writes the rows that are left, at the end of the process."""
        await self.remote_cancel.close()
        await self._remote_events.close()
        await self.archive.close()

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the ended runs of one principal, and their schedules. Returns their number."""
        await self.archive.flush()
        erased = self.logs.erase_owner(tenant, owner)
        store = await self._durable.open_if_used()
        return erased if store is None else max(erased, await store.erase_owner(tenant, owner))

    # -- queries -------------------------------------------------------------------------------------------

    async def get(self, run_id: str, viewer: Viewer) -> JsonObject:
        """Returns one run as the API shows it, also an active one of another process."""
        found = await self._find(run_id, viewer)
        if found is None and not self.logs.was_dropped(run_id, *viewer):
            elsewhere = partial(self._may_be_elsewhere, run_id, viewer)
            state = await self._remote_events.state(run_id, viewer, elsewhere)
            if state is not None:
                return state
        _, run = found or await self._find_now(run_id, viewer)
        return await self._stored.detailed(run)

    async def row(self, run_id: str, viewer: Viewer) -> RunRow:
        """Returns the row of a run."""
        return (await self._require(run_id, viewer))[1]

    async def follow(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        """Sends the events of a run after `after`, then new ones; see `RunRecords.follow`.

        Raises:
            NotDurable: the run is a plain one of another process, and has ended.
        """
        if await self._may_be_elsewhere(run_id, viewer):
            elsewhere = partial(self._may_be_elsewhere, run_id, viewer)
            leave = await self._remote_events.follow(run_id, viewer, after, sink, elsewhere)
            if leave is not None:
                return leave
            store, run = await self._find_now(run_id, viewer)
        else:
            store, run = await self._require(run_id, viewer)
        if store is self._stored and self.logs.was_dropped(run_id, *viewer) and not run.nested:
            raise _no_longer_stored(run_id)
        return await store.follow(run, after, sink)

    async def _may_be_elsewhere(self, run_id: str, viewer: Viewer) -> bool:
        """Whether a run may be a plain one that is active in another process."""
        found = await self._find(run_id, viewer)
        if found is None:
            return not self.logs.was_dropped(run_id, *viewer)
        store, run = found
        is_plain = store is self._stored and not (run.durable or run.nested)
        return is_plain and run.status not in ENDED_STATUSES

    def _requested(self, run_id: str) -> None:
        if self.logs.find(run_id) is not None:
            self.remote_cancel.wake()

    async def record(self, run_id: str) -> tuple[tuple[JournalStep, ...], list[Event]]:
        """Returns the steps and the stored events of a durable run."""
        store, events = self._durable.store, list[Event]()
        while page := await store.events(run_id, events[-1].seq if events else 0, _PAGE):
            events += page
        return await store.steps(run_id), events

    async def attachments(self, run_id: str) -> dict[str, str]:
        """Returns the contents of the attachments of a run, as base64 text by hash."""
        found = await self._durable.store.attachments(run_id)
        return {name: b64encode(data).decode() for name, data in found.items()}

    async def delete(self, run_id: str, viewer: Viewer) -> None:
        """Cancels a run, and deletes it with its steps and events."""
        await self.cancel(run_id, viewer)
        await self._durable.store.delete(run_id)

    async def last_event(self, run_id: str) -> int:
        """Returns the number of the newest stored event of a durable run; 0: there is none."""
        last = 0
        while page := await self._durable.store.events(run_id, last, _PAGE):
            last = page[-1].seq
        return last

    async def wait(
        self, run: RunRow, sinks: Sequence[EventSink], after: int = 0, *, stops: bool = False
    ) -> RunAnswer:
        """Waits for a durable run and returns its answer.

        Args:
            sinks: Listeners to its events.
            after: The number of the last event that is over.
            stops: If the caller leaves, the run is cancelled, unless the caller has heard that it waits.

        Raises:
            ApprovalRequired: it waits for a person, and continues without this caller.
            RunFailed, Interrupted: it failed, or was cancelled.
        """
        listener, viewer, leave = RunListener(sinks), Viewer(run.tenant, run.owner), None
        try:
            leave = await self.follow(run.run_id, viewer, after, listener)
            await listener.ended.wait()
            return answer_of(await self._rested(run.run_id, listener), run.run_id)
        except asyncio.CancelledError:
            if stops and not listener.waits:
                await self.stop(run.run_id, viewer)
            raise
        finally:
            if leave is not None:
                leave()

    async def _rested(self, run_id: str, listener: RunListener) -> RunRow | None:
        """Returns the row of a run that has ended or waits now: what was heard may be an earlier wait."""
        while True:
            listener.ended.clear()
            row = await self._durable.store.get(run_id)
            if row is None or row.status not in ("queued", "running"):
                return row
            await _wait_briefly(listener.ended, _POLL_SECONDS)

    async def follow_here(self, run: RunRow, sink: EventSink) -> Callable[[], None] | None:
        """Sends the events of a run of this process.

        Raises:
            EventsGone: they are no longer stored, or another process has them.
        """
        return await self._local.follow(run, 0, sink)

    async def _find(self, run_id: str, viewer: Viewer) -> tuple[RunRecords, RunRow] | None:
        for store in (self._local, self._stored):
            if (run := await store.find(run_id, viewer)) is not None:
                return store, run
        return None

    async def _require(self, run_id: str, viewer: Viewer) -> tuple[RunRecords, RunRow]:
        return await self.remote_cancel.retry_until_archived(run_id, partial(self._find_now, run_id, viewer))

    async def _find_now(self, run_id: str, viewer: Viewer) -> tuple[RunRecords, RunRow]:
        found = await self._find(run_id, viewer)
        if found is None and self.logs.was_dropped(run_id, *viewer):
            raise _no_longer_stored(run_id)
        if found is None:
            raise RunNotFound(f"There is no run {run_id!r}.")
        return found

    # -- cancelling ----------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject:
        """Cancels a run and all that it started; what it has released is stored.

        When this returns, no new side effect starts.

        Raises:
            Conflict: it waits as a part of another run, which alone can be cancelled then.
        """
        _refuse_waiting_part(await self._find(run_id, viewer))
        found = await self._active(run_id, viewer)
        if found is not None:
            store, run = found
            await store.stop(run)
            return await self._stored.detailed(await store.ended(run))
        line = await self.remote_cancel.cancel(run_id, viewer)
        if line is None:  # it may have ended meanwhile
            _, run = await self._find_now(run_id, viewer)
            return await self._stored.detailed(run)
        return line

    async def stop(self, run_id: str, viewer: Viewer) -> bool:
        """Starts to cancel a run. Returns False if it has ended."""
        found = await self._active(run_id, viewer)
        if found is not None:
            return await found[0].stop(found[1])
        if await self.remote_cancel.cancel(run_id, viewer) is not None:
            return True
        await self._find_now(run_id, viewer)
        return False

    async def _active(self, run_id: str, viewer: Viewer) -> tuple[RunRecords, RunRow] | None:
        """Returns a run and the store that can cancel it; None if only another process may have it."""
        found = await self._find(run_id, viewer)
        if found is not None and (found[1].durable or found[1].status in ENDED_STATUSES):
            return found
        local = await self._local.find(run_id, viewer, durable=True)  # a run nested in a durable one, too
        return None if local is None else (self._local, local)

    # -- people --------------------------------------------------------------------------------------------

    async def approvals(self, viewer: Viewer, limit: int = 100) -> list[JsonObject]:
        """Returns what waits for a person, the oldest first."""
        store = await self._durable.open_if_used()
        rows = await store.waiting(*viewer, limit) if store is not None else ()
        pairs = ((row, question) for row in rows for question in questions_in(row.waiting_for))
        return [_approval_json(row, question) for row, question in pairs if question["kind"] != CLIENT_TOOL]

    async def resume(self, run_id: str, viewer: Viewer, by: CallerContext, decision: Decision) -> JsonObject:
        """Stores a decision for a run that waits, continues the run, and returns it as the API shows it.

        Raises: As `decide`.
        """
        return await self._stored.detailed(await self.decide(run_id, viewer, by, decision))

    async def decide(self, run_id: str, viewer: Viewer, by: CallerContext, decision: Decision) -> RunRow:
        """Stores a decision for a run that waits, and continues the run.

        Args:
            by: Who decides; the name is stored. The run continues with their token if they are its caller.

        Raises:
            NotWaiting: it does not wait. NotDurable: it never will.
            ApprovalNotFound: it does not wait for this question.
            Forbidden, InvalidInput: it waits for the token of its caller, and this is another one, or none.
            InvalidInput: the decision does not fit the question, which stays open.
        """
        _, run = await self._require(run_id, viewer)
        if not run.durable:
            raise NotDurable(f"The run {run_id!r} is not durable: it never waits for a person.")
        values = decision.to_json()
        which = values.pop("question", "")
        return await self._durable.decide(run, {which: values}, by)

    async def list(self, query: RunQuery) -> RunPage:
        """Returns a page of the newest runs, and the usage of all that match."""
        rows, used, more = await self._rows(query)
        return RunPage([run_json(row) for row in rows], more, used)

    async def count(self, query: RunQuery) -> int:
        """Returns how many runs match, those of the other pages too."""
        await self.archive.flush()
        store = await self._durable.open_if_used()
        every = query._replace(after="", limit=_MAX_OPEN_RUNS)
        plain, _ = await self._local.list(every, active=store is not None)
        if store is None:
            return len(plain)
        # an active run has no row, unless it has an idempotency key
        active = [row for row in plain if await store.get(row.run_id) is None]
        return len(active) + await store.count(query)

    async def open_of_session(self, viewer: Viewer, agent: str, session_id: str) -> Sequence[RunRow]:
        """Returns the runs of a session that have not ended, as far as this process and the store know."""
        found: list[RunRow] = []
        for status in ("queued", "running", "waiting"):
            query = RunQuery(*viewer, agent, session_id, status, _MAX_OPEN_RUNS)
            found += (await self._rows(query)).rows
        return found

    async def _rows(self, query: RunQuery) -> _Rows:
        """Ids order the pages: they begin with the millisecond. Times order the runs of one page."""
        limit, query = query.limit, query._replace(limit=query.limit + 1)
        await self.archive.flush()
        await self._durable.open_if_used()  # a list may be the first that asks after a restart
        rows, used = await self._local.list(query, active=self._durable.is_open)
        stored, more = await self._stored.list(query)
        local_ids = {row.run_id for row in rows}  # a run with an idempotency key has a row from its start
        rows += [row for row in stored if row.run_id not in local_ids]
        rows.sort(key=lambda row: row.run_id, reverse=True)
        page = rows[:limit]
        after = page[-1].run_id if len(rows) > limit else None
        page.sort(key=lambda row: row.created_at, reverse=True)
        return _Rows(page, used + more, after)

    async def statistics(self, viewer: Viewer, minutes: int) -> JsonObject:
        """Returns the runs of the last minutes, each minute, in sum and of today; see `run_statistics`."""
        now = self._clock.now()
        await self.archive.flush()
        store = await self._durable.open_if_used()
        if store is None:
            return run_statistics((), RunTotals(), now, minutes)
        start = (now // 60 - minutes + 1) * 60
        samples = await store.samples(*viewer, ids.first_id("run_", start), MAX_SAMPLES)
        today = await store.totals(*viewer, ids.first_id("run_", now // 86_400 * 86_400))
        return run_statistics(samples, today, now, minutes)

    async def versions(self, agent: str, viewer: Viewer) -> tuple[AgentVersion, ...]:
        """Returns the manifests that the newest durable runs of an agent were accepted with, newest first."""
        store = await self._durable.open_if_used()
        if store is None:
            return ()
        rows, _ = await store.list(RunQuery(*viewer, agent, limit=_MAX_VERSION_RUNS))
        by_source: dict[str, list[RunRow]] = {}
        for row in rows:
            if source := (row.manifest or {}).get("source"):
                by_source.setdefault(source, []).append(row)
        return tuple(
            AgentVersion(source, len(found), found[-1].created_at, found[0].created_at)
            for source, found in by_source.items()
        )

    async def traces(self, query: RunQuery) -> RunPage:
        """Returns one line for each run, the newest first."""
        rows, used, more = await self._rows(query)
        lines = [_trace_summary(row, row.finished_at or self._clock.now()) for row in rows]
        return RunPage(lines, more, used)

    async def trace(self, trace_id: str, viewer: Viewer) -> JsonObject | None:
        """Returns `{"trace_id", "spans"}` of what this viewer may see, or None."""
        await self.archive.flush()
        store = await self._durable.open_if_used()
        local = self.logs.of_trace(trace_id, *viewer)
        local_ids = {log.run_id for log in local}
        spans = [span for log in local for span in build_spans(log)]
        for row, events in await store.trace(trace_id) if store is not None else ():
            if row.run_id not in local_ids and _is_visible(row, viewer):
                stored = events or await self._durable.store.events(row.run_id, 0, _MAX_EVENTS)
                spans += build_spans(_StoredTrace(row, stored))
        return {"trace_id": trace_id, "spans": spans} if spans else None


def _refuse_waiting_part(found: tuple[RunRecords, RunRow] | None) -> None:
    if found is not None and found[1].parent and found[1].status == "waiting":
        above = found[1].parent.partition(".")[0]
        raise Conflict(f"The run {found[1].run_id!r} waits as a part of the run {above!r}. Cancel that one.")


def _was_erased(run_id: str) -> str:
    return f"The run {run_id!r} was erased."


def _no_longer_stored(run_id: str) -> EventsGone:
    return EventsGone(f"The run {run_id!r} is no longer stored.")


class StoredRuns:
    """`RunRecords` in the database: durable runs, runs nested in them, and plain runs that have ended.

    Args:
        cancel_timeout: Seconds that `ended` waits.
    """

    def __init__(self, durable: RunWorker, cancel_timeout: float = 10.0) -> None:
        self._durable, self._cancel_timeout = durable, cancel_timeout

    async def find(self, run_id: str, viewer: Viewer) -> RunRow | None:
        if "\0" in run_id:  # PostgreSQL refuses to look for it
            return None
        store = await self._durable.open_if_used()
        run = await store.get(run_id) if store is not None else None
        return await self._current(run) if run is not None and _is_visible(run, viewer) else None

    async def list(self, query: RunQuery) -> tuple[list[RunRow], Usage]:
        if not self._durable.is_open:
            return [], Usage()
        rows, used = await self._durable.store.list(query)
        return [await self._current(row) for row in rows], used

    async def follow(self, run: RunRow, after: int, sink: EventSink) -> Callable[[], None] | None:
        if not (run.durable or run.nested):
            raise NotDurable(
                f"The run {run.run_id!r} is not durable: only the process that ran it has its events. "
                f"GET /v1/runs/{run.run_id} has its result."
            )
        store = self._durable.store
        follower = _Follower(store, self._durable, run.run_id, after, sink)
        if after:
            seen = await store.events(run.run_id, after - 1, 1)
            if not seen:
                raise event_not_reached(run.run_id, after, has_ended=run.status in ENDED_STATUSES)
            if seen[0].type in TERMINAL_EVENTS:
                return None
        if run.status in ENDED_STATUSES and await follower.read_what_fits():
            return None
        return follower.start()

    async def stop(self, run: RunRow) -> bool:
        if run.status in ENDED_STATUSES:
            return False
        await self._durable.cancel(run)
        return True

    async def ended(self, run: RunRow) -> RunRow:
        news = asyncio.Event()
        leave = self._durable.listen(run.run_id, news)
        try:
            async with asyncio.timeout(self._cancel_timeout):
                while run.status not in ENDED_STATUSES:
                    news.clear()
                    run = await self._durable.store.get(run.run_id) or run
                    if run.status not in ENDED_STATUSES:
                        await _wait_briefly(news, _POLL_SECONDS)
        except TimeoutError:
            pass
        finally:
            leave()
        return run

    async def detailed(self, run: RunRow) -> JsonObject:
        """Returns a run as the API shows it; a durable one with the decisions that people made in it."""
        if not run.durable:
            return run_json(run)
        # before its second segment nobody can have decided
        steps = await self._durable.store.steps(run.run_id) if run.segment > 1 else ()
        waits = await self._durable.redacted(run, [step for step in steps if step.kind == "wait"])
        return {**run_json(run), "decisions": decisions_of(waits)}

    async def _current(self, run: RunRow) -> RunRow:
        """Returns a row as callers see it. A run nested in a durable one has the status of the top run."""
        if not run.nested or run.status in ENDED_STATUSES:
            return run
        top = await self._durable.store.get(run.worker)
        return replace(run, status=top.status if top is not None else "cancelled")


class _Follower:
    """A listener to a stored run, whichever process executes it."""

    def __init__(self, store: RunStore, durable: RunWorker, run_id: str, after: int, sink: EventSink) -> None:
        self._store, self._durable, self._run_id = store, durable, run_id
        self._after, self._sink = after, sink
        self._last = ""
        self._looks_at = monotonic() + _ERASED_POLL_SECONDS

    def start(self) -> Callable[[], None]:
        task = asyncio.create_task(self._follow())
        return task.cancel  # type: ignore[return-value]

    async def read(self) -> bool:
        """Sends the stored events. Returns whether the last event of the run was among them."""
        while page := await self._store.events(self._run_id, self._after, _PAGE):
            await send_stored(page, self._sink)
            self._after, self._last = page[-1].seq, page[-1].type
        return self._last in TERMINAL_EVENTS

    async def read_what_fits(self) -> bool:
        """Sends stored events while the listener has room. Returns whether these were all."""
        while page := await self._store.events(self._run_id, self._after, _PAGE):
            if left := send_what_fits(page, self._sink):
                self._after = left[0].seq - 1
                return False
            self._after, self._last = page[-1].seq, page[-1].type
        return True

    async def _was_erased(self) -> bool:
        """Whether the run was erased, so that its last event never comes. The listener is told."""
        if monotonic() < self._looks_at:
            return False
        self._looks_at = monotonic() + _ERASED_POLL_SECONDS
        if await self._store.get(self._run_id) is not None:
            return False
        detail, usage = _was_erased(self._run_id), Usage().to_json()
        failure = {"code": RunNotFound.code, "detail": detail, "response": "", "usage": usage}
        self._sink.send(Event(self._run_id, self._after + 1, time(), "run.failed", failure))
        return True

    @property
    def _poll_seconds(self) -> float:
        if self._last == "run.waiting":
            return _WAITING_POLL_SECONDS
        return _HEARING_POLL_SECONDS if self._durable.hears_others else _POLL_SECONDS

    async def _follow(self) -> None:
        news = asyncio.Event()
        leave = self._durable.listen(self._run_id, news)
        try:
            while True:
                news.clear()
                with suppress(StoreError):  # it may be there again
                    if await self.read() or await self._was_erased():
                        return
                await _wait_briefly(news, self._poll_seconds)
        finally:
            leave()


def _is_visible(row: RunRow, viewer: Viewer) -> bool:
    return row.tenant == viewer.tenant and viewer.owner in (None, row.owner)


def _approval_json(row: WaitingRun, question: JsonObject) -> JsonObject:
    """Returns a question. `asking_agent`: the agent of the call or node, the run's own or a nested one."""
    asking = question.get("asking_agent") or row.agent
    return {**question, "agent": row.agent, "session_id": row.session_id, "asking_agent": asking}


async def _wait_briefly(news: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()


class RunListener:
    """A listener that knows when a run has ended, or waits for a person.

    Args:
        sinks: Other listeners, which receive every event, too.

    Attributes:
        ended: Whether the run has ended or waits.
        waits: Whether its newest event says that it waits.
    """

    wants_deltas = True

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = tuple(sinks)
        self.ended, self.waits = asyncio.Event(), False

    def send(self, event: Event) -> None:
        if broken := send_to_sinks(self._sinks, event):
            self._sinks = tuple(sink for sink in self._sinks if sink not in broken)
        self.waits = event.type == WAITING
        if self.waits or event.type in TERMINAL_EVENTS:
            self.ended.set()


def answer_of(row: RunRow | None, run_id: str) -> RunAnswer:
    """Returns the answer of an ended run, or raises its error, as a plain run does."""
    if row is None:
        raise RunNotFound(_was_erased(run_id))
    if row.status == "completed" and row.result is not None:
        return RunAnswer(**row.result)
    if row.status == "failed" and row.error is not None:
        failed = RunFailed(row.error["code"], row.error["detail"], row.error.get("more"))
        failed.run_id, failed.trace_id = run_id, row.trace_id
        raise failed
    if row.status == "cancelled":
        stopped = Interrupted("The run was cancelled.")
        stopped.run_id, stopped.trace_id = run_id, row.trace_id
        raise stopped
    waits = ApprovalRequired("The run waits for a person's decision.", run_id, row.waiting_for)
    waits.trace_id = row.trace_id
    raise waits


class _StoredTrace:
    """A stored run as the tree of spans is built from it."""

    remote_span: str = ""
    sampled: bool | None = None

    def __init__(self, row: RunRow, events: Sequence[Event]) -> None:
        self.run_id, self.trace_id, self.session_id = row.run_id, row.trace_id, row.session_id
        self.parent, self.agent, self.status, self.events = row.parent, row.agent, row.status, events
        self.metadata, self.tags = row.metadata, row.tags


def _trace_summary(row: RunRow, until: float) -> JsonObject:
    return {
        "trace_id": row.trace_id,
        "run_id": row.run_id,
        "agent": row.agent,
        "status": row.status,
        "start": row.created_at,
        "duration_ms": round(max(until - row.created_at, 0.0) * 1000, 3),
    }


# -- statistics --------------------------------------------------------------------------------------------


#: runs that one set of statistics reads; of more, the newest count
MAX_SAMPLES = 20_000


def run_statistics(samples: Sequence[RunSample], today: RunTotals, now: float, minutes: int) -> JsonObject:
    """Returns `{"minutes": […], "total", "today"}`.

    Args:
        samples: runs of the last minutes.
        today: the sums since midnight UTC.
        now: in seconds since the epoch.
        minutes: how many minutes there are; the last one is not over.
    """
    first = int(now // 60) - minutes + 1
    by_minute: list[list[RunSample]] = [[] for _ in range(minutes)]
    for sample in samples:
        if 0 <= (place := int(sample.created_at // 60) - first) < minutes:
            by_minute[place].append(sample)
    return {
        "minutes": [{"at": (first + place) * 60, **_sums(found)} for place, found in enumerate(by_minute)],
        "total": _sums([sample for found in by_minute for sample in found]),
        "today": today._asdict(),
    }


def _sums(samples: Sequence[RunSample]) -> JsonObject:
    took = sorted((s.finished_at - s.created_at) * 1000 for s in samples if s.status == "completed")
    return {
        "runs": len(samples),
        "failed": sum(s.status == "failed" for s in samples),
        "tokens": sum(s.tokens for s in samples),
        "cost_usd": sum(s.cost_usd for s in samples),
        "p50_ms": _percentile(took, 0.50),
        "p95_ms": _percentile(took, 0.95),
    }


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Returns the nearest-rank percentile of ordered values; None without values."""
    return round(ordered[ceil(share * len(ordered)) - 1], 3) if ordered else None
