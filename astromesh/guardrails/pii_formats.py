"""Written forms of e-mail addresses, IBANs, payment cards, US social security numbers and groups of digits.

E-mail addresses follow RFC 5321, with letters beyond ASCII as in RFC 6531; IBANs ISO 13616; cards ISO/IEC
7812. Checks at a place look at most `spans.CONTEXT` characters back, so that streams give the same
answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple
from unicodedata import normalize

from astromesh.guardrails.spans import CONTEXT, Finding
from astromesh.text import LINE_ENDS, SPACES

DASH = "\\-\u2010-\u2015\u2212\ufe63\uff0d"
DOT = ".\u00b7\uff0e"
SEPARATOR = f"[{SPACES}{DASH}{DOT}/()（）]"
PLUS, OPEN = "[+\uff0b]", "[(（]"
#: most characters between two groups of a number
WIDEST_GAP = 3
Span = tuple[int, int]
_DIGITS = re.compile(r"\d+")
_WIDE_DIGIT = re.compile(r"(?![0-9])\d")
#: stretches of digits that are long enough for a number of any kind
_STRETCH = re.compile(f"\\d(?:[{SPACES}{LINE_ENDS}{DASH}{DOT}/()（）_]{{0,{WIDEST_GAP}}}+\\d){{6,}}+")
_JOINED = re.compile(f"{SEPARATOR}{{1,3}}|_").fullmatch
#: a line end within a number
_BROKEN = re.compile(f"{SEPARATOR}{{0,2}}(?:\r\n|[{LINE_ENDS}]){SEPARATOR}{{0,2}}").fullmatch
_KINDS = tuple(re.compile(f"[{chars}]").search for chars in (DASH, DOT, "/", "()（）", "_"))
#: characters that a number cannot touch; underscores are allowed, as Markdown writes italics with them
GLUE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
#: underscores of a name such as `order_2125550123`
_NAME_BEFORE = re.compile(r"[A-Za-z0-9]_{1,3}\Z")
_NAME_BEHIND = re.compile(r"_{1,3}[A-Za-z0-9]")
_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"(?:19|20)\d\d"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
#: dates and IPv4 addresses, which are not part of a longer row of groups
_DATE_OR_ADDRESS = re.compile(
    rf"(?<!\d)(?:{_YEAR}([-./]){_MONTH}\1{_DAY}(?!\d)|{_DAY}([-./]){_DAY}\2{_YEAR}(?!\d)"
    rf"|(?<!\d[ /\xa0\u202f]){_DAY} {_MONTH} {_YEAR}(?! ?\d)|(?<!\d\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d))"
).match
#: characters of the longest date or address
MAX_DATE_LENGTH = 15
_HEX = "[0-9A-Fa-f]"
_UUID = re.compile(rf"(?<![0-9A-Za-z]){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?![0-9A-Za-z])").match
_PLACES_IN_UUID = (0, 9, 14, 19, 24)
#: the beginning of a UUID at the end of a text
UNFINISHED_UUID = rf"(?<![0-9A-Za-z])(?:{_HEX}{{1,8}}|{_HEX}{{8}}-(?:{_HEX}{{4}}-){{0,3}}{_HEX}{{0,12}})\Z"


class Gap(NamedTuple):
    """The text between two groups of digits of one number.

    Args:
        kind: the only kind of separator in it: "-", ".", "/", "(", "_" or " "; "" for a line end alone; None
            for several kinds.
        joined: whether it holds only separators.
        broken: whether it holds a line end.
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
    """The groups of digits that begin at `start` or later and may be part of a number."""
    spans = [
        digits.span()
        for stretch in _STRETCH.finditer(text, start)
        for digits in _DIGITS.finditer(text, *stretch.span())
    ]
    if spans and spans[0][0] == start and start and text[start - 1].isdecimal():
        del spans[0]
    return spans


def gap_between(text: str, end: int, start: int) -> Gap | None:
    """The gap that joins two groups to one number; None: they are separate."""
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
    """Whether underscores join digits to a name."""
    if start and text[start - 1] == "_" and _NAME_BEFORE.search(text, max(start - 4, 0), start):
        return True
    return _NAME_BEHIND.match(text, end) is not None


def in_uuid(text: str, start: int) -> bool:
    """Whether a group that begins there is part of a UUID (RFC 9562)."""
    return any(_UUID(text, start - place) for place in _PLACES_IN_UUID if start >= place)


def date_at(text: str, start: int) -> Span | None:
    """The date or IPv4 address that begins there."""
    date = _DATE_OR_ADDRESS(text, start)
    return date.span() if date else None


