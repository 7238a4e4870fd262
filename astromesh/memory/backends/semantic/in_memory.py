"""Passages in the process, gone when it ends."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import count
from typing import ClassVar, Self

import orjson
from pydantic import BaseModel, Field

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.rag import Embedder
from astromesh.abc.stores import OwnedPassage
from astromesh.memory.backends.expiry import expiring
from astromesh.memory.backends.semantic.passage import (
    Passage,
    Scope,
    SemanticOptions,
    prepared,
    result,
    space_of,
)
from astromesh.retrieval.hybrid import candidates, merged
from astromesh.retrieval.vectors import VectorIndex
from astromesh.retrieval.words import score, terms
from astromesh.types import JsonObject, SemanticResult, SessionKey


class InMemoryOptions(SemanticOptions):
    max_passages: int = Field(
        2000, ge=1, le=20_000, description="Passages kept of one principal with one agent; the oldest go."
    )


class InMemoryPassages:
    """A SemanticStore without a file. Words are found as they are written, without inflections."""

    Options: ClassVar[type[BaseModel]] = InMemoryOptions

    def __init__(self, options: InMemoryOptions, embedder: Embedder | None, clock: Clock) -> None:
        self._options, self._embedder, self._clock = options, embedder, clock
        self._ids = count(1)
        self._kept: dict[Scope, dict[int, Passage]] = {}

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        store = cls(options, deps.embedder, deps.clock)
        await deps.resources.shared((cls, id(store)), lambda: expiring(store.expire, deps.clock))
        return store

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        rows = await prepared(passages, self._embedder, self._clock.now(), self._options.ttl)
        scope = Scope(tenant, agent, owner)
        kept = self._kept.setdefault(scope, {})
        for row in rows:
            same = [one for one, old in kept.items() if old.hash == row.hash]
            kept.update(dict.fromkeys(same, row) or {next(self._ids): row})
        self._drop(scope, list(kept)[: max(0, len(kept) - self._options.max_passages)])

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        scope = Scope(tenant, agent, owner)
        now = self._clock.now()
        kept = {i: p for i, p in self._kept.get(scope, {}).items() if not 0 < p.expires_at <= now}
        worded = _worded(kept, query)[: candidates(top_k)]
        near, cosines = await self._near(kept, query, [one for one, _ in worded], candidates(top_k))
        best = merged(near, worded, cosines, top_k=top_k, threshold=threshold)
        return tuple(result(kept[one].content, kept[one].metadata, points) for one, points in best)

    @property
    def place(self) -> Hashable:
        return id(self)

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        now = self._clock.now()
        found = [
            OwnedPassage(number, scope.agent, p.content, orjson.loads(p.metadata))
            for scope, kept in self._kept.items()
            if (scope.tenant, scope.owner) == (tenant, owner)
            for number, p in kept.items()
            if number > after and not 0 < p.expires_at <= now
        ]
        return tuple(sorted(found, key=lambda one: one.number)[:limit])

    async def erase(self, key: SessionKey) -> int:
        scopes = [s for s in self._kept if (s.tenant, s.agent) == (key.tenant, key.agent)]
        return sum(
            self._drop(s, [i for i, p in self._kept[s].items() if p.session_id == key.session_id])
            for s in scopes
        )

    async def erase_owner(self, tenant: str, owner: str) -> int:
        scopes = [s for s in self._kept if (s.tenant, s.owner) == (tenant, owner)]
        return sum(len(self._kept.pop(scope)) for scope in scopes)

    async def expire(self, now: float) -> int:
        return sum(
            self._drop(scope, [i for i, p in kept.items() if 0 < p.expires_at <= now])
            for scope, kept in self._kept.items()
        )

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        self._kept.clear()

    async def _near(
        self, kept: dict[int, Passage], query: str, worded: Iterable[int], most: int
    ) -> tuple[list[tuple[int, float]], dict[int, float]]:
        if self._embedder is None or not kept:
            return [], {}
        vector = (await self._embedder.embed([query]))[0]
        index = VectorIndex(len(vector))
        space = space_of(self._embedder, len(vector))
        same = [(i, p.vector) for i, p in kept.items() if p.vector is not None and p.space == space]
        index.extend([i for i, _ in same], [blob for _, blob in same])
        return index.nearest(vector, most), index.cosines(worded, vector)

    def _drop(self, scope: Scope, ids: Sequence[int]) -> int:
        for one in ids:
            del self._kept[scope][one]
        return len(ids)


def _worded(kept: dict[int, Passage], query: str) -> list[tuple[int, float]]:
    sought = set(terms(query))
    found: list[tuple[int, float]] = []
    for one, passage in kept.items():
        if matched := len(sought & set(terms(passage.content, most=None))):
            found.append((one, score(matched, len(sought), 1.0, 1.0)))
    return sorted(found, key=lambda pair: -pair[1])
