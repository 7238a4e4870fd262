"""The chunks of RAG pipelines in PostgreSQL, searched by `knowledge.postgres_search`.

Every pipeline has a partition of one table. Its words are cut and folded before they reach PostgreSQL, so
that PostgreSQL's parser (which sees e-mail addresses, versions and paths) does not decide what a word is. The
HNSW index is built after an ingest, which is many times faster than during it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel

from astromesh.knowledge.base import (
    OPERATOR,
    Chunk,
    DocumentVersion,
    Embedder,
    ForeignDocument,
    IndexedDocument,
    ListedDocument,
    Passage,
    Piece,
    StoredDocument,
    wanted_values,
)
from astromesh.knowledge.postgres_search import PassageSearch, Ranking, fill, index_type
from astromesh.knowledge.ranking import candidate_count, fold, fuse_rankings, terms, words_of
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.postgres import (
    Connection,
    Postgres,
    PostgresOptions,
    escape_nul,
    shared_postgres,
    unescape_nul,
)
from astromesh.telemetry.clock import Clock, SystemClock

SCHEMA = Schema("rag", "astromesh.knowledge", "sql/postgres/chunks")
SQL = queries("astromesh.knowledge", "sql/postgres/chunks.sql")

#: vectors that are compared one by one; more get an index
MAX_COMPARED = 1_000
#: chunks written until the index of words is cleaned and the planner's statistics are renewed
_VACUUM_AFTER = 100
#: seconds for a batch of documents, and for an index over all vectors
_BATCH_DEADLINE, _INDEX_DEADLINE = 300.0, 7200.0


class Partition(NamedTuple):
    """A pipeline's partition of the table. Args: space, size: 0 if there are no vectors."""

    pipeline: int = 0
    space: int = 0
    size: int = 0

    def sql(self, name: str, **more: object) -> str:
        own = {"pipeline": self.pipeline, "space": self.space, "size": self.size}
        return fill(SQL[name], **own, type=index_type(self.size) or "vector", **more)


class _Searched(NamedTuple):
    """The documents that a query searches.

    Args:
        owners: whose documents.
        owned, documents: only these documents, each with its owner in the other list; None for all.
    """

    owners: list[str]
    owned: list[str] | None = None
    documents: list[str] | None = None


