"""`astromesh schema`: prints the JSON Schemas of the files, for editors."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer

from astromesh.cli.terminal import note, print_json
from astromesh.config import schema as schemas
from astromesh.config.records import JsonMap
from astromesh.config.workflow.folder import FILES as WORKFLOW_FILES
from astromesh.config.workflow.folder import json_schema_of as workflow_schema_of
from astromesh.errors import ConfigError, InvalidInput
from astromesh.plugins import Plugins

_WORKFLOW = "workflow/"
#: kinds of manifests, and the files of a workflow's folder: `workflow/agents`
KINDS = (*schemas.SCHEMA_FILES, *(f"{_WORKFLOW}{Path(name).stem}" for name in WORKFLOW_FILES))


def schema(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="E.g. Agent; absent: list all kinds.")] = "",
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
