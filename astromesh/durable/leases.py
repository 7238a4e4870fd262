"""Leases: how long a silent process keeps what it works on, and the jobs that renew, sweep and expire.

A process leases five things: runs, Tasks and queues of the inbox (as a `Worker`), budget holds (as a
holder), and sessions (by a fencing token). Each store keeps its leases in tables of its own. The duration,
the intervals and the loops stand here:

    what             renewed every          a dead process is found by
    --------------   --------------------   --------------------------------------------------
    runs             `HEARTBEAT_SECONDS`    the sweep of any worker, and `WorkerHeartbeat.dead`
    Tasks            `HEARTBEAT_SECONDS`    as runs
    inbox queues     a fifth of the lease   as runs (`channels.NAME.lease_seconds` is the lease)
    budget holds     `HEARTBEAT_SECONDS`    the next reservation: an expired hold does not count
    sessions         `REQUEST_SECONDS`      the next message of the session

A dead process of the same data folder is found within `SWEEP_SECONDS`: the system unlocks its file.

A `Worker` has a name, under which the database keeps its leases. It renews them, and sweeps: it starts what
is due. It also takes over what dead workers held. While work is active, it polls for requests to end some. A
`LeaseQueue` says in SQL what each of these means for one kind of work.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple, Protocol

from astromesh.errors import AstromeshError
from astromesh.logs import OutageLog, get_logger
from astromesh.storage.private_files import private_folder
from astromesh.telemetry.clock import Clock, interval_sleep, sleep_to_tick

#: seconds after which a process that renews nothing loses what it holds; all processes of a database use the
#: same value
LEASE_SECONDS = float(os.environ.get("ASTROMESH_LEASE_SECONDS", "10"))
#: seconds between two renewals, between two sweeps for what dead processes left, and between two looks for
#: requests to end something
HEARTBEAT_SECONDS, SWEEP_SECONDS, REQUEST_SECONDS = LEASE_SECONDS / 5, 1.0, 0.5
#: seconds between two deletions of what is older than the retention
EXPIRY_SECONDS = 60.0
DAY_SECONDS = 86_400.0

FOLDER = "workers"
_HIDDEN_PREFIX = "."

log = get_logger("astromesh.runs")


def worker_name() -> str:
    """A name that no other worker has, with host and process for the operator."""
    return f"{gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


async def cancel_and_wait(task: asyncio.Task[Any] | None) -> None:
    """Cancels a task and waits until it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


