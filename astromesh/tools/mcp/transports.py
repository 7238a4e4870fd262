"""Transports to an MCP server: streamable HTTP, SSE (protocol 2024-11-05) and the pipes of a child process.

HTTP goes through `astromesh.net`. A transport keeps the SDK at the configured origin, adds the caller's token
where no SDK log can show it, and distinguishes "was not sent" from "may have happened": only the first is
retried.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol, TextIO

import anyio
import httpx2
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError
from yarl import URL

from astromesh.errors import NetError, NetUnreachable, ToolFailed
from astromesh.logs import get_logger
from astromesh.net.http import Http, StreamingResponse
from astromesh.net.stream_parsers import ServerEvent, SseParser

log = get_logger("astromesh.mcp")
#: most characters of a logged line, and most bytes of an unfinished one
_MAX_LOG_LINE, _MAX_UNFINISHED_LINE = 2000, 64 * 1024
#: lines and characters of `LastWords`
_MAX_LAST_LINES, _MAX_LAST_WORDS = 3, 500


class LastWords:
    """The newest lines that a server's program wrote to stderr: most programs say there why they end."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_LAST_LINES)

    def add(self, line: str) -> None:
        self._lines.append(line)

    def clear(self) -> None:
        self._lines.clear()

    def __str__(self) -> str:
        return " / ".join(self._lines)[-_MAX_LAST_WORDS:]


@asynccontextmanager
async def logged_stderr(server: str, words: LastWords) -> AsyncIterator[TextIO]:
    """Opens a file whose lines are logged as `mcp_server_says`: the stderr of a server's program.

    Args:
        words: receives them, too.
    """
    reading, writing = os.pipe()
    ours = os.fdopen(reading, "rb", buffering=0)
    theirs = os.fdopen(writing, "w")
    lines = _StderrLines(server, words)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: lines, ours)
    try:
        yield theirs
    finally:
        theirs.close()
        with suppress(BlockingIOError):  # a child of the program may have the pipe open
            while rest := os.read(reading, _MAX_UNFINISHED_LINE):
                lines.data_received(rest)
        transport.close()


class _StderrLines(asyncio.Protocol):
    def __init__(self, server: str, words: LastWords) -> None:
        self._server, self._words, self._rest = server, words, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_UNFINISHED_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if text := line.decode("utf-8", "replace").strip():
                log.info("mcp_server_says", server=self._server, text=text[:_MAX_LOG_LINE])
                self._words.add(text[:_MAX_LOG_LINE])

    def connection_lost(self, error: Exception | None) -> None:
        self.data_received(b"\n")


