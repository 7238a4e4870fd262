"""`astromesh validate`: reports every fault of a configuration; other commands load a valid one here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from astromesh.cli.errors import USAGE_ERROR
from astromesh.cli.options import CONFIG_FOLDER, Config, Json
from astromesh.cli.terminal import note, print_json
from astromesh.config.base import Place
from astromesh.config.folder import FILE_FOLDERS, SINGLE_FILES, Configuration, Faults, load
from astromesh.config.parser import manifest_fault
from astromesh.errors import InvalidInput, InvalidManifest
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import WORKFLOWS_FOLDER, load_configuration, workflow_names
from astromesh.text import counted, did_you_mean
from astromesh.types import JsonObject

_WORKFLOW_FILE = "workflow.yaml"
_MANY_FILES = tuple(f"{folder}/*{suffix}" for folder, (suffix, _, _) in FILE_FOLDERS.items())


def load_valid(folder: Path, *, strict: bool = False) -> Configuration:
    """Loads a configuration that can run, and prints its warnings and broken agents to stderr.

    Args:
        strict: broken agents are faults.

    Raises:
        InvalidConfiguration: with every fault.
    """
    return checked(load_configuration(folder, Plugins()), strict=strict)


def checked(configuration: Configuration, *, strict: bool = False) -> Configuration:
    """Returns a configuration that can run, and prints its warnings and broken agents to stderr.

    Raises:
        InvalidConfiguration: with every fault.
    """
    configuration.require_sound(strict=strict)
    print_warnings(configuration)
    return configuration


def print_warnings(configuration: Configuration) -> None:
    """Prints warnings and broken agents; a warning of many places only once."""
    alike: dict[str, list[InvalidManifest]] = {}
    for warning in configuration.warnings:
        alike.setdefault(warning.message, []).append(warning)
    for warning, *more in alike.values():
        others = (
            f" (and {counted(len(more), 'more place')}; 'astromesh validate' tells where)" if more else ""
        )
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


class Format(StrEnum):
    """How findings are printed. `github`: workflow commands that annotate the files of a pull request."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


class Findings(NamedTuple):
    """What a check has found. Args: summary: what is fine if there is no fault."""

    faults: Faults
    warnings: Faults
    summary: str


def validate(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="A folder, a file, or a workflow's name; default: --config."),
    ] = None,
    config: Config = CONFIG_FOLDER,
    json: Json = False,
    format: Annotated[
        Format, typer.Option(help="github: annotations of a workflow run.", show_default=True)
    ] = Format.TEXT,
) -> None:
    """Report every fault of a configuration."""
    raise typer.Exit(report_faults(path or config, config, Format.JSON if json else format))


def report_faults(path: Path, config: Path = CONFIG_FOLDER, output: Format = Format.TEXT) -> int:
    """Prints faults and warnings of a folder, a file or a named workflow.

    Returns:
        The exit code: 2 where there is a fault.

    Raises:
        InvalidInput: no configuration reads the file.
    """
    found = findings(path, config)
    _PRINTERS[output](path, found)
    return USAGE_ERROR if found.faults else 0


def findings(path: Path, config: Path) -> Findings:
    """Checks configurations with their workflows, one workflow, or a file or folder of either.

    Args:
        path: a configuration, a folder above or in one, a file, or the name of a workflow of `config`.
        config: the configuration that has a named workflow.

    Raises:
        InvalidInput: no configuration reads the file.
    """
    if not path.exists() and (config / WORKFLOWS_FOLDER / path / _WORKFLOW_FILE).is_file():
        path = config / WORKFLOWS_FOLDER / path
    workflow = next((place for place in (path, *path.absolute().parents) if _is_workflow(place)), None)
    if workflow is not None:
        return _of_workflow(path, workflow, config)
    if whole := _folder_of(path):
        one = _of_configuration(whole)
        return Findings(_about(path, one.faults), _about(path, one.warnings), f"{path} is fine.")
    folders = [path] if _is_configuration(path) else [*_configurations_below(path)]
    found = []
    for folder in folders or [path]:
        with _own_modules():
            found.append(_of_configuration(folder))
    workflows = sum(one.workflows for one in found)
    summary = f"{path} is fine: {counted(sum(one.agents for one in found), 'agent')}"
    summary += f", {counted(workflows, 'workflow')}." if workflows else "."
    faults = tuple(fault for one in found for fault in one.faults)
    return Findings(faults, tuple(warning for one in found for warning in one.warnings), summary)


