"""E-mail addresses (RFC 5321, with letters beyond ASCII as in RFC 6531)."""

from __future__ import annotations

import re

from astromesh.guardrails.spans import Finding

EMAIL = "[EMAIL]"
#: letters of scripts that put spaces between words; in others an address could not be told from the text
_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0370-\u060b\u060d-\u0dff\u10a0-\u10ff\u1e00-\u1fff"
    "\uff21-\uff3a\uff41-\uff5a"
)
_DIGIT, _DOT, _STOP = "0-9\uff10-\uff19", ".\uff0e", "\u3002\uff61"
#: letters of the others: Thai, Lao, Burmese, Khmer, Hangul, Chinese, Japanese, Yi; no signs of theirs
_SPACELESS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0edf\u1000-\u1049\u1050-\u109f\u1100-\u11ff\u1780-\u17d3\u3005-\u3007"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u3131-\u318e\u3400-\u4dbf\u4e00-\u9fff"
    "\ua000-\ua48c\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
#: most of them before the sign: where an address begins among them nobody can tell
_SPACELESS_LENGTH = 16
#: of the atext of RFC 5322 all but = ? ` |, which stand before an address in links, code and tables
_SIGNS = "!#$%&'*+/^~\uff0b\uff0d-"
_LOCAL = f"[{_LETTERS}{_DIGIT}{_DOT}_\uff3f{_SIGNS}]"
_LABEL = f"[{_LETTERS}{_DIGIT}](?:[{_LETTERS}{_DIGIT}-]{{0,61}}[{_LETTERS}{_DIGIT}])?"
_WIDE_LABEL = f"[{_SPACELESS}][{_SPACELESS}{_LETTERS}{_DIGIT}-]{{0,62}}"
_AT = "[@\uff20\ufe6b]"
#: what an address does not begin with
_LEADING = re.compile(f"[{_DOT}{_SIGNS}]*")

#: characters of the part before the sign, and of a domain of five labels and a name of the top level
LOCAL_LENGTH, DOMAIN_LENGTH = 64, 5 * 68 + 50
_SIGN = re.compile(_AT)
#: from its end; braces in pairs, as an address may stand in one, and none of a template's
_BEFORE = re.compile(f"(?:{_LOCAL}|\\}}{_LOCAL}++\\{{(?!\\{{))*+")
_WIDE_BEFORE = re.compile(f"[{_SPACELESS}]{{1,{_SPACELESS_LENGTH}}}")
_TOP = f"xn--[a-z0-9-]{{1,20}}|[{_LETTERS}]{{2,24}}"
_DOMAIN = re.compile(f"(?:(?:{_LABEL}|{_WIDE_LABEL})[{_DOT}]){{1,5}}(?:{_TOP}|[{_SPACELESS}]{{1,24}})")
#: with ideographic full stops (UTS 46), which else end a sentence
_STOPPED_DOMAIN = re.compile(f"(?:{_LABEL}[{_STOP}]){{1,5}}(?:{_TOP})")
_BRACED = f"(?:{_LOCAL}|[{{}}])"
#: the beginning of one at the end of a text
UNFINISHED = (
    f"{_BRACED}{{1,{LOCAL_LENGTH}}}\\Z"
    f"|[{_SPACELESS}]{{1,{_SPACELESS_LENGTH}}}\\Z"
    f"|(?:[{_SPACELESS}]{{1,{_SPACELESS_LENGTH}}}|{_BRACED}{{0,{LOCAL_LENGTH}}}){_AT}"
    f"[{_SPACELESS}{_LETTERS}{_DIGIT}{_DOT}{_STOP}-]{{0,{DOMAIN_LENGTH}}}\\Z"
)


def next_email(text: str, start: int) -> Finding | None:
    """The first address that begins at `start` or later."""
    for sign in _SIGN.finditer(text, start):
        at = sign.start()
        local = _local_before(text, max(start, at - LOCAL_LENGTH), at)
        stopped = _STOPPED_DOMAIN if local else None
        if not local and (wide := _WIDE_BEFORE.match(text[max(start, at - _SPACELESS_LENGTH) : at][::-1])):
            local = wide[0]
        if local and (domain := _domain(text, sign.end(), stopped)):
            return Finding(at - len(local), domain.end(), EMAIL)
    return None


def _local_before(text: str, start: int, at: int) -> str:
    """What stands between two places and may stand before the sign; of a path only its last part."""
    reversed_local = _BEFORE.match(text[start:at][::-1])
    local = reversed_local[0][::-1] if reversed_local else ""
    if local.startswith("/") or local.count("/") > 1:
        local = local.rpartition("/")[2]
    return _LEADING.sub("", local, count=1)


def _domain(text: str, start: int, stopped: re.Pattern[str] | None) -> re.Match[str] | None:
    return _DOMAIN.match(text, start) or (stopped.match(text, start) if stopped else None)
