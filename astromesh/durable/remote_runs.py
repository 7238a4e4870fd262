"""Plain runs of other processes of a database: cancelled, listened to, looked up (docs/api.md, Durability).

A plain run has no row while it is active, or none that names its viewers, and its events are in the memory
of its process. So a caller stores a request, and the process that has the run answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import uuid4

from astromesh.access.scopes import Viewer
from astromesh.durable.base import CancelRequest, EventRequest, RunRow, RunStore
from astromesh.durable.leases import PeriodicJob, cancel_and_wait
from astromesh.durable.run_registry import RunRegistry, event_not_reached, row_of, run_json
from astromesh.durable.run_worker import RunWorker
from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import AstromeshError, EventsGone, RunCrashed, RunNotFound, StoreError
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import PRIVATE_EVENTS, TERMINAL_EVENTS, EventSink, send_stored
from astromesh.telemetry.ids import created_at
from astromesh.telemetry.run_log import RunLog, RunLogs
from astromesh.types import Event, JsonObject, Usage

#: seconds between two polls for requests, between two for their answers
POLL_SECONDS, _ANSWER_POLL_SECONDS = 0.25, 0.05
#: seconds within which the process that has the run sees a request
SEEN_SECONDS = 1.5
#: seconds after which a request expires, and after which a run that has begun has ended
_REQUEST_SECONDS, _MAX_RUN_SECONDS = 30.0, 86_400.0
#: seconds between two polls for a run that may have ended elsewhere: its row is written a second later
_ARCHIVE_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.75)

T = TypeVar("T")

log = get_logger("astromesh.runs")


class RemoteCancel:
    """Cancel requests of this process to others, and of others to this one.

    Every process polls for requests while it has active runs. The process that has the run checks the viewer,
    ends the run, and stores the result as the answer. An idle process does not poll.

    Args:
        active: whether this process has active runs.
        flush_archive: returns when the rows of ended runs are in the store.
        timeout: seconds that a cancel waits for the end of the run.

    Attributes:
        also: Called with the store at each poll.
        polling: The polls. They end when no run is active; `watch` begins them again.
    """

    def __init__(
        self,
        durable: RunWorker,
        registry: RunRegistry,
        clock: Clock,
        active: Callable[[], bool],
        flush_archive: Callable[[], Awaitable[None]],
        timeout: float = 10.0,
    ) -> None:
        self._durable, self._registry, self._clock = durable, registry, clock
        self._flush_archive, self._timeout = flush_archive, timeout
        self.also: Callable[[RunStore], Awaitable[None]] | None = None
        self.polling = PeriodicJob(self._poll, POLL_SECONDS, _log_unread, needed=active)
        #: starts to poll, when a run has begun here, until no run is active; polls now
        self.watch, self.wake = self.polling.start, self.polling.wake
        self._ending: dict[str, asyncio.Task[None]] = {}

    # -- requests of other processes -----------------------------------------------------------------------

    async def close(self) -> None:
        await self.polling.close()
        for task in tuple(self._ending.values()):
            await cancel_and_wait(task)

    async def _poll(self) -> None:
        store = await self._durable.open_if_used()
        if store is None:
            return
        for request in await store.cancel_requests(self._clock.now() - _REQUEST_SECONDS):
            if request.id not in self._ending:
                await self._end(store, request)
        if self.also is not None:
            await self.also(store)

    async def _end(self, store: RunStore, request: CancelRequest) -> None:
        viewer = Viewer(request.tenant, request.owner)
        run = await self._registry.find(request.run_id, viewer, durable=True)
        if run is None:  # another process has it, or none
            return
        await self._registry.stop(run)
        self._ending[request.id] = task = asyncio.create_task(self._answer(store, request.id, run))
        task.add_done_callback(lambda _: self._ending.pop(request.id, None))

    async def _answer(self, store: RunStore, request_id: str, run: RunRow) -> None:
        try:
            await store.answer_cancel(request_id, None)
            line = run_json(await self._registry.ended(run))
            await self._flush_archive()
            await store.answer_cancel(request_id, line)
        except AstromeshError as error:  # the wait of the caller times out
            log.warning("cancel_not_answered", run_id=run.run_id, error=str(error))

    # -- requests to other processes -----------------------------------------------------------------------

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject | None:
        """Returns the run as another process has ended it, or None if none has it for this viewer."""
        store = await self._durable.open_if_used()
        if store is None:
            return None
        return await cancel_remotely(store, self._clock, run_id, viewer, self._timeout)

    async def retry_until_archived(self, run_id: str, lookup: Callable[[], Awaitable[T]]) -> T:
        """Looks a run up, and again while none is found: another process may be writing its row.

        Raises:
            RunNotFound: there is none, or it is still active in another process.
        """
        for pause in _ARCHIVE_PAUSES:
            try:
                return await lookup()
            except RunNotFound:
                if not may_be_new(self._clock, run_id):
                    raise
            await asyncio.sleep(pause)
        return await lookup()


async def cancel_remotely(
    store: RunStore, clock: Clock, run_id: str, viewer: Viewer, timeout: float
) -> JsonObject | None:
    """Requests that the process of a run ends it. Returns the run as it ended, or None if no process has it.

    Args:
        timeout: seconds to wait for the end of the run, after a process has seen the request.
    """
    if not may_be_new(clock, run_id):
        return None
    request = CancelRequest(f"{run_id}/{uuid4().hex}", *viewer)  # a stranger's neither replaces nor reads it
    await store.request_cancel(request)
    try:
        return await _wait_for_answer(store, request.id, timeout)
    finally:
        await asyncio.shield(store.delete_cancel(request.id, clock.now() - _REQUEST_SECONDS))


def may_be_new(clock: Clock, run_id: str) -> bool:
    """Whether a run of this id may be active, or have just ended."""
    return 0 <= clock.now() - created_at(run_id) + _REQUEST_SECONDS < _MAX_RUN_SECONDS


async def _wait_for_answer(store: RunStore, request_id: str, timeout: float) -> JsonObject | None:
    waited, seen = 0.0, False
    while waited < (timeout if seen else SEEN_SECONDS):
        await asyncio.sleep(_ANSWER_POLL_SECONDS)
        waited += _ANSWER_POLL_SECONDS
        seen, line = await store.cancel_answer(request_id)
        if line is not None:
            return line
    return None


def _log_unread(error: Exception) -> None:
    """The next poll may find the store available again."""
    log.warning("cancels_not_read", error=str(error))


#: seconds between two renewals of a request, and of its acceptance; seconds after which either is over
_RENEWAL_SECONDS, _SILENCE_SECONDS = 5.0, 20.0
#: seconds between two looks for an acceptance, and for new events where no notification comes
_ACCEPTANCE_POLL_SECONDS, _POLL_SECONDS, _HEARING_POLL_SECONDS = 0.05, 0.1, 2.0
#: seconds after which nobody waits for the state of a run
_LOOKUP_SECONDS = 30.0
#: seconds between two writes of events of one run; events of one read
_WRITE_SECONDS, _PAGE = 0.025, 1000


class RemoteEvents:
    """Requests for events of this process to others, and of others to this one.

    A process whose reader wants the events of a run stores a request, and renews it. The process that has the
    run checks the viewer, and writes the run's events into a table as long as there are such requests. They
    are deleted soon afterwards. A question for the state of a run is answered once.

    Args:
        logs: the runs of this process.
    """

    def __init__(self, durable: RunWorker, logs: RunLogs, clock: Clock) -> None:
        self._durable, self._logs, self._clock = durable, logs, clock
        self._publications: dict[str, _Publication] = {}
        self._accepted: dict[EventRequest, float] = {}

    async def close(self) -> None:
        for publication in tuple(self._publications.values()):
            await publication.close()

    # -- requests of other processes -----------------------------------------------------------------------

    async def poll(self, store: RunStore) -> None:
        """Writes the events of runs of this process that others ask for, and of no others."""
        await self._answer_states(store)
        requests = await store.event_requests(self._clock.now() - _SILENCE_SECONDS)
        found = {one: log for one in requests if (log := self._visible(one)) is not None}
        for request, log in found.items():
            await self._accept(store, request, log)
        self._accepted = {one: at for one, at in self._accepted.items() if one in found}
        run_ids = {one.run_id for one in found}
        for run_id in self._publications.keys() - run_ids:
            await self._publications.pop(run_id).close()

    async def _answer_states(self, store: RunStore) -> None:
        for lookup, request in await store.state_requests(self._clock.now() - _LOOKUP_SECONDS):
            log = self._logs.find(request.run_id)
            if log is not None and not log.durable and log.visible(request.tenant, request.owner or None):
                await store.answer_state(lookup, run_json(row_of(log)))

    def _visible(self, request: EventRequest) -> RunLog | None:
        log = self._logs.find(request.run_id)
        if log is None or log.durable or not log.visible(request.tenant, request.owner or None):
            return None
        return log if log.stream is not None or request.run_id in self._publications else None

    async def _accept(self, store: RunStore, request: EventRequest, log: RunLog) -> None:
        publication = self._publications.get(request.run_id)
        if publication is None:
            publish = partial(self._durable.publish, request.run_id)
            publication = self._publications[request.run_id] = _Publication(store, log, publish)
            await publication.start()
        now = self._clock.now()
        if now - self._accepted.get(request, 0.0) >= _RENEWAL_SECONDS:
            self._accepted[request] = now
            await store.accept_events(request, now, publication.since)

    # -- requests to other processes -----------------------------------------------------------------------

    async def state(
        self, run_id: str, viewer: Viewer, may_be_elsewhere: Callable[[], Awaitable[bool]]
    ) -> JsonObject | None:
        """Returns a run as the process that has it shows it; None if none has it for this viewer.

        Args:
            may_be_elsewhere: whether some process may still answer.
        """
        store = await self._durable.open_if_used()
        if store is None or not may_be_new(self._clock, run_id):
            return None
        lookup, now = uuid4().hex, self._clock.now()
        await store.request_state(lookup, EventRequest(run_id, viewer.tenant, viewer.owner or ""), now)
        try:
            self._durable.publish(run_id, 0)
            return await _answer_of(store, lookup, may_be_elsewhere)
        finally:
            await asyncio.shield(store.delete_lookup(lookup, now - _LOOKUP_SECONDS))

    async def follow(
        self,
        run_id: str,
        viewer: Viewer,
        after: int,
        sink: EventSink,
        may_be_elsewhere: Callable[[], Awaitable[bool]],
    ) -> Callable[[], None] | None:
        """Sends the events after `after`, then new ones. Returns None if nobody has the run for this viewer.

        Args:
            may_be_elsewhere: whether some process may still accept the request.

        Raises:
            EventsGone: events after `after` are no longer stored.
            InvalidInput: the run has no event `after`.
        """
        store = await self._durable.open_if_used()
        if store is None or not may_be_new(self._clock, run_id):
            return None
        reader = _Reader(self._durable, store, EventRequest(run_id, viewer.tenant, viewer.owner or ""), sink)
        return await reader.start(after, self._clock, may_be_elsewhere)


async def _answer_of(
    store: RunStore, id: str, may_be_elsewhere: Callable[[], Awaitable[bool]]
) -> JsonObject | None:
    for number in range(1, int(SEEN_SECONDS / _ACCEPTANCE_POLL_SECONDS)):
        await asyncio.sleep(_ACCEPTANCE_POLL_SECONDS)
        if (answer := await store.state_answer(id)) is not None:
            return answer
        if number % 5 == 0 and not await may_be_elsewhere():
            return None
    return None


class _Publication:
    """The events of one run of this process on their way into the table.

    Attributes:
        since: The number of the last event that is no longer there.
    """

    wants_deltas = True

    def __init__(self, store: RunStore, log: RunLog, publish: Callable[[int], None]) -> None:
        self._store, self._log, self._publish = store, log, publish
        self.since = log.dropped_through
        self._pending: list[Event] = []
        self._news = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def send(self, event: Event) -> None:
        if event.type not in PRIVATE_EVENTS:
            self._pending.append(event)
            self._news.set()

    async def start(self) -> None:
        """Writes what there is, then what comes until the run ends."""
        for event in self._log.after(self.since):
            self.send(event)
        if self._log.stream is not None:
            self._log.stream.add(self)
        has_ended = await self._write()
        if not has_ended:
            self._writing = asyncio.create_task(self._write_until_end())

    async def close(self) -> None:
        if self._log.stream is not None:
            self._log.stream.remove(self)
        await cancel_and_wait(self._writing)

    async def _write_until_end(self) -> None:
        while True:
            await self._news.wait()
            if await self._write():
                return
            await asyncio.sleep(_WRITE_SECONDS)

    async def _write(self) -> bool:
        """Returns whether the run has ended."""
        self._news.clear()
        events, self._pending = self._pending, []
        if not events:
            return False
        await retry_while_unavailable(partial(self._store.write_heard, events))
        self._publish(events[-1].seq)
        return events[-1].type in TERMINAL_EVENTS


class _Reader:
    """One listener to a plain run of another process."""

    def __init__(self, durable: RunWorker, store: RunStore, request: EventRequest, sink: EventSink) -> None:
        self._durable, self._store, self._request, self._sink = durable, store, request, sink
        self._after = 0
        self._has_ended = False
        self._renewed_at = 0.0

    async def start(
        self, after: int, clock: Clock, may_be_elsewhere: Callable[[], Awaitable[bool]]
    ) -> Callable[[], None] | None:
        await self._renew(clock)
        self._durable.publish(self._request.run_id, 0)
        accepted = await self._wait_for_acceptance(may_be_elsewhere)
        if accepted is None:
            return None
        await self._check(after, accepted)
        self._after = after
        task = asyncio.create_task(self._follow(clock))
        return task.cancel  # type: ignore[return-value]

    async def _wait_for_acceptance(self, may_be_elsewhere: Callable[[], Awaitable[bool]]) -> int | None:
        """Returns the number of the last event that is no longer there; None: nobody has the run."""
        for number in range(1, int(SEEN_SECONDS / _ACCEPTANCE_POLL_SECONDS)):
            await asyncio.sleep(_ACCEPTANCE_POLL_SECONDS)
            accepted_at, since = await self._store.events_accepted(self._request)
            if accepted_at:
                return since
            if number % 5 == 0 and not await may_be_elsewhere():
                return None
        return None

    async def _check(self, after: int, since: int) -> None:
        run_id = self._request.run_id
        if after < since:
            raise EventsGone(f"Events up to {since} of this run are no longer stored. Read those after it.")
        if after and not await self._store.heard(run_id, after - 1, 1):
            raise event_not_reached(run_id, after, has_ended=False)

    async def _renew(self, clock: Clock) -> None:
        self._renewed_at = clock.now()
        await self._store.request_events(self._request, self._renewed_at)

    async def _follow(self, clock: Clock) -> None:
        news = asyncio.Event()
        leave = self._durable.listen(self._request.run_id, news)
        try:
            while not self._has_ended:
                news.clear()
                with suppress(StoreError):  # it may be there again
                    await self._read()
                    await self._look_after(clock)
                if not self._has_ended:
                    await self._wait(news)
        finally:
            leave()

    async def _wait(self, news: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(
                _HEARING_POLL_SECONDS if self._durable.hears_others else _POLL_SECONDS
            ):
                await news.wait()

    async def _read(self) -> None:
        while page := await self._store.heard(self._request.run_id, self._after, _PAGE):
            await send_stored(page, self._sink)
            self._after, self._has_ended = page[-1].seq, page[-1].type in TERMINAL_EVENTS

    async def _look_after(self, clock: Clock) -> None:
        """Renews the request, and ends when the process of the run does not renew its acceptance."""
        if self._has_ended or clock.now() - self._renewed_at < _RENEWAL_SECONDS:
            return
        await self._renew(clock)
        accepted_at, _ = await self._store.events_accepted(self._request)
        if clock.now() - accepted_at > _SILENCE_SECONDS:
            detail, usage = "The process of the run has died.", Usage().to_json()
            failure = {"code": RunCrashed.code, "detail": detail, "response": "", "usage": usage}
            self._sink.send(Event(self._request.run_id, self._after + 1, clock.now(), "run.failed", failure))
            self._has_ended = True
