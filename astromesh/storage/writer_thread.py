"""One SQLite connection in a thread of its own. Queued jobs share one transaction (group commit).

The callers share the cost of a transaction, of waking the thread and of waking the event loop. SQLite
releases the interpreter lock at every step, and taking it back from a busy event loop costs a thread
switch, so few statements per transaction matter more than fast ones. A batch runs by these rules:

1. All jobs run in one transaction; jobs with the same `work` run in one call.
2. If another process holds the lock, the batch is retried until it succeeds or the deadline of a job
   passes.
3. If the store cannot work (disk full, file gone or damaged), every job of the batch fails and the
   connection is opened again.
4. If one job fails, the transaction is rolled back and repeated with a savepoint for each job.
5. A job that must not run in a transaction runs after the jobs that were taken with it.
6. A job that was withdrawn before the lock was taken is skipped.

SQLite's errors are translated here, by a table (sqlite.org/rescode.html).
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

from astromesh.errors import NOT_DONE, InvalidInput, StoreError, StoreUnavailable

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


#: errors of the whole store, which fail every job; any other error fails one job
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "is locked by another process; try again",
    sqlite3.SQLITE_LOCKED: "is locked by another process; try again",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process; try again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists and may be written",
    sqlite3.SQLITE_READONLY: "may not be written: check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "may not be used: check the permissions of the file and its folder",
    sqlite3.SQLITE_NOMEM: "ran out of memory",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "is no SQLite database; move the file away",
}


def result_code(error: BaseException) -> int:
    """SQLite's primary result code; 0 for errors that are not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether the same work may succeed in a moment."""
    return result_code(error) in _BUSY


def is_store_unavailable(error: BaseException) -> bool:
    """Whether the store as a whole cannot do its work now."""
    return result_code(error) in _UNAVAILABLE


def translate_sqlite_error(error: BaseException, name: str) -> BaseException:
    """Args: name: what the operator calls the database, e.g. its file name."""
    if (said := _UNAVAILABLE.get(result_code(error))) is not None:
        return StoreUnavailable(f"The database {name} {said}.")
    if isinstance(error, OSError):
        return StoreUnavailable(f"The database {name} {_UNAVAILABLE[sqlite3.SQLITE_CANTOPEN]}.")
    if isinstance(error, sqlite3.Error):
        return StoreError(f"The database {name} refused a statement: {error}")
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput("The text holds half of a surrogate pair, which is no character.")
    return error


Item = TypeVar("Item")


Result = TypeVar("Result")


#: A function of the connection and the items queued for it; one result for each item, in their order. A
#: result that is an exception is raised to its caller alone. It may be called again after its transaction
#: was undone.
Work = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[Result | BaseException]]


MAX_BATCH = 500


MAX_QUEUED = 20_000


FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.025


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
        """Whether to run the job. From then on it cannot be withdrawn."""
        if self.chance is None:
            return True
        try:
            self.chance.pop()
        except IndexError:
            return False
        self.chance = None
        return True

    def taken_back(self) -> bool:
        """Withdraws the job. Returns False if it has already started."""
        try:
            (self.chance or []).pop()
        except IndexError:
            return False
        return True


