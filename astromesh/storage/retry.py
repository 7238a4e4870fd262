"""Retries calls to a server that is unavailable, and finishes writes whose caller was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25

#: the error of a text that UTF-8 cannot encode, for every database
NOT_TEXT = "The text has half of a surrogate pair, which is not a character."


class NotSent(Exception):
    """No connection was available. Nothing was sent, so a retry is harmless.

    Args:
        cause: the error of the library.
    """

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


async def retry_until_deadline(
    work: Callable[[], Awaitable[T]],
    foreign: tuple[type[BaseException], ...],
    may_retry: Callable[[BaseException], bool],
    deadline: float,
) -> T:
    """Repeats `work` until it succeeds, fails for good, or the deadline passes.

    A cancellation that the library swallows still ends it: `asyncio.wait_for` of Python 3.11 drops one that
    arrives together with the result.

    Args:
        foreign: the exceptions of the library.
        may_retry: whether a retry is harmless and may succeed.
        deadline: seconds for all attempts.

    Raises:
        TimeoutError: no answer arrived before the deadline.
        BaseException: the last failure.
    """
    pause, last = FIRST_PAUSE, None
    caller = asyncio.current_task()
    assert caller is not None
    cancels = caller.cancelling()
    known: tuple[type[BaseException], ...] = (NotSent, *foreign)
    try:
        async with asyncio.timeout(deadline):
            while True:
                try:
                    return await work()
                except known as error:
                    last = error.cause if isinstance(error, NotSent) else error
                    if not may_retry(error):
                        raise last from last.__cause__
                finally:
                    if caller.cancelling() > cancels:
                        raise asyncio.CancelledError
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
    except TimeoutError:
        if last is not None:
            raise last from last.__cause__
        raise


class ShieldedTasks:
    """Tasks that continue when their caller is cancelled. `settle` waits for those that run."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._begin(work))

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Like `run`, but a cancelled caller still receives the result. A second cancel stops the wait."""
        task = self._begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            return await asyncio.shield(task)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def settle(self) -> None:
        while self._running:  # `gather` of tasks that have ended would not let `_ended` run (Python 3.12)
            await asyncio.wait(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: its caller may be gone
