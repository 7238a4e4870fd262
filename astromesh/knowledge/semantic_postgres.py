"""Semantic memory in PostgreSQL, searched by `knowledge.postgres_search`.

Vectors of a scope that has few are compared one by one, which is exact; beyond `EXACT`, the HNSW index of
their space is searched. Every query is in `sql/postgres/passages.sql`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel

from astromesh.knowledge.passages import (
    TRIM_EVERY,
    PassageRow,
    PassageStore,
    Scope,
    SemanticOptions,
    SemanticQuery,
    to_result,
)
from astromesh.knowledge.postgres_search import PassageSearch, Ranking, fill, index_type
from astromesh.knowledge.ranking import candidate_count, fuse_results
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, opened_store, queries
from astromesh.storage.postgres import (
    Connection,
    Postgres,
    PostgresOptions,
    escape_nul,
    shared_postgres,
    unescape_nul,
)
from astromesh.telemetry.clock import Clock
from astromesh.types import SemanticResult, SessionKey

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


class PgvectorOptions(SemanticOptions, PostgresOptions):
    pass


class Space(NamedTuple):
    """The vectors that may be compared: those of one embedder and size. Args: size: dimensions."""

    id: int = 0
    size: int = 0

    def sql(self, name: str, **more: object) -> str:
        return fill(SQL[name], space=self.id, type=index_type(self.size), size=self.size, **more)


class PgvectorPassages(PassageStore):
    """The plugin `pgvector`: a SemanticStore over one database."""

    Options: ClassVar[type[BaseModel]] = PgvectorOptions

    @classmethod
    async def open(cls, options: PgvectorOptions, deps: Deps) -> Self:
        """Raises: ConfigError: no URL. StoreError: the database refuses us, or has no pgvector."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        made = PgvectorTable(database, deps.clock)
        table: PgvectorTable = await deps.resources.shared(
            (cls, database), lambda: opened_store(database, SCHEMA, made, deps.clock)
        )
        return cls(table, options, deps.embedder, deps.clock)


class FoundPassage(NamedTuple):
    content: str
    metadata: str
    cosine: float | None


class PgvectorTable:
    """The passages of one database."""

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database = database
        self._search = PassageSearch(database, clock)
        self._spaces: dict[str, Space] = {}
        self._large: set[tuple[Scope, int]] = set()
        self._added: Counter[Scope] = Counter()

    async def add(self, scope: Scope, passages: Sequence[PassageRow], max_passages: int) -> None:
        sizes = {p.space: len(p.vector) // 4 for p in passages if p.vector is not None}
        spaces = {name: await self._create_space(name, size) for name, size in sizes.items()}
        rows = [_row(scope, passage, spaces.get(passage.space)) for passage in passages]
        await self._database.transact(partial(_add, rows), deadline=max(5.0, len(rows) * _ROW_SECONDS))
        self._added[scope] += len(passages)
        if self._added[scope] >= min(TRIM_EVERY, max_passages):
            del self._added[scope]
            await self._database.write(SQL["trim"], *scope, max_passages)

    async def search(self, query: SemanticQuery) -> tuple[SemanticResult, ...]:
        scope, limit = query.scope, candidate_count(query.top_k)
        space = await self._space(query.space, len(query.vector)) if query.vector else None
        near, by_words = await asyncio.gather(
            self._nearest(scope, space, query.vector, limit),
            self._search.by_words(Space().sql, query.words, limit, scope),
        )
        found = await self._passages(query, {one for one, _ in (*near, *by_words)}, space)
        cosines = {one: row.cosine for one, row in found.items() if row.cosine is not None}
        best = fuse_results(near, by_words, cosines, top_k=limit, threshold=query.threshold)
        alive = [(found[one], score) for one, score in best if one in found][: query.top_k]
        return tuple(to_result(unescape_nul(row.content), row.metadata, score) for row, score in alive)

    async def owned(
        self, tenant: str, owner: str, after: int, now: float, limit: int
    ) -> Iterable[tuple[Any, ...]]:
        rows = await self._database.read(SQL["owned"], tenant, owner, after, now, limit)
        return [(row[0], row[1], unescape_nul(row[2]), row[3]) for row in rows]

    async def facts(self, tenant: str, owner: str, agent: str, now: float) -> Iterable[tuple[Any, ...]]:
        rows = await self._database.read(SQL["facts"], tenant, owner, agent, now)
        return [(row[0], row[1], unescape_nul(row[2]), row[3]) for row in rows]

    async def forget(self, tenant: str, owner: str, agent: str, hashed: bytes) -> int:
        return len(await self._database.write(SQL["forget"], tenant, owner, agent, hashed))

    async def erase(self, key: SessionKey) -> int:
        return len(await self._database.write(SQL["erase"], *key))

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write_in_chunks(SQL["erase_owner"], tenant, owner, chunk=_CHUNK)

    async def expire(self, now: float) -> int:
        return await self._database.write_in_chunks(SQL["expire"], now, chunk=_CHUNK)

    async def ping(self) -> None:
        await self._database.ping()

    async def _space(self, name: str, size: int) -> Space | None:
        """The space of a name, None if nothing is stored in it."""
        if name not in self._spaces:
            rows = await self._database.read(SQL["space"], name)
            if not rows:
                return None
            self._spaces[name] = Space(rows[0][0], size)
        return self._spaces[name]

    async def _create_space(self, name: str, size: int) -> Space:
        """The space of a name, with its index."""
        found = await self._space(name, size)
        if found is None:
            found = await self._database.transact(
                partial(_create_space, name, size), deadline=_INDEX_DEADLINE
            )
            self._spaces[name] = found
        return found

    async def _nearest(
        self, scope: Scope, space: Space | None, vector: Sequence[float], limit: int
    ) -> Ranking:
        """Ids with their cosine, nearest first."""
        if space is None:
            return []
        has_index = bool(index_type(space.size))
        if not has_index or (scope, space.id) not in self._large:
            most = EXACT + 1 if has_index else None
            rows = await self._database.read(space.sql("near_exactly"), *scope, vector, limit, most)
            if not rows or not has_index or rows[0]["held"] <= EXACT:
                return [(row[0], row[1]) for row in rows]
            self._mark_large(scope, space)
        return await self._search.nearest(space.sql, vector, limit, scope)

    async def _passages(
        self, query: SemanticQuery, ids: Iterable[int], space: Space | None
    ) -> Mapping[int, FoundPassage]:
        """The passages that have not expired, with their cosines."""
        vector = (space.id, query.vector) if space else (None, None)
        rows = await self._database.read(SQL["passages"], *query.scope, list(ids), query.now, *vector)
        return {row[0]: FoundPassage(*row[1:]) for row in map(tuple, rows)}

    def _mark_large(self, scope: Scope, space: Space) -> None:
        if len(self._large) >= _MAX_LARGE_SCOPES:
            self._large.clear()
        self._large.add((scope, space.id))


async def _add(rows: Sequence[tuple[Any, ...]], connection: Connection) -> None:
    await connection.executemany(SQL["add"], rows)


async def _create_space(name: str, size: int, connection: Connection) -> Space:
    """Creates a space and its index; another process that creates it waits until both are there.

    A space that exists is not locked: who adds passages waits for its row, and its index waits for them.
    """
    await connection.execute(SQL["make_space"], name)
    space = Space(await connection.fetchval(SQL["space"], name), size)
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
        passage.kind,
        space.id if space else None,
        vector,
    )