class PeriodicJob:
    """Calls `work` at intervals in a task of its own. An error is reported, and the next call follows.

    `failed` reports errors of stores and files. The log has any other one, as `job_crashed`.

    Args:
        seconds: between two calls; `work` may change it.
        failed: receives the error of a store or a file.
        needed: the job ends when this returns False; `start` begins it again.
        sleep: waits for so many seconds; `interval_sleep` returns that of a clock.
        at_once: calls before it waits for the first time.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[object]],
        seconds: float,
        failed: Callable[[Exception], None],
        *,
        needed: Callable[[], bool] = lambda: True,
        sleep: Callable[[float], Awaitable[None]] = sleep_to_tick,
        at_once: bool = False,
    ) -> None:
        self.seconds = seconds
        self._work, self._failed = work, failed
        self._needed, self._sleep, self._at_once = needed, sleep, at_once
        self._is_woken = False
        self._sleeping: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        #: whether `start` would do nothing
        self.is_running = False

    @property
    def started(self) -> bool:
        """Whether the job was ever started."""
        return self._task is not None

    def start(self) -> None:
        """Starts the job. A job that runs continues."""
        if self._task is None or self._task.done():
            self.is_running = True
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)

    def wake(self) -> None:
        """Calls now, or once more if a call is active."""
        self._is_woken = True
        if self._sleeping is not None:
            self._sleeping.cancel()

    async def close(self) -> None:
        """Cancels the job and waits for its end."""
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        if self._at_once:
            await self._call()
        while True:
            await self._pause()
            if not self._needed():
                self.is_running = False  # at once: a callback comes a turn of the loop later
                return
            await self._call()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self.is_running = False

    async def _pause(self) -> None:
        if self._is_woken:
            return
        self._sleeping = asyncio.ensure_future(self._sleep(self.seconds))
        try:
            await asyncio.wait([self._sleeping])
        finally:
            self._sleeping.cancel()

    async def _call(self) -> None:
        self._is_woken = False
        try:
            await self._work()
        except (AstromeshError, OSError) as error:
            self._failed(error)
        except Exception:  # a row that cannot be read, or a bug: leases lapse where a job ends
            log.exception("job_crashed", job=getattr(self._work, "__qualname__", repr(self._work)))


class RetentionPolicy(NamedTuple):
    """How long ended runs and Tasks are stored: `days` after their end, and at most so many `runs`.

    Args:
        recording_days: how long the steps of runs are stored.
    """

    days: float = 30.0
    runs: int = 10_000
    recording_days: float = 30.0


def expiry_job(delete: Callable[[float], Awaitable[object]], clock: Clock, days: float) -> PeriodicJob:
    """The job that deletes what is older than `days`.

    Args:
        delete: deletes what ended before a time, in seconds since the epoch.
    """
    return PeriodicJob(
        lambda: delete(clock.now() - days * DAY_SECONDS),
        EXPIRY_SECONDS,
        lambda error: log.warning("runs_not_expired", error=str(error)),
        sleep=interval_sleep(clock),
    )


class WorkerHeartbeat:
    """The live workers of one data folder: a locked file each. No call waits for the disk.

    Args:
        data_dir: the folder that the processes of one installation share.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER
        self._own: dict[str, int] = {}

    def enter(self, worker: str) -> None:
        """Marks a worker of this process as alive until `leave` or the end of the process."""
        if worker in self._own:
            return
        private_folder(self._folder)
        hidden = self._folder / f"{_HIDDEN_PREFIX}{worker}"  # not found before it is locked
        opened = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._own[worker] = opened
        hidden.rename(self._folder / worker)

    def leave(self, worker: str) -> None:
        opened = self._own.pop(worker, None)
        if opened is not None:
            (self._folder / worker).unlink(missing_ok=True)
            os.close(opened)

    def report(self, worker: str, text: bytes) -> None:
        """Writes what others read of a worker of this process, at most 256 bytes, in one write."""
        os.pwrite(self._own[worker], text.ljust(256), 0)

    def reports(self) -> dict[str, bytes]:
        """Returns what live workers of other processes have reported, by their names."""
        found = {}
        for file in sorted(self._others()):
            with suppress(FileNotFoundError, PermissionError):  # as in `_is_dead`
                if not self._is_dead(file):
                    found[file.name] = file.read_bytes()
        return found

    def dead(self) -> list[str]:
        """Returns the workers whose process has ended without `leave`."""
        return [file.name for file in self._others() if self._is_dead(file)]

    def has_others(self) -> bool:
        """Whether other processes have workers in this data folder, dead ones included."""
        return any(True for _ in self._others())

    def forget(self, worker: str) -> None:
        """Removes a dead worker whose work was taken over."""
        (self._folder / worker).unlink(missing_ok=True)

    def _others(self) -> Iterator[Path]:
        files = self._folder.iterdir() if self._folder.exists() else ()
        return (f for f in files if f.name not in self._own and not f.name.startswith(_HIDDEN_PREFIX))

    def _is_dead(self, file: Path) -> bool:
        try:
            opened = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # it has just left; or belongs to another user
            return False
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(opened).st_nlink > 0  # else it has left just now
        except BlockingIOError:
            return False
        finally:
            os.close(opened)


