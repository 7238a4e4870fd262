"""Options that several commands share, and the default folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from astromesh.text import CONTROL_CHARACTERS

# Where the configuration and the data are unless options or the environment name other folders.

CONFIG_FOLDER, DATA_FOLDER = Path("config"), Path(".astromesh")


Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="DIR", envvar="ASTROMESH_CONFIG_DIR", help="Configuration.")
]


Data = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", envvar="ASTROMESH_DATA_DIR", help="What is kept between runs."),
]


Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def _session(given: str) -> str:
    """By the same rule as `session_id` over HTTP; absent is empty."""
    if len(given) > 256 or re.search(f"[{CONTROL_CHARACTERS}\ud800-\udfff]", given):
        raise typer.BadParameter("A session has 1 to 256 characters of UTF-8, no control characters.")
    return given


Session = Annotated[
    str,
    typer.Option("--session", "-s", metavar="ID", help="The conversation to go on with.", callback=_session),
]


def folders_of(config: Path, data: Path) -> tuple[Path, Path]:
    """The two folders. The environment names them too, for what reads it: defaults in YAML, and workers."""
    os.environ["ASTROMESH_CONFIG_DIR"], os.environ["ASTROMESH_DATA_DIR"] = str(config), str(data)
    return config, data
