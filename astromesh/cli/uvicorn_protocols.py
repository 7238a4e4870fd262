"""Extends uvicorn's HTTP/1.1: time limits for slow clients, size limits for heads, problem documents.

This module and `uvicorn_websocket`, which is loaded with the first socket, are all that depends on the inside
of uvicorn's protocols. `tests/unit/cli/test_uvicorn_versions.py` names the versions that they fit.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from typing import Any, ClassVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from astromesh.api.errors import TITLES, error_response
from astromesh.api.middleware.limits import BODY_INCOMPLETE, MAX_HEADER_BYTES, MAX_TARGET_BYTES, head_fault
from astromesh.api.middleware.response import complete_headers, new_request_id, request_id_of
from astromesh.errors import AstromeshError, MalformedRequest, PayloadTooLarge, RequestTimeout, UriTooLong

_VERSIONS = ("1.1", "1.0")
_MAX_HEAD = MAX_HEADER_BYTES + MAX_TARGET_BYTES
_MALFORMED = "The method, target, header lines or lengths of the request break the rules of HTTP/1.1."


def closing_response(error: AstromeshError, scope: Scope | None = None) -> bytes:
    """Returns the problem document of an error as a complete HTTP/1.1 response.

    Args:
        scope: of the request, as far as its head has been read.
    """
    response = error_response(error, scope)
    request_id = new_request_id() if scope is None else request_id_of(scope)
    headers = complete_headers([*response.raw_headers, (b"connection", b"close")], request_id)
    lines = b"".join(b"%b: %b\r\n" % line for line in headers)
    status, title = response.status_code, TITLES[response.status_code].encode()
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, title, lines, bytes(response.body))


class ResponseTransport:
    """Writes the head of a response together with what follows in the same turn of the event loop.

    uvicorn writes both one after the other, and each write is a system call, which costs more than the whole
    response otherwise does. A head that nothing follows is written in the next turn.
    """

    __slots__ = ("_head", "_loop", "is_closing", "raw", "set_protocol")

    def __init__(self, raw: Transport, loop: AbstractEventLoop) -> None:
        self.raw, self._loop, self._head = raw, loop, b""
        self.is_closing, self.set_protocol = raw.is_closing, raw.set_protocol

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1"):
            self._head = data
            self._loop.call_soon(self._write_head)
            return
        self.raw.write(data)

    def close(self) -> None:
        self._write_head()
        self.raw.close()

    def _write_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self.raw.write(head)


class BoundedHttp(HttpToolsProtocol):
    """Closes connections that send a head or a body too slowly (408), or too large a head (413).

    The parser collects a request line, header lines, chunk extensions and trailers until they are complete,
    whatever their length. Applications do not see that, so this class counts the unread bytes. A request that
    arrives with its first bytes, as nearly all do, costs no timer. An incomplete one is marked, so that the
    limits count it apart from active requests. Every request gets one response. An upgrade that the server
    does not accept has no effect.

    Attributes:
        head_seconds: for a complete head, from its first byte, or from the start of the connection.
        body_seconds: for a complete body; every `bytes_per_second` bytes of it add a second.
        unread_bytes: bytes that belong to no complete head, chunk or message yet.
    """

    head_seconds: ClassVar[float] = 30.0
    body_seconds: ClassVar[float] = 30.0
    bytes_per_second: ClassVar[int] = 65_536
    unread_bytes = 0
    _timer: TimerHandle | None = None
    #: whose body the timer is for; None: for a head
    _timed_cycle: RequestResponseCycle | None = None
    _deadline = 0.0
    _received_bytes = 0
    #: whether the newest request has arrived, head and body
    _is_complete = True
    #: whether the newest head offers another protocol than HTTP/1
    _upgrade_offered = False
    #: whether the connection reads nothing more
    _refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport = cast("Transport", ResponseTransport(transport, self.loop))
        self._start_timer(None, self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self.unread_bytes += len(data)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        try:
            self._parse(data)
        except HttpParserError as broken:
            known = broken.__context__  # an exception of a method below
            self.refuse(known if isinstance(known, AstromeshError) else MalformedRequest(_MALFORMED))
            return
        if not self._is_complete:
            if self._timed_cycle is not self.cycle:
                # before the task of the request starts, which reads it
                self.cycle.scope["state"][BODY_INCOMPLETE] = True
                self._start_timer(self.cycle, self.body_seconds)
        elif not self.unread_bytes:
            self._stop_timer()
        elif self._timer is None or self._timed_cycle is not None:
            self._start_timer(None, self.head_seconds)
        if self.unread_bytes > _MAX_HEAD and not self.transport.is_closing():
            self.refuse(self._oversized_head())

    def _parse(self, data: bytes) -> None:
        """Parses the data, and continues after upgrades that the server does not accept."""
        rest: bytes | memoryview = data
        while True:
            try:
                self.parser.feed_data(rest)
            except HttpParserUpgrade as offer:
                self._upgrade_offered = False
                if self._opens_websocket():
                    self.handle_websocket_upgrade()
                    return
                rest = memoryview(rest)[offer.args[0] :]
                self._ignore_upgrade()
            else:
                return

    def _oversized_head(self) -> AstromeshError:
        if not self._is_complete or len(self.url) <= MAX_TARGET_BYTES:
            return PayloadTooLarge(f"The head of a request is larger than {_MAX_HEAD} bytes.")
        return UriTooLong(f"Path and query have more than {MAX_TARGET_BYTES} bytes.")

    # -- upgrades ------------------------------------------------------------------------------------------

    def _opens_websocket(self) -> bool:
        """Whether the head is a GET of HTTP/1.1 (RFC 6455, 4.1) whose predecessors have all been answered."""
        scope, headers = self.scope, dict(self.headers)
        before: RequestResponseCycle | None = self.cycle
        connection = {token.strip().lower() for token in headers.get(b"connection", b"").split(b",")}
        return (
            scope["method"] == "GET"
            and scope["http_version"] == "1.1"
            and (before is None or before.response_complete)
            and b"upgrade" in connection
            and headers.get(b"upgrade", b"").lower() == b"websocket"
        )

    def _ignore_upgrade(self) -> None:
        """Parses the head again without its offer (RFC 9110, 7.8), because the parser has not read the body.

        Raises:
            HttpParserError: the method is CONNECT, which has no other meaning.
        """
        method, version = self.scope["method"], self.scope["http_version"]
        if method == "CONNECT":
            raise HttpParserError
        lines = [b"%b %b HTTP/%b\r\n" % (method.encode(), self.url, version.encode())]
        lines += [b"%b: %b\r\n" % line for line in self.headers if line[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"".join(lines) + b"\r\n")

    def handle_websocket_upgrade(self) -> None:
        """Passes a handshake to the WebSocket protocol, which has no time limit for it."""
        self.unread_bytes, self._is_complete = 0, True
        path, _, query = self.url.partition(b"?")
        fault = head_fault({"path": path, "query_string": query, "headers": self.headers})
        if fault is None and _has_body(self.headers):
            fault = MalformedRequest("The handshake of a WebSocket must not have a body (RFC 6455, 4.1).")
        if fault is not None:
            self.refuse(fault)
        else:
            self.transport = cast("ResponseTransport", self.transport).raw
            super().handle_websocket_upgrade()

    # -- callbacks of the parser ---------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            self._upgrade_offered = True
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return
        super().on_headers_complete()
        self.headers = []  # the request keeps its own list: trailers are not headers (RFC 9110, 6.5.1)
        self.unread_bytes, self._is_complete = 0, False

    def _check_head(self) -> None:
        """Checks the version and the host. With two, a proxy could check one and the server use the other.

        Raises:
            MalformedRequest: another version, or not one Host header; only HTTP/1.0 may omit it.
            UriTooLong: a target that came at once; httptools splits none of more than 64 KiB.
        """
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            raise MalformedRequest(f"HTTP/{version} is not supported. Use HTTP/1.1.")
        if len(self.url) > _MAX_HEAD:
            raise self._oversized_head()
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts != 1 and (hosts or version == "1.1"):
            raise MalformedRequest(f"A request needs one Host header (RFC 9112, 3.2); this one has {hosts}.")

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self.unread_bytes = 0
        self._received_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._upgrade_offered:
            return
        super().on_message_complete()
        self.unread_bytes, self._is_complete = 0, True

    # -- time limits ---------------------------------------------------------------------------------------

    def _start_timer(self, cycle: RequestResponseCycle | None, seconds: float) -> None:
        self._stop_timer()
        self._timed_cycle, self._received_bytes, self._deadline = cycle, 0, self.loop.time() + seconds
        self._timer = self.loop.call_at(self._deadline, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timed_cycle = None

    def _on_timer(self) -> None:
        cycle, received = self._timed_cycle, self._received_bytes
        self._timer = self._timed_cycle = None
        if self.transport.is_closing():
            return
        if cycle is None:
            self._time_out_head()
            return
        extended = self._deadline + received / self.bytes_per_second
        if any(queued is cycle for queued, _ in self.pipeline):  # the server makes it wait, not the client
            self._start_timer(cycle, self.body_seconds)
        elif extended > self.loop.time():
            self._timed_cycle, self._timer = cycle, self.loop.call_at(extended, self._on_timer)
        elif cycle.response_started:
            self.transport.close()
        else:
            self._time_out("body", self.body_seconds)

    def _time_out_head(self) -> None:
        """Ends the wait for a head. While the server answers a request, the next one has no time limit."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            return
        if self.unread_bytes:
            self._time_out("head", self.head_seconds)
        else:
            self.transport.close()

    def _time_out(self, part: str, seconds: float) -> None:
        self.refuse(RequestTimeout(f"The {part} of the request did not arrive within {seconds:g} seconds."))

    def refuse(self, error: AstromeshError) -> None:
        """Answers the newest request, unless it has its response, and closes after the earlier responses."""
        newest: RequestResponseCycle | None = self.cycle
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if newest is None or (newest.response_complete and self._is_complete):
            self._send_and_close(error, self._begun_scope())
            return
        scope = cast("Scope", newest.scope)
        if self.pipeline or (self._is_complete and not newest.response_complete):
            newest.keep_alive = False
            if not self._is_complete:
                refusal: Any = error_response(error, scope)
                refusal.raw_headers = complete_headers(refusal.raw_headers, request_id_of(scope))
                self.pipeline[0] = newest, refusal
        else:
            if not newest.response_started:
                self._send_and_close(error, scope)
            newest.disconnected = True  # the application's next receive() ends, and its response is dropped
            newest.message_event.set()
            self.transport.close()

    def _begun_scope(self) -> Scope | None:
        """Returns the scope of a request whose head has not arrived, as far as it has been read."""
        scope = cast("Scope | None", self.scope)
        return scope and {**scope, "path": self.url.partition(b"?")[0].decode("ascii", "replace")}

    def _send_and_close(self, error: AstromeshError, scope: Scope | None = None) -> None:
        self.transport.write(closing_response(error, scope))
        self.transport.close()


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )
