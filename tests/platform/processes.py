"""A server as a child process."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tests.platform.reaper import reaper, signal_group

# a server that cannot start ends by itself; on a busy machine one that can takes long
START_SECONDS = 120.0


class ServerFailed(AssertionError):
    """A server did not come up; the message holds the end of its log."""


@dataclass(frozen=True)
class User:
    """Whom a server runs as, where it is not the caller."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Command:
    """What to start: argument vector, whole environment, working directory, user."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    user: User | None = None


class Process(Protocol):
    """A process that was started, here or by another one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int) -> None: ...


def spawned(command: Command, log: Path) -> Process:
    """A process of its own session; its output is appended to the log."""
    user = command.user
    with log.open("ab") as told:
        return subprocess.Popen(
            list(command.argv),
            env=dict(command.env),
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )


class Server:
    """Starts a command, waits until it answers, stops it; again and again, at one address.

    Args:
        command: what to start.
        log: file that takes stdout and stderr, appended over restarts.
        answers: true once the server takes requests; asked until then.
        quit_signal: what asks it politely to stop.
        spawn: starts a command with its log.
    """

    def __init__(
        self,
        command: Command,
        log: Path,
        answers: Callable[[], bool],
        quit_signal: int = signal.SIGTERM,
        spawn: Callable[[Command, Path], Process] = spawned,
    ) -> None:
        self._command = command
        self._log = log
        self._answers = answers
        self._quit_signal = quit_signal
        self._spawn = spawn
        self._process: Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process, "the server was not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last process, None while it runs; -9 after SIGKILL."""
        return self._process.poll() if self._process else None

    def launch(self) -> None:
        """Start the process without waiting for answers."""
        assert not self.running, "the server runs already"
        self._process = self._spawn(self._command, self._log)
        reaper().watch_group(self._process.pid)

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start the process and return when it answers."""
        self.launch()
        self.wait_until_it_answers(seconds)

    def wait_until_it_answers(self, seconds: float = START_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not self._answers():
            if not self.running:
                raise ServerFailed(
                    f"{self._command.argv[0]} ended with {self.exit_code}\n{self.log()[-4000:]}"
                )
            if time.monotonic() > end:
                self.kill()
                raise ServerFailed(
                    f"{self._command.argv[0]} did not answer in {seconds} s\n{self.log()[-4000:]}"
                )
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its children."""
        assert self._process, "the server was not started"
        self._process.send_signal(number)

    def terminate(self, seconds: float = 15.0) -> int:
        """Ask the server to stop, wait for its end, answer the exit code; kill it when the time is over."""
        assert self._process, "the server was not started"
        if self.running:
            self.signal(self._quit_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return self.kill()

    def wait(self, seconds: float) -> int:
        """Wait until the server ends by itself; answers the exit code."""
        assert self._process, "the server was not started"
        return self._process.wait(seconds)

    def kill(self) -> int:
        """SIGKILL to the whole process group: nothing gets a chance to tidy up."""
        assert self._process, "the server was not started"
        signal_group(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        reaper().forget_group(self._process.pid)
        return code

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class ServerInFolder(Server):
    """A server with a folder of its own, which is removed when it is closed.

    Args:
        home: the folder; it takes the log, too.
    """

    def __init__(
        self, home: Path, command: Command, answers: Callable[[], bool], quit_signal: int = signal.SIGTERM
    ) -> None:
        super().__init__(command, home / "log", answers, quit_signal)
        self.home = home

    def stop(self) -> None:
        """Ask it to stop, and wait for its end; what it holds survives."""
        self.terminate()

    def close(self) -> None:
        if self.running:
            self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def free_port() -> int:
    """A port nobody listens on, below the range that outgoing connections take theirs from.

    So a stopped server finds its port free when it is started again.
    """
    while True:
        port = random.SystemRandom().randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def fetch(url: str, method: str = "GET", body: bytes | None = None) -> bytes:
    """A request to this machine, whatever proxy the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, body, method=method), timeout=5) as answer:
        content: bytes = answer.read()
    return content


def answers_http(url: str) -> bool:
    address = urlsplit(url)
    try:
        with contextlib.closing(HTTPConnection(address.netloc, timeout=2)) as connection:
            connection.request("GET", address.path)
            return connection.getresponse().status < 400
    except (OSError, HTTPException):
        return False


def plain_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without the caller's API keys and settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    return {"HOME": str(home), "PYTHONUNBUFFERED": "1", **kept, **(extra or {})}
