"""Characters that nobody sees, and texts without them.

What guardrails look for is looked for in what people see: the scanners for words and for personal data fold
up to `LONGEST_RUN` unseen characters in a row to nothing. More of them in a row are taken as they stand, so
that a stream need not wait for their end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: blanks or unseen characters in a row that scanners fold; of more they fold none
LONGEST_RUN = 8
#: inside of a character class: Default_Ignorable_Code_Point (Unicode 16, DerivedCoreProperties.txt); control
#: characters that are no White_Space (PropList.txt); format characters (Cf) that are neither of the two and
#: stand before no number or word to be seen (Prepended_Concatenation_Mark)
UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"
    "\u070f\ufff9-\ufffb\U00013430-\U0001343f"
)
#: inside of a character class: line ends, and all else that is White_Space, or blank as Braille's is
LINE_ENDS = "\n\r\x0b\x0c\x85\u2028\u2029"
SPACES = " \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000"

#: inside of a character class: control characters (Unicode's Cc), as a pattern that people read
CONTROL = r"\x00-\x1f\x7f-\x9f"

_UNSEEN = re.compile(f"[{UNSEEN}]")
_ASCII_UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_RUN = re.compile(f"[{UNSEEN}]+")
_SOMETHING = re.compile(f"[^{UNSEEN}{LINE_ENDS}{SPACES}]")


def hides(text: str) -> bool:
    """Whether there are characters in it that nobody sees."""
    if text.isprintable():
        # of all that nobody sees only marks and fillers count as printable
        return not text.isascii() and _UNSEEN.search(text) is not None
    return (_ASCII_UNSEEN if text.isascii() else _UNSEEN).search(text) is not None


def blank(text: str) -> bool:
    """Whether there is nothing to be seen."""
    return _SOMETHING.search(text) is None


def seen(text: str) -> tuple[str, Sequence[int]]:
    """What is seen of a text, and for each character of it where it comes from."""
    parts: list[str] = []
    origin: list[int] = []
    at = 0
    for run in _RUN.finditer(text):
        start, end = run.span()
        if end - start <= LONGEST_RUN:
            parts.append(text[at:start])
            origin += range(at, start)
            at = end
    parts.append(text[at:])
    origin += range(at, len(text))
    return "".join(parts), origin
