"""Passages in PostgreSQL: words by its text search, vectors by pgvector, both fused.

Vectors of a scope that has few are compared one by one, which is exact; beyond `EXACT`, the HNSW index of
their space is asked. Every query is in `sql/postgres/passages.sql`.
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

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.rag import Embedder
from astromesh.abc.stores import OwnedPassage
from astromesh.memory.backends.expiry import expiring
from astromesh.memory.backends.semantic.passage import (
    TRIM_EVERY,
    Passage,
    Scope,
    SemanticOptions,
    prepared,
    result,
    space_of,
)
from astromesh.retrieval.hybrid import candidates, merged
from astromesh.retrieval.words import score, terms
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.postgres import Connection, Postgres, shared_postgres
from astromesh.storage.postgres_text import restored, stored
from astromesh.types import JsonObject, SemanticResult, SessionKey

_PACKAGE = "astromesh.memory.backends"
SCHEMA = Schema("passages", _PACKAGE, "sql/postgres/passages")
SQL = queries(_PACKAGE, "sql/postgres/passages.sql")

#: passages of a scope up to which all of them are compared
EXACT = 5000
#: dimensions that an index takes: of floats, and of floats of half the size
MOST_DIMENSIONS, MOST_HALF_DIMENSIONS = 2000, 4000
#: seconds that making an index may take
_INDEXING = 600.0
#: seconds that a passage may take into the index, of many at once
_ROW_SECONDS = 0.1
#: passages deleted in one statement
_CHUNK = 500
#: scopes whose size is remembered
_MOST_LARGE = 10_000

#: passages that the words of a query propose, and that each of them proposes at least
_ROOM, _FEWEST = 250, 60
#: seconds until the planner is asked again which words are common; words whose stems are kept
_COMMON_SECONDS, _MOST_STEMS = 60.0, 20_000


class PgvectorOptions(SemanticOptions):
    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


class Space(NamedTuple):
    """What vectors may be compared within. Args: type: of pgvector, empty where no index takes them."""

    id: int
    size: int
    type: str

    @classmethod
    def of(cls, number: int, size: int) -> Space:
        half = "halfvec" if size <= MOST_HALF_DIMENSIONS else ""
        return cls(number, size, "vector" if size <= MOST_DIMENSIONS else half)

    def sql(self, name: str) -> str:
        return SQL[name].format(space=self.id, type=self.type, size=self.size)


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
        """Raises: ConfigError: no URL. StoreError: it refuses us, or has no pgvector."""
        database = await shared_postgres(deps, options.url.get_secret_value())
        table: PassageTable = await deps.resources.shared(
            (cls, database.address), lambda: PassageTable.opened(database, deps.clock)
        )
        return cls(table, options, deps.embedder, deps.clock)

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        rows = await prepared(passages, self._embedder, self._clock.now(), self._options.ttl)
        if rows:
            await self._table.add(Scope(tenant, agent, owner), rows, self._options.max_passages)

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        scope, most = Scope(tenant, agent, owner), candidates(top_k)
        space: Space | None = None
        vector: Sequence[float] = ()
        if self._embedder is not None:
            vector = (await self._embedder.embed([query]))[0]
            space = await self._table.space(space_of(self._embedder, len(vector)), len(vector))
        near, worded = await asyncio.gather(
            self._table.near(scope, space, vector, most), self._table.worded(scope, terms(query), most)
        )
        ids = list({one for one, _ in (*near, *worded)})
        found = await self._table.passages(scope, ids, space, vector, self._clock.now())
        cosines = {one: row.cosine for one, row in found.items() if row.cosine is not None}
        best = merged(near, worded, cosines, top_k=most, threshold=threshold)
        alive = [(found[one], points) for one, points in best if one in found][:top_k]
        return tuple(result(restored(row.content), row.metadata, points) for row, points in alive)

    @property
    def place(self) -> Hashable:
        return self._table

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        bound = (tenant, owner, after, self._clock.now(), limit)
        rows = await self._table.database.read(SQL["owned"], *bound)
        return tuple(
            OwnedPassage(number, agent, restored(content), orjson.loads(metadata))
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
        """Nothing: the pool closes with the runtime's resources."""


class Found(NamedTuple):
    content: str
    metadata: str
    cosine: float | None


