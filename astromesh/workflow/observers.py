"""Plugins of a workflow: read-only observers, which can neither delay nor change a Task.

A plugin is a class `module.Name` that is created with its `config`. It has `observe(event)`, a function or a
coroutine, and optionally `close()`. Each plugin has its own queue and receives every event, in order, as a
frozen copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from astromesh.config.workflow import ObserverSpec
from astromesh.config.workflow_folder import WorkflowFolder
from astromesh.errors import described, is_failure
from astromesh.graph.state import FrozenDict, FrozenList
from astromesh.logs import get_logger
from astromesh.types import JsonObject
from astromesh.workflow.operations import call_function
from astromesh.workflow.snapshot import CODE_CHANGED
from astromesh.workflow.validation import enabled_observers, observer_class

#: events that wait for a slow plugin; a further event drops the oldest, which is logged
MAX_QUEUED_EVENTS = 10_000
#: seconds that closing a workflow waits for its observers
CLOSE_TIMEOUT = 10.0

log = get_logger("astromesh.workflows")


class Observers:
    """The observers of one workflow; used in one event loop.

    Args:
        folder: a valid one.
    """

    def __init__(self, folder: WorkflowFolder) -> None:
        self._observers = [
            _ObserverQueue(spec, _create_observer(folder, spec)) for spec in enabled_observers(folder)
        ]

    def __bool__(self) -> bool:
        return bool(self._observers)

    def notify(self, workflow: str, task_id: str, record: JsonObject) -> None:
        """Queues a copy of a stored record, as an event, for each observer; never waits or raises."""
        if self._observers and (kind := RECORD_EVENTS.get(record["type"])):
            event = {**record, "task_id": task_id, "workflow": workflow, "type": kind}
            encoded = orjson.dumps(event)
            for observer in self._observers:
                observer.notify(encoded)

    async def drain(self) -> None:
        """Waits until each observer has received every event so far."""
        for observer in self._observers:
            await observer.drain()

    async def close(self) -> None:
        for observer in self._observers:
            await observer.close()


#: type of a record → event that observers receive; other records are not theirs
RECORD_EVENTS: Mapping[str, str] = {
    "begin": "task.started",
    "stage": "stage.finished",
    CODE_CHANGED: "task.code_changed",
    "cancel": "task.cancelled",
    "end": "task.finished",
}


class _ObserverQueue:
    def __init__(self, spec: ObserverSpec, plugin: Any) -> None:
        self._id, self._plugin = spec.id, plugin
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED_EVENTS)
        self._task: asyncio.Task[None] | None = None

    def notify(self, event: bytes) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._deliver())
        if self._queue.full():
            self._queue.get_nowait()
            self._queue.task_done()
            log.warning("observer_too_slow", plugin=self._id)
        self._queue.put_nowait(event)

    async def drain(self, timeout: float | None = None) -> None:
        """Waits until the queue is empty.

        Args:
            timeout: seconds; None: no limit.
        """
        if self._task is None:
            return
        emptied = asyncio.create_task(self._queue.join())
        # waits for the task too: a task that has died never empties its queue
        await asyncio.wait([emptied, self._task], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not emptied.done():
            emptied.cancel()
            log.warning("observer_left_behind", plugin=self._id, events=self._queue.qsize())

    async def close(self) -> None:
        await self.drain(CLOSE_TIMEOUT)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        close = getattr(self._plugin, "close", None)
        if close is not None:
            await self._call_safely(close)

    async def _deliver(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._call_safely(self._plugin.observe, freeze(orjson.loads(event)))
            finally:
                self._queue.task_done()

    async def _call_safely(self, function: Any, *arguments: Any) -> None:
        try:
            await call_function(function, *arguments)
        except BaseException as error:  # foreign code: a plugin observer
            if not is_failure(error):
                raise
            log.warning("observer_failed", plugin=self._id, error=described(error))


def freeze(value: Any) -> Any:
    """Returns an immutable copy of a JSON value."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze(one) for key, one in value.items()})
    return FrozenList([freeze(one) for one in value]) if isinstance(value, list) else value


def _create_observer(folder: WorkflowFolder, spec: ObserverSpec) -> Any:
    return observer_class(folder, spec)(dict(spec.config))
