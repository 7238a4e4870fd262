"""Newline-delimited JSON, read from chunks that may be cut anywhere."""

from __future__ import annotations

from astromesh.errors import AnswerTooLarge
from astromesh.net.sse import MAX_EVENT


class LineParser:
    """Feed it chunks, get whole non-empty lines without their line ends.

    Args:
        limit: bytes that one line may have.
    """

    __slots__ = ("_limit", "_rest")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes.

        Raises:
            AnswerTooLarge: a line has more bytes than the limit.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > self._limit:
            raise AnswerTooLarge(f"One line of the stream has more than {self._limit} bytes.")
        return [stripped for line in lines if (stripped := line.strip())]

    def finish(self) -> list[bytes]:
        """The last line, where it has no line end."""
        rest, self._rest = self._rest.strip(), b""
        return [rest] if rest else []
