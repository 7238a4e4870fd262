"""Runs Python functions as tool calls: coroutines as tasks, the others in a thread pool.

A cancelled caller continues at once or after a short grace period. A call that does not end is abandoned and
counted; a function with too many abandoned calls is refused, so that it takes no threads from others.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias

from astromesh.errors import ToolBusy
from astromesh.logs import get_logger

#: seconds that a cancelled coroutine has to end before it is abandoned
CANCEL_GRACE_SECONDS = 0.5
TaskOutcome: TypeAlias = tuple[Any, BaseException | None]


class DetachedTasks:
    """Runs coroutines in tasks of their own, so that none keeps its caller.

    asyncio cancels a task and waits for its end, forever if the task swallows the cancellation. Here, a
    cancelled caller cancels the task, waits a moment and continues.

    Args:
        grace_seconds: that a cancelled coroutine has to end.
    """

    def __init__(self, grace_seconds: float = CANCEL_GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self._abandoned: dict[asyncio.Task[None], object] = {}
        self._holder_started = False

    def abandoned_calls(self, function: object) -> int:
        """Returns the number of abandoned calls of a function that still run."""
        return sum(one is function for one in list(self._abandoned.values())) if self._abandoned else 0

    async def run(
        self,
        call: Callable[[], Awaitable[Any]],
        function: object,
        on_abandoned: Callable[..., None],
        *callback_args: Any,
    ) -> Any:
        """Returns or raises the result of `call`.

        Args:
            function: that is called.
            on_abandoned: called with `callback_args` if the call continues although its caller was cancelled.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[TaskOutcome] = loop.create_future()
        task = loop.create_task(_run_to_outcome(call, ended))
        try:
            value, error = await ended
        except asyncio.CancelledError:
            task.cancel()
            try:
                await asyncio.wait((task,), timeout=self._grace_seconds)
            finally:  # cancelled a second time: no grace period is left
                if not task.done():
                    self._abandon(task, function)
                    on_abandoned(*callback_args)
            raise
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback references this frame

    def _abandon(self, task: asyncio.Task[None], function: object) -> None:
        self._abandoned[task] = function
        task.add_done_callback(self._remove)
        # a closing event loop waits for every registered task
        asyncio.tasks._unregister_task(task)  # noqa: SLF001  public for authors of event loops
        if not self._holder_started:
            self._holder_started = True
            threading.Thread(
                target=_hold_references, args=(self._abandoned,), name="astromesh-left", daemon=True
            ).start()

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._abandoned.pop(task, None)


def _hold_references(_references: object) -> None:
    """Holds references to abandoned tasks until the process ends.

    A garbage-collected coroutine is closed by the collecting thread, and one that swallows that as well would
    block it forever. Objects that a daemon thread references are not collected when Python ends.
    """
    threading.Event().wait()


async def _run_to_outcome(call: Callable[[], Awaitable[Any]], ended: asyncio.Future[TaskOutcome]) -> None:
    """Sets the outcome of a call; a `SystemExit` raised here would end the event loop."""
    try:
        _set_outcome(ended, (await call(), None))
    except GeneratorExit as raised:  # cannot be raised through a coroutine
        error = RuntimeError("raised GeneratorExit")
        error.__cause__ = raised
        _set_outcome(ended, (None, error))
    except BaseException as raised:  # noqa: BLE001 (relayed to the caller)
        _set_outcome(ended, (None, raised))


def _set_outcome(ended: asyncio.Future[TaskOutcome], outcome: TaskOutcome) -> None:
    if not ended.done():
        ended.set_result(outcome)


# -- threads -------------------------------------------------------------------------------------------------
#
# `concurrent.futures` waits at exit for every thread, so one hanging tool would keep a server from ending,
# and a `StopIteration` leaves its caller waiting forever. A thread cannot be stopped: one whose call was
# abandoned is replaced, up to a limit, so that hanging calls do not take the place of others. When such a
# call ends, its thread ends, too, or takes a free place.

JobState: TypeAlias = Literal["waiting", "running", "ended"]
#: abandoned threads; further ones take the place of others
MAX_ABANDONED_THREADS = 256


class ThreadJob:
    """A call that waits for a thread or runs in one.

    `future` has its outcome. `function`: called, and its name.
    """

    __slots__ = ("abandoned", "call", "function", "future", "loop", "state")

    def __init__(self, call: Callable[[], Any], function: tuple[object, str]) -> None:
        self.call, self.function = call, function
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.state: JobState = "waiting"
        self.abandoned = False


