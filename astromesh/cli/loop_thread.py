"""An event loop in a thread of its own, for commands that wait for a terminal in the main thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from astromesh.cli.event_loop import EventLoop

T = TypeVar("T")


class LoopThread:
    """A context manager. The loop runs from its start to its end, also between two calls of `run`."""

    def __init__(self) -> None:
        self._thread = Thread(target=self._serve, name="event loop", daemon=True)
        self._opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._stopped = self._opened.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end and returns its result.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; the coroutine has been cancelled, and has ended.
        """
        task = self._started(work)
        done: Future[T] = Future()
        self._loop.call_soon_threadsafe(task.add_done_callback, lambda ended: _relay(ended, done))
        try:
            return done.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(task.cancel)
            with suppress(BaseException):  # it may have failed meanwhile; a second Ctrl-C ends the wait
                done.result()
            raise

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        made: Future[asyncio.Task[T]] = Future()
        self._loop.call_soon_threadsafe(lambda: made.set_result(self._loop.create_task(work)))
        return made.result()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        stopped = asyncio.Event()
        self._opened.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()


def _relay(ended: asyncio.Task[T], done: Future[T]) -> None:
    if ended.cancelled():
        done.set_exception(asyncio.CancelledError())
    elif (error := ended.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(ended.result())
