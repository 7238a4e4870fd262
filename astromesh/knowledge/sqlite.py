"""The chunks of RAG pipelines in SQLite, searched by `knowledge.sqlite_search`.

Each pipeline has its own file, `DATA/rag/PIPELINE.db`: BM25 then counts the words of this pipeline only, and
a file can be deleted to start anew. An owner of documents is a word of the full-text index and has vectors of
its own, so that a search never reads the chunks of others.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.knowledge.base import (
    OPERATOR,
    Chunk,
    DocumentVersion,
    ForeignDocument,
    IndexedDocument,
    ListedDocument,
    Passage,
    Piece,
    StoredDocument,
    vector_blob,
    wanted_values,
)
from astromesh.knowledge.ranking import candidate_count, fuse_rankings, match_any, terms
from astromesh.knowledge.sqlite_search import Corpus, PassageSearch, TableState
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.queries import Transaction
from astromesh.storage.sqlite import Database, SqliteQueries, shared_database

_PACKAGE = "astromesh.knowledge"
SCHEMA = Schema("chunks", _PACKAGE, "sql/sqlite/chunks")
SQL = queries(_PACKAGE, "sql/sqlite/chunks.sql")
#: before the number of an owner in the full-text index, also in the migrations; no sought word has it
OWNER_MARK = "\ue000"


class ChunkQuery(NamedTuple):
    """Args: filters: JSON object of lists of wanted values, or empty. owners: JSON list of names."""

    terms: tuple[str, ...]
    top_k: int
    owners: str
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
        if embedder is None:
            return SqliteChunks(database)
        return SqliteChunks(database, embedder.fingerprint, semantic=embedder.semantic)

    async def close(self) -> None:
        """Does nothing: the files close with the runtime's resources."""


class SqliteChunks:
    """A `ChunkStore`. Functions that take a connection run in the threads of the database.

    Args:
        embedder: fingerprint of the embedder; vectors of other embedders stay stored and are not searched.
        semantic: whether near vectors mean similar meaning.
    """

    def __init__(self, database: Database, embedder: str = "", *, semantic: bool = False) -> None:
        self._database, self._embedder, self._semantic = database, embedder, semantic
        self._queries = SqliteQueries(database, SQL)
        self._search = PassageSearch(SQL)

    async def known(self, owner: str = OPERATOR) -> Mapping[str, DocumentVersion]:
        rows = await self._queries.read("known", owner)
        return {name: DocumentVersion(*version) for name, *version in rows}

    async def documents(
        self, owner: str = OPERATOR, *, after: str = "", limit: int = 100
    ) -> tuple[ListedDocument, ...]:
        rows = await self._queries.read("documents", owner, after, limit)
        return tuple(ListedDocument(name, orjson.loads(metadata)) for name, metadata in rows)

    async def document(self, name: str, owner: str = OPERATOR) -> StoredDocument | None:
        rows = await self._queries.read("document", owner, name)
        if not rows:
            return None
        pieces = tuple(Piece(*columns) for _, *columns in rows if columns[0] is not None)
        return StoredDocument(name, orjson.loads(rows[0][0]), pieces)

    async def replace(self, documents: Sequence[IndexedDocument], owner: str = OPERATOR) -> None:
        async def replace(tx: Transaction) -> None:
            await tx.execute("put_owner", owner)
            [(number, _)] = await tx.fetch("owners", [owner])
            for one in documents:
                await _drop(owner, one.document.id, tx)
                await _insert(one, number, self._embedder, tx)

        await self._queries.transact(replace)

    async def touch(self, stamps: Mapping[str, str], owner: str = OPERATOR) -> None:
        async def touch(tx: Transaction) -> None:
            for name, stamp in stamps.items():
                await tx.execute("touch", stamp, owner, name)

        await self._queries.transact(touch)

    async def remove(self, ids: Sequence[str], owner: str = OPERATOR) -> None:
        async def remove(tx: Transaction) -> None:
            for name in ids:
                await _drop(owner, name, tx)
            await tx.execute("drop_owner", owner)

        await self._queries.transact(remove)

    async def search(
        self,
        query: str,
        *,
        top_k: int,
        owners: Sequence[str] = (OPERATOR,),
        filters: Mapping[str, Any] | None = None,
        vector: array[float] | None = None,
    ) -> tuple[Passage, ...]:
        words = terms(query)
        if not words and vector is None:
            return ()
        filter_values = orjson.dumps(wanted_values(filters)).decode() if filters else ""
        search = ChunkQuery(words, top_k, orjson.dumps(list(owners)).decode(), filter_values, vector)
        return await self._database.read(self._find, search)

    async def foreign_documents(self) -> tuple[ForeignDocument, ...]:
        rows = await self._queries.read("foreign_documents", self._embedder)
        return tuple(ForeignDocument(*row) for row in rows)

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
        owners = connection.execute(SQL["owners"], (query.owners,)).fetchall()
        if not owners:
            return ()
        numbers = [number for number, _ in owners]
        documents = _filtered_documents(connection, query.filters, numbers) if query.filters else None
        corpus = Corpus(state, headings="{title heading} : ", scope=_scope(owners), documents=documents)
        limit = candidate_count(query.top_k)
        candidates = self._search.propose(connection, corpus, query.terms, limit)
        found = self._search.score(connection, corpus, candidates, len(query.terms))
        if query.vector is not None:
            near = self._nearest(connection, query.vector, state, limit, numbers, documents)
            found = fuse_rankings(found, near, semantic=self._semantic)
        return tuple(_passage(connection, row, score) for row, score in found[: query.top_k])

    def _nearest(
        self,
        connection: sqlite3.Connection,
        vector: array[float],
        state: TableState,
        limit: int,
        owners: Sequence[int],
        documents: str | None,
    ) -> list[tuple[int, float]]:
        among = None
        if documents is not None:
            among = [row for (row,) in connection.execute(SQL["chunks_of"], (documents,))]
        near: list[tuple[int, float]] = []
        for owner in owners:
            index = self._search.index(connection, (owner, self._embedder), state, len(vector))
            near += index.nearest(vector, limit, among)
        best = sorted(near, key=lambda one: (-one[1], one[0]))[:limit]
        return [(row, min(1.0, cosine)) for row, cosine in best if cosine > 0]


