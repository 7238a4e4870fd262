"""Ending runs that live in another process of the same database (api.md section 1).

A run that is not durable has no row while it goes on, or none that says what its viewers may. So its process
is asked: whoever wants its end leaves a request in the store; every process looks for requests while runs go
on in it, and the one that has the run, and finds that it is the viewer's, ends it and says what became of it.
A process in which nothing runs does not look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from astromesh.abc.clock import Clock
from astromesh.abc.durable import EndAsked, RunStore
from astromesh.errors import AstromeshError, EventsGone, RunNotFound
from astromesh.runtime.durable import DurableRuns
from astromesh.runtime.ids import made_at
from astromesh.runtime.registry import RunRegistry, Viewer
from astromesh.types import JsonObject

#: seconds between two looks for requests, between two for their answers
LOOK, _LISTEN = 0.25, 0.05
#: seconds in which a process has seen a request, if one has the run
SEEN = 1.5
#: seconds after which a request is nobody's any more, and after its beginning a run has ended for sure
_FORGOTTEN, _OLDEST = 30.0, 86_400.0
#: seconds between two looks for a run that may have ended elsewhere: its note is a second late
_NOTED = (0.05, 0.1, 0.2, 0.4, 0.75)

T = TypeVar("T")

log = structlog.get_logger("astromesh.runs")


class Elsewhere:
    """Requests to end runs, from this process to others and from others to it.

    Args:
        active: whether runs go on here.
        noted: waits until the rows of ended runs are in the store.
        patience: seconds that a cancel waits for the run's end.
    """

    def __init__(
        self,
        durable: DurableRuns,
        registry: RunRegistry,
        clock: Clock,
        active: Callable[[], bool],
        noted: Callable[[], Awaitable[None]],
        patience: float = 10.0,
    ) -> None:
        self._durable, self._registry, self._clock, self._active = durable, registry, clock, active
        self._noted, self._patience = noted, patience
        self._looking: asyncio.Task[None] | None = None
        self._ending: dict[str, asyncio.Task[None]] = {}

    # -- asked by others -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """A run has begun here: looks for requests for as long as any goes on."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        tasks = [task for task in (self._looking, *self._ending.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look(self) -> None:
        try:
            while True:
                await asyncio.sleep(LOOK)
                if not self._active():
                    return
                await self._look_once()
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        try:
            store = await self._durable.reach()
            asked = await store.ends_asked(self._clock.now() - _FORGOTTEN) if store is not None else ()
        except AstromeshError as error:  # the next look may find the store again
            log.warning("cancels_not_read", error=str(error))
            return
        for one in asked:
            if store is not None and one.run_id not in self._ending:
                self._end(store, one)

    def _end(self, store: RunStore, asked: EndAsked) -> None:
        viewer = Viewer(asked.tenant, asked.owner)
        try:
            self._registry.stop(asked.run_id, viewer)
        except (RunNotFound, EventsGone):  # another process has it, or nobody
            return
        task = asyncio.create_task(self._answer(store, asked.run_id, viewer))
        self._ending[asked.run_id] = task
        task.add_done_callback(lambda _: self._ending.pop(asked.run_id, None))

    async def _answer(self, store: RunStore, run_id: str, viewer: Viewer) -> None:
        try:
            await store.answer_end(run_id, None)
            line = await self._registry.cancel(run_id, viewer)
            await self._noted()
            await store.answer_end(run_id, line)
        except AstromeshError as error:  # who asked gives up waiting
            log.warning("cancel_not_answered", run_id=run_id, error=str(error))

    # -- asking others -------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject | None:
        """The run as it has ended in another process; None where none has it, or not for this viewer."""
        store = await self._durable.reach()
        if store is None:
            return None
        return await end_elsewhere(store, self._clock, run_id, viewer, self._patience)

    async def once_noted(self, run_id: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Asks about a run, again where none is found: its note may be on its way from another process.

        Raises:
            RunNotFound: there is none, or it still goes on elsewhere.
        """
        for pause in _NOTED:
            try:
                return await ask()
            except RunNotFound:
                if not _may_be_new(self._clock, run_id):
                    raise
            await asyncio.sleep(pause)
        return await ask()


async def end_elsewhere(
    store: RunStore, clock: Clock, run_id: str, viewer: Viewer, patience: float
) -> JsonObject | None:
    """Asks whatever process has a run to end it; the run as it ended, None where none has it.

    Args:
        patience: seconds to wait for the run's end, once a process has seen the request.
    """
    if not _may_be_new(clock, run_id):
        return None
    await store.ask_end(run_id, *viewer)
    try:
        return await _told(store, run_id, patience)
    finally:
        await asyncio.shield(store.forget_end(run_id, clock.now() - _FORGOTTEN))


def _may_be_new(clock: Clock, run_id: str) -> bool:
    """Whether a run of this id may go on, or have ended just now."""
    return 0 <= clock.now() - made_at(run_id) + _FORGOTTEN < _OLDEST


async def _told(store: RunStore, run_id: str, patience: float) -> JsonObject | None:
    waited, seen = 0.0, False
    while waited < (patience if seen else SEEN):
        await asyncio.sleep(_LISTEN)
        waited += _LISTEN
        seen, line = await store.end_answered(run_id)
        if line is not None:
            return line
    return None
