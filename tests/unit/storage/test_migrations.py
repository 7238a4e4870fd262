"""Migrations of one database and of both are one sequence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from astromesh.storage.migrations import Schema
from astromesh.storage.queries import Dialect

FILES = {
    "sqlite/notes/0001_table.sql": "CREATE TABLE notes (text TEXT) WITHOUT ROWID;",
    "postgres/notes/0001_table.sql": "CREATE TABLE astromesh.notes (text TEXT);",
    "notes/0002_author.sql": "ALTER TABLE astromesh.notes ADD COLUMN done BOOLEAN NOT NULL DEFAULT FALSE;",
    "notes/README.md": "This is not a migration.",
}


@pytest.fixture
def package(tmp_path: Path):
    for name, text in FILES.items():
        file = tmp_path / "notes_package" / "sql" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "notes_package" / "__init__.py").touch()
    sys.path.insert(0, str(tmp_path))
    yield "notes_package"
    sys.path.remove(str(tmp_path))
    sys.modules.pop("notes_package", None)


TABLES: Mapping[Dialect, tuple[str, str]] = {
    "sqlite": (
        "CREATE TABLE notes (text TEXT) WITHOUT ROWID;",
        "notes ADD COLUMN done BOOLEAN NOT NULL DEFAULT 0;",
    ),
    "postgres": ("CREATE TABLE astromesh.notes (text TEXT);", "DEFAULT FALSE;"),
}


def test_a_migration_of_both_databases_is_written_once(package):
    for dialect, (table, added) in TABLES.items():
        schema = Schema("notes", package, f"sql/{dialect}/notes", "sql/notes")
        first, second = schema.steps(dialect)
        assert first == table
        assert second.endswith(added)
        assert len(Schema("notes", package, f"sql/{dialect}/notes").steps(dialect)) == 1
