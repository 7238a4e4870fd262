"""`astromesh workflow`: validate, graph, run, record, replay, eval, inspect and repl."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import uuid4

import orjson
import typer

from astromesh.access.scopes import Viewer
from astromesh.cli.commands import evaluation
from astromesh.cli.errors import RUN_FAILED, USAGE_ERROR, reason_of, reported_errors
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.repl import Command, Lines, Repl, open_lines
from astromesh.cli.terminal import JsonEvents, LineReader, note, print_json, write
from astromesh.config.workflow import CommandProfile, CustomCommand, InputMapping, ProfilesFile
from astromesh.errors import (
    AstromeshError,
    InvalidConfiguration,
    InvalidInput,
    InvalidManifest,
    WorkflowNotFound,
    is_failure,
)
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
from astromesh.types import Event, JsonObject
from astromesh.workflow.base import TaskResult
from astromesh.workflow.engine import known_names
from astromesh.workflow.history import Recording
from astromesh.workflow.operations import call_function, load_operation
from astromesh.workflow.plan import to_mermaid
from astromesh.workflow.project import PROFILES_FILE, CheckedFolder, Project, check_folder, parse_settings

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
        str, typer.Argument(metavar="INPUT", help="JSON or text; '@FILE' reads a file, '-' stdin.")
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
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    evaluation.write_file(golden, lambda: orjson.dumps(golden_record(outcome_of(result)), option=option))
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
    elif stage or path:
        raise InvalidInput(f"--stage and --path need the id of a stored Task, not {what!r}.")
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


# -- repl: each line becomes a Task (document 004, section 8.9) ----------------------------------------------

#: other names of commands
ALIASES = {"quit": "exit", "edit-last": "edit"}
#: bytes of one attached file
_MAX_ATTACHMENT_BYTES = 1 << 20
#: characters of an input that /history prints
_MAX_INPUT = 100


@app.command()
def repl(
    name: Name,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    profile: Annotated[
        str, typer.Option(metavar="ID", help="Profile of cli_profiles.yaml; default: its first.")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting for this process, e.g. task.timeout_s=60."),
    ] = None,
    workspace: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that contains all attachments.")
    ] = Path(),
    start: Start = "",
    plain: Annotated[bool, typer.Option("--plain", help="No editing, as in a pipe.")] = False,
) -> None:
    """Work with a workflow line by line; /help lists the commands."""
    folders = folders_of(config, data)
    configure_logging("warning")
    if asyncio.run(_talk(folders, name, profile, settings or [], workspace, start, plain)):
        raise typer.Exit(RUN_FAILED)


async def _talk(
    folders: tuple[Path, Path],
    name: str,
    profile: str,
    settings: list[str],
    workspace: Path,
    start: str,
    plain: bool,
) -> bool:
    """Returns whether a line of a pipe failed."""
    overrides = parse_settings(settings)
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        workflow = await runtime.workflows.loaded.open(name, overrides)
        assert workflow.engine is not None
        project = workflow.engine.project
        project.plan(start or None)
        session = Session(runtime.workflows, project, profile_of(project, profile), workspace, start or None)
        lines = open_lines(folders[1] / "workflow-history", plain=plain)
        failed = await Console(session, project, lines).talk()
        return bool(failed) and not lines.interactive


def profile_of(project: Project, profile_id: str) -> CommandProfile:
    """Returns a profile of cli_profiles.yaml; by default the first, or without a file one for JSON and text.

    Raises:
        InvalidInput: there is no profile of this name.
    """
    profiles = project.files.file(ProfilesFile).profiles
    if not profile_id:
        plain = CommandProfile(id="default", input_mappings={"default": InputMapping(mode="json")})
        return profiles[0] if profiles else plain
    for profile in profiles:
        if profile.id == profile_id:
            return profile
    known = ", ".join(profile.id for profile in profiles) or "none"
    raise InvalidInput(f"{PROFILES_FILE} of {project.name!r} has no profile {profile_id!r}. Known: {known}.")


class Session:
    """One session with one workflow.

    Custom commands get it as their second argument. Its `ask` and `queue` are `run` and `submit`
    of the engine.

    Args:
        workspace: the folder of all attachments.
        start: a start node, None for the default one.
    """

    def __init__(
        self,
        workflows: WorkflowTasks,
        project: Project,
        profile: CommandProfile,
        workspace: Path,
        start: str | None = None,
    ) -> None:
        self.id = f"session-{uuid4().hex[:12]}"
        self.profile, self.start = profile, start
        self._workflows, self._project, self._workspace = workflows, project, workspace.resolve()
        policies = profile.session_policies
        self._file = project.folder / policies.history_file if policies.persist_history else None
        self.history: deque[JsonObject] = deque(self._load_history(), maxlen=policies.max_history_items)
        self.attachments: list[JsonObject] = []
        self.queued_ids: list[str] = []
        self.sinks: tuple[EventSink, ...] = ()
        self.last: TaskRequest | None = None
        self.line = ""

    # -- Tasks ---------------------------------------------------------------------------------------------

    def build_request(self, line: str) -> TaskRequest:
        """Returns the request for a line, with the attachments, which it uses up."""
        self.line = line
        attachments, self.attachments = self.attachments, []
        mappings = self.profile.input_mappings
        mapping = mappings.get(self.start or "", mappings.get("default", InputMapping()))
        if mapping.mode != "chat":
            if attachments:
                raise InvalidInput("Attachments need a profile whose input mapping has mode: chat.")
            return TaskRequest(parse_input(line) if mapping.mode == "json" else line, self.start)
        value: JsonObject = {"text": line}
        if mapping.attach_files_as_context and attachments:
            value["attachments"] = attachments
        if mapping.include_session_id:
            value["session_id"] = self.id
        if mapping.include_profile_id:
            value["profile_id"] = self.profile.id
        return TaskRequest(value, self.start)

    async def ask(self, request: TaskRequest) -> TaskResult:
        """Runs a Task to its end; `/retry` repeats its request."""
        self.last = request
        result = await self._workflows.run(self._project.name, request, sinks=self.sinks)
        self._append_history(request, result.task_id, result.status, result.output)
        return result

    async def run(self, input: Any) -> TaskResult:
        """Runs a Task with this input, for custom commands."""
        return await self.ask(TaskRequest(input, self.start))

    async def queue(self, request: TaskRequest) -> str:
        """Submits a durable Task without waiting for it, and returns its id."""
        self.last = request
        row = await self._workflows.accept(self._project.name, request)
        self.queued_ids.append(row.task_id)
        self._append_history(request, row.task_id, "queued", None)
        return row.task_id

    async def queue_states(self) -> list[JsonObject]:
        return [await self._workflows.tasks.state(task_id, OPERATOR) for task_id in self.queued_ids]

    async def wait_for_queue(self) -> list[JsonObject]:
        """Waits for every submitted Task and returns their states."""
        return [await self._workflows.tasks.ended(task_id, OPERATOR) for task_id in self.queued_ids]

    # -- files ---------------------------------------------------------------------------------------------

    def attach(self, path: str) -> JsonObject:
        """Attaches a text file to the next line.

        Raises:
            InvalidInput: as `read`.
        """
        attachment = {"name": Path(path).name, "text": self.read(path)}
        self.attachments.append(attachment)
        return attachment

    def read(self, path: str) -> str:
        """Returns the text of a file in the workspace.

        Raises:
            InvalidInput: it is not a text file, it is too large, or it is outside, also by a link.
        """
        file = (self._workspace / path).resolve()
        if not file.is_relative_to(self._workspace):
            raise InvalidInput(f"{path} is outside of the workspace {self._workspace}.")
        try:
            if file.stat().st_size > _MAX_ATTACHMENT_BYTES:
                raise InvalidInput(f"{path} is larger than {_MAX_ATTACHMENT_BYTES >> 20} MiB.")
            return file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"Cannot read {path} as a text file: {reason_of(error)}.") from error

    # -- history -------------------------------------------------------------------------------------------

    def _load_history(self) -> Sequence[JsonObject]:
        if self._file is None or not self._file.exists():
            return ()
        entries: list[JsonObject] = []
        for line in self._file.read_bytes().splitlines():
            with suppress(orjson.JSONDecodeError):  # a killed process leaves half a line
                entries.append(orjson.loads(line))
        return entries

    def _append_history(self, request: TaskRequest, task_id: str, status: str, output: Any) -> None:
        entry = {
            "at": time.time(), "session": self.id, "task_id": task_id, "status": status, "line": self.line,
            "input": self._history_input(request.input), "output": output,
        }  # fmt: skip
        self.history.append(entry)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))

    def _history_input(self, input: Any) -> Any:
        keep = self.profile.session_policies.persist_attachments
        if keep or not isinstance(input, Mapping) or "attachments" not in input:
            return input
        return {**input, "attachments": [{"name": one["name"]} for one in input["attachments"]]}


class Console:
    """Handles the lines of one session, one after the other."""

    def __init__(self, session: Session, project: Project, lines: Lines) -> None:
        self._session, self._project, self._lines = session, project, lines
        self._rules = session.profile.presentation_rules
        commands = {
            "attach": Command("FILE: attaches a text file of the workspace to the next line", self.attach),
            "history": Command("lists the inputs with their Tasks", self.history),
            "retry": Command("runs the last input again", self.retry),
            "edit": Command("[TEXT]: runs the last line again with another text", self.edit),
            "queue": Command(
                "[LINE]: submits a Task without waiting; without a line: lists these Tasks", self.queue
            ),
        }
        aliases = dict(ALIASES)
        for own in session.profile.custom_commands:
            about = f"{own.description}{f' ({own.help})' if own.help else ''}"
            commands.setdefault(own.name, Command(about, partial(self.custom, own)))
            aliases = {**dict.fromkeys(own.aliases, own.name), **aliases}
        self._repl = Repl(lines, commands, self._line, aliases)
        if self._rules.show_system_messages:
            session.sinks = (_Stages(),)

    async def talk(self) -> int:
        """Returns the exit code of the last failure, 0 without one."""
        if self._lines.interactive:
            label = self._session.profile.label or self._project.name
            note(f"{label}, {self._session.id}\n/help lists the commands; Ctrl-C cancels a Task.")
        await self._repl.talk()
        await self._repl.guarded(self._finish_queue())
        return self._repl.failed

    async def _line(self, line: str) -> None:
        await self._ask(self._session.build_request(line))

    # -- answers -------------------------------------------------------------------------------------------

    async def _ask(self, request: TaskRequest) -> None:
        result = await self._session.ask(request)
        if result.status == "failure":
            self._repl.failed = RUN_FAILED
        if result.error:
            note(f"{result.error['code']}: {result.error['message']}", "red")
        self._show(result.output)
        for line in _overlay(result, self._session.profile) if self._rules.show_telemetry_inline else ():
            note(line)

    def _show(self, value: Any) -> None:
        if value is None:
            return
        text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        lines = text.splitlines()
        most = self._rules.truncate_output_lines
        write("\n".join(lines[:most]) + "\n")
        if len(lines) > most:
            note(f"… {counted(len(lines) - most, 'more line')} (presentation_rules.truncate_output_lines)")

    async def custom(self, command: CustomCommand, argument: str) -> None:
        function = load_operation(self._project.folder, command.entrypoint)
        try:
            answer = await call_function(function, argument, self._session)
        except AstromeshError:
            raise
        except BaseException as error:  # a project's own command raised
            if not is_failure(error):
                raise
            raise InvalidInput(f"/{command.name} failed: {type(error).__name__}: {error}") from error
        self._show(answer.output if isinstance(answer, TaskResult) else answer)

    # -- commands ------------------------------------------------------------------------------------------

    async def attach(self, path: str) -> None:
        attachment = self._session.attach(path)
        note(f"{attachment['name']} goes with the next line")

    async def history(self, _: str) -> None:
        for entry in self._session.history:
            text = orjson.dumps(entry["input"]).decode()
            write(f"{entry['task_id']}  {entry['status']:<8} {text[:_MAX_INPUT]}\n")

    async def retry(self, _: str) -> None:
        await self._ask(self._last())

    async def edit(self, text: str) -> None:
        last = self._last()
        if not text:
            if not self._lines.interactive:
                raise InvalidInput("/edit needs a text when the input is not a terminal.")
            text = await self._lines.next(self._session.line, "edit: ") or ""
        if isinstance(last.input, Mapping):
            self._session.attachments = list(last.input.get("attachments", ()))
        await self._ask(self._session.build_request(text))

    async def queue(self, line: str) -> None:
        if line:
            note(f"{await self._session.queue(self._session.build_request(line))} is queued")
            return
        for state in await self._session.queue_states():
            write(f"{state['task_id']}  {state['status']}\n")

    def _last(self) -> TaskRequest:
        if self._session.last is None:
            raise InvalidInput("There is no earlier input.")
        return self._session.last

    async def _finish_queue(self) -> None:
        """Waits for the queued Tasks. Ctrl-C leaves them to the next process."""
        for state in await self._session.wait_for_queue():
            if state["status"] == "failure":
                self._repl.failed = RUN_FAILED
            note(f"{state['task_id']}: {state['status']}")
            self._show(state["output"])


def _overlay(result: TaskResult, profile: Any) -> list[str]:
    """Returns the times of a Task, in one line or also one for each stage."""
    rules, metadata = profile.telemetry_overlays, result.metadata
    if not rules.enabled:
        return []
    usage = metadata["usage"]
    tokens = f", {usage['input_tokens']} + {usage['output_tokens']} tokens" if usage["input_tokens"] else ""
    summary = f"{result.status}: {' → '.join(result.path)} ({metadata['latency_ms']:.0f} ms{tokens})"
    if rules.level == "summary":
        return [summary]
    stages = [
        f"  {entry.stage:<20} {entry.status:<8} {(entry.finished_at - entry.started_at) * 1000:.1f} ms"
        for entry in result.trace
    ]
    return [summary, *stages]


class _Stages:
    """An EventSink that prints each stage when it starts."""

    wants_deltas = False

    def send(self, event: Event) -> None:
        if event.type == "stage.started":
            with suppress(OSError):  # an error of the output does not end the Task
                note(f"  {event.data['stage']} of {event.data['task']} …")
