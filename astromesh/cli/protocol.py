"""HTTP and WebSockets as uvicorn speaks them; what a parser keeps to itself is bounded (reliability.md S8).

The parser collects a request line, header lines, chunk extensions and trailers until they are whole, however
long they get. Applications cannot see that: it is bounded where the bytes come in.
"""

from __future__ import annotations

from typing import Any

import structlog
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from astromesh.api.border import MOST_HEADERS, MOST_TARGET
from astromesh.cli.arrivals import TimedHttp
from astromesh.errors import PayloadTooLarge

log = structlog.get_logger("astromesh.api")
_INVALID_TEXT = 1007
_MOST = MOST_HEADERS + MOST_TARGET


class BoundedHttp(TimedHttp):
    """Closes a connection that sends more than fits into the head of a request without completing it."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.unread > _MOST and not self.transport.is_closing():
            self.refuse(PayloadTooLarge(f"The head of a request may have {_MOST} bytes."))


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
