"""`astromesh run`, `chat` and `graph`: one question, a conversation, and a diagram of an agent."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import typer
from msgspec.structs import asdict

from astromesh.cli.errors import CANCELLED, report
from astromesh.cli.printer import JsonEvents, Printer, print_fallback
from astromesh.cli.terminal import note, plain, print_json
from astromesh.errors import AgentNotFoundError, AstromeshError, InvalidInput
from astromesh.runtime.agent import Agent, agent_diagram
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.telemetry.events import EventSink
from astromesh.telemetry.logs import configure_logging
from astromesh.text import is_blank


def find_agent(runtime: AgentRuntime, name: str) -> Agent:
    """The agent. Raises: AgentNotFoundError, with the names that there are; AgentUnavailable."""
    try:
        return runtime.agent(name)
    except AgentNotFoundError:
        near = difflib.get_close_matches(name, runtime.agents, 1)
        others = f"There are: {', '.join(sorted(runtime.agents))}." if runtime.agents else "There are none."
        raise AgentNotFoundError(name, f"Did you mean {near[0]!r}?" if near else others) from None


def checked_query(query: str) -> str:
    """A query as it was typed or piped, if it is one.

    Raises:
        InvalidInput: there is nothing to be seen in it, or it holds bytes that are no text.
    """
    if is_blank(query):
        raise InvalidInput("The query is empty.")
    if any("\ud800" <= char <= "\udfff" for char in query):  # what Python makes of such bytes
        raise InvalidInput("The query is not UTF-8: it holds bytes that are no text.")
    return query


# `astromesh chat`: a conversation in the terminal, or line by line from a pipe.

PROMPT = "> "


HELP = "/new starts a new conversation, /quit (or Ctrl-D) ends, Ctrl-C cancels an answer."


def chat(folders: tuple[Path, Path], agent: str, session: str) -> None:
    """Talks until the input ends.

    Raises:
        AgentNotFoundError, AgentUnavailable, ConfigError: there is nobody to talk to.
        typer.Exit: with the code of the last failure, where nobody sat at the keyboard.
    """
    configure_logging("warning")
    runtime = AgentRuntime(folders[0], data_dir=folders[1])
    with asyncio.Runner() as runner:
        try:
            runner.run(runtime.bootstrap())
            find_agent(runtime, agent)
            failed = _Conversation(runner, runtime, agent, session).talk()
        finally:
            runner.run(runtime.close(grace=0.0))
    if failed and not sys.stdin.isatty():
        raise typer.Exit(failed)


class _Conversation:
    """Reads a line, answers it, reads the next. Between two answers the event loop stands still."""

    def __init__(self, runner: asyncio.Runner, runtime: AgentRuntime, agent: str, session: str) -> None:
        self._runner = runner
        self._runtime = runtime
        self._agent = agent
        self._session = session or _new_session()

    def talk(self) -> int:
        """Answers the exit code of the last failure, 0 where all went well."""
        if sys.stdin.isatty():
            note(f"{self._agent}, conversation {self._session}\n{HELP}")
        failed = 0
        for line in _lines():
            if line == "/quit":
                break
            if line == "/help":
                note(HELP)
            elif line == "/new":
                self._session = _new_session()
                note(f"conversation {self._session}")
            elif line:
                failed = self._answer(line) or failed
        return failed

    def _answer(self, query: str) -> int:
        printer = Printer()
        try:
            answer = self._runner.run(self._run(checked_query(query), printer))
        except AstromeshError as error:
            printer.finish("")
            return report(error)
        except KeyboardInterrupt:  # the runner has cancelled the run before it raises this
            printer.finish("")
            note("cancelled")
            return 0
        printer.finish(answer.response)
        print_fallback(answer)
        return 0

    async def _run(self, query: str, printer: Printer) -> RunAnswer:
        await asyncio.sleep(
            0.001
        )  # the loop stood still: let it see which kept connections have closed since
        return await self._runtime.run(self._agent, query, self._session, sinks=(printer,))


def _lines() -> Iterator[str]:
    """What is typed, with history and editing; or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401  gives input() history and editing

    while True:
        try:
            yield input(PROMPT).strip()
        except KeyboardInterrupt:
            note("\n(/quit or Ctrl-D ends)")
        except EOFError:
            print()
            return


def _new_session() -> str:
    return f"chat-{uuid4().hex[:12]}"


# `astromesh graph`: what an agent does, as a Mermaid diagram.


def graph(folders: tuple[Path, Path], name: str) -> None:
    """Prints the diagram.

    Raises:
        AgentNotFoundError, AgentUnavailable: there is no such agent.
        InvalidInput: its pattern is no graph.
    """
    configure_logging("warning")
    print(asyncio.run(_diagram(folders, name)))


async def _diagram(folders: tuple[Path, Path], name: str) -> str:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        return agent_diagram(runtime.agent(name))


# `astromesh run`: one question, one answer, in this process.


def run(
    folders: tuple[Path, Path], agent: str, query: str, session: str, *, as_json: bool, stream: bool
) -> None:
    """Prints the answer; without a session nothing of the run is kept in memory.

    Raises:
        typer.Exit: with the code of what went wrong.
    """
    configure_logging("warning")
    query = sys.stdin.read() if query == "-" else query
    printer = JsonEvents() if as_json else Printer()
    sinks = (printer,) if stream else ()
    try:
        answer = asyncio.run(_run(folders, agent, query, session, sinks))
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    except KeyboardInterrupt:
        note("cancelled")
        raise typer.Exit(CANCELLED) from None
    if stream:
        printer.finish(answer.response)
    elif as_json:
        print_json(asdict(answer))
    else:
        print(plain(answer.response))
    if not as_json:
        print_fallback(answer)


async def _run(
    folders: tuple[Path, Path], agent: str, query: str, session: str, sinks: tuple[EventSink, ...]
) -> RunAnswer:
    query = checked_query(query)
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        request = RunRequest(query, session or f"cli-{uuid4().hex}", persist=bool(session))
        return await runtime.runner.start(find_agent(runtime, agent), request, sinks=sinks)
