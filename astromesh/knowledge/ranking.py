"""Words of texts, and the ranking of passages by them and by vectors. Pure.

There is one tokenizer. A question's small words (stop words) say nothing about what is sought, and in a small
folder BM25 cannot see that, so that searches leave them out. Stems have no English ending; scripts without
blanks are cut into pairs of characters.

Rare words propose every passage that has them. Frequent words propose only passages that have all of them, up
to a number. Words of nearly every passage propose only if there are no others. Rankings by words and by
vectors are fused by reciprocal rank fusion (Cormack, Clarke, Büttcher, SIGIR 2009). `bm25_scores` ranks texts
in memory (Robertson, Zaragoza 2009); databases have BM25 of their own.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

# -- words ---------------------------------------------------------------------------------------------------


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


T = TypeVar("T", bound=Hashable)

#: shorter prefixes would match half of the dictionary
MIN_PREFIX_LENGTH = 3
#: about how many passages are ranked for one query
MAX_RANKED = 1500
#: counts stop here: a word of more passages is in nearly all of them
EVERYWHERE = 20_000
#: the constant of reciprocal rank fusion: how little the first places count beyond the next
K = 60
#: neighbours below this share of the best cosine say nothing beside words
_MIN_COSINE_SHARE = 0.5
#: what the word score adds to a cosine that means something, and the share of it that counts without a vector
_WORDS_WEIGHT, _WORDS_ONLY = 0.05, 0.5
#: the cosine at which a passage of all-MiniLM-L6-v2 answers as often as not, and how fast that changes
_MIDPOINT, _STEEPNESS = 0.36, 14.0
#: BM25: how soon more occurrences count less, and how much the length of a text counts
_K1, _B = 1.2, 0.75

# -- queries -------------------------------------------------------------------------------------------------


def match_any(words: Iterable[str]) -> str:
    """An FTS5 expression for texts with any of the words, in any inflection that the tokenizer knows."""
    return " OR ".join(f'"{word}"' for word in words)


def match_all(words: Iterable[str]) -> str:
    """An FTS5 expression for texts with all of the words."""
    return " AND ".join(f'"{word}"' for word in words)


def match_prefixes(words: Iterable[str]) -> str:
    """An FTS5 expression for texts with words that begin like these; empty if all are too short."""
    return " OR ".join(f'"{word}"*' for word in words if len(word) >= MIN_PREFIX_LENGTH)


class QueryPlan(NamedTuple):
    """The words of a query by how many passages have them.

    Args:
        rare: rarest first; every passage with any of them is ranked.
        frequent: passages with all of them are ranked, up to `frequent_limit`.
        everywhere: words of nearly every passage, which say nothing.
        frequent_limit: what the rare words leave of the bound, at least a fifth.
    """

    rare: tuple[str, ...]
    frequent: tuple[str, ...]
    everywhere: tuple[str, ...]
    frequent_limit: int


def plan_query(counts: Mapping[str, int], max_ranked: int = MAX_RANKED) -> QueryPlan:
    """Decides which words propose passages.

    Args:
        counts: passages that have each word; EVERYWHERE stands for that many or more.
        max_ranked: about how many passages are ranked.
    """
    rare: list[str] = []
    frequent: list[str] = []
    everywhere: list[str] = []
    left = max_ranked
    for term, count in sorted(counts.items(), key=lambda one: one[1]):
        if count <= left:
            rare.append(term)
            left -= count
        else:
            (frequent if count < EVERYWHERE else everywhere).append(term)
    return QueryPlan(tuple(rare), tuple(frequent), tuple(everywhere), max(left, max_ranked // 5))


def propose_passages(plan: QueryPlan, match: Callable[[str, int], Mapping[int, float]]) -> dict[int, float]:
    """Passages that the rare and the frequent words propose, with their BM25.

    Args:
        match: returns the passages that an FTS5 expression matches, up to a number, with their BM25.
    """
    found = dict(match(match_any(plan.rare), 2 * MAX_RANKED)) if plan.rare else {}
    if plan.frequent:
        for row, rank in match(match_all(plan.frequent), plan.frequent_limit).items():
            found[row] = found.get(row, 0.0) + rank
    if plan.frequent and not found:
        found = dict(match(match_any(plan.frequent), plan.frequent_limit))
    return found


# -- scores --------------------------------------------------------------------------------------------------


def word_score(matched: int, sought: int, rank: float, best: float) -> float:
    """How well a passage fits, in [0, 1].

    The number of sought words that the passage has counts most: BM25 has no scale, and cannot tell a passage
    that answers from the best of those that do not. BM25 decides between equals.

    Args:
        matched: sought words that the passage has.
        sought: words of the query; a passage need not have all words of a long query.
        rank: BM25 of the passage, higher is better.
        best: BM25 of the best passage found.
    """
    expected = sought if sought <= 4 else 4 + (sought - 4) / 4
    coverage = min(1.0, matched / expected) if expected else 0.0
    return coverage * (0.6 + 0.4 * (rank / best if best > 0 else 1.0))


def term_weights(sought: Iterable[str], documents: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Inverse document frequencies of the sought words.

    A word that no document has weighs as much as the rarest word that some document has.

    Args:
        documents: how often each document has each word.
    """
    total = len(documents)
    having = {word: sum(1 for counts in documents if counts.get(word)) for word in sought}
    weights = {w: math.log(1 + (total - n + 0.5) / (n + 0.5)) for w, n in having.items() if n}
    rarest = max(weights.values(), default=1.0)
    return {word: max(weights.get(word, rarest), 0.1) for word in having}


