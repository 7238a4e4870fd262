"""Finds phone numbers with and without a country code; the numbering plans of `phonenumbers` confirm them.

The library is loaded with the first text that has digits, not at start.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from astromesh.guardrails.pii_formats import (
    DASH,
    GLUE,
    MAX_DATE_LENGTH,
    OPEN,
    PLUS,
    WIDEST_GAP,
    Span,
    date_at,
    fraction_before,
    gap_between,
    in_name,
    in_uuid,
)
from astromesh.guardrails.spans import Finding
from astromesh.text import SPACES

PHONE = "[PHONE]"
#: digits of a phone number with country code (ITU-T E.164) and 00 before it
_MIN_DIGITS, _MAX_DIGITS = 7, 17
#: most groups; only the first two may have one digit
_MAX_GROUPS = 10
#: lengths behind a plus that are a phone number even if no plan knows it
INTERNATIONAL_DIGITS = range(10, 16)

#: the region of numbers of no country, such as +800
_NO_COUNTRY = "001"
#: kinds of numbers in a plan
_USES = (
    "fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "voip", "personal_number", "pager",
    "uan", "voicemail",
)  # fmt: skip
#: characters before a line end within a phone number; columns of numbers have others
_GOES_ON = re.compile(f"[{DASH})）]").match
_PLUS_BEFORE = re.compile(f"({PLUS}[{SPACES}]?)({OPEN}[{SPACES}]?)?\\Z")
_OPEN_BEFORE = re.compile(f"({OPEN}[{SPACES}]?)\\Z")
_CLOSED = re.compile("[)）]")
#: words that a phone number may touch: Tel2125550187, 212-555-0187x5
_PHONE_BEFORE = re.compile(r"(?<![A-Za-z0-9_])(?:tel|phone|fax|cell|mobile)\Z", re.IGNORECASE)
_EXTENSION = re.compile(r"(?:x|ext\.?) ?\d", re.IGNORECASE)

#: with underscores between its groups
_UNDERSCORED = re.compile(r"0|(?:1_)?\d{3}_\d{3}_\d{4}(?!\d)").match
#: the path of a URL, except of links to a chat (wa.me)
_PATH_BEFORE = re.compile(r"[/.][A-Za-z]{1,8}(?<!wa\.me)/\Z")
#: 555-123-4567, with or without a leading 1, in the groups of North America or without groups
_AMERICAN = frozenset({(10,), (11,), (3, 3, 4), (3, 7), (4, 3, 4), (6, 4)})
_AMERICAN_FORMS = _AMERICAN | {(1, *form) for form in _AMERICAN}
_AMERICAN_BEGINNINGS = frozenset(form[:2] for form in _AMERICAN_FORMS)
_MAX_AMERICAN_GROUPS = 4
_AMERICAN_SIZES = frozenset(form[0] for form in _AMERICAN_FORMS)
#: a date, or date and time, in digits alone
_COMPACT_DATE = re.compile(
    r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:(?:[01]\d|2[0-3])[0-5]\d[0-5]\d)?"
).fullmatch
_POSTCODE = re.compile(r"[1-9]\d{4}-\d{4}").fullmatch
#: a decimal number of up to fifteen digits before its point, and the part before it
_DECIMAL = re.compile(r"(?<![\d.])(?:0|[1-9]\d{0,14})\.\d+(?!\.?\d)").match
_WHOLE_BEFORE = re.compile(r"(?<![\d.])(?:0|[1-9]\d{0,14})\.\Z")
#: the text before the minutes or seconds of a time
_TIME_BEFORE = re.compile(r"(?<!\d)\d{1,2}:\Z")


@cache
def _library() -> Any:
    return import_module("phonenumbers")


def check_region(region: str) -> None:
    """Raises: ValueError: the region does not exist; empty is none."""
    if region and not _library().country_code_for_region(region.upper()):
        raise ValueError(
            f"{region!r} is not a region. Use an ISO 3166 code such as US or DE, or leave it empty."
        )


class _Row(NamedTuple):
    """Groups that may be one phone number: start, end, digits, and the size of each group."""

    start: int
    end: int
    digits: str
    sizes: tuple[int, ...]


class PhoneNumbers:
    """Finds phone numbers.

    Args:
        region: ISO 3166 code of the country whose numbers are written without a country code, or empty; see
            `check_region`.
    """

    def __init__(self, region: str) -> None:
        self._region = region.upper()

    @cached_property
    def _code(self) -> int:
        return int(_library().country_code_for_region(self._region)) if self._region else 0

    @cached_property
    def _american(self) -> bool:
        return self._code == 1

    @cached_property
    def _abroad(self) -> tuple[str, ...]:
        return ("00", "011") if self._american else ("00",)

    def find(self, text: str, groups: Sequence[Span], start: int, end: int) -> list[Finding]:
        """Phone numbers between two places, from left to right."""
        findings: list[Finding] = []
        search = _PhoneRows(text, groups, end)
        at, signed = start, "+" in text or "\uff0b" in text
        for index, (first, stop) in enumerate(groups):
            plus = _PLUS_BEFORE.search(text, max(at, first - 4), first) if signed and first >= at else None
            if first < at or not (plus or self._may_begin(text, first, stop)):
                continue
            if found := self._at(search, index, plus, at):
                found = self._split(search, index, plus, at, found)
                findings.append(found)
                at = found.end
        return findings

    def _split(
        self, search: _PhoneRows, index: int, plus: re.Match[str] | None, at: int, found: Finding
    ) -> Finding:
        """The first of two numbers with a space between them, if the longest row ends within the second."""
        text, groups = search.text, search.groups
        behind = bisect_left(groups, (found.end, 0), index)
        if behind >= len(groups) or groups[behind][0] - found.end > WIDEST_GAP:
            return found
        for second in range(index + 1, behind):
            end, start = groups[second - 1][1], groups[second][0]
            if not text[end:start].isspace() or not self._may_begin(text, *groups[second]):
                continue
            first = self._at(search, index, plus, at, end)
            other = self._at(search, second, None, end) if first else None
            if first and first.end == end and other and other.end > found.end:
                return first
        return found

    def _may_begin(self, text: str, first: int, stop: int) -> bool:
        """Whether a number without a plus may begin with a group, by its size and its first digits."""
        if not self._american:
            return self._code != 0 or text.startswith("00", first, stop)
        if text[first] == "0":
            return text.startswith(self._abroad, first, stop)
        return stop - first in _AMERICAN_SIZES and (stop - first > 1 or text[first] == "1")

    def _at(
        self, search: _PhoneRows, index: int, plus: re.Match[str] | None, at: int, limit: int | None = None
    ) -> Finding | None:
        """The longest phone number that begins with this group, and ends at `limit` at the latest."""
        text, (first, stop) = search.text, search.groups[index]
        free = not plus and text[first] != "0"
        if free and not self._american and search.is_dated(first, stop):
            return None
        rows = search.rows(index, free and self._american)
        if limit is not None:
            rows = [row for row in rows if row.end <= limit]
        for row in reversed(rows) if rows and _begins(text, first) else ():
            if plus and _is_international(row.digits):
                return Finding(plus.start(), row.end, PHONE)
            if self._may_hold(row) and self._is_local(search, row):
                opened = _OPEN_BEFORE.search(text, max(at, first - 2), first)
                closed = opened and _CLOSED.search(text, first, row.end)
                return Finding(opened.start() if opened and closed else first, row.end, PHONE)
        return None

    def _may_hold(self, row: _Row) -> bool:
        """A cheap test that excludes most rows of a table."""
        if self._american:
            return row.sizes in _AMERICAN_FORMS or row.digits.startswith(self._abroad)
        if self._code and _plan(self._code, self._region).may_hold(row.digits):
            return True
        return row.digits.startswith("00")

    def _is_local(self, search: _PhoneRows, row: _Row) -> bool:
        """Whether the row is a number as written in the region, not an address, date or decimal number."""
        text, (start, end, digits, sizes) = search.text, row
        single = len(sizes) == 1
        if single and (in_name(text, start, end) or _in_path(text, start)):
            return False
        for prefix in self._abroad:
            if digits.startswith(prefix) and _is_dialled(digits[len(prefix) :], sizes[0] - len(prefix)):
                return not (fraction_before(text, start) or in_uuid(text, start))
        if not self._code or (self._american and sizes not in _AMERICAN_FORMS):
            return False
        if single and _is_fraction(text, start, end):
            return False
        if self._american and sizes[-3:] == (3, 3, 4):
            return True  # the form decides: fictitious numbers such as 555-123-4567 are in no plan
        if search.is_dated(start, end) or self._is_other(text, row):
            return False
        return _is_number(digits, self._region)

    def _is_other(self, text: str, row: _Row) -> bool:
        """Whether a number of a plan is a date, a time, a decimal number, a postcode or part of a UUID."""
        start, end, digits, sizes = row
        if sizes[0] <= 2 and _TIME_BEFORE.search(text, max(start - 3, 0), start):
            return True
        if not (self._american and sizes[0] == 1) and _in_decimal(text, start):
            return True
        if sizes == (5, 4) and _POSTCODE(text, start, end):
            return True
        if sizes in ((8,), (14,)) and _COMPACT_DATE(digits) and _plan(self._code, self._region).has_prefix:
            return True
        return in_uuid(text, start)


class _PhoneRows:
    """The rows of groups of a text.

    Args:
        end: position that no row exceeds.
    """

    def __init__(self, text: str, groups: Sequence[Span], end: int) -> None:
        self.text, self.groups, self._end = text, groups, end

    def rows(self, index: int, american: bool) -> list[_Row]:
        """The rows that begin with a group and have enough digits, shortest first.

        Args:
            american: only the forms of North America.
        """
        near = self.groups[index : index + (_MAX_AMERICAN_GROUPS if american else _MAX_GROUPS)]
        sizes = tuple([end - start for start, end in near])
        if american and sizes[:1] not in _AMERICAN_FORMS and sizes[:2] not in _AMERICAN_BEGINNINGS:
            return []
        if sum(sizes) < _MIN_DIGITS:
            return []
        counts = self._counts(near, sizes)
        if american:
            counts = [count for count in counts if sizes[:count] in _AMERICAN_FORMS]
        if not counts:
            return []
        first = near[0][0]
        digits = "".join([self.text[start:end] for start, end in near[: counts[-1]]])
        return [
            _Row(first, near[count - 1][1], digits[: sum(sizes[:count])], sizes[:count]) for count in counts
        ]

    def _counts(self, near: Sequence[Span], sizes: Sequence[int]) -> list[int]:
        """The numbers of groups that may be one phone number."""
        text, first, last = self.text, *near[0]
        counts: list[int] = []
        kind: str | None = ""
        digits = breaks = 0
        for count, (start, end) in enumerate(near, 1):
            digits += sizes[count - 1]
            if digits > _MAX_DIGITS or end > self._end or (count > 2 and end == start + 1):
                break
            if count > 1:
                gap = gap_between(text, last, start)
                if gap is None or not (gap.joined or _GOES_ON(text, last)):
                    break
                if gap.kind == "_" and not (kind == "_" or (count == 2 and _UNDERSCORED(text, first))):
                    break
                kind, breaks, last = gap.kind, breaks + gap.broken, end
                if breaks > 1:
                    break
            if digits >= _MIN_DIGITS and _closes(text, end):
                counts.append(count)
        if kind == "_" and in_name(text, first, near[counts[-1] - 1][1] if counts else last):
            return []
        return counts

    def is_dated(self, start: int, end: int) -> bool:
        """Whether the span holds a date or an IPv4 address, or a part of one."""
        dates = self._dates
        at = bisect_left(dates, (start, 0))
        if at < len(dates) and dates[at][0] < end:
            return True
        return any(last > start for _, last in dates[max(at - MAX_DATE_LENGTH, 0) : at])

    @cached_property
    def _dates(self) -> list[Span]:
        first = self.groups[0][0]
        before = [at for at in range(max(first - MAX_DATE_LENGTH, 0), first) if self.text[at].isdecimal()]
        dates = [date_at(self.text, at) for at in (*before, *[start for start, _ in self.groups])]
        return [date for date in dates if date]


def _begins(text: str, start: int) -> bool:
    if not start or text[start - 1] not in GLUE:
        return True
    return _PHONE_BEFORE.search(text, max(start - 8, 0), start) is not None


def _closes(text: str, end: int) -> bool:
    return text[end : end + 1] not in GLUE or _EXTENSION.match(text, end) is not None


def _in_decimal(text: str, start: int) -> bool:
    """Whether a decimal number, or its fraction, begins there."""
    if _DECIMAL(text, start):
        return True
    whole = fraction_before(text, start) and _WHOLE_BEFORE.search(text, max(start - 16, 0), start)
    return bool(whole and _DECIMAL(text, whole.start()))


def _is_fraction(text: str, start: int, end: int) -> bool:
    if fraction_before(text, start, ".,"):
        return True
    return text[end : end + 1] == "." and text[end + 1 : end + 2].isdecimal()


def _in_path(text: str, start: int) -> bool:
    """Whether the digits are part of the path of a URL."""
    return _PATH_BEFORE.search(text, max(start - 10, 0), start) is not None


# -- numbering plans of phone numbers ------------------------------------------------------------------------


def _is_international(digits: str) -> bool:
    """Whether the digits are a number behind a plus: in a plan, or long enough with a country code."""
    if len(digits) > INTERNATIONAL_DIGITS[-1]:
        return False
    return (len(digits) in INTERNATIONAL_DIGITS and _code_of(digits) != 0) or _is_known_abroad(digits)


def _is_dialled(digits: str, first: int) -> bool:
    """Whether the digits behind 00 are a number abroad; their first group has no part of a country code.

    Args:
        first: digits in the group of the 00.
    """
    code = _code_of(digits)
    return code != 0 and (first == 0 or first >= len(str(code))) and _is_known_abroad(digits)


def _is_known_abroad(digits: str) -> bool:
    """Whether a plan knows the country code and the number."""
    code = _code_of(digits)
    if not code or not _plan_abroad(code).holds(digits[len(str(code)) :]):
        return False
    return _is_number("+" + digits, None)


def _code_of(digits: str) -> int:
    """The country code at the beginning, or zero; no code begins with another (ITU-T E.164)."""
    return _code_in(digits[:3])


@lru_cache(maxsize=1024)
def _code_in(beginning: str) -> int:
    codes = (int(beginning[:size]) for size in range(1, len(beginning) + 1) if beginning[0] != "0")
    return next((code for code in codes if code in _library().COUNTRY_CODE_TO_REGION_CODE), 0)


@lru_cache(maxsize=1024)
def _is_number(written: str, region: str | None) -> bool:
    library = _library()
    try:
        return bool(library.is_valid_number(library.parse(written, region)))
    except library.NumberParseException:
        return False


class _Plan:
    """A cheap test that all numbers of a country code pass, before the expensive one.

    Args:
        region: its national prefix may precede the numbers.
    """

    def __init__(self, code: int, region: str) -> None:
        plans = [_metadata(code, one) for one in _library().COUNTRY_CODE_TO_REGION_CODE[code]]
        uses = [use for plan in plans for name in _USES if (use := getattr(plan, name))]
        patterns = {use.national_number_pattern for use in uses} - {None}
        self._national = re.compile("|".join(sorted(patterns)) or "(?!)").fullmatch
        lengths = [size for plan in plans for size in plan.general_desc.possible_length]
        self._lengths = range(min(lengths), max(lengths) + 1)
        own = _metadata(code, region)
        self._prefix = re.compile(own.national_prefix_for_parsing or "(?!)").match
        self._rule, self._code = own.national_prefix_transform_rule, str(code)
        self.has_prefix = own.national_prefix is not None

    def may_hold(self, digits: str) -> bool:
        """Whether the digits may be such a number, with or without country code and national prefix."""
        if self.holds(digits):
            return True
        return digits.startswith(self._code) and self.holds(digits[len(self._code) :])

    def holds(self, digits: str) -> bool:
        """Whether the digits may be such a number, with or without the national prefix."""
        if len(digits) in self._lengths and self._national(digits):
            return True
        prefix = self._prefix(digits)
        if not prefix or not prefix.end():
            return False
        rest = digits[prefix.end() :]
        if self._rule and prefix.lastindex:
            rest = prefix.expand(self._rule) + rest
        return len(rest) in self._lengths and self._national(rest) is not None


@lru_cache(maxsize=512)
def _plan(code: int, region: str) -> _Plan:
    return _Plan(code, region)


@lru_cache(maxsize=512)
def _plan_abroad(code: int) -> _Plan:
    return _Plan(code, _library().region_code_for_country_code(code))


def _metadata(code: int, region: str) -> Any:
    if region == _NO_COUNTRY:
        return _library().PhoneMetadata.metadata_for_nongeo_region(code)
    return _library().PhoneMetadata.metadata_for_region(region)
