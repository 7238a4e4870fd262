"""Personal data that is written in digits: cards, US social security numbers and phone numbers.

A text is looked at as groups of digits, in any script, and what stands between them. A number of some kind is
a row of groups that are joined by at most three separators.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import phonenumbers

from astromesh.guardrails.spans import Finding
from astromesh.unseen import LINE_ENDS, SPACES

DASH = "\\-\u2010-\u2015\u2212\ufe63\uff0d"
DOT = ".\u00b7\uff0e"
SEPARATOR = f"[{SPACES}{DASH}{DOT}/()（）]"
PLUS, OPEN = "[+\uff0b]", "[(（]"

CARD, SSN, PHONE = "[CREDIT_CARD]", "[SSN]", "[PHONE]"
#: digits of a card (ISO/IEC 7812); of a phone number with country code (ITU-T E.164) and 00 before it
CARD_DIGITS, PHONE_DIGITS = range(12, 20), range(7, 18)
#: digits behind a plus that are a phone number even if no plan knows it
INTERNATIONAL_DIGITS = range(10, 16)

_COUNTRY_CODES = frozenset(phonenumbers.COUNTRY_CODE_TO_REGION_CODE)
_DIGITS = re.compile(r"\d+")
_JOINED = re.compile(f"{SEPARATOR}{{1,3}}").fullmatch
#: a line that ends within a number
_BROKEN = re.compile(f"{SEPARATOR}{{0,2}}(?:\r\n|[{LINE_ENDS}]){SEPARATOR}{{0,2}}").fullmatch
#: ends of a line where a phone number goes on: so it is written, and a column of numbers is not
_GOES_ON = re.compile(f"[{DASH})）]").match
_PLUS_BEFORE = re.compile(f"({PLUS}[{SPACES}]?)({OPEN}[{SPACES}]?)?\\Z")
_OPEN_BEFORE = re.compile(f"({OPEN}[{SPACES}]?)\\Z")
_CLOSED = re.compile("[)）]")
_DATE = re.compile(
    r"(?:19|20)\d\d([-./])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12]\d|3[01])(?!\d)"
    r"|(?:0?[1-9]|[12]\d|3[01])([-./])(?:0?[1-9]|[12]\d|3[01])\2(?:19|20)\d\d(?!\d)"
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IP_ADDRESS = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)")
#: its first one or two numbers; of three there is too little left for a phone number
_IP_BEFORE = re.compile(r"(?<![\d.])(?:\d{1,3}\.){1,2}\Z")

#: what a number cannot touch; underscores it may, they are Markdown's italics as well
_GLUE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
#: words that cards and social security numbers may touch, as in Visa4111…; a letter or two make it an id
_WORD_BEFORE = re.compile(r"(?:(?<![A-Za-z0-9_])[A-Za-z]{2,8}|[A-Za-z]{9})\Z")
_WORD_BEHIND = re.compile(r"[A-Za-z]{2,8}(?![A-Za-z0-9_])|[A-Za-z]{9}")
_LETTERS_BEHIND = re.compile(r"[A-Za-z]{2}")
#: what a phone number may touch: Tel2125550187, 212-555-0187x5
_PHONE_BEFORE = re.compile(r"(?<![A-Za-z0-9_])(?:tel|phone|fax|cell|mobile)\Z", re.IGNORECASE)
_EXTENSION = re.compile(r"(?:x|ext\.?) ?\d", re.IGNORECASE)
#: the path of a URL, but for that of links to a phone's chat
_PATH_BEFORE = re.compile(r"[/.][A-Za-z]{1,8}(?<!wa\.me)/\Z")
#: underscores of a name such as `order_2125550123`, where nothing but digits says little
_NAME_BEFORE = re.compile(r"[A-Za-z0-9]_{1,3}\Z")
_NAME_BEHIND = re.compile(r"_{1,3}[A-Za-z0-9]")
#: issuer prefixes and the lengths that their networks give out
_NETWORKS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11,16}"  # Diners Club
    r"|(?:6011|64[4-9]\d|65\d\d)\d{12,15}"  # Discover
    r"|(?:352[89]|35[3-8]\d)\d{12,15}"  # JCB
    r"|62\d{14,17}"  # UnionPay
    r"|(?:50|5[6-9]|6\d)\d{10,17}"  # Maestro
)

_FIRST_OF_CARD = frozenset("23456")
#: the groups of a number that a line end may part
_CARD_FORMS = ((4, 4, 4, 4), (4, 6, 5))


class Group(NamedTuple):
    """A row of digits.

    Args:
        digits: in ASCII.
        joined: whether separators join it to the next group.
        broken: whether a line end does, with or without separators.
        opens, closes: whether a number may begin or end with it, as no letter touches it there.
    """

    start: int
    end: int
    digits: str
    joined: bool
    broken: bool
    opens: bool
    closes: bool


def groups_of(text: str, start: int) -> list[Group]:
    """All groups of digits that begin at `start` or later."""
    spans = [match.span() for match in _DIGITS.finditer(text, start)]
    if spans and spans[0][0] == start and start and text[start - 1].isdecimal():
        del spans[0]
    nexts = [*(begin for begin, _ in spans[1:]), len(text)]
    return [
        Group(
            begin,
            end,
            _ascii(text[begin:end]),
            0 < following - end <= 3 and following < len(text) and _JOINED(text, end, following) is not None,
            0 < following - end <= 3 and following < len(text) and _BROKEN(text, end, following) is not None,
            not begin or text[begin - 1] not in _GLUE,
            text[end : end + 1] not in _GLUE,
        )
        for (begin, end), following in zip(spans, nexts, strict=False)
    ]


def _ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join(str(int(char)) for char in digits)


# -- cards and social security numbers ---------------------------------------------------------------------


def card_at(text: str, groups: Sequence[Group], index: int) -> Finding | None:
    """The longest card number that begins with this group."""
    found, digits, first = None, "", groups[index]
    if first.digits[0] not in _FIRST_OF_CARD or not _opens(text, first):
        return None
    sizes: tuple[int, ...] = ()
    breaks = 0
    for group in groups[index : index + CARD_DIGITS[-1]]:
        digits += group.digits
        sizes = (*sizes, len(group.digits))
        if len(digits) > CARD_DIGITS[-1]:
            break
        if len(digits) >= CARD_DIGITS[0] and (not breaks or sizes in _CARD_FORMS) and is_card(digits):
            behind = _LETTERS_BEHIND if len(sizes) > 1 else _WORD_BEHIND
            if group.closes or behind.match(text, group.end):
                found = Finding(first.start, group.end, CARD)
        breaks += group.broken
        if breaks > 1 or not (group.joined or group.broken):
            break
    return found


def _opens(text: str, group: Group) -> bool:
    """Whether a card or a social security number may begin with it."""
    return group.opens or _WORD_BEFORE.search(text, max(group.start - 9, 0), group.start) is not None


def is_card(digits: str) -> bool:
    """A known network's prefix and length, and the check digit of Luhn (ISO/IEC 7812-1)."""
    return _NETWORKS.fullmatch(digits) is not None and luhn(digits)


