"""`pii_detection`: redacts personal data, or refuses the text (document 001, steps 3 and 10).

`phone_numbers` finds phone numbers, `pii_formats` the other kinds.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal

from pydantic import Field, field_validator

from astromesh.guardrails import pii_formats
from astromesh.guardrails.phone_numbers import PhoneNumbers, check_region
from astromesh.guardrails.pii_formats import (
    OPEN,
    PLUS,
    SEPARATOR,
    UNFINISHED_UUID,
    Span,
    ascii_digits,
    card_at,
    groups_of,
    ssn_at,
)
from astromesh.guardrails.spans import NOTHING, Finding, Scan, Scanner, SpanRule, scan_visible, settle
from astromesh.text import LINE_ENDS, LONGEST_INVISIBLE_RUN, SPACES

Kind = Literal["email", "phone", "ssn", "credit_card", "iban"]
KINDS: tuple[Kind, ...] = ("email", "phone", "ssn", "credit_card", "iban")
#: a phone number, and an address or a card that begins within it, in visible characters
MAX_LOOKAHEAD = 512
#: a phone number, and a card that begins within it
NUMBER_LOOKAHEAD = 160

_ASCII_TRIGGERS = tuple("@0123456789")
_TRIGGER = re.compile("[\\d@\uff20\ufe6b]").search
_GAP = f"(?:{SEPARATOR}|[{LINE_ENDS}_]){{0,3}}"
_UNFINISHED_NUMBER = (
    f"{PLUS}[{SPACES}]?(?:{OPEN}[{SPACES}]?)?\\Z|{OPEN}[{SPACES}]?\\Z"
    f"|(?:{PLUS}[{SPACES}]?)?(?:{OPEN}[{SPACES}]?)?(?>\\d(?:{_GAP}\\d)*)"
    f"(?:{_GAP}|[A-Za-z]{{1,9}}\\.? ?)\\Z|{UNFINISHED_UUID}"
)
_Finder = Callable[[str, int], Finding | None]
_FindAt = Callable[[str, Sequence[Span], int], Finding | None]
_Search = Callable[[str, int], "re.Match[str] | None"]


class PiiScanner:
    """Finds personal data of the given kinds.

    From left to right, it takes the first e-mail address, IBAN, card or social security number, the longer
    one if two begin together. Phone numbers are found only between them.
    """

    #: a run of invisible characters may follow each character
    max_lookahead: int | None = MAX_LOOKAHEAD * (LONGEST_INVISIBLE_RUN + 1)

    def __init__(self, kinds: Sequence[str], region: str) -> None:
        self._kinds = frozenset(kinds)
        self._of_digits = bool(self._kinds & {"phone", "ssn", "credit_card"})
        self._phones = PhoneNumbers(region) if "phone" in self._kinds else None

    def scan(self, text: str, start: int, final: bool) -> Scan:
        if final and not _may_hold(text):
            return Scan(NOTHING, len(text))
        return scan_visible(self._scan, text, start, final)

    def _scan(self, text: str, start: int, final: bool) -> Scan:
        settled = len(text) if final else self._settled(text, start)
        if settled <= start or not _may_hold(text):
            return Scan(NOTHING, settled)
        return settle(self._find(text, start), settled)

    def _settled(self, text: str, start: int) -> int:
        """The position from which more text may still complete personal data."""
        size = len(text)
        tail = self._unfinished(text, max(start, size - MAX_LOOKAHEAD))
        if tail is None:
            return size
        if size - tail.start() < 2 * NUMBER_LOOKAHEAD:
            return tail.start()
        # a long table of numbers is released in large pieces, each checked as a whole
        word = self._unfinished_word(text, max(start, size - MAX_LOOKAHEAD))
        return min(word.start() if word else size, max(tail.start(), size - NUMBER_LOOKAHEAD))

    @cached_property
    def _unfinished(self) -> _Search:
        """Matches the beginning of any kind at the end of a text; compiled late, as only streams need it."""
        numbers = [_UNFINISHED_NUMBER] if self._of_digits else []
        return re.compile("|".join((*self._words(), *numbers))).search

    @cached_property
    def _unfinished_word(self) -> _Search:
        return re.compile("|".join(self._words()) or "(?!)").search

    def _words(self) -> list[str]:
        patterns = (("email", pii_formats.UNFINISHED_EMAIL), ("iban", pii_formats.UNFINISHED_IBAN))
        return [pattern for kind, pattern in patterns if kind in self._kinds]

    def _find(self, text: str, start: int) -> Sequence[Finding]:
        text = ascii_digits(text)
        groups = groups_of(text, start) if self._of_digits else []
        strong = leftmost(self._finders(groups), text, start)
        if self._phones is None or not groups:
            return strong
        findings: list[Finding] = []
        at, index = start, 0
        for found in (*strong, Finding(len(text), len(text), "")):
            until = bisect_left(groups, (found.start, 0), index)
            findings += self._phones.find(text, groups[index:until], at, found.start)
            findings.append(found)
            at, index = found.end, bisect_left(groups, (found.end, 0), until)
        return findings[:-1]

    def _finders(self, groups: Sequence[Span]) -> list[_Finder]:
        words = (("email", pii_formats.next_email), ("iban", pii_formats.next_iban))
        numbers = (("credit_card", card_at), ("ssn", ssn_at)) if groups else ()
        return [
            *(find for kind, find in words if kind in self._kinds),
            *(_in_groups(groups, find_at) for kind, find_at in numbers if kind in self._kinds),
        ]


def leftmost(finders: Sequence[_Finder], text: str, start: int) -> list[Finding]:
    """The findings from left to right: always the first, and of several at one place the longest."""
    chosen: list[Finding] = []
    waiting = [(find, find(text, start)) for find in finders]
    while found := [found for _, found in waiting if found]:
        best = min(found, key=lambda one: (one.start, -one.end))
        chosen.append(best)
        waiting = [
            (find, found if found is None or found.start >= best.end else find(text, best.end))
            for find, found in waiting
        ]
    return chosen


def _in_groups(groups: Sequence[Span], find_at: _FindAt) -> _Finder:
    """A finder of numbers that begin with a group; it checks each group once."""
    index = 0

    def find(text: str, start: int) -> Finding | None:
        nonlocal index
        index = bisect_left(groups, (start, 0), index)
        while index < len(groups):
            if found := find_at(text, groups, index):
                return found
            index += 1
        return None

    return find


def _may_hold(text: str) -> bool:
    """Whether the text may hold personal data; most texts have neither a digit nor an at sign."""
    if not text.isascii():
        return _TRIGGER(text) is not None
    return any(char in text for char in _ASCII_TRIGGERS)


class PiiDetection(SpanRule):
    """Redacts personal data, or refuses the text."""

    type = "pii_detection"

    action: Literal["redact", "block"] = Field(
        "redact", description="Replace what was found by [EMAIL], [PHONE], …, or refuse the text."
    )
    kinds: list[Kind] = Field(list(KINDS), min_length=1, description="Kinds of personal data to look for.")
    default_region: str = Field(
        "US",
        description="Country (ISO 3166) whose phone numbers are found without a country code; empty: none.",
    )
    message: str = Field("The text holds personal data.", description="Text that replaces a refused text.")

    @field_validator("default_region")
    @classmethod
    def _known(cls, region: str) -> str:
        check_region(region)
        return region

    @cached_property
    def scanners(self) -> Sequence[Scanner]:
        return [PiiScanner(self.kinds, self.default_region)]

    @property
    def refusal(self) -> str:
        return self.message
