"""The one shared HTTP session. Every outgoing request of astromesh goes through it.

Trusted calls go to hosts that an operator configured; `fetch_untrusted` is for all others and is guarded
(`astromesh.net.ssrf_guard`), as is every redirect to another host. `astromesh.net.connections` makes the
connections and translates errors; the first call loads it.
`ServiceOptions` says where a service is, and its key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from multidict import CIMultiDictProxy
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from yarl import URL

from astromesh.errors import AnswerTooLarge, MissingKey, NetError
from astromesh.net.ssrf_guard import SsrfGuard

MAX_BODY = 32 * 1024 * 1024
#: limit of a streamed response: the same content, and what encloses each of its pieces
MAX_STREAM = 4 * MAX_BODY
MAX_REDIRECTS = 5
DRAIN_SECONDS = 0.05
_CONNECTIONS = "astromesh.net.connections"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# custom headers may contain secrets, so another host receives only these
_PUBLIC_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent", "idempotency-key"})


def _connections() -> Any:
    return import_module(_CONNECTIONS)


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

    def __init__(self, response: Any, limit: float) -> None:
        self._response = response  # of aiohttp
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
            chunk: bytes = await self._response.content.readany()
        except _connections().ERRORS as error:
            raise _translated(error, self._response.url) from error
        self._received += len(chunk)
        if self._received > self._limit:
            raise self.too_large(int(self._limit))
        return chunk

    def too_large(self, limit: int) -> AnswerTooLarge:
        """Returns the error of a response with more than `limit` bytes, for callers that count themselves."""
        return _too_large(self._response.url, limit)

    async def drain(self) -> None:
        """Waits a moment for the end of a body, so that its connection can be reused."""
        with suppress(*_connections().ERRORS):
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
        except _connections().ERRORS as error:
            raise _translated(error, self._response.url) from error


class Http:
    """The HTTP client: an async context manager, created once per process.

    Args:
        allow_hosts: `network.allow_hosts`: hosts that untrusted calls may reach besides public addresses.
        resolver: a resolver of aiohttp for untrusted hosts; None: the system's.
    """

    def __init__(self, allow_hosts: Iterable[str] = (), resolver: Any = None) -> None:
        self._guard = SsrfGuard(allow_hosts)
        self._resolver = resolver
        self._is_open = False
        self._connections: Any = None
        #: sessions of aiohttp, from the first call of their kind
        self._trusted: Any = None
        self._guarded: Any = None

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
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
        call = _Call(method, url, body, headers, timeout, limit, resend)
        return self._follow(call, URL(url).host) if follow else self._send(call)

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
        call = _Call(method, url, body, headers, timeout, limit, False)
        return self._follow(call, None) if follow else self._send(call, trusted=False)

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
        session, connections = self._trusted or await self._open(), self._connections
        try:
            response = await session.request(
                method, url, data=body, headers=headers, timeout=connections.read_timeout(read_timeout),
                allow_redirects=False, middlewares=connections.RESEND if resend else (),
            )  # fmt: skip
        except connections.ERRORS as error:
            raise _translated(error, url) from error
        try:
            yield StreamingResponse(response, limit)
        finally:
            # returns a fully read connection to the pool and closes any other
            response.release()

    async def _follow(self, call: _Call, trusted_host: str | None) -> HttpResponse:
        for _ in range(MAX_REDIRECTS + 1):
            same = trusted_host is not None and URL(call.url).host == trusted_host
            answer = await self._send(call, trusted=same)
            target = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not target:
                return answer
            call = _redirect(call, answer.status, target)
        raise NetError(f"{_host(call.url)} redirects more than {MAX_REDIRECTS} times.")

    async def _send(self, call: _Call, *, trusted: bool = True) -> HttpResponse:
        session = (self._trusted if trusted else self._guarded) or await self._open(trusted=trusted)
        connections = self._connections
        try:
            async with session.request(
                call.method, call.url, data=call.body, headers=call.headers,
                timeout=connections.total_timeout(call.timeout),
                allow_redirects=False, middlewares=connections.RESEND if call.resend else (),
            ) as response:  # fmt: skip
                body = await _read(response, call.limit)
                return HttpResponse(response.status, response.headers, body, str(call.url))
        except connections.ERRORS as error:
            raise _translated(error, call.url) from error

    async def _open(self, *, trusted: bool = True) -> Any:
        """Returns a session. The first one loads aiohttp, in a thread: that takes a tenth of a second."""
        if self._connections is None:
            self._connections = await asyncio.to_thread(_connections)
        if not self._is_open:
            raise RuntimeError("Http is not open. Use it as an async context manager.")
        if trusted:
            self._trusted = self._trusted or self._connections.trusted_session()
            return self._trusted
        self._guarded = self._guarded or self._connections.guarded_session(self._guard, self._resolver)
        return self._guarded


class _Call(NamedTuple):
    method: str
    url: str | URL
    body: bytes | None
    headers: Mapping[str, str] | None
    timeout: float
    limit: int
    resend: bool


async def _read(response: Any, limit: int) -> bytes:
    length = response.content_length
    if length is not None and "content-encoding" not in response.headers:
        if length > limit:
            raise _too_large(response.url, limit)
        body: bytes = await response.read()
        return body
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


def _translated(error: BaseException, url: str | URL) -> NetError:
    translated: NetError = _connections().translate_error(error, _host(url))
    return translated


def _too_large(url: str | URL, limit: int) -> AnswerTooLarge:
    return AnswerTooLarge(f"{_host(url)} sent more than {limit} bytes.")


def _host(url: str | URL) -> str:
    try:
        parsed = URL(url)
        return f"{parsed.host}:{parsed.port}" if parsed.host else "The address"
    except ValueError:
        return "The address"


class ServiceOptions(BaseModel):
    """Where a service is, and its key."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    #: the default variable of the service's key, and the endpoints to which this key is sent; other
    #: endpoints receive it only if the block names it. The configuration reads both, too
    usual_variable: ClassVar[str] = ""
    usual_endpoints: ClassVar[tuple[str, ...]] = ()

    name: str = Field(
        "", description="Name in providers.yaml, shown in answers, errors and metrics; the type if empty."
    )
    endpoint: str = Field("", description="Base URL; the service's own if empty. Trusted, loopback included.")
    api_key_env: str = Field("", description="Environment variable that holds the key.")
    api_key_file: str = Field(
        "", description="File that holds the key, relative to the configuration folder."
    )
    api_key: SecretStr | None = Field(None, description="The key itself; better kept out of files.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Further headers, e.g. of a gateway."
    )

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, endpoint: str) -> str:
        if endpoint and not is_http(endpoint):
            raise ValueError("must be an http or https URL with a host")
        return endpoint

    @property
    def own_headers(self) -> Mapping[str, str]:
        """The further headers in plain text."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}


def is_http(url: str) -> bool:
    """Whether it is an absolute URL over http or https."""
    try:
        parts = URL(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.host)


def read_key(options: ServiceOptions, config_dir: Path) -> str:
    """Returns the key of a block: `api_key`, `api_key_env`, `api_key_file`, else the default variable.

    Args:
        options: the block.
        config_dir: folder of relative paths.

    Returns:
        An empty text if the block needs no key.

    Raises:
        MissingKey: the named variable or file does not contain a key.
    """
    if options.api_key is not None:
        return _clean(options.api_key.get_secret_value(), "api_key")
    if variable := options.api_key_env or ("" if options.api_key_file else _usual_variable(options)):
        return _clean(os.environ.get(variable, ""), f"the environment variable {variable}")
    if options.api_key_file:
        path = config_dir / options.api_key_file
        try:
            return _clean(path.read_text(encoding="utf-8"), f"the file {options.api_key_file}")
        except (OSError, UnicodeDecodeError) as error:
            reason = f": {error.strerror}" if isinstance(error, OSError) else ""
            raise MissingKey(f"The key file {options.api_key_file} cannot be read{reason}.") from error
    return ""


def _usual_variable(options: ServiceOptions) -> str:
    official = options.endpoint.rstrip("/") in ("", *options.usual_endpoints)
    return options.usual_variable if official else ""


def _clean(text: str, where: str) -> str:
    key = text.strip()
    if not key:
        raise MissingKey(f"No key: {where} is not set, or is empty.")
    if not (key.isascii() and key.isprintable()):
        raise MissingKey(f"No key: {where} contains invalid characters.")
    return key
