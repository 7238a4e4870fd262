"""Semantic memory in SQLite, searched by `knowledge.sqlite_search`.

One file holds the passages of all agents that name it. A scope (tenant, agent, owner) is a word of the
full-text index, so that a search never reads the words of others. Functions that take a connection run in the
database's threads.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

import orjson
from pydantic import BaseModel, Field

from astromesh.knowledge.passages import (
    TRIM_EVERY,
    PassageRow,
    PassageStore,
    Scope,
    SemanticOptions,
    SemanticQuery,
    to_result,
)
from astromesh.knowledge.ranking import candidate_count, fuse_results
from astromesh.knowledge.sqlite_search import Corpus, PassageSearch, TableState
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, opened_store, queries
from astromesh.storage.queries import Row
from astromesh.storage.sqlite import Database, SqliteQueries, shared_database
from astromesh.types import SemanticResult, SessionKey

_PACKAGE = "astromesh.knowledge"
SCHEMA = Schema("passages", _PACKAGE, "sql/sqlite/passages")
SQL = queries(_PACKAGE, "sql/sqlite/passages.sql")

#: word counts are renewed after so many new passages of the file, or removals of the scope
_COUNTED_FOR = 500
#: passages deleted in one transaction
_CHUNK = 500


class SqliteOptions(SemanticOptions):
    path: str = Field("semantic.db", min_length=1, description="Database file, relative to the data folder.")
    cache_mb: int = Field(
        256,
        ge=1,
        description="Megabytes of vectors in memory; other vectors are read from the file for each query.",
    )


class SqlitePassages(PassageStore):
    """The plugin `sqlite`: a SemanticStore over one file."""

    Options: ClassVar[type[BaseModel]] = SqliteOptions

    @classmethod
    async def open(cls, options: SqliteOptions, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: a newer astromesh wrote it."""
        database = await shared_database(deps, options.path)
        made = SqliteTable(database, options.cache_mb * 1024 * 1024)
        table: SqliteTable = await deps.resources.shared(
            (cls, database), lambda: opened_store(database, SCHEMA, made, deps.clock)
        )
        return cls(table, options, deps.embedder, deps.clock)


class SqliteTable:
    """The passages of one file.

    Args:
        max_bytes: bytes of vectors in memory.
    """

    def __init__(self, database: Database, max_bytes: int) -> None:
        self._database, self._queries = database, SqliteQueries(database, SQL)
        self._search = PassageSearch(SQL, max_bytes)
        self._added: Counter[int] = Counter()

    async def add(self, scope: Scope, passages: Sequence[PassageRow], max_passages: int) -> None:
        await self._database.write(self._add, (scope, passages, max_passages))

    async def search(self, query: SemanticQuery) -> tuple[SemanticResult, ...]:
        return await self._database.read(self._search_all, query)

    async def owned(self, tenant: str, owner: str, after: int, now: float, limit: int) -> Iterable[Row]:
        return await self._queries.read("owned", tenant, owner, after, now, limit)

    async def facts(self, tenant: str, owner: str, agent: str, now: float) -> Iterable[Row]:
        return await self._queries.read("facts", tenant, owner, agent, now)

    async def forget(self, tenant: str, owner: str, agent: str, hashed: bytes) -> int:
        return await self._delete("fact", tenant, owner, agent, hashed)

    async def erase(self, key: SessionKey) -> int:
        return await self._delete("of_session", *key)

    async def expire(self, now: float) -> int:
        return await self._delete("expired", now)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        count = await self._delete("of_owner", tenant, owner)
        await self._queries.write("erase_scopes", tenant, owner)
        return count

    async def ping(self) -> None:
        await self._queries.ping()

    async def _delete(self, name: str, *bound: object) -> int:
        """Deletes the passages that a query finds, then their words from the full-text index.

        Args:
            name: a query in `passages.sql` that finds passages; its last argument is a limit.
        """
        total = 0
        while count := await self._database.write(_delete, (name, (*bound, _CHUNK))):
            total += count
        if total:
            await self._queries.write("forget_words")
        return total

    def _add(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Scope, Sequence[PassageRow], int]]
    ) -> Sequence[None]:
        for scope, passages, max_passages in items:
            number, _ = _scope(connection, scope) or _create_scope(connection, scope)
            for passage in passages:
                _upsert(connection, number, passage)
            self._trim(connection, number, len(passages), max_passages)
        return [None] * len(items)

    def _trim(self, connection: sqlite3.Connection, number: int, count: int, max_passages: int) -> None:
        self._added[number] += count
        if self._added[number] >= min(TRIM_EVERY, max_passages):
            del self._added[number]
            _drop_passages(connection, "beyond", (number, max_passages))

    def _search_all(
        self, connection: sqlite3.Connection, items: Sequence[SemanticQuery]
    ) -> Sequence[tuple[SemanticResult, ...]]:
        return [self._search_one(connection, item) for item in items]

    def _search_one(self, connection: sqlite3.Connection, query: SemanticQuery) -> tuple[SemanticResult, ...]:
        scope = _scope(connection, query.scope)
        if scope is None:
            return ()
        (number, removed), limit = scope, candidate_count(query.top_k)
        state = TableState(removed, connection.execute(SQL["newest"]).fetchone()[0])
        corpus = _corpus(connection, number, state)
        candidates = self._search.propose(connection, corpus, query.words, limit)
        near: list[tuple[int, float]] = []
        cosines: dict[int, float] = {}
        if query.vector:
            index = self._search.index(connection, (number, query.space), state, len(query.vector))
            near = index.nearest(query.vector, limit)
            cosines = index.cosines(candidates.ranks, query.vector)
        if candidates.ranks.keys() <= cosines.keys():
            by_words = list(candidates.ranks.items())  # only the order counts: vectors give the scores
        else:
            by_words = self._search.score(connection, corpus, candidates, len(query.words))
        best = fuse_results(near, by_words, cosines, top_k=limit, threshold=query.threshold)
        return _results(connection, number, best, query)