def fraction_before(text: str, start: int, points: str = ".") -> bool:
    """Whether a decimal point precedes the digits."""
    return start > 1 and text[start - 1] in points and text[start - 2].isdecimal()


# -- payment cards and US social security numbers ----------------------------------------------------------

CARD, SSN = "[CREDIT_CARD]", "[SSN]"
#: digits of a card (ISO/IEC 7812)
CARD_DIGITS = range(12, 20)
#: issuer prefixes, and the lengths that their networks issue
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
_LUHN_DOUBLED = str.maketrans("0123456789", "0246813579")
#: the groups of digits of a card, and those that a line end may split
_CARD_FORMS = frozenset({
    *((size,) for size in CARD_DIGITS),
    (4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 2), (4, 4, 4, 3), (4, 3, 3, 3),
    (4, 4, 4, 4, 1), (4, 4, 4, 4, 2), (4, 4, 4, 4, 3), (8, 8), (6, 13),
})  # fmt: skip
_BREAKABLE_FORMS = frozenset({(4, 4, 4, 4), (4, 6, 5)})
#: forms that are decimal numbers if a dot separates the groups
_DOTLESS_FORMS = frozenset({(8, 8), (6, 13)})
_FORM_BEGINNINGS = frozenset(form[:size] for form in _CARD_FORMS for size in range(1, len(form) + 1))
_FIRST_SIZES = frozenset((1, *(form[0] for form in _CARD_FORMS)))
_MAX_CARD_GROUPS = 5
#: digits one by one, not in a longer row of digits
_SPELT_CARD = re.compile(
    f"(?<![A-Za-z\\d])(?<!\\d[{SPACES}{DASH}])\\d([{SPACES}{DASH}])\\d(?:\\1\\d){{10,17}}"
    f"(?![A-Za-z\\d])(?![{SPACES}{DASH}]\\d)"
)
#: words that cards and social security numbers may touch, as in Visa4111…; one or two letters make it an id
_CARD_WORD_BEFORE = re.compile(r"(?:(?<![A-Za-z0-9_])[A-Za-z]{2,8}|[A-Za-z]{9})\Z")
_CARD_WORD_BEHIND = re.compile(r"[A-Za-z]{2,8}(?![A-Za-z0-9_])|[A-Za-z]{9}")
_LETTERS_BEHIND = re.compile(r"[A-Za-z]{2}")
#: the words before a social security number without separators, as in `ssn:123456789` or `"ssn": "123456789"`
_SSN_LABEL = re.compile(
    "(?:(?<![A-Za-z0-9])|(?<=[a-z])(?-i:S))(?:ssns?|(?<=S)(?:sn|SN)|\uff53{2}\uff4e|social[ _-]?security)"
    "(?:[ _-]?(?:number|no\\.?|num))?[\"'`*_)]{0,2}\\s{0,2}"
    f"(?:[:=#\uff1a\uff1d\uff03{DASH}]|is)?\\s{{0,2}}[\"'`*_(]{{0,2}}\\Z",
    re.IGNORECASE,
)
#: nine digits that a label precedes, in one, two or three groups
_LABELLED_SSN = re.compile(f"(\\d{{3}})[{SPACES}{DASH}]?(\\d\\d)[{SPACES}{DASH}]?(\\d{{4}})(?!\\d)")


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
        behind = _CARD_WORD_BEHIND if end == groups[index][1] else _LETTERS_BEHIND
        if not (text[end : end + 1] not in GLUE or behind.match(text, end)):
            continue
        if is_card(_digits_only(text[start:end])) and _may_open(text, start) and not in_uuid(text, start):
            return Finding(start, end, CARD)
    return None


def _ends_of_forms(text: str, groups: Sequence[Span], index: int) -> list[int]:
    """The ends of the groups that, from this one on, have the form of a card with one kind of separator."""
    ends: list[int] = []
    start, last = groups[index]
    sizes: tuple[int, ...] = (last - start,)
    kind, breaks = "", 0
    for start, end in groups[index + 1 : index + _MAX_CARD_GROUPS]:
        sizes = (*sizes, end - start)
        gap = gap_between(text, last, start) if sizes in _FORM_BEGINNINGS else None
        if gap is None or gap.kind is None or (kind and gap.kind and kind != gap.kind):
            break
        kind, breaks = kind or gap.kind, breaks + gap.broken
        if breaks > 1:
            break
        if sizes in (_BREAKABLE_FORMS if breaks else _CARD_FORMS) and not (
            kind == "." and sizes in _DOTLESS_FORMS
        ):
            ends.append(end)
        last = end
    return ends


