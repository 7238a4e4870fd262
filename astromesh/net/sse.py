"""Server-sent events (WHATWG HTML, 9.2.6), read from chunks that may be cut anywhere.

Events without data are left out: they keep a connection awake and tell nobody anything. The standard hands on
the empty text where there is a `data` line.
"""

from __future__ import annotations

from typing import NamedTuple

from astromesh.errors import AnswerTooLarge

_BOM = b"\xef\xbb\xbf"
MAX_EVENT = 4 * 1024 * 1024


class ServerEvent(NamedTuple):
    """One event. Several `data` lines are joined by newlines."""

    data: bytes
    event: str = ""
    id: str = ""


class SseParser:
    """Feed it chunks, get events. Holds back at most one unfinished event.

    Args:
        limit: bytes that one event may have.
    """

    __slots__ = ("_limit", "_rest")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that this chunk completes.

        Raises:
            AnswerTooLarge: an event has more bytes than the limit.
        """
        text = self._rest + chunk if self._rest else chunk
        held = b""
        if b"\r" in text:
            if text.endswith(b"\r"):  # the line feed of this line end may be in the next chunk
                text, held = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = text.split(b"\n\n")
        self._rest = rest + held
        if len(rest) > self._limit:
            raise AnswerTooLarge(f"One event of the stream has more than {self._limit} bytes.")
        return [event for block in blocks if (event := parse_block(block)) is not None]

    def finish(self) -> list[ServerEvent]:
        """What stands after the last blank line: servers exist that forget it."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        event = parse_block(rest)
        return [event] if event is not None else []


def parse_block(block: bytes) -> ServerEvent | None:
    """One event's lines, with line feeds between them; None where there is no data in them."""
    if block.startswith(b"data: ") and b"\n" not in block:  # what every model's stream consists of
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
    said = b"\n".join(data)
    if not said:
        return None
    return ServerEvent(
        said, named[b"event"].decode("utf-8", "replace"), named[b"id"].decode("utf-8", "replace")
    )
