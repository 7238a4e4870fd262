"""Words to stems: what two texts have in common, in letters. English endings; other scripts by their words.

Scripts that are written without blanks are cut into pairs of characters.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_JOINED = re.compile(r"\b([a-z])-(?=[a-z]{3,})")  # e-mail, e-book
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNSPACED = re.compile(r"[぀-ヿ㐀-鿿豈-﫿가-힯฀-๿]")
_DOUBLED = re.compile(r"([bdfglmnprt])\1$")


def words(text: str) -> list[str]:
    """Words in lower case, in order."""
    found: list[str] = []
    for word in _WORD.findall(_JOINED.sub(r"\1", text.casefold().replace("’", "'"))):
        if _UNSPACED.search(word):
            found += [word[i : i + 2] for i in range(len(word) - 1)] or [word]
        else:
            found.append(word)
    return found


STOP_WORDS = frozenset(
    words(
        "a about after all also am an and any are as at be because been before being but by can could did do "
        "does doing don't for from get gets getting give go got had has have having he her here hers hi him "
        "his hello hey how i i'd i'm i've if in into is isn't it it's its just know let let's like may me "
        "might mine more most much must my need no nor not now of off on one only or other our out over "
        "please say see she should so some such take tell than thank thanks that the their them then there "
        "these they this those to too under until up us use very want was we were what what's when where "
        "which while who whom whose why will with without would yes you you're your yours"
    )
)


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """A word without its English ending: `resetting`, `resets` and `reset` are one."""
    word = word.removesuffix("'s")
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "zes", "ches", "shes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending, least in (
        ("ations", 5),
        ("ation", 5),
        ("ions", 4),
        ("ion", 4),
        ("ing", 3),
        ("ed", 3),
        ("ment", 4),
    ):
        if word.endswith(ending) and len(word) - len(ending) >= least - (ending in ("ing", "ed")):
            word = _DOUBLED.sub(r"\1", word[: -len(ending)])
            break
    return word.removesuffix("e") if len(word) > 4 else word


def stems(text: str) -> list[str]:
    """Stems of the words that say something, in order, with repeats."""
    return [stem(word) for word in words(text) if word not in STOP_WORDS]


def name_stems(name: str) -> list[str]:
    """Stems of an identifier: `search_knowledgeBase` has three."""
    return stems(_CAMEL.sub(" ", name).replace("_", " ").replace("-", " ").replace(".", " "))
