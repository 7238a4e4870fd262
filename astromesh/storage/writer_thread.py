"""One SQLite connection in a thread of its own. Queued jobs share one transaction (group commit).

The callers share the cost of a transaction, of waking the thread and of waking the event loop. SQLite
releases the interpreter lock at every step, and taking it back from a busy event loop costs a thread
switch. So few statements per transaction matter more than fast ones. A batch follows these rules:

1. All jobs run in one transaction; jobs with the same `work` run in one call.
2. If another process holds the lock, the batch is retried until it succeeds or the deadline of a job
   passes.
3. If the store cannot work (disk full, file missing or damaged), every job of the batch fails and the
   connection is opened again.
4. If one job fails, the transaction is rolled back and repeated with a savepoint for each job.
5. A job that must not run in a transaction runs after the other jobs of its batch.
6. A job that was withdrawn before the lock was taken is skipped.
7. If one job must be synced to the disk, the transaction is. SQLite decides that before it begins.

SQLite's errors are translated here, by a table (sqlite.org/rescode.html).
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from astromesh.errors import NOT_DONE, InvalidInput, StoreError, StoreUnavailable
from astromesh.storage.retry import NOT_TEXT
from astromesh.storage.single_process_lock import how_to_continue, stopped_holder

#: the settings of a connection whose commits survive a loss of power, and of one whose last ones may not
SYNCED, UNSYNCED = "synchronous = FULL", "synchronous = NORMAL"

#: what is behind the name of a database in the names of the files that SQLite locks
_LOCKED_FILES = ("", "-shm", "-wal")
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

#: errors of the whole store, which fail every job; any other error fails one job
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "is locked by another process; try again",
    sqlite3.SQLITE_LOCKED: "is locked by another process; try again",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process; try again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists and is writable",
    sqlite3.SQLITE_READONLY: "is read-only: check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "cannot be accessed: check the permissions of the file and its folder",
    sqlite3.SQLITE_NOMEM: "has run out of memory",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database; move the file away",
}


def result_code(error: BaseException) -> int:
    """Returns the primary result code of SQLite; 0 for other errors."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether the same work may succeed a moment later."""
    return result_code(error) in _BUSY


def is_store_unavailable(error: BaseException) -> bool:
    """Whether the store as a whole cannot do its work now."""
    return result_code(error) in _UNAVAILABLE


def translate_sqlite_error(error: BaseException, file: Path) -> BaseException:
    """Args: file: of the database; messages have its name."""
    name = file.name
    if is_busy(error) and (pid := stopped_holder(file.with_name(name + end) for end in _LOCKED_FILES)):
        return StoreUnavailable(f"The process {pid} has locked the database {name}. {how_to_continue(pid)}")
    if (reason := _UNAVAILABLE.get(result_code(error))) is not None:
        return StoreUnavailable(f"The database {name} {reason}.")
    if isinstance(error, OSError):
        return StoreUnavailable(f"The database {name} {_UNAVAILABLE[sqlite3.SQLITE_CANTOPEN]}.")
    if isinstance(error, sqlite3.Error):
        return StoreError(f"The database {name} rejected a statement: {error}")
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput(NOT_TEXT)
    return error


Item = TypeVar("Item")
Result = TypeVar("Result")
#: A function of the connection and the queued items. It returns one result for each item, in order. If a
#: result is an exception, only its caller receives it. It may be called again after its transaction was
#: rolled back.
Work = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[Result | BaseException]]
MAX_BATCH = 500
MAX_QUEUED = 20_000
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.025


class Job(Generic[Item, Result]):
    """One call of `work`.

    Args:
        expires: `time.monotonic` at which the caller no longer waits for a locked database.
        outside: it must not run in a transaction.
        synced: its transaction must survive a loss of power.
    """

    __slots__ = (
        "error", "expires", "future", "item", "outside", "result", "synced", "token", "undelivered", "work",
    )  # fmt: skip

    def __init__(
        self,
        work: Work[Item, Result],
        item: Item,
        future: asyncio.Future[Result],
        expires: float,
        outside: bool = False,
        synced: bool = False,
    ) -> None:
        self.work, self.item, self.future, self.expires = work, item, future, expires
        self.outside, self.synced = outside, synced
        #: taken by the first of both: the thread that starts the job, or the caller that withdraws it
        self.token: list[None] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.undelivered = False  # it ended when its caller was cancelled

    def start(self) -> bool:
        """Whether to run the job. From then on it cannot be withdrawn."""
        if self.token is None:
            return True
        try:
            self.token.pop()
        except IndexError:
            return False
        self.token = None
        return True

    def withdraw(self) -> bool:
        """Withdraws the job. Returns False if it has already started."""
        try:
            (self.token or []).pop()
        except IndexError:
            return False
        return True


