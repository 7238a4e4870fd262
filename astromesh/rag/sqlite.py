"""Chunks in SQLite, found by words: FTS5 with BM25, Porter stems and folded accents.

Each pipeline has a file of its own, `DATA/rag/PIPELINE.db`: BM25 then counts words over this pipeline alone,
and a file can be deleted to start anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.rag import Chunk, Indexed, Known, Passage
from astromesh.retrieval.words import any_of, beginnings, score, terms
from astromesh.storage.database import Database, shared_database
from astromesh.storage.migrations import Schema, queries

SQL = queries("astromesh.rag", "sql/queries.sql")
SCHEMA = Schema("chunks", "astromesh.rag", "sql")

#: passages that BM25 proposes for each one that is asked for
_CANDIDATES = 4


class Search(NamedTuple):
    """Args: filters: JSON object of lists of wanted values, or empty."""

    terms: tuple[str, ...]
    top_k: int
    filters: str = ""


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
        return SqliteChunks(database)

    async def close(self) -> None:
        """The files are closed with the runtime's resources."""


class SqliteChunks:
    """A `ChunkStore`; every method is one job of the database's threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def known(self) -> Mapping[str, Known]:
        return await self._database.read(_known, None)

    async def replace(self, documents: Sequence[Indexed]) -> None:
        await self._database.write(_replace, documents)

    async def touch(self, stamps: Mapping[str, str]) -> None:
        await self._database.write(_touch, stamps)

    async def remove(self, ids: Sequence[str]) -> None:
        await self._database.write(_remove, ids)

    async def search(
        self, query: str, *, top_k: int, filters: Mapping[str, Any] | None = None
    ) -> tuple[Passage, ...]:
        wanted = terms(query)
        if not wanted:
            return ()
        values = {
            key: value if isinstance(value, list) else [value] for key, value in (filters or {}).items()
        }
        search = Search(wanted, top_k, orjson.dumps(values).decode() if values else "")
        return await self._database.read(_search, search)

    async def ping(self) -> None:
        await self._database.ping()


# -- work for the database's threads -----------------------------------------------------------------------


def _known(connection: sqlite3.Connection, items: Sequence[None]) -> Sequence[Mapping[str, Known]]:
    found = {name: Known(*about) for name, *about in connection.execute(SQL["known"])}
    return [found] * len(items)


def _replace(connection: sqlite3.Connection, items: Sequence[Sequence[Indexed]]) -> Sequence[None]:
    for documents in items:
        for one in documents:
            _drop(connection, one.document.id)
            _put(connection, one)
    return [None] * len(items)


def _put(connection: sqlite3.Connection, one: Indexed) -> None:
    name, title = one.document.id, one.document.title
    metadata = orjson.dumps({"title": title, **one.document.metadata}).decode()
    connection.execute(SQL["put_document"], (name, one.known.hash, one.known.stamp, metadata))
    for chunk in one.chunks:
        row = connection.execute(SQL["put_chunk"], (name, chunk.start, chunk.end)).lastrowid
        connection.execute(SQL["put_words"], (row, title, chunk.heading, chunk.text))


def _drop(connection: sqlite3.Connection, name: str) -> None:
    for query in ("drop_words", "drop_chunks", "drop_document"):
        connection.execute(SQL[query], (name,))


def _touch(connection: sqlite3.Connection, items: Sequence[Mapping[str, str]]) -> Sequence[None]:
    for stamps in items:
        connection.executemany(SQL["touch"], ((stamp, name) for name, stamp in stamps.items()))
    return [None] * len(items)


def _remove(connection: sqlite3.Connection, items: Sequence[Sequence[str]]) -> Sequence[None]:
    for names in items:
        for name in names:
            _drop(connection, name)
    return [None] * len(items)


def _search(
    connection: sqlite3.Connection, items: Sequence[Search]
) -> Sequence[tuple[Passage, ...] | BaseException]:
    return [_search_one(connection, item) for item in items]


def _search_one(connection: sqlite3.Connection, search: Search) -> tuple[Passage, ...]:
    """First words in any inflection; only where that finds nothing, words that begin alike."""
    for expression in (any_of, beginnings):
        wanted = expression(search.terms)
        if wanted and (found := _ranked(connection, wanted, search)):
            matched = _matches(connection, found, (expression([term]) for term in search.terms))
            return _best(connection, found, matched, search)
    return ()


def _ranked(connection: sqlite3.Connection, wanted: str, search: Search) -> dict[int, float]:
    most = search.top_k * _CANDIDATES
    if search.filters:
        rows = connection.execute(SQL["search_filtered"], (wanted, search.filters, most))
    else:
        rows = connection.execute(SQL["search"], (wanted, most))
    return dict(rows.fetchall())


def _matches(connection: sqlite3.Connection, found: Iterable[int], singles: Iterable[str]) -> dict[int, int]:
    """How many of the terms each candidate has."""
    matched = dict.fromkeys(found, 0)
    candidates = orjson.dumps(list(matched)).decode()
    for single in filter(None, singles):
        for (row,) in connection.execute(SQL["has_term"], (single, candidates)):
            matched[row] += 1
    return matched


def _best(
    connection: sqlite3.Connection, found: Mapping[int, float], matched: Mapping[int, int], search: Search
) -> tuple[Passage, ...]:
    top, sought = max(found.values()), len(search.terms)
    scored = [(score(matched[row], sought, rank, top), row) for row, rank in found.items()]
    scored.sort(key=lambda one: (-one[0], one[1]))
    return tuple(_passage(connection, row, points) for points, row in scored[: search.top_k])


def _passage(connection: sqlite3.Connection, row: int, points: float) -> Passage:
    document, text, start, end, heading, metadata = connection.execute(SQL["passage"], (row,)).fetchone()
    return Passage(Chunk(document, text, start, end, heading, orjson.loads(metadata)), points)
