"""What all semantic stores share: options, a passage on its way into a store, and how it is embedded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.rag import Embedder
from astromesh.errors import InvalidInput, ProviderError
from astromesh.types import JsonObject, SemanticResult

#: passages are counted, and those beyond the bound deleted, after this many additions to a scope
TRIM_EVERY = 100

log = structlog.get_logger("astromesh.memory")


class SemanticOptions(BaseModel):
    """Options that all semantic stores share."""

    model_config = ConfigDict(extra="forbid")

    ttl: int = Field(0, ge=0, description="Seconds until a passage is deleted; 0 never.")
    max_passages: int = Field(
        100_000, ge=1, description="Passages kept of one principal with one agent; beyond, the oldest go."
    )


class Scope(NamedTuple):
    """Whose passages: every search and every change names all three."""

    tenant: str
    agent: str
    owner: str


class Passage(NamedTuple):
    """A passage as it is stored.

    Args:
        hash: of the content: the same content is one passage.
        metadata: JSON object.
        expires_at: seconds since the epoch, 0 never.
        space: names what `vector` may be compared with; empty where there is no vector.
        vector: float32, little-endian.
    """

    hash: bytes
    session_id: str
    content: str
    metadata: str
    created_at: float
    expires_at: float
    space: str = ""
    vector: bytes | None = None


def space_of(embedder: Embedder, dimensions: int) -> str:
    return f"{embedder.fingerprint}:{dimensions}"


async def prepared(
    passages: Sequence[tuple[str, JsonObject]], embedder: Embedder | None, now: float, ttl: float
) -> list[Passage]:
    """Passages ready to be stored; one that could not be embedded is found by its words.

    Raises:
        InvalidInput: a text holds half of a surrogate pair.
    """
    kept = [p for p in passages if p[0].strip()]
    rows = [_plain(content, metadata, now, now + ttl if ttl else 0.0) for content, metadata in kept]
    if embedder is None or not rows:
        return rows
    try:
        vectors = await embedder.embed([content for content, _ in kept])
    except ProviderError as error:
        log.warning("passages_not_embedded", count=len(rows), code=error.code, error=str(error))
        return rows
    return [
        row._replace(space=space_of(embedder, len(vector)), vector=vector.tobytes())
        for row, vector in zip(rows, vectors, strict=True)
    ]


def _plain(content: str, metadata: JsonObject, now: float, expires_at: float) -> Passage:
    try:
        digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
        about = orjson.dumps(metadata).decode()
    except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
        raise InvalidInput("The text holds half of a surrogate pair, which is no character.") from error
    return Passage(digest, str(metadata.get("session_id", "")), content, about, now, expires_at)


def result(content: str, metadata: str, score: float) -> SemanticResult:
    """A found passage, with its source as the metadata name it."""
    about: JsonObject = orjson.loads(metadata)
    return SemanticResult(content, round(score, 4), str(about.get("source", "")), about)
