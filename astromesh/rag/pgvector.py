"""Chunks in PostgreSQL with pgvector: words by a GIN index, vectors by an HNSW index, both at once.

Every pipeline has a part of one table. The index by nearness is built once there is something to gain by it,
after an ingest and not while it goes on, which is many times faster. How it is read stands in
`pgvector_search`; every query in `sql/postgres.sql`.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.abc.deps import Deps
from astromesh.abc.rag import Indexed, Known, Passage
from astromesh.rag.pgvector_search import Part, Searching, folded, kept
from astromesh.storage.migrations import Schema
from astromesh.storage.postgres import Connection, Postgres, shared_postgres
from astromesh.storage.postgres_text import restored, stored

SCHEMA = Schema("rag", "astromesh.rag", "sql/postgres")

#: vectors that are compared one by one; more get an index
MOST_COMPARED = 5_000
#: chunks after which the index by words is tidied and the planner told how many there are
_TIDIED_AFTER = 100
#: seconds for a batch of documents, and for an index over all vectors
_BATCH_DEADLINE, _INDEX_DEADLINE = 300.0, 7200.0


class PgvectorOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


class PgvectorChunkStores:
    """The `pgvector` store of RAG pipelines."""

    Options: ClassVar[type[BaseModel]] = PgvectorOptions

    def __init__(self, database: Postgres, embedder: str) -> None:
        self._database, self._embedder = database, embedder

    @classmethod
    async def open(cls, options: PgvectorOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a database of a newer astromesh. StoreError: it refuses us."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        await deps.resources.shared((cls, database.address), lambda: _Migrated(database))
        return cls(database, deps.embedder.fingerprint if deps.embedder else "")

    async def collection(self, pipeline: str) -> PgvectorChunks:
        return PgvectorChunks(self._database, pipeline, self._embedder)

    async def close(self) -> None:
        """The pool is closed with the runtime's resources."""


class _Migrated:
    """Brings the tables up to date, once for each database."""

    def __init__(self, database: Postgres) -> None:
        self._database = database

    async def __aenter__(self) -> None:
        await self._database.migrate(SCHEMA)

    async def __aexit__(self, *error: object) -> None:
        """Nothing to undo."""


class PgvectorChunks:
    """A `ChunkStore`.

    Args:
        embedder: fingerprint of the one whose vectors come; those of others are kept and not searched.
    """

    def __init__(self, database: Postgres, pipeline: str, embedder: str = "") -> None:
        self._database, self._pipeline, self._embedder = database, pipeline, embedder
        self._part: Part | None = None
        self._making = asyncio.Lock()
        self._searching = Searching(database)
        self._written = 0

    async def known(self) -> Mapping[str, Known]:
        part = await self._ready()
        rows = await self._database.read(part.sql("known"))
        return {restored(name): Known(about, restored(stamp)) for name, about, stamp in rows}

    async def replace(self, documents: Sequence[Indexed]) -> None:
        part = await self._ready(next((len(one.vectors[0]) for one in documents if one.vectors), 0))
        await self._database.transact(partial(_replace, part, documents), deadline=_BATCH_DEADLINE)
        self._written += sum(len(one.chunks) for one in documents)

    async def touch(self, stamps: Mapping[str, str]) -> None:
        part = await self._ready()
        names, values = map(stored, stamps), map(stored, stamps.values())
        await self._database.write(part.sql("touch"), list(names), list(values))

    async def remove(self, ids: Sequence[str]) -> None:
        part = await self._ready()
        await self._database.transact(partial(_drop, part, ids), deadline=_BATCH_DEADLINE)

    async def search(
        self,
        query: str,
        *,
        top_k: int,
        filters: Mapping[str, Any] | None = None,
        vector: array[float] | None = None,
    ) -> tuple[Passage, ...]:
        part = await self._ready(len(vector) if vector is not None else 0)
        return await self._searching.search(part, query, top_k=top_k, filters=filters, vector=vector)

    async def settle(self) -> None:
        """Builds the index by nearness once there are many vectors; that may take minutes."""
        part = await self._ready()
        if part.space and part.type and not (await self._database.read(part.sql("has_index")))[0][0]:
            held = (await self._database.read(part.sql("count_vectors"), MOST_COMPARED))[0][0]
            if held >= MOST_COMPARED:
                await self._database.transact(
                    partial(_execute, part.sql("make_index")), deadline=_INDEX_DEADLINE
                )
        if self._written >= _TIDIED_AFTER:
            self._written = 0
            await self._database.transact(partial(_execute, part.sql("tidy")), deadline=_BATCH_DEADLINE)
            self._searching.forget()

    async def ping(self) -> None:
        await self._database.ping()

    async def _ready(self, size: int = 0) -> Part:
        """This pipeline's part of the table, made when it is first used; with its space once that is known.

        Args:
            size: dimensions of the vectors, 0 where there are none.
        """
        part = self._part
        if part is not None and (not size or part.size == size):
            return part
        async with self._making:
            if self._part is None or (size and self._part.size != size):
                space = f"{self._embedder}/{size}" if size else ""
                self._part = await self._database.transact(partial(_make, self._pipeline, space, size))
            return self._part


# -- in a transaction ----------------------------------------------------------------------------------------


async def _make(name: str, space: str, size: int, connection: Connection) -> Part:
    part = Part(await connection.fetchval(Part().sql("make_pipeline"), name))
    # the lock of a changed row: of several processes, one at a time makes the part
    await connection.execute(part.sql("make_part"))
    number = await connection.fetchval(part.sql("make_space"), stored(space)) if space else 0
    return part._replace(space=number, size=size)


async def _replace(part: Part, documents: Sequence[Indexed], connection: Connection) -> None:
    await connection.execute(part.sql("drop_chunks"), [stored(one.document.id) for one in documents])
    await connection.executemany(part.sql("put_document"), [_document_row(one) for one in documents])
    rows = [row for one in documents for row in _chunk_rows(one, part.space)]
    await connection.executemany(part.sql("put_chunk"), rows)


async def _drop(part: Part, ids: Sequence[str], connection: Connection) -> None:
    names = [stored(name) for name in ids]
    await connection.execute(part.sql("drop_chunks"), names)
    await connection.execute(part.sql("drop_documents"), names)


async def _execute(statements: str, connection: Connection) -> None:
    await connection.execute(statements)


def _document_row(one: Indexed) -> tuple[str, str, str, str]:
    metadata = kept({"title": one.document.title, **one.document.metadata})
    return stored(one.document.id), one.known.hash, stored(one.known.stamp), orjson.dumps(metadata).decode()


def _chunk_rows(one: Indexed, space: int) -> list[tuple[Any, ...]]:
    name, title = stored(one.document.id), folded(one.document.title)
    return [
        (
            name, chunk.start, chunk.end, stored(chunk.heading), stored(chunk.text),
            title, folded(chunk.heading), folded(chunk.text),
            space if one.vectors else None, one.vectors[place].tolist() if one.vectors else None,
        )
        for place, chunk in enumerate(one.chunks)
    ]  # fmt: skip
