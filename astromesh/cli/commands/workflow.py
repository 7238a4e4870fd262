"""`astromesh workflow`: validate, graph, run, inspect, record, replay and eval."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
import typer

from astromesh.access.scopes import Viewer
from astromesh.cli.errors import CANCELLED, RUN_FAILED, USAGE_ERROR, report
from astromesh.cli.printer import JsonEvents
from astromesh.cli.terminal import LineReader, note, print_json
from astromesh.errors import AstromeshError, InvalidInput, InvalidManifest, WorkflowNotFound
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import load_configuration, workflow_folder
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.tasks import WorkflowTasks
from astromesh.runtime.workflows import Workflow
from astromesh.telemetry.events import EventSink
from astromesh.telemetry.logs import configure_logging
from astromesh.types import JsonObject
from astromesh.workflow.base import TaskResult
from astromesh.workflow.engine import known_names
from astromesh.workflow.evaluation import golden_record
from astromesh.workflow.plan import to_mermaid
from astromesh.workflow.project import CheckedFolder, check_folder
from astromesh.workflow.recording import Recording


def validate(config: Path, name: str, *, as_json: bool) -> int:
    """Prints everything that is wrong with a workflow.

    Returns:
        The exit code: 2 where there is a fault.
    """
    checked = _check(config, name)
    if as_json:
        print_json(
            {"faults": [*map(_fault_json, checked.faults)], "warnings": [*map(_fault_json, checked.warnings)]}
        )
        return USAGE_ERROR if checked.faults else 0
    for fault in checked.faults:
        print(f"{fault} [{fault.rule}]")
    for warning in checked.warnings:
        note(f"warning: {warning}", "yellow")
    count = len(checked.faults)
    if count:
        note(f"\n{count} fault{'s' if count != 1 else ''} in {checked.folder.folder}", "red")
        return USAGE_ERROR
    print(f"{checked.folder.folder} is fine.")
    return 0


def graph(config: Path, name: str) -> int:
    """Prints the workflow as a Mermaid diagram; faults instead where it has some."""
    checked = _check(config, name)
    if checked.faults or checked.folder.workflow is None:
        return validate(config, name, as_json=False)
    print(to_mermaid(checked.folder.workflow))
    return 0


def run(
    folders: tuple[Path, Path], name: str, input: str, start: str, *, as_json: bool, trace: bool, stream: bool
) -> None:
    """Runs a Task and prints its output.

    Raises:
        typer.Exit: with the code of what went wrong.
    """
    configure_logging("warning")
    printer = JsonEvents()
    sinks: tuple[EventSink, ...] = (printer,) if stream else ()
    try:
        result = asyncio.run(_run(folders, name, parse_input(input), start or None, sinks))
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    except KeyboardInterrupt:
        note("cancelled")
        raise typer.Exit(CANCELLED) from None
    printer.finish()
    if as_json or trace:
        print_json(result.with_trace() if trace else result.to_json())
    else:
        _print_result(result)
    if result.status == "failure":
        raise typer.Exit(RUN_FAILED)


def parse_input(text: str) -> Any:
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
    folders: tuple[Path, Path], name: str, input: Any, start: str | None, sinks: tuple[EventSink, ...]
) -> TaskResult:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        workflow = await runtime.workflows.loaded.open(name)
        return await runtime.workflows.run(workflow.name, TaskRequest(input, start), sinks=sinks)


def _check(config: Path, name: str) -> CheckedFolder:
    try:
        folder = workflow_folder(config, name)
    except WorkflowNotFound:
        if not Path(name).is_dir():
            raise
        folder = Path(name)
    plugins = Plugins()
    agents = tuple(load_configuration(config, plugins).edges) if config.is_dir() else ()
    return check_folder(folder, known_names(plugins, agents))


def _print_result(result: TaskResult) -> None:
    note(f"{result.status}: {' → '.join(result.path)}", "red" if result.status == "failure" else "dim")
    if result.error:
        note(f"{result.error['code']}: {result.error['message']}", "red")
    print_json(result.output)


def _fault_json(fault: InvalidManifest) -> JsonObject:
    return {
        "file": fault.file, "line": fault.line, "column": fault.column, "path": fault.key,
        "code": fault.rule or fault.code, "message": fault.message, "hint": fault.hint,
    }  # fmt: skip


#: who works with a workflow on this machine
OPERATOR = Viewer("default", None)


# `astromesh workflow record`, `replay` and `eval`: recordings, and what is expected of them.

T = TypeVar("T")


def record(
    folders: tuple[Path, Path], name: str, input: str, start: str, out: Path, golden: Path | None
) -> None:
    """Runs a Task and writes what it asked models and tools, and what they answered.

    Args:
        golden: where its outcome is written, for an assertion `golden`.

    Raises:
        typer.Exit: with the code of what went wrong.
    """

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> tuple[TaskResult, Recording]:
        result = await workflows.run(workflow.name, TaskRequest(parse_input(input), start or None))
        return result, await workflows.tasks.recording(result.task_id, OPERATOR)

    result, recording = in_runtime(folders, name, work)
    recording.write(out)
    if golden is not None:
        golden.parent.mkdir(parents=True, exist_ok=True)
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        golden.write_bytes(orjson.dumps(golden_record(result), option=option))
    note(f"{result.status}: {len(recording.stages)} stages in {out}")


def replay(folders: tuple[Path, Path], name: str, recording: str, *, as_json: bool) -> None:
    """Replays a recording, or a Task that is kept; nothing is asked and nothing is kept.

    Raises:
        typer.Exit: with 1 where it diverges.
    """
    loaded = Recording.read(Path(recording)) if Path(recording).is_file() else None

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> JsonObject:
        if loaded is not None:
            return await workflows.replays.replay_recording(workflow.name, loaded)
        return await workflows.replays.replay(recording, OPERATOR)

    told = in_runtime(folders, name, work, as_json=as_json)
    if as_json:
        print_json(told)
    elif told["same"]:
        print(f"the same: {' → '.join(told['path'])}")
    else:
        note(told["divergence"]["message"], "red")
    if not told["same"]:
        raise typer.Exit(RUN_FAILED)


def evaluate(folders: tuple[Path, Path], name: str, suite: str, tag: str, *, as_json: bool) -> None:
    """Runs the suites of evaluations.yaml.

    Raises:
        typer.Exit: with 1 where a case does not pass.
    """

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> JsonObject:
        return await workflows.evaluate(workflow.name, suite, tag)

    told = in_runtime(folders, name, work, as_json=as_json)
    if as_json:
        print_json(told)
    else:
        for case in told["cases"]:
            _print_case(case)
    if not told["passed"]:
        raise typer.Exit(RUN_FAILED)


def in_runtime(
    folders: tuple[Path, Path],
    name: str,
    work: Callable[[WorkflowTasks, Workflow], Awaitable[T]],
    *,
    as_json: bool = False,
) -> T:
    """What `work` answers, in a runtime of its own.

    Raises:
        typer.Exit: with the code of the error.
    """
    configure_logging("warning")

    async def opened() -> Any:
        async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
            return await work(runtime.workflows, await runtime.workflows.loaded.open(name))

    try:
        answer: T = asyncio.run(opened())
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    return answer


def _print_case(case: JsonObject) -> None:
    print(f"{'passed' if case['passed'] else 'FAILED'}  {case['suite']}/{case['case']}")
    if case["divergence"]:
        note(f"  {case['divergence']['message']}", "red")
    for one in case["assertions"]:
        if not one["passed"]:
            note(f"  {one['type']}: {one['message']}", "red")


# `astromesh workflow inspect`: a kept Task stage by stage, or a new one that waits before each (E54).

STEP_HELP = "Enter or `step` runs the stage, `resume` all that follow, `cancel` ends the Task."


def inspect(folders: tuple[Path, Path], name: str, task_id: str, stage: str, path: str) -> None:
    """Prints the trace of a kept Task, or one stage of it beside a further run of it.

    Raises:
        typer.Exit: with the code of the error: there is no such Task or stage, or it has not ended.
    """

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> JsonObject:
        if stage:
            return await workflows.replays.replay(task_id, OPERATOR, stage, path)
        return await workflows.tasks.trace(task_id, OPERATOR)

    print_json(in_runtime(folders, name, work))


def step_through(folders: tuple[Path, Path], name: str, input: str, start: str, before: list[str]) -> None:
    """Runs a Task that waits before its stages, for what is typed.

    Args:
        before: only these stages; empty: every one.

    Raises:
        typer.Exit: with the code of the error.
    """

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> JsonObject:
        assert workflow.engine is not None
        workflow.engine.project.require_stages(before)
        row = await workflows.accept(workflow.name, TaskRequest(parse_input(input), start or None))
        workflow.inspector.pause(row.task_id, before)  # at once: its first stage begins with the next await
        return await _run_stepwise(workflows, workflow, row.task_id)

    print_json(in_runtime(folders, name, work))


async def _run_stepwise(workflows: WorkflowTasks, workflow: Workflow, task_id: str) -> JsonObject:
    lines = LineReader("step> ")
    if lines.interactive:
        note(STEP_HELP)
    ended = asyncio.ensure_future(workflows.tasks.ended(task_id, OPERATOR))
    while True:
        paused = asyncio.ensure_future(workflow.inspector.wait_until_paused(task_id))
        await asyncio.wait([ended, paused], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            paused.cancel()
            return await ended
        print_json({"waiting": workflow.inspector.waiting(task_id)})
        match await lines.next():
            case "" | "step":
                workflow.inspector.step(task_id)
            case "resume" | None:
                workflow.inspector.resume(task_id)
            case "cancel":
                await workflows.tasks.cancel(task_id, OPERATOR)
            case _:
                note(STEP_HELP)
