"""The search engine for passages in PostgreSQL with pgvector, used by RAG pipelines and semantic memory.

Words are found by a GIN index, vectors by an HNSW index. PostgreSQL returns how often a passage has each
word; how many passages have the word gives its weight. The engine works on any table whose queries have the
names that `PassageSearch` lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from astromesh.knowledge.ranking import MAX_RANKED, MIN_PREFIX_LENGTH, plan_query, word_score
from astromesh.storage.postgres import Connection, Postgres
from astromesh.telemetry.clock import Clock

#: dimensions that an index of pgvector takes, of full and of half precision
MAX_DIMENSIONS, MAX_HALF_DIMENSIONS = 2000, 4000
#: candidates that an approximate search of vectors examines at least
_MIN_EF_SEARCH = 100
#: words whose stems stay in memory
_MAX_STEMS = 20_000
#: seconds after which the planner's statistics of common words are read again
_FREQUENCIES_SECONDS = 60.0
#: if words stand together in more than this share of all passages, reading passages in order finds enough
_MAX_SHARE = 0.05
#: fewer than in SQLite: PostgreSQL reads the whole passage to rank it
_MAX_PROPOSED = MAX_RANKED // 5
#: passages that each part of a query proposes at least
_MIN_PROPOSED = 60

Ranking = list[tuple[int, float]]
#: returns a query by its name, with `{name}` replaced by the keyword arguments
Statements: TypeAlias = Callable[..., str]


class Proposal(NamedTuple):
    """The passages that words propose.

    Args:
        queries: full-text queries, with how many of the passages that each finds.
        words: each sought word as a query.
        column: the text column; an expression without an index if nearly every passage has the words.
    """

    queries: Mapping[str, int]
    words: tuple[str, ...]
    column: str = "words"


class Frequencies(NamedTuple):
    """The planner's statistics. Args: common: passages that have each of the most common words."""

    passages: float = 0.0
    common: Mapping[str, int] = MappingProxyType({})


