"""The transport of MCP before streamable HTTP (protocol 2024-11-05): one stream of events, many POSTs.

What goes wrong with a POST is answered to the request in it at once; the session goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError
from yarl import URL

from astromesh.errors import NetError, NetUnreachable
from astromesh.mcp.transport import BROKEN, MAX_EVENT, NOT_SENT, REFUSED, SESSION_GONE, SILENCE_SECONDS
from astromesh.net.http import Http, Incoming
from astromesh.net.sse import ServerEvent, SseParser

#: seconds that a server gets to take a message; its answer comes on the stream
POST_SECONDS = 30.0
_OK = range(200, 300)
_LEFT = (anyio.BrokenResourceError, anyio.ClosedResourceError)

log = structlog.get_logger("astromesh.mcp")


@asynccontextmanager
async def over_sse(
    http: Http, url: str, headers: Mapping[str, str], on_end: Callable[[], None]
) -> AsyncIterator[Any]:
    """The SDK's streams to a server over HTTP and SSE.

    Args:
        on_end: called when the server's stream ends, or a message cannot be sent.

    Raises:
        MCPError: it cannot be reached, refuses us, or says no place to send messages to on its own host.
    """
    asking = {**headers, "accept": "text/event-stream"}
    try:
        async with http.stream("GET", url, headers=asking, silence=SILENCE_SECONDS, resend=False) as stream:
            if fault := _fault(stream.status):
                raise MCPError(*fault)
            events = _events(stream)
            target = await _endpoint(url, events)
            async with _joined(_Posts(http, target, headers, on_end), events, on_end) as streams:
                yield streams
    except NetError as error:
        raise MCPError(_code(error), str(error)) from error


@asynccontextmanager
async def _joined(
    posts: _Posts, events: AsyncIterator[ServerEvent], on_end: Callable[[], None]
) -> AsyncIterator[Any]:
    come, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, go = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks, come, read, write, go:
        tasks.start_soon(_receive, events, come, on_end)
        tasks.start_soon(posts.send_all, go, come)
        yield read, write
        tasks.cancel_scope.cancel()


async def _receive(
    events: AsyncIterator[ServerEvent],
    come: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], None],
) -> None:
    async with come:
        try:
            async for event in events:
                if event.event in ("", "message") and event.data:
                    await come.send(_message(event.data))
        except (NetError, *_LEFT) as error:
            log.debug("mcp_stream_ended", error=str(error))
        finally:
            on_end()


class _Posts:
    """Sends messages, one after the other."""

    def __init__(
        self, http: Http, target: str, headers: Mapping[str, str], on_end: Callable[[], None]
    ) -> None:
        self._http, self._target, self._on_end = http, target, on_end
        self._headers = {**headers, "content-type": "application/json"}

    async def send_all(
        self,
        go: MemoryObjectReceiveStream[SessionMessage],
        come: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        async for item in go:
            fault = await self._send(item)
            if fault is not None and isinstance(item.message, JSONRPCRequest):
                error = ErrorData(code=fault[0], message=fault[1])
                answer = JSONRPCError(jsonrpc="2.0", id=item.message.id, error=error)
                with suppress(*_LEFT):  # the stream has ended, and with it everything that was asked
                    await come.send(SessionMessage(answer))

    async def _send(self, item: SessionMessage) -> tuple[int, str] | None:
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        try:
            async with self._http.stream(
                "POST", self._target, body=body, headers=self._headers, silence=POST_SECONDS, resend=False
            ) as answer:
                await answer.drain()
                return _fault(answer.status)
        except NetError as error:
            self._on_end()
            return _code(error), str(error)


async def _events(stream: Incoming) -> AsyncIterator[ServerEvent]:
    parser = SseParser(MAX_EVENT)
    while chunk := await stream.chunk():
        for event in parser.feed(chunk):
            yield event


async def _endpoint(url: str, events: AsyncIterator[ServerEvent]) -> str:
    """Where messages are sent to: the first thing that the server says, on its own host."""
    async for event in events:
        if event.event == "endpoint":
            try:
                target = URL(url).join(URL(event.data.decode()))
            except ValueError:
                break
            if target.origin() != URL(url).origin():
                raise MCPError(
                    REFUSED, f"The server sends us to {target.host}:{target.port}, which nobody allowed."
                )
            return str(target)
    raise MCPError(BROKEN, "The server does not say where messages are sent to.")


def _message(data: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(data, by_name=False))
    except ValidationError as error:
        return error


def _fault(status: int) -> tuple[int, str] | None:
    """Code and words of an HTTP status, None where all is well."""
    if status in _OK:
        return None
    if status in (401, 403):
        return REFUSED, f"The server refuses the caller: HTTP {status}."
    if status == 404:
        return SESSION_GONE, "The server does not know the session any more."
    return BROKEN, f"The server answered HTTP {status}."


def _code(error: NetError) -> int:
    return NOT_SENT if isinstance(error, NetUnreachable) else BROKEN
