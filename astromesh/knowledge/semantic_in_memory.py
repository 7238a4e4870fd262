"""Semantic memory in the process, gone when it ends. Ranks texts in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import ClassVar, NamedTuple, Self

from pydantic import BaseModel, Field

from astromesh.knowledge.passages import (
    PassageRow,
    PassageStore,
    Scope,
    SemanticOptions,
    SemanticQuery,
    to_result,
)
from astromesh.knowledge.ranking import (
    bm25_scores,
    candidate_count,
    fuse_results,
    stems,
    term_weights,
    word_score,
)
from astromesh.knowledge.vectors import VectorIndex
from astromesh.plugins import Deps
from astromesh.storage.migrations import expire_periodically
from astromesh.types import SemanticResult, SessionKey


class InMemoryOptions(SemanticOptions):
    max_passages: int = Field(
        2000,
        ge=1,
        le=20_000,
        description="Passages stored of one principal with one agent; beyond that, the oldest are deleted.",
    )


class _Stored(NamedTuple):
    """A passage, and how often it has each stem."""

    row: PassageRow
    stems: Counter[str]


class InMemoryPassages(PassageStore):
    """The plugin `in_memory`: a SemanticStore without a file."""

    Options: ClassVar[type[BaseModel]] = InMemoryOptions

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        table = InMemoryTable()
        await deps.resources.shared((cls, id(table)), lambda: expire_periodically(table.expire, deps.clock))
        return cls(table, options, deps.embedder, deps.clock)


class InMemoryTable:
    """Passages by scope and number. Words are found by their stems and ranked by BM25."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._passages: dict[Scope, dict[int, _Stored]] = {}

    async def add(self, scope: Scope, passages: Sequence[PassageRow], max_passages: int) -> None:
        stored = self._passages.setdefault(scope, {})
        for row in passages:
            same = [number for number, old in stored.items() if old.row.hash == row.hash]
            one = _Stored(row, Counter(stems(row.content)))
            stored.update(dict.fromkeys(same, one) or {next(self._ids): one})
        counted = [number for number, one in stored.items() if one.row.kind == "passage"]
        self._delete(scope, counted[: max(0, len(counted) - max_passages)])

    async def search(self, query: SemanticQuery) -> tuple[SemanticResult, ...]:
        stored = self._passages.get(query.scope, {})
        alive = {number: one for number, one in stored.items() if _is_alive(one, query.now)}
        rows = {number: one.row for number, one in alive.items()}
        limit = candidate_count(query.top_k)
        by_words = _rank_by_words(alive, query.words)[:limit]
        near: list[tuple[int, float]] = []
        cosines: dict[int, float] = {}
        if query.vector and rows:
            index = _index(rows, query)
            near = index.nearest(query.vector, limit)
            cosines = index.cosines((one for one, _ in by_words), query.vector)
        best = fuse_results(near, by_words, cosines, top_k=query.top_k, threshold=query.threshold)
        return tuple(to_result(rows[one].content, rows[one].metadata, score) for one, score in best)

    async def owned(
        self, tenant: str, owner: str, after: int, now: float, limit: int
    ) -> Iterable[tuple[int, str, str, str]]:
        found = [
            (number, scope.agent, one.row.content, one.row.metadata)
            for scope, stored in self._passages.items()
            if (scope.tenant, scope.owner) == (tenant, owner)
            for number, one in stored.items()
            if number > after and _is_alive(one, now)
        ]
        return sorted(found)[:limit]

    async def facts(
        self, tenant: str, owner: str, agent: str, now: float
    ) -> Iterable[tuple[bytes, str, str, str]]:
        found = [
            (one.row.created_at, number, scope.agent, one.row)
            for scope, number, one in self._facts(tenant, owner, agent)
            if _is_alive(one, now)
        ]
        newest = sorted(found, key=lambda each: each[:2], reverse=True)
        return [(row.hash, agent, row.content, row.metadata) for _, _, agent, row in newest]

    async def forget(self, tenant: str, owner: str, agent: str, hashed: bytes) -> int:
        found = [
            (scope, number)
            for scope, number, one in self._facts(tenant, owner, agent)
            if one.row.hash == hashed
        ]
        return sum(self._delete(scope, [number]) for scope, number in found)

    def _facts(self, tenant: str, owner: str, agent: str) -> Iterator[tuple[Scope, int, _Stored]]:
        for scope, stored in self._passages.items():
            if (scope.tenant, scope.owner) == (tenant, owner) and agent in ("", scope.agent):
                yield from ((scope, number, one) for number, one in stored.items() if one.row.kind == "fact")

    async def erase(self, key: SessionKey) -> int:
        scopes = [
            s
            for s in self._passages
            if (s.tenant, s.agent) == (key.tenant, key.agent) and key.owner in ("", s.owner)
        ]
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

    def _delete(self, scope: Scope, ids: Sequence[int]) -> int:
        for one in ids:
            del self._passages[scope][one]
        return len(ids)


def _is_alive(one: _Stored, now: float) -> bool:
    return not 0 < one.row.expires_at <= now


def _index(rows: Mapping[int, PassageRow], query: SemanticQuery) -> VectorIndex:
    """The vectors of the query's space."""
    index = VectorIndex(len(query.vector))
    same = [(i, p.vector) for i, p in rows.items() if p.vector is not None and p.space == query.space]
    index.extend([i for i, _ in same], [blob for _, blob in same])
    return index


def _rank_by_words(stored: Mapping[int, _Stored], words: Sequence[str]) -> list[tuple[int, float]]:
    """The ids of passages that have any of the words, with scores in [0, 1], best first."""
    sought = dict.fromkeys(stems(" ".join(words)))
    documents = [one.stems for one in stored.values()]
    ranks = bm25_scores(term_weights(sought, documents), documents)
    top = max(ranks, default=0.0)
    found = [
        (number, word_score(sum(1 for stem in sought if one.stems[stem]), len(sought), rank, top))
        for (number, one), rank in zip(stored.items(), ranks, strict=True)
        if rank > 0
    ]
    return sorted(found, key=lambda pair: -pair[1])