class PassageTable:
    """The passages of one database."""

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self.database, self._clock = database, clock
        self._common: frozenset[str] = frozenset()
        self._look_at = float("-inf")
        self._stems: dict[str, list[str]] = {}
        self._spaces: dict[str, Space] = {}
        self._large: set[tuple[Scope, int]] = set()
        self._added: Counter[Scope] = Counter()

    @classmethod
    @asynccontextmanager
    async def opened(cls, database: Postgres, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        table = cls(database, clock)
        async with expiring(table.expire, clock):
            yield table

    async def add(self, scope: Scope, passages: Sequence[Passage], most: int) -> None:
        sizes = {p.space: len(p.vector) // 4 for p in passages if p.vector is not None}
        spaces = {name: await self.made_space(name, size) for name, size in sizes.items()}
        rows = [_row(scope, passage, spaces.get(passage.space)) for passage in passages]
        await self.database.transact(partial(_add, rows), deadline=max(5.0, len(rows) * _ROW_SECONDS))
        self._added[scope] += len(passages)
        if self._added[scope] >= min(TRIM_EVERY, most):
            del self._added[scope]
            await self.database.write(SQL["trim"], *scope, most)

    async def space(self, name: str, size: int) -> Space | None:
        """The space of a name, None where nobody has stored anything in it."""
        if name not in self._spaces:
            rows = await self.database.read(SQL["space"], name)
            if not rows:
                return None
            self._spaces[name] = Space.of(rows[0][0], size)
        return self._spaces[name]

    async def made_space(self, name: str, size: int) -> Space:
        """The space of a name, with its index."""
        found = await self.space(name, size)
        if found is None:
            found = await self.database.transact(partial(_make_space, name, size), deadline=_INDEXING)
            self._spaces[name] = found
        return found

    async def near(
        self, scope: Scope, space: Space | None, vector: Sequence[float], most: int
    ) -> list[tuple[int, float]]:
        """Ids with their cosine, nearest first."""
        if space is None:
            return []
        if not space.type or (scope, space.id) not in self._large:
            limit = EXACT + 1 if space.type else None
            rows = await self.database.read(space.sql("near_exactly"), *scope, vector, most, limit)
            if not rows or not space.type or rows[0]["held"] <= EXACT:
                return [(row[0], row[1]) for row in rows]
            self._remember(scope, space)
        bound = (*scope, vector, most)
        rows = await self.database.look(partial(_near, space, bound))
        return sorted(((row[0], row[1]) for row in rows), key=lambda pair: -pair[1])

    async def worded(self, scope: Scope, wanted: Sequence[str], most: int) -> list[tuple[int, float]]:
        """Ids with the score of their words, best first."""
        if not wanted:
            return []
        rare = await self._rare(wanted)
        quoted = [f"'{term}'" for term in wanted]
        proposing = [f"'{term}'" for term in rare] or [" | ".join(quoted)]
        bound = (proposing, " & ".join(quoted), quoted, " | ".join(quoted), most)
        rows = await self.database.read(SQL["words"], *scope, *bound, max(_ROOM // len(proposing), _FEWEST))
        top = max((rank for _, rank, _ in rows), default=0.0)
        scored = [(i, score(matched, len(wanted), rank, top)) for i, rank, matched in rows]
        return sorted(scored, key=lambda pair: -pair[1])

    async def _rare(self, wanted: Sequence[str]) -> list[str]:
        """Those that the planner does not name among the most common words: they propose passages."""
        if self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + _COMMON_SECONDS
            rows = await self.database.read(SQL["common"])
            self._common = frozenset(rows[0][0] or ()) if rows else frozenset()
        if unknown := [term for term in wanted if term not in self._stems]:
            if len(self._stems) >= _MOST_STEMS:
                self._stems.clear()
            rows = await self.database.read(SQL["stems"], unknown)
            self._stems.update([(row[0], row[1]) for row in rows])
        return [term for term in wanted if not self._common.intersection(self._stems.get(term, ()))]

    async def passages(
        self, scope: Scope, ids: Sequence[int], space: Space | None, vector: Sequence[float], now: float
    ) -> Mapping[int, Found]:
        if not ids:
            return {}
        number = space.id if space else None
        rows = await self.database.read(SQL["passages"], *scope, ids, now, number, vector if space else None)
        return {row[0]: Found(*row[1:]) for row in (tuple(row) for row in rows)}

    async def expire(self, now: float) -> int:
        return await self.delete_in_chunks("expire", now)

    async def delete(self, name: str, *bound: object) -> int:
        return len(await self.database.write(SQL[name], *bound))

    async def delete_in_chunks(self, name: str, *bound: object) -> int:
        return await self.database.write_in_chunks(SQL[name], *bound, chunk=_CHUNK)

    def _remember(self, scope: Scope, space: Space) -> None:
        if len(self._large) >= _MOST_LARGE:
            self._large.clear()
        self._large.add((scope, space.id))


async def _add(rows: Sequence[tuple[Any, ...]], connection: Connection) -> None:
    await connection.executemany(SQL["add"], rows)


async def _near(space: Space, bound: tuple[object, ...], connection: Connection) -> list[Any]:
    await connection.execute(SQL["scan_on"])
    rows: list[Any] = await connection.fetch(space.sql("near"), *bound)
    return rows


async def _make_space(name: str, size: int, connection: Connection) -> Space:
    """Of several processes one at a time: the row is locked until its index is there."""
    space = Space.of(await connection.fetchval(SQL["make_space"], name), size)
    if space.type:
        await connection.execute(space.sql("index"))
    return space


def _row(scope: Scope, passage: Passage, space: Space | None) -> tuple[Any, ...]:
    vector = memoryview(passage.vector).cast("f").tolist() if passage.vector is not None else None
    return (
        *scope,
        passage.hash,
        passage.session_id,
        stored(passage.content),
        passage.metadata,
        passage.created_at,
        passage.expires_at,
        space.id if space else None,
        vector,
    )
