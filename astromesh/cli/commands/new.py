"""`astromesh new`: writes a project that runs at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from astromesh import __version__
from astromesh.cli.commands.schema import write_schemas
from astromesh.config.records import Name
from astromesh.config.workflow.manifest import Id
from astromesh.errors import ConfigError, InvalidInput

#: in the texts and file names of the templates: the name of the agent or workflow
_PLACEHOLDER = "AGENT"
#: in requirements: the version of astromesh that writes them
_VERSION = "==VERSION"


@dataclass(frozen=True)
class _Template:
    """Args: folder: of this package. name: the default name. tries: commands to start with."""

    folder: str
    kind: str
    name: str
    names: Any
    rule: str
    tries: tuple[str, ...]


TEMPLATES: Mapping[str, _Template] = {
    "agent": _Template(
        "project", "agent", "assistant", Name,
        "use at most 64 letters, digits, '.', '_' and '-', and begin with a letter or digit",
        ('astromesh run AGENT "How do I give the agent new knowledge?"', "astromesh chat AGENT",
         "astromesh serve"),
    ),
    "workflow": _Template(
        "project_workflow", "workflow", "triage", Id, "use at most 64 letters, digits, '_' and '-'",
        ("make check", """astromesh workflow run AGENT '{"text": "The site is down!"}' --trace""",
         "astromesh workflow repl AGENT", "make package"),
    ),
}  # fmt: skip


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    name: Annotated[
        str, typer.Option(help="Name of its agent or workflow; default: assistant, triage.")
    ] = "",
    template: Annotated[str, typer.Option(metavar="KIND", help="agent or workflow.")] = "agent",
) -> None:
    """Write a project that runs at once."""
    if template not in TEMPLATES:
        raise InvalidInput(f"There is no template {template!r}. Known: {', '.join(TEMPLATES)}.")
    chosen = TEMPLATES[template]
    name = name or chosen.name
    _check(folder, name, chosen)
    try:
        for source, path in _templates(files("astromesh.cli").joinpath(chosen.folder)):
            target = folder / str(path).replace(_PLACEHOLDER, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_filled(source.read_text("utf-8"), name), "utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot write {error.filename}: {error.strerror}.") from error
    write_schemas(folder / "config" / "schemas")
    print(f"A project with the {chosen.kind} {name!r} is in {folder}. Try:\n")
    for command in (f"cd {shlex.quote(str(folder))}", *chosen.tries):
        print(f"  {_filled(command, name)}")


def _filled(text: str, name: str) -> str:
    return text.replace(_PLACEHOLDER, name).replace(_VERSION, f"=={__version__}")


def _check(folder: Path, name: str, template: _Template) -> None:
    try:
        TypeAdapter(template.names).validate_python(name)
    except ValidationError as error:
        article = "an" if template.kind == "agent" else "a"
        raise InvalidInput(
            f"{name!r} is not a valid name of {article} {template.kind}: {template.rule}."
        ) from error
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file, not a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty. Name a folder that is empty or does not exist.")


def _templates(
    folder: Traversable, at: PurePosixPath = PurePosixPath()
) -> Iterator[tuple[Traversable, PurePosixPath]]:
    """Yields each template with its target path. `dot-x` becomes `.x`, `x.template` becomes `x`."""
    for found in folder.iterdir():
        name = found.name.removesuffix(".template")
        path = at / (f".{name.removeprefix('dot-')}" if name.startswith("dot-") else name)
        if found.is_dir():
            yield from _templates(found, path)
        else:
            yield found, path
