"""A long reply as several messages, cut where a reader would pause."""

from __future__ import annotations

import re

#: ends of sentences: after the mark and its closing quotes, before white space; the CJK ones need none
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]")
#: where to cut, best first; the sentence's end is what counts, a paragraph's end is one, too
_PLACES = (re.compile(r"\n\s*\n"), _SENTENCE, re.compile(r"\n"), re.compile(r"\s"))
#: a cut that leaves less than this share of the room used is worse than one at the next kind of place
_LEAST = (0.6, 0.3, 0.3, 0.01)


def split(text: str, most: int) -> tuple[str, ...]:
    """The pieces of a text, each at most `most` characters, without white space at their ends.

    Args:
        most: characters as the messenger counts them: UTF-16 code units, two for most emoji.
    """
    pieces = []
    rest = text.strip()
    while rest:
        room = _fitting(rest, most)
        end = len(rest) if room >= len(rest) else _cut(rest, room)
        pieces.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return tuple(pieces)


def _cut(text: str, room: int) -> int:
    """Where to cut, at most at `room`."""
    for place, least in zip(_PLACES, _LEAST, strict=True):
        ends = [found.end() for found in place.finditer(text, 0, room + 1) if found.end() <= room]
        if ends and ends[-1] >= room * least:
            return ends[-1]
    return room


def _fitting(text: str, most: int) -> int:
    """How many characters of a text fit into so many UTF-16 code units; at least one."""
    if len(text) * 2 <= most:
        return len(text)
    head = text[:most].encode("utf-16-le", "surrogatepass")[: most * 2]
    return max(len(head.decode("utf-16-le", "ignore")), 1)
