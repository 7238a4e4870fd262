"""Parsers of server-sent events (WHATWG HTML, 9.2.6) and newline-delimited JSON, fed by chunks cut anywhere.

Events without data are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from astromesh.errors import AnswerTooLarge
from astromesh.net.http import MAX_BODY

_BOM = b"\xef\xbb\xbf"
#: some services send a whole answer as one event
MAX_EVENT = MAX_BODY


class ServerEvent(NamedTuple):
    """One event. Several `data` lines are joined by newlines."""

    data: bytes
    event: str = ""
    id: str = ""


class SseParser:
    """Parses chunks to events; buffers at most one incomplete event.

    Args:
        limit: most bytes of one event.
    """

    __slots__ = ("_limit", "_rest")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Returns the events that this chunk completes.

        Raises:
            AnswerTooLarge: an event has more bytes than the limit.
        """
        text = self._rest + chunk if self._rest else chunk
        held = b""
        if b"\r" in text:
            if text.endswith(b"\r"):  # the line feed of this line ending may be in the next chunk
                text, held = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = text.split(b"\n\n")
        self._rest = rest + held
        if len(rest) > self._limit:
            raise AnswerTooLarge(f"One event of the stream has more than {self._limit} bytes.")
        return [event for block in blocks if (event := parse_block(block)) is not None]

    def finish(self) -> list[ServerEvent]:
        """Returns an event without its final blank line, which some servers omit."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        event = parse_block(rest)
        return [event] if event is not None else []


def parse_block(block: bytes) -> ServerEvent | None:
    """Parses the lines of one event; returns None if they contain no data."""
    if block.startswith(b"data: ") and b"\n" not in block:  # the common case of model streams
        return ServerEvent(block[6:]) if len(block) > 6 else None
    data: list[bytes] = []
    named = {b"event": b"", b"id": b""}
    for line in block.removeprefix(_BOM).split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field in named:
            named[field] = value
    content = b"\n".join(data)
    if not content:
        return None
    return ServerEvent(
        content, named[b"event"].decode("utf-8", "replace"), named[b"id"].decode("utf-8", "replace")
    )


class LineParser(SseParser):
    """Parses chunks to complete, non-empty lines: the data of one event each, without the line ending."""

    __slots__ = ()

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > self._limit:
            raise AnswerTooLarge(f"One line of the stream has more than {self._limit} bytes.")
        return [ServerEvent(stripped) for line in lines if (stripped := line.strip())]

    def finish(self) -> list[ServerEvent]:
        """Returns the last line if it has no line ending."""
        rest, self._rest = self._rest.strip(), b""
        return [ServerEvent(rest)] if rest else []
