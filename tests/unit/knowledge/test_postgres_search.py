"""The search in PostgreSQL: what it keeps between searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from astromesh.knowledge.postgres_search import PassageSearch
from astromesh.storage.postgres import Postgres
from astromesh.testing import ManualClock


class Database:
    """Stems words as they are, and notes the words of each search."""

    def __init__(self) -> None:
        self.sought: list[Sequence[str]] = []

    async def read(self, query: str, *arguments: Any) -> list[Any]:
        if query == "stems":
            return [(word, f"'{word}'") for word in arguments[0]]
        if query == "frequencies":
            return [(0.0, (), ())]
        self.sought.append(arguments[2])
        return []


async def test_a_full_cache_of_stems_loses_no_word_of_a_search() -> None:
    database = Database()
    search = PassageSearch(cast("Postgres", database), ManualClock())

    async def words(*sought: str) -> Sequence[str]:
        await search.by_words(lambda name, **_: name, sought, 10, ())
        return database.sought[-2]

    assert await words("tea") == ["'tea'"]
    await words(*(f"word{number}" for number in range(20_000)))
    assert await words("tea", "coffee") == ["'tea'", "'coffee'"]
