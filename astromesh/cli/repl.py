"""The conversation of `astromesh chat` and `astromesh workflow repl`: lines and their commands.

A line that begins with `/` is a command; `//` begins a message with `/`. An error or Ctrl-C ends what runs,
and not the program. Input comes from prompt_toolkit in a terminal, else line by line from a pipe.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from astromesh.cli.errors import report
from astromesh.cli.terminal import LineReader, note
from astromesh.errors import AstromeshError, InvalidInput
from astromesh.text import did_you_mean

PROMPT = "> "
#: printed after Ctrl-C at the prompt
FAREWELL = "(/exit or Ctrl-D ends)"


class Lines(Protocol):
    """Where the lines come from. `interactive`: whether a person types them."""

    interactive: bool

    async def next(self, text: str = "", prompt: str = "") -> str | None:
        """Returns the next message, None after the last.

        Args:
            text: A text to edit.
            prompt: What is asked, instead of the usual prompt.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """


class Command(NamedTuple):
    """A command. Args: about: its help, which begins with its arguments."""

    about: str
    work: Callable[[str], Awaitable[None]]


def is_rich_terminal() -> bool:
    """Whether a person sits at a terminal that can move its cursor."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def open_lines(history: Path, *, plain: bool = False, prompt: str = PROMPT) -> Lines:
    """Returns the lines of the standard input.

    Args:
        history: The file of what was typed before; it is made with the first line.
        plain: Whether lines are read without editing, as from a pipe.
    """
    if plain or not is_rich_terminal():
        return LineReader(prompt)
    from astromesh.cli.rich_terminal import PromptLines  # pipes do not need it

    return PromptLines(prompt, history)


class Repl:
    """Reads lines until the last one, and calls what they ask for.

    Args:
        commands: By name.
        aliases: Other names of commands.
        answer: Called with each line that is no command.

    Attributes:
        failed: The exit code of the last failure, 0 without one.
    """

    def __init__(
        self,
        lines: Lines,
        commands: Mapping[str, Command],
        answer: Callable[[str], Awaitable[None]],
        aliases: Mapping[str, str],
    ) -> None:
        self.lines, self._answer, self._aliases = lines, answer, aliases
        self.commands = {**commands, "help": Command("lists the commands", self._help)}
        self.commands["exit"] = Command("ends (also Ctrl-D)", self._exit)
        self.failed = 0
        self._ended = False

    async def talk(self) -> int:
        """Returns the exit code of the last failure, 0 without one."""
        while not self._ended and (line := await self._next()) is not None:
            if line.strip():
                await self.guarded(self._handle(line))
        return self.failed

    async def guarded(self, work: Awaitable[None]) -> None:
        """Awaits something. An error or Ctrl-C ends only that."""
        task = asyncio.ensure_future(work)
        try:
            with _on_interrupt(task.cancel):
                await task
        except AstromeshError as error:
            self.failed = report(error)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            note("cancelled")
        except KeyboardInterrupt:  # at a question
            note("cancelled")

    async def _next(self) -> str | None:
        while True:
            try:
                with _on_interrupt(lambda: note(f"\n{FAREWELL}")):
                    return await self.lines.next()
            except KeyboardInterrupt:
                note(FAREWELL)

    async def _handle(self, line: str) -> None:
        if not line.startswith("/") or line.startswith("//"):
            await self._answer(line[1:] if line.startswith("//") else line)
            return
        name, _, argument = line[1:].partition(" ")
        command = self.commands.get(self._aliases.get(name, name))
        if command is None:
            near = did_you_mean(f"/{name}", [f"/{one}" for one in (*self.commands, *self._aliases)])
            raise InvalidInput(f"There is no command /{name}. {near or '/help lists them.'}")
        await command.work(argument.strip())

    async def _help(self, _: str) -> None:
        for name, command in sorted(self.commands.items()):
            also = "".join(f", /{alias}" for alias, of in self._aliases.items() if of == name)
            note(f"/{name + also:<18} {command.about}")
        if self.lines.interactive:
            note("A pasted text is one message. \\ at the end of a line, or Alt-Enter, begins a new line.")
            note("// begins a message with /. Ctrl-C cancels an answer.")

    async def _exit(self, _: str) -> None:
        self._ended = True


@contextmanager
def _on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Calls a function at Ctrl-C, while the context is open."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
