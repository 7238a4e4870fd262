"""Threads for functions that block, bounded, and abandoned at exit.

`concurrent.futures` waits at exit for every thread, so that one hanging tool would keep a server from ending;
and a `StopIteration` leaves its caller waiting for ever. Threads are started by the first calls and kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Job(NamedTuple):
    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Threads:
    """Args: most: threads that are ever started; further calls wait. name: of the threads."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._starting = threading.Lock()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """What `call` answers or raises. Cancelling stops a call that waits, and leaves one that runs."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._jobs.put(_Job(call, loop, future))
        if not self._idle.acquire(blocking=False):
            self._start()
        return future

    def _start(self) -> None:
        with self._starting:
            if self._started == self._most:
                return
            self._started += 1
            number = self._started
        threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if not job.future.cancelled():
                _do(job)
            del job  # a thread that waits keeps nothing alive
            self._idle.release()


def _do(job: _Job) -> None:
    result: Any = None
    error: BaseException | None = None
    try:
        result = job.call()
    except StopIteration as raised:
        error = RuntimeError("raised StopIteration")
        error.__cause__ = raised
    except BaseException as raised:  # noqa: BLE001 (handed to the caller, as executors do)
        error = raised
    with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        job.loop.call_soon_threadsafe(_settle, job.future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
