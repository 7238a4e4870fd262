"""Detects whether this process is the only one that uses a file.

A single process does not take leases. When a second process starts, it creates a mark. The first process
sees the mark, puts what it holds under leases, and releases its exclusive lock. From then on all processes
take leases until they restart. The lock belongs to the operating system (flock) and ends with its process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from astromesh.errors import AstromeshError, StoreUnavailable
from astromesh.logs import get_logger
from astromesh.telemetry.clock import sleep_to_tick

if sys.platform != "win32":
    import fcntl

#: seconds between two polls for the mark of another process, and between two tries for the lock
LOOK_SECONDS, _TRY_SECONDS = 1.0, 0.02
#: seconds that a new process waits for the exclusive one
JOIN_SECONDS = 5.0

#: of the id of a process
_MAX_DIGITS = 20

log = get_logger("astromesh.storage")


class SingleProcessLock:
    """An async context manager.

    Args:
        file: the shared file; the lock and the mark are created beside it.

    Attributes:
        exclusive: no other process uses the file.
        before_sharing: awaited when another process starts, which waits for that.
    """

    def __init__(self, file: Path) -> None:
        self._lock_file, self._mark = file.with_name(f"{file.name}-sole"), file.with_name(f"{file.name}-many")
        self.exclusive = False
        self.before_sharing: list[Callable[[], Awaitable[None]]] = []
        self._lock = -1
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises: StoreUnavailable: the process that uses the file does not release it."""
        if sys.platform == "win32":  # it has no such lock, so every process takes leases
            return self
        self._lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if self._locked(fcntl.LOCK_EX):
                self._mark.unlink(missing_ok=True)
                os.truncate(self._lock, 0)
                os.pwrite(self._lock, b"%d" % os.getpid(), 0)
                self.exclusive = True
                self._watching = asyncio.create_task(self._watch())
            else:
                await self._join()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._lock >= 0:
            os.close(self._lock)

    async def _join(self) -> None:
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                while not self._locked(fcntl.LOCK_SH):
                    self._mark.touch()  # each time: a process that starts alone removes it
                    await asyncio.sleep(_TRY_SECONDS)
        except TimeoutError as error:
            raise StoreUnavailable(self._unshared()) from error

    def _unshared(self) -> str:
        """Returns which process does not share the file, and what to do."""
        written = os.pread(self._lock, _MAX_DIGITS, 0).decode("ascii", "replace")
        name = self._lock_file.name.removesuffix("-sole")
        if not written.isdigit():  # of an earlier version
            return f"Another process uses {name} and does not share it; stop that process, or try again."
        if is_stopped(int(written)):
            way = how_to_continue(int(written))
        else:
            way = "It does not answer: end it, or try again."
        return f"The process {written} uses {name} and does not share it. {way}"

    async def _watch(self) -> None:
        while not self._mark.exists():  # another process makes it
            await sleep_to_tick(LOOK_SECONDS)
        self.exclusive = False
        while True:
            try:
                for ready in self.before_sharing:
                    await ready()
                break
            except AstromeshError as error:  # the other process waits
                log.warning("sharing_delayed", file=self._lock_file.name, error=str(error))
                await sleep_to_tick(LOOK_SECONDS)
        self._locked(fcntl.LOCK_SH)
        log.info("file_shared", file=self._lock_file.name)

    def _locked(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


#: Linux says here which processes hold locks
_LOCKS = Path("/proc/locks")


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; False where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # pid, (name), state: the name may contain anything
    return stat.rpartition(") ")[2][:1] in ("T", "t")


def stopped_holder(files: Iterable[Path]) -> int:
    """Returns the id of a stopped process with a lock for writing on one of the files; 0 if there is none."""
    try:
        lines = _LOCKS.read_text().splitlines()
        inodes = {str(file.stat().st_ino) for file in files if file.exists()}
    except OSError:
        return 0
    # number: POSIX ADVISORY WRITE pid device:inode start end
    locks = (line.split() for line in lines)
    holders = (lock for lock in locks if len(lock) == 8 and lock[3] == "WRITE")
    pids = (int(lock[4]) for lock in holders if lock[5].rpartition(":")[2] in inodes)
    return next((pid for pid in pids if pid > 0 and is_stopped(pid)), 0)


def how_to_continue(pid: int) -> str:
    return f"It is stopped (SIGSTOP): continue it with `kill -CONT {pid}`, or end it."
