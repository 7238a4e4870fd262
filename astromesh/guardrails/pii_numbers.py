"""Digits in a text: where they stand, what may stand between those of one number, and what else they may be.

What is asked about a place looks at most `spans.CONTEXT` characters back, so that streams answer the same.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from astromesh.unseen import LINE_ENDS, SPACES

DASH = "\\-\u2010-\u2015\u2212\ufe63\uff0d"
DOT = ".\u00b7\uff0e"
SEPARATOR = f"[{SPACES}{DASH}{DOT}/()（）]"
PLUS, OPEN = "[+\uff0b]", "[(（]"
#: most characters between two groups of a number
WIDEST_GAP = 3

Span = tuple[int, int]

_DIGITS = re.compile(r"\d+")
_WIDE_DIGIT = re.compile(r"(?![0-9])\d")
#: what is too short for a number of any kind is not looked at
_STRETCH = re.compile(f"\\d(?:[{SPACES}{LINE_ENDS}{DASH}{DOT}/()（）_]{{0,{WIDEST_GAP}}}+\\d){{6,}}+")
_JOINED = re.compile(f"{SEPARATOR}{{1,3}}|_").fullmatch
#: a line that ends within a number
_BROKEN = re.compile(f"{SEPARATOR}{{0,2}}(?:\r\n|[{LINE_ENDS}]){SEPARATOR}{{0,2}}").fullmatch
_KINDS = tuple(re.compile(f"[{chars}]").search for chars in (DASH, DOT, "/", "()（）", "_"))

#: what a number cannot touch; underscores it may, they are Markdown's italics as well
GLUE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
#: underscores of a name such as `order_2125550123`, where nothing but digits says little
_NAME_BEFORE = re.compile(r"[A-Za-z0-9]_{1,3}\Z")
_NAME_BEHIND = re.compile(r"_{1,3}[A-Za-z0-9]")

_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"(?:19|20)\d\d"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
#: dates and IPv4 addresses; of a row of groups the last three are none
_DATE_OR_ADDRESS = re.compile(
    rf"(?<!\d)(?:{_YEAR}([-./]){_MONTH}\1{_DAY}(?!\d)|{_DAY}([-./]){_DAY}\2{_YEAR}(?!\d)"
    rf"|(?<!\d[ /\xa0\u202f]){_DAY} {_MONTH} {_YEAR}(?! ?\d)|(?<!\d\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d))"
).match
#: characters of one
LONGEST_DATE = 15
_HEX = "[0-9A-Fa-f]"
_UUID = re.compile(rf"(?<![0-9A-Za-z]){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?![0-9A-Za-z])").match
_PLACES_IN_UUID = (0, 9, 14, 19, 24)
#: the beginning of one at the end of a text
UNFINISHED_UUID = rf"(?<![0-9A-Za-z])(?:{_HEX}{{1,8}}|{_HEX}{{8}}-(?:{_HEX}{{4}}-){{0,3}}{_HEX}{{0,12}})\Z"


class Gap(NamedTuple):
    """What stands between two groups of digits of one number.

    Args:
        kind: a sign for the only kind of separator in it: "-", ".", "/", "(", "_" or " "; "" for a mere line
            end; None for several kinds.
        joined: whether it is nothing but separators.
        broken: whether a line ends in it.
    """

    kind: str | None
    joined: bool
    broken: bool


def ascii_digits(text: str) -> str:
    """The text with the digits of all scripts in ASCII, each at its place."""
    if text.isascii():
        return text
    return _WIDE_DIGIT.sub(lambda digit: str(int(digit[0])), text)


def groups_of(text: str, start: int) -> list[Span]:
    """The groups of digits that begin at `start` or later and may be of a number."""
    spans = [
        digits.span()
        for stretch in _STRETCH.finditer(text, start)
        for digits in _DIGITS.finditer(text, *stretch.span())
    ]
    if spans and spans[0][0] == start and start and text[start - 1].isdecimal():
        del spans[0]
    return spans


def gap_between(text: str, end: int, start: int) -> Gap | None:
    """What joins two groups to one number, if anything does."""
    return _gap(text[end:start]) if start - end <= WIDEST_GAP else None


@lru_cache(maxsize=4096)
def _gap(between: str) -> Gap | None:
    joined, broken = _JOINED(between) is not None, _BROKEN(between) is not None
    if not (joined or broken):
        return None
    kinds = [kind for kind, has in zip("-./(_", _KINDS, strict=True) if has(between)]
    if not kinds:
        return Gap("" if broken else " ", joined, broken)
    return Gap(kinds[0] if len(kinds) == 1 else None, joined, broken)


def in_name(text: str, start: int, end: int) -> bool:
    """Whether underscores tie digits to the rest of a name."""
    if start and text[start - 1] == "_" and _NAME_BEFORE.search(text, max(start - 4, 0), start):
        return True
    return _NAME_BEHIND.match(text, end) is not None


def in_uuid(text: str, start: int) -> bool:
    """Whether a group that begins there is of a UUID (RFC 9562)."""
    return any(_UUID(text, start - place) for place in _PLACES_IN_UUID if start >= place)


def date_at(text: str, start: int) -> Span | None:
    """The date or IPv4 address that begins there."""
    date = _DATE_OR_ADDRESS(text, start)
    return date.span() if date else None


def fraction_before(text: str, start: int, points: str = ".") -> bool:
    """Whether digits stand behind a decimal point."""
    return start > 1 and text[start - 1] in points and text[start - 2].isdecimal()
