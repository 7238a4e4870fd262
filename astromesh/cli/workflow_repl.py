"""`astromesh workflow repl`: lines become Tasks of a workflow (document 004 section 8.9, workflow.md E60)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import typer

from astromesh.cli.failure import RUN_FAILED, report
from astromesh.cli.lines import Lines
from astromesh.cli.output import note, write
from astromesh.cli.workflow_session import Session, profile_of
from astromesh.config.workflow.operations import CustomCommand
from astromesh.errors import AstromeshError, InvalidInput
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.task_asked import Asked
from astromesh.telemetry.logs import configure_logging
from astromesh.types import Event, JsonObject
from astromesh.workflow.overrides import settings_of
from astromesh.workflow.project import Project
from astromesh.workflow.references import load_operation
from astromesh.workflow.result import TaskResult
from astromesh.workflow.tools import called

PROMPT = "> "
#: characters of an input that /history shows
_SHOWN = 100


def repl(
    places: tuple[Path, Path], name: str, profile: str, settings: list[str], workspace: Path, start: str
) -> None:
    """Reads lines until they end.

    Args:
        profile: of cli_profiles.yaml; empty: its first one.
        settings: `KEY=VALUE`, for this process.
        workspace: the folder that attachments must lie in.

    Raises:
        typer.Exit: 1 where nobody sat at the keyboard and something failed.
    """
    configure_logging("warning")
    if asyncio.run(_talk(places, name, profile, settings, workspace, start)):
        raise typer.Exit(RUN_FAILED)


async def _talk(
    places: tuple[Path, Path], name: str, profile: str, settings: list[str], workspace: Path, start: str
) -> bool:
    overrides = settings_of(settings)
    async with AgentRuntime(places[0], data_dir=places[1]) as runtime:
        workflow = await runtime.workflows.loaded.opened(name, overrides)
        assert workflow.engine is not None
        project = workflow.engine.project
        project.plan(start or None)
        session = Session(runtime.workflows, project, profile_of(project, profile), workspace, start or None)
        console = Console(session, project, Lines(PROMPT))
        failed = await console.talk()
        return failed and not console.interactive


class Console:
    """Takes the lines of one session, one after the other."""

    def __init__(self, session: Session, project: Project, lines: Lines) -> None:
        self._session, self._project, self._lines = session, project, lines
        self._rules = session.profile.presentation_rules
        self._failed = self._ended = False
        self._own: dict[str, CustomCommand] = {
            name: command
            for command in session.profile.custom_commands
            for name in (command.name, *command.aliases)
        }
        if self._rules.show_system_messages:
            session.sinks = (_Stages(),)

    @property
    def interactive(self) -> bool:
        return self._lines.interactive

    async def talk(self) -> bool:
        """Answers whether anything failed."""
        if self.interactive:
            label = self._session.profile.label or self._project.name
            note(f"{label}, {self._session.id}\n/help says what there is; Ctrl-C cancels a Task.")
        while not self._ended and (line := await self._lines.next()) is not None:
            if line:
                await self._guarded(self._take(line))
        await self._guarded(self._last_words())
        return self._failed

    async def _guarded(self, work: Awaitable[None]) -> None:
        """A line that fails or is cancelled (Ctrl-C) ends only itself."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            await task
        except AstromeshError as error:
            report(error)
            self._failed = True
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            note("cancelled")
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _take(self, line: str) -> None:
        if not line.startswith("/"):
            await self._ask(self._session.asked(line))
            return
        name, _, argument = line[1:].partition(" ")
        command = _COMMANDS.get(name)
        if command is not None:
            await command[1](self, argument.strip())
        elif name in self._own:
            await self._custom(self._own[name], argument.strip())
        else:
            raise InvalidInput(f"There is no command /{name}; /help lists them.")

    # -- answers ---------------------------------------------------------------------------------------------

    async def _ask(self, asked: Asked) -> None:
        result = await self._session.ask(asked)
        self._failed = self._failed or result.status == "failure"
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
            note(f"… {len(lines) - most} lines more (presentation_rules.truncate_output_lines)")

    async def _custom(self, command: CustomCommand, argument: str) -> None:
        function = load_operation(self._project.folder, command.entrypoint)
        try:
            answer = await called(function, argument, self._session)
        except AstromeshError:
            raise
        except Exception as error:  # the border of a project's own command
            raise InvalidInput(f"/{command.name} failed: {type(error).__name__}: {error}") from error
        self._show(answer.output if isinstance(answer, TaskResult) else answer)

    # -- commands --------------------------------------------------------------------------------------------

    async def help(self, _: str) -> None:
        for name, (about, _function) in _COMMANDS.items():
            note(f"/{name:<10} {about}")
        for own in self._session.profile.custom_commands:
            names = ", ".join(f"/{name}" for name in (own.name, *own.aliases))
            note(f"{names:<11} {own.description}{f' ({own.help})' if own.help else ''}")

    async def attach(self, path: str) -> None:
        found = self._session.attach(path)
        note(f"{found['name']} goes with the next line")

    async def history(self, _: str) -> None:
        for entry in self._session.history:
            asked = orjson.dumps(entry["input"]).decode()
            write(f"{entry['task_id']}  {entry['status']:<8} {asked[:_SHOWN]}\n")

    async def retry(self, _: str) -> None:
        await self._ask(self._last())

    async def edit_last(self, text: str) -> None:
        last = self._last()
        if not text:
            if not self.interactive:
                raise InvalidInput("/edit-last needs a text where nobody sits at the keyboard.")
            text = await self._lines.next(self._session.line) or ""
        if isinstance(last.input, Mapping):
            self._session.attachments = list(last.input.get("attachments", ()))
        await self._ask(self._session.asked(text))

    async def queue(self, line: str) -> None:
        if line:
            note(f"{await self._session.queue(self._session.asked(line))} is queued")
            return
        for state in await self._session.queue_states():
            write(f"{state['task_id']}  {state['status']}\n")

    async def quit(self, _: str) -> None:
        self._ended = True

    def _last(self) -> Asked:
        if self._session.last is None:
            raise InvalidInput("Nothing was asked yet.")
        return self._session.last

    async def _last_words(self) -> None:
        """What is queued ends first; Ctrl-C leaves it to the next process."""
        for state in await self._session.queue_ended():
            self._failed = self._failed or state["status"] == "failure"
            note(f"{state['task_id']}: {state['status']}")
            self._show(state["output"])


