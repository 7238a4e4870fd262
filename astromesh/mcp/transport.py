"""How the SDK reaches a server: HTTP over astromesh's one session, or the pipes of a child process.

The SDK speaks through httpx; `Bridge` lets it speak through `astromesh.net` instead. It keeps the SDK at the
operator's host, adds the caller's token where no log of the SDK can see it, and tells "was not sent" from
"may have happened": only the first may be repeated. A failed request is answered by an error of its own,
since an exception would end the SDK's whole session with every other call on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import httpx2
import orjson
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from yarl import URL

from astromesh.errors import NetError, NetUnreachable
from astromesh.mcp.said import heard
from astromesh.net.http import Http, Incoming

#: JSON-RPC error codes of this side, outside of what JSON-RPC and MCP give out
NOT_SENT, SESSION_GONE, REFUSED, BROKEN = 790_001, 790_002, 790_003, 790_004
#: a call's time is limited by the session; this only ends streams of servers that are gone
SILENCE_SECONDS = 3600.0
MAX_ANSWER = 32 * 1024 * 1024
MAX_EVENT = 4 * 1024 * 1024
#: aiohttp says these by itself, for its own connection
_OWN = frozenset(
    {"host", "connection", "accept-encoding", "content-length", "user-agent", "transfer-encoding"}
)
_DECODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_STREAM = "text/event-stream"


class Bridge(httpx2.AsyncBaseTransport):
    """An httpx transport over `Http`, for one server.

    Args:
        url: the server's, as its operator wrote it.
        headers: of every request, secrets among them.
        on_end: called when the server's own stream ends, which may mean that the server did.
    """

    def __init__(self, http: Http, url: str, headers: Mapping[str, str], on_end: Callable[[], None]) -> None:
        self._http, self._headers, self._on_end = http, dict(headers), on_end
        self._host = URL(url).host

    def __repr__(self) -> str:
        return f"Bridge({self._host})"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host != self._host:
            return _error(403, REFUSED, f"The server redirects to {request.url.host}, which nobody allowed.")
        listening = request.method == "GET"
        headers = {k: v for k, v in request.headers.items() if k not in _OWN} | self._headers
        leave = AsyncExitStack()
        try:
            incoming = await leave.enter_async_context(
                self._http.stream(
                    request.method, str(request.url), body=await request.aread() or None, headers=headers,
                    silence=SILENCE_SECONDS, resend=False,
                )
            )  # fmt: skip
        except NetError as error:
            if request.method == "DELETE":  # the end of a session whose server is gone
                return httpx2.Response(204)
            self._on_end()
            return _error(503, NOT_SENT if isinstance(error, NetUnreachable) else BROKEN, str(error))
        if fault := _fault(incoming.status, "mcp-session-id" in headers, listening):
            await leave.aclose()
            return fault
        return _answer(incoming, leave, self._on_end if listening else _nothing)


def _nothing() -> None: ...


def _fault(status: int, in_session: bool, listening: bool) -> httpx2.Response | None:
    """What a status means that says nothing about the call itself, or None."""
    if status in (401, 403):
        return _error(status, REFUSED, f"The server refuses the caller: HTTP {status}.")
    if status == 404 and in_session and not listening:
        return _error(404, SESSION_GONE, "The server does not know the session any more.")
    return None


def _error(status: int, code: int, message: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=orjson.dumps(body))


def _answer(incoming: Incoming, leave: AsyncExitStack, on_end: Callable[[], None]) -> httpx2.Response:
    headers = [(k, v) for k, v in incoming.headers.items() if k.lower() not in _DECODED]
    streams = incoming.headers.get("content-type", "").lower().startswith(_STREAM)
    body = _Body(incoming, leave, on_end, None if streams else MAX_ANSWER)
    return httpx2.Response(incoming.status, headers=headers, stream=body)


class _Body(httpx2.AsyncByteStream):
    def __init__(
        self, incoming: Incoming, leave: AsyncExitStack, on_end: Callable[[], None], most: int | None
    ) -> None:
        self._incoming, self._leave, self._on_end, self._most = incoming, leave, on_end, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            while chunk := await self._incoming.chunk():
                size += len(chunk)
                if self._most is not None and size > self._most:
                    raise httpx2.StreamError(f"The answer has more than {self._most} bytes.")
                yield chunk
        except NetError as error:
            raise httpx2.StreamError(str(error)) from error
        finally:
            self._on_end()

    async def aclose(self) -> None:
        await self._leave.aclose()


@asynccontextmanager
async def over_http(
    http: Http, url: str, headers: Mapping[str, str], on_end: Callable[[], None]
) -> AsyncIterator[Any]:
    """The SDK's streams to a server over streamable HTTP."""
    bridge = Bridge(http, url, headers, on_end)
    async with (
        httpx2.AsyncClient(transport=bridge, timeout=None) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_EVENT) as streams,
    ):
        yield streams


@asynccontextmanager
async def over_pipes(
    server: str, parameters: StdioServerParameters, on_end: Callable[[], None]
) -> AsyncIterator[Any]:
    """The SDK's streams to a server that is started as a child process; its stderr is logged."""
    async with heard(server) as errors, stdio_client(parameters, errlog=errors) as (read, write):
        yield _Ending(read, on_end), write


class _Ending:
    """A stream of messages that says when it ends: the SDK tells only those who wait for an answer."""

    def __init__(self, inner: Any, on_end: Callable[[], None]) -> None:
        self._inner, self._on_end = inner, on_end

    def __aiter__(self) -> _Ending:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise

    async def receive(self) -> Any:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._inner.__aexit__(*error)
