"""Coroutines that others wrote, each in a task of its own, so that none keeps who called it.

asyncio asks a task to end and waits until it does, for ever where the task swallows the request: no deadline
holds then, no cancel, and no process ends. Here who is cancelled asks, waits a moment, and leaves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

#: seconds in which a cancelled coroutine tidies up before it is left behind
MOMENT = 0.5

Outcome: TypeAlias = tuple[Any, BaseException | None]


class OwnTasks:
    """Args: moment: seconds that a cancelled coroutine has to end."""

    def __init__(self, moment: float = MOMENT) -> None:
        self._moment = moment
        self._left: dict[asyncio.Task[None], object] = {}
        self._kept = False

    def hanging(self, function: object) -> int:
        """Calls of a function that were left behind and go on."""
        return sum(one is function for one in list(self._left.values())) if self._left else 0

    async def run(
        self, call: Callable[[], Awaitable[Any]], function: object, on_left: Callable[..., None], *told: Any
    ) -> Any:
        """What `call` answers or raises.

        Args:
            function: what is called.
            on_left: called with `told` where the call goes on although its caller was cancelled.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome] = loop.create_future()
        task = loop.create_task(_outcome(call, ended))
        try:
            value, error = await ended
        except asyncio.CancelledError:
            task.cancel()
            try:
                await asyncio.wait((task,), timeout=self._moment)
            finally:  # cancelled once more: there is no moment left
                if not task.done():
                    self._leave(task, function)
                    on_left(*told)
            raise
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def _leave(self, task: asyncio.Task[None], function: object) -> None:
        self._left[task] = function
        task.add_done_callback(self._came_back)
        # an event loop that closes waits for every task it knows
        asyncio.tasks._unregister_task(task)  # noqa: SLF001  public to who writes event loops
        if not self._kept:
            self._kept = True
            threading.Thread(target=_keep, args=(self._left,), name="astromesh-left", daemon=True).start()

    def _came_back(self, task: asyncio.Task[None]) -> None:
        self._left.pop(task, None)


def _keep(_left: object) -> None:
    """Holds on to what was left behind until the process is over.

    A coroutine that is thrown away is asked to end once more, by the thread that does so; one that swallows
    that as well would never let it go. What a daemon thread holds is not thrown away when Python ends.
    """
    threading.Event().wait()


async def _outcome(call: Callable[[], Awaitable[Any]], ended: asyncio.Future[Outcome]) -> None:
    """Tells what came out of it; raised here, a `SystemExit` would end the event loop."""
    try:
        _tell(ended, (await call(), None))
    except GeneratorExit as raised:  # cannot be raised through a coroutine
        error = RuntimeError("raised GeneratorExit")
        error.__cause__ = raised
        _tell(ended, (None, error))
    except BaseException as raised:  # noqa: BLE001 (handed to the caller)
        _tell(ended, (None, raised))


def _tell(ended: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not ended.done():
        ended.set_result(outcome)
