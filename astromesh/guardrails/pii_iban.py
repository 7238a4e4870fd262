"""International bank account numbers (ISO 13616)."""

from __future__ import annotations

import re
from functools import cache
from unicodedata import normalize

from astromesh.guardrails.pii_numbers import DASH, DOT, in_uuid
from astromesh.guardrails.spans import Finding
from astromesh.unseen import LINE_ENDS, SPACES

IBAN = "[IBAN]"
#: characters of an IBAN by country, as registered with SWIFT
LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FO FI FK GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ DZ ES MD PK RO SA SE SK TN VG",
        25: "AO CV GW LY MZ PT ST",
        26: "IR IS TR",
        27: "BF BI CF CG CM DJ EG FR GA GQ GR IT KM MC MG MR SM TD",
        28: "AL AZ BJ BY CI CY DO GT HN HU LB ML NE NI PL SN SV TG MA",
        29: "BR PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
#: on which one may stand
_LINES = 2
#: full-width ones, too, and digits of every script
_LETTER = "A-Za-z\uff21-\uff3a\uff41-\uff5a"
_SIGN = f"[{_LETTER}\\d]"
_BETWEEN = f"[{SPACES}{LINE_ENDS}{DASH}{DOT}]{{0,2}}"
#: of a word that is nothing but IBAN it need not stand apart
_BEGIN = f"(?:(?<!{_SIGN})|(?<=(?<!{_SIGN})[Ii][Bb][Aa][Nn]))"
_HEAD = re.compile(f"{_BEGIN}[{_LETTER}]{{2}}([{SPACES}]?)\\d{{2}}")
#: with a space behind the country only in groups of four; else every other sentence might be one
_FOURS = re.compile(f"([{SPACES}])(?:{_SIGN}{{4}}\\1)+{_SIGN}{{1,4}}\\Z")
#: the end of a word, as in …EUR; digits behind it would make it another code
_WORD_BEHIND = f"[A-Za-z]{{2,8}}(?!{_SIGN})"
#: the beginning of one at the end of a text
_REST = f"\\d(?:\\d(?:{_BETWEEN}{_SIGN}){{0,40}}{_BETWEEN})?"
UNFINISHED = f"{_BEGIN}[{_LETTER}](?:[{_LETTER}](?:[{SPACES}]?(?:{_REST})?)?)?\\Z"


def next_iban(text: str, start: int) -> Finding | None:
    """The first IBAN that begins at `start` or later."""
    for head in _HEAD.finditer(text, start):
        plain = _plain(head[0])
        length = LENGTHS.get(plain[:2])
        rest = _rest(length).match(text, head.end()) if length else None
        if (
            rest
            and _has_form(rest[0], spaced=bool(head[1]))
            and mod_97(head[0] + rest[0])
            and not in_uuid(text, head.start())
        ):
            return Finding(head.start(), rest.end(), IBAN)
    return None


def _has_form(rest: str, spaced: bool) -> bool:
    """Whether what follows the check digits is written as an IBAN is.

    Args:
        spaced: whether a space stands before them.
    """
    # one of the line ends that a letter may have, and no list of codes below one another
    if len(rest.splitlines()) > _LINES:
        return False
    digits = sum(map(str.isdecimal, rest))
    return not spaced or (_FOURS.match(rest) is not None and 2 * digits >= sum(map(str.isalnum, rest)))


@cache
def _rest(length: int) -> re.Pattern[str]:
    """What comes after the check digits; two dozen of them would be a hundredth of a server's start."""
    return re.compile(f"(?:{_BETWEEN}{_SIGN}){{{length - 4}}}(?:(?!{_SIGN})|(?={_WORD_BEHIND}))")


def mod_97(iban: str) -> bool:
    """The check digits (ISO 7064, MOD 97-10)."""
    plain = "".join(char for char in _plain(iban) if char.isalnum())
    return int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4])) % 97 == 1


def _plain(text: str) -> str:
    """In capitals, none of them full-width."""
    return (text if text.isascii() else normalize("NFKC", text)).upper()