@contextmanager
def _own_modules() -> Iterator[None]:
    """Forgets what the check of a configuration imports: another one has other modules of those names."""
    path, known = sys.path[:], {*sys.modules}
    try:
        yield
    finally:
        folders, sys.path[:] = {*sys.path} - {*path}, path
        for name in [one for one in sys.modules.keys() - known if _folders_of(one) & folders]:
            del sys.modules[name]


def _folders_of(module: str) -> set[str]:
    """Returns the folder of a top-level module, and the one that has the folder if it is a package."""
    file = Path(getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or "")
    return {str(file.parent), str(file.parent.parent)}


class _Checked(NamedTuple):
    """What the check of a configuration has found. Args: agents, workflows: how many it has."""

    faults: Faults
    warnings: Faults
    agents: int
    workflows: int


def _of_configuration(folder: Path) -> _Checked:
    """Checks a configuration folder with its workflows."""
    from astromesh.evaluation.dataset import dataset_faults  # `serve` uses this module, and reads no dataset

    configuration = load_configuration(folder, Plugins(), lint=True)
    faults = (*configuration.every_fault(), *dataset_faults(folder))
    warnings = configuration.warnings
    names = workflow_names(folder)
    for name in names:
        more = _check_workflow(folder / WORKFLOWS_FOLDER / name, tuple(configuration.edges))
        faults, warnings = (*faults, *more[0]), (*warnings, *more[1])
    return _Checked(faults, (*warnings, *_strays(folder)), len(configuration.agents), len(names))


def _is_configuration(folder: Path) -> bool:
    """Whether a folder has a file of a configuration where one reads it."""
    places = (*SINGLE_FILES, *_MANY_FILES, f"{WORKFLOWS_FOLDER}/*/{_WORKFLOW_FILE}")
    return any(True for place in places for _ in folder.glob(place))


def _configurations_below(folder: Path) -> Iterator[Path]:
    """Yields the configurations below a folder, but none within another or a hidden folder."""
    for place in sorted(folder.glob("[!.]*/")):
        if _is_configuration(place):
            yield place
        elif not place.is_symlink():
            yield from _configurations_below(place)


def _of_workflow(path: Path, folder: Path, config: Path) -> Findings:
    """Checks the workflow in `folder`, or of it the file `path`."""
    above = folder.absolute().parent
    config = above.parent if above.name == WORKFLOWS_FOLDER else config
    agents = tuple(load_configuration(config, Plugins()).edges) if config.is_dir() else ()
    faults, warnings = _check_workflow(folder, agents)
    if path.is_file():
        faults, warnings = _about(path, faults), _about(path, warnings)
    return Findings(faults, warnings, f"{path} is fine.")


def _check_workflow(folder: Path, agents: Sequence[str]) -> tuple[Faults, Faults]:
    """Returns the faults and warnings of a workflow. Args: agents: of the configuration, which it may run."""
    from astromesh.evaluation.dataset import dataset_faults
    from astromesh.workflow.engine import known_names  # a configuration without workflows does not load it
    from astromesh.workflow.project import check_folder

    checked = check_folder(folder, known_names(Plugins(), agents))
    return (*checked.faults, *dataset_faults(folder)), checked.warnings


def _is_workflow(folder: Path) -> bool:
    return (folder / _WORKFLOW_FILE).is_file()


