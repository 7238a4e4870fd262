"""Semantic memory in PostgreSQL, searched by `knowledge.postgres_search`.

Vectors of a scope that has few are compared one by one, which is exact; beyond `EXACT`, the HNSW index of
their space is searched. Every query is in `sql/postgres/passages.sql`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, Field, SecretStr

from astromesh.knowledge.base import Embedder, OwnedPassage
from astromesh.knowledge.passages import (
    TRIM_EVERY,
    PassageRow,
    Scope,
    SemanticOptions,
    prepare_passages,
    to_result,
    vector_space,
)
from astromesh.knowledge.postgres_search import PassageSearch, Ranking, fill, index_type
from astromesh.knowledge.ranking import candidate_count, fuse_results
from astromesh.knowledge.words import terms
from astromesh.plugins import Deps
from astromesh.storage.expiry import expire_periodically
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.postgres import Connection, Postgres, escape_nul, shared_postgres, unescape_nul
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, SemanticResult, SessionKey

_PACKAGE = "astromesh.knowledge"
SCHEMA = Schema("passages", _PACKAGE, "sql/postgres/passages")
SQL = queries(_PACKAGE, "sql/postgres/passages.sql")

#: passages of a scope up to which all vectors are compared
EXACT = 5000
#: seconds that building an index may take
_INDEX_DEADLINE = 600.0
#: seconds that a passage may take to enter the index, of many at once
_ROW_SECONDS = 0.1
#: passages deleted in one statement
_CHUNK = 500
#: large scopes that stay in memory
_MAX_LARGE_SCOPES = 10_000


class PgvectorOptions(SemanticOptions):
    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


class Space(NamedTuple):
    """The vectors that may be compared: those of one embedder and size. Args: size: dimensions."""

    id: int = 0
    size: int = 0

    def sql(self, name: str, **more: object) -> str:
        return fill(SQL[name], space=self.id, type=index_type(self.size), size=self.size, **more)


class PgvectorPassages:
    """A SemanticStore over one database.

    Args:
        table: the passages of the database, shared by all agents that use it.
        embedder: None for words only.
    """

    Options: ClassVar[type[BaseModel]] = PgvectorOptions

    def __init__(
        self, table: PassageTable, options: SemanticOptions, embedder: Embedder | None, clock: Clock
    ) -> None:
        self._table, self._options, self._embedder, self._clock = table, options, embedder, clock

    @classmethod
    async def open(cls, options: PgvectorOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL. StoreError: the database refuses us, or has no pgvector."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        table: PassageTable = await deps.resources.shared(
            (cls, database.address), lambda: PassageTable.open_shared(database, deps.clock)
        )
        return cls(table, options, deps.embedder, deps.clock)

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        rows = await prepare_passages(passages, self._embedder, self._clock.now(), self._options.ttl)
        if rows:
            await self._table.add(Scope(tenant, agent, owner), rows, self._options.max_passages)

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        scope, limit = Scope(tenant, agent, owner), candidate_count(top_k)
        space: Space | None = None
        vector: Sequence[float] = ()
        if self._embedder is not None:
            vector = (await self._embedder.embed([query]))[0]
            space = await self._table.space(vector_space(self._embedder, len(vector)), len(vector))
        near, by_words = await asyncio.gather(
            self._table.nearest(scope, space, vector, limit),
            self._table.by_words(scope, terms(query), limit),
        )
        ids = list({one for one, _ in (*near, *by_words)})
        found = await self._table.passages(scope, ids, space, vector, self._clock.now())
        cosines = {one: row.cosine for one, row in found.items() if row.cosine is not None}
        best = fuse_results(near, by_words, cosines, top_k=limit, threshold=threshold)
        alive = [(found[one], score) for one, score in best if one in found][:top_k]
        return tuple(to_result(unescape_nul(row.content), row.metadata, score) for row, score in alive)

    @property
    def place(self) -> Hashable:
        return self._table

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        bound = (tenant, owner, after, self._clock.now(), limit)
        rows = await self._table.database.read(SQL["owned"], *bound)
        return tuple(
            OwnedPassage(number, agent, unescape_nul(content), orjson.loads(metadata))
            for number, agent, content, metadata in rows
        )

    async def erase(self, key: SessionKey) -> int:
        return await self._table.delete("erase", *key)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._table.delete_in_chunks("erase_owner", tenant, owner)

    async def expire(self, now: float) -> int:
        return await self._table.expire(now)

    async def ping(self) -> None:
        await self._table.database.ping()

    async def close(self) -> None:
        """Does nothing: the pool closes with the runtime's resources."""


