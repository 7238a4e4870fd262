"""The one shared HTTP session. Everything that leaves astromesh leaves through here.

Trusted calls go to hosts that an operator wrote; `fetch_untrusted` is for all others and is guarded
(`astromesh.net.guard`), and so is every redirect to another host. What aiohttp raises is translated here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, Self

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from multidict import CIMultiDictProxy
from yarl import URL

from astromesh.errors import AnswerTooLarge, NetConnectTimeout, NetError, NetTimeout, NetUnreachable
from astromesh.net.guard import Guard, GuardedConnector
from astromesh.net.protocol import Malformed, installed

MAX_BODY = 32 * 1024 * 1024
#: of a streamed answer: as much as of a whole one, and what stands around each of its pieces
MAX_STREAM = 4 * MAX_BODY
MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 55.0
DRAIN_SECONDS = 0.05
_FOREIGN = (aiohttp.ClientError, OSError, ValueError)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# operators name their own headers for secrets, so another host gets only those that cannot hold one
_PUBLIC_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent", "idempotency-key"})


class Answer(NamedTuple):
    """A whole answer. `url` is where it came from after redirects."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    url: str

    def json(self) -> Any:
        """Raises orjson.JSONDecodeError (a ValueError)."""
        return orjson.loads(self.body)


class Incoming:
    """An answer that is still coming in: its head, and its body in chunks as they arrive."""

    __slots__ = ("_came", "_limit", "_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, limit: float) -> None:
        self._response = response
        self._limit, self._came = limit, 0
        self.status = response.status
        self.headers = response.headers

    async def chunk(self) -> bytes:
        """What has arrived since the last call, waiting for at least one byte; empty at the end.

        Raises:
            AnswerTooLarge: more has come than is taken.
            NetError: the body is cut, or silent for too long.
        """
        try:
            chunk = await self._response.content.readany()
        except _FOREIGN as error:
            raise translated(error, self._response.url) from error
        self._came += len(chunk)
        if self._came > self._limit:
            raise self.too_large(int(self._limit))
        return chunk

    def too_large(self, limit: int) -> AnswerTooLarge:
        """The error of an answer with more than `limit` bytes, for whoever counts in another way."""
        return _too_large(self._response.url, limit)

    async def drain(self) -> None:
        """Waits a moment for the end of a body that has said all: its connection can then be used again."""
        with suppress(*_FOREIGN):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self._response.content.at_eof():
                    await self._response.content.readany()

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body, e.g. of an error.

        Raises:
            AnswerTooLarge, NetError
        """
        try:
            return await _read(self._response, limit)
        except _FOREIGN as error:
            raise translated(error, self._response.url) from error


class Http:
    """An async context manager; made once per process.

    Args:
        allow_hosts: `network.allow_hosts`, what untrusted calls may reach beside the open Internet.
        resolver: names to addresses for untrusted hosts; the system's by default.
    """

    def __init__(self, allow_hosts: Iterable[str] = (), resolver: AbstractResolver | None = None) -> None:
        self._guard = Guard(allow_hosts)
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

    async def request(  # noqa: PLR0913 (an HTTP request has these parts)
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
    ) -> Answer:
        """One call to a host that an operator wrote.

        Args:
            method: e.g. `POST`.
            url: http or https.
            body: bytes to send, or None.
            headers: names and values; the content type among them.
            timeout: seconds for everything, connecting and the body included.
            limit: bytes that the body may have.
            resend: send a POST again, once, where a kept-alive connection closed before the first byte.
            follow: follow redirects; away from this host they are guarded.

        Raises:
            NetTimeout, AnswerTooLarge, AddressForbidden, NetError
        """
        once = _Call(method, url, body, headers, _whole(timeout), limit, resend)
        if not follow:
            return await _answer(self._session(), once)
        return await self._follow(once, URL(url).host)

    async def fetch_untrusted(
        self,
        method: str,
        url: str | URL,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        limit: int = MAX_BODY,
    ) -> Answer:
        """One call to a host that a model, a user or a document chose; redirects are followed and judged too.

        Raises:
            AddressForbidden: the host is not of the open Internet.
            NetTimeout, AnswerTooLarge, NetError
        """
        return await self._follow(_Call(method, url, body, headers, _whole(timeout), limit, False), None)

    @asynccontextmanager
    async def stream(  # noqa: PLR0913 (an HTTP request has these parts)
        self,
        method: str,
        url: str | URL,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float = 60.0,
        resend: bool = True,
        limit: float = inf,
    ) -> AsyncIterator[Incoming]:
        """A call to an operator's host, read while it answers. Leaving early closes the connection.

        Args:
            method: e.g. `POST`.
            url: http or https.
            body: bytes to send, or None.
            headers: names and values; the content type among them.
            silence: seconds until the first byte, and between any two.
            resend: send again, once, where a kept-alive connection closed before the first byte; False where
                doing it twice would harm.
            limit: bytes that the body may have.

        Raises:
            NetTimeout, NetUnreachable, AnswerTooLarge, NetError
        """
        session = self._session()
        try:
            response = await session.request(
                method, url, data=body, headers=headers, timeout=_silent(silence), allow_redirects=False,
                middlewares=_RESEND if resend else (),
            )  # fmt: skip
        except _FOREIGN as error:
            raise translated(error, url) from error
        try:
            yield Incoming(response, limit)
        finally:
            # gives a fully read connection back and closes any other
            response.release()

    async def _follow(self, call: _Call, trusted_host: str | None) -> Answer:
        for _ in range(MAX_REDIRECTS + 1):
            same = trusted_host is not None and URL(call.url).host == trusted_host
            answer = await _answer(self._session() if same else self._untrusted(), call)
            target = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not target:
                return answer
            call = _redirected(call, answer.status, target)
        raise NetError(f"{_host(call.url)} redirects more than {MAX_REDIRECTS} times.")

    def _session(self) -> aiohttp.ClientSession:
        if self._trusted is None:
            raise RuntimeError("Http is not open; use it as an async context manager")
        return self._trusted

    def _untrusted(self) -> aiohttp.ClientSession:
        self._session()
        if self._guarded is None:
            self._guarded = _session(GuardedConnector(self._guard, self._resolver))
        return self._guarded


class _Call(NamedTuple):
    method: str
    url: str | URL
    body: bytes | None
    headers: Mapping[str, str] | None
    timeout: aiohttp.ClientTimeout
    limit: int
    resend: bool


async def _answer(session: aiohttp.ClientSession, call: _Call) -> Answer:
    try:
        async with session.request(
            call.method, call.url, data=call.body, headers=call.headers, timeout=call.timeout,
            allow_redirects=False, middlewares=_RESEND if call.resend else (),
        ) as response:  # fmt: skip
            body = await _read(response, call.limit)
            return Answer(response.status, response.headers, body, str(call.url))
    except _FOREIGN as error:
        raise translated(error, call.url) from error


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


def _redirected(call: _Call, status: int, target: str) -> _Call:
    """The next call: another host gets no credentials, and 303 turns a POST into a GET (RFC 9110, 15.4)."""
    try:
        url = URL(call.url).join(URL(target))
    except ValueError as error:
        raise NetError(f"{_host(call.url)} redirects to something that is no URL.") from error
    if url.scheme not in ("http", "https"):
        raise NetError(f"{_host(call.url)} redirects to {url.scheme or 'nothing'}, which is not HTTP.")
    if url.origin() != URL(call.url).origin():
        kept = {k: v for k, v in (call.headers or {}).items() if k.lower() in _PUBLIC_HEADERS}
        call = call._replace(headers=kept)
    if status == 303 or (status in (301, 302) and call.method == "POST"):
        call = call._replace(method="GET", body=None)
    return call._replace(url=url)


# -- connections -------------------------------------------------------------------------------------------


class _Request(aiohttp.ClientRequest):
    reused = False


class _Connector(aiohttp.TCPConnector):
    """Notes on each request whether its connection was used before."""

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
    """A server may close an idle connection while we write to it: that says nothing about the request."""
    try:
        return await send(req)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) or not getattr(req, "reused", False):
            raise
        try:
            return await send(req)
        except aiohttp.ClientConnectorError:
            raise error from None  # the first try may have arrived: it is not as if nothing had been sent


_RESEND = (_resend_on_stale,)


def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    installed(connector)
    return aiohttp.ClientSession(
        connector=connector,
        request_class=_Request,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "astromesh"},
        timeout=aiohttp.ClientTimeout(total=None),
    )


@lru_cache(maxsize=256)
def _whole(seconds: float) -> aiohttp.ClientTimeout:
    # well before the whole time is over, so that it is known that nothing was sent
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds / 2, CONNECT_SECONDS))


@lru_cache(maxsize=256)
def _silent(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=min(seconds, CONNECT_SECONDS), sock_read=seconds)


# -- errors ------------------------------------------------------------------------------------------------

#: first match wins; the sentence continues with what is known of the host
_ERRORS: tuple[tuple[type[BaseException], type[NetError], str], ...] = (
    (aiohttp.InvalidURL, NetError, "is no usable URL"),
    (aiohttp.ConnectionTimeoutError, NetConnectTimeout, "did not take the connection in time"),
    (TimeoutError, NetTimeout, "did not answer in time"),
    (aiohttp.ClientConnectorCertificateError, NetError, "has a certificate that cannot be trusted"),
    (aiohttp.ClientConnectorSSLError, NetError, "speaks no TLS that we can"),
    (aiohttp.ClientConnectorDNSError, NetUnreachable, "is an unknown host"),
    (aiohttp.ClientConnectorError, NetUnreachable, "refuses connections or cannot be reached"),
    (Malformed, NetError, "sent something that is not HTTP in the middle of its answer"),
    (aiohttp.ClientPayloadError, NetError, "cut its answer"),
    (aiohttp.ServerDisconnectedError, NetError, "closed the connection without an answer"),
    (aiohttp.ClientResponseError, NetError, "answered something that is not HTTP"),
    (BaseException, NetError, "broke the connection"),
)


def translated(error: BaseException, url: str | URL) -> NetError:
    """A foreign error as ours; the message names host and port, nothing else of the URL."""
    kind, said = next((kind, said) for foreign, kind, said in _ERRORS if isinstance(error, foreign))
    return kind(f"{_host(url)} {said}.")


def _too_large(url: str | URL, limit: int) -> AnswerTooLarge:
    return AnswerTooLarge(f"{_host(url)} answered more than {limit} bytes.")


def _host(url: str | URL) -> str:
    try:
        parsed = URL(url)
        return f"{parsed.host}:{parsed.port}" if parsed.host else "The address"
    except ValueError:
        return "The address"