def _corpus(connection: sqlite3.Connection, number: int, state: TableState) -> Corpus:
    """The passages of a scope; in a file of one scope, BM25 need not count the scope's word."""
    only = connection.execute(SQL["scopes"]).fetchone()[0] == 1
    return Corpus(
        (state.newest // _COUNTED_FOR, state.removed // _COUNTED_FOR),
        columns="content : ",
        scope="" if only else f'scope : "{number}" AND ',
        newest_first=True,
    )


def _scope(connection: sqlite3.Connection, scope: Scope) -> tuple[int, int] | None:
    """Number and removal counter of a scope."""
    row: tuple[int, int] | None = connection.execute(SQL["scope"], scope).fetchone()
    return row


def _create_scope(connection: sqlite3.Connection, scope: Scope) -> tuple[int, int]:
    return connection.execute(SQL["make_scope"], scope).lastrowid or 0, 0


def _results(
    connection: sqlite3.Connection, number: int, best: Sequence[tuple[int, float]], query: SemanticQuery
) -> tuple[SemanticResult, ...]:
    """The best passages that have not expired."""
    listed = orjson.dumps([one for one, _ in best]).decode()
    rows = connection.execute(SQL["passages"], (number, listed, query.now))
    found = {one: (content, metadata) for one, content, metadata in rows}
    alive = [(*found[one], score) for one, score in best if one in found]
    return tuple(to_result(*one) for one in alive[: query.top_k])


def _upsert(connection: sqlite3.Connection, number: int, passage: PassageRow) -> None:
    """Stores a passage, or the new source of one that is stored; another vector makes it a new passage."""
    same = connection.execute(SQL["same"], (number, passage.hash)).fetchone()
    if same is not None and (passage.vector is None or same[1] == passage.space):
        source = (passage.session_id, passage.metadata, passage.created_at, passage.expires_at)
        connection.execute(SQL["update_source"], (same[0], *source))
        return
    if same is not None:
        _drop_passages(connection, "one", (same[0],))
    added = connection.execute(SQL["add"], (number, *passage)).lastrowid
    connection.execute(SQL["add_words"], (added, number, passage.content))


def _delete(connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]) -> Sequence[int]:
    return [_drop_passages(connection, name, bound) for name, bound in items]


def _drop_passages(connection: sqlite3.Connection, name: str, bound: tuple[object, ...]) -> int:
    rows = connection.execute(SQL[name], bound).fetchall()
    connection.executemany(SQL["drop_words"], rows)
    connection.executemany(SQL["drop"], [row[:1] for row in rows])
    return len(rows)
