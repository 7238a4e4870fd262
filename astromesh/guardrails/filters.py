"""`content_filter` and `topic_filter`: keywords (Aho and Corasick, 1975) and RE2 patterns.

`content_filter` redacts forbidden words, or replaces the text (document 001, step 10); `topic_filter` refuses
texts about forbidden topics (step 3).

Keywords match whatever their case and spelling. Both sides are folded: to lower case; full-width letters,
ligatures and accents to one form (Unicode NFKD with case folding); apostrophes of every kind to one, and
the dotted I to i; runs of up to eight blanks, underscores, hyphens and minus signs to one space; up to
eight invisible characters to none. A match stands between word boundaries, except in scripts without
spaces between words.

Patterns match in linear time (https://github.com/google/re2/wiki/Syntax).
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from importlib import import_module
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self

import ahocorasick
from pydantic import AfterValidator, Field, model_validator

from astromesh.guardrails.spans import NOTHING, Finding, Scan, Scanner, SpanRule, settle
from astromesh.text import INVISIBLE, LINE_ENDS, LONGEST_INVISIBLE_RUN, SPACES

_BLANK = f"{SPACES}{LINE_ENDS}_\\-\u2010-\u2015\u2212\ufe63\uff0d"
_is_blank = re.compile(f"[{_BLANK}]").match
_has_blank = re.compile(f"[{_BLANK}]").search
#: runs, and characters that fold to nothing: the combining dot of an i
_RUN = re.compile(f"[{_BLANK}{INVISIBLE}]{{2,}}|[{INVISIBLE}]|(?<=[iI\u0130])\u0307")
_IRREGULAR = _RUN.search
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032\u00b4", "'"))
#: Thai, Lao, Burmese, Hangul, Khmer, Chinese, Japanese, Yi
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]"
)


def fold(text: str) -> str:
    """The folded text, in which keywords are searched."""
    if text.isascii():
        folded = text.lower().replace("_", " ").replace("-", " ")
        folded = folded.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        if "  " not in folded and folded.isprintable():
            return folded
    elif _IRREGULAR(text) is None:
        return text.translate(_TABLE)
    return _fold_any(text)[0]


def origins(text: str, folded: str) -> Sequence[int] | None:
    """The position in the text of each folded character; None: positions are equal."""
    if len(folded) == len(text) and _IRREGULAR(text) is None:
        return None
    return _fold_any(text)[1]


def _fold_any(text: str) -> tuple[str, Sequence[int]]:
    folded: list[str] = []
    origin: list[int] = []
    at = 0
    for run in _RUN.finditer(text):
        _fold_piece(text, at, run.start(), folded, origin)
        at = run.end()
        folded.append(_fold_run(run[0]))
        origin += range(run.start(), run.start() + len(folded[-1]))
    _fold_piece(text, at, len(text), folded, origin)
    return "".join(folded), origin


def _fold_piece(text: str, start: int, end: int, folded: list[str], origin: list[int]) -> None:
    """Folds the text between two runs."""
    piece = text[start:end].translate(_TABLE)
    folded.append(piece)
    if len(piece) == end - start:  # every character has folded to one
        origin += range(start, end)
        return
    for at in range(start, end):
        origin += [at] * len(_fold_char(text[at]))


def _fold_run(run: str) -> str:
    if len(run) > LONGEST_INVISIBLE_RUN:
        return run
    return " " if _has_blank(run) else ""


@lru_cache(maxsize=4096)
def _fold_char(char: str) -> str:
    if _is_blank(char):
        return " "
    if char == "\u0130":  # it would fold to an i with a combining dot, which matches no other spelling
        return "i"
    char = char.translate(_APOSTROPHES)
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold()).casefold()
    return folded.translate(_APOSTROPHES)


class _Table:
    """The table of `str.translate`, for texts without runs."""

    def __getitem__(self, code: int) -> str:
        return _fold_char(chr(code))


_TABLE = _Table()


@lru_cache(maxsize=4096)
def _is_word(char: str) -> bool:
    spaced = char.isalnum() or unicodedata.combining(char) > 0
    return spaced and _SPACELESS.match(char) is None


class Keywords:
    """A scanner for words and phrases; at one place the longest wins.

    Args:
        words: e.g. `illegal_activity`, which also finds "Illegal activity".
        replacement: replaces a match.

    Raises:
        ValueError: a word without any letter or digit.
    """

    def __init__(self, words: Sequence[str], replacement: str) -> None:
        folded = [fold_keyword(word) for word in words]
        self._replacement = replacement
        self._longest = max(map(len, folded))
        self._firsts = frozenset(word[0] for word in folded)
        #: a run of invisible characters may follow each folded one, and a boundary follows the word
        self.max_lookahead = self._longest * (LONGEST_INVISIBLE_RUN + 1) + 1
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
        """The first position from which the rest of the text may begin a keyword."""
        size = len(folded)
        for at in range(max(size - self._longest, 0), size):
            if folded[at] in self._firsts and _is_edge(folded, at):
                rest = folded[at:]
                if self._words.longest_prefix(rest) == len(rest):
                    origin = origins(text, folded)
                    return origin[at] if origin else at
        return len(text)


def fold_keyword(word: str) -> str:
    """The folded form of a keyword.

    Raises:
        ValueError: the word has no letter and no digit.
    """
    folded = " ".join(fold(word).split())
    if not any(char.isalnum() for char in folded):
        raise ValueError(f"{word!r} has no letter and no digit, so it cannot match. Write a word.")
    return folded


def _is_edge(folded: str, at: int) -> bool:
    return at in (0, len(folded)) or not (_is_word(folded[at - 1]) and _is_word(folded[at]))


# -- RE2 patterns --------------------------------------------------------------------------------------------

#: longest match for which a stream waits, in characters; patterns with longer matches need the whole text
MAX_MATCH_LENGTH = 2000
#: matches that unbounded patterns replace one by one; the rest is replaced as one, so that time stays linear
MAX_FINDINGS = 1_000
#: the pattern parser of Python, which computes the width of a pattern; it has no public name
_parser: Any = import_module("re._parser")
_SURROGATES = re.compile("[\ud800-\udfff]")
#: syntax of RE2 that Python does not know
_RE2_ONLY = re.compile(
    r"\\(?:[pP](?:\{\^?\w+\}|\w)|x\{[0-9A-Fa-f]+\}|C)|\[:\^?\w+:\]|\(\?<(?=\w)|\\.", re.DOTALL
)


@cache
def _re2() -> Any:
    """The library, which takes 2 MiB: most configurations have keywords and no patterns."""
    return import_module("re2")


def validate_pattern(pattern: str) -> str:
    """Validates a pattern in options; returns it unchanged.

    Raises:
        ValueError: RE2 cannot compile it, or it matches the empty text.
    """
    try:
        compiled = _re2().compile(pattern, _re2_options())
    except _re2().error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(
            f"{pattern!r} is not an RE2 pattern: {reason}. RE2 has no lookaround and no back-references."
        ) from error
    if compiled.search("") is not None:
        raise ValueError(
            f"{pattern!r} matches the empty text, so it would match everywhere. Let it need a character."
        )
    return pattern


def widest_match(pattern: str) -> int | None:
    """The longest match in characters; None: no limit is known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            widest = int(_parser.parse(_RE2_ONLY.sub(_as_python, pattern)).getwidth()[1])
    except (re.error, OverflowError, RecursionError):
        return None
    return widest if widest < min(_parser.MAXREPEAT, MAX_MATCH_LENGTH + 1) else None


