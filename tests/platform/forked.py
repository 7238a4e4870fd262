"""Servers that are forked from a process which has imported them, where a test starts many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from tests.platform.processes import Command, plain_environment

ROOT = Path(__file__).parents[2]


class ForkedProcess:
    """What `Server` needs of a process, for one that is another process's child."""

    def __init__(self, pid: int, ended: Path) -> None:
        self.pid = pid
        self._ended = ended

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return int(self._ended.read_text()) if self._ended.exists() else None

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked server", timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The process that forks.

    Args:
        home: an empty folder.
        env: what modules find in the environment while they are imported.
    """

    def __init__(self, home: Path, env: Mapping[str, str]) -> None:
        self._home = home
        self._numbers = count(1)
        settings = {"PYTHONPATH": str(ROOT), **env}
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.platform.fork_server"],
                env=plain_environment(home, settings), cwd=ROOT, text=True, bufsize=1,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._answer()

    def spawn(self, command: Command, log: Path) -> ForkedProcess:
        """Starts `astromesh …`, or the program behind a first word `-c`."""
        ended = self._home / f"exit-{next(self._numbers)}"
        order = {
            "argv": list(command.argv), "env": dict(command.env), "cwd": str(command.cwd),
            "log": str(log), "exit": str(ended),
        }  # fmt: skip
        assert self._process.stdin
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return ForkedProcess(int(self._answer()), ended)

    def close(self) -> None:
        """Servers that still run are their tests' to end."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the process that forks has ended:\n{(self._home / 'log').read_text()[-4000:]}"
        return line.strip()
