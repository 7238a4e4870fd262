"""WebSockets as uvicorn speaks them."""

from __future__ import annotations

from typing import Any

import structlog
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

log = structlog.get_logger("astromesh.api")
_INVALID_TEXT = 1007


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
