"""HTTP as uvicorn speaks it, with deadlines for what a client is still sending (reliability.md S8).

A request that is there with its first bytes, as nearly all are, costs no timer. One that is not yet whole is
marked, so that the border counts it apart from those that run: who sends halves of requests blocks nobody.
"""

from __future__ import annotations

from asyncio import TimerHandle
from typing import Any, ClassVar

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from astromesh.api.border import ARRIVING
from astromesh.api.errors import problem
from astromesh.errors import AstromeshError, RequestTimeout


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
    unread = 0
    _timer: TimerHandle | None = None
    #: whose body the timer is for; None: for a head
    _awaited: RequestResponseCycle | None = None
    _until = 0.0
    _came = 0
    #: whether the newest request is there, head and body
    _whole = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm(None, self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.unread += len(data)
        super().data_received(data)
        if not self._whole:
            if self._awaited is not self.cycle:
                self.cycle.scope["state"][ARRIVING] = (
                    True  # the border reads it when the request's task begins
                )
                self._arm(self.cycle, self.body_seconds)
        elif not self.unread:
            self._disarm()
        elif self._timer is None or self._awaited is not None:
            self._arm(None, self.head_seconds)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.unread, self._whole = 0, False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self.unread = 0
        self._came += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.unread, self._whole = 0, True

    def handle_websocket_upgrade(self) -> None:
        self._whole = True
        super().handle_websocket_upgrade()

    # -- deadlines -----------------------------------------------------------------------------------------

    def _arm(self, cycle: RequestResponseCycle | None, seconds: float) -> None:
        self._disarm()
        self._awaited, self._came, self._until = cycle, 0, self.loop.time() + seconds
        self._timer = self.loop.call_at(self._until, self._due)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._awaited = None

    def _due(self) -> None:
        waited, came = self._awaited, self._came
        self._timer = self._awaited = None
        if self.transport.is_closing():
            return
        if waited is None:
            self._head_is_late()
            return
        earned = self._until + came / self.bytes_per_second
        if any(cycle is waited for cycle, _ in self.pipeline):  # it is we who let it wait
            self._arm(waited, self.body_seconds)
        elif earned > self.loop.time():
            self._awaited, self._timer = waited, self.loop.call_at(earned, self._due)
        elif waited.response_started:
            self.transport.close()
        else:
            self._late("body", self.body_seconds)

    def _head_is_late(self) -> None:
        """While a request before it is answered, the next one may take its time."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            return
        if self.unread:
            self._late("head", self.head_seconds)
        else:
            self.transport.close()

    def _late(self, part: str, seconds: float) -> None:
        self.refuse(RequestTimeout(f"The {part} of the request was not there within {seconds:g} seconds."))

    def refuse(self, error: AstromeshError) -> None:
        """Answers where no answer is on its way, and hangs up."""
        cycle: RequestResponseCycle | None = self.cycle
        unanswered = not (self._whole or self.pipeline) and not self.cycle.response_started
        if cycle is None or cycle.response_complete or unanswered:
            status, body = problem(error)
            content = orjson.dumps(body)
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/problem+json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, body["title"].encode(), len(content), content)
            )
        self.transport.close()