def luhn(digits: str) -> bool:
    doubled = (2 * int(digit) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(n - 9 if n > 9 else n for n in doubled)) % 10 == 0


def ssn_at(text: str, groups: Sequence[Group], index: int) -> Finding | None:
    """A social security number of the form 123-45-6789 that begins with this group."""
    row = groups[index : index + 3]
    if tuple(len(group.digits) for group in row) != (3, 2, 4):
        return None
    area, pair, serial = row
    if not (_opens(text, area) and (serial.closes or _LETTERS_BEHIND.match(text, serial.end))):
        return None
    if not (area.joined or area.broken) or not (pair.joined or pair.broken) or (area.broken and pair.broken):
        return None
    between, behind = text[area.end : pair.start], text[pair.end : serial.start]
    if between.strip(LINE_ENDS) != behind.strip(LINE_ENDS):
        return None
    return Finding(area.start, serial.end, SSN) if is_ssn(area.digits, pair.digits, serial.digits) else None


def is_ssn(area: str, pair: str, serial: str) -> bool:
    """No area 000, 666 or 900 to 999, no group 00, no serial 0000 (US Social Security Administration)."""
    return area not in ("000", "666") and area < "900" and pair != "00" and serial != "0000"


# -- phone numbers -----------------------------------------------------------------------------------------


class PhoneNumbers:
    """Finds phone numbers, confirmed by the numbering plans of `phonenumbers`.

    Args:
        region: ISO 3166 code of the country whose numbers are written without a country code, or empty.

    Raises:
        ValueError: no such region.
    """

    def __init__(self, region: str) -> None:
        self._region = region.upper()
        if region and not phonenumbers.country_code_for_region(self._region):
            raise ValueError(f"{region!r} is no region: use an ISO 3166 code such as US or DE, or nothing.")
        self._plan = _Plan(self._region) if region else None

    def find(self, text: str, groups: Sequence[Group], start: int, end: int) -> list[Finding]:
        """Phone numbers between two places, from left to right."""
        findings: list[Finding] = []
        index, at = 0, start
        while index < len(groups):
            found = self._at(text, groups, index, (at, end)) if groups[index].start >= at else None
            if found:
                findings.append(found)
                at = found.end
            index += 1
        return findings

    def _at(self, text: str, groups: Sequence[Group], index: int, bounds: tuple[int, int]) -> Finding | None:
        """The longest phone number that begins with this group."""
        first = groups[index]
        begins = first.opens or _PHONE_BEFORE.search(text, max(first.start - 8, 0), first.start)
        rows = _rows(text, groups, index, bounds[1]) if begins else []
        if not rows or _DATE.match(text, first.start):
            return None
        plus = _PLUS_BEFORE.search(text, max(bounds[0], first.start - 4), first.start)
        for row in reversed(rows):
            if plus and _is_international(row.digits):
                return Finding(plus.start(), row.end, PHONE)
            if self._is_local(text, first.start, row):
                opened = _OPEN_BEFORE.search(text, max(bounds[0], first.start - 2), first.start)
                closed = opened and _CLOSED.search(text, first.start, row.end)
                return Finding(opened.start() if opened and closed else first.start, row.end, PHONE)
        return None

    def _is_local(self, text: str, start: int, row: _Row) -> bool:
        """A number as people of the region write it; no address and no decimal number."""
        digits, sizes = row.digits, row.sizes
        if len(sizes) == 1 and (_in_name(text, start, row.end) or _in_path(text, start)):
            return False
        if digits.startswith("00") and _is_number("+" + digits[2:], None):
            return True
        if self._plan is None or not self._plan.allows(digits, sizes):
            return False
        if len(sizes) == 1 and _is_fraction(text, start, row.end):
            return False
        if self._plan.american and sizes[-3:] == (3, 3, 4):
            return True  # the form says it: made-up numbers such as 555-123-4567 are in no plan
        return not _in_address(text, start) and _is_number(digits, self._region)


