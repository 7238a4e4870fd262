"""What servers and the SDK say beside the protocol: lines of our log, not of the command's output."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

import structlog

log = structlog.get_logger("astromesh.mcp")

#: characters of one line that are kept, and bytes that wait for its end
_LONGEST, _UNENDED = 2000, 64 * 1024


@asynccontextmanager
async def heard(server: str) -> AsyncIterator[TextIO]:
    """A file whose lines become `mcp_server_says` in the log: the stderr of a server's program."""
    reading, writing = os.pipe()
    ours = os.fdopen(reading, "rb", buffering=0)
    theirs = os.fdopen(writing, "w")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _Lines(server), ours)
    try:
        yield theirs
    finally:
        theirs.close()
        transport.close()


class _Lines(asyncio.Protocol):
    def __init__(self, server: str) -> None:
        self._server, self._rest = server, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _UNENDED:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if text := line.decode("utf-8", "replace").strip():
                log.info("mcp_server_says", server=self._server, text=text[:_LONGEST])

    def connection_lost(self, error: Exception | None) -> None:
        self.data_received(b"\n")


class _OneLine(logging.Handler):
    """The SDK's warnings without their stack traces: what they mean for a call, its result says."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        more = {"error": error.__name__} if error else {}
        log.warning("mcp_sdk", text=record.getMessage().partition("\n")[0][:_LONGEST], **more)


_HANDLER = _OneLine(logging.WARNING)


def hear_the_sdk() -> None:
    """Takes over the SDK's own log, once."""
    sdk = logging.getLogger("mcp")
    if _HANDLER not in sdk.handlers:
        sdk.addHandler(_HANDLER)
        sdk.propagate = False
