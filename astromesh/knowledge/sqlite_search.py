"""The search engine for passages in SQLite, used by RAG pipelines and semantic memory.

Words are found by FTS5 (BM25, Porter stems, folded accents), vectors by exact indexes in memory. The engine
works on any table whose queries have the names that `PassageSearch` lists. It runs in the reader's thread of
the database.
"""

from __future__ import annotations

import math
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from astromesh.knowledge.ranking import (
    EVERYWHERE,
    MAX_RANKED,
    match_all,
    match_any,
    match_prefixes,
    plan_query,
    propose_passages,
    word_score,
)
from astromesh.knowledge.vectors import VectorIndex

#: words whose counts stay in memory
_MAX_COUNTED = 20_000
#: vectors read at once
_FETCH_SIZE = 4096
#: seeking one passage in the list of a word costs as much as reading this many entries of the list
_SEEK_COST = 300


class Corpus(NamedTuple):
    """The passages that one query searches.

    Args:
        version: changes when counts of words are out of date.
        columns: FTS5 column filter of the text, or empty.
        headings: FTS5 column filter of titles and headings; empty where there are none.
        scope: FTS5 expression that limits a search to one scope, or empty.
        documents: JSON list of numbers of documents; None for all documents.
        newest_first: the order of passages that rank equally.
    """

    version: Hashable
    columns: str = ""
    headings: str = ""
    scope: str = ""
    documents: str | None = None
    newest_first: bool = False


class Candidates(NamedTuple):
    """Passages that the words of a query propose.

    Args:
        ranks: BM25 by id, best first.
        words: an FTS5 expression for each word, with the number of passages that have the word.
    """

    ranks: Mapping[int, float]
    words: Mapping[str, int]


class TableState(NamedTuple):
    """Args: removed: the database's counter of removals; newest: the highest id."""

    removed: int
    newest: int


