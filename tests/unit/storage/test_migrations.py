"""Migrations of one database and of both are one sequence."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.resources import files
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


#: what takes something from the version before, or makes what it writes wrong
_CONTRACTS = re.compile(
    r"\bDROP (TABLE|COLUMN|SCHEMA|CONSTRAINT|VIEW|FUNCTION)\b|\bRENAME\b|\bCREATE UNIQUE INDEX\b"
    r"|\bALTER COLUMN \w+ (SET NOT NULL|TYPE|DROP)|\bADD (CONSTRAINT|PRIMARY KEY|UNIQUE|CHECK|FOREIGN KEY)\b",
    re.IGNORECASE,
)
_ADDED_COLUMN = re.compile(r"\bADD COLUMN\b[^,;]*", re.IGNORECASE)
#: from before the first release; one that drops what no version leans on, a foreign key; and one that makes
#: tables anew with the same names and columns
_EXCEPTIONS = {
    "durable/sql/postgres/runs/0004_no_dispatch_schema.sql",
    "durable/sql/postgres/runs/0019_no_foreign_keys.sql",
    "durable/sql/sqlite/runs/0020_rowids.sql",
    "knowledge/sql/postgres/chunks/0002_owners.sql",
    "knowledge/sql/sqlite/chunks/0002_vectors.sql",
    "knowledge/sql/sqlite/chunks/0003_owners.sql",
}


def contraction(migration: str) -> str:
    """Returns what of a migration hinders processes of the version before, empty where nothing does."""
    script = re.sub(r"--[^\n]*", "", migration)
    found = [match[0] for match in _CONTRACTS.finditer(script)]
    for match in _ADDED_COLUMN.finditer(script):
        if re.search(r"\bNOT NULL\b", match[0], re.IGNORECASE) and "DEFAULT" not in match[0].upper():
            found.append(match[0])
    return ", ".join(found)


def test_the_version_before_works_beside_every_migration():
    """In a rolling update it uses the tables of the next one. What nobody uses goes a release later."""
    root = Path(str(files("astromesh")))
    steps = {str(file.relative_to(root)): file.read_text() for file in root.glob("**/sql/**/[0-9]*_*.sql")}
    assert len(steps) > 40
    found = {name: what for name, text in steps.items() if (what := contraction(text))}
    assert found.keys() == _EXCEPTIONS, found


@pytest.mark.parametrize(
    "migration",
    [
        "ALTER TABLE astromesh.notes DROP COLUMN done;",
        "ALTER TABLE notes RENAME TO old_notes;",
        "ALTER TABLE astromesh.notes ALTER COLUMN author SET NOT NULL;",
        "ALTER TABLE astromesh.notes ADD COLUMN author TEXT NOT NULL;",
        "CREATE UNIQUE INDEX notes_once ON notes (text);",
    ],
)
def test_what_takes_something_from_the_version_before_is_seen(migration: str):
    assert contraction(migration)
    assert not contraction("-- " + migration + "\nALTER TABLE notes ADD COLUMN author TEXT;")