def _as_python(match: re.Match[str]) -> str:
    """Syntax of the same width that Python reads; an escaped backslash never begins an escape."""
    text = match[0]
    if text == "(?<":
        return "(?P<"
    if text == r"\z":
        return r"\Z"
    return text if text[0] == "\\" and len(text) == 2 and text[1] not in "C" else "x"


def _re2_options() -> Any:
    options = _re2().Options()
    options.log_errors = False
    return options


class Patterns:
    """A scanner for RE2 patterns; at one place the first pattern wins.

    Args:
        replacement: replaces a match.
    """

    def __init__(self, patterns: Sequence[str], replacement: str) -> None:
        widths = [widest_match(pattern) for pattern in patterns]
        bounded = [width for width in widths if width is not None]
        #: one more than the match, because `$` and `\b` check the next character
        self.max_lookahead = max(bounded) + 1 if len(bounded) == len(widths) else None
        self._compiled = _re2().compile("|".join(f"(?:{pattern})" for pattern in patterns), _re2_options())
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
            if self.max_lookahead is None and len(findings) >= MAX_FINDINGS:
                return [*findings[:-1], Finding(findings[-1].start, len(text), self._replacement)]
        return findings


# -- the base of topic_filter and content_filter -------------------------------------------------------------


def _validate_keyword(word: str) -> str:
    fold_keyword(word)
    return word


Keyword = Annotated[str, AfterValidator(_validate_keyword)]
Pattern = Annotated[str, AfterValidator(validate_pattern)]


class MatchRule(SpanRule):
    """A rule that finds keywords, and patterns in the text that remains.

    Define `keywords`, and `keywords_key`, the name of their field.
    """

    keywords_key: ClassVar[str]

    blocked_patterns: list[Pattern] = Field([], description="RE2 patterns that must not match.")
    replacement: str = Field("[REDACTED]", description="Text that replaces a match.")

    @property
    def keywords(self) -> list[str]:
        raise NotImplementedError

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not (self.keywords or self.blocked_patterns):
            raise ValueError(
                f"{self.type} needs {self.keywords_key} or blocked_patterns, or it finds nothing."
            )
        return self

    @cached_property
    def scanners(self) -> Sequence[Scanner]:
        scanners: list[Scanner] = []
        if self.keywords:
            scanners.append(Keywords(self.keywords, self.replacement))
        if self.blocked_patterns:
            scanners.append(Patterns(self.blocked_patterns, self.replacement))
        return scanners


# -- content_filter ------------------------------------------------------------------------------------------


class ContentFilter(MatchRule):
    """Redacts forbidden words and patterns, or replaces the text by a safe response."""

    type = "content_filter"
    keywords_key = "forbidden_keywords"

    forbidden_keywords: list[Keyword] = Field(
        [], description="Words and phrases that must not appear in the text; an underscore is a space."
    )
    safe_response: str = Field("I can't share that.", description="Text that replaces a blocked text.")

    @property
    def keywords(self) -> list[str]:
        return self.forbidden_keywords

    @property
    def refusal(self) -> str:
        return self.safe_response


# -- topic_filter --------------------------------------------------------------------------------------------


class TopicFilter(MatchRule):
    """Refuses texts about forbidden topics, or redacts their words."""

    type = "topic_filter"
    keywords_key = "forbidden_topics"

    forbidden_topics: list[Keyword] = Field(
        [], description="Words and phrases that stand for the topics; an underscore is a space."
    )
    blocked_topics: list[Keyword] = Field([], description="The same as forbidden_topics.")
    action: Literal["redact", "block"] = Field(
        "block", description="Refuse the text, or replace the places that were found."
    )
    message: str = Field("I can't help with that topic.", description="The answer to a refused text.")

    @property
    def keywords(self) -> list[str]:
        return [*self.forbidden_topics, *self.blocked_topics]

    @property
    def refusal(self) -> str:
        return self.message
