"""From a question to a full-text query: pure, and sound for any text.

A question's small words say nothing about what is sought, and in a small folder they are not frequent enough
for BM25 to see that. What is left is sought as quoted terms, so that no character is syntax to FTS5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_TERMS = 32
MOST_CHARACTERS = 4000
LONGEST_TERM = 64
#: shorter beginnings would match half of the dictionary
SHORTEST_PREFIX = 3

# letters and digits of any script, with combining marks; `_` separates, as it does for FTS5's unicode61
_TERM = re.compile(r"(?:[^\W_]|[\u0300-\u036f])+")

_ENGLISH = """
    a about am an and any are as at be been being but by can could did do does doing for from get go got
    had has have having he hello help her hi him his how i if in into is it its itself just know like
    may me might mine my need of on or our ours please shall she should so some tell than thank thanks
    that the their them then there these they this those to too us want was we were what when where
    which who whom whose why will with would you your yours don didn doesn isn aren wasn weren can
    couldn won wouldn ll re ve s t d m im ive id
"""
#: words that say nothing about what is sought
SMALL_WORDS = frozenset(_ENGLISH.split())


def words_of(text: str) -> list[str]:
    """Every word of a text in order, bounded in length."""
    return [word[:LONGEST_TERM] for word in _TERM.findall(text)]


def terms(query: str, most: int | None = MOST_TERMS) -> tuple[str, ...]:
    """The words that are sought, each once, in order; a question of small words only keeps them."""
    found = dict.fromkeys(t.lower()[:LONGEST_TERM] for t in _TERM.findall(query[:MOST_CHARACTERS]))
    telling = [term for term in found if term not in SMALL_WORDS]
    return tuple(telling or found)[:most]


def any_of(wanted: Iterable[str]) -> str:
    """An FTS5 expression for texts with any of the terms, in any inflection that the tokenizer knows."""
    return " OR ".join(f'"{term}"' for term in wanted)


def all_of(wanted: Iterable[str]) -> str:
    """An FTS5 expression for texts with every one of the terms."""
    return " AND ".join(f'"{term}"' for term in wanted)


def beginnings(wanted: Iterable[str]) -> str:
    """An FTS5 expression for texts with words that begin like the terms; empty where all are too short."""
    return " OR ".join(f'"{term}"*' for term in wanted if len(term) >= SHORTEST_PREFIX)


def score(matched: int, sought: int, rank: float, best: float) -> float:
    """How well a passage fits, in [0, 1].

    How many of the sought terms it has says most: BM25 alone has no scale, and cannot tell a passage that
    answers from the best of those that do not. Its rank among the found ones decides between equals.

    Args:
        matched: terms that the passage has.
        sought: terms of the query; of a long one nobody expects a passage to have all.
        rank: BM25 of the passage, higher is better.
        best: BM25 of the best passage found.
    """
    expected = sought if sought <= 4 else 4 + (sought - 4) / 4
    coverage = min(1.0, matched / expected) if expected else 0.0
    return coverage * (0.6 + 0.4 * (rank / best if best > 0 else 1.0))
