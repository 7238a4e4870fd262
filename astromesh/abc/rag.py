"""The knowledge seam: documents in, passages with their source out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from astromesh.types import JsonObject

#: told how many of how many documents are done
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Document:
    """A source text.

    Args:
        id: stable name within the pipeline, e.g. the path relative to the folder.
        media_type: e.g. `text/markdown`.
        data: a file of that type instead of `text`; a pipeline makes text of it.
    """

    id: str
    text: str
    title: str = ""
    media_type: str = "text/markdown"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""


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

    def to_json(self) -> JsonObject:
        """With its citation: document, heading, and character offsets into the document's text."""
        chunk = self.chunk
        return {
            "document": chunk.document,
            "title": chunk.metadata.get("title", ""),
            "heading": chunk.heading,
            "start": chunk.start,
            "end": chunk.end,
            "score": round(self.score, 4),
            "text": chunk.text,
        }


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
    """A document with its chunks, ready to be stored.

    Args:
        vectors: one for each chunk, or none at all.
    """

    document: Document
    known: Known
    chunks: tuple[Chunk, ...]
    vectors: tuple[array[float], ...] = ()


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
        self,
        query: str,
        *,
        top_k: int,
        filters: Mapping[str, Any] | None = None,
        vector: array[float] | None = None,
    ) -> tuple[Passage, ...]:
        """The best passages, best first. Any text is a sound query; none found is an empty tuple.

        Args:
            query: its words are sought; empty for vectors only.
            vector: the nearest ones are sought, too, among those of the same embedder; with words, both
                rankings are one by reciprocal rank fusion.
        """

    async def settle(self) -> None:
        """After documents were taken in: builds what makes searching fast, where it is not there yet."""

    async def ping(self) -> None:
        """Raises StoreError when the store does not answer."""


class ChunkStores(Protocol):
    """What a `vector_stores` plugin opens; `deps.embedder` is the one whose vectors it is given."""

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

    async def ingest(self, documents: Sequence[Document], progress: Progress | None = None) -> Ingested:
        """Adds or replaces these documents; unchanged ones (by content hash) cost nothing."""

    async def ingest_path(self, path: Path, progress: Progress | None = None) -> Ingested:
        """`ingest` of a file, or of all files of a folder that can be read."""

    async def remove(self, ids: Sequence[str]) -> Ingested:
        """Removes documents that were handed in; ids that are not there are no error."""

    async def refresh(self, progress: Progress | None = None) -> Ingested:
        """Reads the configured sources again; what vanished there is removed."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


class Reader(Protocol):
    """What a `readers` plugin is: the text of one kind of file, as Markdown."""

    #: changes whenever the same file would be read differently, so that it is read anew
    fingerprint: str

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        """The text, and what the file says of itself (`title`, …).

        Raises:
            ValueError: the file is broken or of another kind; the message says in what way.
        """
