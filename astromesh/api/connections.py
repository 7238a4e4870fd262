"""The sockets that are open, so that the end of a server can be told to them."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from starlette.websockets import WebSocket

SERVICE_RESTART = 1012


class Connection(Protocol):
    """A client of a WebSocket."""

    @property
    def socket(self) -> WebSocket: ...


class ConnectionManager:
    """The open sockets of a server (document 001, step 1)."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def register(self, connection: Connection) -> None:
        self._open.add(connection)

    def unregister(self, connection: Connection) -> None:
        self._open.discard(connection)

    async def close_all(self) -> None:
        """Tells every client to come back later (close code 1012)."""
        for connection in tuple(self._open):
            with suppress(RuntimeError):
                await connection.socket.close(SERVICE_RESTART)
