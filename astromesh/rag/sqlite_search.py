"""How chunks in SQLite are found. Everything here is work for the reader's thread, in one transaction.

Words propose passages by `retrieval.frequent`, BM25 ranks them, and how many of the sought words each has
decides. Vectors are held in memory, all of them, read once and then kept in step: chunk ids only rise, so
that new vectors are those beyond the last one seen, and a counter tells when some were removed, by whatever
process.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import orjson

from astromesh.abc.rag import Chunk, Passage
from astromesh.retrieval.frequent import EVERYWHERE, MOST_RANKED, planned, proposed
from astromesh.retrieval.hybrid import both, candidates
from astromesh.retrieval.vectors import VectorIndex
from astromesh.retrieval.words import all_of, any_of, beginnings, score
from astromesh.storage.migrations import queries

SQL = queries("astromesh.rag", "sql/queries.sql")

#: words whose counts are kept
_MOST_COUNTED = 20_000
#: vectors that are read at once
_PORTION = 4096
#: seeking one passage in the list of a word costs as much as reading this many of the list
_SEEK = 300


class Search(NamedTuple):
    """Args: filters: JSON object of lists of wanted values, or empty."""

    terms: tuple[str, ...]
    top_k: int
    filters: str = ""
    vector: array[float] | None = None


class Searching:
    """What the reader's thread keeps between searches: vectors, and how many chunks have a word.

    Args:
        embedder: fingerprint of the one whose vectors are searched.
    """

    def __init__(self, embedder: str) -> None:
        self._embedder = embedder
        self._state: tuple[int, int | None] | None = None
        self._counts: dict[str, int] = {}
        self._vectors: VectorIndex | None = None
        self._removed = self._last = 0

    def search(
        self, connection: sqlite3.Connection, items: Sequence[Search]
    ) -> Sequence[tuple[Passage, ...] | BaseException]:
        """Work for the reader."""
        state = connection.execute(SQL["state"]).fetchone()
        if state != self._state:
            self._state = state
            self._counts.clear()
        return [self._one(connection, item) for item in items]

    def _one(self, connection: sqlite3.Connection, search: Search) -> tuple[Passage, ...]:
        documents = _documents(connection, search.filters) if search.filters else None
        found: list[tuple[int, float]] = []
        if search.terms:
            found = self._by_words(connection, search, documents)
        if search.vector is not None:
            near = self._nearest(connection, search.vector, candidates(search.top_k), documents)
            found = both(found, near) if search.terms else [(row, min(1.0, cosine)) for row, cosine in near]
        return tuple(_passage(connection, row, points) for row, points in found[: search.top_k])

    # -- words -----------------------------------------------------------------------------------------------

    def _by_words(
        self, connection: sqlite3.Connection, search: Search, documents: str | None
    ) -> list[tuple[int, float]]:
        """First words in any inflection; only where that finds nothing, words that begin alike."""
        most = candidates(search.top_k)
        counts = {term: self._count(connection, term) for term in search.terms}
        words = _Words(connection, most, documents)
        found = words.proposed({term: count for term, count in counts.items() if count})
        single: Callable[[Sequence[str]], str] = any_of
        if not found and (wanted := beginnings(search.terms)):
            found, single = words.ranked(wanted, MOST_RANKED), beginnings
            counts = dict.fromkeys(search.terms, EVERYWHERE)
        if not found:
            return []
        matched = _matches(connection, found, {single([term]): count for term, count in counts.items()})
        top, sought = max(found.values()), len(search.terms)
        best = [(row, score(matched[row], sought, rank, top)) for row, rank in found.items()]
        return sorted(best, key=lambda one: (-one[1], -found[one[0]], one[0]))

    def _count(self, connection: sqlite3.Connection, term: str) -> int:
        """How many chunks have a word; EVERYWHERE at most."""
        count = self._counts.get(term)
        if count is None:
            if len(self._counts) >= _MOST_COUNTED:
                self._counts.clear()
            bound = (any_of([term]), EVERYWHERE)
            count = self._counts[term] = connection.execute(SQL["count_chunks"], bound).fetchone()[0]
        return count

    # -- vectors ---------------------------------------------------------------------------------------------

    def _nearest(
        self, connection: sqlite3.Connection, vector: array[float], most: int, documents: str | None
    ) -> list[tuple[int, float]]:
        index = self._in_step(connection, len(vector))
        among = None
        if documents is not None:
            among = [row for (row,) in connection.execute(SQL["chunks_of"], (documents,))]
        return [(row, cosine) for row, cosine in index.nearest(vector, most, among) if cosine > 0]

    def _in_step(self, connection: sqlite3.Connection, dimensions: int) -> VectorIndex:
        """The vectors as this transaction sees them."""
        assert self._state is not None
        removed, newest = self._state
        index = self._vectors
        if index is None or index.dimensions != dimensions:
            index = self._vectors = VectorIndex(dimensions)
            self._removed, self._last = removed, 0
        if removed != self._removed:
            rows = connection.execute(SQL["vector_ids"], (self._embedder, self._last))
            index.keep([row for (row,) in rows])
            self._removed = removed
        if (newest or 0) > self._last:
            rows = connection.execute(SQL["newer_vectors"], (self._embedder, self._last, 4 * dimensions))
            while portion := rows.fetchmany(_PORTION):
                index.extend([row for row, _ in portion], [blob for _, blob in portion])
                self._last = portion[-1][0]
            self._last = newest or 0
        return index


class _Words:
    """Proposals of one query.

    Args:
        most: passages that one expression proposes.
        documents: JSON list of the ids of the documents they may be of; None for all.
    """

    def __init__(self, connection: sqlite3.Connection, most: int, documents: str | None) -> None:
        self._connection, self._most = connection, most
        self._suffix = "" if documents is None else "_of"
        self._bound = () if documents is None else (documents,)

    def proposed(self, counts: Mapping[str, int]) -> dict[int, float]:
        """Passages with their BM25, see `retrieval.frequent`."""
        plan = planned(counts)
        found = proposed(plan, self.ranked)
        if plan.everywhere and not found:
            found = self._some(plan.everywhere)
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[: self._most])

    def ranked(self, expression: str, rows: int) -> dict[int, float]:
        """The best of the first `rows` passages that an expression matches."""
        bound = (expression, rows, self._most, *self._bound)
        return dict(self._connection.execute(SQL["ranked" + self._suffix], bound).fetchall())

    def _some(self, words: Sequence[str]) -> dict[int, float]:
        """Words of nearly every passage: in headings, together, or at all; nothing tells more of them."""
        found: dict[int, float] = {}
        for expression in (f"{{title heading}} : ({all_of(words)})", all_of(words), any_of(words)):
            if len(found) < self._most:
                bound = (expression, self._most, *self._bound)
                rows = self._connection.execute(SQL["some" + self._suffix], bound)
                found.update((row, 0.0) for (row,) in rows if row not in found)
        return found


def _matches(
    connection: sqlite3.Connection, found: Iterable[int], singles: Mapping[str, int]
) -> dict[int, int]:
    """How many of the terms each candidate has; a term comes with the number of passages that have it."""
    matched = dict.fromkeys(found, 0)
    wanted, least, most = orjson.dumps(list(matched)).decode(), min(matched), max(matched)
    for single, count in singles.items():
        if not single or not count:
            continue
        if count <= _SEEK * len(matched):
            rows = connection.execute(SQL["has_term_between"], (single, least, most))
        else:
            rows = connection.execute(SQL["has_term"], (single, wanted))
        for (row,) in rows:
            if row in matched:
                matched[row] += 1
    return matched


def _documents(connection: sqlite3.Connection, filters: str) -> str:
    """The ids of the documents whose metadata have these values, as JSON."""
    return orjson.dumps([name for (name,) in connection.execute(SQL["documents_with"], (filters,))]).decode()


def _passage(connection: sqlite3.Connection, row: int, points: float) -> Passage:
    document, text, start, end, heading, metadata = connection.execute(SQL["passage"], (row,)).fetchone()
    return Passage(Chunk(document, text, start, end, heading, orjson.loads(metadata)), points)
