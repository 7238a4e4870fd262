"""Patterns of the operator, matched in linear time by RE2 (https://github.com/google/re2/wiki/Syntax)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from typing import Any

import re2

from astromesh.guardrails.spans import NOTHING, Finding, Scan, settle

#: longest match that a stream waits for, in characters; patterns that may match more need the whole text
LONGEST_BOUNDED = 2000
#: places that unbounded patterns replace one by one; what follows goes as one, so that time stays linear
MOST_FINDINGS = 1_000

#: Python's own parser of patterns, which knows how much text one matches; it has no public name
_parser: Any = import_module("re._parser")
_SURROGATES = re.compile("[\ud800-\udfff]")
#: what RE2 writes in another way than Python, as something of the same width that Python reads
_RE2_ONLY = re.compile(
    r"\\(?:[pP](?:\{\^?\w+\}|\w)|x\{[0-9A-Fa-f]+\}|C)|\[:\^?\w+:\]|\(\?<(?=\w)|\\.", re.DOTALL
)


def checked_pattern(pattern: str) -> str:
    """The pattern itself, for use as a validator of options.

    Raises:
        ValueError: RE2 cannot compile it, or it matches the empty text; the message says what to do.
    """
    try:
        compiled = re2.compile(pattern, _options())
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(
            f"{pattern!r} is no RE2 pattern: {reason}. RE2 has no lookaround and no back-references."
        ) from error
    if compiled.search("") is not None:
        raise ValueError(f"{pattern!r} matches the empty text, so it would match everywhere.")
    return pattern


def widest_match(pattern: str) -> int | None:
    """Most characters that a match can have; None where there is no bound, or none is known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            widest = int(_parser.parse(_RE2_ONLY.sub(_as_python, pattern)).getwidth()[1])
    except (re.error, OverflowError, RecursionError):
        return None
    return widest if widest < min(_parser.MAXREPEAT, LONGEST_BOUNDED + 1) else None


def _as_python(found: re.Match[str]) -> str:
    """A backslash keeps its character, so that an escaped backslash never begins an escape."""
    text = found[0]
    if text == "(?<":
        return "(?P<"
    if text == r"\z":
        return r"\Z"
    return text if text[0] == "\\" and len(text) == 2 and text[1] not in "C" else "x"


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    return options


class Patterns:
    """A scanner for RE2 patterns; where several match at one place, the first of them.

    Args:
        replacement: what stands for a match.
    """

    def __init__(self, patterns: Sequence[str], replacement: str) -> None:
        widths = [widest_match(pattern) for pattern in patterns]
        bounded = [width for width in widths if width is not None]
        #: one more than the match: `$` and `\b` look at the next character
        self.max_lookahead = max(bounded) + 1 if len(bounded) == len(widths) else None
        self._compiled = re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), _options())
        self._replacement = replacement

    def scan(self, text: str, start: int, final: bool) -> Scan:
        findings = self._find(text, start)
        if final:
            return Scan(findings, len(text))
        if self.max_lookahead is None:
            return Scan(NOTHING, start)
        return settle(findings, max(start, len(text) - self.max_lookahead + 1))

    def _find(self, text: str, start: int) -> Sequence[Finding]:
        try:
            matches = self._compiled.finditer(text, start)
            first = next(matches, None)
        except UnicodeEncodeError:
            return self._find(_SURROGATES.sub("�", text), start)
        if first is None:
            return NOTHING
        findings: list[Finding] = []
        for match in chain((first,), matches):
            if match.end() > match.start():
                findings.append(Finding(match.start(), match.end(), self._replacement))
            if self.max_lookahead is None and len(findings) >= MOST_FINDINGS:
                return [*findings[:-1], Finding(findings[-1].start, len(text), self._replacement)]
        return findings
