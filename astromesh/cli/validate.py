"""`astromesh validate`: everything that is wrong with a configuration, at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from astromesh.cli.failure import CALL_WRONG
from astromesh.cli.output import note, print_json
from astromesh.config.configuration import Configuration, Faults
from astromesh.config.load import MANY, SINGLE
from astromesh.errors import InvalidInput, InvalidManifest
from astromesh.plugins import Plugins
from astromesh.runtime.bootstrap import load_configuration
from astromesh.types import JsonObject


def validate(path: Path, *, as_json: bool) -> int:
    """Prints faults and warnings of a folder, or of one file in the light of its folder.

    Returns:
        The exit code: 2 where there is a fault.

    Raises:
        InvalidInput: a file that no configuration would read.
    """
    folder = _folder_of(path) if path.is_file() else path
    configuration = load_configuration(folder, Plugins())
    faults, warnings = configuration.every_fault(), configuration.warnings
    if path.is_file():
        faults, warnings = _about(path, faults), _about(path, warnings)
    if as_json:
        print_json({"faults": [*map(_line, faults)], "warnings": [*map(_line, warnings)]})
    else:
        _tell(path, configuration, faults, warnings)
    return CALL_WRONG if faults else 0


def _tell(path: Path, configuration: Configuration, faults: Faults, warnings: Faults) -> None:
    for fault in faults:
        print(fault)
    for warning in warnings:
        note(f"warning: {warning}", "yellow")
    if faults:
        note(f"\n{len(faults)} fault{'s' if len(faults) != 1 else ''} in {path}", "red")
    elif path.is_file():
        print(f"{path} is fine.")
    else:
        agents = len(configuration.agents)
        print(f"{path} is fine: {agents} agent{'s' if agents != 1 else ''}.")


def _folder_of(path: Path) -> Path:
    """The configuration folder that reads this file."""
    parent = path.parent
    if path.name in SINGLE:
        return parent
    kind = MANY.get(path.resolve().parent.name)
    if kind is not None and path.name.endswith(kind[0]):
        return path.resolve().parent.parent
    read = [*SINGLE, *(f"{folder}/*{kind[0]}" for folder, kind in MANY.items())]
    raise InvalidInput(f"No configuration reads {path}. Files are: {', '.join(read)}.")


def _about(path: Path, faults: Iterable[InvalidManifest]) -> Faults:
    return tuple(fault for fault in faults if Path(fault.file).resolve() == path.resolve())


def _line(fault: InvalidManifest) -> JsonObject:
    return {
        "file": fault.file, "line": fault.line, "column": fault.column, "key": fault.key,
        "message": fault.message, "hint": fault.hint,
    }  # fmt: skip
