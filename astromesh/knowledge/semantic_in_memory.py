"""Semantic memory in the process, gone when it ends. Ranks texts in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, Field

from astromesh.knowledge.base import Embedder, OwnedPassage
from astromesh.knowledge.passages import (
    PassageRow,
    Scope,
    SemanticOptions,
    prepare_passages,
    to_result,
    vector_space,
)
from astromesh.knowledge.ranking import bm25_scores, candidate_count, fuse_results, term_weights, word_score
from astromesh.knowledge.vectors import VectorIndex
from astromesh.knowledge.words import stems, terms
from astromesh.plugins import Deps
from astromesh.storage.expiry import expire_periodically
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SemanticResult, SessionKey


class InMemoryOptions(SemanticOptions):
    max_passages: int = Field(
        2000,
        ge=1,
        le=20_000,
        description="Passages kept of one principal with one agent; then the oldest are deleted.",
    )


class _Stored(NamedTuple):
    """A passage, and how often it has each stem."""

    row: PassageRow
    stems: Counter[str]


class InMemoryPassages:
    """A SemanticStore without a file. Words are found by their stems, ranked by BM25."""

    Options: ClassVar[type[BaseModel]] = InMemoryOptions

    def __init__(self, options: InMemoryOptions, embedder: Embedder | None, clock: Clock) -> None:
        self._options, self._embedder, self._clock = options, embedder, clock
        self._ids = count(1)
        self._passages: dict[Scope, dict[int, _Stored]] = {}

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        store = cls(options, deps.embedder, deps.clock)
        await deps.resources.shared((cls, id(store)), lambda: expire_periodically(store.expire, deps.clock))
        return store

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        rows = await prepare_passages(passages, self._embedder, self._clock.now(), self._options.ttl)
        scope = Scope(tenant, agent, owner)
        stored = self._passages.setdefault(scope, {})
        for row in rows:
            same = [number for number, old in stored.items() if old.row.hash == row.hash]
            one = _Stored(row, Counter(stems(row.content)))
            stored.update(dict.fromkeys(same, one) or {next(self._ids): one})
        self._delete(scope, list(stored)[: max(0, len(stored) - self._options.max_passages)])

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        scope = Scope(tenant, agent, owner)
        now = self._clock.now()
        alive = {i: p for i, p in self._passages.get(scope, {}).items() if _is_alive(p, now)}
        by_words = _rank_by_words(alive, query)[: candidate_count(top_k)]
        rows = {number: one.row for number, one in alive.items()}
        near, cosines = await self._nearest(rows, query, [one for one, _ in by_words], candidate_count(top_k))
        best = fuse_results(near, by_words, cosines, top_k=top_k, threshold=threshold)
        return tuple(to_result(rows[one].content, rows[one].metadata, score) for one, score in best)

    @property
    def place(self) -> Hashable:
        return id(self)

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        now = self._clock.now()
        found = [
            OwnedPassage(number, scope.agent, one.row.content, orjson.loads(one.row.metadata))
            for scope, stored in self._passages.items()
            if (scope.tenant, scope.owner) == (tenant, owner)
            for number, one in stored.items()
            if number > after and _is_alive(one, now)
        ]
        return tuple(sorted(found, key=lambda one: one.number)[:limit])

    async def erase(self, key: SessionKey) -> int:
        scopes = [s for s in self._passages if (s.tenant, s.agent) == (key.tenant, key.agent)]
        return sum(
            self._delete(s, [i for i, p in self._passages[s].items() if p.row.session_id == key.session_id])
            for s in scopes
        )

    async def erase_owner(self, tenant: str, owner: str) -> int:
        scopes = [s for s in self._passages if (s.tenant, s.owner) == (tenant, owner)]
        return sum(len(self._passages.pop(scope)) for scope in scopes)

    async def expire(self, now: float) -> int:
        return sum(
            self._delete(scope, [i for i, p in stored.items() if not _is_alive(p, now)])
            for scope, stored in self._passages.items()
        )

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        self._passages.clear()

    async def _nearest(
        self, rows: Mapping[int, PassageRow], query: str, found_by_words: Iterable[int], limit: int
    ) -> tuple[list[tuple[int, float]], dict[int, float]]:
        if self._embedder is None or not rows:
            return [], {}
        vector = (await self._embedder.embed([query]))[0]
        index = VectorIndex(len(vector))
        space = vector_space(self._embedder, len(vector))
        same = [(i, p.vector) for i, p in rows.items() if p.vector is not None and p.space == space]
        index.extend([i for i, _ in same], [blob for _, blob in same])
        return index.nearest(vector, limit), index.cosines(found_by_words, vector)

    def _delete(self, scope: Scope, ids: Sequence[int]) -> int:
        for one in ids:
            del self._passages[scope][one]
        return len(ids)


def _is_alive(one: _Stored, now: float) -> bool:
    return not 0 < one.row.expires_at <= now


def _rank_by_words(stored: Mapping[int, _Stored], query: str) -> list[tuple[int, float]]:
    """The ids of passages that have any of the words, with scores in [0, 1], best first."""
    sought = dict.fromkeys(stems(" ".join(terms(query))))
    documents = [one.stems for one in stored.values()]
    ranks = bm25_scores(term_weights(sought, documents), documents)
    top = max(ranks, default=0.0)
    found = [
        (number, word_score(sum(1 for stem in sought if one.stems[stem]), len(sought), rank, top))
        for (number, one), rank in zip(stored.items(), ranks, strict=True)
        if rank > 0
    ]
    return sorted(found, key=lambda pair: -pair[1])
