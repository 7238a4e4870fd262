"""Where the harness of the documentation meets the code that it checks the documentation against."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import typer


def manifest_faults(folder: Path) -> list[str]:
    """What the configuration loader finds wrong in a folder, or in the folder `config` in it."""
    config = importlib.import_module("astromesh.config.folder")
    below = folder / "config"
    return [str(fault) for fault in config.load(below if below.exists() else folder).every_fault()]


def astromesh_command() -> Any:
    """The command `astromesh` with its sub-commands and options."""
    main = importlib.import_module("astromesh.cli.main")
    return typer.main.get_command(main.complete_app())
