"""WebSockets as uvicorn speaks them."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from astromesh.api.border import PIECE

log = structlog.get_logger("astromesh.api")
_INVALID_TEXT = 1007
#: characters of a text that has at most `PIECE` bytes
_SHORT = PIECE // 4


class TextSockets(WebSocketsSansIOProtocol):
    """Text that is no UTF-8 closes a socket (RFC 6455, 8.1); of that uvicorn would write a traceback.

    Long texts go out in fragments (5.4): written at once, they would keep every other run waiting.
    """

    async def send(self, message: Any) -> None:
        text = message.get("text")
        if text is None or len(text) <= _SHORT or not self.handshake_complete or self.close_sent:
            await super().send(message)
        else:
            await self._in_fragments(memoryview(text.encode()))

    async def _in_fragments(self, text: memoryview) -> None:
        for at in range(0, len(text), PIECE):
            await self.writable.wait()
            if self.disconnected or self.close_sent:
                raise ClientDisconnected
            last = at + PIECE >= len(text)
            send = self.conn.send_continuation if at else self.conn.send_text
            try:
                send(bytes(text[at : at + PIECE]), fin=last)
            except InvalidState as ended:
                raise ClientDisconnected from ended
            self.transport.write(b"".join(self.conn.data_to_send()))
            if not last:
                await asyncio.sleep(0)

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
