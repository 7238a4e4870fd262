"""`astromesh validate`: reports every fault of a configuration; other commands load a valid one here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from astromesh.cli.errors import USAGE_ERROR
from astromesh.cli.options import CONFIG_FOLDER, Config, Json
from astromesh.cli.terminal import note, print_json
from astromesh.config.folder import FILE_FOLDERS, SINGLE_FILES, Configuration, Faults, load
from astromesh.errors import InvalidInput, InvalidManifest
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import load_configuration
from astromesh.text import did_you_mean
from astromesh.types import JsonObject


def load_valid(folder: Path, *, strict: bool = False) -> Configuration:
    """Loads a configuration that can run, and prints its warnings and broken agents to stderr.

    Args:
        strict: broken agents are faults.

    Raises:
        InvalidConfiguration: with every fault.
    """
    configuration = load_configuration(folder, Plugins())
    configuration.require_sound(strict=strict)
    print_warnings(configuration)
    return configuration


def print_warnings(configuration: Configuration) -> None:
    """Prints warnings and broken agents; a warning of many places only once."""
    alike: dict[str, list[InvalidManifest]] = {}
    for warning in configuration.warnings:
        alike.setdefault(warning.message, []).append(warning)
    for warning, *more in alike.values():
        others = f" (and {len(more)} more places; 'astromesh validate' lists them)" if more else ""
        note(f"warning: {warning}{others}", "yellow")
    for name, faults in configuration.broken.items():
        note(f"warning: the agent {name!r} is broken and answers 503:", "yellow")
        for fault in faults:
            note(f"  {fault}", "yellow")


def warn_of_unknown_agents(config: Path, agents: Sequence[str]) -> None:
    """Warns of agents of a key that the configuration does not have: a typing error, or an agent to come."""
    if not config.is_dir():
        return
    found = load(config)
    known = {*found.agents, *found.broken}
    for name in agents:
        if name not in known:
            hint = did_you_mean(name, known)
            note(f"warning: unknown agent `{name}` in {config}{f'. {hint}' if hint else ''}", "yellow")


def validate(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A folder or one file; default: --config.")
    ] = None,
    config: Config = CONFIG_FOLDER,
    json: Json = False,
) -> None:
    """Report every fault of a configuration."""
    raise typer.Exit(report_faults(path or config, as_json=json))


def report_faults(path: Path, *, as_json: bool = False) -> int:
    """Prints faults and warnings of a folder, or of one file within its folder.

    Returns:
        The exit code: 2 where there is a fault.

    Raises:
        InvalidInput: no configuration reads the file.
    """
    folder = _folder_of(path) if path.is_file() else path
    configuration = load_configuration(folder, Plugins())
    faults, warnings = configuration.every_fault(), configuration.warnings
    if path.is_file():
        faults, warnings = _about(path, faults), _about(path, warnings)
    if as_json:
        print_json({"faults": [*map(_fault_json, faults)], "warnings": [*map(_fault_json, warnings)]})
    else:
        _print_findings(path, configuration, faults, warnings)
    return USAGE_ERROR if faults else 0


def _print_findings(path: Path, configuration: Configuration, faults: Faults, warnings: Faults) -> None:
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
    """Returns the configuration folder that reads this file."""
    parent = path.parent
    if path.name in SINGLE_FILES:
        return parent
    kind = FILE_FOLDERS.get(path.resolve().parent.name)
    if kind is not None and path.name.endswith(kind[0]):
        return path.resolve().parent.parent
    read = [*SINGLE_FILES, *(f"{folder}/*{kind[0]}" for folder, kind in FILE_FOLDERS.items())]
    raise InvalidInput(
        f"{path} is not a file of a configuration. Files of a configuration: {', '.join(read)}."
    )


def _about(path: Path, faults: Iterable[InvalidManifest]) -> Faults:
    return tuple(fault for fault in faults if Path(fault.file).resolve() == path.resolve())


def _fault_json(fault: InvalidManifest) -> JsonObject:
    return {
        "file": fault.file, "line": fault.line, "column": fault.column, "key": fault.key,
        "message": fault.message, "hint": fault.hint,
    }  # fmt: skip
