"""The one shared HTTP session. Every outgoing request of astromesh goes through it.

Trusted calls go to hosts that an operator configured; `fetch_untrusted` is for all others and is guarded
(`astromesh.net.ssrf_guard`), as is every redirect to another host. aiohttp's errors are translated here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple, Self

import aiohttp
import orjson
from aiohttp import BaseConnector, ClientPayloadError
from aiohttp.abc import AbstractResolver
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tracing import Trace
from multidict import CIMultiDictProxy
from yarl import URL

from astromesh.errors import AnswerTooLarge, NetConnectTimeout, NetError, NetTimeout, NetUnreachable
from astromesh.net.ssrf_guard import GuardedConnector, SsrfGuard


class MalformedBody(ClientPayloadError):
    """A body contains bytes that its framing does not allow, e.g. a chunk without a size."""


class _ResponseHandler(ResponseHandler):
    """Reports a broken body to its reader; aiohttp's C parser drops it, and the reader waits forever."""

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        body = self._payload
        if isinstance(exc, HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(MalformedBody(str(exc)), exc)


def _install_response_handler(connector: BaseConnector) -> None:
    """Makes a connector use `_ResponseHandler`.

    aiohttp has no public way to configure it.
    """
    made: Any = partial(_ResponseHandler, loop=connector._loop)  # noqa: SLF001
    connector._factory = made  # noqa: SLF001


MAX_BODY = 32 * 1024 * 1024
#: limit of a streamed response: the same content, and what encloses each of its pieces
MAX_STREAM = 4 * MAX_BODY
MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 55.0
DRAIN_SECONDS = 0.05
_AIOHTTP_ERRORS = (aiohttp.ClientError, OSError, ValueError)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# custom headers may contain secrets, so another host receives only these
_PUBLIC_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent", "idempotency-key"})


class HttpResponse(NamedTuple):
    """A complete response. `url` is its address after redirects."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    url: str

    def json(self) -> Any:
        """Raises orjson.JSONDecodeError (a ValueError)."""
        return orjson.loads(self.body)


class StreamingResponse:
    """A response that is still arriving: its head, and its body in chunks."""

    __slots__ = ("_limit", "_received", "_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, limit: float) -> None:
        self._response = response
        self._limit, self._received = limit, 0
        self.status = response.status
        self.headers = response.headers

    async def chunk(self) -> bytes:
        """Returns the bytes since the last call and waits for at least one; empty at the end.

        Raises:
            AnswerTooLarge: the body is larger than the limit.
            NetError: the body is truncated, or silent for too long.
        """
        try:
            chunk = await self._response.content.readany()
        except _AIOHTTP_ERRORS as error:
            raise translate_error(error, self._response.url) from error
        self._received += len(chunk)
        if self._received > self._limit:
            raise self.too_large(int(self._limit))
        return chunk

    def too_large(self, limit: int) -> AnswerTooLarge:
        """Returns the error of a response with more than `limit` bytes, for callers that count themselves."""
        return _too_large(self._response.url, limit)

    async def drain(self) -> None:
        """Waits a moment for the end of a body, so that its connection can be reused."""
        with suppress(*_AIOHTTP_ERRORS):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self._response.content.at_eof():
                    await self._response.content.readany()

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """Returns the complete body, e.g. of an error.

        Raises:
            AnswerTooLarge, NetError
        """
        try:
            return await _read(self._response, limit)
        except _AIOHTTP_ERRORS as error:
            raise translate_error(error, self._response.url) from error


class Http:
    """The HTTP client: an async context manager, created once per process.

    Args:
        allow_hosts: `network.allow_hosts`: hosts that untrusted calls may reach besides public addresses.
        resolver: resolves untrusted hosts; the system's resolver by default.
    """

    def __init__(self, allow_hosts: Iterable[str] = (), resolver: AbstractResolver | None = None) -> None:
        self._guard = SsrfGuard(allow_hosts)
        self._resolver = resolver
        self._trusted: aiohttp.ClientSession | None = None
        self._guarded: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._trusted = _session(_Connector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS))
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._trusted, self._guarded):
            if session is not None:
                await session.close()
        self._trusted = self._guarded = None

    def request(  # noqa: PLR0913 (an HTTP request has these parts)
        self,
        method: str,
        url: str | URL,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        limit: int = MAX_BODY,
        resend: bool = False,
        follow: bool = False,
    ) -> Coroutine[Any, Any, HttpResponse]:
        """Makes one call to a host that an operator configured, when it is awaited.

        Args:
            method: e.g. `POST`.
            url: http or https.
            body: bytes to send, or None.
            headers: names and values; the content type among them.
            timeout: seconds for everything, connecting and the body included.
            limit: most bytes of the body.
            resend: send a POST once more if a kept-alive connection closed before the first byte.
            follow: follow redirects; redirects to another host are guarded.

        Raises:
            NetTimeout, AnswerTooLarge, AddressForbidden, NetError
        """
        call = _Call(method, url, body, headers, _total_timeout(timeout), limit, resend)
        return self._follow(call, URL(url).host) if follow else _send(self._trusted, call)

    def fetch_untrusted(  # noqa: PLR0913 (an HTTP request has these parts)
        self,
        method: str,
        url: str | URL,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        limit: int = MAX_BODY,
        follow: bool = True,
    ) -> Coroutine[Any, Any, HttpResponse]:
        """Makes one call to a host that a model, a user or a document chose; follows and checks redirects.

        Args:
            method, url, body, headers, timeout, limit: as of `request`.
            follow: return the answer of the last redirect; False: the first answer, for what has secrets.

        Raises:
            AddressForbidden: the host has no public address.
            NetTimeout, AnswerTooLarge, NetError
        """
        call = _Call(method, url, body, headers, _total_timeout(timeout), limit, False)
        return self._follow(call, None) if follow else self._send_guarded(call)

    @asynccontextmanager
    async def stream(  # noqa: PLR0913 (an HTTP request has these parts)
        self,
        method: str,
        url: str | URL,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float = 60.0,
        resend: bool = True,
        limit: float = inf,
    ) -> AsyncIterator[StreamingResponse]:
        """Makes a call to a configured host and yields the response while it arrives.

        Leaving the context early closes the connection.

        Args:
            method, url, body, headers, limit: as of `request`.
            read_timeout: seconds until the first byte, and between any two.
            resend: send once more if a kept-alive connection closed before the first byte; False if a second
                call would do harm.

        Raises:
            NetTimeout, NetUnreachable, AnswerTooLarge, NetError
        """
        try:
            response = await _opened(self._trusted).request(
                method, url, data=body, headers=headers, timeout=_read_timeout(read_timeout),
                allow_redirects=False, middlewares=_RESEND if resend else (),
            )  # fmt: skip
        except _AIOHTTP_ERRORS as error:
            raise translate_error(error, url) from error
        try:
            yield StreamingResponse(response, limit)
        finally:
            # returns a fully read connection to the pool and closes any other
            response.release()

    async def _follow(self, call: _Call, trusted_host: str | None) -> HttpResponse:
        for _ in range(MAX_REDIRECTS + 1):
            same = trusted_host is not None and URL(call.url).host == trusted_host
            answer = await _send(self._trusted if same else self._untrusted(), call)
            target = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not target:
                return answer
            call = _redirect(call, answer.status, target)
        raise NetError(f"{_host(call.url)} redirects more than {MAX_REDIRECTS} times.")

    async def _send_guarded(self, call: _Call) -> HttpResponse:
        return await _send(self._untrusted(), call)

    def _untrusted(self) -> aiohttp.ClientSession:
        _opened(self._trusted)
        if self._guarded is None:
            self._guarded = _session(GuardedConnector(self._guard, self._resolver))
        return self._guarded


def _opened(session: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
    if session is None:
        raise RuntimeError("Http is not open. Use it as an async context manager.")
    return session


class _Call(NamedTuple):
    method: str
    url: str | URL
    body: bytes | None
    headers: Mapping[str, str] | None
    timeout: aiohttp.ClientTimeout
    limit: int
    resend: bool


async def _send(session: aiohttp.ClientSession | None, call: _Call) -> HttpResponse:
    try:
        async with (session or _opened(session)).request(
            call.method, call.url, data=call.body, headers=call.headers, timeout=call.timeout,
            allow_redirects=False, middlewares=_RESEND if call.resend else (),
        ) as response:  # fmt: skip
            body = await _read(response, call.limit)
            return HttpResponse(response.status, response.headers, body, str(call.url))
    except _AIOHTTP_ERRORS as error:
        raise translate_error(error, call.url) from error


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    length = response.content_length
    if length is not None and "content-encoding" not in response.headers:
        if length > limit:
            raise _too_large(response.url, limit)
        return await response.read()
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        size += len(piece)
        if size > limit:
            raise _too_large(response.url, limit)
        pieces.append(piece)
    return b"".join(pieces)


def _redirect(call: _Call, status: int, target: str) -> _Call:
    """Returns the next call: no credentials for another host, a GET after a 303 (RFC 9110, 15.4)."""
    try:
        url = URL(call.url).join(URL(target))
    except ValueError as error:
        raise NetError(f"{_host(call.url)} redirects to an invalid URL.") from error
    if url.scheme not in ("http", "https"):
        raise NetError(f"{_host(call.url)} redirects to {url.scheme or 'nothing'}, which is not HTTP.")
    if url.origin() != URL(call.url).origin():
        public = {k: v for k, v in (call.headers or {}).items() if k.lower() in _PUBLIC_HEADERS}
        call = call._replace(headers=public)
    if status == 303 or (status in (301, 302) and call.method == "POST"):
        call = call._replace(method="GET", body=None)
    return call._replace(url=url)


# -- connections -------------------------------------------------------------------------------------------


class _Request(aiohttp.ClientRequest):
    reused = False


class _Connector(aiohttp.TCPConnector):
    """Marks each request whose connection was used before."""

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol: Any = connection.protocol
        if isinstance(req, _Request):
            req.reused = getattr(protocol, "astromesh_used", False)
        protocol.astromesh_used = True
        return connection


async def _resend_on_stale(req: aiohttp.ClientRequest, send: ClientHandlerType) -> aiohttp.ClientResponse:
    """Repeats a call whose idle connection the server closed while the request was written."""
    try:
        return await send(req)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) or not getattr(req, "reused", False):
            raise
        try:
            return await send(req)
        except aiohttp.ClientConnectorError:
            raise error from None  # the first attempt may have arrived, so it is not reported as unsent


_RESEND = (_resend_on_stale,)


def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    _install_response_handler(connector)
    return aiohttp.ClientSession(
        connector=connector,
        request_class=_Request,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "astromesh"},
        timeout=aiohttp.ClientTimeout(total=None),
    )


@lru_cache(maxsize=256)
def _total_timeout(seconds: float) -> aiohttp.ClientTimeout:
    # well before the total timeout, so that a failed connection is known to have sent nothing
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds / 2, CONNECT_SECONDS))


@lru_cache(maxsize=256)
def _read_timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=min(seconds, CONNECT_SECONDS), sock_read=seconds)


# -- errors ------------------------------------------------------------------------------------------------

#: the first match applies; the message is the host and this text
_ERRORS: tuple[tuple[type[BaseException], type[NetError], str], ...] = (
    (aiohttp.InvalidURL, NetError, "is not a valid URL"),
    (aiohttp.ConnectionTimeoutError, NetConnectTimeout, "did not accept the connection in time"),
    (TimeoutError, NetTimeout, "did not answer in time"),
    (aiohttp.ClientConnectorCertificateError, NetError, "has an untrusted certificate"),
    (aiohttp.ClientConnectorSSLError, NetError, "offers no supported TLS version or cipher"),
    (aiohttp.ClientConnectorDNSError, NetUnreachable, "is an unknown host"),
    (aiohttp.ClientConnectorError, NetUnreachable, "refuses connections or cannot be reached"),
    (MalformedBody, NetError, "sent invalid HTTP in the middle of its response"),
    (aiohttp.ClientPayloadError, NetError, "truncated its response"),
    (aiohttp.ServerDisconnectedError, NetError, "closed the connection without a response"),
    (aiohttp.ClientResponseError, NetError, "sent a response that is not HTTP"),
    (BaseException, NetError, "broke the connection"),
)


def translate_error(error: BaseException, url: str | URL) -> NetError:
    """Translates an error of aiohttp; the message names host and port, no other part of the URL."""
    kind, text = next((kind, text) for foreign, kind, text in _ERRORS if isinstance(error, foreign))
    return kind(f"{_host(url)} {text}.")


def _too_large(url: str | URL, limit: int) -> AnswerTooLarge:
    return AnswerTooLarge(f"{_host(url)} sent more than {limit} bytes.")


def _host(url: str | URL) -> str:
    try:
        parsed = URL(url)
        return f"{parsed.host}:{parsed.port}" if parsed.host else "The address"
    except ValueError:
        return "The address"
