"""The knowledge protocols: documents, chunks, passages, embedders, chunk stores and semantic stores."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from astromesh.types import DEFAULT_TENANT, JsonObject, SemanticResult, SessionKey

#: whose documents a list has
DocumentsOf: TypeAlias = Literal["tenant", "sources", "shared"]
#: the owner of the documents of `sources`, which every tenant reads; other owners are tenants
OPERATOR = ""
#: called with the number of finished documents and the number of all documents
ProgressCallback: TypeAlias = Callable[[int, int], None]
#: media types of files that become Markdown
_OFFICE = "application/vnd.openxmlformats-officedocument"
DOCX = f"{_OFFICE}.wordprocessingml.document"
PPTX = f"{_OFFICE}.presentationml.presentation"
XLSX = f"{_OFFICE}.spreadsheetml.sheet"
SOURCE_CODE = "text/x-source-code"
_WEB_ADDRESS = re.compile(r"https?://[^\s\x00-\x1f<>\"]{1,2000}")


@dataclass(frozen=True, slots=True)
class Document:
    """A source text.

    Args:
        id: stable name within the pipeline, e.g. the path relative to the folder.
        media_type: e.g. `text/markdown`.
        data: a file of that type instead of `text`; the pipeline converts it to text.
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
        """The passage with its document, heading, and character offsets into the document's text.

        `url` is where the document comes from, if its metadata say so.
        """
        chunk = self.chunk
        url = source_url(chunk.metadata)
        return {
            "document": chunk.document,
            "title": chunk.metadata.get("title", ""),
            "heading": chunk.heading,
            "start": chunk.start,
            "end": chunk.end,
            "score": round(self.score, 4),
            "text": chunk.text,
            **({"url": url} if url else {}),
        }


def source_url(metadata: Mapping[str, Any]) -> str:
    """The web address that a document's metadata name as `url` or `source_url`; empty if there is none."""
    urls = (metadata.get(key) for key in ("url", "source_url"))
    return next((one for one in urls if isinstance(one, str) and _WEB_ADDRESS.fullmatch(one)), "")


class UnreadableDocument(NamedTuple):
    """A document that was left out. Args: reason: a sentence for its sender."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class IngestReport:
    """The result of an ingest, in numbers of documents. Args: unreadable: those that were left out."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    unreadable: tuple[UnreadableDocument, ...] = ()

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(
            self.added + other.added,
            self.changed + other.changed,
            self.removed + other.removed,
            self.unchanged + other.unchanged,
            self.unreadable + other.unreadable,
        )


class Chunker(Protocol):
    """Cuts a document into chunks; `document.text[chunk.start : chunk.end] == chunk.text` for each.

    A chunker may have `parent_tokens`: a query then returns the section around each found chunk, with at most
    so many tokens.
    """

    #: changes whenever the same document would be cut differently; it is then cut again
    fingerprint: str

    def split(self, document: Document) -> Sequence[Chunk]: ...


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """The stored version of a document.

    Args:
        hash: of the content and of the chunker's fingerprint.
        stamp: of the source's file, e.g. its times and size; empty for documents that a caller ingested.
    """

    hash: str
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A document with its chunks, ready to be stored.

    Args:
        vectors: one for each chunk, or none at all.
    """

    document: Document
    known: DocumentVersion
    chunks: tuple[Chunk, ...]
    vectors: tuple[array[float], ...] = ()


class ListedDocument(NamedTuple):
    """A stored document in a list. Args: metadata: with its `title`."""

    id: str
    metadata: JsonObject


class Piece(NamedTuple):
    """A stored chunk. Args: start: its place in the document's text."""

    start: int
    text: str
    heading: str