class _Row(NamedTuple):
    """Groups that may be one phone number: where they end, their digits, and how many each has."""

    end: int
    digits: str
    sizes: tuple[int, ...]


def _rows(text: str, groups: Sequence[Group], index: int, bound: int) -> list[_Row]:
    rows: list[_Row] = []
    breaks = 0
    digits = ""
    sizes: tuple[int, ...] = ()
    for group in groups[index : index + PHONE_DIGITS[-1]]:
        digits += group.digits
        sizes = (*sizes, len(group.digits))
        if len(digits) > PHONE_DIGITS[-1] or group.end > bound or (len(sizes) > 2 and sizes[-1] == 1):
            break
        if len(digits) >= PHONE_DIGITS[0] and (group.closes or _EXTENSION.match(text, group.end)):
            rows.append(_Row(group.end, digits, sizes))
        breaks += group.broken
        if breaks > 1 or not (group.joined or (group.broken and _GOES_ON(text, group.end))):
            break
    return rows


def _in_address(text: str, start: int) -> bool:
    """Whether digits stand in an IPv4 address."""
    before = _IP_BEFORE.search(text, max(start - 8, 0), start)
    return _IP_ADDRESS.match(text, before.start() if before else start) is not None


def _is_fraction(text: str, start: int, end: int) -> bool:
    before, after = text[max(start - 2, 0) : start], text[end : end + 2]
    return (len(before) == 2 and before[0].isdecimal() and before[1] in ".,") or (
        len(after) == 2 and after[0] == "." and after[1].isdecimal()
    )


def _in_name(text: str, start: int, end: int) -> bool:
    """Whether underscores tie digits to the rest of a name."""
    if start and text[start - 1] == "_" and _NAME_BEFORE.search(text, max(start - 4, 0), start):
        return True
    return _NAME_BEHIND.match(text, end) is not None


def _in_path(text: str, start: int) -> bool:
    """Whether digits are a part of a URL's path."""
    return _PATH_BEFORE.search(text, max(start - 10, 0), start) is not None


def _is_international(digits: str) -> bool:
    """Whether a plus may stand before it: in a numbering plan, or long enough and with a country's code."""
    if len(digits) > INTERNATIONAL_DIGITS[-1]:
        return False
    return _is_number("+" + digits, None) or (
        len(digits) in INTERNATIONAL_DIGITS and any(int(digits[:n]) in _COUNTRY_CODES for n in (1, 2, 3))
    )


@lru_cache(maxsize=1024)
def _is_number(written: str, region: str | None) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(written, region))
    except phonenumbers.NumberParseException:
        return False


class _Plan:
    """A cheap test that all numbers of a region pass, so that the costly one is seldom asked."""

    def __init__(self, region: str) -> None:
        metadata: Any = phonenumbers.PhoneMetadata.metadata_for_region(region)
        self._national = re.compile(metadata.general_desc.national_number_pattern)
        self._prefixes = (metadata.national_prefix or "", str(metadata.country_code))
        self.american = metadata.country_code == 1

    def allows(self, digits: str, sizes: tuple[int, ...]) -> bool:
        if self.american:
            return _is_american(digits, sizes)
        stripped = (digits.removeprefix(prefix) for prefix in self._prefixes)
        return any(self._national.fullmatch(number) for number in (digits, *stripped))


def _is_american(digits: str, sizes: tuple[int, ...]) -> bool:
    """555-123-4567, with or without the 1 before it, in groups as they are written there or in none."""
    if sizes[0] == 1 and digits[0] == "1":
        sizes = sizes[1:]
    return sizes in ((10,), (11,), (3, 3, 4), (3, 7), (4, 3, 4), (6, 4))
