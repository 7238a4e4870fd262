"""Cleans up behind the test process, whatever becomes of it.

A tiny process of its own session reads `+group N`, `-group N` and `+path P` lines from a pipe. When the pipe
closes, because pytest ended or was killed, it ends the process groups that are left and removes the paths.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

GRACE_STEPS = 40  # of 50 ms, in which a server may remove what it left in the system, shared memory for one


class Reaper:
    """The handle in the test process. One per process: `reaper()`."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    def watch_group(self, group: int) -> None:
        self._say(f"+group {group}")

    def forget_group(self, group: int) -> None:
        self._say(f"-group {group}")

    def temporary_directory(self, prefix: str) -> Path:
        """A new directory outside pytest's own, so that servers under another user can reach it."""
        path = tempfile.mkdtemp(prefix=f"astromesh-test-{prefix}-")
        self._say(f"+path {path}")
        return Path(path)

    def close(self) -> None:
        """Clean up now."""
        if self._child.stdin:
            self._child.stdin.close()
        self._child.wait()

    def _say(self, line: str) -> None:
        assert self._child.stdin
        self._child.stdin.write(line + "\n")


@cache
def reaper() -> Reaper:
    return Reaper()


def signal_group(group: int, number: int) -> bool:
    """Send a signal; false when the group is gone."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    groups: set[int] = set()
    paths: list[str] = []
    for line in sys.stdin:
        what, _, value = line.rstrip("\n").partition(" ")
        if what == "+group":
            groups.add(int(value))
        elif what == "-group":
            groups.discard(int(value))
        elif what == "+path":
            paths.append(value)
    for group in groups:
        signal_group(group, signal.SIGTERM)
    for _ in range(GRACE_STEPS):
        if not any(signal_group(group, 0) for group in groups):
            break
        time.sleep(0.05)
    for group in groups:
        signal_group(group, signal.SIGKILL)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
