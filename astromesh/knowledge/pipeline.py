"""A RAG pipeline: documents are cut into chunks, embedded, stored, and found again (document 001).

Documents are indexed a batch at a time, each batch whole or not at all; a process that dies leaves whole
batches behind, and the next ingest continues with the missing documents. Folders are scanned again when a
query arrives, at most once per second and in a thread, so that added, changed and removed files count without
a restart; pages of the web that are due are fetched then. A query waits for the refresh at most
`REFRESH_TIMEOUT` seconds; then it is answered from the current index.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from astromesh.errors import AstromeshError, ConfigError, InvalidInput, ProviderError
from astromesh.knowledge.base import (
    OPERATOR,
    Chunk,
    Chunker,
    ChunkStore,
    Document,
    DocumentReader,
    DocumentsOf,
    DocumentVersion,
    Embedder,
    ForeignDocument,
    IndexedDocument,
    IngestReport,
    ListedDocument,
    Passage,
    ProgressCallback,
    StoredDocument,
    UnreadableDocument,
)
from astromesh.knowledge.chunking import chunk_vectors, parent_passages, vectors_fingerprint
from astromesh.knowledge.loaders import Folder, folder_of, load_document, no_reader
from astromesh.knowledge.ranking import diversify, words_of
from astromesh.knowledge.web_pages import WebPages
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import DEFAULT_TENANT

T = TypeVar("T")
#: documents that are cut and stored together
BATCH = 32
#: documents whose vectors are stored together after the first question
EMBEDDED_DOCUMENTS = 4
#: called with the number of documents that are finished since the last call
ProgressStep = Callable[[int], None]


class Indexer:
    """Args: embedder: None for a pipeline that finds words only."""

    def __init__(self, store: ChunkStore, chunker: Chunker, embedder: Embedder | None) -> None:
        self._store, self._chunker, self._embedder = store, chunker, embedder
        #: changes whenever the same document would be stored differently
        self.fingerprint = chunker.fingerprint + (f" {vectors_fingerprint(embedder)}" if embedder else "")

    async def write(
        self,
        documents: Sequence[tuple[Document, str]],
        known: Mapping[str, DocumentVersion],
        step: ProgressStep,
        owner: str = OPERATOR,
    ) -> IngestReport:
        """Stores what is new or has changed.

        Args:
            documents: each with its stamp.
            known: what the store holds of this owner.

        Raises:
            StoreError: the index cannot be written.
            ProviderError: the texts cannot be embedded.
        """
        total = IngestReport()
        for some in batches(documents):
            fresh, stamps = await asyncio.to_thread(self._find_changes, some, known)
            if fresh:
                await self._store.replace(await self._embed(fresh), owner)
            if stamps:
                await self._store.touch(stamps, owner)
            changed = sum(one.document.id in known for one in fresh)
            total += IngestReport(len(fresh) - changed, changed, 0, len(some) - len(fresh))
            step(len(some))
        return total

    async def embedded(
        self, documents: Sequence[tuple[Document, str]], known: Mapping[str, DocumentVersion]
    ) -> Sequence[IndexedDocument]:
        """Returns what is new or has changed, with its vectors.

        Raises:
            ProviderError: the texts cannot be embedded.
        """
        fresh, _ = await asyncio.to_thread(self._find_changes, documents, known)
        return await self._embed(fresh)

    async def embed_stored(
        self, documents: Sequence[StoredDocument], known: Mapping[str, DocumentVersion]
    ) -> Sequence[IndexedDocument]:
        """Returns stored documents with the same chunks and new vectors.

        Raises:
            ProviderError: the texts cannot be embedded.
        """
        return await self._embed([self._with_chunks(one, known[one.id]) for one in documents])

    def _with_chunks(self, stored: StoredDocument, known: DocumentVersion) -> IndexedDocument:
        title, metadata = stored.metadata.get("title", ""), dict(stored.metadata)
        metadata.pop("title", None)
        chunks = tuple(
            Chunk(stored.id, text, start, start + len(text), heading, metadata)
            for start, text, heading in stored.pieces
        )
        document = Document(stored.id, stored.text, title, metadata=metadata)
        # another hash than that of any text: a document that is added again is cut anew
        version = DocumentVersion(_hash(replace(document, text=known.hash), self.fingerprint), known.stamp)
        return IndexedDocument(document, version, chunks)

    def _find_changes(
        self, documents: Iterable[tuple[Document, str]], known: Mapping[str, DocumentVersion]
    ) -> tuple[list[IndexedDocument], dict[str, str]]:
        """Returns the documents to store, and the new stamps of unchanged documents."""
        fresh, stamps = [], {}
        for document, stamp in documents:
            version = DocumentVersion(_hash(document, self.fingerprint), stamp)
            before = known.get(document.id)
            if before is None or before.hash != version.hash:
                fresh.append(IndexedDocument(document, version, tuple(self._chunker.split(document))))
            elif before.stamp != stamp:
                stamps[document.id] = stamp
        return fresh, stamps

    async def _embed(self, documents: Sequence[IndexedDocument]) -> Sequence[IndexedDocument]:
        if self._embedder is None:
            return documents
        chunks = [(one.document, chunk) for one in documents for chunk in one.chunks]
        vectors = await chunk_vectors(self._embedder, chunks)
        ends = _running_totals(len(one.chunks) for one in documents)
        return [
            replace(one, vectors=tuple(vectors[end - len(one.chunks) : end]))
            for one, end in zip(documents, ends, strict=True)
        ]


def check_ids(ids: Sequence[str], files: Container[str]) -> None:
    """Raises: InvalidInput: an id is empty, occurs twice, or belongs to a file of the folders."""
    used_names = set()
    for name in ids:
        if name in files:
            raise InvalidInput(f"The document {name!r} comes from a folder; change the file there.")
        if not name or name in used_names:
            raise InvalidInput(f"Document ids must be unique and not empty; {name!r} is not.")
        used_names.add(name)


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def _hash(document: Document, fingerprint: str) -> str:
    content = orjson.dumps([fingerprint, document.title, document.text, dict(document.metadata)])
    return blake2b(content, digest_size=16).hexdigest()


def _running_totals(counts: Iterable[int]) -> Iterator[int]:
    total = 0
    for count in counts:
        total += count
        yield total


# -- the pipeline --------------------------------------------------------------------------------------------

Mode = Literal["lexical", "vector", "hybrid"]
#: least seconds between two scans of the folders, and least time between them as a multiple of a scan's time
SCAN_INTERVAL = 1.0
SCAN_SHARE = 20.0
#: seconds that a query waits for a refresh, and for the first vectors
REFRESH_TIMEOUT = 2.0
VECTORS_TIMEOUT = 0.5
#: seconds between two looks for documents of another embedder, if there are any
FOREIGN_INTERVAL = 30.0
log = get_logger("astromesh.rag")


class RAGPipeline:
    """The implementation of `KnowledgePipeline`.

    Args:
        name: of the pipeline, as tools refer to it.
        store: holds this pipeline's chunks and nothing else.
        chunker: cuts documents.
        sources: path and glob of each folder.
        pages: of the web; None for none.
        readers: the reader of a kind of file, by its name (`html`, `pdf`); raises MissingExtra.
        embedder: makes vectors; needed by every mode but `lexical`.
        mode: how passages are found.
        top_k: passages that a query returns by default.
        min_score: least score of a passage that a query returns.
        shared_owner: the tenant whose documents every tenant reads; empty for none.
        clock: for the pause between two scans of the folders.

    Raises:
        ConfigError: the mode needs an embedder.
    """

    def __init__(  # noqa: PLR0913 (what a pipeline is made of)
        self,
        name: str,
        store: ChunkStore,
        chunker: Chunker,
        *,
        sources: Sequence[tuple[Path, str | Sequence[str]]] = (),
        pages: WebPages | None = None,
        readers: Callable[[str], DocumentReader] | None = None,
        embedder: Embedder | None = None,
        mode: Mode = "lexical",
        top_k: int = 5,
        min_score: float = 0.0,
        shared_owner: str = "",
        clock: Clock | None = None,
    ) -> None:
        if mode != "lexical" and embedder is None:
            raise ConfigError(f"The pipeline {name!r} has 'mode: {mode}', which needs 'embeddings'.")
        self.name = name
        self._store, self._embedder, self._mode, self._top_k = store, embedder, mode, top_k
        self._min_score, self._shared_owner = min_score, shared_owner
        self._indexer = Indexer(store, chunker, embedder)
        self._parent_tokens: int = getattr(chunker, "parent_tokens", 0)
        #: for the time before the first question, if that loads the model
        self._indexer_of_words = Indexer(store, chunker, None)
        self._readers = readers or no_reader
        self._pages = pages
        # pages first: a folder of one source owns every id
        self._folders = (*((pages,) if pages else ()), *_folders(sources, self._readers))
        self._clock = clock or SystemClock()
        self._last_scan: dict[str, str] | None = None
        self._next_scan = float("-inf")
        self._refresh_task: asyncio.Task[None] | None = None
        self._pages_task: asyncio.Task[None] | None = None
        #: documents of the folders that were stored before the model was loaded
        self._without_vectors: list[str] = []
        self._vectors_task: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()
        #: documents of tenants without vectors of this embedder; None: not looked for yet
        self._foreign: tuple[ForeignDocument, ...] | None = None
        self._next_look = float("-inf")

    async def query(
        self,
        query: str,
        *,
        tenant: str = DEFAULT_TENANT,
        top_k: int | None = None,
        filters: Mapping[str, Any] | None = None,
    ) -> tuple[Passage, ...]:
        """Returns the best passages, best first, after a refresh of the folders.

        Raises:
            StoreError: the index cannot be read.
            ProviderError: the query cannot be embedded; in mode `hybrid`, its words are searched instead.
        """
        if self._folders and self._clock.monotonic() >= self._next_scan:
            await self._refresh_if_idle()
        if self._without_vectors:
            await self._add_vectors()
        vector = await self._embed_query(query)
        words = "" if self._mode == "vector" else query
        limit = top_k or self._top_k
        found = await self._store.search(
            words,
            top_k=(4 if self._parent_tokens else 2) * limit,
            owners=self._readable_owners(tenant),
            filters=filters,
            vector=vector,
        )
        good = [passage for passage in found if passage.score >= self._min_score]
        sets = [frozenset(words_of(passage.chunk.text.lower())) for passage in good]
        scores = [(n, one.score) for n, one in enumerate(good)]
        chosen = diversify(scores, dict(enumerate(sets)), len(good) if self._parent_tokens else limit)
        best = tuple(good[place] for place in chosen)
        if not self._parent_tokens:
            return best
        return await parent_passages(
            best, limit, self._parent_tokens, lambda name: self._documents(name, tenant)
        )

    async def documents(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        of: DocumentsOf = "tenant",
        after: str = "",
        limit: int = 100,
    ) -> tuple[ListedDocument, ...]:
        """Returns documents that a tenant may read, by id, as they are indexed now."""
        if of == "shared" and not self._shared_owner:
            return ()
        owner = {"tenant": tenant, "sources": OPERATOR, "shared": self._shared_owner}[of]
        return await self._store.documents(owner, after=after, limit=limit)

    async def document(self, name: str, *, tenant: str = DEFAULT_TENANT) -> StoredDocument | None:
        """Returns a document that a tenant may read, as it is indexed now."""
        return next(iter(await self._documents(name, tenant)), None)

    async def ingest(
        self,
        documents: Sequence[Document],
        progress: ProgressCallback | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> IngestReport:
        """Adds or replaces documents of a tenant.

        Raises:
            InvalidInput: two documents have one id, an id belongs to a file of the folders, or no document
                can be read.
            MissingExtra: a file needs a reader that is not installed.
            ProviderError: they cannot be embedded; batches stored before stay.
        """
        async with self._write_lock:
            check_ids([document.id for document in documents], await self._store.known())
            known = await self._store.known(tenant)
            step = _progress_counter(len(documents), progress)
            texts, unreadable = await asyncio.to_thread(_load_documents, documents, self._readers)
            done = await self._indexer.write([(one, "") for one in texts], known, step, tenant)
            step(len(unreadable))
            await self._store.settle()
            return done + IngestReport(unreadable=unreadable)

    async def ingest_path(
        self, path: Path, progress: ProgressCallback | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> IngestReport:
        """Adds or replaces a tenant's documents of a file or a folder; their ids are paths in that folder.

        Raises:
            InvalidInput: nothing can be read, or an id belongs to a file of the sources.
            MissingExtra: a file needs a reader that is not installed.
        """
        async with self._write_lock:
            folder = await asyncio.to_thread(folder_of, path, self._readers)
            stamps = await asyncio.to_thread(folder.scan)
            check_ids(list(stamps), await self._store.known())
            known = await self._store.known(tenant)
            total, step, found = IngestReport(), _progress_counter(len(stamps), progress), 0
            for some in batches(list(stamps)):
                read = await asyncio.to_thread(_read_folder, folder, some, stamps)
                found += len(read)
                total += await self._indexer.write([(one, "") for one in read], known, step, tenant)
                step(len(some) - len(read))
            if not found:
                raise InvalidInput(f"No file at {path} can be read.")
            await self._store.settle()
            return total

    async def remove(self, ids: Sequence[str], *, tenant: str = DEFAULT_TENANT) -> IngestReport:
        """Removes documents of a tenant.

        Raises:
            InvalidInput: an id belongs to a file of the folders.
        """
        names = list(dict.fromkeys(ids))
        async with self._write_lock:
            check_ids(names, await self._store.known())
            known = await self._store.known(tenant)
            there = [name for name in names if name in known]
            if there:
                await self._store.remove(there, tenant)
            return IngestReport(removed=len(there))

    async def refresh(
        self, progress: ProgressCallback | None = None, *, load_model: bool = True
    ) -> IngestReport:
        """Updates the index from the folders' files and the pages; those of deleted ones are removed.

        Raises:
            StoreError: the index cannot be written.
            ProviderError: the texts cannot be embedded.
            MissingExtra: a file needs a reader that is not installed.
        """
        if self._pages is not None:
            await self._update_pages(self._pages, None if load_model else REFRESH_TIMEOUT)
        async with self._write_lock:
            started = self._clock.monotonic()
            stamps = await asyncio.to_thread(self._scan)
            took = self._clock.monotonic() - started
            self._next_scan = self._clock.monotonic() + max(SCAN_INTERVAL, SCAN_SHARE * took)
            indexer = self._indexer
            if not load_model and self._is_loaded_on_demand:
                indexer, stamps = self._indexer_of_words, await self._stamps_without_vectors(stamps)
            if stamps == self._last_scan:
                return IngestReport(unchanged=len(stamps))
            done = await self._index_changes(stamps, progress, indexer)
            self._last_scan = stamps
            complete = f"{self._indexer.fingerprint} "
            self._without_vectors = [name for name, stamp in stamps.items() if not stamp.startswith(complete)]
            await self._foreign_documents()
            return done

    async def embed_again(self, progress: ProgressCallback | None = None) -> IngestReport:
        """Embeds documents of all tenants that have no vectors of the present embedder.

        Raises:
            StoreError: the index cannot be read or written.
            ProviderError: the texts cannot be embedded; batches stored before stay.
        """
        found = await self._store.foreign_documents() if self._embedder is not None else ()
        step, changed = _progress_counter(len(found), progress), 0
        for owner, documents in groupby(found, key=lambda one: one.owner):
            for some in batches([one.id for one in documents]):
                changed += await self._embed_stored(some, owner)
                step(len(some))
        await self._store.settle()
        self._next_look = float("-inf")
        return IngestReport(changed=changed)

    async def warning(self, *, tenant: str | None = None) -> str:
        """Says which documents are not searched by vectors, and what to do; empty if all are."""
        found = await self._foreign_documents()
        if tenant is not None:
            owners = self._readable_owners(tenant)
            found = tuple(one for one in found if one.owner in owners)
        return self._warning(found) if found else ""

    async def ping(self) -> str | None:
        await self._store.ping()
        return await self.warning() or None

    async def close(self) -> None:
        """Cancels a running refresh; the store closes with the runtime's resources."""
        for task in (self._refresh_task, self._vectors_task, self._pages_task):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _update_pages(self, pages: WebPages, timeout: float | None) -> None:
        """Waits a while for the pages that are due; the rest comes with a later refresh."""
        if self._pages_task is None or self._pages_task.done():
            self._pages_task = asyncio.create_task(pages.update())
        done, _ = await asyncio.wait([self._pages_task], timeout=timeout)
        for task in done:
            task.result()

    async def _foreign_documents(self) -> tuple[ForeignDocument, ...]:
        """Looks once, and again after a while as long as there are some."""
        if self._embedder is None:
            return ()
        now = self._clock.monotonic()
        if self._foreign is None or (self._foreign and now >= self._next_look):
            found, before = await self._store.foreign_documents(), self._foreign
            self._foreign, self._next_look = found, now + FOREIGN_INTERVAL
            if found and found != before:
                log.warning("documents_of_another_embedder", pipeline=self.name, warning=self._warning(found))
        return self._foreign

    def _warning(self, found: Sequence[ForeignDocument]) -> str:
        one = len(found) == 1
        others = sorted({document.embedder for document in found} - {""})
        whose = f" but of {', '.join(others)}" if others else ""
        how = "not found" if self._mode == "vector" else "found by words only"
        return (
            f"{len(found)} {'document has' if one else 'documents have'} no vectors of the present embedder"
            f"{whose}: {'it is' if one else 'they are'} {how}. Run `astromesh rag ingest {self.name}`."
        )

    async def _embed_stored(self, names: Sequence[str], owner: str) -> int:
        """Gives documents new vectors, unless they change meanwhile. Returns how many have them."""
        known = await self._store.known(owner)
        stored = [await self._store.document(name, owner) for name in names if name in known]
        there = [one for one in stored if one is not None]
        embedded = await self._indexer.embed_stored(there, known)
        async with self._write_lock:
            now = await self._store.known(owner)
            same = [one for one in embedded if now.get(one.document.id) == known[one.document.id]]
            await self._store.replace(same, owner)
            return len(same)

    async def _embed_query(self, query: str) -> array[float] | None:
        if self._mode == "lexical" or self._embedder is None or not query.strip():
            return None
        if self._mode == "hybrid" and self._without_vectors:
            return None  # nearness would prefer the documents that have vectors already
        try:
            return (await self._embedder.embed([query]))[0]
        except ProviderError as error:
            if self._mode == "vector":
                raise
            log.warning("query_not_embedded", pipeline=self.name, error=str(error))
            return None

    async def _refresh_if_idle(self) -> None:
        """Waits a while for a refresh, unless the index is being written."""
        if self._write_lock.locked():
            return
        self._next_scan = self._clock.monotonic() + SCAN_INTERVAL
        self._refresh_task = asyncio.create_task(self._refresh_quietly())
        await asyncio.wait([self._refresh_task], timeout=REFRESH_TIMEOUT)

    async def _refresh_quietly(self) -> None:
        try:
            await self.refresh(load_model=not self._is_loaded_on_demand)
        except AstromeshError as error:
            log.warning("knowledge_not_refreshed", pipeline=self.name, error=str(error))

    @property
    def _is_loaded_on_demand(self) -> bool:
        return getattr(self._embedder, "is_loaded_on_demand", False)

    async def _add_vectors(self) -> None:
        """Waits a while for the vectors of documents that have none; they continue in the background."""
        if self._vectors_task is None or self._vectors_task.done():
            self._vectors_task = asyncio.create_task(self._add_vectors_quietly())
            await asyncio.wait([self._vectors_task], timeout=VECTORS_TIMEOUT)

    async def _add_vectors_quietly(self) -> None:
        try:
            while self._without_vectors:
                await self._embed_some(self._without_vectors[:EMBEDDED_DOCUMENTS])
        except AstromeshError as error:
            log.warning("knowledge_not_embedded", pipeline=self.name, error=str(error))

    async def _embed_some(self, names: Sequence[str]) -> None:
        """Adds the vectors of documents, unless they change meanwhile; a refresh need not wait for it."""
        seen, old, new = self._last_scan or {}, self._indexer_of_words.fingerprint, self._indexer.fingerprint
        stamps = {name: new + seen[name].removeprefix(old) for name in names if name in seen}
        read = await asyncio.to_thread(self._read_documents, stamps, stamps)
        embedded = await self._indexer.embedded(read, await self._store.known())
        async with self._write_lock:
            now = self._last_scan or {}
            same = {name: stamp for name, stamp in stamps.items() if now.get(name) == seen[name]}
            await self._store.replace([one for one in embedded if one.document.id in same])
            self._last_scan = {**now, **same}
            changed = [name for name in names if name in now and name not in same]
            left = [name for name in self._without_vectors if name not in names]
            self._without_vectors = [*left, *changed]

    def _scan(self) -> dict[str, str]:
        version = self._indexer.fingerprint
        return {
            name: f"{version} {stamp}" for folder in self._folders for name, stamp in folder.scan().items()
        }

    async def _stamps_without_vectors(self, stamps: Mapping[str, str]) -> dict[str, str]:
        """The stamps of documents before the model is loaded, except for those that have vectors."""
        known, words = await self._store.known(), self._indexer_of_words.fingerprint
        return {
            name: stamp
            if name in known and known[name].stamp == stamp
            else words + stamp.removeprefix(self._indexer.fingerprint)
            for name, stamp in stamps.items()
        }

    async def _index_changes(
        self, stamps: Mapping[str, str], progress: ProgressCallback | None, indexer: Indexer
    ) -> IngestReport:
        known = await self._store.known()
        changed = [name for name, stamp in stamps.items() if name not in known or known[name].stamp != stamp]
        waiting = self._pages.waiting() if self._pages else frozenset[str]()
        vanished = _vanished(known, {*stamps, *waiting})
        total = IngestReport(unchanged=len(stamps) - len(changed))
        step = _progress_counter(len(changed), progress)
        for some in batches(changed):
            read = await asyncio.to_thread(self._read_documents, some, stamps)
            unreadable = set(some) - {document.id for document, _ in read}
            vanished += [name for name in some if name in known and name in unreadable]
            total += await indexer.write(read, known, step)
            step(len(unreadable))
        if vanished:
            await self._store.remove(vanished)
        await self._store.settle()
        return total + IngestReport(removed=len(vanished))

    def _read_documents(self, ids: Iterable[str], stamps: Mapping[str, str]) -> list[tuple[Document, str]]:
        found = [(name, self._folder_of(name).read(name, stamps[name])) for name in ids]
        return [(document, stamps[name]) for name, document in found if document is not None]

    async def _documents(self, name: str, tenant: str) -> list[StoredDocument]:
        """The documents of an id that a tenant may read: its own, that of the folders, a shared one."""
        owners = dict.fromkeys((tenant, *self._readable_owners(tenant)))
        found = [await self._store.document(name, owner) for owner in owners]
        return [one for one in found if one is not None]

    def _readable_owners(self, tenant: str) -> list[str]:
        return list(dict.fromkeys((OPERATOR, tenant, self._shared_owner)))

    def _folder_of(self, name: str) -> Folder | WebPages:
        found: Folder | WebPages = next(folder for folder in self._folders if folder.owns(name))
        return found


