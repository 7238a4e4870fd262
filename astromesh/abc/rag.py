"""The knowledge seam: documents in, passages with their source out."""

from __future__ import annotations

from array import array
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
    """Cuts a document into chunks; `document.text[chunk.start : chunk.end] == chunk.text` for each."""

    #: changes whenever the same document would be cut differently, so that it is cut anew
    fingerprint: str

    def split(self, document: Document) -> Sequence[Chunk]: ...


@dataclass(frozen=True, slots=True)
class Known:
    """What a store holds of a document.

    Args:
        hash: of the content and of how it was cut.
        stamp: what a source saw last, e.g. a file's times and size; empty for documents that were handed in.
    """

    hash: str
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A document with its chunks, ready to be stored."""

    document: Document
    known: Known
    chunks: tuple[Chunk, ...]


class ChunkStore(Protocol):
    """The chunks of one pipeline."""

    async def known(self) -> Mapping[str, Known]:
        """Every stored document by its id."""

    async def replace(self, documents: Sequence[Indexed]) -> None:
        """Stores these documents in place of what was stored under their ids, all or none."""

    async def touch(self, stamps: Mapping[str, str]) -> None:
        """New stamps for documents whose content is what it was."""

    async def remove(self, ids: Sequence[str]) -> None: ...

    async def search(
        self, query: str, *, top_k: int, filters: Mapping[str, Any] | None = None
    ) -> tuple[Passage, ...]:
        """The best passages by words, best first. Any text is a sound query; none found is an empty tuple."""

    async def ping(self) -> None:
        """Raises StoreError when the store does not answer."""


class ChunkStores(Protocol):
    """What a `vector_stores` plugin opens."""

    async def collection(self, pipeline: str) -> ChunkStore: ...

    async def close(self) -> None: ...


class Embedder(Protocol):
    """Texts to unit vectors of `dimensions` floats."""

    #: 0 until the first answer where the model's size is not known beforehand
    dimensions: int
    #: False for hashing embedders, whose nearness is that of words and not of meaning
    semantic: bool
    #: names the space of its vectors: those of different spaces are never compared, e.g. `openai/MODEL`
    fingerprint: str

    async def embed(self, texts: Sequence[str]) -> Sequence[array[float]]:
        """One vector (typecode `f`) for each text, in their order; of any number of texts.

        Raises:
            ProviderError: the service did not answer, or not with vectors.
        """

    async def ping(self) -> None:
        """Raises ProviderError when the service does not answer."""

    async def close(self) -> None: ...


class Knowledge(Protocol):
    """A RAG pipeline as tools and routes see it."""

    name: str

    async def query(
        self, query: str, *, top_k: int | None = None, filters: Mapping[str, Any] | None = None
    ) -> tuple[Passage, ...]:
        """The best passages, best first, each with its source; nothing found is an empty tuple.

        Args:
            query: any text.
            top_k: how many at most; None for what the pipeline's `retrieval.top_k` says.
            filters: only documents whose metadata have these values; a list means any of its values.
                `document` is the document's id.
        """

    async def ingest(self, documents: Sequence[Document]) -> Ingested:
        """Adds or replaces these documents; unchanged ones (by content hash) cost nothing."""

    async def refresh(self) -> Ingested:
        """Reads the configured sources again; what vanished there is removed."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
