"""Cutting text at offsets: pure functions over spans, so that every chunk is a slice of its document.

A text is cut at the coarsest separators that make the pieces small enough; neighbours are then joined again
up to the limit. Sizes are estimated tokens (`astromesh.tokens`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from astromesh.tokens import estimate

PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
LINE = re.compile(r"\n")
#: the end of a sentence with what closes it; CJK full stops need no space behind them
SENTENCE = re.compile(r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[”’」』）]*\s*")
WORD = re.compile(r"\s+")

Separators: TypeAlias = tuple[re.Pattern[str], ...]


class Span(NamedTuple):
    """A slice of a text, in characters."""

    start: int
    end: int


def pieces(text: str, span: Span, limit: int, separators: Separators) -> Iterator[Span]:
    """Tiles a span with pieces of at most `limit` tokens, cut at the first separators that will do."""
    if estimate(text[span.start : span.end]) <= limit:
        yield span
    elif separators:
        for part in cut(text, span, separators[0]):
            yield from pieces(text, part, limit, separators[1:])
    else:  # one endless word: a character has at most four bytes, and four bytes are a token
        for start in range(span.start, span.end, limit):
            yield Span(start, min(start + limit, span.end))


def cut(text: str, span: Span, separator: re.Pattern[str]) -> Iterator[Span]:
    """Tiles a span with what lies between separators; a separator belongs to the piece before it."""
    start = span.start
    for found in separator.finditer(text, span.start, span.end):
        if start < found.end() < span.end:
            yield Span(start, found.end())
            start = found.end()
    yield Span(start, span.end)


def join(text: str, parts: Sequence[Span], limit: int, overlap: int) -> Iterator[Span]:
    """Joins neighbours up to `limit` tokens; each chunk begins with up to `overlap` tokens of the last."""
    sizes = [estimate(text[part.start : part.end]) for part in parts]
    first = 0
    while first < len(parts):
        last, size = first, sizes[first]
        while last + 1 < len(parts) and size + sizes[last + 1] <= limit:
            last += 1
            size += sizes[last]
        yield Span(parts[first].start, parts[last].end)
        if last + 1 == len(parts):
            return
        begin = _step_back(sizes, first, last, min(overlap, limit - sizes[last + 1]))
        # a chunk begins at its first piece that is not blank, and the next one behind it
        first = max(begin, _first_words(text, parts, first, last) + 1)


def _step_back(sizes: Sequence[int], first: int, last: int, overlap: int) -> int:
    """Where the next chunk begins: after `last`, less the pieces that fit into the overlap."""
    begin, room = last + 1, overlap
    while begin - 1 > first and sizes[begin - 1] <= room:
        begin -= 1
        room -= sizes[begin]
    return begin


def _first_words(text: str, parts: Sequence[Span], first: int, last: int) -> int:
    """The first piece that is not blank, or `last`."""
    return next((i for i in range(first, last) if not text[parts[i].start : parts[i].end].isspace()), last)


def trimmed(text: str, span: Span) -> Span:
    """Without white space at both ends; empty (start == end) where there is nothing else."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return Span(start, end)
