"""`astromesh serve` as a process, as a user starts it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.platform.processes import (
    Command,
    Process,
    Server,
    answers_http,
    free_port,
    plain_environment,
    spawned,
)

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).parent / "astromesh")
CHILD = Path(__file__).parent / "child"  # its sitecustomize guards the server's network too


class ServerProcess:
    """A server on a port of its own, with its own home and data folder.

    Args:
        home: an empty folder, for HOME, the data and the log.
        config: folder given as `--config`.
        env: added to an environment that has nothing of the caller's but PATH and the locale.
        args: further arguments of the command.
        command: `serve` or `dev`.
        spawn: starts the process.

    Attributes:
        home: the working folder, too.
        url: `http://127.0.0.1:PORT`
        data: ASTROMESH_DATA_DIR, unless `env` names another.
    """

    def __init__(
        self,
        home: Path,
        config: Path,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        spawn: Callable[[Command, Path], Process] = spawned,
        command: str = "serve",
    ) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data = home / "data"
        self._attempts = home / "network-attempts"
        settings = {
            "ASTROMESH_DATA_DIR": str(self.data),
            "ASTROMESH_TEST_NETWORK_REPORT": str(self._attempts),
            "PYTHONPATH": f"{CHILD}:{ROOT}",
            **(env or {}),
        }
        argv = [PROGRAM, command, "--config", str(config), "--port", str(self.port), *args]
        self._env = plain_environment(home, settings)
        self._command = Command(argv, self._env, home)
        self._server = Server(self._command, home / "server.log", self._lives, spawn=spawn)

    @property
    def running(self) -> bool:
        return self._server.running

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def exit_code(self) -> int | None:
        return self._server.exit_code

    def launch(self) -> None:
        """Start without waiting, for servers that are to refuse."""
        self._server.launch()

    def start(self) -> None:
        """Start, and return when `/health/live` answers; also again, on the same port."""
        self._server.start()

    def wait(self, seconds: float = 15.0) -> int:
        """Wait until the server ends by itself; answers the exit code."""
        return self._server.wait(seconds)

    def terminate(self, seconds: float = 15.0) -> int:
        """SIGTERM, and SIGKILL when that does not help; answers the exit code."""
        return self._server.terminate(seconds)

    def kill(self) -> int:
        """SIGKILL: a crash."""
        return self._server.kill()

    def disarm(self, variable: str) -> None:
        """Leaves a variable of the environment out from the next start on."""
        self._env.pop(variable, None)

    def signal(self, number: int) -> None:
        self._server.signal(number)

    def log(self) -> str:
        """Everything the server printed, over all its starts."""
        return self._server.log()

    def network_attempts(self) -> list[str]:
        """What the server tried to reach beyond this machine."""
        return self._attempts.read_text().splitlines() if self._attempts.exists() else []

    def close(self) -> None:
        if self.running:
            self.kill()

    def _lives(self) -> bool:
        return answers_http(f"{self.url}/health/live")
