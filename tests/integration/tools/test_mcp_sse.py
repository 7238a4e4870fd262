"""Servers over the transport before streamable HTTP that break: each fault harms its own calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from astromesh.errors import ToolFailed
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.tools.base import ToolContext
from astromesh.tools.mcp.client import MCPServer
from tests.integration.mcp_servers import until

CONTEXT = ToolContext(tool="t")
OLD = "2024-11-05"


class Old:
    """Speaks the old transport. What it does wrong is a field.

    Args:
        endpoint: what it says first.
        status: of its answer to the stream.
    """

    def __init__(self, endpoint: str = "/messages?session=1", status: int = 200) -> None:
        self.endpoint, self.status = endpoint, status
        self.refuses = 0
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.tokens.add(request.headers.get("authorization", ""))
        if self.status != 200:
            return web.Response(status=self.status)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queue = queue
        await answer.write(b": hello\n\nevent: endpoint\ndata: " + self.endpoint.encode() + b"\n\n")
        while (event := await queue.get()) is not None:
            await answer.write(event)
        return answer

    async def message(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("authorization", ""))
        sent = await request.json()
        method, number = sent["method"], sent.get("id")
        name = sent.get("params", {}).get("name", "")
        self.asked.append(name or method)
        if name == "refused":
            return web.Response(status=self.refuses)
        if name == "ends":
            self._queue.put_nowait(None)
        elif number is not None:
            self._answer(number, method, name)
        return web.Response(status=202)

    def _answer(self, number: int, method: str, name: str) -> None:
        about = {"name": "old", "version": "1"}
        tools = [{"name": n, "inputSchema": {"type": "object"}} for n in ("fine", "refused", "ends", "odd")]
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}},
                "serverInfo": about,
            },
            "tools/list": {"tools": tools},
            "tools/call": {"content": [{"type": "text", "text": "fine"}]},
        }
        if name == "odd":
            self._queue.put_nowait(b"data: {no json\n\nevent: unknown\ndata: x\n\n")
        if method in results:
            body = {"jsonrpc": "2.0", "id": number, "result": results[method]}
        else:
            body = {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}}
        self._queue.put_nowait(b"event: message\r\ndata: " + json.dumps(body).encode() + b"\r\n\r\n")

    def end(self) -> None:
        self._queue.put_nowait(None)


@asynccontextmanager
async def using(folder: Path, old: Old, **more: Any) -> AsyncIterator[MCPServer]:
    app = web.Application()
    app.router.add_get("/sse", old.stream)
    app.router.add_post("/messages", old.message)
    async with TestServer(app) as place, Http() as http:
        options = MCPServer.Options(name="old", transport="sse", url=str(place.make_url("/sse")), **more)
        server = await MCPServer.open(options, Deps(http=http, data_dir=folder, config_dir=folder))
        try:
            await server.wait_first_attempt()
            yield server
        finally:
            await server.close()
            old.end()


async def call(server: MCPServer, tool: str) -> Any:
    return await server.call(tool, {}, CONTEXT, False)


async def test_tools_are_listed_and_called_with_the_operators_headers(tmp_path: Path) -> None:
    old = Old()
    async with using(tmp_path, old, headers={"authorization": "Bearer operator"}) as server:
        assert {tool.spec.name for tool in await server.tools()} == {"fine", "refused", "ends", "odd"}
        assert await call(server, "fine") == "fine"
        assert await call(server, "odd") == "fine"  # what is no message beside it harms nobody
    assert old.tokens == {"Bearer operator"}


@pytest.mark.parametrize(
    ("status", "says"), [(500, "HTTP 500"), (403, "rejects the caller"), (307, "HTTP 307")]
)
async def test_a_message_that_is_refused_is_one_failed_call_and_made_once(
    tmp_path: Path, status: int, says: str
) -> None:
    old = Old()
    async with using(tmp_path, old) as server:
        old.refuses = status
        with pytest.raises(ToolFailed, match=says):
            await call(server, "refused")
        assert await call(server, "fine") == "fine"
    assert old.asked.count("refused") == 1


async def test_a_stream_that_ends_in_a_call_ends_the_call_and_a_new_session_comes(tmp_path: Path) -> None:
    """It is not made again: what it began may have happened."""
    old = Old()
    async with using(tmp_path, old, timeout_seconds=60) as server:
        with pytest.raises(ToolFailed, match="may have happened"):
            await call(server, "ends")

        async def answers() -> bool:
            try:
                return await call(server, "fine") == "fine"
            except ToolFailed:  # the end of the session is not known to everybody yet
                return False

        await until(answers)
    assert old.asked.count("ends") == 1


@pytest.mark.parametrize(
    ("endpoint", "status", "says"),
    [
        ("http://169.254.169.254/latest", 200, "not its own host"),
        ("https://127.0.0.1/messages", 200, "not its own host"),
        ("http://[", 200, "does not name an endpoint"),
        ("/messages", 401, "rejects the caller: HTTP 401"),
        ("/messages", 500, "HTTP 500"),
    ],
)
async def test_a_server_that_cannot_be_used_says_why(
    tmp_path: Path, endpoint: str, status: int, says: str
) -> None:
    """Above all one that sends messages, with all their headers, elsewhere."""
    old = Old(endpoint, status)
    async with using(tmp_path, old) as server:
        with pytest.raises(ToolFailed, match=says):
            await server.ping()
    assert old.asked == []