_COMMANDS: Mapping[str, tuple[str, Callable[[Console, str], Awaitable[None]]]] = {
    "help": ("says what there is", Console.help),
    "attach": ("FILE: a text file of the workspace goes with the next line", Console.attach),
    "history": ("what was asked, and what became of it", Console.history),
    "retry": ("asks the last input again, as it was", Console.retry),
    "edit-last": ("[TEXT]: asks the last line again with another text", Console.edit_last),
    "queue": ("[LINE]: submits a Task and goes on; without a line: those submitted", Console.queue),
    "quit": ("ends, when what is queued has ended (Ctrl-D, too)", Console.quit),
}


def _overlay(result: TaskResult, profile: Any) -> list[str]:
    """What a Task took, in one line or in one for each stage."""
    rules, told = profile.telemetry_overlays, result.metadata
    if not rules.enabled:
        return []
    usage = told["usage"]
    tokens = f", {usage['input_tokens']} + {usage['output_tokens']} tokens" if usage["input_tokens"] else ""
    summary = f"{result.status}: {' → '.join(result.path)} ({told['latency_ms']:.0f} ms{tokens})"
    if rules.level == "summary":
        return [summary]
    stages = [
        f"  {entry.stage:<20} {entry.status:<8} {(entry.finished_at - entry.started_at) * 1000:.1f} ms"
        for entry in result.trace
    ]
    return [summary, *stages]


class _Stages:
    """An EventSink that tells each stage as it begins."""

    wants_deltas = False

    def send(self, event: Event) -> None:
        if event.type == "stage.started":
            with suppress(OSError):  # what cannot be printed ends no Task
                note(f"  {_told(event.data)} …")


def _told(data: JsonObject) -> str:
    return f"{data['stage']} of {data['task']}"
