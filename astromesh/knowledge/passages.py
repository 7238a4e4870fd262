"""Options and rows that all semantic stores share, and the embedding of passages."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import InvalidInput, ProviderError
from astromesh.knowledge.base import Embedder
from astromesh.types import JsonObject, SemanticResult

#: after this many additions to a scope, passages beyond its bound are deleted
TRIM_EVERY = 100

log = structlog.get_logger("astromesh.memory")


class SemanticOptions(BaseModel):
    """Options that all semantic stores share."""

    model_config = ConfigDict(extra="forbid")

    ttl: int = Field(0, ge=0, description="Seconds until a passage is deleted; 0 never.")
    max_passages: int = Field(
        100_000,
        ge=1,
        description="Passages kept of one principal with one agent; then the oldest are deleted.",
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
        space: name of the vector space; empty if there is no vector.
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


def vector_blob(vector: array[float]) -> bytes:
    """Float32, little-endian."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()


def vector_space(embedder: Embedder, dimensions: int) -> str:
    return f"{embedder.fingerprint}:{dimensions}"


async def prepare_passages(
    passages: Sequence[tuple[str, JsonObject]], embedder: Embedder | None, now: float, ttl: float
) -> list[PassageRow]:
    """Returns rows to store. Passages that cannot be embedded have no vector and are found by their words.

    Raises:
        InvalidInput: a text contains half of a surrogate pair.
    """
    texts = [p for p in passages if p[0].strip()]
    rows = [_text_row(content, metadata, now, now + ttl if ttl else 0.0) for content, metadata in texts]
    if embedder is None or not rows:
        return rows
    try:
        vectors = await embedder.embed([content for content, _ in texts])
    except ProviderError as error:
        log.warning("passages_not_embedded", count=len(rows), code=error.code, error=str(error))
        return rows
    return [
        row._replace(space=vector_space(embedder, len(vector)), vector=vector_blob(vector))
        for row, vector in zip(rows, vectors, strict=True)
    ]


def _text_row(content: str, metadata: JsonObject, now: float, expires_at: float) -> PassageRow:
    try:
        digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
        encoded = orjson.dumps(metadata).decode()
    except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
        raise InvalidInput("The text contains half of a surrogate pair, which is not a character.") from error
    return PassageRow(digest, str(metadata.get("session_id", "")), content, encoded, now, expires_at)


def to_result(content: str, metadata: str, score: float) -> SemanticResult:
    """A found passage with its source."""
    values: JsonObject = orjson.loads(metadata)
    return SemanticResult(content, round(score, 4), str(values.get("source", "")), values)
