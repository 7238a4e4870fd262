"""Semantic and episodic memory in lists, whose content a test can read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from astromesh.knowledge.base import OwnedPassage, StoredFact
from astromesh.memory.base import OwnedEvent
from astromesh.types import JsonObject, SemanticResult, SessionKey


class InMemorySemanticStore:
    """A `SemanticStore`: a passage's score is the share of the query's words that it holds."""

    def __init__(self) -> None:
        self.passages: list[tuple[str, str, str, str, JsonObject]] = []

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        self.passages += [(tenant, agent, owner, content, metadata) for content, metadata in passages]

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        found = [
            SemanticResult(content, _score(query, content), str(metadata.get("source", "")), metadata)
            for *place, content, metadata in self.passages
            if place == [tenant, agent, owner]
        ]
        near = [result for result in found if result.score and result.score >= threshold]
        return tuple(sorted(near, key=lambda result: -result.score)[:top_k])

    @property
    def place(self) -> Hashable:
        return id(self)

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        numbered = [
            OwnedPassage(number, agent, content, metadata)
            for number, (of, agent, who, content, metadata) in enumerate(self.passages, 1)
            if (of, who) == (tenant, owner) and number > after
        ]
        return tuple(numbered[:limit])

    async def facts(self, tenant: str, owner: str, *, agent: str = "") -> tuple[StoredFact, ...]:
        return ()

    async def forget(self, tenant: str, owner: str, fact: str, *, agent: str = "") -> int:
        return 0

    async def erase(self, key: SessionKey) -> int:
        kept = [p for p in self.passages if (p[0], p[1], p[4].get("session_id"), p[2]) != tuple(key)]
        count, self.passages = len(self.passages) - len(kept), kept
        return count

    async def erase_owner(self, tenant: str, owner: str) -> int:
        kept = [p for p in self.passages if (p[0], p[2]) != (tenant, owner)]
        count, self.passages = len(self.passages) - len(kept), kept
        return count

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Keeps its content for the test."""


class InMemoryEpisodicStore:
    """An `EpisodicStore`."""

    def __init__(self) -> None:
        self.events: list[tuple[SessionKey, str, JsonObject]] = []

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        self.events += [(key, owner, event) for event in events]

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        found = [event for of, who, event in self.events if of == key and owner in (None, who)]
        return tuple(found[-limit:])

    @property
    def place(self) -> Hashable:
        return id(self)

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        numbered = [
            OwnedEvent(number, key.agent, key.session_id, event)
            for number, (key, who, event) in enumerate(self.events, 1)
            if (key.tenant, who) == (tenant, owner) and number > after
        ]
        return tuple(numbered[:limit])

    async def erase(self, key: SessionKey) -> None:
        self.events = [e for e in self.events if e[0] != key]

    async def erase_owner(self, tenant: str, owner: str) -> int:
        kept = [e for e in self.events if (e[0].tenant, e[1]) != (tenant, owner)]
        count, self.events = len(self.events) - len(kept), kept
        return count

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Keeps its content for the test."""


def _score(query: str, content: str) -> float:
    words = set(query.lower().split())
    return len(words & set(content.lower().split())) / len(words) if words else 0.0
