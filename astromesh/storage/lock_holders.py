"""Which processes hold a file, and whether they are stopped: Linux says so in /proc."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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
