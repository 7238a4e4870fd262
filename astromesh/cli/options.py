"""Options that several commands have, and the two folders that they name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="DIR", envvar="ASTROMESH_CONFIG_DIR", help="Configuration.")
]
Data = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", envvar="ASTROMESH_DATA_DIR", help="What is kept between runs."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Session = Annotated[
    str, typer.Option("--session", "-s", metavar="ID", help="The conversation to go on with.")
]


def at(config: Path, data: Path) -> tuple[Path, Path]:
    """The two folders. The environment names them too, for what reads it: defaults in YAML, and workers."""
    os.environ["ASTROMESH_CONFIG_DIR"], os.environ["ASTROMESH_DATA_DIR"] = str(config), str(data)
    return config, data
