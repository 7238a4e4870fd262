"""`astromesh workflow`: validate, graph, run, record, replay, eval and inspect."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer

from astromesh.access.scopes import Viewer
from astromesh.cli.commands import evaluation
from astromesh.cli.errors import RUN_FAILED, USAGE_ERROR, reason_of, reported_errors
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.terminal import JsonEvents, LineReader, note, print_json
from astromesh.errors import InvalidConfiguration, InvalidInput, InvalidManifest, WorkflowNotFound
from astromesh.evaluation.base import golden_record
from astromesh.logs import configure_logging
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import load_configuration, workflow_folder
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.task_view import outcome_of
from astromesh.runtime.tasks import WorkflowTasks
from astromesh.runtime.workflows import Workflow
from astromesh.telemetry.events import EventSink
from astromesh.text import counted
from astromesh.types import JsonObject
from astromesh.workflow.base import TaskResult
from astromesh.workflow.engine import known_names
from astromesh.workflow.history import Recording
from astromesh.workflow.plan import to_mermaid
from astromesh.workflow.project import CheckedFolder, check_folder

app = typer.Typer()
T = TypeVar("T")
#: the principal of this machine's shell
OPERATOR = Viewer("default", None)
STEP_HELP = "Enter or `step` runs the stage, `resume` all that follow, `cancel` ends the Task."
Name = Annotated[str, typer.Argument(metavar="NAME", help="Folder in workflows/, or a path.")]
Start = Annotated[str, typer.Option(metavar="NODE", help="Start node; default: the default one.")]


@app.command()
def validate(name: Name, config: Config = CONFIG_FOLDER, json: Json = False) -> None:
    """Report every fault of a workflow."""
    raise typer.Exit(report_faults(config, name, as_json=json))


def report_faults(config: Path, name: str, *, as_json: bool = False) -> int:
    """Prints faults and warnings of a workflow.

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
        note(f"\n{counted(count, 'fault')} in {checked.folder.folder}", "red")
        return USAGE_ERROR
    print(f"{checked.folder.folder} is fine.")
    return 0


@app.command()
def graph(name: Name, config: Config = CONFIG_FOLDER, json: Json = False) -> None:
    """Draw a workflow as a Mermaid diagram, or report its faults."""
    checked = _check(config, name)
    if checked.faults or checked.folder.workflow is None:
        raise typer.Exit(report_faults(config, name, as_json=json))
    diagram = to_mermaid(checked.folder.workflow)
    if json:
        print_json({"workflow": name, "mermaid": diagram})
    else:
        print(diagram)


@app.command()
def run(
    name: Name,
    input: Annotated[
        str, typer.Argument(metavar="[INPUT]", help="JSON or text; '@FILE' reads a file, '-' stdin.")
    ] = "null",
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    start: Start = "",
    json: Json = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print Tasks and history as well, as JSON.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the run's events as they come.")] = False,
) -> None:
    """Run a workflow on one input, without a server."""
    printer = JsonEvents()
    sinks: tuple[EventSink, ...] = (printer,) if stream else ()

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> TaskResult:
        return await workflows.run(workflow.name, TaskRequest(parse_input(input), start or None), sinks=sinks)

    result = in_runtime(folders_of(config, data), name, work, as_json=json)
    printer.finish()
    if json or trace:
        print_json(result.with_trace() if trace else result.to_json())
    else:
        _print_result(result)
    if result.status == "failure":
        raise typer.Exit(RUN_FAILED)


def parse_input(text: str) -> Any:
    """Returns an input: JSON, `@FILE` with JSON, `-` for stdin. A text that is not JSON is the input itself.

    Raises:
        InvalidInput: the file cannot be read.
    """
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"Cannot read the file {text[1:]}: {reason_of(error)}.") from error
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


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


# -- recordings and evaluations ----------------------------------------------------------------------------