def _strays(folder: Path) -> Iterator[InvalidManifest]:
    """Yields a warning for each file of a configuration that is where nothing reads it."""
    suffixes = {suffix: name for name, (suffix, _, _) in FILE_FOLDERS.items()}
    for file in sorted(folder.glob("*/**/*.y*ml")):
        parts = file.relative_to(folder).parts
        if parts[0] in (*FILE_FOLDERS, WORKFLOWS_FOLDER) or any(part[0] == "." for part in parts):
            continue
        if home := next((home for suffix, home in suffixes.items() if file.name.endswith(suffix)), ""):
            yield manifest_fault(file, "is not read", Place(), (), f"It must be in {home}/ itself.")
        elif file.name == _WORKFLOW_FILE:
            hint = f"It must be in {WORKFLOWS_FOLDER}/NAME/."
            yield manifest_fault(file, "is not read", Place(), (), hint)
    for place in sorted((folder / WORKFLOWS_FOLDER).glob("[!.]*/")):
        if not _is_workflow(place) and (files := sorted(place.glob("*.y*ml"))):
            hint = f"The folder has no {_WORKFLOW_FILE}."
            yield manifest_fault(files[0], "is not read", Place(), (), hint)


# -- formats -----------------------------------------------------------------------------------------------


def _print_text(path: Path, found: Findings) -> None:
    for fault in found.faults:
        print(fault)
    for warning in found.warnings:
        note(f"warning: {warning}", "yellow")
    if found.faults:
        note(f"\n{counted(len(found.faults), 'fault')} in {path}", "red")
    else:
        print(found.summary)


def _print_json(path: Path, found: Findings) -> None:
    print_json({"faults": [*map(_fault_json, found.faults)], "warnings": [*map(_fault_json, found.warnings)]})


def _print_github(path: Path, found: Findings) -> None:
    for level, several in (("error", found.faults), ("warning", found.warnings)):
        for fault in several:
            print(_annotation(level, fault))
    if not found.faults:
        print(found.summary)


def _annotation(level: str, fault: InvalidManifest) -> str:
    """Returns a workflow command of GitHub Actions. What it escapes is in the runner's `ActionCommand`."""
    place = {"file": fault.file, "line": fault.line, "col": fault.column, "title": fault.key}
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in place.items() if value)
    message = f"{fault.message.rstrip('.')}. {fault.hint}" if fault.hint else fault.message
    return f"::{level} {properties}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


_PRINTERS = {Format.TEXT: _print_text, Format.JSON: _print_json, Format.GITHUB: _print_github}


def _folder_of(path: Path) -> Path | None:
    """Returns the configuration of a file, or of a folder such as `agents/`; None for another folder."""
    from astromesh.evaluation.dataset import FOLDER as DATASETS_FOLDER

    place = path.resolve()
    above = place.parent
    if not path.is_file():
        is_part = place.name in (*FILE_FOLDERS, WORKFLOWS_FOLDER, DATASETS_FOLDER)
        return above if is_part and _is_configuration(above) else None
    if path.name in SINGLE_FILES:
        return path.parent
    kind = FILE_FOLDERS.get(above.name)
    if above.name == DATASETS_FOLDER or (kind is not None and path.name.endswith(kind[0])):
        return above.parent
    read = ", ".join((*SINGLE_FILES, *_MANY_FILES))
    raise InvalidInput(f"{path} is not a file of a configuration. Files of a configuration: {read}.")


def _about(path: Path, faults: Iterable[InvalidManifest]) -> Faults:
    return tuple(fault for fault in faults if Path(fault.file).resolve().is_relative_to(path.resolve()))


def _fault_json(fault: InvalidManifest) -> JsonObject:
    return {
        "file": fault.file, "line": fault.line, "column": fault.column, "key": fault.key,
        "message": fault.message, "hint": fault.hint, "rule": fault.rule,
    }  # fmt: skip
