"""Lists of tools before the SDK reads them: it refuses a whole list for one tool that is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import structlog
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, Tool
from pydantic import ValidationError

from astromesh.types import JsonObject

log = structlog.get_logger("astromesh.mcp")


@asynccontextmanager
async def sifted(server: str, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """A transport's streams, lists of tools without those that nobody can call.

    Args:
        server: name in mcp.yaml, for messages.
        transport: opens the streams of messages, those that come and those that go.
    """
    async with transport as (read, write):
        yield _Sifted(server, read), write


class _Sifted:
    def __init__(self, server: str, inner: Any) -> None:
        self._server, self._inner = server, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # `last_context`, which the SDK looks for

    def __aiter__(self) -> _Sifted:
        return self

    async def __anext__(self) -> Any:
        return self._sift(await self._inner.__anext__())

    async def receive(self) -> Any:
        return self._sift(await self._inner.receive())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._inner.__aexit__(*error)

    def _sift(self, item: Any) -> Any:
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse) and isinstance(listed := message.result.get("tools"), list):
            message.result["tools"] = [tool for tool in listed if self._is_sound(tool)]
        return item

    def _is_sound(self, tool: Any) -> bool:
        if not (reason := fault(tool)):
            return True
        name = str(tool.get("name", ""))[:64] if isinstance(tool, dict) else ""
        log.warning("tool_left_out", server=self._server, tool=name, reason=reason)
        return False


def fault(tool: Any) -> str:
    """Why a tool as a server lists it is none, or nothing; what it says of its results does not matter."""
    if not isinstance(tool, dict):
        return "it is no object"
    if not _of_an_object(tool.get("inputSchema")):
        return "its inputSchema is not that of an object"
    if not _of_an_object(tool.get("outputSchema", _OBJECT)):
        del tool["outputSchema"]
    try:
        Tool.model_validate(tool)
    except ValidationError as error:
        places = sorted({str(found["loc"][0]) for found in error.errors() if found["loc"]})
        return f"{', '.join(places)} is not as MCP has it"
    return ""


_OBJECT: JsonObject = {"type": "object"}


def _of_an_object(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"
