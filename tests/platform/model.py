"""The model stand-in of `tests.platform.mock_llm` as a process, and what tests ask of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.platform.astromesh import ROOT
from tests.platform.processes import Command, Server, fetch, free_port, plain_environment, port_is_open


class MockModel:
    """A model server, stoppable and startable at one URL.

    Attributes:
        url: what a provider's `endpoint` is set to, `http://127.0.0.1:PORT/v1`.
    """

    def __init__(self, home: Path) -> None:
        port = free_port()
        self._origin = f"http://127.0.0.1:{port}"
        self.url = f"{self._origin}/v1"
        argv = [sys.executable, "-m", "tests.platform.mock_llm", "--port", str(port)]
        command = Command(argv, plain_environment(home), ROOT)
        self._server = Server(command, home / "mock_llm.log", lambda: port_is_open(port))

    @property
    def running(self) -> bool:
        return self._server.running

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.kill()

    def log(self) -> str:
        return self._server.log()

    def close(self) -> None:
        if self.running:
            self.stop()

    def script(self, *answers: dict[str, Any]) -> None:
        """Queue answers, one per chat request; what they may hold is in the docstring of `mock_llm`."""
        self._ask("POST", "/script", list(answers))

    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the chat and embedding requests so far, oldest first."""
        bodies: list[dict[str, Any]] = self._ask("GET", "/bodies")
        return bodies

    def stats(self) -> dict[str, int]:
        """`requests`, `chats`, `open`, `most_open`."""
        counts: dict[str, int] = self._ask("GET", "/stats")
        return counts

    def reset(self) -> None:
        self._ask("POST", "/reset")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(fetch(self._origin + path, method, json.dumps(body).encode()))
