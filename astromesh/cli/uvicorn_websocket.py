"""Extends uvicorn's WebSockets: long texts in fragments, problem documents for handshakes that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import websockets.http11
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.http11 import Request

from astromesh.api.middleware.limits import MAX_HEADER_BYTES, MAX_TARGET_BYTES
from astromesh.api.middleware.response import CHUNK_BYTES
from astromesh.cli.uvicorn_protocols import closing_response
from astromesh.errors import MalformedRequest
from astromesh.logs import get_logger

log = get_logger("astromesh.api")
_INVALID_TEXT = 1007
#: characters of a text that has at most `CHUNK_BYTES` bytes
_SHORT = CHUNK_BYTES // 4
# the limits of HTTP hold for the head of a handshake as a whole, so none by the line is needed
websockets.http11.MAX_LINE_LENGTH = MAX_HEADER_BYTES + MAX_TARGET_BYTES
websockets.http11.MAX_NUM_HEADERS = MAX_HEADER_BYTES


class TextSockets(WebSocketsSansIOProtocol):
    """Closes a socket that sends text other than UTF-8 (RFC 6455, 8.1); uvicorn would log a traceback.

    Long texts leave in fragments (5.4): written at once, they would keep every other run waiting. A handshake
    arrives complete with the first bytes, so one that opens no socket is refused then.
    """

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated and not self.close_sent:
            self._refuse()

    def handle_connect(self, event: Request) -> None:
        if self.conn.accept(event).status_code == 101:
            super().handle_connect(event)
        else:
            self._refuse()

    def _refuse(self) -> None:
        """Answers with a problem document, where uvicorn answers with a text or not at all."""
        self.handshake_complete = self.close_sent = True
        fault = self.conn.handshake_exc
        reason = (fault and fault.__cause__) or fault
        error = MalformedRequest(f"This handshake opens no WebSocket: {reason}.")
        self.transport.write(closing_response(error))
        self.transport.close()

    async def send(self, message: Any) -> None:
        text = message.get("text")
        if text is None:
            await super().send(message)
            if self.close_sent:  # a response that denies a handshake completes it; uvicorn would log an error
                self.handshake_complete = True
        elif len(text) <= _SHORT or not self.handshake_complete or self.close_sent:
            await super().send(message)
        else:
            await self._send_in_fragments(memoryview(text.encode()))

    async def _send_in_fragments(self, text: memoryview) -> None:
        for at in range(0, len(text), CHUNK_BYTES):
            await self.writable.wait()
            if self.disconnected or self.close_sent:
                raise ClientDisconnected
            last = at + CHUNK_BYTES >= len(text)
            send = self.conn.send_continuation if at else self.conn.send_text
            try:
                send(bytes(text[at : at + CHUNK_BYTES]), fin=last)
            except InvalidState as closed:
                raise ClientDisconnected from closed
            self.transport.write(b"".join(self.conn.data_to_send()))
            if not last:
                await asyncio.sleep(0)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(self.frames):
            log.warning("frame_is_no_text", client=self.client and self.client[0])
            self.frames = []
            if not self.close_sent:
                self.conn.send_close(_INVALID_TEXT)
                self.handle_parser_exception()
            return
        super().send_receive_event_to_app()


def _is_utf8(frames: Any) -> bool:
    try:
        b"".join(frames).decode()
    except UnicodeDecodeError:
        return False
    return True