def bm25_scores(weights: Mapping[str, float], documents: Sequence[Counter[str]]) -> list[float]:
    """The BM25 of each document; 0 for a document without any of the words.

    Args:
        weights: of the sought words, see `term_weights`.
    """
    lengths = [sum(counts.values()) for counts in documents]
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    norms = [_K1 * (1 - _B + _B * length / (mean or 1.0)) for length in lengths]
    return [
        sum(w * counts[t] * (_K1 + 1) / (counts[t] + norm) for t, w in weights.items() if counts[t])
        for counts, norm in zip(documents, norms, strict=True)
    ]


# -- fusion --------------------------------------------------------------------------------------------------


def reciprocal_rank_fusion(rankings: Iterable[Iterable[T]]) -> list[tuple[T, float]]:
    """Fuses rankings into one, best first, with scores in [0, 1]; of equals, the one seen first.

    It uses ranks only, so that scores of different scales need not be compared. An item that is first in
    every ranking scores 1.0.
    """
    scores: dict[T, float] = {}
    count = 0
    for ranking in rankings:
        count += 1
        for place, one in enumerate(ranking, 1):
            scores[one] = scores.get(one, 0.0) + 1.0 / (K + place)
    most = count / (K + 1)
    return [(one, scores[one] / most) for one in sorted(scores, key=lambda one: -scores[one])]


def candidate_count(top_k: int) -> int:
    """How many passages words and vectors propose each."""
    return max(20, 4 * top_k)


def fuse_rankings(
    by_words: Sequence[tuple[int, float]], by_vectors: Sequence[tuple[int, float]], *, semantic: bool
) -> list[tuple[int, float]]:
    """Fuses a ranking by words and one by vectors, best first, with scores in [0, 1].

    Args:
        by_words, by_vectors: ids with scores, best first.
        semantic: whether near vectors mean similar meaning. Then the cosine decides and words add little:
            equal weights would give the better ranking away.
    """
    return _fuse_by_meaning(by_words, by_vectors) if semantic else _fuse_by_rank(by_words, by_vectors)


def _fuse_by_meaning(
    by_words: Sequence[tuple[int, float]], by_vectors: Sequence[tuple[int, float]]
) -> list[tuple[int, float]]:
    """The score is how likely the passage answers; one found by words only scores at most 0.5."""
    if not by_vectors:
        return list(by_words)
    words = dict(by_words)
    scores = {one: _likelihood(cosine + _WORDS_WEIGHT * words.get(one, 0.0)) for one, cosine in by_vectors}
    scores = {**{one: _WORDS_ONLY * score for one, score in by_words}, **scores}
    return sorted(scores.items(), key=lambda one: -one[1])


def _likelihood(nearness: float) -> float:
    return 1.0 / (1.0 + math.exp(_STEEPNESS * (_MIDPOINT - nearness)))


def _fuse_by_rank(
    by_words: Sequence[tuple[int, float]], by_vectors: Sequence[tuple[int, float]]
) -> list[tuple[int, float]]:
    """Reciprocal rank fusion, scaled so that the best score is that of the best single evidence.

    Ranks do not tell how near a neighbour is. Neighbours less than half as near as the nearest are left out:
    the last of them would count nearly as much as the first passage found by words.
    """
    if not by_words:
        return list(by_vectors)
    least = by_vectors[0][1] * _MIN_COSINE_SHARE if by_vectors else 0.0
    near = [(one, cosine) for one, cosine in by_vectors if cosine >= least]
    found = reciprocal_rank_fusion(([one for one, _ in by_words], [one for one, _ in near]))
    best = max((score for _, score in (*by_words, *near)), default=0.0)
    return [(one, score * min(1.0, best)) for one, score in found]


def diversify(found: Sequence[tuple[T, float]], words: Mapping[T, frozenset[str]], top_k: int) -> list[T]:
    """The best items; near-duplicates come later.

    Maximal marginal relevance: Carbonell, Goldstein, SIGIR 1998.

    Args:
        found: items with scores in [0, 1], best first.
        words: of each item. What two items share beyond half of their words lowers the score of the second.
    """
    left = dict(found)
    chosen: list[T] = []
    shared = dict.fromkeys(left, 0.0)
    while left and len(chosen) < top_k:
        best = max(left, key=lambda one: left[one] - shared[one])
        chosen.append(best)
        del left[best]
        for one in left:
            shared[one] = max(shared[one], _overlap(words[one], words[best]) - 0.5)
    return chosen


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / (len(one | other) or 1)


def fuse_results(
    by_vectors: Sequence[tuple[int, float]],
    by_words: Sequence[tuple[int, float]],
    cosines: Mapping[int, float],
    *,
    top_k: int,
    threshold: float,
) -> list[tuple[int, float]]:
    """The best ids with scores in [0, 1]: ordered by both rankings, scored by nearness.

    Args:
        by_vectors: ids with their cosine, nearest first; empty where there are no vectors.
        by_words: ids found by words with their score, best first.
        cosines: of ids found by words; an id without a vector keeps the score of its words.
        threshold: least score; ids without a positive score are always left out.
    """
    scores = {
        **dict(by_words),
        **{one: cosines[one] for one, _ in by_words if one in cosines},
        **dict(by_vectors),
    }
    ranked = reciprocal_rank_fusion(([one for one, _ in by_vectors], [one for one, _ in by_words]))
    order = [one for one, _ in sorted(ranked, key=lambda r: (-r[1], -scores[r[0]]))]
    good = [(one, min(1.0, scores[one])) for one in order if scores[one] > 0 and scores[one] >= threshold]
    return good[:top_k]