class ConnectionThread:
    """A thread with one connection and a queue of jobs.

    Args:
        file: of the database.
        connect: opens the connection; called in the thread, again after a fault.
        begin: the statement that starts its transactions.
        deadline: seconds that a caller waits for a locked database.

    Attributes:
        unavailable: some work failed because of the store. Set back by a caller that finds the store working.
    """

    def __init__(
        self, file: Path, connect: Callable[[], sqlite3.Connection], begin: str, deadline: float
    ) -> None:
        self._file, self._connect, self._begin, self._deadline = file, connect, begin, deadline
        self._queue: SimpleQueue[Job[Any, Any] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._connection: sqlite3.Connection | None = None
        self._syncs = False  # whether the connection syncs its commits
        self.unavailable = False
        self._open = True
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=self._serve, name=f"astromesh-{file.name}", daemon=True)
        self._thread.start()

    # -- the event loop's side -----------------------------------------------------------------------------

    def submit(
        self, work: Work[Item, Result], item: Item, *, outside: bool = False, synced: bool = False
    ) -> asyncio.Future[Result]:
        """Queues a job. A caller that stops waiting does not withdraw it.

        Args:
            outside: it must not run in a transaction, e.g. a checkpoint.
            synced: its transaction must survive a loss of power.

        Raises:
            StoreUnavailable: closed, or too many jobs are queued.
        """
        job = self._job(work, item, outside, synced)
        self._queue.put(job)
        return job.future

    async def submit_or_withdraw(self, work: Work[Item, Result], item: Item) -> Result:
        """Queues a job. A cancelled caller withdraws it, or receives the result if it has started.

        Raises:
            StoreUnavailable: as `submit`.
            asyncio.CancelledError: with `NOT_DONE` as its argument.
        """
        job = self._job(work, item)
        job.token = [None]
        self._queue.put(job)
        try:
            return await job.future
        except asyncio.CancelledError as error:
            if job.withdraw():
                error.args = (NOT_DONE,)
                raise
            if job.future.cancelled():
                job.future = self._loop.create_future()
                if job.undelivered:
                    _deliver_results([job])
            return await job.future

    async def stop(self) -> None:
        """Runs the queued jobs, then closes the connection and ends the thread."""
        if self._open:
            self._open = False
            self._queue.put(None)
        await asyncio.shield(self._stopped)

    def _job(
        self, work: Work[Item, Result], item: Item, outside: bool = False, synced: bool = False
    ) -> Job[Item, Result]:
        if not self._open:
            raise StoreUnavailable(f"The database {self._file.name} is closed.")
        if self._queue.qsize() >= MAX_QUEUED:
            raise StoreUnavailable(
                f"The database {self._file.name} is overloaded: {MAX_QUEUED} calls wait for it; try again."
            )
        expires = time.monotonic() + self._deadline
        return Job(work, item, self._loop.create_future(), expires, outside, synced)

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
        """Waits for a job and takes the other queued jobs. Returns whether the thread must stop."""
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
            except BaseException as error:  # noqa: BLE001  the callers receive it, as from an executor
                if not is_busy(error):
                    self._fail(jobs, error)
                    return
                jobs = self._fail_expired(jobs, error)
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
        self._set_sync(connection, any(job.synced for job in jobs))
        connection.execute(self._begin)
        try:
            jobs[:] = [job for job in jobs if job.start()]
            _run_batch(connection, jobs)
            connection.execute("COMMIT")
        except BaseException as error:
            _rollback(connection)
            if is_store_unavailable(error) or len(jobs) == 1:
                raise
            connection.execute(self._begin)
            self._one_by_one(connection, jobs)

    def _set_sync(self, connection: sqlite3.Connection, syncs: bool) -> None:
        if syncs is not self._syncs:
            connection.execute(f"PRAGMA {SYNCED if syncs else UNSYNCED}")
            self._syncs = syncs

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
            job.error = translate_sqlite_error(error, self._file)
        connection.execute("RELEASE job")

    def _fail_expired(self, jobs: list[Job[Any, Any]], error: BaseException) -> list[Job[Any, Any]]:
        """Returns the jobs whose callers still wait."""
        now = time.monotonic()
        expired = [job for job in jobs if job.expires <= now]
        if expired:
            self._fail(expired, error)
        return [job for job in jobs if job.expires > now]

    def _fail(self, jobs: list[Job[Any, Any]], error: BaseException) -> None:
        for job in jobs:
            job.error = translate_sqlite_error(error, self._file)
        if is_store_unavailable(error) and not is_busy(error):
            self.unavailable = True
            self._disconnect()
        self._call(_deliver_results, jobs)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection, self._syncs = None, False

    def _call(self, function: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the event loop is closed, and no caller waits
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
    if connection.in_transaction:  # SQLite itself rolls back after some errors, e.g. a full disk
        connection.execute("ROLLBACK")


def _deliver_results(jobs: list[Job[Any, Any]]) -> None:
    for job in jobs:
        error = job.error or (job.result if isinstance(job.result, BaseException) else None)
        if job.future.done():
            job.undelivered = True
        elif error is not None:
            job.future.set_exception(error)
        else:
            job.future.set_result(job.result)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
