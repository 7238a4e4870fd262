"""Plugins of a workflow: read-only observers (workflow.md E59). None of them can hold a Task up or change it.

A plugin is a class `module.Name` that is made with its `config` and has `observe(event)`, a function or a
coroutine; perhaps `close()`. Each has a queue of its own: it gets every event, in order, as a frozen copy.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import structlog

from astromesh.config.workflow.load import WorkflowFolder
from astromesh.config.workflow.operations import ObserverSpec
from astromesh.graph.containers import FrozenDict, FrozenList
from astromesh.types import JsonObject
from astromesh.workflow.observing import class_of, enabled
from astromesh.workflow.tools import called

#: events that wait for a slow plugin; the oldest are dropped beyond it, which is logged
MOST = 10_000
#: seconds that a workflow which is closed waits for its observers
PATIENCE = 10.0

log = structlog.get_logger("astromesh.workflows")


class Observers:
    """The observers of one workflow; used in one event loop.

    Args:
        folder: a sound one.
    """

    def __init__(self, folder: WorkflowFolder) -> None:
        self._observers = [_Observer(spec, _made(folder, spec)) for spec in enabled(folder)]

    def tell(self, event: JsonObject) -> None:
        """Queues a copy for each; never waits, never raises."""
        if self._observers:
            told = orjson.dumps(event)
            for observer in self._observers:
                observer.tell(told)

    async def settled(self) -> None:
        """Answers when each has seen all that was told so far."""
        for observer in self._observers:
            await observer.settled()

    async def close(self) -> None:
        for observer in self._observers:
            await observer.close()


class _Observer:
    def __init__(self, spec: ObserverSpec, plugin: Any) -> None:
        self._id, self._plugin = spec.id, plugin
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MOST)
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: bytes) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        if self._queue.full():
            self._queue.get_nowait()
            self._queue.task_done()
            log.warning("observer_too_slow", plugin=self._id)
        self._queue.put_nowait(event)

    async def settled(self, patience: float | None = None) -> None:
        """Args: patience: seconds; None: as long as it takes."""
        if self._task is None:
            return
        seen = asyncio.create_task(self._queue.join())
        # not only for the queue: whoever has died will never empty it
        await asyncio.wait([seen, self._task], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not seen.done():
            seen.cancel()
            log.warning("observer_left_behind", plugin=self._id, events=self._queue.qsize())

    async def close(self) -> None:
        await self.settled(PATIENCE)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        close = getattr(self._plugin, "close", None)
        if close is not None:
            await self._isolated(close)

    async def _work(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._isolated(self._plugin.observe, frozen(orjson.loads(event)))
            finally:
                self._queue.task_done()

    async def _isolated(self, function: Any, *arguments: Any) -> None:
        try:
            await called(function, *arguments)
        except Exception as error:  # noqa: BLE001 (the border of a plugin observer)
            log.warning("observer_failed", plugin=self._id, error=f"{type(error).__name__}: {error}")


def frozen(value: Any) -> Any:
    """A JSON value that cannot be changed."""
    if isinstance(value, dict):
        return FrozenDict({key: frozen(one) for key, one in value.items()})
    return FrozenList([frozen(one) for one in value]) if isinstance(value, list) else value


def _made(folder: WorkflowFolder, spec: ObserverSpec) -> Any:
    return class_of(folder, spec)(dict(spec.config))
