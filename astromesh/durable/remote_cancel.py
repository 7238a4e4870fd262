"""Cancels plain runs of another process of the same database (docs/api.md, Durability).

A plain run has no row while it is active, or none that names its viewers. So a caller stores a cancel
request. Every process polls for requests while it has active runs. The process that has the run checks the
viewer, ends the run, and stores the result as the answer. An idle process does not poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from astromesh.access.scopes import Viewer
from astromesh.durable.base import CancelRequest, RunRow, RunStore
from astromesh.durable.leases import PeriodicJob, cancel_and_wait
from astromesh.durable.run_registry import RunRegistry, run_json
from astromesh.durable.run_worker import RunWorker
from astromesh.errors import AstromeshError, RunNotFound
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.ids import created_at
from astromesh.types import JsonObject

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

    Args:
        active: whether this process has active runs.
        flush_archive: returns when the rows of ended runs are in the store.
        timeout: seconds that a cancel waits for the end of the run.

    Attributes:
        also: Called with the store at each poll.
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
        self._polling = PeriodicJob(self._poll, POLL_SECONDS, _log_unread, needed=active)
        #: starts to poll, when a run has begun here, until no run is active; polls now
        self.watch, self.wake = self._polling.start, self._polling.wake
        self._ending: dict[str, asyncio.Task[None]] = {}

    # -- requests of other processes -----------------------------------------------------------------------

    async def close(self) -> None:
        await self._polling.close()
        for task in tuple(self._ending.values()):
            await cancel_and_wait(task)

    async def _poll(self) -> None:
        store = await self._durable.open_if_used()
        if store is None:
            return
        for request in await store.cancel_requests(self._clock.now() - _REQUEST_SECONDS):
            if request.run_id not in self._ending:
                await self._end(store, request)
        if self.also is not None:
            await self.also(store)

    async def _end(self, store: RunStore, request: CancelRequest) -> None:
        run_id, viewer = request.run_id, Viewer(request.tenant, request.owner)
        run = await self._registry.find(run_id, viewer, durable=True)
        if run is None:  # another process has it, or none
            return
        await self._registry.stop(run)
        self._ending[run_id] = task = asyncio.create_task(self._answer(store, run))
        task.add_done_callback(lambda _: self._ending.pop(run_id, None))

    async def _answer(self, store: RunStore, run: RunRow) -> None:
        try:
            await store.answer_cancel(run.run_id, None)
            line = run_json(await self._registry.ended(run))
            await self._flush_archive()
            await store.answer_cancel(run.run_id, line)
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
    await store.request_cancel(run_id, *viewer)
    try:
        return await _wait_for_answer(store, run_id, timeout)
    finally:
        await asyncio.shield(store.delete_cancel(run_id, clock.now() - _REQUEST_SECONDS))


def may_be_new(clock: Clock, run_id: str) -> bool:
    """Whether a run of this id may be active, or have just ended."""
    return 0 <= clock.now() - created_at(run_id) + _REQUEST_SECONDS < _MAX_RUN_SECONDS


async def _wait_for_answer(store: RunStore, run_id: str, timeout: float) -> JsonObject | None:
    waited, seen = 0.0, False
    while waited < (timeout if seen else SEEN_SECONDS):
        await asyncio.sleep(_ANSWER_POLL_SECONDS)
        waited += _ANSWER_POLL_SECONDS
        seen, line = await store.cancel_answer(run_id)
        if line is not None:
            return line
    return None


def _log_unread(error: Exception) -> None:
    """The next poll may find the store available again."""
    log.warning("cancels_not_read", error=str(error))