def _spelt_card(text: str, start: int) -> Finding | None:
    spelt = _SPELT_CARD.match(text, start)
    return Finding(start, spelt.end(), CARD) if spelt and is_card(_digits_only(spelt[0])) else None


def _digits_only(written: str) -> str:
    return written if written.isdecimal() else "".join(filter(str.isdecimal, written))


def _may_open(text: str, start: int) -> bool:
    """Whether a card or a social security number may begin there."""
    if not start or text[start - 1] not in GLUE:
        return True
    return _CARD_WORD_BEFORE.search(text, max(start - 9, 0), start) is not None


def is_card(digits: str) -> bool:
    """Whether prefix, length and check digit (Luhn) are those of a network (ISO/IEC 7812-1)."""
    return _NETWORKS.fullmatch(digits) is not None and luhn(digits)


def luhn(digits: str) -> bool:
    return sum(map(int, digits[-1::-2] + digits[-2::-2].translate(_LUHN_DOUBLED))) % 10 == 0


def ssn_at(text: str, groups: Sequence[Span], index: int) -> Finding | None:
    """A social security number that begins with this group: 123-45-6789, or 123456789 behind its name."""
    return _grouped_ssn(text, groups, index) or _labelled_ssn(text, groups[index][0])


def _grouped_ssn(text: str, groups: Sequence[Span], index: int) -> Finding | None:
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
    if not (_may_open(text, start) and (text[end : end + 1] not in GLUE or _LETTERS_BEHIND.match(text, end))):
        return None
    parts = text[start:area_end], text[pair:pair_end], text[serial:end]
    return Finding(start, end, SSN) if is_ssn(*parts) else None


def _labelled_ssn(text: str, start: int) -> Finding | None:
    number = _LABELLED_SSN.match(text, start)
    if number is None or text[number.end() : number.end() + 1] in GLUE:
        return None
    if not _SSN_LABEL.search(text, max(start - CONTEXT, 0), start):
        return None
    return Finding(*number.span(), SSN) if is_ssn(*number.groups()) else None


def is_ssn(area: str, pair: str, serial: str) -> bool:
    """Whether the parts can be issued: no area 000, 666 or from 900, no group 00, no serial 0000 (US SSA)."""
    return area not in ("000", "666") and area < "900" and pair != "00" and serial != "0000"


# -- e-mail addresses --------------------------------------------------------------------------------------

EMAIL = "[EMAIL]"
#: letters of scripts with spaces between words; in others an address does not differ from the text
_EMAIL_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0370-\u060b\u060d-\u0dff\u10a0-\u10ff\u1e00-\u1fff"
    "\uff21-\uff3a\uff41-\uff5a"
)
_DIGIT, _DOT, _IDEOGRAPHIC_STOP = "0-9\uff10-\uff19", ".\uff0e", "\u3002\uff61"
#: letters of scripts without: Thai, Lao, Burmese, Khmer, Hangul, Chinese, Japanese, Yi
_SPACELESS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0edf\u1000-\u1049\u1050-\u109f\u1100-\u11ff\u1780-\u17d3\u3005-\u3007"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u3131-\u318e\u3400-\u4dbf\u4e00-\u9fff"
    "\ua000-\ua48c\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
