"""Runs and traces of this process and of the database: find, list, follow, cancel, decide, wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from msgspec.structs import replace

from astromesh.access.scopes import Viewer
from astromesh.durable.approvals import decisions_of
from astromesh.durable.base import ENDED_STATUSES, RunQuery, RunRow, RunStore
from astromesh.durable.remote_cancel import RemoteCancel
from astromesh.durable.run_archive import RunArchive
from astromesh.durable.run_registry import RunFilter, RunRegistry, event_not_reached, iso_time
from astromesh.durable.run_worker import RunWorker
from astromesh.errors import (
    ApprovalRequired,
    EventsGone,
    Interrupted,
    NotDurable,
    RunFailed,
    RunNotFound,
    StoreError,
)
from astromesh.runtime.records import RunAnswer
from astromesh.telemetry.events import TERMINAL_EVENTS, EventSink, send_to_sinks
from astromesh.telemetry.traces import TraceStore, build_spans
from astromesh.types import CallerContext, Event, JsonObject, Usage

#: seconds between two polls for events of a run that another process works on, and of one that waits
_POLL_SECONDS, _WAITING_POLL_SECONDS = 0.075, 1.0


_PAGE = 1000


class Decision(NamedTuple):
    """The decision of a person.

    Args:
        arguments: of an approved call, instead of those that the model wrote.
        answer: to a question.
    """

    decision: Literal["approve", "deny", "answer"]
    arguments: JsonObject | None = None
    answer: object = None


class StoredRuns:
    """`Runs` of this process and of the database.

    Args:
        registry: the runs of this process.
        durable: those on disk.
        notes: what of the first is on its way to the second.
        elsewhere: asks other processes.
        patience: seconds that a cancel waits for the run's end.
    """

    def __init__(
        self,
        registry: RunRegistry,
        durable: RunWorker,
        notes: RunArchive,
        elsewhere: RemoteCancel,
        patience: float = 10.0,
    ) -> None:
        self._registry, self._durable, self._archive, self._patience = registry, durable, notes, patience
        self._remote_cancel = elsewhere

    async def get(self, run_id: str, viewer: Viewer) -> JsonObject:
        return await self._remote_cancel.retry_until_archived(run_id, partial(self._get, run_id, viewer))

    async def _get(self, run_id: str, viewer: Viewer) -> JsonObject:
        row = await self._row(run_id, viewer, nested=True)
        if row is not None:
            return await self._detailed(await self._current(row))
        try:
            return await self._registry.get(run_id, viewer)
        except (RunNotFound, EventsGone):
            noted = await self._archived(run_id, viewer)
            if noted is None:
                raise
            return run_json(noted)

    async def follow(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        follow = partial(self._follow, run_id, viewer, after, sink)
        return await self._remote_cancel.retry_until_archived(run_id, follow)

    async def _follow(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        row = await self._row(run_id, viewer, nested=True)
        if row is None or self._store is None:
            return await self._follow_plain(run_id, viewer, after, sink)
        follower = _Follower(self._store, self._durable, row.run_id, after, sink)
        if row.status in ENDED_STATUSES:
            await follower.read()
            return None
        if after:
            seen = await self._store.events(row.run_id, after - 1, 1)
            if not seen:
                raise event_not_reached(run_id, after)
            if seen[0].type in TERMINAL_EVENTS:
                return None
        return follower.start()

    async def _follow_plain(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        try:
            return await self._registry.follow(run_id, viewer, after, sink)
        except RunNotFound:
            if await self._archived(run_id, viewer) is None:
                raise
            raise NotDurable(
                f"The run {run_id!r} is not durable: only the process that ran it has its events. "
                f"GET /v1/runs/{run_id} has what became of it."
            ) from None

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject:
        row = await self._row(run_id, viewer)
        if row is None:
            return await self._cancel_plain(run_id, viewer)
        await self._ask_end(row)
        return await self._detailed(await self._ended(row))

    async def _cancel_plain(self, run_id: str, viewer: Viewer) -> JsonObject:
        try:
            return await self._registry.cancel(run_id, viewer)
        except (RunNotFound, EventsGone):
            line = await self._ended_remotely(run_id, viewer)
            line = line or await self._remote_cancel.cancel(run_id, viewer)
            line = line or await self._ended_remotely(run_id, viewer)  # and its note has come meanwhile
            if line is None:
                raise
            return line

    async def _ended_remotely(self, run_id: str, viewer: Viewer) -> JsonObject | None:
        noted = await self._archived(run_id, viewer)
        return run_json(noted) if noted is not None and noted.status in ENDED_STATUSES else None

    async def stop(self, run_id: str, viewer: Viewer) -> bool:
        """Starts to cancel a run. Returns False if it has ended."""
        row = await self._row(run_id, viewer)
        if row is None:
            try:
                return self._registry.stop(run_id, viewer)
            except RunNotFound:
                if await self._ended_remotely(run_id, viewer):
                    return False
                if await self._remote_cancel.cancel(run_id, viewer) is not None:
                    return True
                if await self._ended_remotely(run_id, viewer) is None:
                    raise
                return False
        if row.status in ENDED_STATUSES:
            return False
        await self._ask_end(row)
        return True

    async def _ask_end(self, row: RunRow) -> None:
        if self._store is not None and row.status not in ENDED_STATUSES:
            await self._store.cancel(row.run_id)
            self._durable.stop(row.run_id)

    async def _ended(self, row: RunRow) -> RunRow:
        """Returns the row when the run has ended, or the current row when the wait times out."""
        news = asyncio.Event()
        leave = self._durable.listen(row.run_id, news)
        try:
            async with asyncio.timeout(self._patience):
                while row.status not in ENDED_STATUSES:
                    news.clear()
                    row = await self._durable.store.get(row.run_id) or row
                    if row.status not in ENDED_STATUSES:
                        await _wait_briefly(news, _POLL_SECONDS)
        except TimeoutError:
            pass
        finally:
            leave()
        return row

    # -- people --------------------------------------------------------------------------------------------

    async def approvals(self, viewer: Viewer, limit: int = 100) -> list[JsonObject]:
        """Returns what waits for a person, the oldest first."""
        store = await self._durable.open_if_used()
        rows = await store.waiting(*viewer, limit) if store is not None else ()
        return [_approval_json(row) for row in rows]

    async def resume(self, run_id: str, viewer: Viewer, by: CallerContext, said: Decision) -> JsonObject:
        """Stores a decision for a run that waits.

        Args:
            by: who decides; the name is recorded. A run of their own continues with their token.

        Raises:
            NotWaiting: it does not wait. NotDurable: it never will.
            Forbidden, InvalidInput: it waits for the token of its caller, and this is another one, or none.
            InvalidInput: the decision does not fit the question, which stays open.
        """
        row = await self._row(run_id, viewer)
        if row is None:
            await self.get(run_id, viewer)
            raise NotDurable(f"The run {run_id!r} is not durable: it never waits for a person.")
        decision = {key: value for key, value in said._asdict().items() if value is not None}
        return await self._detailed(await self._durable.decide(row, decision, by))

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _store(self) -> RunStore | None:
        return self._durable.store if self._durable.is_open else None

    async def _current(self, row: RunRow) -> RunRow:
        """Returns a row as callers see it. A nested run has the status of the run at the top."""
        if not row.nested or row.status in ENDED_STATUSES or self._store is None:
            return row
        top = await self._store.get(row.worker)
        return replace(row, status=top.status if top is not None else "cancelled")

    async def _detailed(self, row: RunRow) -> JsonObject:
        """Returns a durable run with the decisions that people made in it."""
        if not row.durable:  # nested in one, which has them
            return run_json(row)
        # before its second segment nobody can have decided
        steps = await self._durable.store.steps(row.run_id) if row.segment > 1 else ()
        return {**run_json(row), "decisions": decisions_of(steps)}

    async def _row(self, run_id: str, viewer: Viewer, *, nested: bool = False) -> RunRow | None:
        """Returns the row of a durable run, or None if the run is not durable or no store exists.

        Args:
            nested: whether a run nested in one is meant, too.
        """
        if "\0" in run_id:  # one database refuses to look for it, another one finds nothing
            raise RunNotFound(f"There is no run {run_id!r}.")
        store = await self._durable.open_if_used()
        if store is None:
            return None
        row = await store.get(run_id)
        if row is None or not (row.durable or (nested and row.nested)):
            return None
        if not _visible(row, viewer):
            raise RunNotFound(f"There is no run {run_id!r}.")
        return row

    async def _archived(self, run_id: str, viewer: Viewer) -> RunRow | None:
        noted = await self._store.get(run_id) if self._store else None
        return noted if noted is not None and _visible(noted, viewer) else None

    async def list(self, viewer: Viewer, wanted: RunFilter) -> tuple[list[JsonObject], Usage]:
        await self._archive.flush()
        store = self._store
        if store is None:
            return await self._registry.list(viewer, wanted)
        agent, session, status, limit = wanted
        found, used = await self._registry.list(viewer, wanted, running=True)
        rows, more = await store.list(RunQuery(*viewer, agent, session, status, limit))
        here = {line["run_id"] for line in found}  # one that its caller has named has a row from its start
        found += [run_json(await self._current(row)) for row in rows if row.run_id not in here]
        found.sort(key=lambda line: str(line["created_at"]), reverse=True)
        return found[: wanted.limit], used + more


class _Follower:
    """A listener to a stored run, whichever process executes it."""

    def __init__(self, store: RunStore, durable: RunWorker, run_id: str, after: int, sink: EventSink) -> None:
        self._store, self._durable, self._run_id = store, durable, run_id
        self._after, self._sink = after, sink
        self._last = ""

    def start(self) -> Callable[[], None]:
        task = asyncio.create_task(self._follow())
        return task.cancel  # type: ignore[return-value]

    async def read(self) -> bool:
        """Sends the stored events. Returns whether the last event of the run was among them."""
        while page := await self._store.events(self._run_id, self._after, _PAGE):
            for event in page:
                self._sink.send(event)
            self._after, self._last = page[-1].seq, page[-1].type
        return self._last in TERMINAL_EVENTS

    async def _follow(self) -> None:
        news = asyncio.Event()
        leave = self._durable.listen(self._run_id, news)
        try:
            while True:
                news.clear()
                try:
                    if await self.read():
                        return
                except StoreError:
                    pass  # it may be there again
                await _wait_briefly(
                    news, _WAITING_POLL_SECONDS if self._last == "run.waiting" else _POLL_SECONDS
                )
        finally:
            leave()


def _visible(row: RunRow, viewer: Viewer) -> bool:
    return row.tenant == viewer.tenant and viewer.owner in (None, row.owner)


def _approval_json(row: RunRow) -> JsonObject:
    """`asking_agent`: whose call or node it is; the run's own, or one nested in it."""
    asked = row.waiting_for or {}
    asking = asked.get("asking_agent") or row.agent
    return {**asked, "agent": row.agent, "session_id": row.session_id, "asking_agent": asking}


