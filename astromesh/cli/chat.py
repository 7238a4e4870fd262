"""`astromesh chat`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import typer

from astromesh.cli.called import asked, named
from astromesh.cli.failure import report
from astromesh.cli.output import note
from astromesh.cli.printer import Printer, tell_of_fallback
from astromesh.errors import AstromeshError
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer
from astromesh.telemetry.logs import configure_logging

PROMPT = "> "
HELP = "/new starts a new conversation, /quit (or Ctrl-D) ends, Ctrl-C cancels an answer."


def chat(places: tuple[Path, Path], agent: str, session: str) -> None:
    """Talks until the input ends.

    Raises:
        AgentNotFoundError, AgentUnavailable, ConfigError: there is nobody to talk to.
        typer.Exit: with the code of the last failure, where nobody sat at the keyboard.
    """
    configure_logging("warning")
    runtime = AgentRuntime(places[0], data_dir=places[1])
    with asyncio.Runner() as runner:
        try:
            runner.run(runtime.bootstrap())
            named(runtime, agent)
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
            answer = self._runner.run(self._run(asked(query), printer))
        except AstromeshError as error:
            printer.finish("")
            return report(error)
        except KeyboardInterrupt:  # the runner has cancelled the run before it raises this
            printer.finish("")
            note("cancelled")
            return 0
        printer.finish(answer.response)
        tell_of_fallback(answer)
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
