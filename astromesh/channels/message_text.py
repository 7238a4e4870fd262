"""Reads webhook JSON and splits long replies where a reader would pause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from astromesh.errors import InvalidInput

#: ends of sentences: after the mark and its closing quotes, before white space; the CJK ones need none
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]")


#: where to cut, best first; the sentence's end is what counts, a paragraph's end is one, too
_BREAKS = (re.compile(r"\n\s*\n"), _SENTENCE, re.compile(r"\n"), re.compile(r"\s"))


#: a cut that leaves less than this share of the room used is worse than one at the next kind of place
_MIN_SHARE = (0.6, 0.3, 0.3, 0.01)


def split_text(text: str, most: int) -> tuple[str, ...]:
    """The pieces of a text, each at most `most` characters, without white space at their ends.

    Args:
        most: characters as the messenger counts them: UTF-16 code units, two for most emoji.
    """
    pieces = []
    rest = text.strip()
    while rest:
        room = _characters_that_fit(rest, most)
        end = len(rest) if room >= len(rest) else _cut_position(rest, room)
        pieces.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return tuple(pieces)


def _cut_position(text: str, room: int) -> int:
    """Where to cut, at most at `room`."""
    for place, least in zip(_BREAKS, _MIN_SHARE, strict=True):
        ends = [found.end() for found in place.finditer(text, 0, room + 1) if found.end() <= room]
        if ends and ends[-1] >= room * least:
            return ends[-1]
    return room


def _characters_that_fit(text: str, most: int) -> int:
    """How many characters of a text fit into so many UTF-16 code units; at least one."""
    if len(text) * 2 <= most:
        return len(text)
    head = text[:most].encode("utf-16-le", "surrogatepass")[: most * 2]
    return max(len(head.decode("utf-16-le", "ignore")), 1)


# Webhook JSON may have any shape. These readers return only what is documented.

#: characters of any text that a webhook brings; messengers' own bounds are 4,096, those of captions 1,024
MAX_TEXT, MAX_NAME = 16_384, 256


def parse_object(body: bytes) -> dict[str, Any]:
    """The object that a webhook is.

    Raises:
        InvalidInput: it is none.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The webhook is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidInput("The webhook is not a JSON object.")
    return found


def object_of(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def list_of(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(data: Mapping[str, Any], key: str, most: int = MAX_TEXT) -> str:
    value = data.get(key)
    return value[:most] if isinstance(value, str) else ""


def place_of(data: Mapping[str, Any]) -> tuple[float, float] | None:
    """Latitude and longitude in degrees, where both are there."""
    place = data.get("latitude"), data.get("longitude")
    known = all(isinstance(n, int | float) and not isinstance(n, bool) for n in place)
    return place if known else None  # type: ignore[return-value]
