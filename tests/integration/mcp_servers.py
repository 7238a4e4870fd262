"""Servers for tests of MCP: over real HTTP in this process, or as processes that can be killed."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import uvicorn
import yaml

SCRIPT = Path(__file__).parent / "mcp_peer.py"


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Base URL of an ASGI app behind real sockets."""
    place = socket.socket()
    place.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, timeout_keep_alive=300)
    server = uvicorn.Server(config)  # a call is not sent again if the server closes an idle connection
    task = asyncio.create_task(server.serve(sockets=[place]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        place.close()


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        return port


class Peer:
    """The server of `mcp_peer.py` as a process of its own over HTTP, at a port that survives its death."""

    def __init__(self, folder: Path, *how: str) -> None:
        self.folder, self._how, self.port = folder, how, free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(self.folder), str(self.port), *self._how
        )
        await until(self._listens)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


async def until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Waits for something to become true."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


def mcp_yaml(folder: Path, **servers: Any) -> None:
    whole = {"apiVersion": "astromesh/v1", "kind": "MCPConfig", "spec": {"servers": servers}}
    (folder / "mcp.yaml").write_text(yaml.safe_dump(whole))
