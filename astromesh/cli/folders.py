"""Where the configuration and the data are unless options or the environment name other folders."""

from __future__ import annotations

import os
from pathlib import Path

from astromesh.storage.folder import private_folder

CONFIG, DATA = Path("config"), Path(".astromesh")


def trouble_with(folder: Path) -> str:
    """Why nothing can be written into a folder, which is made where it is missing; empty where it can."""
    try:
        private_folder(folder)
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"
