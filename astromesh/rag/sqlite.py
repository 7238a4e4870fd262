"""Chunks in SQLite, found by words (FTS5: BM25, Porter stems, folded accents), by vectors, or by both.

Each pipeline has a file of its own, `DATA/rag/PIPELINE.db`: BM25 then counts words over this pipeline alone,
and a file can be deleted to start anew. How it is read stands in `sqlite_search`.
"""

from __future__ import annotations

import sqlite3
import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.rag import Indexed, Known, Passage
from astromesh.rag.sqlite_search import SQL, Search, Searching
from astromesh.retrieval.words import terms
from astromesh.storage.database import Database, shared_database
from astromesh.storage.lane import Work
from astromesh.storage.migrations import Schema

SCHEMA = Schema("chunks", "astromesh.rag", "sql")


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
        """The files are closed with the runtime's resources."""


class SqliteChunks:
    """A `ChunkStore`; every method is one job of the database's threads.

    Args:
        embedder: fingerprint of the one whose vectors come; those of others are kept and not searched.
    """

    def __init__(self, database: Database, embedder: str = "") -> None:
        self._database = database
        self._searching = Searching(embedder)
        self._replaced: Work[Sequence[Indexed], None] = partial(_replace, embedder)

    async def known(self) -> Mapping[str, Known]:
        return await self._database.read(_known, None)

    async def replace(self, documents: Sequence[Indexed]) -> None:
        await self._database.write(self._replaced, documents)

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
        wanted = terms(query)
        if not wanted and vector is None:
            return ()
        values = {
            key: value if isinstance(value, list) else [value] for key, value in (filters or {}).items()
        }
        search = Search(wanted, top_k, orjson.dumps(values).decode() if values else "", vector)
        return await self._database.read(self._searching.search, search)

    async def settle(self) -> None:
        """Everything is fast at once."""

    async def ping(self) -> None:
        await self._database.ping()


# -- work for the database's threads -----------------------------------------------------------------------


def _known(connection: sqlite3.Connection, items: Sequence[None]) -> Sequence[Mapping[str, Known]]:
    found = {name: Known(*about) for name, *about in connection.execute(SQL["known"])}
    return [found] * len(items)


def _replace(
    embedder: str, connection: sqlite3.Connection, items: Sequence[Sequence[Indexed]]
) -> Sequence[None]:
    for documents in items:
        for one in documents:
            _drop(connection, one.document.id)
            _put(connection, one, embedder)
    return [None] * len(items)


def _put(connection: sqlite3.Connection, one: Indexed, embedder: str) -> None:
    name, title = one.document.id, one.document.title
    metadata = orjson.dumps({"title": title, **one.document.metadata}).decode()
    connection.execute(SQL["put_document"], (name, one.known.hash, one.known.stamp, metadata))
    rows = []
    for chunk in one.chunks:
        row = connection.execute(SQL["put_chunk"], (name, chunk.start, chunk.end)).lastrowid
        connection.execute(SQL["put_words"], (row, title, chunk.heading, chunk.text))
        rows.append(row)
    if one.vectors:
        blobs = [(row, embedder, _blob(vector)) for row, vector in zip(rows, one.vectors, strict=True)]
        connection.executemany(SQL["put_vector"], blobs)


def _blob(vector: array[float]) -> bytes:
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()


def _drop(connection: sqlite3.Connection, name: str) -> None:
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
            _drop(connection, name)
    return [None] * len(items)
