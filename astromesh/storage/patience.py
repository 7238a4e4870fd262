"""Waiting for a server that is away, and finishing what was begun: what the network stores share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25


class NotSent(Exception):
    """There was no connection: nothing was sent, so that another try is harmless.

    Args:
        cause: what the library said.
    """

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


async def persistent(
    work: Callable[[], Awaitable[T]],
    foreign: tuple[type[BaseException], ...],
    again: Callable[[BaseException], bool],
    deadline: float,
) -> T:
    """Does `work` until it works, it fails in another way, or the deadline has passed.

    Args:
        foreign: what the library raises.
        again: whether the same work may be done again and may work in a moment.
        deadline: seconds for everything.

    Raises:
        TimeoutError: nothing but silence until the deadline.
        BaseException: the last failure.
    """
    pause, last = FIRST_PAUSE, None
    known: tuple[type[BaseException], ...] = (NotSent, *foreign)
    try:
        async with asyncio.timeout(deadline):
            while True:
                try:
                    return await work()
                except known as error:
                    last = error.cause if isinstance(error, NotSent) else error
                    if not again(error):
                        raise last from last.__cause__
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
    except TimeoutError:
        if last is not None:
            raise last from last.__cause__
        raise


class Unbroken:
    """Work that a cancel of its caller does not stop half-way; `settle` waits for what still runs."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._begin(work))

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """`run` whose cancelled caller is told all the same what came of it; a second cancel lets go."""
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
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: its caller may be gone