async def _wait_briefly(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass


def run_json(row: RunRow) -> JsonObject:
    """Returns a row as `GET /v1/runs/{id}` shows it (api.md, Runs)."""
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "session_id": row.session_id,
        "status": row.status,
        "created_at": iso_time(row.created_at),
        "finished_at": iso_time(row.finished_at) if row.finished_at else None,
        "result": row.result,
        "error": row.error and {key: row.error[key] for key in ("code", "detail")},
        "usage": row.usage.to_json(),
        "attempts": list(row.attempts),
        "waiting_for": row.waiting_for,
    }


# -- waiting for a durable run: the caller receives its events and its answer, as of a plain run -------------


class RunListener:
    """A listener that knows when a run has ended, or waits for a person.

    Args:
        sinks: hear everything, too.
    """

    wants_deltas = True

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = tuple(sinks)
        self.ended = asyncio.Event()

    def send(self, event: Event) -> None:
        if broken := send_to_sinks(self._sinks, event):
            self._sinks = tuple(sink for sink in self._sinks if sink not in broken)
        if event.type in TERMINAL_EVENTS or event.type == "run.waiting":
            self.ended.set()


async def wait_for_run(
    runs: StoredRuns, store: RunStore, row: RunRow, sinks: Sequence[EventSink]
) -> RunAnswer:
    """Waits for an accepted run and returns its answer.

    Raises:
        ApprovalRequired: it waits for a person; it continues without this caller.
        RunFailed, Interrupted: it failed, or was cancelled.
    """
    listener = RunListener(sinks)
    leave = await runs.follow(row.run_id, Viewer(row.tenant, row.owner), 0, listener)
    try:
        await listener.ended.wait()
    finally:
        if leave is not None:
            leave()
    return answer_of(await store.get(row.run_id), row.run_id)


