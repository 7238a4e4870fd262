"""Queries that are written once: what SQLite writes in another way, and what stands in several queries."""

from __future__ import annotations

import re
import sqlite3

import pytest

from astromesh.durable.sql_runs import SqlRuns
from astromesh.durable.sql_tasks import SqlTasks
from astromesh.durable.sqlite import SqliteRuns
from astromesh.storage.queries import queries_of, store_queries, to_sqlite


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT $1::text, $2::float8[] FROM astromesh.runs", "SELECT ?1, ?2 FROM runs"),
        ("SELECT 1 FOR UPDATE SKIP LOCKED", "SELECT 1"),
        ("SELECT 1 FOR NO KEY UPDATE", "SELECT 1"),
        ("a = ANY ($3::text[])", "a IN (SELECT value FROM json_each(?3))"),
        ("a = ANY($3)", "a IN (SELECT value FROM json_each(?3))"),
        ("durable = TRUE AND ordered = FALSE", "durable = 1 AND ordered = 0"),
        ("greatest(a, b), least(a, b), bool_or(c)", "max(a, b), min(a, b), max(c)"),
        ("split_part(r.parent, '.', 1)", "substr(r.parent, 1, instr(r.parent, '.') - 1)"),
    ],
)
def test_a_query_of_postgres_in_the_words_of_sqlite(query, expected):
    assert to_sqlite(query) == expected


def test_a_fragment_stands_in_every_query_that_names_it():
    fragments = {**SqlRuns.fragments("postgres"), **COMMIT}
    queries = store_queries("astromesh.durable", "runs", "postgres", fragments)
    found = [name for name, text in queries.items() if "o.id < runs.id" in text]
    assert sorted(found) == ["claim", "next_of_agent", "redispatch"]
    assert not [name for name, text in queries.items() if re.search(r"\{\w", text)]


COMMIT = {"assignments": "", "change_parameters": "", "change_columns": ""}


def test_a_fragment_that_nobody_defines_is_an_error():
    with pytest.raises(KeyError, match="columns"):
        store_queries("astromesh.durable", "tasks", "sqlite", {})


def test_every_query_of_tasks_is_sql_that_sqlite_knows():
    statements = queries_of(SqlTasks, "sqlite")
    assert all(sqlite3.complete_statement(text + ";") for text in statements.values())


def test_runs_and_tasks_have_the_queries_of_one_file_for_their_own_tables():
    runs, tasks = queries_of(SqliteRuns, "sqlite"), queries_of(SqlTasks, "sqlite")
    assert "FROM callback_deliveries d" in runs["callbacks"]
    assert (
        runs["callbacks"]
        .replace("callback_deliveries", "task_deliveries")
        .replace("JOIN callbacks", "JOIN task_callbacks")
        .replace("JOIN runs", "JOIN tasks")
        .replace("run_id", "task_id")
        .replace("s.agent", "s.workflow")
        == (tasks["callbacks"])
    )
