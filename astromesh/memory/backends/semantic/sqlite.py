"""Passages in SQLite: words by FTS5 (BM25), vectors as float32 with an exact index in memory, both fused.

Everything but the embedding runs in the database's threads. The index of a scope is read when it is first
searched, then only what is new; a file of its own keeps that away from the conversations.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, Field

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
from astromesh.retrieval.frequent import MOST_RANKED, planned, proposed
from astromesh.retrieval.hybrid import candidates, merged
from astromesh.retrieval.vectors import VectorIndex
from astromesh.retrieval.words import any_of, score, terms
from astromesh.storage.database import Database, shared_database
from astromesh.storage.migrations import Schema, queries
from astromesh.types import JsonObject, SemanticResult, SessionKey

_PACKAGE = "astromesh.memory.backends"
SCHEMA = Schema("passages", _PACKAGE, "sql/sqlite/passages")
SQL = queries(_PACKAGE, "sql/sqlite/passages.sql")

#: words whose counts are kept; they are counted anew after so many passages of a file, or removals of a scope
_MOST_COUNTED, _COUNTED_FOR = 20_000, 500
#: passages deleted in one transaction
_CHUNK = 500


class SqliteOptions(SemanticOptions):
    path: str = Field("semantic.db", min_length=1, description="Database file, relative to the data folder.")
    cache_mb: int = Field(
        256,
        ge=1,
        description="Megabytes of vectors kept in memory; what does not fit is read for each query.",
    )


class SqlitePassages:
    """A SemanticStore over one SQLite file.

    Args:
        shelf: the passages of the file, shared by all agents that use it.
        embedder: None for words only.
    """

    Options: ClassVar[type[BaseModel]] = SqliteOptions

    def __init__(self, shelf: Shelf, options: SqliteOptions, embedder: Embedder | None, clock: Clock) -> None:
        self._shelf, self._options, self._embedder, self._clock = shelf, options, embedder, clock

    @classmethod
    async def open(cls, options: SqliteOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        database = await shared_database(deps, options.path)
        shelf: Shelf = await deps.resources.shared(
            (cls, database.path), lambda: Shelf.opened(database, options.cache_mb, deps.clock)
        )
        return cls(shelf, options, deps.embedder, deps.clock)

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        rows = await prepared(passages, self._embedder, self._clock.now(), self._options.ttl)
        if rows:
            added = Added(Scope(tenant, agent, owner), rows, self._options.max_passages)
            await self._shelf.database.write(self._shelf.add, added)

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        vector, space = b"", ""
        if self._embedder is not None:
            found = (await self._embedder.embed([query]))[0]
            vector, space = found.tobytes(), space_of(self._embedder, len(found))
        search = Search(
            Scope(tenant, agent, owner), terms(query), vector, space, top_k, threshold, self._clock.now()
        )
        return await self._shelf.database.read(self._shelf.search, search)

    @property
    def place(self) -> Hashable:
        return self._shelf

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        bound = (tenant, owner, after, self._clock.now(), limit)
        rows = await self._shelf.database.read(_owned, bound)
        return tuple(OwnedPassage(row[0], row[1], row[2], orjson.loads(row[3])) for row in rows)

    async def erase(self, key: SessionKey) -> int:
        return await self._shelf.delete("of_session", *key)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._shelf.erase_owner(tenant, owner)

    async def expire(self, now: float) -> int:
        return await self._shelf.expire(now)

    async def ping(self) -> None:
        await self._shelf.database.ping()

    async def close(self) -> None:
        """Nothing: the database closes with the runtime's resources."""


class Added(NamedTuple):
    """Args: most: passages that the scope may hold."""

    scope: Scope
    passages: Sequence[Passage]
    most: int


class Search(NamedTuple):
    """Args: vector: of the query, float32, empty for words only; now: seconds since the epoch."""

    scope: Scope
    terms: tuple[str, ...]
    vector: bytes
    space: str
    top_k: int
    threshold: float
    now: float


class Loaded(NamedTuple):
    """An index as of a state of its scope."""

    vectors: VectorIndex
    removed: int
    last: int


