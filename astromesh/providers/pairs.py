"""Surrogate pairs that a service has cut in two.

JSON writes a character beyond U+FFFF as two escapes (RFC 8259, section 7). Services that count UTF-16 code
units may send them in two events: each is then no text by itself, together they are a character.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def loads(data: bytes | str) -> Any:
    """JSON whose strings may hold halves of surrogate pairs.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        escape = b"\\ud" if isinstance(data, bytes) else "\\ud"
        if escape not in data.lower():  # type: ignore[operator]
            raise
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error


def whole(text: str) -> str:
    """The text with its pairs joined; a half that stays alone becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Pairs:
    """Joins the halves over the deltas of one answer. A half at its very end is left out."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        """The text that is whole by now."""
        if not self._half and text.isascii():
            return text
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole(text)
