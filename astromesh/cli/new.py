"""`astromesh new`: a project that runs at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

from astromesh.cli.schema import write_schemas
from astromesh.config.fields import Name
from astromesh.errors import ConfigError, InvalidInput

#: stands in the templates' texts and file names for the name of the agent
_PLACE = "AGENT"


def new(folder: Path, name: str) -> None:
    """Writes the project.

    Args:
        folder: made when missing; it must be empty.
        name: of its agent.

    Raises:
        InvalidInput: a folder with something in it, or a name that no agent may have.
        ConfigError: the folder cannot be written.
    """
    _check(folder, name)
    try:
        for source, path in _templates(files("astromesh.cli").joinpath("project")):
            target = folder / str(path).replace(_PLACE, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text("utf-8").replace(_PLACE, name), "utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot write {error.filename}: {error.strerror}.") from error
    write_schemas(folder / "config" / "schemas")
    print(f"A project with the agent {name!r} is in {folder}. Try:\n")
    print(f"  cd {shlex.quote(str(folder))}")
    print(f'  astromesh run {name} "How do I give the agent new knowledge?"')
    print(f"  astromesh chat {name}")
    print("  astromesh serve")


def _check(folder: Path, name: str) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise InvalidInput(
            f"{name!r} is no name for an agent: letters, digits, '.', '_' and '-', at most 64, no sign first."
        ) from error
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file, not a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty; name a folder that is empty or does not exist.")


def _templates(
    folder: Traversable, at: PurePosixPath = PurePosixPath()
) -> Iterator[tuple[Traversable, PurePosixPath]]:
    """Each template with the path it is written to. `dot-x` becomes `.x`, `x.template` becomes `x`."""
    for found in folder.iterdir():
        name = found.name.removesuffix(".template")
        path = at / (f".{name.removeprefix('dot-')}" if name.startswith("dot-") else name)
        if found.is_dir():
            yield from _templates(found, path)
        else:
            yield found, path
