"""One connection in a thread of its own. What queues up while it works is done together, in one transaction.

This is group commit: the cost of a transaction, of waking the thread and of waking the event loop is shared
by everybody who waits. SQLite gives the interpreter lock away at every step, and getting it back from a
busy event loop costs a switch of threads, so that few statements per transaction matter more than fast
ones.

How a batch is done:

1. All jobs in one transaction, those of one kind of work in one call.
2. Another process holds the lock: again and again, until it works or the deadline of a job has passed.
3. The store cannot work (disk full, gone, damaged): every job of the batch fails; the connection is made
anew.
4. One job is at fault: the transaction is undone and done again, each job in a savepoint of its own.
5. A job that must not be in a transaction comes after those that were taken with it.
6. Once the lock is there, what was taken back by then is left out.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import structlog

from astromesh.abc.stores import NOT_DONE
from astromesh.errors import StoreUnavailable
from astromesh.storage.faults import hits_everyone, is_busy, translated

Item = TypeVar("Item")
Result = TypeVar("Result")

#: A function of the connection and the items queued for it; one result for each item, in their order. A
#: result that is an exception is raised to its caller alone. It may be called again after its transaction
#: was undone.
Work = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[Result | BaseException]]

MOST_TOGETHER = 500
MOST_QUEUED = 20_000
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.025

log = structlog.get_logger("astromesh.storage")


class Job(Generic[Item, Result]):
    """Args: expires: `time.monotonic` at which the caller no longer waits for a locked database."""

    __slots__ = ("chance", "error", "expires", "future", "item", "missed", "outside", "result", "work")

    def __init__(
        self,
        work: Work[Item, Result],
        item: Item,
        future: asyncio.Future[Result] | None,
        expires: float,
        outside: bool = False,
    ) -> None:
        self.work, self.item, self.future, self.expires = work, item, future, expires
        self.outside = outside
        #: one thing that whoever is first takes: the thread to begin, or the caller to take the job back
        self.chance: list[None] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.missed = False  # it had ended, and nobody was told

    def begins(self) -> bool:
        """Whether it is to be done; from then on it is not taken back."""
        if self.chance is None:
            return True
        try:
            self.chance.pop()
        except IndexError:
            return False
        self.chance = None
        return True

    def taken_back(self) -> bool:
        """Whether it will not be done, now that nobody wants it."""
        try:
            (self.chance or []).pop()
        except IndexError:
            return False
        return True


class Lane:
    """One thread with one connection, and the queue before it.

    Args:
        name: what the operator calls the database, for messages.
        connect: opens the connection; called in the lane's thread, again after a fault.
        begin: the statement that starts its transactions.
        deadline: seconds a caller waits for a locked database.
    """

    def __init__(
        self, name: str, connect: Callable[[], sqlite3.Connection], begin: str, deadline: float
    ) -> None:
        self._name, self._connect, self._begin, self._deadline = name, connect, begin, deadline
        self._queue: SimpleQueue[Job[Any, Any] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._connection: sqlite3.Connection | None = None
        #: the store could not do some work; until somebody has found that it can
        self.ails = False
        self._open = True
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=self._serve, name=f"astromesh-{name}", daemon=True)
        self._thread.start()

    # -- the event loop's side -----------------------------------------------------------------------------

    def submit(
        self, work: Work[Item, Result], item: Item, *, outside: bool = False
    ) -> asyncio.Future[Result]:
        """Queues a job. Who stops waiting for it does not take it back.

        Args:
            outside: it must not be in a transaction, e.g. a checkpoint.

        Raises:
            StoreUnavailable: closed, or more is queued than can be done.
        """
        self._admit()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.put(Job(work, item, future, time.monotonic() + self._deadline, outside))
        return future

    async def decide(self, work: Work[Item, Result], item: Item) -> Result:
        """Does a job or does not: who is cancelled takes it back, or is told what came of it if it has begun.

        Raises:
            StoreUnavailable: as `submit`.
            asyncio.CancelledError: with `NOT_DONE` as its argument.
        """
        self._admit()
        future: asyncio.Future[Result] = self._loop.create_future()
        job = Job(work, item, future, time.monotonic() + self._deadline)
        job.chance = [None]
        self._queue.put(job)
        try:
            return await future
        except asyncio.CancelledError as error:
            if job.taken_back():
                error.args = (NOT_DONE,)
                raise
            if future.cancelled():
                future = job.future = self._loop.create_future()
                if job.missed:
                    _hand_out([job])
            return await future

    def post(self, work: Work[Item, Any], item: Item) -> None:
        """Queues a job whose result nobody awaits; its failure is logged."""
        self._admit()
        self._queue.put(Job(work, item, None, time.monotonic() + self._deadline))

    async def stop(self) -> None:
        """Does what is queued, then closes the connection and ends the thread."""
        if self._open:
            self._open = False
            self._queue.put(None)
        await asyncio.shield(self._stopped)

    def _admit(self) -> None:
        if not self._open:
            raise StoreUnavailable(f"The database {self._name} is closed.")
        if self._queue.qsize() >= MOST_QUEUED:
            raise StoreUnavailable(f"The database {self._name} has more work queued than it can do.")

    # -- the thread's side ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        ended = False
        while not ended:
            jobs, ended = self._take()
            self._settle([job for job in jobs if not job.outside])
            for job in jobs:
                if job.outside:
                    self._settle([job])
        self._disconnect()
        self._call(_resolve, self._stopped)

    def _take(self) -> tuple[list[Job[Any, Any]], bool]:
        """Waits for a job, then takes what else is there; and whether that was the end."""
        jobs: list[Job[Any, Any]] = []
        while not jobs or (len(jobs) < MOST_TOGETHER and self._queue.qsize()):
            job = self._queue.get()
            if job is None:
                return jobs, True
            jobs.append(job)
        return jobs, False

    def _settle(self, jobs: list[Job[Any, Any]]) -> None:
        pause = FIRST_PAUSE
        while jobs:
            try:
                self._transact(jobs)
            except BaseException as error:  # noqa: BLE001  relayed to the callers, as an executor does
                if not is_busy(error):
                    self._fail(jobs, error)
                    return
                jobs = self._without_late(jobs, error)
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._call(_hand_out, jobs)
                return

    def _transact(self, jobs: list[Job[Any, Any]]) -> None:
        connection = self._connection = self._connection or self._connect()
        if jobs[0].outside:
            _together(connection, jobs)
            return
        connection.execute(self._begin)
        try:
            jobs[:] = [job for job in jobs if job.begins()]
            _together(connection, jobs)
            connection.execute("COMMIT")
        except BaseException as error:
            _undo(connection)
            if hits_everyone(error) or len(jobs) == 1:
                raise
            connection.execute(self._begin)
            self._one_by_one(connection, jobs)

    def _one_by_one(self, connection: sqlite3.Connection, jobs: list[Job[Any, Any]]) -> None:
        try:
            for job in jobs:
                self._alone(connection, job)
            connection.execute("COMMIT")
        except BaseException:
            _undo(connection)
            raise

    def _alone(self, connection: sqlite3.Connection, job: Job[Any, Any]) -> None:
        connection.execute("SAVEPOINT job")
        try:
            _together(connection, (job,))
        except BaseException as error:
            if hits_everyone(error):
                raise
            connection.execute("ROLLBACK TO job")
            job.error = translated(error, self._name)
        connection.execute("RELEASE job")

    def _without_late(self, jobs: list[Job[Any, Any]], error: BaseException) -> list[Job[Any, Any]]:
        now = time.monotonic()
        late = [job for job in jobs if job.expires <= now]
        if late:
            self._fail(late, error)
        return [job for job in jobs if job.expires > now]

    def _fail(self, jobs: list[Job[Any, Any]], error: BaseException) -> None:
        for job in jobs:
            job.error = translated(error, self._name)
        if hits_everyone(error) and not is_busy(error):
            self.ails = True
            self._disconnect()
        self._call(_hand_out, jobs)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, function: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            self._open = False


def _together(connection: sqlite3.Connection, jobs: Iterable[Job[Any, Any]]) -> None:
    kinds: dict[Work[Any, Any], list[Job[Any, Any]]] = {}
    for job in jobs:
        job.error = None
        kinds.setdefault(job.work, []).append(job)
    for work, same in kinds.items():
        for job, result in zip(same, work(connection, [job.item for job in same]), strict=True):
            job.result = result


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite undoes by itself after some errors, e.g. a full disk
        connection.execute("ROLLBACK")


def _hand_out(jobs: list[Job[Any, Any]]) -> None:
    for job in jobs:
        error = job.error or (job.result if isinstance(job.result, BaseException) else None)
        if job.future is None:
            if error is not None:
                log.warning("store_write_lost", work=getattr(job.work, "__name__", "work"), error=str(error))
        elif job.future.done():
            job.missed = True
        elif error is not None:
            job.future.set_exception(error)
        else:
            job.future.set_result(job.result)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
