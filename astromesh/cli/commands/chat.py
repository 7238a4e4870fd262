"""`astromesh chat`: a conversation with an agent in the terminal."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol
from uuid import uuid4

import orjson
import typer

from astromesh.access.scopes import principal_of
from astromesh.cli.commands.agents import checked_query, find_agent
from astromesh.cli.event_loop import EventLoop
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, AgentName, Config, Data, Session, folders_of
from astromesh.cli.repl import Command, Lines, Repl, is_rich_terminal, open_lines
from astromesh.cli.terminal import Printer, note, print_fallback, write
from astromesh.durable.approvals import question_id, questions_in
from astromesh.errors import ApprovalRequired, InvalidInput
from astromesh.logs import configure_logging
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.runs import Decision
from astromesh.telemetry.events import EventSink
from astromesh.text import counted
from astromesh.types import Attachment, JsonObject, SessionKey, Turn

#: past turns that are shown, and that `/history` and `/save` read at once
_SHOWN_TURNS, _PAGE = 6, 500
#: characters of a past turn that are shown
_MAX_SHOWN = 400
ALIASES = {"quit": "exit", "edit-last": "edit"}


class AnswerPrinter(EventSink, Protocol):
    """Prints an answer as it comes."""

    def finish(self, response: str = "") -> None: ...


def chat(
    agent: AgentName,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    session: Session = "",
    plain: Annotated[
        bool, typer.Option("--plain", help="No colours, Markdown and editing, as in a pipe.")
    ] = False,
) -> None:
    """Talk to an agent in the terminal.

    /help lists the commands, /exit (or Ctrl-D) ends, Ctrl-C cancels an answer. From a pipe, each line is a
    message, and the exit code is that of the last failure.
    """
    folders = folders_of(config, data)
    configure_logging("warning")
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        failed, interactive = runner.run(_talk(folders, agent, session, plain))
    if failed and not interactive:
        raise typer.Exit(failed)


async def _talk(folders: tuple[Path, Path], agent: str, session: str, plain: bool) -> tuple[int, bool]:
    runtime = AgentRuntime(folders[0], data_dir=folders[1])
    try:
        await runtime.bootstrap()
        find_agent(runtime, agent)
        lines = open_lines(folders[1] / "chat-history", plain=plain)
        printer = Printer if plain or not is_rich_terminal() else _markdown_printer()
        return await Chat(runtime, agent, session, lines, printer).talk(), lines.interactive
    finally:
        await runtime.close(grace=0.0)


def _markdown_printer() -> Callable[[], AnswerPrinter]:
    from astromesh.cli.rich_terminal import MarkdownPrinter  # loads rich

    return MarkdownPrinter


class Chat:
    """The messages of one person to one agent at a time.

    Args:
        printer: Makes what prints one answer.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        agent: str,
        session: str,
        lines: Lines,
        printer: Callable[[], AnswerPrinter] = Printer,
    ) -> None:
        self._runtime, self._agent, self._lines, self._printer = runtime, agent, lines, printer
        self._session = session or _new_session()
        self._model = ""
        self._attachments: list[Attachment] = []
        self._last: RunRequest | None = None
        self._costs: list[JsonObject] = []
        commands = {
            "agent": Command("[NAME]: shows the agents, or changes to one", self.change_agent),
            "model": Command("[NAME]: shows the models, or takes one; -: the agent's own", self.change_model),
            "tools": Command("lists the tools of the agent", self.tools),
            "history": Command("shows the turns of the conversation", self.history),
            "retry": Command("sends the last message again", self.retry),
            "edit": Command("[TEXT]: sends the last message again with another text", self.edit),
            "save": Command("FILE: writes the conversation as Markdown", self.save),
            "attach": Command("FILE: sends an image, audio or document with the next message", self.attach),
            "session": Command("[ID]: shows the conversations, or changes to one", self.change_session),
            "new": Command("starts a new conversation", self.new),
            "cost": Command("shows the tokens and the cost of this chat", self.cost),
        }  # fmt: skip
        self._repl = Repl(lines, commands, self.send, ALIASES)
        if hasattr(lines, "commands"):
            lines.commands = (*self._repl.commands, *ALIASES)

    async def talk(self) -> int:
        """Returns the exit code of the last failure, 0 without one."""
        if self._lines.interactive:
            note(f"{self._agent}, conversation {self._session}. /help lists the commands.")
            await self._repl.guarded(self._show_past())
        return await self._repl.talk()

    # -- messages --------------------------------------------------------------------------------------------

    async def send(self, text: str) -> None:
        request = RunRequest(checked_query(text), self._session, attachments=tuple(self._attachments))
        self._attachments.clear()
        await self._ask(request)

    async def _ask(self, request: RunRequest) -> None:
        self._last = request
        agent = await self._current()
        work = partial(self._runtime.runner.start, agent, request)
        while True:
            try:
                answer = await self._printed(work)
            except ApprovalRequired as waits:
                if not self._lines.interactive:
                    raise
                work = partial(self._decided, waits, await self._decision(waits))
            else:
                break
        self._costs.append(answer.metadata["usage"])
        print_fallback(answer.metadata)

    async def _decided(
        self, waits: ApprovalRequired, decision: Decision, sinks: Iterable[EventSink]
    ) -> RunAnswer:
        _, answer = await self._runtime.runner.resume(
            waits.run_id, decision, sinks=sinks, watch=lambda run: None
        )
        return answer

    async def _printed(self, work: Callable[..., Awaitable[RunAnswer]]) -> RunAnswer:
        printer, response = self._printer(), ""
        try:
            answer = await work(sinks=(printer,))
            response = answer.response
        finally:
            printer.finish(response)
        return answer

    async def _current(self) -> Agent:
        agent = find_agent(self._runtime, self._agent)
        return await self._runtime.directory.with_model(agent, self._model) if self._model else agent

    # -- approvals -------------------------------------------------------------------------------------------

    async def _decision(self, waits: ApprovalRequired) -> Decision:
        """Asks the person.

        Raises:
            ApprovalRequired: There was no answer, so the run waits on.
        """
        question = questions_in(waits.waiting_for)[0]
        note(f"{question['name']} asks ({question['kind']}): {question['question']}".rstrip(), "bold yellow")
        note(orjson.dumps(question["arguments"], option=orjson.OPT_INDENT_2).decode(), "yellow")
        ask = self._answer if question["kind"] in ("human", "interrupt") else self._approval
        decision = await ask(question)
        if decision is None:
            raise waits
        return decision._replace(question=question_id(question["path"], question["n"]))

    async def _answer(self, question: JsonObject) -> Decision | None:
        text = await self._lines.next(prompt="answer, or /deny: ")
        if text is None or not text.strip():
            return None
        if text.strip() == "/deny":
            return Decision("deny")
        return Decision("answer", answer=_json_or_text(text))

    async def _approval(self, question: JsonObject) -> Decision | None:
        may_edit = question["kind"] == "approval"
        choices = "[a]pprove, [d]eny" + (" or [e]dit the arguments" if may_edit else "")
        while (word := await self._lines.next(prompt=f"{choices}: ")) is not None:
            match word.strip().lower():
                case "a" | "approve" | "y" | "yes":
                    return Decision("approve")
                case "d" | "deny" | "n" | "no":
                    return Decision("deny")
                case "e" | "edit" if may_edit:
                    text = await self._lines.next(orjson.dumps(question["arguments"]).decode(), "arguments: ")
                    if text is None:
                        return None
                    if (arguments := _object_in(text)) is not None:
                        return Decision("approve", arguments)
                    note("The arguments must be a JSON object.", "red")
                case _:
                    note(f"Answer {choices}. Ctrl-D decides later.", "red")
        return None

    # -- the conversation ------------------------------------------------------------------------------------

    async def _turns(self) -> list[Turn]:
        store = find_agent(self._runtime, self._agent).memory.conversations
        if store is None:
            return []
        tenant, owner = principal_of(None)
        key, found = SessionKey(tenant, self._agent, self._session, owner), list[Turn]()
        while page := await store.page(key, after=found[-1].seq if found else 0, limit=_PAGE):
            found += page
        return found

    async def _show_past(self) -> None:
        turns = await self._turns()
        if len(turns) > _SHOWN_TURNS:
            note(f"… {counted(len(turns) - _SHOWN_TURNS, 'earlier turn')} (/history shows all)")
        for turn in turns[-_SHOWN_TURNS:]:
            text = turn.content if len(turn.content) <= _MAX_SHOWN else f"{turn.content[:_MAX_SHOWN]} …"
            note(f"{turn.role}: {text}")

    async def history(self, _: str) -> None:
        turns = await self._turns()
        for turn in turns:
            write(f"{turn.role}: {turn.content}\n")
        if not turns:
            note("The conversation has no stored turns.")

    async def save(self, path: str) -> None:
        if not path:
            raise InvalidInput("Name a file: /save talk.md")
        turns = await self._turns()
        text = "".join(f"## {turn.role}\n\n{turn.content}\n\n" for turn in turns)
        _write(path, f"# {self._agent}, {self._session}\n\n{text}")
        note(f"wrote {counted(len(turns), 'turn')} to {path}")

    async def change_session(self, session: str) -> None:
        if session:
            self._session = session
            await self._show_past()
            return
        note(f"conversation {self._session}")
        store = find_agent(self._runtime, self._agent).memory.conversations
        tenant, owner = principal_of(None)
        for info in await store.sessions(tenant, self._agent, owner=owner, limit=20) if store else ():
            write(f"{info.session_id}  {counted(info.turns, 'turn')}\n")

    async def new(self, _: str) -> None:
        self._session = _new_session()
        note(f"conversation {self._session}")

    async def retry(self, _: str) -> None:
        await self._ask(self._last_request())

    async def edit(self, text: str) -> None:
        last = self._last_request()
        if not text:
            if not self._lines.interactive:
                raise InvalidInput("/edit needs a text when the input is not a terminal.")
            text = await self._lines.next(last.query, "edit: ") or ""
        if text.strip():
            await self._ask(RunRequest(checked_query(text), self._session, attachments=last.attachments))

    def _last_request(self) -> RunRequest:
        if self._last is None:
            raise InvalidInput("There is no earlier message.")
        return self._last

    # -- the agent -------------------------------------------------------------------------------------------

    async def change_agent(self, name: str) -> None:
        if name:
            self._agent = find_agent(self._runtime, name).name
            self._model = ""
            note(f"{self._agent} answers, conversation {self._session}")
            return
        for known in sorted(self._runtime.agents):
            write(f"{'*' if known == self._agent else ' '} {known}\n")

    async def change_model(self, name: str) -> None:
        agent = find_agent(self._runtime, self._agent)
        if name:
            model = "" if name == "-" else name
            if model:
                await self._runtime.directory.with_model(agent, model)
            self._model = model
        write(f"{self._model or ', '.join(agent.model_names)}\n")

    async def tools(self, _: str) -> None:
        agent = await self._current()
        await agent.tools.prepare()
        for spec in agent.tools.specs():
            write(f"{spec.name}  {spec.description.strip().partition(chr(10))[0]}\n")

    async def attach(self, path: str) -> None:
        self._attachments.append(_attachment(path))
        note(f"{self._attachments[-1].name} goes with the next message")

    async def cost(self, _: str) -> None:
        tokens = sum(usage["input_tokens"] + usage["output_tokens"] for usage in self._costs)
        dollars = sum(usage["cost_usd"] for usage in self._costs)
        write(f"{counted(len(self._costs), 'answer')}, {tokens} tokens, ${dollars:.6f}\n")


def _write(path: str, text: str) -> None:
    """Raises: InvalidInput: the file cannot be written."""
    try:
        _path(path).write_text(text, "utf-8")
    except OSError as error:
        raise InvalidInput(f"Cannot write {path}: {error.strerror}.") from error


def _path(text: str) -> Path:
    """Returns a path with the home folder for `~`; that of an unknown user does not exist."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (the other one raises RuntimeError)


def _attachment(path: str) -> Attachment:
    """Raises: InvalidInput: there is no such file."""
    file = _path(path)
    try:
        data = base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise InvalidInput(f"Cannot read {file}: {error.strerror}.") from error
    kind = mimetypes.guess_type(file.name)[0] or "text/plain"
    return Attachment(data=data, media_type=kind, name=file.name)


def _object_in(text: str) -> JsonObject | None:
    """Returns a JSON object, or None for any other text."""
    found = _json_or_text(text)
    return found if isinstance(found, dict) else None


def _json_or_text(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _new_session() -> str:
    return f"chat-{uuid4().hex[:12]}"
