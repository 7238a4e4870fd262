"""Options that several commands share, and the default folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from astromesh.cli.errors import reason_of
from astromesh.text import CONTROL_CHARACTERS

CONFIG_FOLDER, DATA_FOLDER = Path("config"), Path(".astromesh")

Config = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="DIR", envvar="ASTROMESH_CONFIG_DIR", help="Folder of the configuration."
    ),
]
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", envvar="ASTROMESH_DATA_DIR", help="Folder of the data.")
]


def _load_env_file(file: Path | None) -> Path | None:
    """Adds the variables of a file to the environment; those that are set keep their values."""
    if file is None:
        return None
    from dotenv import load_dotenv

    try:
        if not file.is_file():
            raise typer.BadParameter(f"There is no file {file}.")
        load_dotenv(file, override=False)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {reason_of(error)}.") from error
    return file


def _load_own_env_file(file: Path | None) -> Path | None:
    return _load_env_file(file or (Path(".env") if Path(".env").is_file() else None))


#: read before the other options, which may come from variables
EnvFile = Annotated[
    Path | None,
    typer.Option(
        "--env-file", metavar="FILE", is_eager=True, callback=_load_env_file,
        help="File of variables; variables that are set keep their values.",
    ),
]  # fmt: skip
DevEnvFile = Annotated[
    Path | None,
    typer.Option(
        "--env-file", metavar="FILE", is_eager=True, callback=_load_own_env_file,
        help="File of variables; default: .env. Variables that are set keep their values.",
    ),
]  # fmt: skip
AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _check_session(session: str) -> str:
    """Applies the rule of `session_id` over HTTP, but accepts an empty session."""
    if len(session) > 256 or re.search(f"[{CONTROL_CHARACTERS}\ud800-\udfff]", session):
        raise typer.BadParameter(
            "A session id must have 1 to 256 characters of UTF-8 and no control characters."
        )
    return session


Session = Annotated[
    str,
    typer.Option("--session", "-s", metavar="ID", help="Conversation to continue.", callback=_check_session),
]


def folders_of(config: Path, data: Path) -> tuple[Path, Path]:
    """Returns the two folders, and sets their variables for defaults in YAML and for worker processes."""
    os.environ["ASTROMESH_CONFIG_DIR"], os.environ["ASTROMESH_DATA_DIR"] = str(config), str(data)
    return config, data
