"""Words and phrases, found all at once (Aho and Corasick, 1975), whatever their case and way of writing.

Both sides are folded: upper to lower case; full-width letters, ligatures and accents to one way of writing
(Unicode NFKD with case folding); apostrophes of every kind to one, and the dotted I to i; runs of up to eight
blanks, underscores, hyphens and minus signs to one space; up to eight characters that nobody sees to none. A
match stands between word boundaries, except in scripts that put no spaces between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import ahocorasick

from astromesh.guardrails.spans import NOTHING, Finding, Scan, settle
from astromesh.unseen import LINE_ENDS, LONGEST_RUN, SPACES, UNSEEN

_BLANK = f"{SPACES}{LINE_ENDS}_\\-\u2010-\u2015\u2212\ufe63\uff0d"
_is_blank = re.compile(f"[{_BLANK}]").match
_has_blank = re.compile(f"[{_BLANK}]").search
#: runs, and what folds to nothing: the dot of an i has become a part of it
_RUN = re.compile(f"[{_BLANK}{UNSEEN}]{{2,}}|[{UNSEEN}]|(?<=[iI\u0130])\u0307")
_IRREGULAR = _RUN.search
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032\u00b4", "'"))
#: Thai, Lao, Burmese, Hangul, Khmer, Chinese, Japanese, Yi
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]"
)


def fold(text: str) -> str:
    """The text as it is searched."""
    if text.isascii():
        folded = text.lower().replace("_", " ").replace("-", " ")
        folded = folded.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        if "  " not in folded and folded.isprintable():
            return folded
    elif _IRREGULAR(text) is None:
        return text.translate(_TABLE)
    return _fold_any(text)[0]


def origins(text: str, folded: str) -> Sequence[int] | None:
    """For each character of the folded text, where it comes from; None: from the same place."""
    if len(folded) == len(text) and _IRREGULAR(text) is None:
        return None
    return _fold_any(text)[1]


def _fold_any(text: str) -> tuple[str, Sequence[int]]:
    folded: list[str] = []
    origin: list[int] = []
    at = 0
    for run in _RUN.finditer(text):
        _fold_seen(text, at, run.start(), folded, origin)
        at = run.end()
        folded.append(_fold_run(run[0]))
        origin += range(run.start(), run.start() + len(folded[-1]))
    _fold_seen(text, at, len(text), folded, origin)
    return "".join(folded), origin


def _fold_seen(text: str, start: int, end: int, folded: list[str], origin: list[int]) -> None:
    """Adds what stands between two runs."""
    piece = text[start:end].translate(_TABLE)
    folded.append(piece)
    if len(piece) == end - start:  # no character folds to nothing, so each has folded to one
        origin += range(start, end)
        return
    for at in range(start, end):
        origin += [at] * len(_fold_char(text[at]))


def _fold_run(run: str) -> str:
    if len(run) > LONGEST_RUN:
        return run
    return " " if _has_blank(run) else ""


@lru_cache(maxsize=4096)
def _fold_char(char: str) -> str:
    if _is_blank(char):
        return " "
    if char == "\u0130":  # else it folds to an i with one more dot, which no other writing has
        return "i"
    char = char.translate(_APOSTROPHES)
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold()).casefold()
    return folded.translate(_APOSTROPHES)


class _Table:
    """What `str.translate` asks, for texts without runs."""

    def __getitem__(self, code: int) -> str:
        return _fold_char(chr(code))


_TABLE = _Table()


@lru_cache(maxsize=4096)
def _is_word(char: str) -> bool:
    spaced = char.isalnum() or unicodedata.combining(char) > 0
    return spaced and _SPACELESS.match(char) is None


class Keywords:
    """A scanner for words and phrases; of several at one place the longest.

    Args:
        words: e.g. `illegal_activity`, which also finds "Illegal activity".
        replacement: what stands for a match.

    Raises:
        ValueError: a word without any letter or digit.
    """

    def __init__(self, words: Sequence[str], replacement: str) -> None:
        folded = [checked_keyword(word) for word in words]
        self._replacement = replacement
        self._longest = max(map(len, folded))
        self._firsts = frozenset(word[0] for word in folded)
        #: each folded character may have a run of invisible ones behind it, and a boundary follows
        self.max_lookahead = self._longest * (LONGEST_RUN + 1) + 1
        self._words = ahocorasick.Automaton()
        for word in folded:
            self._words.add_word(word, len(word))
        self._words.make_automaton()

    def scan(self, text: str, start: int, final: bool) -> Scan:
        folded = fold(text)
        hits = [(end + 1 - size, end + 1) for end, size in self._words.iter(folded)]
        findings = self._chosen(folded, origins(text, folded), hits, start) if hits else NOTHING
        if final:
            return Scan(findings, len(text))
        return settle(findings, max(start, self._undecided(text, folded)))

    def _chosen(
        self, folded: str, origin: Sequence[int] | None, hits: list[tuple[int, int]], start: int
    ) -> Sequence[Finding]:
        findings, at = [], start
        hits.sort(key=lambda hit: (hit[0], -hit[1]))
        for first, last in hits:
            begin = origin[first] if origin else first
            if begin >= at and _is_edge(folded, first) and _is_edge(folded, last):
                at = origin[last - 1] + 1 if origin else last
                findings.append(Finding(begin, at, self._replacement))
        return findings

    def _undecided(self, text: str, folded: str) -> int:
        """The first place from where the rest of the text may be the beginning of a word."""
        size = len(folded)
        for at in range(max(size - self._longest, 0), size):
            if folded[at] in self._firsts and _is_edge(folded, at):
                rest = folded[at:]
                if self._words.longest_prefix(rest) == len(rest):
                    origin = origins(text, folded)
                    return origin[at] if origin else at
        return len(text)


def checked_keyword(word: str) -> str:
    """A word as it is searched for.

    Raises:
        ValueError: it has no letter and no digit.
    """
    folded = " ".join(fold(word).split())
    if not any(char.isalnum() for char in folded):
        raise ValueError(f"{word!r} has no letter and no digit, so there is nothing to search for.")
    return folded


def _is_edge(folded: str, at: int) -> bool:
    return at in (0, len(folded)) or not (_is_word(folded[at - 1]) and _is_word(folded[at]))
