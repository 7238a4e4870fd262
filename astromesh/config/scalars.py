"""What plain scalars mean: the core schema of YAML 1.2 (section 10.3.2); infinity and NaN are refused.

So `yes`, `no`, `on` and `off` are text, as are dates and `12:30`; numbers are what JSON can hold.
"""

from __future__ import annotations

import re
from math import isinf

NULLS = frozenset(("", "~", "null", "Null", "NULL"))
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BASES = {"0o": 8, "0x": 16}
#: no word starts a number or a constant but with one of these
_STARTS = frozenset("+-.0123456789~nNtTfF")
#: digits that surely fit; longer texts are not even converted
_MAX_DIGITS = 25

Scalar = str | int | float | bool | None


class NumberTooLarge(ValueError):
    """A number beyond 64 bits."""


class NotFinite(ValueError):
    """Infinity, or what is not a number."""


def plain(text: str) -> Scalar:
    """The value of a scalar without quotes.

    Raises:
        NumberTooLarge: it does not fit 64 bits.
        NotFinite: it is infinite or not a number, which JSON cannot hold.
    """
    if not text:
        return None
    if text[0] not in _STARTS:
        return text
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return integer(text)
    if _NOT_FINITE.fullmatch(text):
        raise NotFinite
    return real(text) if _FLOAT.fullmatch(text) else text


def integer(text: str) -> int:
    """Raises ValueError where it is none, NumberTooLarge beyond 64 bits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("no whole number")
    if len(text) > _MAX_DIGITS:
        raise NumberTooLarge
    base = _BASES.get(text[:2])
    value = int(text[2:], base) if base else int(text)
    if not -(2**63) <= value < 2**63:
        raise NumberTooLarge
    return value


def real(text: str) -> float:
    """Raises ValueError where it is no number, NumberTooLarge beyond 64 bits."""
    if not _FLOAT.fullmatch(text):
        raise ValueError("no number")
    value = float(text)
    if isinf(value):
        raise NumberTooLarge
    return value


def boolean(text: str) -> bool:
    """Raises ValueError where it is neither true nor false."""
    if text not in BOOLEANS:
        raise ValueError("neither true nor false")
    return BOOLEANS[text]