class FoundPassage(NamedTuple):
    content: str
    metadata: str
    cosine: float | None


class PassageTable:
    """The passages of one database."""

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self.database = database
        self._search = PassageSearch(database, clock)
        self._spaces: dict[str, Space] = {}
        self._large: set[tuple[Scope, int]] = set()
        self._added: Counter[Scope] = Counter()

    @classmethod
    @asynccontextmanager
    async def open_shared(cls, database: Postgres, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        table = cls(database, clock)
        async with expire_periodically(table.expire, clock):
            yield table

    async def add(self, scope: Scope, passages: Sequence[PassageRow], max_passages: int) -> None:
        sizes = {p.space: len(p.vector) // 4 for p in passages if p.vector is not None}
        spaces = {name: await self.create_space(name, size) for name, size in sizes.items()}
        rows = [_row(scope, passage, spaces.get(passage.space)) for passage in passages]
        await self.database.transact(partial(_add, rows), deadline=max(5.0, len(rows) * _ROW_SECONDS))
        self._added[scope] += len(passages)
        if self._added[scope] >= min(TRIM_EVERY, max_passages):
            del self._added[scope]
            await self.database.write(SQL["trim"], *scope, max_passages)

    async def space(self, name: str, size: int) -> Space | None:
        """The space of a name, None if nothing is stored in it."""
        if name not in self._spaces:
            rows = await self.database.read(SQL["space"], name)
            if not rows:
                return None
            self._spaces[name] = Space(rows[0][0], size)
        return self._spaces[name]

    async def create_space(self, name: str, size: int) -> Space:
        """The space of a name, with its index."""
        found = await self.space(name, size)
        if found is None:
            found = await self.database.transact(partial(_create_space, name, size), deadline=_INDEX_DEADLINE)
            self._spaces[name] = found
        return found

    async def nearest(
        self, scope: Scope, space: Space | None, vector: Sequence[float], limit: int
    ) -> Ranking:
        """Ids with their cosine, nearest first."""
        if space is None:
            return []
        has_index = bool(index_type(space.size))
        if not has_index or (scope, space.id) not in self._large:
            most = EXACT + 1 if has_index else None
            rows = await self.database.read(space.sql("near_exactly"), *scope, vector, limit, most)
            if not rows or not has_index or rows[0]["held"] <= EXACT:
                return [(row[0], row[1]) for row in rows]
            self._mark_large(scope, space)
        return await self._search.nearest(space.sql, vector, limit, scope)

    async def by_words(self, scope: Scope, words: Sequence[str], limit: int) -> Ranking:
        """Ids with the score of their words, best first."""
        return await self._search.by_words(Space().sql, words, limit, scope)

    async def passages(
        self, scope: Scope, ids: Sequence[int], space: Space | None, vector: Sequence[float], now: float
    ) -> Mapping[int, FoundPassage]:
        if not ids:
            return {}
        number = space.id if space else None
        rows = await self.database.read(SQL["passages"], *scope, ids, now, number, vector if space else None)
        return {row[0]: FoundPassage(*row[1:]) for row in (tuple(row) for row in rows)}

    async def expire(self, now: float) -> int:
        return await self.delete_in_chunks("expire", now)

    async def delete(self, name: str, *bound: object) -> int:
        return len(await self.database.write(SQL[name], *bound))

    async def delete_in_chunks(self, name: str, *bound: object) -> int:
        return await self.database.write_in_chunks(SQL[name], *bound, chunk=_CHUNK)

    def _mark_large(self, scope: Scope, space: Space) -> None:
        if len(self._large) >= _MAX_LARGE_SCOPES:
            self._large.clear()
        self._large.add((scope, space.id))


async def _add(rows: Sequence[tuple[Any, ...]], connection: Connection) -> None:
    await connection.executemany(SQL["add"], rows)


async def _create_space(name: str, size: int, connection: Connection) -> Space:
    """Creates a space and its index; other processes wait for the locked row until both are there."""
    space = Space(await connection.fetchval(SQL["make_space"], name), size)
    if index_type(size):
        await connection.execute(space.sql("index"))
    return space


def _row(scope: Scope, passage: PassageRow, space: Space | None) -> tuple[Any, ...]:
    vector = memoryview(passage.vector).cast("f").tolist() if passage.vector is not None else None
    return (
        *scope,
        passage.hash,
        passage.session_id,
        escape_nul(passage.content),
        passage.metadata,
        passage.created_at,
        passage.expires_at,
        space.id if space else None,
        vector,
    )