class Shelf:
    """The passages of one file. `add` works in the writer's thread, `search` in the reader's.

    Args:
        cache: bytes that indexes may take.
    """

    def __init__(self, database: Database, cache: int) -> None:
        self.database = database
        self._cache = cache
        self._loaded: OrderedDict[tuple[int, str], Loaded] = OrderedDict()
        self._added: Counter[int] = Counter()
        self._counts: dict[tuple[int, str], tuple[tuple[int, int], int]] = {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, database: Database, cache_mb: int, clock: Clock) -> AsyncIterator[Self]:
        await database.migrate(SCHEMA)
        shelf = cls(database, cache_mb * 1024 * 1024)
        async with expiring(shelf.expire, clock):
            yield shelf

    async def expire(self, now: float) -> int:
        return await self.delete("expired", now)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        count = await self.delete("of_owner", tenant, owner)
        await self.database.write(_erase_scopes, (tenant, owner))
        return count

    async def delete(self, name: str, *bound: object) -> int:
        """Deletes all that a query finds, then what the index of words still holds of it.

        Args:
            name: of a query in `passages.sql` that finds passages, a limit its last argument.
        """
        total = 0
        while count := await self.database.write(_delete, (name, (*bound, _CHUNK))):
            total += count
        if total:
            await self.database.write(_forget_words, None)
        return total

    # -- the writer's thread -------------------------------------------------------------------------------

    def add(self, connection: sqlite3.Connection, items: Sequence[Added]) -> Sequence[None]:
        for scope, passages, most in items:
            number, _ = _scope(connection, scope) or _made(connection, scope)
            for passage in passages:
                _put(connection, number, passage)
            self._trim(connection, number, len(passages), most)
        return [None] * len(items)

    def _trim(self, connection: sqlite3.Connection, number: int, added: int, most: int) -> None:
        self._added[number] += added
        if self._added[number] >= min(TRIM_EVERY, most):
            del self._added[number]
            _drop(connection, "beyond", (number, most))

    # -- the reader's thread -------------------------------------------------------------------------------

    def search(
        self, connection: sqlite3.Connection, items: Sequence[Search]
    ) -> Sequence[tuple[SemanticResult, ...]]:
        return [self._search(connection, item) for item in items]

    def _search(self, connection: sqlite3.Connection, search: Search) -> tuple[SemanticResult, ...]:
        scope = _scope(connection, search.scope)
        if scope is None:
            return ()
        most = candidates(search.top_k)
        ranked = self._ranked(connection, scope, search.terms)[:most]
        near: list[tuple[int, float]] = []
        cosines: dict[int, float] = {}
        if search.vector:
            index = self._index(connection, scope, search.space, len(search.vector) // 4)
            near = index.nearest(search.vector, most)
            cosines = index.cosines((one for one, _ in ranked), search.vector)
        if all(one in cosines for one, _ in ranked):
            worded = ranked  # only the order counts: each is scored by its vector
        else:
            worded = _scored(connection, scope[0], search.terms, ranked)
        best = merged(near, worded, cosines, top_k=most, threshold=search.threshold)
        return _results(connection, scope[0], best, search)

    def _ranked(
        self, connection: sqlite3.Connection, scope: tuple[int, int], wanted: Sequence[str]
    ) -> list[tuple[int, float]]:
        """Ids of passages that the words propose (see `retrieval.frequent`) and their BM25, best first."""
        if not wanted:
            return []
        number, removed = scope
        if connection.execute(SQL["scopes"]).fetchone()[0] == 1:
            number = 0  # BM25 counts the passages of every word, and the scope is one
        newest = connection.execute(SQL["newest"]).fetchone()[0] or 0
        state = (newest // _COUNTED_FOR, removed // _COUNTED_FOR)
        counts = {term: self._count(connection, number, term, state) for term in wanted}

        def ranked(expression: str, most: int) -> dict[int, float]:
            return dict(connection.execute(SQL["ranks"], (_match(number, expression), most)).fetchall())

        found = proposed(planned(counts), ranked)
        return sorted(found.items(), key=lambda pair: (-pair[1], -pair[0]))

    def _count(self, connection: sqlite3.Connection, number: int, term: str, state: tuple[int, int]) -> int:
        """About how many passages of a scope have a word; more than MOST_RANKED is one number."""
        known = self._counts.get((number, term))
        if known is None or known[0] != state:
            if len(self._counts) >= _MOST_COUNTED:
                self._counts.clear()
            known = self._counts[number, term] = state, _counted(connection, number, term)
        return known[1]

    def _index(
        self, connection: sqlite3.Connection, scope: tuple[int, int], space: str, dimensions: int
    ) -> VectorIndex:
        number, removed = scope
        loaded = self._loaded.pop((number, space), None)
        if loaded is None:
            loaded = Loaded(VectorIndex(dimensions), removed, 0)
        elif loaded.removed != removed:
            left = connection.execute(SQL["vector_ids"], (number, space, loaded.last))
            loaded.vectors.keep([row[0] for row in left])
            loaded = loaded._replace(removed=removed)
        rows = connection.execute(SQL["vectors"], (number, space, loaded.last)).fetchall()
        if rows:
            loaded.vectors.extend([row[0] for row in rows], (row[1] for row in rows))
            loaded = loaded._replace(last=rows[-1][0])
        self._keep((number, space), loaded)
        return loaded.vectors

    def _keep(self, key: tuple[int, str], loaded: Loaded) -> None:
        self._loaded[key] = loaded
        while sum(one.vectors.nbytes for one in self._loaded.values()) > self._cache:
            self._loaded.popitem(last=False)
            if not self._loaded:
                return


def _scope(connection: sqlite3.Connection, scope: Scope) -> tuple[int, int] | None:
    row: tuple[int, int] | None = connection.execute(SQL["scope"], scope).fetchone()
    return row


def _made(connection: sqlite3.Connection, scope: Scope) -> tuple[int, int]:
    return connection.execute(SQL["make_scope"], scope).lastrowid or 0, 0


def _counted(connection: sqlite3.Connection, number: int, term: str) -> int:
    """A word that is rare in the file is rare in a scope: only for others the scope is walked through."""
    word = any_of((term,))
    for expression in (f"content : ({word})", _match(number, word)):
        count: int = connection.execute(SQL["count"], (expression, MOST_RANKED + 1)).fetchone()[0]
        if count <= MOST_RANKED:
            return count
    return count


def _scored(
    connection: sqlite3.Connection, number: int, wanted: Sequence[str], ranked: Sequence[tuple[int, float]]
) -> list[tuple[int, float]]:
    """The same, scored by how many of the words each has, best first."""
    matched = _matched(connection, number, wanted, [one for one, _ in ranked])
    top = ranked[0][1]
    scored = [(one, score(matched[one], len(wanted), rank, top)) for one, rank in ranked]
    return sorted(scored, key=lambda pair: -pair[1])


def _matched(
    connection: sqlite3.Connection, number: int, wanted: Iterable[str], ids: Sequence[int]
) -> Mapping[int, int]:
    listed = orjson.dumps(ids).decode()
    counted: Counter[int] = Counter()
    for term in wanted:
        counted.update(
            row[0] for row in connection.execute(SQL["has_term"], (_match(number, any_of((term,))), listed))
        )
    return counted


def _match(number: int, expression: str) -> str:
    """Args: number: of the scope; 0 where the file has no other, so that nothing needs to be parted."""
    within = f'scope : "{number}" AND ' if number else ""
    return f"{within}content : ({expression})"


def _results(
    connection: sqlite3.Connection, number: int, best: Sequence[tuple[int, float]], search: Search
) -> tuple[SemanticResult, ...]:
    """Contents of the best that have not expired."""
    listed = orjson.dumps([one for one, _ in best]).decode()
    rows = connection.execute(SQL["passages"], (number, listed, search.now))
    found = {one: (content, metadata) for one, content, metadata in rows}
    alive = [(*found[one], points) for one, points in best if one in found]
    return tuple(result(*one) for one in alive[: search.top_k])


def _put(connection: sqlite3.Connection, number: int, passage: Passage) -> None:
    """A passage that is there is told anew; one that gets another vector is another one from now on."""
    same = connection.execute(SQL["same"], (number, passage.hash)).fetchone()
    if same is not None and (passage.vector is None or same[1] == passage.space):
        told = (passage.session_id, passage.metadata, passage.created_at, passage.expires_at)
        connection.execute(SQL["tell"], (same[0], *told))
        return
    if same is not None:
        _drop(connection, "one", (same[0],))
    added = connection.execute(SQL["add"], (number, *passage)).lastrowid
    connection.execute(SQL["add_words"], (added, number, passage.content))


def _owned(
    connection: sqlite3.Connection, items: Sequence[tuple[object, ...]]
) -> Sequence[list[tuple[Any, ...]]]:
    return [connection.execute(SQL["owned"], bound).fetchall() for bound in items]


def _delete(connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]) -> Sequence[int]:
    return [_drop(connection, name, bound) for name, bound in items]


def _drop(connection: sqlite3.Connection, name: str, bound: tuple[object, ...]) -> int:
    rows = connection.execute(SQL[name], bound).fetchall()
    connection.executemany(SQL["drop_words"], rows)
    connection.executemany(SQL["drop"], [row[:1] for row in rows])
    return len(rows)


def _erase_scopes(connection: sqlite3.Connection, items: Sequence[tuple[str, str]]) -> Sequence[None]:
    connection.executemany(SQL["erase_scopes"], items)
    return [None] * len(items)


def _forget_words(connection: sqlite3.Connection, items: Sequence[None]) -> Sequence[None]:
    connection.execute(SQL["forget_words"])
    return [None] * len(items)
