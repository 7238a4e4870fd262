"""HTTP/1.1 of uvicorn with time limits for slow clients and size limits for heads (reliability.md S8).

A request that arrives with its first bytes, as nearly all do, costs no timer. A request that is
incomplete is marked, so that
the limits count it apart from active requests. Every request gets one answer; an upgrade that is not
taken does not change it.
"""

from __future__ import annotations

from asyncio import TimerHandle
from typing import Any, ClassVar

import orjson
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from astromesh.api.errors import error_response, problem
from astromesh.api.middleware.limits import BODY_INCOMPLETE, MAX_HEADER_BYTES, MAX_TARGET_BYTES, head_fault
from astromesh.api.middleware.response import add_security_headers
from astromesh.errors import AstromeshError, MalformedRequest, PayloadTooLarge, RequestTimeout


def closing_response(error: AstromeshError) -> bytes:
    """A whole HTTP/1.1 answer: the problem document of an error."""
    status, body = problem(error)
    content = orjson.dumps(body)
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(content)),
        (b"connection", b"close"),
    ]
    lines = b"".join(b"%b: %b\r\n" % line for line in add_security_headers(headers))
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, body["title"].encode(), lines, content)


# HTTP as uvicorn speaks it, with deadlines for what a client is still sending (reliability.md S8).
#
# A request that is there with its first bytes, as nearly all are, costs no timer. One that is not yet whole
# is
# marked, so that the border counts it apart from those that run: who sends halves of requests blocks nobody.
# Every request gets one answer, and an upgrade that is not taken changes nothing about it.

_MALFORMED = "What came is not HTTP/1.1, or breaks its rules: method, target, header lines, lengths."


_VERSIONS = ("1.1", "1.0")