class PgvectorChunkStores:
    """The `pgvector` store of RAG pipelines."""

    Options: ClassVar[type[BaseModel]] = PostgresOptions

    def __init__(self, database: Postgres, embedder: Embedder | None, clock: Clock) -> None:
        self._database, self._embedder, self._clock = database, embedder, clock

    @classmethod
    async def open(cls, options: PostgresOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a newer astromesh wrote the database. StoreError: it refuses us."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        await deps.resources.shared((cls, database.address), lambda: _migrated(database))
        return cls(database, deps.embedder, deps.clock)

    async def collection(self, pipeline: str) -> PgvectorChunks:
        one = self._embedder
        return PgvectorChunks(
            self._database, pipeline, one.fingerprint if one else "", self._clock,
            semantic=one is not None and one.semantic,
        )  # fmt: skip

    async def close(self) -> None:
        """Does nothing: the pool closes with the runtime's resources."""


@asynccontextmanager
async def _migrated(database: Postgres) -> AsyncIterator[None]:
    """Migrates the tables, once for each database."""
    await database.migrate(SCHEMA)
    yield


class PgvectorChunks:
    """A `ChunkStore`.

    Args:
        embedder: fingerprint of the embedder; vectors of other embedders stay stored and are not searched.
        semantic: whether near vectors mean similar meaning.
    """

    def __init__(
        self, database: Postgres, pipeline: str, embedder: str = "", clock: Clock | None = None,
        *, semantic: bool = False,
    ) -> None:  # fmt: skip
        self._database, self._pipeline, self._embedder = database, pipeline, embedder
        self._semantic = semantic
        self._cached_partition: Partition | None = None
        self._create_lock = asyncio.Lock()
        self._search = PassageSearch(database, clock or SystemClock(), fold_words)
        self._written = 0

    async def known(self, owner: str = OPERATOR) -> Mapping[str, DocumentVersion]:
        partition = await self._partition()
        rows = await self._database.read(partition.sql("known"), escape_nul(owner))
        return {
            unescape_nul(name): DocumentVersion(digest, unescape_nul(stamp)) for name, digest, stamp in rows
        }

    async def documents(
        self, owner: str = OPERATOR, *, after: str = "", limit: int = 100
    ) -> tuple[ListedDocument, ...]:
        partition = await self._partition()
        bound = (escape_nul(owner), escape_nul(after), limit)
        rows = await self._database.read(partition.sql("documents"), *bound)
        return tuple(
            ListedDocument(unescape_nul(name), _with_nul(orjson.loads(metadata))) for name, metadata in rows
        )

    async def document(self, name: str, owner: str = OPERATOR) -> StoredDocument | None:
        partition = await self._partition()
        rows = await self._database.read(partition.sql("document"), escape_nul(owner), escape_nul(name))
        if not rows:
            return None
        pieces = tuple(
            Piece(start, unescape_nul(text), unescape_nul(heading))
            for _, start, text, heading in rows
            if text is not None
        )
        return StoredDocument(name, _with_nul(orjson.loads(rows[0][0])), pieces)

    async def replace(self, documents: Sequence[IndexedDocument], owner: str = OPERATOR) -> None:
        partition = await self._partition(next((len(one.vectors[0]) for one in documents if one.vectors), 0))
        replace = partial(_replace, partition, escape_nul(owner), documents)
        await self._database.transact(replace, deadline=_BATCH_DEADLINE)
        self._written += sum(len(one.chunks) for one in documents)

    async def touch(self, stamps: Mapping[str, str], owner: str = OPERATOR) -> None:
        partition = await self._partition()
        names, values = map(escape_nul, stamps), map(escape_nul, stamps.values())
        await self._database.write(partition.sql("touch"), list(names), list(values), escape_nul(owner))

    async def remove(self, ids: Sequence[str], owner: str = OPERATOR) -> None:
        partition = await self._partition()
        drop = partial(_drop, partition, escape_nul(owner), ids)
        await self._database.transact(drop, deadline=_BATCH_DEADLINE)

    async def search(
        self,
        query: str,
        *,
        top_k: int,
        owners: Sequence[str] = (OPERATOR,),
        filters: Mapping[str, Any] | None = None,
        vector: array[float] | None = None,
    ) -> tuple[Passage, ...]:
        partition = await self._partition(len(vector) if vector is not None else 0)
        words, limit = terms(query), candidate_count(top_k)
        searched = await self._searched_documents(partition, list(map(escape_nul, owners)), filters)
        by_words = self._search.by_words(partition.sql, words, limit, searched)
        if vector is None:
            found = await by_words
        else:
            found, near = await asyncio.gather(by_words, self._nearest(partition, vector, limit, searched))
            found = fuse_rankings(found, near, semantic=self._semantic)
        return await self._passages(partition, found[:top_k])

    async def foreign_documents(self) -> tuple[ForeignDocument, ...]:
        partition = await self._partition()
        rows = await self._database.read(partition.sql("foreign_documents"), escape_nul(f"{self._embedder}/"))
        return tuple(
            ForeignDocument(unescape_nul(owner), unescape_nul(name), unescape_nul(space).rpartition("/")[0])
            for owner, name, space in rows
        )

    async def settle(self) -> None:
        """Builds the HNSW index once there are many vectors; that may take minutes."""
        partition = await self._partition()
        if (
            partition.space
            and index_type(partition.size)
            and not (await self._database.read(partition.sql("has_index")))[0][0]
        ):
            count = (await self._database.read(partition.sql("count_vectors"), MAX_COMPARED))[0][0]
            if count >= MAX_COMPARED:
                make_index = partial(_execute, partition.sql("make_index"))
                await self._database.transact(make_index, deadline=_INDEX_DEADLINE)
                self._written = _VACUUM_AFTER  # with old statistics, PostgreSQL would not use the index
        if self._written >= _VACUUM_AFTER:
            self._written = 0
            tidy = partial(_execute, partition.sql("tidy"))
            await self._database.transact(tidy, deadline=_BATCH_DEADLINE)
            self._search.forget()

    async def ping(self) -> None:
        await self._database.ping()

    async def _nearest(
        self, partition: Partition, vector: array[float], limit: int, searched: _Searched
    ) -> Ranking:
        if searched.documents is None:
            return await self._search.nearest(partition.sql, vector, limit, searched[:1], filter="")
        condition = "AND (owner, document) IN (SELECT * FROM unnest($4::TEXT[], $5::TEXT[]))"
        return await self._search.nearest(partition.sql, vector, limit, searched, filter=condition)

    async def _searched_documents(
        self, partition: Partition, owners: list[str], filters: Mapping[str, Any] | None
    ) -> _Searched:
        if not filters:
            return _Searched(owners)
        bound = orjson.dumps(without_nul(wanted_values(filters))).decode()
        rows = await self._database.read(partition.sql("documents_with"), bound, owners)
        return _Searched(owners, [owner for owner, _ in rows], [name for _, name in rows])

    async def _passages(self, partition: Partition, found: Ranking) -> tuple[Passage, ...]:
        """The chunks that are still there, with their scores."""
        if not found:
            return ()
        rows = await self._database.read(partition.sql("passages"), [row for row, _ in found])
        chunks = {row: _chunk(*columns) for row, *columns in rows}
        return tuple(Passage(chunks[row], score) for row, score in found if row in chunks)

    async def _partition(self, size: int = 0) -> Partition:
        """This pipeline's partition, created on first use; with its space once that is known.

        Args:
            size: dimensions of the vectors, 0 if there are none.
        """
        cached = self._cached_partition
        if cached is not None and (not size or cached.size == size):
            return cached
        async with self._create_lock:
            if self._cached_partition is None or (size and self._cached_partition.size != size):
                space = f"{self._embedder}/{size}" if size else ""
                create = partial(_create_partition, self._pipeline, space, size)
                self._cached_partition = await self._database.transact(create)
            return self._cached_partition


async def _create_partition(name: str, space: str, size: int, connection: Connection) -> Partition:
    partition = Partition(await connection.fetchval(Partition().sql("make_pipeline"), name))
    # the changed row is locked: of several processes, one at a time creates the partition
    await connection.execute(partition.sql("make_part"))
    number = await connection.fetchval(partition.sql("make_space"), escape_nul(space)) if space else 0
    return partition._replace(space=number, size=size)


async def _replace(
    partition: Partition, owner: str, documents: Sequence[IndexedDocument], connection: Connection
) -> None:
    names = [escape_nul(one.document.id) for one in documents]
    await connection.execute(partition.sql("drop_chunks"), owner, names)
    versions = [(owner, *_document_row(one)) for one in documents]
    await connection.executemany(partition.sql("put_document"), versions)
    rows = [(owner, *row) for one in documents for row in _chunk_rows(one, partition.space)]
    await connection.executemany(partition.sql("put_chunk"), rows)


async def _drop(partition: Partition, owner: str, ids: Sequence[str], connection: Connection) -> None:
    names = [escape_nul(name) for name in ids]
    await connection.execute(partition.sql("drop_chunks"), owner, names)
    await connection.execute(partition.sql("drop_documents"), owner, names)


async def _execute(statements: str, connection: Connection) -> None:
    await connection.execute(statements)


def _document_row(one: IndexedDocument) -> tuple[str, str, str, str]:
    name, stamp = escape_nul(one.document.id), escape_nul(one.known.stamp)
    metadata = without_nul({"title": one.document.title, **one.document.metadata})
    return name, one.known.hash, stamp, orjson.dumps(metadata).decode()


def _chunk_rows(one: IndexedDocument, space: int) -> list[tuple[Any, ...]]:
    name, title = escape_nul(one.document.id), fold_words(one.document.title)
    return [
        (
            name, chunk.start, chunk.end, escape_nul(chunk.heading), escape_nul(chunk.text),
            title, fold_words(chunk.heading), fold_words(chunk.text),
            space if one.vectors else None, one.vectors[place].tolist() if one.vectors else None,
        )
        for place, chunk in enumerate(one.chunks)
    ]  # fmt: skip


def _chunk(document: str, text: str, start: int, end: int, heading: str, metadata: str) -> Chunk:
    values = _with_nul(orjson.loads(metadata))
    return Chunk(unescape_nul(document), unescape_nul(text), start, end, unescape_nul(heading), values)


def fold_words(text: str) -> str:
    """The words of a text in lower case and without accents, separated by single spaces."""
    return " ".join(words_of(fold(text).lower()))  # NFKD may make upper case of one sign, e.g. of U+2121


def without_nul(value: Any) -> Any:
    """JSON that PostgreSQL can store: NUL is escaped in every text."""
    return _map_texts(escape_nul, value)


def _with_nul(value: Any) -> Any:
    return _map_texts(unescape_nul, value)


def _map_texts(change: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_map_texts(change, one) for one in value]
    if isinstance(value, Mapping):
        return {_map_texts(change, key): _map_texts(change, one) for key, one in value.items()}
    return value
