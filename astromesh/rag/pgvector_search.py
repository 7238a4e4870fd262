"""How chunks in PostgreSQL are found: words and vectors at once, on two connections.

Words propose passages by `retrieval.frequent`; PostgreSQL says how often a passage has a word, and how many
passages have it says what that weighs. Words are cut and folded before they come to PostgreSQL, so that its
own parser (which sees e-mail addresses, versions and paths) does not decide what a word is.
"""

from __future__ import annotations

import asyncio
import math
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from astromesh.abc.rag import Chunk, Passage
from astromesh.retrieval.frequent import EVERYWHERE, MOST_RANKED, planned
from astromesh.retrieval.fusion import scored
from astromesh.retrieval.hybrid import candidates
from astromesh.retrieval.words import SHORTEST_PREFIX, score, terms, words_of
from astromesh.storage.migrations import queries
from astromesh.storage.postgres import Connection, Postgres
from astromesh.storage.postgres_text import restored, stored

SQL = queries("astromesh.rag", "sql/postgres.sql")

#: pgvector's limits of an index: dimensions of full and of half precision
_MOST_FULL, _MOST_HALF = 2000, 4000
#: what an approximate search looks at, at least
_EFFORT = 100
#: words whose counts are kept
_MOST_COUNTED = 20_000
#: less than in SQLite: PostgreSQL reads the whole passage to rank it
_ROOM = MOST_RANKED // 3

Ranking = list[tuple[int, float]]


class Part(NamedTuple):
    """A pipeline's part of the table. Args: space, size: 0 where there are no vectors."""

    pipeline: int = 0
    space: int = 0
    size: int = 0

    @property
    def type(self) -> str:
        """What an index by nearness is made of; empty where vectors are too long for one."""
        if self.size <= _MOST_FULL:
            return "vector"
        return "halfvec" if self.size <= _MOST_HALF else ""

    def sql(self, name: str, **more: object) -> str:
        query = SQL[name]
        numbers = {"pipeline": self.pipeline, "space": self.space, "size": self.size}
        for key, value in {**numbers, "type": self.type or "vector", **more}.items():
            query = query.replace(f"{{{key}}}", str(value))
        return query


class Counted(NamedTuple):
    """A word as PostgreSQL's query, and how many chunks have it, EVERYWHERE at most."""

    query: str
    chunks: int


