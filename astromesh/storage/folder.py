"""Folders and files that hold what people said: nobody but the server's own user reads them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def private_folder(folder: Path) -> None:
    """Makes a folder, and those that it stands in, where they are missing. What exists stays as it is."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(FOLDER_MODE, exist_ok=True)


def private_file(file: Path) -> None:
    """Makes an empty file where it is missing.

    An existing one is not opened: closing it would let go of the locks that SQLite holds in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE))


def trouble_with(folder: Path) -> str:
    """Why nothing can be written into a folder, which is made where it is missing; empty where it can."""
    try:
        private_folder(folder)
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"
