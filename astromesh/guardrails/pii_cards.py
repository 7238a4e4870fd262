"""Payment cards and US social security numbers: digits in the groups in which people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from astromesh.guardrails.pii_numbers import (
    DASH,
    GLUE,
    Span,
    fraction_before,
    gap_between,
    in_name,
    in_uuid,
)
from astromesh.guardrails.spans import Finding
from astromesh.unseen import LINE_ENDS, SPACES

CARD, SSN = "[CREDIT_CARD]", "[SSN]"
#: digits of a card (ISO/IEC 7812)
CARD_DIGITS = range(12, 20)

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
    r"|220[0-4]\d{12,15}"  # Mir
    r"|9792\d{12}"  # Troy
)
_DOUBLED = str.maketrans("0123456789", "0246813579")

#: the groups of digits of a card, and those that a line end may part
_FORMS = frozenset({
    *((size,) for size in CARD_DIGITS),
    (4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 2), (4, 4, 4, 3), (4, 3, 3, 3),
    (4, 4, 4, 4, 1), (4, 4, 4, 4, 2), (4, 4, 4, 4, 3), (8, 8), (6, 13),
})  # fmt: skip
_BREAKABLE = frozenset({(4, 4, 4, 4), (4, 6, 5)})
#: with a dot they are decimal numbers
_DOTLESS = frozenset({(8, 8), (6, 13)})
_BEGINNINGS = frozenset(form[:size] for form in _FORMS for size in range(1, len(form) + 1))
_FIRST_SIZES = frozenset((1, *(form[0] for form in _FORMS)))
_MOST_GROUPS = 5
#: digit by digit, and not in a longer row of digits
_SPELT = re.compile(
    f"(?<![A-Za-z\\d])(?<!\\d[{SPACES}{DASH}])\\d([{SPACES}{DASH}])\\d(?:\\1\\d){{10,17}}"
    f"(?![A-Za-z\\d])(?![{SPACES}{DASH}]\\d)"
)
#: words that cards and social security numbers may touch, as in Visa4111…; a letter or two make it an id
_WORD_BEFORE = re.compile(r"(?:(?<![A-Za-z0-9_])[A-Za-z]{2,8}|[A-Za-z]{9})\Z")
_WORD_BEHIND = re.compile(r"[A-Za-z]{2,8}(?![A-Za-z0-9_])|[A-Za-z]{9}")
_LETTERS_BEHIND = re.compile(r"[A-Za-z]{2}")


def card_at(text: str, groups: Sequence[Span], index: int) -> Finding | None:
    """The longest card number that begins with this group."""
    start, end = groups[index]
    if end - start not in _FIRST_SIZES:
        return None
    if end == start + 1:
        return _spelt_card(text, start)
    if end - start >= CARD_DIGITS[0]:
        ends = [] if fraction_before(text, start) else [end]
    else:
        ends = _ends_of_forms(text, groups, index)
    for end in reversed(ends):
        behind = _WORD_BEHIND if end == groups[index][1] else _LETTERS_BEHIND
        if not (text[end : end + 1] not in GLUE or behind.match(text, end)):
            continue
        if is_card(_digits(text[start:end])) and _opens(text, start) and not in_uuid(text, start):
            return Finding(start, end, CARD)
    return None


def _ends_of_forms(text: str, groups: Sequence[Span], index: int) -> list[int]:
    """Where groups end that are, from this one on, in the form of a card, with one kind of separator."""
    ends: list[int] = []
    start, last = groups[index]
    sizes: tuple[int, ...] = (last - start,)
    kind, breaks = "", 0
    for start, end in groups[index + 1 : index + _MOST_GROUPS]:
        sizes = (*sizes, end - start)
        gap = gap_between(text, last, start) if sizes in _BEGINNINGS else None
        if gap is None or gap.kind is None or (kind and gap.kind and kind != gap.kind):
            break
        kind, breaks = kind or gap.kind, breaks + gap.broken
        if breaks > 1:
            break
        if sizes in (_BREAKABLE if breaks else _FORMS) and not (kind == "." and sizes in _DOTLESS):
            ends.append(end)
        last = end
    return ends


def _spelt_card(text: str, start: int) -> Finding | None:
    spelt = _SPELT.match(text, start)
    return Finding(start, spelt.end(), CARD) if spelt and is_card(_digits(spelt[0])) else None


def _digits(written: str) -> str:
    return written if written.isdecimal() else "".join(filter(str.isdecimal, written))


def _opens(text: str, start: int) -> bool:
    """Whether a card or a social security number may begin there."""
    if not start or text[start - 1] not in GLUE:
        return True
    return _WORD_BEFORE.search(text, max(start - 9, 0), start) is not None


def is_card(digits: str) -> bool:
    """A known network's prefix and length, and the check digit of Luhn (ISO/IEC 7812-1)."""
    return _NETWORKS.fullmatch(digits) is not None and luhn(digits)


def luhn(digits: str) -> bool:
    return sum(map(int, digits[-1::-2] + digits[-2::-2].translate(_DOUBLED))) % 10 == 0


def ssn_at(text: str, groups: Sequence[Span], index: int) -> Finding | None:
    """A social security number of the form 123-45-6789 that begins with this group."""
    start, area_end = groups[index]
    if area_end - start != 3 or index + 2 >= len(groups):
        return None
    (pair, pair_end), (serial, end) = groups[index + 1 : index + 3]
    if pair_end - pair != 2 or end - serial != 4:
        return None
    gaps = gap_between(text, area_end, pair), gap_between(text, pair_end, serial)
    if gaps[0] is None or gaps[1] is None or (gaps[0].broken and gaps[1].broken):
        return None
    if text[area_end:pair].strip(LINE_ENDS) != text[pair_end:serial].strip(LINE_ENDS):
        return None
    if gaps[0].kind == "_" and in_name(text, start, end):
        return None
    if not (_opens(text, start) and (text[end : end + 1] not in GLUE or _LETTERS_BEHIND.match(text, end))):
        return None
    parts = text[start:area_end], text[pair:pair_end], text[serial:end]
    return Finding(start, end, SSN) if is_ssn(*parts) else None


def is_ssn(area: str, pair: str, serial: str) -> bool:
    """No area 000, 666 or 900 to 999, no group 00, no serial 0000 (US Social Security Administration)."""
    return area not in ("000", "666") and area < "900" and pair != "00" and serial != "0000"
