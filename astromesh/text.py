"""Text: a buffer for streams, suggestions for misspelled names, plurals, invisible characters, numbers."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

#: pieces that are stored one by one; otherwise an answer of 100,000 deltas would be 100,000 strings
_SINGLE_PIECES = 512
#: what the offline model says of its search: that it found nothing, or nothing that fits exactly
NOTHING_FOUND = (
    "I found nothing that answers this. I am not a language model: I can only quote what my tools and my "
    "context give me."
)
NEAREST_FOUND = "I found nothing that answers this exactly. The nearest passage:\n\n"


class TextBuffer:
    """Collects pieces of a text; uses little more memory than the text itself.

    `io.StringIO` does not: CPython 3.11 keeps up to 100,000 written strings before it joins them.
    """

    __slots__ = ("_blocks", "_pieces")

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._pieces: list[str] = []

    def write(self, piece: str) -> None:
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) == _SINGLE_PIECES:
            self._blocks.append("".join(pieces))
            pieces.clear()

    def getvalue(self) -> str:
        return "".join((*self._blocks, *self._pieces))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the most similar known name, or an empty text."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, 1, 0.6) or _by_prefix(name, names)
    return f"Did you mean `{near[0]}`?" if near else ""


def _by_prefix(name: str, names: Iterable[str]) -> list[str]:
    """Compares with known names up to their last underscore: `timeot` is similar to `timeout_seconds`."""
    beginnings = {longer.rpartition("_")[0]: longer for longer in names if "_" in longer}
    return [beginnings[near] for near in difflib.get_close_matches(name, beginnings, 1, 0.75)]


# -- invisible characters ----------------------------------------------------------------------------------
#
# Guardrails search the visible text: their scanners drop up to `LONGEST_INVISIBLE_RUN` invisible characters
# in a row. A longer run stays as it is, so that a stream need not wait for its end.

#: longest run of blanks or invisible characters that scanners fold; they fold no longer run
LONGEST_INVISIBLE_RUN = 8
#: inside of a character class: Default_Ignorable_Code_Point (Unicode 16, DerivedCoreProperties.txt); control
#: characters that are no White_Space (PropList.txt); format characters (Cf) that are neither of the two and
#: precede no visible number or word (Prepended_Concatenation_Mark)
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"
    "\u070f\ufff9-\ufffb\U00013430-\U0001343f"
)
#: inside of a character class: line ends, and all else that is White_Space, or blank as Braille's is
LINE_ENDS = "\n\r\x0b\x0c\x85\u2028\u2029"
SPACES = " \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000"
#: inside a character class: control characters (Unicode's Cc), as a readable pattern
CONTROL_CHARACTERS = r"\x00-\x1f\x7f-\x9f"
#: pattern of a text of one line
SINGLE_LINE = f"^[^{CONTROL_CHARACTERS}]+$"
#: digits, with a sign, of the longest integer of 64 bits
_MAX_DIGITS = 20
#: makes a zero of each digit, and a blank of everything else
_ONLY_DIGITS = bytes(b"0"[0] if chr(byte).isdecimal() else b" "[0] for byte in range(256))
_LONG_DIGITS = b"0" * 19
_INVISIBLE = re.compile(f"[{INVISIBLE}]")
_ASCII_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_INVISIBLE_RUN = re.compile(f"[{INVISIBLE}]+")
_VISIBLE = re.compile(f"[^{INVISIBLE}{LINE_ENDS}{SPACES}]")


def has_long_integer(json_text: bytes) -> bool:
    """Whether a JSON text has an integer beyond 64 bits, which JSON libraries round."""
    found = False

    def check(digits: str) -> int:
        nonlocal found
        found = found or len(digits) > _MAX_DIGITS or not -(2**63) <= int(digits) < 2**64
        return 0

    if _LONG_DIGITS in json_text.translate(_ONLY_DIGITS):
        with suppress(ValueError):
            json.loads(json_text, parse_int=check)
    return found


def has_invisible(text: str) -> bool:
    """Whether a text contains invisible characters."""
    if text.isprintable():
        # only marks and fillers are both invisible and printable
        return not text.isascii() and _INVISIBLE.search(text) is not None
    return (_ASCII_INVISIBLE if text.isascii() else _INVISIBLE).search(text) is not None


def quoted_name(name: str) -> str:
    """Returns the name of a file as one quoted line, which no name can end, for a text that has more."""
    line = "".join(char if char.isprintable() else " " for char in name)
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_blank(text: str) -> bool:
    """Whether a text has no visible character."""
    return _VISIBLE.search(text) is None


def visible_text(text: str) -> tuple[str, Sequence[int]]:
    """Returns the visible text, and the original position of each of its characters."""
    parts: list[str] = []
    origin: list[int] = []
    at = 0
    for run in _INVISIBLE_RUN.finditer(text):
        start, end = run.span()
        if end - start <= LONGEST_INVISIBLE_RUN:
            parts.append(text[at:start])
            origin += range(at, start)
            at = end
    parts.append(text[at:])
    origin += range(at, len(text))
    return "".join(parts), origin


#: integers that a double holds exactly (RFC 8259, 6)
_EXACT = 2**53


def with_integers(value: Any) -> Any:
    """Returns JSON with its whole numbers as integers: a `Struct` of protobuf has doubles only."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: with_integers(one) for key, one in value.items()}
    return [with_integers(one) for one in value] if isinstance(value, list) else value


def counted(number: int, noun: str) -> str:
    """Returns `1 fault` or `2 faults`."""
    return f"{number} {noun}{'s' if number != 1 else ''}"