class TimedHttp(HttpToolsProtocol):
    """Hangs up on clients that send neither a head nor a body in time, with 408 where they have begun.

    Attributes:
        head_seconds: for a whole head, from the first byte, or from the connection.
        body_seconds: for a whole body; `bytes_per_second` of it add a second each.
        unread: bytes that belong to no whole head, chunk or message yet.
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
    #: whether the newest request is there, head and body
    _is_complete = True
    #: whether the head that was read last offers to speak something else than HTTP/1
    _upgrade_offered = False
    #: whether nothing is read any more
    _refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer(None, self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self.unread_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except HttpParserError as broken:
            known = broken.__context__  # what was raised in one of our methods below
            self.refuse(known if isinstance(known, MalformedRequest) else MalformedRequest(_MALFORMED))
            return
        if not self._is_complete:
            if self._timed_cycle is not self.cycle:
                self.cycle.scope["state"][BODY_INCOMPLETE] = (
                    True  # the border reads it when the request's task begins
                )
                self._start_timer(self.cycle, self.body_seconds)
        elif not self.unread_bytes:
            self._stop_timer()
        elif self._timer is None or self._timed_cycle is not None:
            self._start_timer(None, self.head_seconds)

    def _parse(self, data: bytes) -> None:
        """Parses, over the upgrades that are not taken."""
        rest: bytes | memoryview = data
        while True:
            try:
                self.parser.feed_data(rest)
            except HttpParserUpgrade as offer:
                self._upgrade_offered = False
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                rest = memoryview(rest)[offer.args[0] :]
                self._pass_over_upgrade()
            else:
                return

    # -- upgrades ------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        """A WebSocket begins with a GET (RFC 6455, 4.1), of HTTP/1.1, behind all answers before it."""
        scope = self.scope
        before: RequestResponseCycle | None = self.cycle
        return (
            scope["method"] == "GET"
            and scope["http_version"] == "1.1"
            and (before is None or before.response_complete)
            and super()._should_upgrade()
        )

    def _pass_over_upgrade(self) -> None:
        """Reads the head again as if nothing were offered (RFC 9110, 7.8): the parser left the body unread.

        Raises:
            HttpParserError: it cannot be read in another way: CONNECT.
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
        """Hands a handshake over that can be opened: no deadline of ours is behind it."""
        self.unread_bytes, self._is_complete = 0, True
        path, _, query = self.url.partition(b"?")
        fault = head_fault({"path": path, "query_string": query, "headers": self.headers})
        if fault is None and _has_body(self.headers):
            fault = MalformedRequest("The handshake of a WebSocket has no body (RFC 6455, 4.1).")
        if fault is not None:
            self.refuse(fault)
        else:
            super().handle_websocket_upgrade()

    # -- what the parser has read --------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            self._upgrade_offered = True
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return
        super().on_headers_complete()
        self.headers = []  # the request has the others: trailers are no headers (RFC 9110, 6.5.1)
        self.unread_bytes, self._is_complete = 0, False

    def _check_head(self) -> None:
        """Of two hosts, who asks for the one may be looked at and who asks for the other served.

        Raises:
            MalformedRequest: of another HTTP, or not of one host; HTTP/1.0 alone may leave it out.
        """
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            raise MalformedRequest(f"HTTP/{version} is not spoken here; HTTP/1.1 is.")
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts != 1 and (hosts or version == "1.1"):
            raise MalformedRequest(f"A request has one Host header (RFC 9112, 3.2); this one has {hosts}.")

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self.unread_bytes = 0
        self._received_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._upgrade_offered:
            return
        super().on_message_complete()
        self.unread_bytes, self._is_complete = 0, True

    # -- deadlines -----------------------------------------------------------------------------------------

    def _start_timer(self, cycle: RequestResponseCycle | None, seconds: float) -> None:
        self._stop_timer()
        self._timed_cycle, self._received_bytes, self._deadline = cycle, 0, self.loop.time() + seconds
        self._timer = self.loop.call_at(self._deadline, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timed_cycle = None

    def _on_timer(self) -> None:
        waited, came = self._timed_cycle, self._received_bytes
        self._timer = self._timed_cycle = None
        if self.transport.is_closing():
            return
        if waited is None:
            self._head_timed_out()
            return
        earned = self._deadline + came / self.bytes_per_second
        if any(cycle is waited for cycle, _ in self.pipeline):  # it is we who let it wait
            self._start_timer(waited, self.body_seconds)
        elif earned > self.loop.time():
            self._timed_cycle, self._timer = waited, self.loop.call_at(earned, self._on_timer)
        elif waited.response_started:
            self.transport.close()
        else:
            self._time_out("body", self.body_seconds)

    def _head_timed_out(self) -> None:
        """While a request before it is answered, the next one may take its time."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            return
        if self.unread_bytes:
            self._time_out("head", self.head_seconds)
        else:
            self.transport.close()

    def _time_out(self, part: str, seconds: float) -> None:
        self.refuse(RequestTimeout(f"The {part} of the request was not there within {seconds:g} seconds."))

    def refuse(self, error: AstromeshError) -> None:
        """Answers what came last, unless that is done, and hangs up; what came before is answered first."""
        newest: RequestResponseCycle | None = self.cycle
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if newest is None or (newest.response_complete and self._is_complete):
            self._send_and_close(error)
        elif self.pipeline or (self._is_complete and not newest.response_complete):
            newest.keep_alive = False
            if not self._is_complete:
                refusal: Any = error_response(error)
                refusal.raw_headers = add_security_headers(refusal.raw_headers)
                self.pipeline[0] = newest, refusal
        else:
            if not newest.response_started:
                self._send_and_close(error)
            newest.disconnected = True  # whoever waits for the rest of it is told, and says nothing any more
            newest.message_event.set()
            self.transport.close()

    def _send_and_close(self, error: AstromeshError) -> None:
        self.transport.write(closing_response(error))
        self.transport.close()


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )


# HTTP as uvicorn speaks it; what a parser keeps to itself is bounded (reliability.md S8).
#
# The parser collects a request line, header lines, chunk extensions and trailers until they are whole,
# however
# long they get. Applications cannot see that: it is bounded where the bytes come in.

_MAX_HEAD = MAX_HEADER_BYTES + MAX_TARGET_BYTES


class BoundedHttp(TimedHttp):
    """Closes a connection that sends more than fits into the head of a request without completing it."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.unread_bytes > _MAX_HEAD and not self.transport.is_closing():
            self.refuse(PayloadTooLarge(f"The head of a request may have {_MAX_HEAD} bytes."))