def _folders(
    sources: Sequence[tuple[Path, str | Sequence[str]]], readers: Callable[[str], DocumentReader]
) -> tuple[Folder, ...]:
    """Ids are paths within the folder; with several folders, each id begins with the folder's name."""
    if len(sources) == 1:
        return (Folder(*sources[0], readers=readers),)
    names = [path.name for path, _ in sources]
    prefixes = [f"{name}/" if names.count(name) == 1 else f"{name}-{i}/" for i, name in enumerate(names, 1)]
    return tuple(
        Folder(path, globs, prefix, readers=readers)
        for (path, globs), prefix in zip(sources, prefixes, strict=True)
    )


def _load_documents(
    documents: Sequence[Document], readers: Callable[[str], DocumentReader]
) -> tuple[list[Document], tuple[UnreadableDocument, ...]]:
    """Returns the documents as text, and those that cannot be read.

    Raises:
        InvalidInput: none of them can be read.
        MissingExtra: a file needs a reader that is not installed.
    """
    texts, unreadable = [], []
    for one in documents:
        try:
            texts.append(load_document(one, readers))
        except InvalidInput as error:
            unreadable.append(UnreadableDocument(one.id, str(error)))
            if len(unreadable) == len(documents):
                raise
    return texts, tuple(unreadable)


def _read_folder(folder: Folder, ids: Iterable[str], stamps: Mapping[str, str]) -> list[Document]:
    return [one for name in ids if (one := folder.read(name, stamps[name])) is not None]


def _vanished(known: Iterable[str], stamps: Container[str]) -> list[str]:
    """Documents of files and pages that no longer exist."""
    return [name for name in known if name not in stamps]


def _progress_counter(total: int, progress: ProgressCallback | None) -> Callable[[int], None]:
    """Returns a function that adds up steps and calls `progress` with the sum."""
    done = 0

    def step(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    if progress is not None:
        progress(0, total)
    return step
