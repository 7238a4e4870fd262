"""The command as a user calls it: as a process, without a terminal or in one."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.platform import forked
from tests.platform.astromesh import CHILD, PROGRAM, ROOT
from tests.platform.processes import Command, plain_environment


def environment(folder: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of the caller's, guarded against the network."""
    return plain_environment(folder, {"PYTHONPATH": f"{CHILD}:{ROOT}", **(env or {})})


def astromesh(
    folder: Path, *words: str, env: Mapping[str, str] | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder, with `given` on stdin, until it ends.

    The process is a fork of one that has imported the command: a start takes a tenth.
    """
    return forked.shared().run(Command([PROGRAM, *words], environment(folder, env), folder), given)


class Terminal:
    """The command in a pseudo-terminal: what is typed, and what stands on the screen."""

    def __init__(self, folder: Path, *words: str, term: str = "dumb") -> None:
        self.screen = ""
        self._master, inner = pty.openpty()
        self._process = subprocess.Popen(
            [PROGRAM, *words],
            cwd=folder,
            env=environment(folder, {"TERM": term}),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        """Waits until the text stands on the screen behind all that was waited for before."""
        end = time.monotonic() + seconds
        while text not in self.screen:
            assert time.monotonic() < end, f"{text!r} did not come; the screen shows:\n{self.screen}"
            if select.select([self._master], [], [], 0.1)[0]:
                self.screen += self._read()
        self.screen = self.screen.partition(text)[2]

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C, pressed again where it came just before the prompt was ready to take it."""
        for _ in range(10):
            self.interrupt()
            try:
                self.wait_for(text, 3.0)
            except AssertionError:
                continue
            return
        self.wait_for(text, 0.0)

    def _read(self) -> str:
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError as error:  # Linux says so when nobody writes any more
            raise AssertionError(f"the command ended; the screen shows:\n{self.screen}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Waits for the end; answers the exit code."""
        try:
            return self._process.wait(20)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1