#: most of them before the at sign, since the beginning of the address is unknown
_SPACELESS_LENGTH = 16
#: the atext of RFC 5322 without = ? ` |, which precede addresses in links, code and tables
_LOCAL_SIGNS = "!#$%&'*+/^~\uff0b\uff0d-"
_LOCAL = f"[{_EMAIL_LETTERS}{_DIGIT}{_DOT}_\uff3f{_LOCAL_SIGNS}]"
_DOMAIN_LABEL = (
    f"[{_EMAIL_LETTERS}{_DIGIT}](?:[{_EMAIL_LETTERS}{_DIGIT}-]{{0,61}}[{_EMAIL_LETTERS}{_DIGIT}])?"
)
_WIDE_LABEL = f"[{_SPACELESS}][{_SPACELESS}{_EMAIL_LETTERS}{_DIGIT}-]{{0,62}}"
#: a sign, or its form in a URL
_AT = "(?:[@\uff20\ufe6b]|%40)"
#: characters with which an address does not begin
_LOCAL_LEADING = re.compile(f"[{_DOT}{_LOCAL_SIGNS}]*")
#: longest local part, and longest domain of five labels and a top level
LOCAL_LENGTH, DOMAIN_LENGTH = 64, 5 * 68 + 50
_AT_SIGN = re.compile(_AT)
#: the local part, reversed; braces in pairs, but not those of a template
_LOCAL_BEFORE = re.compile(f"(?:{_LOCAL}|\\}}{_LOCAL}++\\{{(?!\\{{))*+")
_WIDE_LOCAL_BEFORE = re.compile(f"[{_SPACELESS}]{{1,{_SPACELESS_LENGTH}}}")
_TOP_LEVEL = f"xn--[a-z0-9-]{{1,20}}|[{_EMAIL_LETTERS}]{{2,24}}"
_DOMAIN = re.compile(
    f"(?:(?:{_DOMAIN_LABEL}|{_WIDE_LABEL})(?:[{_DOT}]|%2[Ee])){{1,5}}(?:{_TOP_LEVEL}|[{_SPACELESS}]{{1,24}})"
)
#: ends of file names that are no top level domains (IANA), and what such a name has instead of a domain
_FILE_SUFFIX = re.compile(
    r"\.(?:png|jpe?g|gif|svg|webp|avif|bmp|ico|tiff?|heic|pdf|imageset|[cm]?js|jsx|tsx?|css|scss|html?|json|xml"
    r"|ya?ml|txt|csv|docx?|xlsx?|pptx?|tgz|gz|tar|whl|jar|woff|ttf|otf|exe|dll)\Z",
    re.IGNORECASE,
)
_VERSION = re.compile(r"v?\d+x?\.(?!com\Z)", re.IGNORECASE)
#: a domain with ideographic full stops (UTS 46), which otherwise end a sentence
_STOPPED_DOMAIN = re.compile(f"(?:{_DOMAIN_LABEL}[{_IDEOGRAPHIC_STOP}]){{1,5}}(?:{_TOP_LEVEL})")
_BRACED_LOCAL = f"(?:{_LOCAL}|[{{}}])"
#: a quoted local part (RFC 5321, 4.1.2), without the second quote, and reversed
_QUOTED_LENGTH = LOCAL_LENGTH - 2
_QUOTED = f'"(?:\\\\"|[^"\r\n]){{0,{_QUOTED_LENGTH}}}'
_QUOTED_BEFORE = re.compile(f'"(?:"\\\\|[^"\r\n]){{1,{_QUOTED_LENGTH}}}"')
#: the beginning of an address at the end of a text, its sign in a URL too
UNFINISHED_EMAIL = (
    f"{_BRACED_LOCAL}{{1,{LOCAL_LENGTH + 2}}}\\Z"
    f'|{_QUOTED}(?:"(?:%4?|{_AT}[{_SPACELESS}{_EMAIL_LETTERS}{_DIGIT}{_DOT}%-]{{0,{DOMAIN_LENGTH}}})?)?\\Z'
    f"|[{_SPACELESS}]{{1,{_SPACELESS_LENGTH}}}\\Z"
    f"|(?:[{_SPACELESS}]{{1,{_SPACELESS_LENGTH}}}|{_BRACED_LOCAL}{{0,{LOCAL_LENGTH}}}){_AT}"
    f"[{_SPACELESS}{_EMAIL_LETTERS}{_DIGIT}{_DOT}{_IDEOGRAPHIC_STOP}%-]{{0,{DOMAIN_LENGTH}}}\\Z"
)


def next_email(text: str, start: int) -> Finding | None:
    """The first address that begins at `start` or later."""
    for sign in _AT_SIGN.finditer(text, start):
        at = sign.start()
        if quoted := _QUOTED_BEFORE.match(text[max(start, at - LOCAL_LENGTH) : at][::-1]):
            if end := _domain_end(text, sign.end(), None):
                return Finding(at - quoted.end(), end, EMAIL)
            continue
        local = _local_before(text, max(start, at - LOCAL_LENGTH), at)
        stopped = _STOPPED_DOMAIN if local else None
        if not local and (
            wide := _WIDE_LOCAL_BEFORE.match(text[max(start, at - _SPACELESS_LENGTH) : at][::-1])
        ):
            local = wide[0]
        if local and (end := _domain_end(text, sign.end(), stopped)):
            return Finding(at - len(local), end, EMAIL)
    return None


def _local_before(text: str, start: int, at: int) -> str:
    """The local part that ends at `at`; of a path only its last segment."""
    reversed_local = _LOCAL_BEFORE.match(text[start:at][::-1])
    local = reversed_local[0][::-1] if reversed_local else ""
    if local.startswith("/") or local.count("/") > 1:
        local = local.rpartition("/")[2]
    return _LOCAL_LEADING.sub("", local, count=1)


