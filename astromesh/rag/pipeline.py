"""A RAG pipeline: documents are cut into chunks, stored, and found again (document 001).

Folders are looked at again when a query comes, at most once per second and in a thread: a file that was
added, changed or removed counts without a restart and without a separate ingest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import structlog

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.rag import Chunker, ChunkStore, Document, Indexed, Ingested, Known, Passage
from astromesh.errors import InvalidInput, StoreError
from astromesh.rag.folder import Folder

#: seconds between two looks at the folders, and how many times as long as a look it takes at least
LOOK_EVERY = 1.0
LOOK_SHARE = 20.0
#: documents that are cut and stored together
BATCH = 32

log = structlog.get_logger("astromesh.rag")


class RAGPipeline:
    """The implementation of `Knowledge`.

    Args:
        name: of the pipeline, as tools refer to it.
        store: holds this pipeline's chunks and nothing else.
        chunker: cuts documents.
        sources: path and glob of each folder.
        top_k: passages that a query answers unless it says otherwise.
        clock: for the pause between two looks at the folders.
    """

    def __init__(
        self,
        name: str,
        store: ChunkStore,
        chunker: Chunker,
        *,
        sources: Sequence[tuple[Path, str]] = (),
        top_k: int = 5,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._store, self._chunker, self._top_k = store, chunker, top_k
        self._folders = _folders(sources)
        self._clock = clock or SystemClock()
        self._seen: dict[str, str] | None = None
        self._look_at = float("-inf")
        self._writing = asyncio.Lock()

    async def query(
        self, query: str, *, top_k: int | None = None, filters: Mapping[str, Any] | None = None
    ) -> tuple[Passage, ...]:
        """The best passages, best first; what changed in the folders is taken in before.

        Raises:
            StoreError: the index cannot be read.
        """
        if self._folders and self._clock.monotonic() >= self._look_at:
            await self._look()
        return await self._store.search(query, top_k=top_k or self._top_k, filters=filters)

    async def ingest(self, documents: Sequence[Document]) -> Ingested:
        """Adds or replaces documents that a caller hands in.

        Raises:
            InvalidInput: two documents of one name, or one that belongs to a file of the folders.
        """
        _check_ids(documents, self._seen or {})
        async with self._writing:
            known = await self._store.known()
            return await self._write([(document, "") for document in documents], known)

    async def refresh(self) -> Ingested:
        """Brings the index up to the folders' files; what vanished there is removed.

        Raises:
            StoreError: the index cannot be written.
        """
        async with self._writing:
            started = self._clock.monotonic()
            seen = await asyncio.to_thread(self._scan)
            took = self._clock.monotonic() - started
            self._look_at = self._clock.monotonic() + max(LOOK_EVERY, LOOK_SHARE * took)
            if seen == self._seen:
                return Ingested(unchanged=len(seen))
            done = await self._take_in(seen)
            self._seen = seen
            return done

    async def ping(self) -> None:
        await self._store.ping()

    async def close(self) -> None:
        """What was opened for the pipeline is closed with the runtime's resources."""

    async def _look(self) -> None:
        """A query is answered from what is there while the index cannot be written or is being written."""
        if self._writing.locked():
            return
        self._look_at = self._clock.monotonic() + LOOK_EVERY
        try:
            await self.refresh()
        except StoreError as error:
            log.warning("knowledge_not_refreshed", pipeline=self.name, error=str(error))

    def _scan(self) -> dict[str, str]:
        version = self._chunker.fingerprint
        return {
            name: f"{version} {stamp}" for folder in self._folders for name, stamp in folder.scan().items()
        }

    async def _take_in(self, seen: Mapping[str, str]) -> Ingested:
        known = await self._store.known()
        changed = [name for name, stamp in seen.items() if name not in known or known[name].stamp != stamp]
        vanished = [name for name, about in known.items() if about.stamp and name not in seen]
        total = Ingested(unchanged=len(seen) - len(changed))
        for some in _batches(changed):
            read = await asyncio.to_thread(self._read, some, seen)
            vanished += [name for name in some if name in known and name not in {d.id for d, _ in read}]
            total = _sum(total, await self._write(read, known))
        if vanished:
            await self._store.remove(vanished)
        return _sum(total, Ingested(removed=len(vanished)))

    def _read(self, ids: Iterable[str], seen: Mapping[str, str]) -> list[tuple[Document, str]]:
        found = ((self._folder(name).read(name, seen[name]), seen[name]) for name in ids)
        return [(document, stamp) for document, stamp in found if document is not None]

    def _folder(self, name: str) -> Folder:
        return next(folder for folder in self._folders if folder.owns(name))

    async def _write(self, documents: Sequence[tuple[Document, str]], known: Mapping[str, Known]) -> Ingested:
        total = Ingested()
        for some in _batches(documents):
            fresh, stamps = await asyncio.to_thread(self._cut, some, known)
            if fresh:
                await self._store.replace(fresh)
            if stamps:
                await self._store.touch(stamps)
            changed = sum(one.document.id in known for one in fresh)
            total = _sum(total, Ingested(len(fresh) - changed, changed, 0, len(some) - len(fresh)))
        return total

    def _cut(
        self, documents: Iterable[tuple[Document, str]], known: Mapping[str, Known]
    ) -> tuple[list[Indexed], dict[str, str]]:
        """What must be stored anew, and the new stamps of what is as it was."""
        fresh, stamps = [], {}
        for document, stamp in documents:
            about = Known(_hash(document, self._chunker.fingerprint), stamp)
            before = known.get(document.id)
            if before is None or before.hash != about.hash:
                fresh.append(Indexed(document, about, tuple(self._chunker.split(document))))
            elif before.stamp != stamp:
                stamps[document.id] = stamp
        return fresh, stamps


def _folders(sources: Sequence[tuple[Path, str]]) -> tuple[Folder, ...]:
    """Ids are paths within the folder; of several folders, each has its name before its ids."""
    if len(sources) == 1:
        return (Folder(*sources[0]),)
    names = [path.name for path, _ in sources]
    prefixes = [f"{name}/" if names.count(name) == 1 else f"{name}-{i}/" for i, name in enumerate(names, 1)]
    return tuple(Folder(path, glob, prefix) for (path, glob), prefix in zip(sources, prefixes, strict=True))


def _check_ids(documents: Sequence[Document], from_folders: Mapping[str, str]) -> None:
    taken = set(from_folders)
    for document in documents:
        if document.id in from_folders:
            raise InvalidInput(f"The document {document.id!r} comes from a folder; change the file there.")
        if not document.id or document.id in taken:
            raise InvalidInput(f"Every document needs an id of its own; {document.id!r} is not.")
        taken.add(document.id)


def _hash(document: Document, fingerprint: str) -> str:
    content = orjson.dumps([fingerprint, document.title, document.text, dict(document.metadata)])
    return blake2b(content, digest_size=16).hexdigest()


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def _sum(one: Ingested, other: Ingested) -> Ingested:
    return Ingested(
        one.added + other.added,
        one.changed + other.changed,
        one.removed + other.removed,
        one.unchanged + other.unchanged,
    )
