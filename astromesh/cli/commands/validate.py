"""`astromesh validate`, and the checked configuration that other commands start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from astromesh.cli.errors import USAGE_ERROR
from astromesh.cli.terminal import note, print_json
from astromesh.config.folder import FILE_FOLDERS, SINGLE_FILES, Configuration, Faults, load
from astromesh.errors import InvalidInput, InvalidManifest
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import load_configuration
from astromesh.text import did_you_mean
from astromesh.types import JsonObject


def load_valid(folder: Path, *, strict: bool = False) -> Configuration:
    """A configuration that can run; warnings and broken agents go to stderr.

    Args:
        strict: broken agents are faults.

    Raises:
        InvalidConfiguration: every fault that stands in the way.
    """
    configuration = load_configuration(folder, Plugins())
    configuration.require_sound(strict=strict)
    print_warnings(configuration)
    return configuration


def print_warnings(configuration: Configuration) -> None:
    """Prints what does not stand in the way but deserves a look: once, where many places say the same."""
    alike: dict[str, list[InvalidManifest]] = {}
    for warning in configuration.warnings:
        alike.setdefault(warning.message, []).append(warning)
    for warning, *more in alike.values():
        others = f" (and {len(more)} more such places: 'astromesh validate' lists them)" if more else ""
        note(f"warning: {warning}{others}", "yellow")
    for name, faults in configuration.broken.items():
        note(f"warning: the agent {name!r} is broken and answers 503:", "yellow")
        for fault in faults:
            note(f"  {fault}", "yellow")


# Agents that a key is made for and that the configuration does not have.


def warn_of_unknown_agents(config: Path, agents: Sequence[str]) -> None:
    """Warns: they may come later, and may be slips of the pen. Without a configuration nobody knows."""
    if not config.is_dir():
        return
    found = load(config)
    there = {*found.agents, *found.broken}
    for name in agents:
        if name not in there:
            hint = did_you_mean(name, there)
            note(f"warning: unknown agent `{name}` in {config}{f'. {hint}' if hint else ''}", "yellow")


# `astromesh validate`: everything that is wrong with a configuration, at once.


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
    """The configuration folder that reads this file."""
    parent = path.parent
    if path.name in SINGLE_FILES:
        return parent
    kind = FILE_FOLDERS.get(path.resolve().parent.name)
    if kind is not None and path.name.endswith(kind[0]):
        return path.resolve().parent.parent
    read = [*SINGLE_FILES, *(f"{folder}/*{kind[0]}" for folder, kind in FILE_FOLDERS.items())]
    raise InvalidInput(f"No configuration reads {path}. Files are: {', '.join(read)}.")


def _about(path: Path, faults: Iterable[InvalidManifest]) -> Faults:
    return tuple(fault for fault in faults if Path(fault.file).resolve() == path.resolve())


def _fault_json(fault: InvalidManifest) -> JsonObject:
    return {
        "file": fault.file, "line": fault.line, "column": fault.column, "key": fault.key,
        "message": fault.message, "hint": fault.hint,
    }  # fmt: skip