class PassageSearch:
    """Finds passages of one table. It keeps stems and the frequencies of common words between searches.

    Args:
        normalize: changes a word before PostgreSQL stems it, as the stored words were changed.
    """

    def __init__(
        self, database: Postgres, clock: Clock, normalize: Callable[[str], str] = lambda word: word
    ) -> None:
        self._database, self._clock, self._normalize = database, clock, normalize
        self._stems: dict[str, str] = {}
        self._frequencies = Frequencies()
        self._next_look = -math.inf

    def forget(self) -> None:
        """Reads the planner's statistics again with the next search."""
        self._next_look = -math.inf

    async def by_words(
        self, sql: Statements, words: Sequence[str], limit: int, bound: Sequence[object]
    ) -> Ranking:
        """Passages that have the words in any inflection; if there are none, words that begin like them.

        Args:
            sql: returns the queries `stems`, `frequencies` and `ranked`.
            bound: arguments of `ranked` from $4 on, which limit the passages.

        Returns:
            Ids with scores in [0, 1], best first.
        """
        if not words:
            return []
        stems = await self._stem(sql, words)
        frequencies = await self._word_frequencies(sql)
        for proposal in (_propose(stems, frequencies), self._propose_prefixes(words)):
            numbers = list(proposal.queries.values())
            query = sql("ranked", words=proposal.column)
            rows = await self._database.read(
                query, list(proposal.queries), numbers, list(proposal.words), *bound
            )
            if rows:
                return _rank_rows(rows, proposal, frequencies, len(words))[:limit]
        return []

    async def nearest(
        self, sql: Statements, vector: Sequence[float], limit: int, bound: Sequence[object], **parts: str
    ) -> Ranking:
        """Ids with their cosine, nearest first; those that point elsewhere are left out.

        Args:
            sql: returns the queries `scan` and `near`.
            bound: arguments of `near` from $3 on, which limit the passages.
            parts: of the query `near`.
        """
        arguments = (list(vector), limit, *bound)
        effort = max(_MIN_EF_SEARCH, min(2 * limit, 1000))
        look = partial(_fetch_nearest, sql("scan", effort=effort), sql("near", **parts), arguments)
        found = [(row, min(1.0, cosine)) for row, cosine in await self._database.look(look) if cosine > 0]
        return sorted(found, key=lambda one: -one[1])

    async def _stem(self, sql: Statements, words: Sequence[str]) -> list[str]:
        """The words as queries of PostgreSQL, each once, without those that PostgreSQL does not take."""
        found = {word: self._stems[word] for word in words if word in self._stems}
        if unknown := [word for word in words if word not in found]:
            rows = await self._database.read(sql("stems"), list(map(self._normalize, unknown)))
            stems: dict[str, str] = dict(map(tuple, rows))
            found |= {word: stems[self._normalize(word)] for word in unknown}
            if len(self._stems) >= _MAX_STEMS:
                self._stems.clear()
            self._stems |= found
        return list(dict.fromkeys(filter(None, map(found.__getitem__, words))))

    async def _word_frequencies(self, sql: Statements) -> Frequencies:
        if self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + _FREQUENCIES_SECONDS
            [(passages, words, shares)] = await self._database.read(sql("frequencies"))
            common = {
                f"'{word}'": round(share * passages)
                for word, share in zip(words or (), shares or (), strict=False)
            }
            self._frequencies = Frequencies(max(passages, 0.0), common)
        return self._frequencies

    def _propose_prefixes(self, words: Sequence[str]) -> Proposal:
        prefixes = tuple(f"'{self._normalize(word)}':*" for word in words if len(word) >= MIN_PREFIX_LENGTH)
        return Proposal(dict.fromkeys(prefixes, _MAX_PROPOSED // max(len(prefixes), 1)), prefixes)


def fill(query: str, **values: object) -> str:
    """A query with `{name}` replaced by values that astromesh chose: numbers, types, conditions."""
    for name, value in values.items():
        query = query.replace(f"{{{name}}}", str(value))
    return query


def index_type(dimensions: int) -> str:
    """The type of pgvector that an index of such vectors has; empty if they are too long for an index."""
    if dimensions <= MAX_DIMENSIONS:
        return "vector"
    return "halfvec" if dimensions <= MAX_HALF_DIMENSIONS else ""


async def _fetch_nearest(
    scan: str, query: str, arguments: Sequence[object], connection: Connection
) -> list[Any]:
    await connection.execute(scan)
    return list(await connection.fetch(query, *arguments))


def _propose(words: Sequence[str], frequencies: Frequencies) -> Proposal:
    """Passages with any of the rare words, with all words, and with all frequent words.

    Words that the planner does not name are rare. Words of nearly every passage propose only if there are no
    others.
    """
    plan = plan_query({word: frequencies.common.get(word, 0) for word in words}, _MAX_PROPOSED)
    if not plan.rare and not plan.frequent:
        share = math.prod(
            frequencies.common.get(word, 0) / max(frequencies.passages, 1.0) for word in plan.everywhere
        )
        column = "words" if share < _MAX_SHARE else "(words || '')"
        common = {_all_words(plan.everywhere): _MAX_PROPOSED} if plan.everywhere else {}
        return Proposal(common, tuple(words), column)
    proposed = dict.fromkeys(plan.rare, max(_MAX_PROPOSED // max(len(plan.rare), 1), _MIN_PROPOSED))
    proposed[_all_words(plan.rare + plan.frequent)] = _MIN_PROPOSED
    if plan.frequent:
        proposed[_all_words(plan.frequent)] = _MIN_PROPOSED if plan.rare else _MAX_PROPOSED
    if plan.frequent and not plan.rare:
        proposed[" | ".join(plan.frequent)] = _MIN_PROPOSED
    return Proposal(proposed, tuple(words))


def _all_words(words: Sequence[str]) -> str:
    return " & ".join(f"({word})" for word in words)


def _rank_rows(rows: Sequence[Any], proposal: Proposal, frequencies: Frequencies, sought: int) -> Ranking:
    """Orders by how many of the words a passage has, then by how often it has them and how rare they are."""
    found = {row["id"]: row["ranks"] for row in rows}
    having = [sum(1 for ranks in found.values() if ranks[n] > 0) for n in range(len(proposal.words))]
    counts = [
        max(frequencies.common.get(word, 0), have, 1)
        for word, have in zip(proposal.words, having, strict=True)
    ]
    weights = [math.log1p(max(frequencies.passages, len(found)) / count) for count in counts]
    totals = {
        row: sum(w * rank for w, rank in zip(weights, ranks, strict=True)) for row, ranks in found.items()
    }
    top = max(totals.values())
    scores = {
        row: word_score(sum(rank > 0 for rank in ranks), sought, totals[row], top)
        for row, ranks in found.items()
    }
    return sorted(scores.items(), key=lambda one: (-one[1], -totals[one[0]], one[0]))
