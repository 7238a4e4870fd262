"""Transactions that are written once, on both databases: whole or not at all, and none undoes another."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.errors import InvalidInput
from astromesh.storage.postgres import Address, Postgres, PostgresQueries
from astromesh.storage.queries import Queries, Transaction
from astromesh.storage.sqlite import Database, SqliteQueries, SqliteTransaction

STATEMENTS = {
    "create": "CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)",
    "add": "INSERT INTO words VALUES ($1, $2) ON CONFLICT (word) DO UPDATE SET n = excluded.n",
    "copy": "INSERT INTO words SELECT 'of ' || word, n FROM words WHERE word = $1",
    "set": "UPDATE words SET n = $2 WHERE word = $1",
    "count": "UPDATE words SET n = n + $1",
    "all": "SELECT word, n FROM words ORDER BY word",
}


@pytest.fixture(params=("sqlite", "postgres"))
async def queries(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Queries]:
    if request.param == "sqlite":
        async with Database(tmp_path / "words.db") as database:
            found = SqliteQueries(database, {n: text.replace("$", "?") for n, text in STATEMENTS.items()})
            await found.write("create")
            yield found
    else:
        async with Postgres(Address.parse(request.getfixturevalue("postgres_database"))) as server:
            opened = PostgresQueries(server, STATEMENTS)
            await opened.write("create")
            yield opened


async def words(queries: Queries) -> list[tuple[str, int]]:
    return [(word, n) for word, n in await queries.read("all")]


async def test_many_rows_are_written_and_the_last_of_a_key_counts(queries):
    """More rows than one statement takes, and a remainder."""

    async def add(tx: Transaction) -> int:
        await tx.lock("words", "all")
        await tx.execute_many("add", [(f"w{n % 99:02}", n) for n in range(198)])
        await tx.execute_many("add", [])
        return await tx.execute("count", 1)

    assert await queries.transact(add) == 99
    assert await words(queries) == [(f"w{n:02}", n + 100) for n in range(99)]


async def test_many_rows_are_changed_and_copied(queries):
    """A statement that is no plain INSERT is executed once per row."""
    names = [f"w{n:02}" for n in range(70)]

    async def change(tx: Transaction) -> None:
        await tx.execute_many("add", [(name, 0) for name in names])
        await tx.execute_many("set", [(name, n) for n, name in enumerate(names)])
        await tx.execute_many("copy", [(name,) for name in names])

    await queries.transact(change)
    written = [(name, n) for n, name in enumerate(names)]
    assert await words(queries) == [*((f"of {name}", n) for name, n in written), *written]


@pytest.mark.parametrize("changes", [False, True])
async def test_one_that_raises_is_undone_and_those_beside_it_are_not(queries, changes):
    """They come together, so that SQLite executes them as one."""

    def adding(word: str):
        async def add(tx: Transaction) -> str:
            if word != "bad" or changes:
                await tx.execute("add", word, 1)
            if word == "bad":
                raise InvalidInput("bad")
            return word

        return add

    results = await asyncio.gather(
        *(queries.transact(adding(word)) for word in ("a", "bad", "b")), return_exceptions=True
    )
    assert results[0] == "a" and results[2] == "b" and isinstance(results[1], InvalidInput)
    assert await words(queries) == [("a", 1), ("b", 1)]


async def test_a_transaction_awaits_its_own_statements_alone(tmp_path):
    async def waits(tx: Transaction) -> None:
        await asyncio.sleep(0)

    async with Database(tmp_path / "words.db") as database:
        with pytest.raises(RuntimeError, match="nothing but its own statements"):
            await SqliteQueries(database, STATEMENTS).transact(waits)


@pytest.mark.parametrize(("length", "statements"), [(10, 1), (100_000, 32), (2_000_000, 64)])
async def test_long_texts_are_not_written_by_one_statement(length, statements):
    """SQLite keeps a copy of what a statement has written: of 64 long answers it had 128 MB."""
    connection, seen = sqlite3.connect(":memory:", isolation_level=None), []
    connection.execute("create table words (word text, n integer)")
    connection.set_trace_callback(lambda statement: seen.append(statement[:6]))
    writes = SqliteTransaction(connection, {"add": "INSERT INTO words VALUES (?1, ?2)"})
    await writes.execute_many("add", [("w" * length, n) for n in range(64)])
    connection.set_trace_callback(None)
    assert seen.count("INSERT") == statements
    assert connection.execute("select count(*) from words").fetchone() == (64,)
    connection.close()
