"""Cancels runs that live in another process of the same database (api.md, Durability).

A run that is not durable has no row while it is active, or none that names its viewers. So a caller stores
a cancel request. Every process polls for requests while it has active runs. The process that has the run
checks the viewer, ends the run, and stores the result as the answer. An idle process does not poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from astromesh.access.scopes import Viewer
from astromesh.durable.base import CancelRequest, RunRow, RunStore
from astromesh.durable.run_registry import RunRegistry, run_json
from astromesh.durable.run_worker import RunWorker
from astromesh.errors import AstromeshError, RunNotFound
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.ids import created_at
from astromesh.types import JsonObject

#: seconds between two polls for requests, between two for their answers
POLL_SECONDS, _ANSWER_POLL_SECONDS = 0.25, 0.05
#: seconds in which a process has seen a request, if one has the run
SEEN_SECONDS = 1.5
#: seconds after which a request is nobody's any more, and after its beginning a run has ended for sure
_REQUEST_SECONDS, _MAX_RUN_SECONDS = 30.0, 86_400.0
#: seconds between two polls for a run that may have ended elsewhere: its note is a second late
_ARCHIVE_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.75)

T = TypeVar("T")

log = structlog.get_logger("astromesh.runs")


class RemoteCancel:
    """Cancel requests of this process to others, and of others to this one.

    Args:
        active: whether this process has active runs.
        noted: waits until the rows of ended runs are in the store.
        patience: seconds that a cancel waits for the run's end.
    """

    def __init__(
        self,
        durable: RunWorker,
        registry: RunRegistry,
        clock: Clock,
        active: Callable[[], bool],
        noted: Callable[[], Awaitable[None]],
        patience: float = 10.0,
    ) -> None:
        self._durable, self._registry, self._clock, self._active = durable, registry, clock, active
        self._flush_archive, self._patience = noted, patience
        self._polling: asyncio.Task[None] | None = None
        self._ending: dict[str, asyncio.Task[None]] = {}

    # -- asked by others -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """A run has begun here: looks for requests for as long as any continues."""
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        tasks = [task for task in (self._polling, *self._ending.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _poll(self) -> None:
        try:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                if not self._active():
                    return
                await self._poll_once()
        finally:
            self._polling = None

    async def _poll_once(self) -> None:
        try:
            store = await self._durable.open_if_used()
            asked = (
                await store.cancel_requests(self._clock.now() - _REQUEST_SECONDS) if store is not None else ()
            )
        except AstromeshError as error:  # the next look may find the store again
            log.warning("cancels_not_read", error=str(error))
            return
        for one in asked:
            if store is not None and one.run_id not in self._ending:
                await self._end(store, one)

    async def _end(self, store: RunStore, request: CancelRequest) -> None:
        run_id, viewer = request.run_id, Viewer(request.tenant, request.owner)
        run = await self._registry.find(run_id, viewer, durable=True)
        if run is None:  # another process has it, or nobody
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
        except AstromeshError as error:  # who asked gives up waiting
            log.warning("cancel_not_answered", run_id=run.run_id, error=str(error))

    # -- asking others -------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject | None:
        """The run as it has ended in another process; None where none has it, or not for this viewer."""
        store = await self._durable.open_if_used()
        if store is None:
            return None
        return await cancel_remotely(store, self._clock, run_id, viewer, self._patience)

    async def retry_until_archived(self, run_id: str, lookup: Callable[[], Awaitable[T]]) -> T:
        """Asks about a run, again where none is found: its note may be on its way from another process.

        Raises:
            RunNotFound: there is none, or it still continues elsewhere.
        """
        for pause in _ARCHIVE_PAUSES:
            try:
                return await lookup()
            except RunNotFound:
                if not _may_be_new(self._clock, run_id):
                    raise
            await asyncio.sleep(pause)
        return await lookup()


async def cancel_remotely(
    store: RunStore, clock: Clock, run_id: str, viewer: Viewer, patience: float
) -> JsonObject | None:
    """Asks whatever process has a run to end it; the run as it ended, None where none has it.

    Args:
        patience: seconds to wait for the run's end, once a process has seen the request.
    """
    if not _may_be_new(clock, run_id):
        return None
    await store.request_cancel(run_id, *viewer)
    try:
        return await _wait_for_answer(store, run_id, patience)
    finally:
        await asyncio.shield(store.delete_cancel(run_id, clock.now() - _REQUEST_SECONDS))


def _may_be_new(clock: Clock, run_id: str) -> bool:
    """Whether a run of this id may go on, or have ended just now."""
    return 0 <= clock.now() - created_at(run_id) + _REQUEST_SECONDS < _MAX_RUN_SECONDS


async def _wait_for_answer(store: RunStore, run_id: str, patience: float) -> JsonObject | None:
    waited, seen = 0.0, False
    while waited < (patience if seen else SEEN_SECONDS):
        await asyncio.sleep(_ANSWER_POLL_SECONDS)
        waited += _ANSWER_POLL_SECONDS
        seen, line = await store.cancel_answer(run_id)
        if line is not None:
            return line
    return None
