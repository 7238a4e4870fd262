"""How chunks in PostgreSQL are found: words and vectors at once, on two connections.

Words propose passages by `retrieval.frequent`, with the planner's statistics; PostgreSQL says how often a
passage has each word, and how many passages have it says what that weighs. Words are cut and folded before
they come to PostgreSQL, so that its own parser (which sees e-mail addresses, versions and paths) does not
decide what a word is.
"""

from __future__ import annotations

import asyncio
import math
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from astromesh.abc.rag import Chunk, Passage
from astromesh.retrieval.frequent import MOST_RANKED, planned
from astromesh.retrieval.hybrid import both, candidates
from astromesh.retrieval.words import SHORTEST_PREFIX, score, terms, words_of
from astromesh.storage.migrations import queries
from astromesh.storage.postgres import Connection, Postgres
from astromesh.storage.postgres_text import restored, stored

SQL = queries("astromesh.rag", "sql/postgres.sql")

#: pgvector's limits of an index: dimensions of full and of half precision
_MOST_FULL, _MOST_HALF = 2000, 4000
#: what an approximate search looks at, at least
_EFFORT = 100
#: words whose stems are kept
_MOST_KEPT = 20_000
#: where words stand together in more than this share of all passages, reading them in order finds enough
_MOST_OF_ALL = 0.05
#: less than in SQLite: PostgreSQL reads the whole passage to rank it
_ROOM = MOST_RANKED // 5
#: passages that a query proposes at least
_FEWEST = 60

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


class Proposal(NamedTuple):
    """Which passages are looked at.

    Args:
        looks: queries, with how many of the passages that each finds.
        words: each sought word as a query.
        column: an expression that no index answers, where nearly every passage has the words.
    """

    looks: Mapping[str, int]
    words: tuple[str, ...]
    column: str = "words"


class Frequencies(NamedTuple):
    """What the planner knows of the words. Args: common: chunks that have each of the most common words."""

    chunks: float = 0.0
    common: Mapping[str, int] = MappingProxyType({})


class Searching:
    """What is kept between searches: stems, and how many chunks have the common words."""

    def __init__(self, database: Postgres) -> None:
        self._database = database
        self._queries: dict[str, str] = {}
        self._frequencies: Frequencies | None = None

    def forget(self) -> None:
        """After the planner was told anew."""
        self._frequencies = None

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
            rankings = await asyncio.gather(
                self._by_words(part, wanted, most, documents), self._nearest(part, vector, most, documents)
            )
            found = both(*rankings)
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
        words = await self._stemmed(part, wanted)
        about = await self._about(part)
        for proposal in (_proposal(words, about), _beginnings(wanted)):
            looks = proposal.looks
            bound = (list(looks), list(looks.values()), list(proposal.words), documents)
            rows = await self._database.read(part.sql("ranked", words=proposal.column), *bound)
            if rows:
                return _best(rows, proposal, about, len(wanted))[:most]
        return []

    async def _stemmed(self, part: Part, wanted: Sequence[str]) -> list[str]:
        """The words as PostgreSQL's queries, each once; what is no word to it is left out."""
        unknown = [term for term in wanted if term not in self._queries]
        if unknown:
            if len(self._queries) >= _MOST_KEPT:
                self._queries.clear()
            rows = await self._database.read(part.sql("queries"), list(map(folded, unknown)))
            stems: dict[str, str] = dict(map(tuple, rows))
            self._queries.update({term: stems[folded(term)] for term in unknown})
        return list(dict.fromkeys(filter(None, (self._queries.get(term, "") for term in wanted))))

    async def _about(self, part: Part) -> Frequencies:
        if self._frequencies is None:
            [(chunks, words, shares)] = await self._database.read(part.sql("frequencies"))
            common = {
                f"'{word}'": round(share * chunks)
                for word, share in zip(words or (), shares or (), strict=False)
            }
            self._frequencies = Frequencies(max(chunks, 0.0), common)
        return self._frequencies

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


def _proposal(words: Sequence[str], about: Frequencies) -> Proposal:
    """Passages with any of the rare words, with all words, and with all frequent ones.

    Words that the planner does not name are rare. What stands everywhere proposes only where there is
    nothing else.
    """
    plan = planned({word: about.common.get(word, 0) for word in words}, _ROOM)
    if not plan.rare and not plan.frequent:
        share = math.prod(about.common.get(word, 0) / max(about.chunks, 1.0) for word in plan.everywhere)
        column = "words" if share < _MOST_OF_ALL else "(words || '')"
        looks = {_all(plan.everywhere): _ROOM} if plan.everywhere else {}
        return Proposal(looks, tuple(words), column)
    looks = dict.fromkeys(plan.rare, max(_ROOM // max(len(plan.rare), 1), _FEWEST))
    looks[_all(plan.rare + plan.frequent)] = _FEWEST
    if plan.frequent:
        looks[_all(plan.frequent)] = _FEWEST if plan.rare else _ROOM
    if plan.frequent and not plan.rare:
        looks[" | ".join(plan.frequent)] = _FEWEST
    return Proposal(looks, tuple(words))


def _beginnings(wanted: Sequence[str]) -> Proposal:
    words = tuple(f"'{folded(term)}':*" for term in wanted if len(term) >= SHORTEST_PREFIX)
    return Proposal(dict.fromkeys(words, _ROOM // max(len(words), 1)), words)


def _all(words: Sequence[str]) -> str:
    return " & ".join(f"({word})" for word in words)


def _best(rows: Sequence[Any], proposal: Proposal, about: Frequencies, sought: int) -> Ranking:
    """By how many of the words a passage has, then by how often it has them and how rare they are."""
    found = {row["id"]: row["ranks"] for row in rows}
    having = [sum(1 for ranks in found.values() if ranks[n] > 0) for n in range(len(proposal.words))]
    counts = [
        max(about.common.get(word, 0), have, 1) for word, have in zip(proposal.words, having, strict=True)
    ]
    weights = [math.log1p(max(about.chunks, len(found)) / count) for count in counts]
    points = {
        row: sum(w * rank for w, rank in zip(weights, ranks, strict=True)) for row, ranks in found.items()
    }
    top = max(points.values())
    scores = {
        row: score(sum(rank > 0 for rank in ranks), sought, points[row], top) for row, ranks in found.items()
    }
    return sorted(scores.items(), key=lambda one: (-one[1], -points[one[0]], one[0]))
