"""Tools over MCP's streamable HTTP, of whatever there is to call: an ASGI app on the SDK's server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, get_args

import orjson
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as WireTool
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh.errors import AstromeshError
from astromesh.types import JsonObject, ToolSpec

_BLOCKS = get_args(ContentBlock)

log = structlog.get_logger("astromesh.mcp.server")

#: the tools that a request may see
List = Callable[[Request], Iterable[ToolSpec]]
#: one call of a request: tool, arguments; AstromeshErrors are told to the caller
Call = Callable[[Request, str, JsonObject], Awaitable[Any]]


class Serving:
    """Serves MCP while it is open. Every request stands for itself, so that any worker can answer it.

    Args:
        name, version: of the server, for its clients.
        hosts: `Host` headers that are answered; None for all.
    """

    def __init__(
        self, name: str, version: str, tools: List, call: Call, hosts: Iterable[str] | None = None
    ) -> None:
        self._tools, self._call = tools, call
        server: Server[Any] = Server(
            name, version=version, on_list_tools=self._on_list, on_call_tool=self._on_call
        )
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=hosts is not None, allowed_hosts=list(hosts or ()),
            allowed_origins=[f"{scheme}://{host}" for host in hosts or () for scheme in ("http", "https")],
        )  # fmt: skip
        self._manager = StreamableHTTPSessionManager(
            server, stateless=True, json_response=True, security_settings=security
        )
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def asgi(self) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            # white space around a value is none of it (RFC 9110, 5.5); not every server takes it away
            headers = [(name, value.strip()) for name, value in scope["headers"]]
            await self._manager.handle_request({**scope, "headers": headers}, receive, send)

        return app

    async def open(self) -> None:
        """Starts it, in a task of its own: the SDK's scopes end in the task they began in."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._hold(ready), name="mcp serving")
        await ready.wait()

    async def close(self) -> None:
        self._leave.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _hold(self, ready: asyncio.Event) -> None:
        try:
            async with self._manager.run():
                ready.set()
                await self._leave.wait()
        finally:
            ready.set()

    async def _on_list(
        self, context: ServerRequestContext[Any, Request], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[_wire(spec) for spec in self._tools(_request(context))])

    async def _on_call(
        self, context: ServerRequestContext[Any, Request], params: CallToolRequestParams
    ) -> CallToolResult:
        try:
            value = await self._call(_request(context), params.name, dict(params.arguments or {}))
        except AstromeshError as error:
            return _result(str(error), failed=True)
        except (
            Exception
        ):  # border of a tool call: what a handler raises ends the call and says nothing of itself
            log.exception("mcp_tool_crashed", tool=params.name)
            return _result(f"The tool {params.name!r} failed for an internal reason.", failed=True)
        return _result(value)


def _request(context: ServerRequestContext[Any, Request]) -> Request:
    assert context.request is not None, "streamable HTTP has a request for every message"
    return context.request


def _wire(spec: ToolSpec) -> WireTool:
    hints = ToolAnnotations(read_only_hint=spec.effect == "read")
    return WireTool(
        name=spec.name, description=spec.description, input_schema=dict(spec.parameters), annotations=hints
    )


def _result(value: Any, *, failed: bool = False) -> CallToolResult:
    """Text as it is, objects as structured content too; content blocks of MCP stay what they are."""
    blocks = [value] if isinstance(value, _BLOCKS) else value
    if isinstance(blocks, list) and blocks and all(isinstance(block, _BLOCKS) for block in blocks):
        return CallToolResult(content=blocks, is_error=failed)
    text = value if isinstance(value, str) else _json(value)
    structured = None
    if isinstance(value, dict):
        with suppress(orjson.JSONDecodeError):
            structured = orjson.loads(text)
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured, is_error=failed
    )


def _json(value: Any) -> str:
    return orjson.dumps(value, default=_jsonable, option=orjson.OPT_NON_STR_KEYS).decode()


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, set | frozenset) else str(value)