class PassageSearch:
    """Finds passages of one file. It runs in the reader's thread and keeps word counts and vectors in memory.

    Ids of passages only grow, so that an index in memory reads only what is new. A counter in the database
    tells when passages were removed, by whatever process.

    Args:
        sql: queries `count`, `ranked`, `some`, `has_term`, `has_term_between`, `vectors`, `vector_ids`.
        max_bytes: bytes of vectors in memory; the index unused for longest is dropped first.
    """

    def __init__(self, sql: Mapping[str, str], max_bytes: float = math.inf) -> None:
        self._sql, self._max_bytes = sql, max_bytes
        self._counts: dict[tuple[str, str], tuple[Hashable, int]] = {}
        self._indexes: OrderedDict[tuple[Hashable, ...], tuple[VectorIndex, TableState]] = OrderedDict()

    def propose(
        self, connection: sqlite3.Connection, corpus: Corpus, words: Sequence[str], limit: int
    ) -> Candidates:
        """The best passages that have the words in any inflection.

        If there are none, passages with words that begin like them.

        Args:
            limit: passages proposed at most.
        """
        if not words:
            return Candidates({}, {})
        counts = {word: self._count(connection, corpus, word) for word in words}
        ranked = partial(self._ranked, connection, corpus, limit)
        plan = plan_query({word: count for word, count in counts.items() if count})
        found = propose_passages(plan, ranked)
        if plan.everywhere and not found:
            found = self._match_common_words(connection, corpus, plan.everywhere, limit)
        single: Callable[[Sequence[str]], str] = match_any
        if not found and (prefixes := match_prefixes(words)):
            found, single = ranked(prefixes, MAX_RANKED), match_prefixes
            counts = dict.fromkeys(words, EVERYWHERE)
        sign = -1 if corpus.newest_first else 1
        best = sorted(found.items(), key=lambda one: (-one[1], sign * one[0]))[:limit]
        expressions = {single([word]): count for word, count in counts.items()}
        return Candidates(dict(best), {word: count for word, count in expressions.items() if word and count})

    def score(
        self, connection: sqlite3.Connection, corpus: Corpus, candidates: Candidates, sought: int
    ) -> list[tuple[int, float]]:
        """Candidates with scores in [0, 1], by how many of the `sought` words each has, best first."""
        ranks = candidates.ranks
        if not ranks:
            return []
        matched, top = self._count_matches(connection, corpus, candidates), max(ranks.values())
        scored = [(row, word_score(matched[row], sought, rank, top)) for row, rank in ranks.items()]
        return sorted(scored, key=lambda one: -one[1])

    def index(
        self, connection: sqlite3.Connection, key: tuple[Hashable, ...], state: TableState, dimensions: int
    ) -> VectorIndex:
        """The vectors as this transaction sees them.

        Args:
            key: arguments of the queries `vectors` and `vector_ids` that name the vectors.
        """
        place = (*key, dimensions)
        empty = TableState(state.removed, 0)
        vectors, seen = self._indexes.get(place) or (VectorIndex(dimensions), empty)
        if seen.removed != state.removed:
            rows = connection.execute(self._sql["vector_ids"], (*key, seen.newest))
            vectors.retain([row for (row,) in rows])
        if seen.newest < state.newest:
            rows = connection.execute(self._sql["vectors"], (*key, seen.newest, 4 * dimensions))
            while portion := rows.fetchmany(_FETCH_SIZE):
                vectors.extend([row for row, _ in portion], [blob for _, blob in portion])
        self._indexes[place] = vectors, TableState(state.removed, max(seen.newest, state.newest))
        self._indexes.move_to_end(place)
        while self._indexes and sum(one.nbytes for one, _ in self._indexes.values()) > self._max_bytes:
            self._indexes.popitem(last=False)
        return vectors

    def _count(self, connection: sqlite3.Connection, corpus: Corpus, word: str) -> int:
        """About how many passages have a word; EVERYWHERE at most.

        A word that is rare in the file is rare in a scope: only for others the scope is walked through.
        """
        key = (corpus.scope, word)
        known = self._counts.get(key)
        if known is None or known[0] != corpus.version:
            if len(self._counts) >= _MAX_COUNTED:
                self._counts.clear()
            expression = match_any([word])
            count, most = MAX_RANKED + 1, MAX_RANKED + 1
            if corpus.scope:
                count = self._count_in(connection, corpus._replace(scope=""), expression, most)
            if count == most:
                count = self._count_in(connection, corpus, expression, EVERYWHERE)
            known = self._counts[key] = corpus.version, count
        return known[1]

    def _count_in(self, connection: sqlite3.Connection, corpus: Corpus, expression: str, most: int) -> int:
        bound = (_within(corpus, expression), most)
        count: int = connection.execute(self._sql["count"], bound).fetchone()[0]
        return count

    def _ranked(
        self, connection: sqlite3.Connection, corpus: Corpus, limit: int, expression: str, rows: int
    ) -> dict[int, float]:
        """The best of the first `rows` passages that an expression matches."""
        found = self._select(connection, corpus, "ranked", _within(corpus, expression), rows, limit)
        return dict(found)

    def _match_common_words(
        self, connection: sqlite3.Connection, corpus: Corpus, words: Sequence[str], limit: int
    ) -> dict[int, float]:
        """Passages with words that nearly all passages have: in headings, together, or any of them."""
        found: dict[int, float] = {}
        expressions = [_within(corpus, match_all(words)), _within(corpus, match_any(words))]
        if corpus.headings:
            expressions.insert(0, f"{corpus.scope}{corpus.headings}({match_all(words)})")
        for expression in expressions:
            if len(found) < limit:
                rows = self._select(connection, corpus, "some", expression, limit)
                found.update((row, 0.0) for (row,) in rows if row not in found)
        return found

    def _select(
        self, connection: sqlite3.Connection, corpus: Corpus, name: str, *bound: object
    ) -> Iterator[Any]:
        if corpus.documents is None:
            return connection.execute(self._sql[name], bound)
        return connection.execute(self._sql[f"{name}_of"], (*bound, corpus.documents))

    def _count_matches(
        self, connection: sqlite3.Connection, corpus: Corpus, candidates: Candidates
    ) -> dict[int, int]:
        """How many of the words each candidate has."""
        matched = dict.fromkeys(candidates.ranks, 0)
        listed, least, most = orjson.dumps(list(matched)).decode(), min(matched), max(matched)
        for word, count in candidates.words.items():
            expression = _within(corpus, word)
            if count <= _SEEK_COST * len(matched):
                rows = connection.execute(self._sql["has_term_between"], (expression, least, most))
            else:
                rows = connection.execute(self._sql["has_term"], (expression, listed))
            for (row,) in rows:
                if row in matched:
                    matched[row] += 1
        return matched


def _within(corpus: Corpus, expression: str) -> str:
    return f"{corpus.scope}{corpus.columns}({expression})"
