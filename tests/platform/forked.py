"""Servers that are forked from a process which has imported them, where a test starts many."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from itertools import count
from pathlib import Path

from tests.platform.processes import Command, plain_environment
from tests.platform.reaper import reaper

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
        # the first start waits: a test that times out meanwhile leaves the process to the next one
        self._is_ready = False

    def spawn(self, command: Command, log: Path) -> ForkedProcess:
        """Starts `astromesh …`, or the program behind a first word `-c`."""
        return self._start(command, Path(os.devnull), log, log)

    def run(self, command: Command, given: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command, with `given` on stdin, until it ends."""
        folder = self._home / f"run-{next(self._numbers)}"
        folder.mkdir()
        stdin, stdout, stderr = (folder / name for name in ("stdin", "stdout", "stderr"))
        stdin.write_text(given)
        process = self._start(command, stdin, stdout, stderr)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(list(command.argv), code, stdout.read_text(), stderr.read_text())

    def _start(self, command: Command, stdin: Path, stdout: Path, stderr: Path) -> ForkedProcess:
        ended = self._home / f"exit-{next(self._numbers)}"
        order = {
            "argv": list(command.argv), "env": dict(command.env), "cwd": str(command.cwd),
            "stdin": str(stdin), "stdout": str(stdout), "stderr": str(stderr), "exit": str(ended),
        }  # fmt: skip
        if not self._is_ready:
            self._answer()
            self._is_ready = True
        assert self._process.stdin
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return ForkedProcess(int(self._answer()), ended)

    def close(self) -> None:
        """Servers that still run are their tests' to end."""
        assert self._process.stdin
        assert self._process.stdout
        if not self._is_ready:
            self._process.kill()
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the process that forks has ended:\n{(self._home / 'log').read_text()[-4000:]}"
        return line.strip()


@cache
def shared() -> ForkServer:
    """The one of this process of tests, for commands that find nothing in the environment at their import."""
    return ForkServer(reaper().temporary_directory("forks"), {})
