"""`pii_detection`: personal data is redacted, or the text is refused (document 001, steps 3 and 10)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from astromesh.abc.deps import Deps
from astromesh.guardrails import pii_email, pii_iban
from astromesh.guardrails.pii_numbers import (
    OPEN,
    PLUS,
    SEPARATOR,
    Group,
    PhoneNumbers,
    card_at,
    groups_of,
    ssn_at,
)
from astromesh.guardrails.spans import NOTHING, Finding, Scan, SpanRule, scan_seen, settle
from astromesh.unseen import LINE_ENDS, LONGEST_RUN, SPACES

Kind = Literal["email", "phone", "ssn", "credit_card", "iban"]
KINDS: tuple[Kind, ...] = ("email", "phone", "ssn", "credit_card", "iban")
#: a phone number, and an address or a card that begins within it, in characters that are seen
MAX_LOOKAHEAD = 512
#: a phone number, and a card that begins within it
NUMBER_LOOKAHEAD = 160

_ASCII_TRIGGERS = tuple("@0123456789")
_TRIGGER = re.compile("[\\d@\uff20\ufe6b]").search
_GAP = f"(?:{SEPARATOR}|[{LINE_ENDS}]){{0,3}}"
_UNFINISHED_NUMBER = (
    f"{PLUS}[{SPACES}]?(?:{OPEN}[{SPACES}]?)?\\Z|{OPEN}[{SPACES}]?\\Z"
    f"|(?:{PLUS}[{SPACES}]?)?(?:{OPEN}[{SPACES}]?)?(?>\\d(?:{_GAP}\\d)*)"
    f"(?:{_GAP}|_{{1,3}}|[A-Za-z]{{1,9}}\\.? ?)\\Z"
)
_start = attrgetter("start")
_Finder = Callable[[str, int], Finding | None]
_Search = Callable[[str, int], "re.Match[str] | None"]


class PiiDetectionOptions(BaseModel):
    """Options of `pii_detection`."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["redact", "block"] = Field(
        "redact", description="Replace what was found by [EMAIL], [PHONE], …, or refuse the text."
    )
    kinds: list[Kind] = Field(list(KINDS), min_length=1, description="Kinds of personal data to look for.")
    default_region: str = Field(
        "US",
        description="Country (ISO 3166) whose phone numbers are found without a country code; empty: none.",
    )
    message: str = Field(
        "The text holds personal data.", description="What stands for a text that was refused."
    )

    @field_validator("default_region")
    @classmethod
    def _known(cls, region: str) -> str:
        PhoneNumbers(region)
        return region

    @property
    def needs_whole_text(self) -> bool:
        """Whether it can only be applied to the whole text, so that its agent streams as `final`."""
        return self.action == "block"


class PiiScanner:
    """Finds personal data of the given kinds.

    From left to right the first of e-mail addresses, IBANs, cards and social security numbers, the longer one
    where two begin together; phone numbers only between them.
    """

    #: each character may have a run of unseen ones behind it
    max_lookahead: int | None = MAX_LOOKAHEAD * (LONGEST_RUN + 1)

    def __init__(self, kinds: Sequence[str], region: str) -> None:
        self._kinds = frozenset(kinds)
        self._phones = PhoneNumbers(region) if "phone" in self._kinds else None

    def scan(self, text: str, start: int, final: bool) -> Scan:
        if final and not _may_hold(text):
            return Scan(NOTHING, len(text))
        return scan_seen(self._scan, text, start, final)

    def _scan(self, text: str, start: int, final: bool) -> Scan:
        settled = len(text) if final else self._settled(text, start)
        if settled <= start or not _may_hold(text):
            return Scan(NOTHING, settled)
        return settle(self._find(text, start), settled)

    def _settled(self, text: str, start: int) -> int:
        """Where what may still become something begins."""
        size = len(text)
        tail = self._unfinished(text, max(start, size - MAX_LOOKAHEAD))
        if tail is None:
            return size
        if size - tail.start() < 2 * NUMBER_LOOKAHEAD:
            return tail.start()
        # A long table of numbers leaves in large pieces: each is looked at as a whole.
        word = self._unfinished_word(text, max(start, size - MAX_LOOKAHEAD))
        return min(word.start() if word else size, max(tail.start(), size - NUMBER_LOOKAHEAD))

    @cached_property
    def _unfinished(self) -> _Search:
        """The beginning of any kind, at the end of a text. Only streams ask, and to compile it takes long."""
        numbers = [_UNFINISHED_NUMBER] if self._kinds & {"phone", "ssn", "credit_card"} else []
        return re.compile("|".join((*self._words(), *numbers))).search

    @cached_property
    def _unfinished_word(self) -> _Search:
        return re.compile("|".join(self._words()) or "(?!)").search

    def _words(self) -> list[str]:
        patterns = (("email", pii_email.UNFINISHED), ("iban", pii_iban.UNFINISHED))
        return [pattern for kind, pattern in patterns if kind in self._kinds]

    def _find(self, text: str, start: int) -> Sequence[Finding]:
        groups = groups_of(text, start)
        strong = leftmost(self._finders(text, groups), text, start)
        if self._phones is None or not groups:
            return strong
        findings: list[Finding] = []
        at, index = start, 0
        for found in (*strong, Finding(len(text), len(text), "")):
            until = bisect_left(groups, found.start, index, key=_start)
            findings += self._phones.find(text, groups[index:until], at, found.start)
            findings.append(found)
            at, index = found.end, bisect_left(groups, found.end, until, key=_start)
        return findings[:-1]

    def _finders(self, text: str, groups: Sequence[Group]) -> list[_Finder]:
        finders: list[_Finder] = []
        if "email" in self._kinds:
            finders.append(pii_email.next_email)
        if groups and "iban" in self._kinds:
            finders.append(pii_iban.next_iban)
        if groups and "credit_card" in self._kinds:
            finders.append(_in_groups([card_at(text, groups, i) for i in range(len(groups))]))
        if groups and "ssn" in self._kinds:
            finders.append(_in_groups([ssn_at(text, groups, i) for i in range(len(groups))]))
        return finders


def leftmost(finders: Sequence[_Finder], text: str, start: int) -> list[Finding]:
    """What the finders find from left to right, the first and longest of all at each step."""
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


def _in_groups(found: Sequence[Finding | None]) -> _Finder:
    """A finder over what begins with a group."""
    rest = [one for one in reversed(found) if one]

    def find(text: str, start: int) -> Finding | None:
        while rest and rest[-1].start < start:
            rest.pop()
        return rest[-1] if rest else None

    return find


def _may_hold(text: str) -> bool:
    """Whether there is anything to look at; most texts have neither a digit nor an at sign."""
    if not text.isascii():
        return _TRIGGER(text) is not None
    return any(char in text for char in _ASCII_TRIGGERS)


class PiiDetection:
    """The plugin."""

    Options = PiiDetectionOptions

    @classmethod
    async def open(cls, options: PiiDetectionOptions, deps: Deps) -> SpanRule:
        scanner = PiiScanner(options.kinds, options.default_region)
        return SpanRule("pii_detection", (scanner,), options.action, options.message)
