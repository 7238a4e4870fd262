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
_DIGIT, _DOT = "0-9\uff10-\uff19", ".\uff0e"
_LOCAL = f"[{_LETTERS}{_DIGIT}{_DOT}_%+'~\uff3f\uff0b\uff0d-]"
_LABEL = f"[{_LETTERS}{_DIGIT}](?:[{_LETTERS}{_DIGIT}-]{{0,61}}[{_LETTERS}{_DIGIT}])?"
_AT = "[@\uff20\ufe6b]"
#: what an address does not begin with
_LEADING = re.compile(f"[{_DOT}%+'~\uff0b\uff0d-]*")

#: characters of the part before the sign, and of a domain of five labels and a name of the top level
LOCAL_LENGTH, DOMAIN_LENGTH = 64, 5 * 68 + 50
_SIGN = re.compile(_AT)
_BEFORE = re.compile(f"{_LOCAL}*")
_DOMAIN = re.compile(f"(?:{_LABEL}[{_DOT}]){{1,5}}(?:xn--[a-z0-9-]{{1,20}}|[{_LETTERS}]{{2,24}})")
#: the beginning of one at the end of a text
UNFINISHED = (
    f"{_LOCAL}{{1,{LOCAL_LENGTH}}}\\Z"
    f"|{_LOCAL}{{0,{LOCAL_LENGTH}}}{_AT}[{_LETTERS}{_DIGIT}{_DOT}-]{{0,{DOMAIN_LENGTH}}}\\Z"
)


def next_email(text: str, start: int) -> Finding | None:
    """The first address that begins at `start` or later."""
    for sign in _SIGN.finditer(text, start):
        at = sign.start()
        reversed_local = _BEFORE.match(text[max(start, at - LOCAL_LENGTH) : at][::-1])
        local = _LEADING.sub("", reversed_local[0][::-1], count=1) if reversed_local else ""
        if local and (domain := _DOMAIN.match(text, sign.end())):
            return Finding(at - len(local), domain.end(), EMAIL)
    return None
