"""What a server has on disk now: its files with every write-ahead log, and the rows of PostgreSQL."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.platform.postgres import BINARIES


def places_of(text: str, data: Path, storage: str = "") -> list[str]:
    """Returns the names of the files that hold a text, and `rows` if rows of the database do.

    Args:
        data: the data folder.
        storage: URL of a PostgreSQL database, if the server has one.
    """
    sought = text.encode()
    files = [file for file in sorted(data.rglob("*")) if file.is_file()]
    found = [file.name for file in files if sought in file.read_bytes()]
    return [*found, "rows"] if storage and sought in _rows(storage) else found


def _rows(storage: str) -> bytes:
    dump = [str(BINARIES / "pg_dump"), storage, "--data-only", "--no-owner"]
    return subprocess.run(dump, capture_output=True, check=True).stdout
