"""`astromesh workflow`: validate, draw and run workflows in this process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import orjson
import typer

from astromesh.abc.events import EventSink
from astromesh.cli.failure import CALL_WRONG, CANCELLED, RUN_FAILED, report
from astromesh.cli.output import note, print_json
from astromesh.cli.printer import Events
from astromesh.errors import AstromeshError, InvalidInput, InvalidManifest, WorkflowNotFound
from astromesh.plugins import Plugins
from astromesh.runtime.bootstrap import load_configuration
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.task_asked import Asked
from astromesh.runtime.workflow_folders import workflow_folder
from astromesh.telemetry.logs import configure_logging
from astromesh.types import JsonObject
from astromesh.workflow.drawing import mermaid
from astromesh.workflow.engine import known_to
from astromesh.workflow.project import Checked, check_folder
from astromesh.workflow.result import TaskResult


def validate(config: Path, name: str, *, as_json: bool) -> int:
    """Prints everything that is wrong with a workflow.

    Returns:
        The exit code: 2 where there is a fault.
    """
    checked = _checked(config, name)
    if as_json:
        print_json({"faults": [*map(_line, checked.faults)], "warnings": [*map(_line, checked.warnings)]})
        return CALL_WRONG if checked.faults else 0
    for fault in checked.faults:
        print(f"{fault} [{fault.rule}]")
    for warning in checked.warnings:
        note(f"warning: {warning}", "yellow")
    count = len(checked.faults)
    if count:
        note(f"\n{count} fault{'s' if count != 1 else ''} in {checked.folder.folder}", "red")
        return CALL_WRONG
    print(f"{checked.folder.folder} is fine.")
    return 0


def graph(config: Path, name: str) -> int:
    """Prints the workflow as a Mermaid diagram; faults instead where it has some."""
    checked = _checked(config, name)
    if checked.faults or checked.folder.workflow is None:
        return validate(config, name, as_json=False)
    print(mermaid(checked.folder.workflow))
    return 0


def run(
    places: tuple[Path, Path], name: str, input: str, start: str, *, as_json: bool, trace: bool, stream: bool
) -> None:
    """Runs a Task and prints its output.

    Raises:
        typer.Exit: with the code of what went wrong.
    """
    configure_logging("warning")
    printer = Events()
    sinks: tuple[EventSink, ...] = (printer,) if stream else ()
    try:
        result = asyncio.run(_run(places, name, parsed(input), start or None, sinks))
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    except KeyboardInterrupt:
        note("cancelled")
        raise typer.Exit(CANCELLED) from None
    printer.finish()
    if as_json or trace:
        print_json(result.with_trace() if trace else result.to_json())
    else:
        _tell(result)
    if result.status == "failure":
        raise typer.Exit(RUN_FAILED)


def parsed(text: str) -> Any:
    """The input: JSON, `@FILE` with JSON, `-` for stdin; what is no JSON is a text.

    Raises:
        InvalidInput: the file cannot be read.
    """
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"The file {text[1:]} cannot be read: {error}.") from error
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


async def _run(
    places: tuple[Path, Path], name: str, input: Any, start: str | None, sinks: tuple[EventSink, ...]
) -> TaskResult:
    async with AgentRuntime(places[0], data_dir=places[1]) as runtime:
        workflow = await runtime.workflows.loaded.opened(name)
        return await runtime.workflows.run(workflow.name, Asked(input, start), sinks=sinks)


def _checked(config: Path, name: str) -> Checked:
    try:
        folder = workflow_folder(config, name)
    except WorkflowNotFound:
        if not Path(name).is_dir():
            raise
        folder = Path(name)
    plugins = Plugins()
    agents = tuple(load_configuration(config, plugins).edges) if config.is_dir() else ()
    return check_folder(folder, known_to(plugins, agents))


def _tell(result: TaskResult) -> None:
    note(f"{result.status}: {' → '.join(result.path)}", "red" if result.status == "failure" else "dim")
    if result.error:
        note(f"{result.error['code']}: {result.error['message']}", "red")
    print_json(result.output)


def _line(fault: InvalidManifest) -> JsonObject:
    return {
        "file": fault.file, "line": fault.line, "column": fault.column, "path": fault.key,
        "code": fault.rule or fault.code, "message": fault.message, "hint": fault.hint,
    }  # fmt: skip
