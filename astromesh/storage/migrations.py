"""Numbered schema migrations and named queries, stored in `sql/` files beside the store that owns them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from astromesh.errors import ConfigError

_VERSIONS = (
    "CREATE TABLE IF NOT EXISTS schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
)
_READ = "SELECT version FROM schemas WHERE name = ?"
_WRITE = "INSERT INTO schemas VALUES (?, ?) ON CONFLICT DO UPDATE SET version = excluded.version"
_NUMBERED = re.compile(r"(\d{4})_\w+\.sql")
_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one adapter.

    Args:
        name: unique within a database, e.g. `conversations`.
        package: package that holds `folder`.
        folder: of `0001_what.sql`, `0002_what.sql`, …: each leads from the version before to its own.
    """

    name: str
    package: str
    folder: str

    def steps(self) -> list[str]:
        """The migrations in order; the n-th leads to version n."""
        found = [
            f for f in files(self.package).joinpath(self.folder).iterdir() if _NUMBERED.fullmatch(f.name)
        ]
        return [f.read_text("utf-8") for f in sorted(found, key=lambda f: f.name)]


def migrate(connection: sqlite3.Connection, schemas: Sequence[Schema]) -> Sequence[None]:
    """Work for the writer: what is missing, inside its transaction, so that two processes do it once."""
    connection.execute(_VERSIONS)
    for schema in schemas:
        _bring_up(connection, schema, schema.steps())
    return [None] * len(schemas)


def _bring_up(connection: sqlite3.Connection, schema: Schema, steps: Sequence[str]) -> None:
    row = connection.execute(_READ, (schema.name,)).fetchone()
    version = row[0] if row else 0
    if version > len(steps):
        raise ConfigError(
            f"The database holds {schema.name} in schema {version}, written by a newer astromesh; this one "
            f"knows {len(steps)}. Upgrade astromesh, or point it at another data folder."
        )
    for step in steps[version:]:
        for statement in statements(step):
            connection.execute(statement)
    if version < len(steps):
        connection.execute(_WRITE, (schema.name, len(steps)))


def statements(script: str) -> Iterator[str]:
    """The statements of a script, so that they run inside a transaction (`executescript` would commit it)."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        raise ConfigError(f"A migration ends in the middle of a statement: {pending.strip()[:80]}")


#: what PostgreSQL has and SQLite has not, or writes in another way
_TO_SQLITE = (
    (re.compile(r"\bastromesh\."), ""),
    (re.compile(r"::\w+(\[\])?"), ""),
    (re.compile(r"\$(\d+)"), r"?\1"),
    (re.compile(r"\s+FOR UPDATE( SKIP LOCKED)?"), ""),
    (re.compile(r"\bTRUE\b"), "1"),
    (re.compile(r"\bFALSE\b"), "0"),
)


def to_sqlite(query: str) -> str:
    """A query of PostgreSQL in SQLite's words: no schema, casts or row locks, `?1` for `$1`, 1 for TRUE."""
    for pattern, replacement in _TO_SQLITE:
        query = pattern.sub(replacement, query)
    return query


def store_queries(package: str, name: str, dialect: Literal["sqlite", "postgres"]) -> dict[str, str]:
    """The queries of a store by name.

    `sql/NAME.sql` holds what both databases share, written for PostgreSQL. `sql/DIALECT/NAME.sql` holds the
    queries of one database alone.
    """
    shared = queries(package, f"sql/{name}.sql")
    if dialect == "sqlite":
        shared = {key: to_sqlite(query) for key, query in shared.items()}
    return {**shared, **queries(package, f"sql/{dialect}/{name}.sql")}


def queries(package: str, path: str) -> Mapping[str, str]:
    """The queries of a file by name; each starts with a line `-- name: what_it_is`."""
    parts = _NAMED.split(files(package).joinpath(path).read_text("utf-8"))
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))
