"""A RAG pipeline: documents are cut into chunks, stored, and found again (document 001).

Folders are looked at again when a query comes, at most once per second and in a thread: a file that was
added, changed or removed counts without a restart and without a separate ingest. A query waits for that only
so long; where there is much to take in, it is answered from what is there.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import structlog

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.rag import (
    Chunker,
    ChunkStore,
    Document,
    Embedder,
    Ingested,
    Known,
    Passage,
    Progress,
    Reader,
)
from astromesh.errors import AstromeshError, ConfigError, InvalidInput, ProviderError
from astromesh.rag.folder import Folder, folder_of, no_reader
from astromesh.rag.handed import as_text
from astromesh.rag.intake import Intake, batches, check_ids, summed

Mode = Literal["lexical", "vector", "hybrid"]

#: seconds between two looks at the folders, and how many times as long as a look it takes at least
LOOK_EVERY = 1.0
LOOK_SHARE = 20.0
#: seconds that a query waits for what changed in the folders
PATIENCE = 2.0

log = structlog.get_logger("astromesh.rag")


class RAGPipeline:
    """The implementation of `Knowledge`.

    Args:
        name: of the pipeline, as tools refer to it.
        store: holds this pipeline's chunks and nothing else.
        chunker: cuts documents.
        sources: path and glob of each folder.
        readers: the reader of a kind of file, by its name (`html`, `pdf`); raises MissingExtra.
        embedder: makes vectors; needed by every mode but `lexical`.
        mode: how passages are found.
        top_k: passages that a query answers unless it says otherwise.
        clock: for the pause between two looks at the folders.

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
        readers: Callable[[str], Reader] | None = None,
        embedder: Embedder | None = None,
        mode: Mode = "lexical",
        top_k: int = 5,
        clock: Clock | None = None,
    ) -> None:
        if mode != "lexical" and embedder is None:
            raise ConfigError(f"The pipeline {name!r} has 'mode: {mode}', which needs 'embeddings'.")
        self.name = name
        self._store, self._embedder, self._mode, self._top_k = store, embedder, mode, top_k
        self._intake = Intake(store, chunker, embedder)
        self._readers = readers or no_reader
        self._folders = _folders(sources, self._readers)
        self._clock = clock or SystemClock()
        self._seen: dict[str, str] | None = None
        self._look_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def query(
        self, query: str, *, top_k: int | None = None, filters: Mapping[str, Any] | None = None
    ) -> tuple[Passage, ...]:
        """The best passages, best first; what changed in the folders is taken in before.

        Raises:
            StoreError: the index cannot be read.
            ProviderError: the query cannot be embedded; in mode `hybrid` it is then answered by words.
        """
        if self._folders and self._clock.monotonic() >= self._look_at:
            await self._look()
        vector = await self._vector(query)
        words = "" if self._mode == "vector" else query
        return await self._store.search(words, top_k=top_k or self._top_k, filters=filters, vector=vector)

    async def ingest(self, documents: Sequence[Document], progress: Progress | None = None) -> Ingested:
        """Adds or replaces documents that a caller hands in.

        Raises:
            InvalidInput: two documents of one name, one that belongs to a file of the folders, a file that
                cannot be read.
            MissingExtra: a file needs a reader that is not installed.
            ProviderError: they cannot be embedded; what was stored before that stays.
        """
        async with self._writing:
            known = await self._store.known()
            check_ids([document.id for document in documents], known)
            step = _counted(len(documents), progress)
            texts = await asyncio.to_thread(lambda: [as_text(one, self._readers) for one in documents])
            done = await self._intake.write([(one, "") for one in texts], known, step)
            await self._store.settle()
            return done

    async def ingest_path(self, path: Path, progress: Progress | None = None) -> Ingested:
        """Adds or replaces the documents of a file or a folder; their ids are paths in that folder.

        Raises:
            InvalidInput: there is nothing that can be read, or an id belongs to a file of the sources.
            MissingExtra: a file needs a reader that is not installed.
        """
        async with self._writing:
            folder = await asyncio.to_thread(folder_of, path, self._readers)
            seen = await asyncio.to_thread(folder.scan)
            known = await self._store.known()
            check_ids(list(seen), known)
            total, step, found = Ingested(), _counted(len(seen), progress), 0
            for some in batches(list(seen)):
                read = await asyncio.to_thread(_read, folder, some, seen)
                found += len(read)
                total = summed(total, await self._intake.write([(one, "") for one in read], known, step))
                step(len(some) - len(read))
            if not found:
                raise InvalidInput(f"There is nothing at {path} that can be read.")
            await self._store.settle()
            return total

    async def remove(self, ids: Sequence[str]) -> Ingested:
        """Removes documents that were handed in.

        Raises:
            InvalidInput: one belongs to a file of the folders.
        """
        names = list(dict.fromkeys(ids))
        async with self._writing:
            known = await self._store.known()
            check_ids(names, known)
            there = [name for name in names if name in known]
            if there:
                await self._store.remove(there)
            return Ingested(removed=len(there))

    async def refresh(self, progress: Progress | None = None) -> Ingested:
        """Brings the index up to the folders' files; what vanished there is removed.

        Raises:
            StoreError: the index cannot be written.
            ProviderError: the texts cannot be embedded.
            MissingExtra: a file needs a reader that is not installed.
        """
        async with self._writing:
            started = self._clock.monotonic()
            seen = await asyncio.to_thread(self._scan)
            took = self._clock.monotonic() - started
            self._look_at = self._clock.monotonic() + max(LOOK_EVERY, LOOK_SHARE * took)
            if seen == self._seen:
                return Ingested(unchanged=len(seen))
            done = await self._take_in(seen, progress)
            self._seen = seen
            return done

    async def ping(self) -> None:
        await self._store.ping()

    async def close(self) -> None:
        """Ends what it is taking in; the rest is closed with the runtime's resources."""
        if self._looking is not None and not self._looking.done():
            self._looking.cancel()
            await asyncio.wait([self._looking])

    # -- inside --------------------------------------------------------------------------------------------

    async def _vector(self, query: str) -> array[float] | None:
        if self._mode == "lexical" or self._embedder is None or not query.strip():
            return None
        try:
            return (await self._embedder.embed([query]))[0]
        except ProviderError as error:
            if self._mode == "vector":
                raise
            log.warning("query_not_embedded", pipeline=self.name, error=str(error))
            return None

    async def _look(self) -> None:
        """A query is answered from what is there while the index cannot be written or is being written."""
        if self._writing.locked():
            return
        self._look_at = self._clock.monotonic() + LOOK_EVERY
        self._looking = asyncio.create_task(self._refreshed())
        await asyncio.wait([self._looking], timeout=PATIENCE)

    async def _refreshed(self) -> None:
        try:
            await self.refresh()
        except AstromeshError as error:
            log.warning("knowledge_not_refreshed", pipeline=self.name, error=str(error))

    def _scan(self) -> dict[str, str]:
        version = self._intake.fingerprint
        return {
            name: f"{version} {stamp}" for folder in self._folders for name, stamp in folder.scan().items()
        }

    async def _take_in(self, seen: Mapping[str, str], progress: Progress | None) -> Ingested:
        known = await self._store.known()
        changed = [name for name, stamp in seen.items() if name not in known or known[name].stamp != stamp]
        vanished = _vanished(known, seen)
        total = Ingested(unchanged=len(seen) - len(changed))
        step = _counted(len(changed), progress)
        for some in batches(changed):
            read = await asyncio.to_thread(self._read, some, seen)
            unreadable = set(some) - {document.id for document, _ in read}
            vanished += [name for name in some if name in known and name in unreadable]
            total = summed(total, await self._intake.write(read, known, step))
            step(len(unreadable))
        if vanished:
            await self._store.remove(vanished)
        await self._store.settle()
        return summed(total, Ingested(removed=len(vanished)))

    def _read(self, ids: Iterable[str], seen: Mapping[str, str]) -> list[tuple[Document, str]]:
        found = [(name, self._folder(name).read(name, seen[name])) for name in ids]
        return [(document, seen[name]) for name, document in found if document is not None]

    def _folder(self, name: str) -> Folder:
        return next(folder for folder in self._folders if folder.owns(name))


def _folders(
    sources: Sequence[tuple[Path, str | Sequence[str]]], readers: Callable[[str], Reader]
) -> tuple[Folder, ...]:
    """Ids are paths within the folder; of several folders, each has its name before its ids."""
    if len(sources) == 1:
        return (Folder(*sources[0], readers=readers),)
    names = [path.name for path, _ in sources]
    prefixes = [f"{name}/" if names.count(name) == 1 else f"{name}-{i}/" for i, name in enumerate(names, 1)]
    return tuple(
        Folder(path, globs, prefix, readers=readers)
        for (path, globs), prefix in zip(sources, prefixes, strict=True)
    )


def _read(folder: Folder, ids: Iterable[str], seen: Mapping[str, str]) -> list[Document]:
    return [one for name in ids if (one := folder.read(name, seen[name])) is not None]


def _vanished(known: Mapping[str, Known], seen: Mapping[str, str]) -> list[str]:
    """Documents that came from a file which is no longer there; those that were handed in have no stamp."""
    return [name for name, about in known.items() if about.stamp and name not in seen]


def _counted(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Adds up steps and tells of them."""
    done = 0

    def step(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    if progress is not None:
        progress(0, total)
    return step