@app.command()
def record(
    name: Name,
    input: Annotated[
        str, typer.Argument(metavar="INPUT", help="JSON or text; '@FILE' reads a file, '-' stdin.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The recording.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    start: Start = "",
    golden: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outcome here, for an assertion `golden`.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a workflow and record what its models and tools answer."""

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> tuple[TaskResult, Recording]:
        result = await workflows.run(workflow.name, TaskRequest(parse_input(input), start or None))
        return result, await workflows.tasks.recording(result.task_id, OPERATOR)

    result, recording = in_runtime(folders_of(config, data), name, work, as_json=json)
    recording.write(out)
    if golden is not None:
        golden.parent.mkdir(parents=True, exist_ok=True)
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        golden.write_bytes(orjson.dumps(golden_record(outcome_of(result)), option=option))
    if json:
        print_json({"status": result.status, "stages": len(recording.stages), "file": str(out)})
    else:
        note(f"{result.status}: {counted(len(recording.stages), 'stage')} in {out}")


@app.command()
def replay(
    name: Name,
    recording: Annotated[
        str, typer.Argument(metavar="FILE", help="A recording, or the id of a stored Task.")
    ],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Run a recorded Task again, offline.

    It reports the first divergence.
    """
    loaded = Recording.read(Path(recording)) if Path(recording).is_file() else None

    async def work(workflows: WorkflowTasks) -> JsonObject:
        if loaded is not None:
            workflow = await workflows.loaded.open(name)
            return await workflows.replays.replay_recording(workflow.name, loaded)
        with suppress(InvalidConfiguration, WorkflowNotFound):  # a stored Task has manifests of its own
            await workflows.loaded.open(name)
        return await workflows.replays.replay(recording, OPERATOR)

    outcome = with_runtime(folders_of(config, data), work, as_json=json)
    if json:
        print_json(outcome)
    elif outcome["same"]:
        print(f"the same: {' → '.join(outcome['path'])}")
    else:
        note(outcome["divergence"]["message"], "red")
    if not outcome["same"]:
        raise typer.Exit(RUN_FAILED)


@app.command("eval")
def evaluate(
    name: Name,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    suite: Annotated[str, typer.Option(metavar="NAME", help="Only this suite.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only suites with this tag.")] = "",
    json: Json = False,
) -> None:
    """Run the suites of evaluations.yaml.

    The exit code is 1 where a case does not pass.
    """
    evaluation.evaluate(
        folders_of(config, data),
        name,
        evaluation.EvaluationRequest(suite, tag),
        evaluation.Output(as_json=json),
        workflow=True,
    )


def in_runtime(
    folders: tuple[Path, Path],
    name: str,
    work: Callable[[WorkflowTasks, Workflow], Awaitable[T]],
    *,
    as_json: bool = False,
) -> T:
    """Returns the result of `work` on a workflow in a new runtime.

    Raises:
        typer.Exit: with the code of an error, or of Ctrl-C.
    """

    async def with_workflow(workflows: WorkflowTasks) -> T:
        return await work(workflows, await workflows.loaded.open(name))

    return with_runtime(folders, with_workflow, as_json=as_json)


def with_runtime(
    folders: tuple[Path, Path], work: Callable[[WorkflowTasks], Awaitable[T]], *, as_json: bool = False
) -> T:
    """Returns the result of `work` in a new runtime. Raises as `in_runtime`."""
    configure_logging("warning")

    async def work_in_runtime() -> T:
        async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
            return await work(runtime.workflows)

    with reported_errors(as_json=as_json):
        return asyncio.run(work_in_runtime())
    raise AssertionError


# -- the inspector -----------------------------------------------------------------------------------------


@app.command("inspect")
def inspect_task(
    name: Name,
    what: Annotated[
        str, typer.Argument(metavar="TASK|INPUT", help="Id of a stored Task, or an input to step through.")
    ],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    stage: Annotated[
        str, typer.Option(metavar="STAGE", help="Run this stage of a stored Task again; its record stays.")
    ] = "",
    path: Annotated[str, typer.Option(metavar="PATH", help="With --stage: the descendant that ran it.")] = "",
    before: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE", help="Pause only before this stage; repeatable. Default: every one."),
    ] = None,
    start: Start = "",
) -> None:
    """Show a stored Task, or step through a new one.

    It shows context packages, inputs and outputs.
    """
    folders = folders_of(config, data)
    if what.startswith("task_"):
        inspect(folders, name, what, stage, path)
    else:
        step_through(folders, name, what, start, before or [])


def inspect(folders: tuple[Path, Path], name: str, task_id: str, stage: str, path: str) -> None:
    """Prints the trace of a stored Task, or one stage of it beside a new run of that stage.

    Raises:
        typer.Exit: there is no such Task or stage, or the Task has not ended.
    """

    async def work(workflows: WorkflowTasks) -> JsonObject:
        with suppress(InvalidConfiguration, WorkflowNotFound):  # a stored Task has manifests of its own
            await workflows.loaded.open(name)
        if stage:
            return await workflows.replays.replay(task_id, OPERATOR, stage, path)
        return await workflows.tasks.trace(task_id, OPERATOR)

    print_json(with_runtime(folders, work))


def step_through(folders: tuple[Path, Path], name: str, input: str, start: str, before: list[str]) -> None:
    """Runs a Task that pauses before its stages and waits for a typed command.

    Args:
        before: the stages to pause before; empty: every one.

    Raises:
        typer.Exit: with the code of an error.
    """

    async def work(workflows: WorkflowTasks, workflow: Workflow) -> JsonObject:
        assert workflow.engine is not None
        workflow.engine.project.require_stages(before)
        request = TaskRequest(parse_input(input), start or None)
        row = await workflows.accept(workflow.name, request, pause_before=before)
        return await _run_stepwise(workflows, row.task_id)

    print_json(in_runtime(folders, name, work))


async def _run_stepwise(workflows: WorkflowTasks, task_id: str) -> JsonObject:
    tasks = workflows.tasks
    lines = LineReader("step> ")
    if lines.interactive:
        note(STEP_HELP)
    ended = asyncio.ensure_future(tasks.ended(task_id, OPERATOR))
    while True:
        paused = asyncio.ensure_future(tasks.until_paused(task_id, OPERATOR))
        await asyncio.wait([ended, paused], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            paused.cancel()
            return await ended
        print_json({"waiting": await paused})
        match await lines.next():
            case "" | "step":
                await tasks.step(task_id, OPERATOR)
            case "resume" | None:
                await tasks.resume(task_id, OPERATOR)
            case "cancel":
                await tasks.cancel(task_id, OPERATOR)
            case _:
                note(STEP_HELP)
