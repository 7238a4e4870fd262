"""Connections of aiohttp: kept alive, guarded, and resent when a server has closed one; and aiohttp's errors.

The first call of a process loads this module, in a thread: aiohttp takes 9 MiB and a tenth of a second.
"""

from __future__ import annotations

import socket
from functools import lru_cache, partial
from typing import Any

import aiohttp
from aiohttp import BaseConnector, ClientPayloadError
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.resolver import DefaultResolver
from aiohttp.tracing import Trace

from astromesh.errors import NetConnectTimeout, NetError, NetTimeout, NetUnreachable
from astromesh.net.ssrf_guard import SsrfGuard, address_forbidden

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 55.0
ERRORS = (aiohttp.ClientError, OSError, ValueError)


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


class GuardedResolver(AbstractResolver):
    """Returns only addresses that the guard permits."""

    def __init__(self, guard: SsrfGuard, inner: AbstractResolver | None = None) -> None:
        self._guard, self._inner = guard, inner or DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if self._guard.allows_name(host):
            return found
        permitted = [one for one in found if self._guard.permits(one["host"])]
        if not permitted:
            raise address_forbidden(host)
        return permitted

    async def close(self) -> None:
        await self._inner.close()


class GuardedConnector(aiohttp.TCPConnector):
    """Connections to untrusted hosts, in a pool of their own: none is shared with trusted calls."""

    def __init__(self, guard: SsrfGuard, resolver: AbstractResolver | None = None) -> None:
        # no DNS cache: the address is checked when the connection opens
        super().__init__(limit=64, use_dns_cache=False, resolver=GuardedResolver(guard, resolver))
        self._guard = guard

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,
    ) -> Connection:
        self._guard.check_literal(req.url.host or "")
        return await super().connect(req, traces, timeout)


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


RESEND = (_resend_on_stale,)


def trusted_session() -> aiohttp.ClientSession:
    """Returns a session for hosts that an operator configured."""
    return _session(_Connector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS))


def guarded_session(guard: SsrfGuard, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    """Returns a session for all other hosts. Args: resolver: None: the system's."""
    return _session(GuardedConnector(guard, resolver))


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
def total_timeout(seconds: float) -> aiohttp.ClientTimeout:
    # well before the total timeout, so that a failed connection is known to have sent nothing
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds / 2, CONNECT_SECONDS))


@lru_cache(maxsize=256)
def read_timeout(seconds: float) -> aiohttp.ClientTimeout:
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


def translate_error(error: BaseException, host: str) -> NetError:
    """Translates an error of aiohttp. Args: host: and port, for the message."""
    kind, text = next((kind, text) for foreign, kind, text in _ERRORS if isinstance(error, foreign))
    return kind(f"{host} {text}.")