class LeaseQueue(Protocol):
    """One kind of work in a database. Every method names the worker by its name.

    Raises (all of them):
        AstromeshError: the database does not answer; the worker reports it and calls again.
    """

    async def renew_leases(self, worker: str) -> Collection[str]:
        """Renews the leases of a worker. Returns the ids of active work whose lease is lost."""

    def has_work(self) -> bool:
        """Whether work is active whose end may be requested; `Worker.watch_requests` hears that it begins."""

    async def cancel_requested(self, worker: str) -> Collection[str]:
        """Returns the ids of this worker's work whose end was requested."""

    async def sweep(self, worker: str) -> float:
        """Starts the work that is due. Returns the seconds until the next sweep."""

    async def take_over(self, worker: str, dead: str) -> None:
        """Takes over everything that a dead worker held."""

    async def release_leases(self, worker: str) -> None:
        """Releases the leases of a worker that ends."""

    def stop(self, id: str) -> object:
        """Starts to end active work."""


class Worker:
    """Works off one queue.

    Args:
        heartbeat: the live workers of this data folder.
        outages: reports that the database does not answer.
        lease_seconds: duration of a lease.
        sleep: waits for so many seconds; `interval_sleep` returns that of a clock.

    Attributes:
        name: a name that no other worker has.
        active: the work that `execute` has started and that has not ended, by id.
    """

    def __init__(
        self,
        queue: LeaseQueue,
        heartbeat: WorkerHeartbeat,
        outages: OutageLog,
        *,
        lease_seconds: float = LEASE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = sleep_to_tick,
    ) -> None:
        self.name = worker_name()
        self.active: dict[str, asyncio.Task[None]] = {}
        self._queue, self._heartbeat, self._outages = queue, heartbeat, outages

        def failed(error: Exception) -> None:
            outages.failed(str(error))

        def job(work: Callable[[], Awaitable[object]], seconds: float) -> PeriodicJob:
            return PeriodicJob(work, seconds, failed, sleep=sleep, at_once=True)

        renewal_seconds = HEARTBEAT_SECONDS * lease_seconds / LEASE_SECONDS
        self._renewing = job(self._renew, renewal_seconds)
        self._requests = PeriodicJob(
            self.stop_requested, REQUEST_SECONDS, failed, sleep=sleep, needed=queue.has_work
        )
        self._sweeping = job(self._sweep, SWEEP_SECONDS)
        self._taking_over = job(self._take_over, SWEEP_SECONDS)

    @property
    def started(self) -> bool:
        return self._renewing.started

    def start(self, *, sweeps: bool = True) -> None:
        """Starts to work. Does nothing if the worker has started.

        Args:
            sweeps: whether it starts what is due, and takes over what dead workers held.
        """
        if not self.started:
            self._heartbeat.enter(self.name)
            for job in (self._renewing, *((self._sweeping, self._taking_over) if sweeps else ())):
                job.start()

    def wake(self) -> None:
        """Sweeps now."""
        self._sweeping.wake()

    def watch_requests(self) -> None:
        """Polls for requests to end work, as long as some is active."""
        self._requests.start()

    def execute(self, id: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Executes work in a task of its own."""
        task = self.active[id] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self.active.pop(id, None))
        return task

    async def drain(self) -> None:
        """Starts no more work. Leases are still renewed."""
        await self._sweeping.close()
        await self._taking_over.close()

    async def close(self) -> None:
        """Releases the leases. If the database does not answer, they expire.

        Others take a worker that has left for dead, so nothing of it may be active any more.

        Raises:
            StoreError: the leases were not released.
        """
        await self.abandon()
        if self.started:
            await self._queue.release_leases(self.name)
            self._heartbeat.leave(self.name)

    async def abandon(self) -> None:
        """Ends without a release: the leases expire, as after a crash."""
        await self.drain()
        await self._renewing.close()
        await self._requests.close()

    async def stop_requested(self) -> None:
        """Ends the work whose end was requested, without the wait for the next poll."""
        for work in await self._queue.cancel_requested(self.name):
            self._queue.stop(work)

    async def _renew(self) -> None:
        for work in await self._queue.renew_leases(self.name):
            self._queue.stop(work)

    async def _sweep(self) -> None:
        self._sweeping.seconds = SWEEP_SECONDS  # if the queue does not answer
        self._sweeping.seconds = await self._queue.sweep(self.name)
        self._outages.succeeded()

    async def _take_over(self) -> None:
        for dead in self._heartbeat.dead():
            await self._queue.take_over(self.name, dead)
            self._heartbeat.forget(dead)
