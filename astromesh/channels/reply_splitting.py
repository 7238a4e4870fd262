"""Splits replies that are too long for one message of a messenger."""

from __future__ import annotations

import re

#: ends of sentences: after the mark and its closing quotes, before white space; the CJK ones need none
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]")
#: where to cut, best first
_BREAKS = (re.compile(r"\n\s*\n"), _SENTENCE, re.compile(r"\n"), re.compile(r"\s"))
#: a cut that uses less than this share of the room is worse than one at the next kind of place
_MIN_SHARE = (0.6, 0.3, 0.3, 0.01)


def split_text(text: str, most: int) -> tuple[str, ...]:
    """Splits a text where a reader would pause, into pieces without white space at their ends.

    Args:
        most: characters of a piece as the messenger counts them: UTF-16 code units, two for most emoji.
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
    """Returns where to cut, at most at `room`."""
    for place, least in zip(_BREAKS, _MIN_SHARE, strict=True):
        ends = [found.end() for found in place.finditer(text, 0, room + 1) if found.end() <= room]
        if ends and ends[-1] >= room * least:
            return ends[-1]
    return room


def _characters_that_fit(text: str, most: int) -> int:
    """Returns how many characters of a text fit into `most` UTF-16 code units; at least one."""
    if len(text) * 2 <= most:
        return len(text)
    head = text[:most].encode("utf-16-le", "surrogatepass")[: most * 2]
    return max(len(head.decode("utf-16-le", "ignore")), 1)