def _domain_end(text: str, start: int, stopped: re.Pattern[str] | None) -> int:
    """The end of the domain that begins there; 0 if there is none, as in `icon@2x.png`."""
    domain = _DOMAIN.match(text, start) or (stopped.match(text, start) if stopped else None)
    if domain is None:
        return 0
    suffix = _FILE_SUFFIX.search(domain[0])
    if suffix is None:
        return domain.end()
    host = domain[0][: suffix.start()]  # an address names the file, or it has a version
    return start + len(host) if _DOMAIN.fullmatch(host) and not _VERSION.match(host) else 0


# -- international bank account numbers --------------------------------------------------------------------

IBAN = "[IBAN]"
#: characters of an IBAN by country, as registered with SWIFT
IBAN_LENGTHS = {
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
#: most lines of an IBAN
_MAX_IBAN_LINES = 2
#: letters, full-width ones too, and digits of every script
_IBAN_LETTER = "A-Za-z\uff21-\uff3a\uff41-\uff5a"
_ALPHANUMERIC = f"[{_IBAN_LETTER}\\d]"
_IBAN_GAP = f"[{SPACES}{LINE_ENDS}{DASH}{DOT}]{{0,2}}"
#: it may follow the word IBAN without a space
_IBAN_BEGIN = f"(?:(?<!{_ALPHANUMERIC})|(?<=(?<!{_ALPHANUMERIC})[Ii][Bb][Aa][Nn]))"
_IBAN_HEAD = re.compile(f"{_IBAN_BEGIN}[{_IBAN_LETTER}]{{2}}([{SPACES}]?)\\d{{2}}")
#: if a space follows the country, groups of four; other forms would match sentences
_IBAN_GROUPS = re.compile(f"([{SPACES}])(?:{_ALPHANUMERIC}{{4}}\\1)+{_ALPHANUMERIC}{{1,4}}\\Z")
#: a word that may follow, as in …EUR, without digits behind it
_IBAN_WORD_BEHIND = f"[A-Za-z]{{2,8}}(?!{_ALPHANUMERIC})"
#: the beginning of an IBAN at the end of a text
_UNFINISHED_IBAN_REST = f"\\d(?:\\d(?:{_IBAN_GAP}{_ALPHANUMERIC}){{0,40}}{_IBAN_GAP})?"
UNFINISHED_IBAN = (
    f"{_IBAN_BEGIN}[{_IBAN_LETTER}](?:[{_IBAN_LETTER}](?:[{SPACES}]?(?:{_UNFINISHED_IBAN_REST})?)?)?\\Z"
)


def next_iban(text: str, start: int) -> Finding | None:
    """The first IBAN that begins at `start` or later."""
    for head in _IBAN_HEAD.finditer(text, start):
        plain = _plain_iban(head[0])
        length = IBAN_LENGTHS.get(plain[:2])
        rest = _iban_rest(length).match(text, head.end()) if length else None
        if (
            rest
            and _has_iban_form(rest[0], spaced=bool(head[1]))
            and mod_97(head[0] + rest[0])
            and not in_uuid(text, head.start())
        ):
            return Finding(head.start(), rest.end(), IBAN)
    return None


def _has_iban_form(rest: str, spaced: bool) -> bool:
    """Whether the text behind the check digits has the form of an IBAN.

    Args:
        spaced: whether a space precedes the check digits.
    """
    # one line end is allowed; a list of codes has more
    if len(rest.splitlines()) > _MAX_IBAN_LINES:
        return False
    digits = sum(map(str.isdecimal, rest))
    return not spaced or (_IBAN_GROUPS.match(rest) is not None and 2 * digits >= sum(map(str.isalnum, rest)))


@cache
def _iban_rest(length: int) -> re.Pattern[str]:
    """Matches the text behind the check digits; cached, since compiling all lengths delays the start."""
    return re.compile(
        f"(?:{_IBAN_GAP}{_ALPHANUMERIC}){{{length - 4}}}(?:(?!{_ALPHANUMERIC})|(?={_IBAN_WORD_BEHIND}))"
    )


def mod_97(iban: str) -> bool:
    """Whether the check digits are right (ISO 7064, MOD 97-10)."""
    plain = "".join(char for char in _plain_iban(iban) if char.isalnum())
    return int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4])) % 97 == 1


def _plain_iban(text: str) -> str:
    """The text in plain capitals, none full-width."""
    return (text if text.isascii() else normalize("NFKC", text)).upper()
