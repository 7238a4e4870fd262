"""The words of a text: the one tokenizer, stop words, search terms and stems.

The functions are pure and accept any text. A question's small words say nothing about what is sought, and in
a small folder BM25 cannot see that, so that searches leave them out. Stems have no English ending; scripts
without blanks are cut into pairs of characters.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

MAX_TERMS = 32
MAX_CHARACTERS = 4000
MAX_WORD_LENGTH = 64

# letters and digits of any script, with combining marks; `_` separates, as it does for FTS5's unicode61
_WORD = re.compile(r"(?:[^\W_]|[\u0300-\u036f])+")
_HYPHENATED = re.compile(r"\b([a-z])-(?=[a-z]{3,})")  # e-mail, e-book
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNSPACED = re.compile(r"[぀-ヿ㐀-鿿豈-﫿가-힯฀-๿]")
_DOUBLED = re.compile(r"([bdfglmnprt])\1$")
#: endings with the letters that must stand before them
_ENDINGS = (
    ("ations", 5), ("ation", 5), ("ions", 4), ("ion", 4), ("ing", 2), ("ed", 2), ("ment", 4),
)  # fmt: skip

_ENGLISH = """
    a about after all also am an and any are aren as at be because been before being but by can could couldn
    d did didn do does doesn doing don for from get gets getting give go got had has have having he hello
    her hers hey hi him his how i if im in into is isn it its itself ive just know let like ll m may me
    might mine more most much must my need no nor not now of off on one only or other our ours out over
    please re s say see shall she should so some such t take tell than thank thanks that the their them then
    there these they this those to too under until up us use ve very want was wasn we were weren what when
    where which while who whom whose why will with without won would wouldn yes you your yours
"""
#: words that say nothing about what is sought
STOP_WORDS = frozenset(_ENGLISH.split())


def fold(text: str) -> str:
    """A text in lower case and without accents."""
    lower = text.lower()
    if lower.isascii():
        return lower
    return "".join(c for c in unicodedata.normalize("NFKD", lower) if not unicodedata.combining(c))


def words_of(text: str) -> list[str]:
    """Every word of a text in order, bounded in length."""
    return [word[:MAX_WORD_LENGTH] for word in _WORD.findall(text)]


def terms(query: str, limit: int = MAX_TERMS) -> tuple[str, ...]:
    """The words to search for in a full-text index, each once, in order.

    A question of stop words only keeps them.
    """
    found = dict.fromkeys(word.lower()[:MAX_WORD_LENGTH] for word in words_of(query[:MAX_CHARACTERS]))
    sought = [word for word in found if word not in STOP_WORDS]
    return tuple(sought or found)[:limit]


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """A word without its English ending: `resetting`, `resets` and `reset` are one."""
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "zes", "ches", "shes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending, least in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            word = _DOUBLED.sub(r"\1", word[: -len(ending)])
            break
    return word.removesuffix("e") if len(word) > 4 else word


def stems(text: str) -> list[str]:
    """Stems of the words that are no stop words, in order, with repeats."""
    words = words_of(_HYPHENATED.sub(r"\1", text.casefold()))
    stemmed = [stem(part) for word in words if word not in STOP_WORDS for part in _parts(word)]
    return [one for one in stemmed if one not in STOP_WORDS]


def name_stems(name: str) -> list[str]:
    """Stems of an identifier: `search_knowledgeBase` has three."""
    return stems(_CAMEL.sub(" ", name).replace("-", " "))


def _parts(word: str) -> list[str]:
    if not _UNSPACED.search(word):
        return [word]
    return [word[i : i + 2] for i in range(len(word) - 1)] or [word]