class ConnectionThread:
    """A thread with one connection and a queue of jobs.

    Args:
        name: the name of the database in messages.
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
        self.unavailable = False
        self._open = True
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=self._serve, name=f"astromesh-{name}", daemon=True)
        self._thread.start()

    # -- the event loop's side -----------------------------------------------------------------------------

    def submit(
        self, work: Work[Item, Result], item: Item, *, outside: bool = False
    ) -> asyncio.Future[Result]:
        """Queues a job. A caller that stops waiting does not withdraw it.

        Args:
            outside: it must not be in a transaction, e.g. a checkpoint.

        Raises:
            StoreUnavailable: closed, or more is queued than can be done.
        """
        self._admit()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.put(Job(work, item, future, time.monotonic() + self._deadline, outside))
        return future

    async def submit_or_withdraw(self, work: Work[Item, Result], item: Item) -> Result:
        """Queues a job. A cancelled caller withdraws it, or receives the result if it has started.

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
                    _deliver_results([job])
            return await future

    def post(self, work: Work[Item, Any], item: Item) -> None:
        """Queues a job whose result nobody awaits; its failure is logged."""
        self._admit()
        self._queue.put(Job(work, item, None, time.monotonic() + self._deadline))

    async def stop(self) -> None:
        """Runs the queued jobs, then closes the connection and ends the thread."""
        if self._open:
            self._open = False
            self._queue.put(None)
        await asyncio.shield(self._stopped)

    def _admit(self) -> None:
        if not self._open:
            raise StoreUnavailable(f"The database {self._name} is closed.")
        if self._queue.qsize() >= MAX_QUEUED:
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
        """Waits for a job and takes the other queued ones. Returns whether the queue was stopped."""
        jobs: list[Job[Any, Any]] = []
        while not jobs or (len(jobs) < MAX_BATCH and self._queue.qsize()):
            job = self._queue.get()
            if job is None:
                return jobs, True
            jobs.append(job)
        return jobs, False

    def _settle(self, jobs: list[Job[Any, Any]]) -> None:
        pause = FIRST_PAUSE_SECONDS
        while jobs:
            try:
                self._transact(jobs)
            except BaseException as error:  # noqa: BLE001  relayed to the callers, as an executor does
                if not is_busy(error):
                    self._fail(jobs, error)
                    return
                jobs = self._without_late(jobs, error)
                time.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
            else:
                self._call(_deliver_results, jobs)
                return

    def _transact(self, jobs: list[Job[Any, Any]]) -> None:
        connection = self._connection = self._connection or self._connect()
        if jobs[0].outside:
            _run_batch(connection, jobs)
            return
        connection.execute(self._begin)
        try:
            jobs[:] = [job for job in jobs if job.begins()]
            _run_batch(connection, jobs)
            connection.execute("COMMIT")
        except BaseException as error:
            _rollback(connection)
            if is_store_unavailable(error) or len(jobs) == 1:
                raise
            connection.execute(self._begin)
            self._one_by_one(connection, jobs)

    def _one_by_one(self, connection: sqlite3.Connection, jobs: list[Job[Any, Any]]) -> None:
        try:
            for job in jobs:
                self._alone(connection, job)
            connection.execute("COMMIT")
        except BaseException:
            _rollback(connection)
            raise

    def _alone(self, connection: sqlite3.Connection, job: Job[Any, Any]) -> None:
        connection.execute("SAVEPOINT job")
        try:
            _run_batch(connection, (job,))
        except BaseException as error:
            if is_store_unavailable(error):
                raise
            connection.execute("ROLLBACK TO job")
            job.error = translate_sqlite_error(error, self._name)
        connection.execute("RELEASE job")

    def _without_late(self, jobs: list[Job[Any, Any]], error: BaseException) -> list[Job[Any, Any]]:
        now = time.monotonic()
        late = [job for job in jobs if job.expires <= now]
        if late:
            self._fail(late, error)
        return [job for job in jobs if job.expires > now]

    def _fail(self, jobs: list[Job[Any, Any]], error: BaseException) -> None:
        for job in jobs:
            job.error = translate_sqlite_error(error, self._name)
        if is_store_unavailable(error) and not is_busy(error):
            self.unavailable = True
            self._disconnect()
        self._call(_deliver_results, jobs)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, function: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            self._open = False


def _run_batch(connection: sqlite3.Connection, jobs: Iterable[Job[Any, Any]]) -> None:
    kinds: dict[Work[Any, Any], list[Job[Any, Any]]] = {}
    for job in jobs:
        job.error = None
        kinds.setdefault(job.work, []).append(job)
    for work, same in kinds.items():
        for job, result in zip(same, work(connection, [job.item for job in same]), strict=True):
            job.result = result


def _rollback(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite undoes by itself after some errors, e.g. a full disk
        connection.execute("ROLLBACK")


def _deliver_results(jobs: list[Job[Any, Any]]) -> None:
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