def answer_of(row: RunRow | None, run_id: str) -> RunAnswer:
    """Returns the answer of an ended run, or raises its error, as a plain run does."""
    if row is None:
        raise RunNotFound(f"The run {run_id!r} was erased.")
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


# -- traces of runs of this process and of stored runs -------------------------------------------------------

#: events of a durable run that a trace is made of at most
_MAX_EVENTS = 10_000


class StoredTraces:
    """Traces by id and in lists.

    Args:
        present: those of this process.
        notes: what of them is on its way to the disk.
    """

    def __init__(self, present: TraceStore, durable: RunWorker, notes: RunArchive) -> None:
        self._local, self._durable, self._archive = present, durable, notes

    async def get(self, trace_id: str, viewer: Viewer) -> JsonObject | None:
        """Returns `{"trace_id", "spans"}` of what this viewer may see, or None."""
        await self._archive.flush()
        present = self._local.runs(trace_id, tenant=viewer.tenant, owner=viewer.owner)
        known = {run.run_id for run in present}
        found = [span for run in present for span in build_spans(run)]
        if self._durable.is_open:
            for row, events in await self._durable.store.trace(trace_id):
                if row.run_id not in known and _may_see_trace(row, viewer):
                    told = events or await self._durable.store.events(row.run_id, 0, _MAX_EVENTS)
                    found += build_spans(
                        _StoredTrace(
                            row.run_id, row.trace_id, row.session_id, row.parent, row.agent, row.status, told
                        )
                    )
        return {"trace_id": trace_id, "spans": found} if found else None

    async def list(
        self, viewer: Viewer, agent: str, status: str, limit: int, session: str = ""
    ) -> list[JsonObject]:
        """The newest runs first, one line each."""
        await self._archive.flush()
        found = self._local.list(
            tenant=viewer.tenant,
            owner=viewer.owner,
            agent=agent,
            session=session,
            status=status,
            limit=limit,
        )
        if self._durable.is_open:  # durable runs that rest are there alone
            known = {line["run_id"] for line in found}
            rows, _ = await self._durable.store.list(
                RunQuery(*viewer, agent, session, status, limit + len(known))
            )
            found += [_trace_summary(row) for row in rows if row.run_id not in known]
        found.sort(key=lambda line: -float(line["start"]))
        return found[:limit]


class _StoredTrace(NamedTuple):
    run_id: str
    trace_id: str
    session_id: str
    parent: str
    agent: str
    status: str
    events: tuple[Event, ...]
    remote_span: str = ""
    sampled: bool | None = None


def _may_see_trace(row: RunRow, viewer: Viewer) -> bool:
    return row.tenant == viewer.tenant and viewer.owner in (None, row.owner)


def _trace_summary(row: RunRow) -> JsonObject:
    return {
        "trace_id": row.trace_id,
        "run_id": row.run_id,
        "agent": row.agent,
        "status": row.status,
        "start": row.created_at,
        "duration_ms": round(max(row.finished_at - row.created_at, 0.0) * 1000, 3),
    }
