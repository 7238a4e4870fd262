"""`astromesh new`, `init` and `schema`: write a project, a configuration, the JSON Schemas of its files."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import orjson
import typer
from pydantic import TypeAdapter, ValidationError

from astromesh import __version__
from astromesh.cli.options import Json
from astromesh.cli.terminal import note, print_json
from astromesh.config import schema as schemas
from astromesh.config.records import JsonMap, Name
from astromesh.config.workflow import Id
from astromesh.config.workflow_folder import FILES as WORKFLOW_FILES
from astromesh.config.workflow_folder import json_schema_of as workflow_schema_of
from astromesh.errors import ConfigError, InvalidInput
from astromesh.plugins import Plugins

#: in the texts and file names of the templates: the name of the agent or workflow
_PLACEHOLDER = "AGENT"
#: in requirements: the version of astromesh that writes them
_VERSION = "==VERSION"


@dataclass(frozen=True)
class _Template:
    """What `new` writes.

    Args:
        folders: of this package; files of the later ones replace those of the earlier.
        name: the default name.
        tries: commands to start with.
    """

    folders: tuple[str, ...]
    kind: str
    name: str
    tries: tuple[str, ...]


_SERVE = "astromesh dev"
TEMPLATES: Mapping[str, _Template] = {
    "agent": _Template(
        ("project",), "agent", "assistant",
        ('astromesh run AGENT "How do I give the agent new knowledge?"', "astromesh chat AGENT", _SERVE),
    ),
    "workflow": _Template(
        ("project_workflow",), "workflow", "triage",
        ("make check", """astromesh workflow run AGENT '{"text": "The site is down!"}' --trace""",
         "astromesh workflow repl AGENT", "make package"),
    ),
    "support-bot": _Template(
        ("project", "templates/support_bot"), "agent", "support",
        ('astromesh run AGENT "How do I return an item?"', "astromesh chat AGENT", _SERVE),
    ),
    "research-team": _Template(
        ("project", "templates/research_team"), "agent", "lead",
        ('astromesh run AGENT "How do I give the agent new knowledge?"', "astromesh chat AGENT", _SERVE),
    ),
    "rag": _Template(
        ("project", "templates/rag"), "agent", "librarian",
        ('astromesh run AGENT "What does the agent remember?"', "astromesh chat AGENT", _SERVE),
    ),
    "approvals": _Template(
        ("templates/approvals",), "workflow", "invoices",
        ("""astromesh workflow run AGENT '{"invoice": "A-1", "amount": 20}'""", _SERVE),
    ),
    "whatsapp": _Template(
        ("project", "templates/whatsapp"), "agent", "assistant",
        ('astromesh run AGENT "How do I add a tool?"', _SERVE),
    ),
    "batch": _Template(
        ("templates/batch",), "workflow", "batch",
        ("""astromesh workflow run AGENT '{"items": ["one", "two"]}'""", "astromesh serve"),
    ),
}  # fmt: skip
_GIT_IGNORE = PurePosixPath(".gitignore")
#: kind -> the names that it may have, and what to do about another one
_NAMES: Mapping[str, tuple[Any, str]] = {
    "agent": (
        Name, "use at most 64 letters, digits, '.', '_' and '-', and begin with a letter or digit"
    ),
    "workflow": (Id, "use at most 64 letters, digits, '_' and '-'"),
}  # fmt: skip
_KINDS = ", ".join(TEMPLATES)
TemplateName = Annotated[str, typer.Option(metavar="KIND", help=f"One of {_KINDS}.")]
ProjectName = Annotated[
    str, typer.Option(metavar="NAME", help="Name of its agent or workflow; default: the template's.")
]


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    name: ProjectName = "",
    template: TemplateName = "agent",
    json: Json = False,
) -> None:
    """Write a project that runs at once."""
    chosen = _chosen(template)
    name = name or chosen.name
    _check_name(name, chosen)
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file, not a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(
            f"{folder} is not empty. Name a folder that is empty or does not exist, or add a configuration "
            "to the project with 'astromesh init'."
        )
    written = _write(folder, name, chosen)
    _report(folder, name, chosen, written, (), as_json=json)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the project.")] = Path(),
    name: ProjectName = "",
    template: TemplateName = "agent",
    json: Json = False,
) -> None:
    """Add a configuration to an existing project. Files that are there stay as they are."""
    chosen = _chosen(template)
    name = name or chosen.name
    _check_name(name, chosen)
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder. 'astromesh new {folder}' writes a new project.")
    if (folder / "config").exists():
        raise InvalidInput(f"{folder / 'config'} is there already. 'astromesh validate' checks it.")
    present = {path for _, path in _files(chosen, name) if (folder / path).exists()}
    written = _write(folder, name, chosen, present)
    _report(folder, name, chosen, written, sorted(present), as_json=json)


def _chosen(template: str) -> _Template:
    if template not in TEMPLATES:
        raise InvalidInput(f"There is no template {template!r}. Known: {_KINDS}.")
    return TEMPLATES[template]


def _files(template: _Template, name: str) -> list[tuple[Traversable, PurePosixPath]]:
    """Returns the files of a template with their places in the project."""
    found: dict[PurePosixPath, Traversable] = {}
    for folder in template.folders:
        for source, path in _templates(files("astromesh.cli").joinpath(folder)):
            found[PurePosixPath(str(path).replace(_PLACEHOLDER, name))] = source
    return [(source, path) for path, source in found.items()]


def _write(
    folder: Path, name: str, template: _Template, present: Collection[PurePosixPath] = ()
) -> list[PurePosixPath]:
    """Writes the files that are not present. Raises: ConfigError: one cannot be written."""
    written = []
    try:
        for source, path in _files(template, name):
            if path not in present:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_filled(source.read_text("utf-8"), name), "utf-8")
                written.append(path)
    except OSError as error:
        raise ConfigError(f"Cannot write {error.filename}: {error.strerror}.") from error
    write_schemas(folder / "config" / "schemas")
    return sorted(written)


def _report(
    folder: Path,
    name: str,
    template: _Template,
    written: Sequence[PurePosixPath],
    existing: Sequence[PurePosixPath],
    *,
    as_json: bool,
) -> None:
    here = folder.resolve() == Path.cwd()
    tries = [*([] if here else [f"cd {shlex.quote(str(folder))}"]), *template.tries]
    commands = [_filled(command, name) for command in tries]
    if as_json:
        report = {"folder": str(folder), template.kind: name, "written": [*map(str, written)]}
        print_json({**report, "kept": [*map(str, existing)], "try": commands})
        return
    place = "this folder" if here else folder
    print(f"A project with the {template.kind} {name!r} is in {place}. Try:\n")
    for command in commands:
        print(f"  {command}")
    if existing:
        note(f"Files that were there stay as they are: {', '.join(map(str, existing))}")
    if _GIT_IGNORE in existing:
        note(f"Let {_GIT_IGNORE} name .env and .astromesh/, which hold your keys and your data.")


def _filled(text: str, name: str) -> str:
    return text.replace(_PLACEHOLDER, name).replace(_VERSION, f"=={__version__}")


def _check_name(name: str, template: _Template) -> None:
    names, rule = _NAMES[template.kind]
    try:
        TypeAdapter(names).validate_python(name)
    except ValidationError as error:
        article = "an" if template.kind == "agent" else "a"
        raise InvalidInput(f"{name!r} is not a valid name of {article} {template.kind}: {rule}.") from error


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


# -- schema --------------------------------------------------------------------------------------------------

_WORKFLOW = "workflow/"
#: kinds of manifests, and the files of a workflow's folder: `workflow/agents`
KINDS = (*schemas.SCHEMA_FILES, *(f"{_WORKFLOW}{Path(name).stem}" for name in WORKFLOW_FILES))


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="E.g. Agent; absent: list all kinds.")] = "",
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write all schemas to this folder.")
    ] = None,
) -> None:
    """Print the JSON Schema of a kind of file, for editors."""
    if write is not None:
        for file in write_schemas(write, [_kind_of(kind)] if kind else KINDS):
            note(f"wrote {file}")
    elif kind:
        print_json(_schema_of(_kind_of(kind), Plugins()))
    else:
        print("\n".join(KINDS))


def write_schemas(folder: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Writes `KIND.schema.json` for each kind and returns the files."""
    plugins, written = Plugins(), []
    try:
        for kind in kinds:
            file = folder / f"{schemas.SCHEMA_FILES.get(kind, kind)}.schema.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            file.write_bytes(orjson.dumps(_schema_of(kind, plugins), option=options))
            written.append(file)
    except OSError as error:
        raise ConfigError(f"Cannot write {error.filename}: {error.strerror}.") from error
    return written


def _schema_of(kind: str, plugins: Plugins) -> JsonMap:
    if kind in schemas.SCHEMA_FILES:
        return schemas.schema(kind, plugins)
    return workflow_schema_of(f"{kind.removeprefix(_WORKFLOW)}.yaml")


def _kind_of(kind: str) -> str:
    """Returns the kind of a name in any case, also of a file's name: `agent` is Agent."""
    names = {name.lower(): name for name in KINDS}
    names |= {file: name for name, file in schemas.SCHEMA_FILES.items()}
    if found := names.get(kind.lower()):
        return found
    near = difflib.get_close_matches(kind.lower(), names, 1)
    hint = f"Did you mean {names[near[0]]}?" if near else f"Known: {', '.join(KINDS)}."
    raise InvalidInput(f"There is no kind {kind!r}. {hint}")
