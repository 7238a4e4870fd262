"""The chunks of RAG pipelines in SQLite, searched by `knowledge.sqlite_search`.

Each pipeline has its own file, `DATA/rag/PIPELINE.db`: BM25 then counts the words of this pipeline only, and
a file can be deleted to start anew. Functions that take a connection run in the database's threads.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.knowledge.base import Chunk, DocumentVersion, IndexedDocument, Passage
from astromesh.knowledge.ranking import candidate_count, fuse_rankings
from astromesh.knowledge.sqlite_search import Corpus, PassageSearch, TableState
from astromesh.knowledge.vectors import vector_blob
from astromesh.knowledge.words import terms
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.sqlite import Database, shared_database
from astromesh.storage.writer_thread import Work

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
    """A `ChunkStore`; every method is one job of the database's threads.

    Args:
        embedder: fingerprint of the embedder; vectors of other embedders stay stored and are not searched.
    """

    def __init__(self, database: Database, embedder: str = "") -> None:
        self._database, self._embedder = database, embedder
        self._search = PassageSearch(SQL)
        self._replace_job: Work[Sequence[IndexedDocument], None] = partial(_replace, embedder)

    async def known(self) -> Mapping[str, DocumentVersion]:
        return await self._database.read(_known, None)

    async def replace(self, documents: Sequence[IndexedDocument]) -> None:
        await self._database.write(self._replace_job, documents)

    async def touch(self, stamps: Mapping[str, str]) -> None:
        await self._database.write(_touch, stamps)

    async def remove(self, ids: Sequence[str]) -> None:
        await self._database.write(_remove, ids)

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
        values = {
            key: value if isinstance(value, list) else [value] for key, value in (filters or {}).items()
        }
        search = ChunkQuery(words, top_k, orjson.dumps(values).decode() if values else "", vector)
        return await self._database.read(self._find, search)

    async def settle(self) -> None:
        """Does nothing: searches are fast at once."""

    async def ping(self) -> None:
        await self._database.ping()

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


def _known(connection: sqlite3.Connection, items: Sequence[None]) -> Sequence[Mapping[str, DocumentVersion]]:
    found = {name: DocumentVersion(*version) for name, *version in connection.execute(SQL["known"])}
    return [found] * len(items)


def _replace(
    embedder: str, connection: sqlite3.Connection, items: Sequence[Sequence[IndexedDocument]]
) -> Sequence[None]:
    for documents in items:
        for one in documents:
            _drop_document(connection, one.document.id)
            _insert_document(connection, one, embedder)
    return [None] * len(items)


def _insert_document(connection: sqlite3.Connection, one: IndexedDocument, embedder: str) -> None:
    name, title = one.document.id, one.document.title
    metadata = orjson.dumps({"title": title, **one.document.metadata}).decode()
    connection.execute(SQL["put_document"], (name, one.known.hash, one.known.stamp, metadata))
    rows = []
    for chunk in one.chunks:
        row = connection.execute(SQL["put_chunk"], (name, chunk.start, chunk.end)).lastrowid
        connection.execute(SQL["put_words"], (row, title, chunk.heading, chunk.text))
        rows.append(row)
    if one.vectors:
        blobs = [(row, embedder, vector_blob(vector)) for row, vector in zip(rows, one.vectors, strict=True)]
        connection.executemany(SQL["put_vector"], blobs)


def _drop_document(connection: sqlite3.Connection, name: str) -> None:
    for query in ("drop_words", "drop_vectors", "drop_chunks", "drop_document"):
        dropped = connection.execute(SQL[query], (name,)).rowcount
    if dropped:
        connection.execute(SQL["count_removal"])


def _touch(connection: sqlite3.Connection, items: Sequence[Mapping[str, str]]) -> Sequence[None]:
    for stamps in items:
        connection.executemany(SQL["touch"], ((stamp, name) for name, stamp in stamps.items()))
    return [None] * len(items)


def _remove(connection: sqlite3.Connection, items: Sequence[Sequence[str]]) -> Sequence[None]:
    for names in items:
        for name in names:
            _drop_document(connection, name)
    return [None] * len(items)
