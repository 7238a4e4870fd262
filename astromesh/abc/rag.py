"""The knowledge seam: documents in, passages with their source out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """A source text.

    Args:
        id: stable name within the pipeline, e.g. the path relative to the folder.
        media_type: e.g. `text/markdown`.
    """

    id: str
    text: str
    title: str = ""
    media_type: str = "text/markdown"
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document. `start` and `end` are character offsets into the document's text."""

    document: str
    text: str
    start: int
    end: int
    heading: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passage:
    """A found chunk with its citation. `score` is in [0, 1], higher is better."""

    chunk: Chunk
    score: float


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest did, in documents."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0


class Chunker(Protocol):
    def split(self, document: Document) -> Sequence[Chunk]: ...


class Embedder(Protocol):
    """Texts to unit vectors of `dimensions` floats."""

    dimensions: int
    #: False for hashing embedders, whose nearness is that of words and not of meaning
    semantic: bool

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...

    async def close(self) -> None: ...


class Knowledge(Protocol):
    """A RAG pipeline as tools and routes see it."""

    name: str

    async def query(
        self, query: str, *, top_k: int = 5, filters: Mapping[str, Any] | None = None
    ) -> tuple[Passage, ...]: ...

    async def ingest(self, documents: Sequence[Document]) -> Ingested:
        """Adds or replaces these documents; unchanged ones (by content hash) cost nothing."""

    async def refresh(self) -> Ingested:
        """Reads the configured sources again; what vanished there is removed."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
