"""HTTP and WebSockets as uvicorn speaks them; what a parser keeps to itself is bounded (reliability.md S8).

The parser collects a request line, header lines, chunk extensions and trailers until they are whole, however
long they get. Applications cannot see that: it is bounded where the bytes come in.
"""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from astromesh.api.border import MOST_HEADERS, MOST_TARGET
from astromesh.api.errors import problem
from astromesh.errors import PayloadTooLarge

log = structlog.get_logger("astromesh.api")
_INVALID_TEXT = 1007
_MOST = MOST_HEADERS + MOST_TARGET


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection that sends more than fits into the head of a request without completing it."""

    _untold = 0

    def data_received(self, data: bytes) -> None:
        self._untold += len(data)
        super().data_received(data)
        if self._untold > _MOST and not self.transport.is_closing():
            self._refuse()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._untold = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._untold = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._untold = 0

    def _refuse(self) -> None:
        """Answers where no answer is on its way, and hangs up."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            status, body = problem(PayloadTooLarge(f"The head of a request may have {_MOST} bytes."))
            content = orjson.dumps(body)
            self.transport.write(
                b"HTTP/1.1 %d Content Too Large\r\ncontent-type: application/problem+json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(content), content)
            )
        self.transport.close()


class TextSockets(WebSocketsSansIOProtocol):
    """Text that is no UTF-8 closes a socket (RFC 6455, 8.1); of that uvicorn would write a traceback."""

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_text(self.frames):
            log.warning("frame_is_no_text", client=self.client and self.client[0])
            self.frames = []
            if not self.close_sent:
                self.conn.send_close(_INVALID_TEXT)
                self.handle_parser_exception()
            return
        super().send_receive_event_to_app()


def _is_text(frames: Any) -> bool:
    try:
        b"".join(frames).decode()
    except UnicodeDecodeError:
        return False
    return True