class _SdkLogHandler(logging.Handler):
    """Logs the SDK's warnings in one line; the result of a call carries the error."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        more = {"error": error.__name__} if error else {}
        log.warning("mcp_sdk", text=record.getMessage().partition("\n")[0][:_MAX_LOG_LINE], **more)


_SDK_LOG_HANDLER = _SdkLogHandler(logging.WARNING)


def redirect_sdk_logs() -> None:
    """Redirects the SDK's log to astromesh's, once."""
    sdk = logging.getLogger("mcp")
    if _SDK_LOG_HANDLER not in sdk.handlers:
        sdk.addHandler(_SDK_LOG_HANDLER)
        sdk.propagate = False


# -- streamable HTTP and child processes ---------------------------------------------------------------------
#
# The SDK uses httpx; `HttpxTransport` routes its requests through `astromesh.net`. A failed request returns
# an error response, because an exception would end the SDK's session with every other call.

#: JSON-RPC error codes of this client, outside the ranges of JSON-RPC and MCP
NOT_SENT, SESSION_GONE, REFUSED, BROKEN = 790_001, 790_002, 790_003, 790_004
#: ends streams of servers that are gone; the session limits the time of a call
SILENCE_SECONDS = 3600.0
MAX_RESPONSE = 32 * 1024 * 1024
MAX_EVENT = 4 * 1024 * 1024
#: headers that aiohttp sets for its own connection
_OWN_HEADERS = frozenset(
    {"host", "connection", "accept-encoding", "content-length", "user-agent", "transfer-encoding"}
)
_DECODED_HEADERS = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_EVENT_STREAM = "text/event-stream"


class Tokens(Protocol):
    """Where a transport gets the tokens of its requests: `oauth.OAuthSession`."""

    async def token(self) -> str: ...

    def challenge(self, status: int, headers: Mapping[str, str]) -> Any: ...

    async def renew(self, refused: str, challenge: Any) -> str: ...


class HttpxTransport(httpx2.AsyncBaseTransport):
    """An httpx transport over `Http`, for one server.

    Args:
        url: of the server, as configured.
        headers: of every request, may contain secrets.
        on_end: called when the server's stream ends, which may mean that the server ended.
        login: has the tokens of the requests; None: `headers` are enough.
    """

    def __init__(
        self,
        http: Http,
        url: str,
        headers: Mapping[str, str],
        on_end: Callable[[], None],
        login: Tokens | None = None,
    ) -> None:
        self._http, self._headers, self._on_end = http, dict(headers), on_end
        self._login = login
        self._refused: tuple[str, ToolFailed] | None = None  # a token, and why there is no other
        self._origin = URL(url).origin()

    def __repr__(self) -> str:
        return f"HttpxTransport({self._origin})"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (target := URL(str(request.url)).origin()) != self._origin:
            return _error_response(403, REFUSED, f"The server redirects to {target}, which is not its own.")
        listening = request.method == "GET"
        body = await request.aread() or None
        headers = {k: v for k, v in request.headers.items() if k not in _OWN_HEADERS} | self._headers
        headers |= _trace_header(body)
        leave = AsyncExitStack()
        try:
            incoming = await self._open(leave, request, body, headers)
        except ToolFailed as error:  # of a login
            return _error_response(403, REFUSED, str(error))
        except NetError as error:
            if request.method == "DELETE":  # ends a session whose server is gone
                return httpx2.Response(204)
            self._on_end()
            return _error_response(503, _error_code(error), str(error))
        fault = _status_fault(incoming.status)
        concerns_call = incoming.status == 404 and (listening or "mcp-session-id" not in headers)
        if fault is not None and fault[0] in (REFUSED, SESSION_GONE) and not concerns_call:
            await leave.aclose()
            return _error_response(incoming.status, *fault)
        return _response(incoming, leave, self._on_end if listening else _ignore)

    async def _open(
        self, leave: AsyncExitStack, request: httpx2.Request, body: bytes | None, headers: dict[str, str]
    ) -> StreamingResponse:
        """Sends a request, once more with another token where the first one is refused."""
        send = partial(self._send, leave, request, body, headers)
        if self._login is None:
            return await send("")
        token = await self._login.token()
        if self._refused is not None and self._refused[0] == token:
            raise self._refused[1]  # not what the server says to another message of the handshake
        incoming = await send(token)
        if (challenge := self._login.challenge(incoming.status, incoming.headers)) is None:
            return incoming
        await leave.aclose()
        try:
            renewed = await self._login.renew(token, challenge)
        except ToolFailed as error:
            if incoming.status == 401 or b'"tools/call"' not in (body or b""):  # else it is of one tool
                self._refused = token, error
            raise
        return await send(renewed)

    async def _send(
        self, leave: AsyncExitStack, request: httpx2.Request, body: bytes | None, headers: dict[str, str],
        token: str,
    ) -> StreamingResponse:  # fmt: skip
        more = {"authorization": f"Bearer {token}"} if token else {}
        return await leave.enter_async_context(
            self._http.stream(
                request.method, str(request.url), body=body, headers={**headers, **more},
                read_timeout=SILENCE_SECONDS, resend=False,
            )
        )  # fmt: skip


def _ignore() -> None: ...


def _trace_header(body: bytes | None) -> dict[str, str]:
    """Returns the header of a message with a trace context.

    The SDK sends messages in tasks of its own, so that only the message itself says which call it is.
    """
    if body is None or b'"traceparent"' not in body:
        return {}
    try:
        meta = orjson.loads(body)["params"]["_meta"]
        return {"traceparent": meta["traceparent"]}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}


def _error_response(status: int, code: int, message: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=orjson.dumps(body))


def _response(
    incoming: StreamingResponse, leave: AsyncExitStack, on_end: Callable[[], None]
) -> httpx2.Response:
    headers = [(k, v) for k, v in incoming.headers.items() if k.lower() not in _DECODED_HEADERS]
    streams = incoming.headers.get("content-type", "").lower().startswith(_EVENT_STREAM)
    body = _ResponseBody(incoming, leave, on_end, None if streams else MAX_RESPONSE)
    return httpx2.Response(incoming.status, headers=headers, stream=body)


class _ResponseBody(httpx2.AsyncByteStream):
    def __init__(
        self, incoming: StreamingResponse, leave: AsyncExitStack, on_end: Callable[[], None], most: int | None
    ) -> None:
        self._incoming, self._leave, self._on_end, self._most = incoming, leave, on_end, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            while chunk := await self._incoming.chunk():
                size += len(chunk)
                if self._most is not None and size > self._most:
                    raise httpx2.StreamError(f"The response has more than {self._most} bytes.")
                yield chunk
        except NetError as error:
            raise httpx2.StreamError(str(error)) from error
        finally:
            self._on_end()

    async def aclose(self) -> None:
        await self._leave.aclose()


@asynccontextmanager
async def http_transport(
    http: Http,
    url: str,
    headers: Mapping[str, str],
    on_end: Callable[[], None],
    login: Tokens | None = None,
) -> AsyncIterator[Any]:
    """Opens the SDK's streams to a server over streamable HTTP."""
    bridge = HttpxTransport(http, url, headers, on_end, login)
    async with (
        httpx2.AsyncClient(transport=bridge, timeout=None) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_EVENT) as streams,
    ):
        yield streams