class StoredDocument(NamedTuple):
    """A stored document with its text.

    Args:
        metadata: with its `title`.
        pieces: its chunks, in order.
    """

    id: str
    metadata: JsonObject
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The text whose offsets passages have. What no passage holds, e.g. front matter, is line breaks."""
        parts: list[str] = []
        end = 0
        for start, piece, _ in self.pieces:
            parts += ("\n" * (start - end), piece[max(end - start, 0) :])
            end = max(end, start + len(piece))
        return "".join(parts)


class ForeignDocument(NamedTuple):
    """A document without vectors of the present embedder. Args: embedder: whose it has; empty for none."""

    owner: str
    id: str
    embedder: str


class ChunkStore(Protocol):
    """The chunks of one pipeline. A document is named by its owner and its id."""

    async def known(self, owner: str = OPERATOR) -> Mapping[str, DocumentVersion]:
        """Every stored document of an owner by its id."""

    async def documents(
        self, owner: str = OPERATOR, *, after: str = "", limit: int = 100
    ) -> tuple[ListedDocument, ...]:
        """Returns documents of an owner whose ids come after `after`, by id."""

    async def document(self, name: str, owner: str = OPERATOR) -> StoredDocument | None:
        """Returns a document of an owner, None if there is none with this id."""

    async def replace(self, documents: Sequence[IndexedDocument], owner: str = OPERATOR) -> None:
        """Replaces the documents stored under these ids, all or none."""

    async def touch(self, stamps: Mapping[str, str], owner: str = OPERATOR) -> None:
        """Stores new stamps of documents whose content has not changed."""

    async def remove(self, ids: Sequence[str], owner: str = OPERATOR) -> None: ...

    async def search(
        self,
        query: str,
        *,
        top_k: int,
        owners: Sequence[str] = (OPERATOR,),
        filters: Mapping[str, Any] | None = None,
        vector: array[float] | None = None,
    ) -> tuple[Passage, ...]:
        """Returns the best passages, best first. Any text is a valid query.

        Args:
            query: its words are searched; empty for vectors only.
            owners: whose documents are searched; each once. Others have no effect on the passages.
            vector: the nearest vectors of the same embedder are searched, too. With words, both rankings are
                fused by reciprocal rank fusion.
        """

    async def foreign_documents(self) -> tuple[ForeignDocument, ...]:
        """Returns the documents of tenants that have no vectors of this embedder, by owner and id.

        Documents of folders are left out: the next refresh embeds them.
        """

    async def settle(self) -> None:
        """Builds missing indexes. Callers call it after an ingest."""

    async def ping(self) -> None:
        """Raises: StoreError: the store does not answer."""


def wanted_values(filters: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each filter as a list."""
    return {key: value if isinstance(value, list) else [value] for key, value in filters.items()}


class ChunkStores(Protocol):
    """What a `vector_stores` plugin opens; `deps.embedder` makes the vectors that it stores."""

    async def collection(self, pipeline: str) -> ChunkStore: ...

    async def close(self) -> None: ...


class Embedder(Protocol):
    """Embeds texts as unit vectors of `dimensions` floats.

    An embedder with `is_loaded_on_demand = True` loads a model with its first text. A pipeline gives it none
    before the first question.
    """

    #: 0 until the first answer if the size is not configured
    dimensions: int
    #: False for hashing embedders: near vectors mean similar words, not similar meaning
    semantic: bool
    #: names the vector space, e.g. `openai/MODEL`; vectors of different spaces are never compared
    fingerprint: str

    async def embed(self, texts: Sequence[str]) -> Sequence[array[float]]:
        """Returns one vector (typecode `f`) for each text, in their order. Any number of texts is allowed.

        Raises:
            ProviderError: the service does not answer, or not with vectors.
        """

    async def ping(self) -> None:
        """Raises: ProviderError: the service does not answer."""

    async def close(self) -> None: ...