class ThreadPool:
    """Args: max_threads: threads that work at once; further calls wait. name: of the threads."""

    def __init__(self, max_threads: int, name: str, max_abandoned: int = MAX_ABANDONED_THREADS) -> None:
        self.max_threads, self._name, self._max_abandoned = max_threads, name, max_abandoned
        self._jobs: SimpleQueue[ThreadJob] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0  # jobs that wait or run, without abandoned ones
        self._threads = 0  # without those of abandoned jobs
        self._started = 0
        self._running: set[ThreadJob] = set()
        self._abandoned: set[ThreadJob] = set()

    def start(self, call: Callable[[], Any], function: tuple[object, str] = (None, "")) -> ThreadJob:
        """Starts a call in a thread, or queues it.

        Cancelling the job's future stops a call that waits, and leaves one that runs.

        Args:
            function: that is called, and its name for the operator.
        """
        job = ThreadJob(call, function)
        with self._lock:
            self._pending += 1
            self._fill()
        self._jobs.put(job)  # outside the lock, which the thread that takes it acquires immediately
        return job

    def abandon(self, job: ThreadJob) -> JobState:
        """Abandons a job; one that has not started never does. Returns its state."""
        with self._lock:
            if job.state == "waiting":
                job.future.cancel()
            elif job.state == "running" and len(self._abandoned) < self._max_abandoned:
                job.abandoned = True
                self._abandoned.add(job)
                self._pending -= 1
                self._threads -= 1
                self._fill()
            return job.state

    def abandoned_calls(self, function: object) -> int:
        """Returns the number of abandoned calls of a function that still run."""
        if not self._abandoned:
            return 0
        with self._lock:
            return sum(job.function[0] is function for job in self._abandoned)

    def running_calls(self) -> dict[str, int]:
        """Returns the number of threads by name of the call, abandoned ones included, the most first."""
        with self._lock:
            return dict(Counter(job.function[1] for job in self._running).most_common())

    def _fill(self) -> None:
        if self._pending > self._threads and self._threads < self.max_threads:
            self._threads += 1
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if self._begin(job):
                _run_job(job)
            if not self._end(job):
                return
            del job  # a waiting thread keeps no object alive

    def _begin(self, job: ThreadJob) -> bool:
        with self._lock:
            if job.future.cancelled():
                return False
            job.state = "running"
            self._running.add(job)
            return True

    def _end(self, job: ThreadJob) -> bool:
        """Ends a job; returns whether the thread keeps a place among the working ones."""
        with self._lock:
            job.state = "ended"
            self._running.discard(job)
            if not job.abandoned:
                self._pending -= 1
                return True
            self._abandoned.discard(job)
            if self._threads < self.max_threads:
                self._threads += 1
                return True
            return False


def _run_job(job: ThreadJob) -> None:
    result: Any = None
    error: BaseException | None = None
    try:
        result = job.call()
    except (StopIteration, GeneratorExit) as raised:  # neither can be raised through a coroutine
        error = RuntimeError(f"raised {type(raised).__name__}")
        error.__cause__ = raised
    except BaseException as raised:  # noqa: BLE001 (relayed to the caller, as executors do)
        error = raised
    with suppress(RuntimeError):  # the event loop is closed, so no caller waits
        job.loop.call_soon_threadsafe(_set_future, job.future, result, error)


def _set_future(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


# -- calls of functions --------------------------------------------------------------------------------------

#: abandoned calls of one function; further calls are refused
MAX_HANGING_CALLS = 16
log = get_logger("astromesh.tools")


def _ignore() -> None:
    """Does nothing."""


class FunctionExecutor:
    """Calls Python functions: async ones in `tasks`, others in `threads`."""

    def __init__(
        self, threads: ThreadPool, tasks: DetachedTasks, max_hanging: int = MAX_HANGING_CALLS
    ) -> None:
        self._threads, self._tasks, self._max_hanging = threads, tasks, max_hanging

    async def call(
        self,
        function: Callable[..., Any],
        kwargs: Mapping[str, Any],
        name: str,
        on_abandoned: Callable[[], None] = _ignore,
        *,
        is_async: bool,
        args: Sequence[Any] = (),
    ) -> Any:
        """Returns or raises the result of the function.

        Args:
            kwargs, args: arguments by name and by position.
            name: of the function, for messages.
            on_abandoned: called if the call continues although its caller was cancelled.

        Raises:
            ToolBusy: too many abandoned calls of the function still run.
            CancelledError: with a `ToolBusy` as its argument if the call had not started.
        """
        self._check_capacity(function, name)
        bound = partial(function, *args, **kwargs)
        if is_async:
            return await self._tasks.run(bound, function, self._log_abandoned, function, name, on_abandoned)
        # the caller's context variables (tracing, CallerContext) are visible in the thread
        begin = partial(contextvars.copy_context().run, self._begin, bound, function, name)
        job = self._threads.start(begin, (function, name))
        try:
            result = await job.future
        except asyncio.CancelledError as error:
            state = self._threads.abandon(job)
            if state == "running":
                self._log_abandoned(function, name, on_abandoned)
            elif state == "waiting":
                error.args = (self._busy_error(name),)
            raise
        if not inspect.isawaitable(result):
            return result
        return await self._tasks.run(
            lambda: result, function, self._log_abandoned, function, name, on_abandoned
        )

    def _begin(self, bound: Callable[[], Any], function: object, name: str) -> Any:
        # earlier calls may have been abandoned while this one waited for a thread
        self._check_capacity(function, name)
        return bound()

    def _check_capacity(self, function: object, name: str) -> None:
        hanging = self._abandoned_calls(function)
        if hanging >= self._max_hanging:
            raise ToolBusy(
                f"{name!r} was not started: {hanging} earlier calls of it still hang. Nothing has happened."
            )

    def _abandoned_calls(self, function: object) -> int:
        return self._threads.abandoned_calls(function) + self._tasks.abandoned_calls(function)

    def _log_abandoned(self, function: object, name: str, on_abandoned: Callable[[], None]) -> None:
        log.warning("tool_given_up", tool=name, hanging=self._abandoned_calls(function))
        on_abandoned()

    def _busy_error(self, name: str) -> ToolBusy:
        holders = self._threads.running_calls()
        log.warning("tool_not_started", tool=name, threads=self._threads.max_threads, held_by=holders)
        return ToolBusy(
            f"{name!r} was not started: all {self._threads.max_threads} threads for such calls are busy. "
            "Nothing has happened; it may be called again."
        )


#: Blocking functions have a thread pool of their own, so that file and DNS work in the default executor never
#: waits for them. The first calls start its threads.
TOOL_CALLS = FunctionExecutor(ThreadPool(32, "astromesh-tool"), DetachedTasks())
