"""Creates folders and files with personal data so that only the user of the server can read them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def private_folder(folder: Path) -> None:
    """Creates a folder and its missing parents. Existing folders keep their mode."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(FOLDER_MODE, exist_ok=True)


def private_file(file: Path) -> None:
    """Creates an empty file if it is missing.

    An existing file is not opened: closing it would release the locks that SQLite holds in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE))


def write_problem(folder: Path) -> str:
    """Returns why a folder cannot be written to, or an empty string. Creates the folder if it is missing."""
    try:
        private_folder(folder)
    except OSError as error:
        return f"cannot be created: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


def shared_key(file: Path) -> bytes:
    """Returns the 32 bytes of a key. Processes with one data folder share it; the first one makes it."""
    if not file.exists():
        private_folder(file.parent)
        descriptor, made = mkstemp(dir=file.parent)  # of mode 600
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(os.urandom(32))
        with suppress(FileExistsError):
            os.link(made, file)  # whole, or not at all
        Path(made).unlink()
    return file.read_bytes()