@asynccontextmanager
async def stdio_transport(
    server: str, parameters: StdioServerParameters, words: LastWords, on_end: Callable[[], None]
) -> AsyncIterator[Any]:
    """Starts a server as a child process, opens the SDK's streams to it and logs its stderr.

    The end of the process ends the stream of messages, so `on_end` is not called.
    """
    words.clear()
    async with logged_stderr(server, words) as errors, stdio_client(parameters, errlog=errors) as streams:
        yield streams


# -- SSE: one stream of events, many POSTs -------------------------------------------------------------------
#
# A failed POST is answered to its request immediately; the session continues.

#: seconds for a server to accept a message; the response arrives on the stream
POST_SECONDS = 30.0
_SUCCESS = range(200, 300)
_CLOSED_STREAM = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@asynccontextmanager
async def sse_transport(
    http: Http, url: str, headers: Mapping[str, str], on_end: Callable[[], None]
) -> AsyncIterator[Any]:
    """Opens the SDK's streams to a server over HTTP and SSE.

    Args:
        on_end: called when the server's stream ends or a message cannot be sent.

    Raises:
        MCPError: it cannot be reached, rejects the caller, or names no endpoint on its own host.
    """
    asking = {**headers, "accept": "text/event-stream"}
    try:
        async with http.stream(
            "GET", url, headers=asking, read_timeout=SILENCE_SECONDS, resend=False
        ) as stream:
            if fault := _status_fault(stream.status):
                raise MCPError(*fault)
            events = _sse_events(stream)
            target = await _sse_endpoint(url, events)
            async with _sse_streams(_SsePosts(http, target, headers, on_end), events, on_end) as streams:
                yield streams
    except NetError as error:
        raise MCPError(_error_code(error), str(error)) from error


@asynccontextmanager
async def _sse_streams(
    posts: _SsePosts, events: AsyncIterator[ServerEvent], on_end: Callable[[], None]
) -> AsyncIterator[Any]:
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, go = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks, incoming, read, write, go:
        tasks.start_soon(_sse_receive, events, incoming, on_end)
        tasks.start_soon(posts.send_all, go, incoming)
        yield read, write
        tasks.cancel_scope.cancel()


async def _sse_receive(
    events: AsyncIterator[ServerEvent],
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], None],
) -> None:
    async with incoming:
        try:
            async for event in events:
                if event.event in ("", "message") and event.data:
                    await incoming.send(_sse_message(event.data))
        except (NetError, *_CLOSED_STREAM) as error:
            log.debug("mcp_stream_ended", error=str(error))
        finally:
            on_end()


class _SsePosts:
    """Sends messages one after the other."""

    def __init__(
        self, http: Http, target: str, headers: Mapping[str, str], on_end: Callable[[], None]
    ) -> None:
        self._http, self._target, self._on_end = http, target, on_end
        self._headers = {**headers, "content-type": "application/json"}

    async def send_all(
        self,
        go: MemoryObjectReceiveStream[SessionMessage],
        incoming: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        async for item in go:
            fault = await self._send(item)
            if fault is not None and isinstance(item.message, JSONRPCRequest):
                error = ErrorData(code=fault[0], message=fault[1])
                answer = JSONRPCError(jsonrpc="2.0", id=item.message.id, error=error)
                with suppress(*_CLOSED_STREAM):  # the stream has ended, and with it all requests
                    await incoming.send(SessionMessage(answer))

    async def _send(self, item: SessionMessage) -> tuple[int, str] | None:
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        headers = {**self._headers, **_trace_header(body)}
        try:
            async with self._http.stream(
                "POST",
                self._target,
                body=body,
                headers=headers,
                read_timeout=POST_SECONDS,
                resend=False,
            ) as answer:
                await answer.drain()
                return _status_fault(answer.status)
        except NetError as error:
            self._on_end()
            return _error_code(error), str(error)


async def _sse_events(stream: StreamingResponse) -> AsyncIterator[ServerEvent]:
    parser = SseParser(MAX_EVENT)
    while chunk := await stream.chunk():
        for event in parser.feed(chunk):
            yield event


async def _sse_endpoint(url: str, events: AsyncIterator[ServerEvent]) -> str:
    """Returns the endpoint for messages: the first event of the server, on its own host."""
    async for event in events:
        if event.event == "endpoint":
            try:
                target = URL(url).join(URL(event.data.decode()))
            except ValueError:
                break
            if target.origin() != URL(url).origin():
                raise MCPError(
                    REFUSED,
                    f"The server names the endpoint {target.host}:{target.port}, which is not its own host.",
                )
            return str(target)
    raise MCPError(BROKEN, "The server does not name an endpoint for messages.")


def _sse_message(data: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(data, by_name=False))
    except ValidationError as error:
        return error


def _status_fault(status: int) -> tuple[int, str] | None:
    """Returns code and message of an HTTP status, None for success."""
    if status in _SUCCESS:
        return None
    if status in (401, 403):
        return REFUSED, f"The server rejects the caller: HTTP {status}."
    if status == 404:
        return SESSION_GONE, "The server no longer knows the session."
    return BROKEN, f"The server answered HTTP {status}."


def _error_code(error: NetError) -> int:
    return NOT_SENT if isinstance(error, NetUnreachable) else BROKEN
