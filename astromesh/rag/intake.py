"""Taking documents in: cut, embed, store, a batch at a time, each batch whole or not at all.

A process that dies in the middle leaves whole batches behind; what is stored is known by its hash, so that
the next ingest goes on with what is missing.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

import orjson

from astromesh.abc.rag import Chunk, Chunker, ChunkStore, Document, Embedder, Indexed, Ingested, Known
from astromesh.errors import InvalidInput

T = TypeVar("T")

#: documents that are cut and stored together, and chunks that are embedded together
BATCH = 32
EMBEDDED_TOGETHER = 512

#: told how many more documents are done
Step = Callable[[int], None]


class Intake:
    """Args: embedder: None for a pipeline that finds words only."""

    def __init__(self, store: ChunkStore, chunker: Chunker, embedder: Embedder | None) -> None:
        self._store, self._chunker, self._embedder = store, chunker, embedder
        #: changes whenever the same document would be stored differently
        self.fingerprint = chunker.fingerprint + (f" {embedder.fingerprint}" if embedder else "")

    async def write(
        self, documents: Sequence[tuple[Document, str]], known: Mapping[str, Known], step: Step
    ) -> Ingested:
        """Stores what is new or has changed.

        Args:
            documents: each with its stamp.
            known: what the store holds.

        Raises:
            StoreError: the index cannot be written.
            ProviderError: the texts cannot be embedded.
        """
        total = Ingested()
        for some in batches(documents):
            fresh, stamps = await asyncio.to_thread(self._cut, some, known)
            if fresh:
                await self._store.replace(await self._embedded(fresh))
            if stamps:
                await self._store.touch(stamps)
            changed = sum(one.document.id in known for one in fresh)
            total = summed(total, Ingested(len(fresh) - changed, changed, 0, len(some) - len(fresh)))
            step(len(some))
        return total

    def _cut(
        self, documents: Iterable[tuple[Document, str]], known: Mapping[str, Known]
    ) -> tuple[list[Indexed], dict[str, str]]:
        """What must be stored anew, and the new stamps of what is as it was."""
        fresh, stamps = [], {}
        for document, stamp in documents:
            about = Known(_hash(document, self.fingerprint), stamp)
            before = known.get(document.id)
            if before is None or before.hash != about.hash:
                fresh.append(Indexed(document, about, tuple(self._chunker.split(document))))
            elif before.stamp != stamp:
                stamps[document.id] = stamp
        return fresh, stamps

    async def _embedded(self, documents: Sequence[Indexed]) -> Sequence[Indexed]:
        if self._embedder is None:
            return documents
        texts = [embedded_text(one.document, chunk) for one in documents for chunk in one.chunks]
        vectors: list[array[float]] = []
        for some in batches(texts, EMBEDDED_TOGETHER):
            vectors += await self._embedder.embed(some)
        ends = _running(len(one.chunks) for one in documents)
        return [
            replace(one, vectors=tuple(vectors[end - len(one.chunks) : end]))
            for one, end in zip(documents, ends, strict=True)
        ]


def embedded_text(document: Document, chunk: Chunk) -> str:
    """What stands for a chunk: its text under its headings, or under the document's title."""
    return f"{chunk.heading or document.title}\n\n{chunk.text}"


def check_ids(ids: Sequence[str], known: Mapping[str, Known]) -> None:
    """Raises: InvalidInput: an id twice, an empty one, or one that belongs to a file of the folders."""
    taken = set()
    for name in ids:
        if name in known and known[name].stamp:
            raise InvalidInput(f"The document {name!r} comes from a folder; change the file there.")
        if not name or name in taken:
            raise InvalidInput(f"Every document needs an id of its own; {name!r} is not.")
        taken.add(name)


def batches(items: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def summed(one: Ingested, other: Ingested) -> Ingested:
    return Ingested(
        one.added + other.added,
        one.changed + other.changed,
        one.removed + other.removed,
        one.unchanged + other.unchanged,
    )


def _hash(document: Document, fingerprint: str) -> str:
    content = orjson.dumps([fingerprint, document.title, document.text, dict(document.metadata)])
    return blake2b(content, digest_size=16).hexdigest()


def _running(counts: Iterable[int]) -> Iterator[int]:
    total = 0
    for count in counts:
        total += count
        yield total