class KnowledgePipeline(Protocol):
    """A RAG pipeline as tools and routes see it.

    A tenant finds its own documents, those of the pipeline's `sources`, and those of the tenant that shares
    its documents in this pipeline. It changes and removes its own documents only.
    """

    name: str

    async def query(
        self,
        query: str,
        *,
        tenant: str = DEFAULT_TENANT,
        top_k: int | None = None,
        filters: Mapping[str, Any] | None = None,
    ) -> tuple[Passage, ...]:
        """Returns the best passages, best first, each with its source.

        Args:
            query: any text.
            tenant: who asks.
            top_k: passages at most; None for the pipeline's `retrieval.top_k`.
            filters: metadata values that a document must have; a list means any of its values.
                `document` is the document's id.
        """

    async def documents(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        of: DocumentsOf = "tenant",
        after: str = "",
        limit: int = 100,
    ) -> tuple[ListedDocument, ...]:
        """Returns documents that a tenant may read, by id.

        Args:
            of: the tenant's own documents, those of the `sources`, or those that another tenant shares.
            after: the id behind which the list begins.
        """

    async def document(self, name: str, *, tenant: str = DEFAULT_TENANT) -> StoredDocument | None:
        """Returns a document that a tenant may read: its own, else one of the sources, else a shared one."""

    async def ingest(
        self,
        documents: Sequence[Document],
        progress: ProgressCallback | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> IngestReport:
        """Adds or replaces documents of a tenant; documents with an unchanged hash are skipped.

        Documents that cannot be read are left out and reported, unless there is no other one.
        """

    async def ingest_path(
        self, path: Path, progress: ProgressCallback | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> IngestReport:
        """Ingests a file, or all files of a folder that can be read, as documents of a tenant."""

    async def remove(self, ids: Sequence[str], *, tenant: str = DEFAULT_TENANT) -> IngestReport:
        """Removes documents of a tenant; unknown ids, and ids of other tenants, are ignored."""

    async def refresh(
        self, progress: ProgressCallback | None = None, *, load_model: bool = True
    ) -> IngestReport:
        """Reads the configured sources again; documents of deleted files are removed.

        Args:
            load_model: False: an embedder that loads its model on demand is not used. What is new is found by
                its words until the first question, which adds the vectors.
        """

    async def embed_again(self, progress: ProgressCallback | None = None) -> IngestReport:
        """Embeds documents of all tenants that have no vectors of the present embedder.

        A call that was interrupted can be repeated: it continues with the rest.

        Raises:
            ProviderError: they cannot be embedded; batches stored before stay.
        """

    async def warning(self, *, tenant: str | None = None) -> str:
        """Says which documents are not searched by vectors, and what to do; empty if all are.

        Args:
            tenant: whose queries; None for those of all tenants.
        """

    async def ping(self) -> str | None:
        """Returns what the operator should know, None for nothing."""

    async def close(self) -> None: ...


class DocumentReader(Protocol):
    """What a `readers` plugin is: it converts one kind of file to Markdown."""

    #: changes whenever the same file would be read differently; it is then read again
    fingerprint: str

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        """Returns the text and the file's own metadata (`title`, …).

        Raises:
            ValueError: the file is broken or of another kind; the message says why.
        """


class OwnedPassage(NamedTuple):
    """A passage in the data export of a principal. Args: number: the value of `after` for the next page."""

    number: int
    agent: str
    content: str
    metadata: JsonObject


class StoredFact(NamedTuple):
    """A fact about a principal.

    Args:
        id: the same for the same sentence with every agent.
        metadata: `source` is `fact`; `since` and `stated` are the dates of its first and newest statement.
    """

    id: str
    agent: str
    content: str
    metadata: JsonObject


class SemanticStore(Protocol):
    """Passages found by meaning or words. Every search names tenant, agent and owner, and finds only theirs.

    Args:
        place: where the passages are stored; equal for stores of several agents that share it.
    """

    @property
    def place(self) -> Hashable: ...

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        """Stores passages with their metadata; the same content again replaces the metadata of its passage.

        Args:
            passages: content and metadata. `source` names the origin in a word, `session_id` and `run_id`
                name the conversation. Passages whose source is `fact` are facts: `facts` returns them, and
                they do not count as passages.
        """

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        """Returns the best passages, best first. Any text is a valid query.

        Args:
            threshold: least score: the cosine if there are vectors, else the share of the query's words.

        Raises:
            ProviderError: the query cannot be embedded now.
            StoreUnavailable: the store does not answer.
        """

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        """Returns passages of one principal with number > after, of all agents of the place, by number."""

    async def facts(self, tenant: str, owner: str, *, agent: str = "") -> tuple[StoredFact, ...]:
        """Returns the facts about one principal, the newest statement first.

        Args:
            agent: whose facts; empty for those of all agents of the place.
        """

    async def forget(self, tenant: str, owner: str, fact: str, *, agent: str = "") -> int:
        """Deletes a fact by its id and returns how many agents had it."""

    async def erase(self, key: SessionKey) -> int:
        """Deletes the passages and facts of one session and returns their number."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the passages of one principal and returns their number."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


Vector: TypeAlias = "array[float]"


def vector_blob(vector: array[float]) -> bytes:
    """The floats of a vector as databases store them: float32, little-endian."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()