def _scope(owners: Sequence[tuple[int, int]]) -> str:
    """An FTS5 expression for the chunks of these owners; empty if they are all owners of the file.

    Args:
        owners: the number of each, and how many owners there are.
    """
    if len(owners) == owners[0][1]:
        return ""
    return f"owner : ({match_any([f'{OWNER_MARK}{number}' for number, _ in owners])}) AND "


def _filtered_documents(connection: sqlite3.Connection, filters: str, owners: Sequence[int]) -> str:
    """The numbers of the owners' documents whose metadata have these values, as JSON."""
    rows = connection.execute(SQL["documents_with"], (filters, orjson.dumps(owners).decode()))
    return orjson.dumps([number for (number,) in rows]).decode()


def _passage(connection: sqlite3.Connection, row: int, score: float) -> Passage:
    document, text, start, end, heading, metadata = connection.execute(SQL["passage"], (row,)).fetchone()
    return Passage(Chunk(document, text, start, end, heading, orjson.loads(metadata)), score)


async def _insert(one: IndexedDocument, owner: int, embedder: str, tx: Transaction) -> None:
    title = one.document.title
    metadata = orjson.dumps({"title": title, **one.document.metadata}).decode()
    await tx.execute("put_document", owner, one.document.id, one.known.hash, one.known.stamp, metadata)
    [(number,)] = await tx.fetch("last_row")
    for place, chunk in enumerate(one.chunks):
        await tx.execute("put_chunk", number, chunk.start, chunk.end)
        [(row,)] = await tx.fetch("last_row")
        await tx.execute("put_words", row, owner, title, chunk.heading, chunk.text)
        if one.vectors:
            await tx.execute("put_vector", row, owner, embedder, vector_blob(one.vectors[place]))


async def _drop(owner: str, name: str, tx: Transaction) -> None:
    for (number,) in await tx.fetch("number", owner, name):
        for query in ("drop_words", "drop_vectors", "drop_chunks", "drop_document"):
            await tx.execute(query, number)
        await tx.execute("count_removal")
