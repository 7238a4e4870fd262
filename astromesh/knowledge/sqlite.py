"""The chunks of RAG pipelines in SQLite, searched by `knowledge.sqlite_search`.

Each pipeline has its own file, `DATA/rag/PIPELINE.db`: BM25 then counts the words of this pipeline only, and
a file can be deleted to start anew.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.knowledge.base import (
    Chunk,
    DocumentVersion,
    IndexedDocument,
    Passage,
    vector_blob,
    wanted_values,
)
from astromesh.knowledge.ranking import candidate_count, fuse_rankings
from astromesh.knowledge.sqlite_search import Corpus, PassageSearch, TableState
from astromesh.knowledge.words import terms
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.queries import Transaction
from astromesh.storage.sqlite import Database, SqliteQueries, shared_database

_PACKAGE = "astromesh.knowledge"
SCHEMA = Schema("chunks", _PACKAGE, "sql/sqlite/chunks")
SQL = queries(_PACKAGE, "sql/sqlite/chunks.sql")


class ChunkQuery(NamedTuple):
    """Args: filters: JSON object of lists of wanted values, or empty."""

    terms: tuple[str, ...]
    top_k: int
    filters: str = ""
    vector: array[float] | None = None


class SqliteChunkStores:
    """The `sqlite` store of RAG pipelines."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        folder: str = Field("rag", min_length=1, description="Folder of its files within the data folder.")

    def __init__(self, options: Options, deps: Deps) -> None:
        self._folder = options.folder
        self._deps = deps

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> SqliteChunkStores:
        return cls(options, deps)

    async def collection(self, pipeline: str) -> SqliteChunks:
        """Raises: StoreError: the file cannot be opened."""
        database = await shared_database(self._deps, f"{self._folder}/{pipeline}.db")
        await database.migrate(SCHEMA)
        embedder = self._deps.embedder
        return SqliteChunks(database, embedder.fingerprint if embedder else "")

    async def close(self) -> None:
        """Does nothing: the files close with the runtime's resources."""


class SqliteChunks:
    """A `ChunkStore`. Functions that take a connection run in the threads of the database.

    Args:
        embedder: fingerprint of the embedder; vectors of other embedders stay stored and are not searched.
    """

    def __init__(self, database: Database, embedder: str = "") -> None:
        self._database, self._embedder = database, embedder
        self._queries = SqliteQueries(database, SQL)
        self._search = PassageSearch(SQL)

    async def known(self) -> Mapping[str, DocumentVersion]:
        rows = await self._queries.read("known")
        return {name: DocumentVersion(*version) for name, *version in rows}

    async def replace(self, documents: Sequence[IndexedDocument]) -> None:
        async def replace(tx: Transaction) -> None:
            for one in documents:
                await _drop(one.document.id, tx)
                await _insert(one, self._embedder, tx)

        await self._queries.transact(replace)

    async def touch(self, stamps: Mapping[str, str]) -> None:
        async def touch(tx: Transaction) -> None:
            for name, stamp in stamps.items():
                await tx.execute("touch", stamp, name)

        await self._queries.transact(touch)

    async def remove(self, ids: Sequence[str]) -> None:
        async def remove(tx: Transaction) -> None:
            for name in ids:
                await _drop(name, tx)

        await self._queries.transact(remove)

    async def search(
        self,
        query: str,
        *,
        top_k: int,
        filters: Mapping[str, Any] | None = None,
        vector: array[float] | None = None,
    ) -> tuple[Passage, ...]:
        words = terms(query)
        if not words and vector is None:
            return ()
        wanted = orjson.dumps(wanted_values(filters)).decode() if filters else ""
        search = ChunkQuery(words, top_k, wanted, vector)
        return await self._database.read(self._find, search)

    async def settle(self) -> None:
        """Does nothing: searches are fast at once."""

    async def ping(self) -> None:
        await self._queries.ping()

    def _find(
        self, connection: sqlite3.Connection, items: Sequence[ChunkQuery]
    ) -> Sequence[tuple[Passage, ...] | BaseException]:
        return [self._find_one(connection, item) for item in items]

    def _find_one(self, connection: sqlite3.Connection, query: ChunkQuery) -> tuple[Passage, ...]:
        state = TableState(*connection.execute(SQL["state"]).fetchone())
        documents = _filtered_documents(connection, query.filters) if query.filters else None
        corpus = Corpus(state, headings="{title heading} : ", documents=documents)
        limit = candidate_count(query.top_k)
        candidates = self._search.propose(connection, corpus, query.terms, limit)
        found = self._search.score(connection, corpus, candidates, len(query.terms))
        if query.vector is not None:
            near = self._nearest(connection, query.vector, state, limit, documents)
            found = fuse_rankings(found, near) if query.terms else near
        return tuple(_passage(connection, row, score) for row, score in found[: query.top_k])

    def _nearest(
        self,
        connection: sqlite3.Connection,
        vector: array[float],
        state: TableState,
        limit: int,
        documents: str | None,
    ) -> list[tuple[int, float]]:
        index = self._search.index(connection, (self._embedder,), state, len(vector))
        among = None
        if documents is not None:
            among = [row for (row,) in connection.execute(SQL["chunks_of"], (documents,))]
        near = index.nearest(vector, limit, among)
        return [(row, min(1.0, cosine)) for row, cosine in near if cosine > 0]


def _filtered_documents(connection: sqlite3.Connection, filters: str) -> str:
    """The ids of the documents whose metadata have these values, as JSON."""
    rows = connection.execute(SQL["documents_with"], (filters,))
    return orjson.dumps([name for (name,) in rows]).decode()


def _passage(connection: sqlite3.Connection, row: int, score: float) -> Passage:
    document, text, start, end, heading, metadata = connection.execute(SQL["passage"], (row,)).fetchone()
    return Passage(Chunk(document, text, start, end, heading, orjson.loads(metadata)), score)


async def _insert(one: IndexedDocument, embedder: str, tx: Transaction) -> None:
    name, title = one.document.id, one.document.title
    metadata = orjson.dumps({"title": title, **one.document.metadata}).decode()
    await tx.execute("put_document", name, one.known.hash, one.known.stamp, metadata)
    for place, chunk in enumerate(one.chunks):
        await tx.execute("put_chunk", name, chunk.start, chunk.end)
        [(row,)] = await tx.fetch("last_chunk")
        await tx.execute("put_words", row, title, chunk.heading, chunk.text)
        if one.vectors:
            await tx.execute("put_vector", row, embedder, vector_blob(one.vectors[place]))


async def _drop(name: str, tx: Transaction) -> None:
    for query in ("drop_words", "drop_vectors", "drop_chunks"):
        await tx.execute(query, name)
    if await tx.execute("drop_document", name):
        await tx.execute("count_removal")
