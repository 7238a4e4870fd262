"""Threads for functions that block, bounded, and abandoned at exit.

`concurrent.futures` waits at exit for every thread, so that one hanging tool would keep a server from ending;
and a `StopIteration` leaves its caller waiting for ever. Threads are started by the first calls and kept.

Nothing stops a thread. One whose call was given up is replaced, up to a bound, so that calls that hang do not
take the place of others; when its call ends after all, it ends too, or fills a place that is free.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias

State: TypeAlias = Literal["waiting", "running", "ended"]

#: threads whose calls were given up, beyond which those that hang take the place of others
MOST_GIVEN_UP = 256


class Job:
    """A call in a thread, or on its way to one; `future` has its end. `of`: what is called, and its name."""

    __slots__ = ("call", "future", "given_up", "loop", "of", "state")

    def __init__(self, call: Callable[[], Any], of: tuple[object, str]) -> None:
        self.call, self.of = call, of
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.state: State = "waiting"
        self.given_up = False


class Threads:
    """Args: most: threads that work at once; further calls wait. name: of the threads."""

    def __init__(self, most: int, name: str, most_given_up: int = MOST_GIVEN_UP) -> None:
        self.most, self._name, self._most_given_up = most, name, most_given_up
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0  # jobs that wait or run, without those given up
        self._threads = 0  # without those whose job was given up
        self._started = 0
        self._running: set[Job] = set()
        self._given_up: set[Job] = set()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """What `call` answers or raises. Cancelling stops a call that waits, and leaves one that runs."""
        return self.start(call).future

    def start(self, call: Callable[[], Any], of: tuple[object, str] = (None, "")) -> Job:
        """As `run`. `of`: the function that is called, and its name for the operator."""
        job = Job(call, of)
        with self._lock:
            self._open += 1
            self._fill()
        self._jobs.put(job)  # out of the lock, which the thread that takes it wants at once
        return job

    def give_up(self, job: Job) -> State:
        """Nobody waits for it; a call that has not begun by then never does. Answers how far it was."""
        with self._lock:
            if job.state == "waiting":
                job.future.cancel()
            elif job.state == "running" and len(self._given_up) < self._most_given_up:
                job.given_up = True
                self._given_up.add(job)
                self._open -= 1
                self._threads -= 1
                self._fill()
            return job.state

    def hanging(self, function: object) -> int:
        """Calls of a function that were given up and go on."""
        if not self._given_up:
            return 0
        with self._lock:
            return sum(job.of[0] is function for job in self._given_up)

    def holders(self) -> dict[str, int]:
        """What runs now, those that were given up too: threads by name, most first."""
        with self._lock:
            return dict(Counter(job.of[1] for job in self._running).most_common())

    def _fill(self) -> None:
        if self._open > self._threads and self._threads < self.most:
            self._threads += 1
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if self._begin(job):
                _do(job)
            if not self._end(job):
                return
            del job  # a thread that waits keeps nothing alive

    def _begin(self, job: Job) -> bool:
        with self._lock:
            if job.future.cancelled():
                return False
            job.state = "running"
            self._running.add(job)
            return True

    def _end(self, job: Job) -> bool:
        """Whether the thread has a place among those that work."""
        with self._lock:
            job.state = "ended"
            self._running.discard(job)
            if not job.given_up:
                self._open -= 1
                return True
            self._given_up.discard(job)
            if self._threads < self.most:
                self._threads += 1
                return True
            return False


def _do(job: Job) -> None:
    result: Any = None
    error: BaseException | None = None
    try:
        result = job.call()
    except (StopIteration, GeneratorExit) as raised:  # neither can be raised through a coroutine
        error = RuntimeError(f"raised {type(raised).__name__}")
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
