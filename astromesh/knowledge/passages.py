"""Semantic memory: what all its stores share."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import InvalidInput, ProviderError
from astromesh.knowledge.base import Embedder, OwnedPassage, StoredFact, vector_blob
from astromesh.knowledge.ranking import stems, terms
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SemanticResult, SessionKey

#: after this many additions to a scope, passages beyond its bound are deleted
TRIM_EVERY = 100

_FACT_ID = re.compile(r"[0-9a-f]{32}")

log = get_logger("astromesh.memory")


class SemanticOptions(BaseModel):
    """Options that all semantic stores share."""

    model_config = ConfigDict(extra="forbid")

    ttl: int = Field(0, ge=0, description="Seconds until a passage is deleted; 0 never.")
    max_passages: int = Field(
        100_000,
        ge=1,
        description="Passages stored of one principal with one agent; beyond that, the oldest are deleted.",
    )


class Scope(NamedTuple):
    """The owner of passages; every search and every change names all three."""

    tenant: str
    agent: str
    owner: str


class PassageRow(NamedTuple):
    """A stored passage.

    Args:
        hash: of the content; the same content is one passage.
        metadata: JSON object.
        expires_at: seconds since the epoch, 0 never.
        kind: `passage` or `fact`.
        space: name of the vector space; empty if there is no vector.
        vector: float32, little-endian.
    """

    hash: bytes
    session_id: str
    content: str
    metadata: str
    created_at: float
    expires_at: float
    kind: str = "passage"
    space: str = ""
    vector: bytes | None = None


class SemanticQuery(NamedTuple):
    """A search within a scope.

    Args:
        words: to search for, see `words.terms`.
        vector: of the query; empty for words only.
        space: name of the vector space; empty if there is no vector.
        threshold: least score of a result.
        now: seconds since the epoch.
    """

    scope: Scope
    words: tuple[str, ...]
    vector: array[float]
    space: str
    top_k: int
    threshold: float
    now: float


class PassageTable(Protocol):
    """The passages of one database, which all stores that name it share."""

    def __hash__(self) -> int: ...

    async def add(self, scope: Scope, passages: Sequence[PassageRow], max_passages: int) -> None:
        """Stores passages. The oldest of the scope are deleted beyond `max_passages`, now or soon.

        Facts do not count, and stay.
        """

    async def search(self, query: SemanticQuery) -> tuple[SemanticResult, ...]: ...

    async def owned(self, tenant: str, owner: str, after: int, now: float, limit: int) -> Iterable[Any]:
        """Returns number, agent, content and JSON metadata of passages of one principal, by number."""

    async def facts(self, tenant: str, owner: str, agent: str, now: float) -> Iterable[Any]:
        """Returns hash, agent, content and JSON metadata of facts, the newest first."""

    async def forget(self, tenant: str, owner: str, agent: str, hashed: bytes) -> int: ...

    async def erase(self, key: SessionKey) -> int: ...

    async def erase_owner(self, tenant: str, owner: str) -> int: ...

    async def ping(self) -> None: ...


class PassageStore:
    """A SemanticStore over a table of passages.

    Args:
        embedder: None for words only.
    """

    def __init__(
        self, table: PassageTable, options: SemanticOptions, embedder: Embedder | None, clock: Clock
    ) -> None:
        self._table, self._options, self._embedder, self._clock = table, options, embedder, clock

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        now, ttl = self._clock.now(), self._options.ttl
        texts = [(text, metadata) for text, metadata in passages if text.strip()]
        rows = [_text_row(text, metadata, now, now + ttl if ttl else 0.0) for text, metadata in texts]
        if rows:
            scope = Scope(tenant, agent, owner)
            await self._table.add(scope, await self._embed(rows), self._options.max_passages)

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        vector, space = array("f"), ""
        if self._embedder is not None:
            vector = (await self._embedder.embed([query]))[0]
            space = _space(self._embedder, vector)
        scope, now = Scope(tenant, agent, owner), self._clock.now()
        found = await self._table.search(
            SemanticQuery(scope, terms(query), vector, space, top_k, threshold, now)
        )
        return tuple(replace(one, why=why_recalled(query, one)) for one in found)

    @property
    def place(self) -> Hashable:
        return self._table

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        rows = await self._table.owned(tenant, owner, after, self._clock.now(), limit)
        return tuple(
            OwnedPassage(number, agent, content, orjson.loads(metadata))
            for number, agent, content, metadata in rows
        )

    async def facts(self, tenant: str, owner: str, *, agent: str = "") -> tuple[StoredFact, ...]:
        rows = await self._table.facts(tenant, owner, agent, self._clock.now())
        return tuple(
            StoredFact(hashed.hex(), agent, content, orjson.loads(metadata))
            for hashed, agent, content, metadata in rows
        )

    async def forget(self, tenant: str, owner: str, fact: str, *, agent: str = "") -> int:
        if not _FACT_ID.fullmatch(fact):
            return 0
        return await self._table.forget(tenant, owner, agent, bytes.fromhex(fact))

    async def erase(self, key: SessionKey) -> int:
        return await self._table.erase(key)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._table.erase_owner(tenant, owner)

    async def ping(self) -> None:
        await self._table.ping()

    async def close(self) -> None:
        """Does nothing: the table closes with the runtime's resources."""

    async def _embed(self, rows: Sequence[PassageRow]) -> Sequence[PassageRow]:
        """Adds vectors. Passages that cannot be embedded now have none and are found by their words."""
        if self._embedder is None:
            return rows
        try:
            vectors = await self._embedder.embed([row.content for row in rows])
        except ProviderError as error:
            log.warning("passages_not_embedded", count=len(rows), code=error.code, error=str(error))
            return rows
        return [
            row._replace(space=_space(self._embedder, vector), vector=vector_blob(vector))
            for row, vector in zip(rows, vectors, strict=True)
        ]


def _space(embedder: Embedder, vector: Sequence[float]) -> str:
    return f"{embedder.fingerprint}:{len(vector)}"


def _text_row(content: str, metadata: JsonObject, now: float, expires_at: float) -> PassageRow:
    """Raises: InvalidInput: the text contains half of a surrogate pair."""
    kind = "fact" if metadata.get("source") == "fact" else "passage"
    # an answer with the words of a fact is a passage beside it
    person = b"fact" if kind == "fact" else b""
    try:
        digest = hashlib.blake2b(content.encode(), digest_size=16, person=person).digest()
        encoded = orjson.dumps(metadata).decode()
    except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
        raise InvalidInput("The text contains half of a surrogate pair, which is not a character.") from error
    return PassageRow(digest, str(metadata.get("session_id", "")), content, encoded, now, expires_at, kind)


def why_recalled(query: str, found: SemanticResult) -> JsonObject:
    """Returns the similarity of a passage, and the words of the query that it has, in any inflection."""
    has = set(stems(found.content))
    return {"similarity": found.score, "words": [word for word in terms(query) if has & set(stems(word))]}


def to_result(content: str, metadata: str, score: float) -> SemanticResult:
    """A found passage with its source."""
    values: JsonObject = orjson.loads(metadata)
    return SemanticResult(content, round(score, 4), str(values.get("source", "")), values)