class Searching:
    """What is kept between searches: how many chunks have a word. Of a few writes ago is good enough."""

    def __init__(self, database: Postgres) -> None:
        self._database = database
        self._counted: dict[str, Counted] = {}

    def forget(self) -> None:
        """After a write."""
        self._counted.clear()

    async def search(
        self,
        part: Part,
        query: str,
        *,
        top_k: int,
        filters: Mapping[str, Any] | None,
        vector: array[float] | None,
    ) -> tuple[Passage, ...]:
        wanted = terms(query)
        documents = await self._documents(part, filters) if filters else None
        most = candidates(top_k)
        if vector is None:
            found = await self._by_words(part, wanted, most, documents)
        elif not wanted:
            found = await self._nearest(part, vector, most, documents)
        else:
            both = await asyncio.gather(
                self._by_words(part, wanted, most, documents), self._nearest(part, vector, most, documents)
            )
            found = scored([row for row, _ in one] for one in both)
        return await self._passages(part, found[:top_k])

    async def _documents(self, part: Part, filters: Mapping[str, Any]) -> list[str]:
        values = {key: value if isinstance(value, list) else [value] for key, value in filters.items()}
        rows = await self._database.read(part.sql("documents_with"), orjson.dumps(kept(values)).decode())
        return [name for (name,) in rows]

    async def _passages(self, part: Part, found: Ranking) -> tuple[Passage, ...]:
        if not found:
            return ()
        rows = await self._database.read(part.sql("passages"), [row for row, _ in found])
        chunks = {row: _chunk(*columns) for row, *columns in rows}
        # one that was removed meanwhile is left out
        return tuple(Passage(chunks[row], points) for row, points in found if row in chunks)

    # -- words -----------------------------------------------------------------------------------------------

    async def _by_words(
        self, part: Part, wanted: Sequence[str], most: int, documents: list[str] | None
    ) -> Ranking:
        """First words in any inflection; only where that finds nothing, words that begin alike."""
        if not wanted:
            return []
        counted = await self._counts(part, wanted)
        words = {term: counted[term] for term in wanted if counted[term].chunks}
        found = await self._proposed(part, words, most, documents)
        queries = [one.query for one in words.values()]
        if not found:
            queries = [f"'{folded(term)}':*" for term in wanted if len(term) >= SHORTEST_PREFIX]
            weights = dict.fromkeys(queries, 1.0)
            found = await self._ranked(part, " | ".join(queries), weights, _ROOM, most, documents)
        if not found:
            return []
        rows = await self._database.read(part.sql("matched"), list(found), queries)
        top = max(found.values())
        best = [(row, score(matched, len(wanted), found[row], top)) for row, matched in rows]
        return sorted(best, key=lambda one: (-one[1], -found[one[0]], one[0]))

    async def _counts(self, part: Part, wanted: Sequence[str]) -> Mapping[str, Counted]:
        unknown = [term for term in wanted if term not in self._counted]
        if unknown:
            rows = await self._database.read(part.sql("count"), list(map(folded, unknown)), EVERYWHERE)
            if len(self._counted) >= _MOST_COUNTED:
                self._counted.clear()
            counted = {term: Counted(query, count) for term, query, count in rows}
            self._counted.update({term: counted[folded(term)] for term in unknown})
        return {term: self._counted.get(term, Counted("", 0)) for term in wanted}

    async def _proposed(
        self, part: Part, words: Mapping[str, Counted], most: int, documents: list[str] | None
    ) -> dict[int, float]:
        plan = planned({term: one.chunks for term, one in words.items()}, _ROOM)
        weights = {one.query: _weight(one.chunks) for one in words.values()}
        rare = [words[term].query for term in plan.rare]
        # what stands everywhere is of no use to propose, unless there is nothing else
        frequent = [words[term].query for term in plan.frequent or (() if rare else plan.everywhere)]
        found: dict[int, float] = {}
        for expression, room in ((_any(rare), 2 * _ROOM), (_all(frequent), plan.room)):
            found.update(await self._ranked(part, expression, weights, room, most, documents))
        if not found:
            found = await self._ranked(part, _any(frequent), weights, plan.room, most, documents)
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:most])

    async def _ranked(
        self,
        part: Part,
        expression: str,
        weights: Mapping[str, float],
        room: int,
        most: int,
        documents: list[str] | None,
    ) -> dict[int, float]:
        if not expression:
            return {}
        bound = (expression, room, list(weights), list(weights.values()), most, documents)
        rows = await self._database.read(part.sql("ranked"), *bound)
        return {row["id"]: row["rank"] for row in rows}

    # -- vectors ---------------------------------------------------------------------------------------------

    async def _nearest(
        self, part: Part, vector: array[float], most: int, documents: list[str] | None
    ) -> Ranking:
        look = partial(_near, part, vector.tolist(), most, documents)
        found = [(row, cosine) for row, cosine in await self._database.look(look) if cosine > 0]
        return sorted(((row, min(1.0, cosine)) for row, cosine in found), key=lambda one: -one[1])


async def _near(
    part: Part, vector: list[float], most: int, documents: list[str] | None, connection: Connection
) -> list[Any]:
    await connection.execute(part.sql("scan", effort=max(_EFFORT, min(2 * most, 1000))))
    if documents is None:
        return list(await connection.fetch(part.sql("near", filter=""), vector, most))
    query = part.sql("near", filter="AND document = ANY($3::TEXT[])")
    return list(await connection.fetch(query, vector, most, documents))


def folded(text: str) -> str:
    """The words of a text without accents, by single spaces, as PostgreSQL is given them."""
    plain = text
    if not text.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(words_of(plain.lower()))


def kept(value: Any) -> Any:
    """JSON as PostgreSQL can keep it: no NUL in any text."""
    if isinstance(value, str):
        return stored(value)
    if isinstance(value, list | tuple):
        return [kept(one) for one in value]
    if isinstance(value, Mapping):
        return {kept(key): kept(one) for key, one in value.items()}
    return value


def _given_back(value: Any) -> Any:
    if isinstance(value, str):
        return restored(value)
    if isinstance(value, list):
        return [_given_back(one) for one in value]
    if isinstance(value, dict):
        return {_given_back(key): _given_back(one) for key, one in value.items()}
    return value


def _chunk(document: str, text: str, start: int, end: int, heading: str, metadata: str) -> Chunk:
    about = _given_back(orjson.loads(metadata))
    return Chunk(restored(document), restored(text), start, end, restored(heading), about)


def _weight(count: int) -> float:
    """The rarer a word, the more it says; how many chunks there are does not matter to the order."""
    return 1.0 + math.log(max(1.0, EVERYWHERE / max(count, 1)))


def _any(queries: Sequence[str]) -> str:
    return " | ".join(f"({query})" for query in queries)


def _all(queries: Sequence[str]) -> str:
    return " & ".join(f"({query})" for query in queries)
