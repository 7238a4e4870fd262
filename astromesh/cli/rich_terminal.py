"""A terminal with a person at it: lines that are edited, and answers as rendered Markdown.

Lines have a history over restarts and completion of commands; a pasted text is one message. Pipes need none
of it, so this module is loaded when a command meets such a terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from astromesh.cli.terminal import Printer
from astromesh.text import CONTROL_CHARACTERS

#: seconds between two renderings of the open block
_PAUSE = 0.08
_CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


class PromptLines:
    """Reads messages with prompt_toolkit.

    Args:
        history: The file of earlier messages, readable for its owner alone.
    """

    interactive = True

    def __init__(self, prompt: str, history: Path) -> None:
        self._prompt = prompt
        self.commands: Sequence[str] = ()
        history.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
        keys, completer = _key_bindings(), _Commands(self)
        self._messages: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)), multiline=True, key_bindings=keys, completer=completer,
            complete_while_typing=False, prompt_continuation="  ",
        )  # fmt: skip
        self._questions: PromptSession[str] = PromptSession(
            history=InMemoryHistory(), multiline=True, key_bindings=keys
        )

    async def next(self, text: str = "", prompt: str = "") -> str | None:
        """See `Lines`. An answer to another prompt does not enter the history."""
        session = self._questions if prompt else self._messages
        try:
            with patch_stdout(raw=True):
                return await session.prompt_async(prompt or self._prompt, default=text)
        except EOFError:
            return None


class _Commands(Completer):
    def __init__(self, lines: PromptLines) -> None:
        self._lines = lines

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text
        if text.startswith("/") and " " not in text:
            names = (f"/{name}" for name in sorted(self._lines.commands))
            yield from (Completion(name, -len(text)) for name in names if name.startswith(text))


def _key_bindings() -> KeyBindings:
    """Enter sends the message; after a backslash, and with Alt, it begins a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


# -- answers -------------------------------------------------------------------------------------------------


class MarkdownPrinter(Printer):
    """Prints an answer while it comes: finished blocks once, the open one anew."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console()
        self._live: Live | None = None
        self._open = ""
        self._rendered_at = 0.0

    def _text(self, text: str) -> None:
        self._open += "".join(char for char in text if char in "\n\t" or not _CONTROL.match(char))
        finished, self._open = split_blocks(self._open)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        if finished:
            self._live.update(Markdown(""))
            self._console.print(Markdown(finished))
        if finished or monotonic() - self._rendered_at >= _PAUSE:
            self._rendered_at = monotonic()
            self._live.update(Markdown(self._open), refresh=True)

    def _end_line(self) -> None:
        if self._live is not None:
            self._live.update(Markdown(self._open), refresh=True)
            self._live.stop()
        self._live, self._open, self._printed = None, "", ""


def split_blocks(text: str) -> tuple[str, str]:
    """Returns the finished blocks of a Markdown text, and the rest: the block that may still grow."""
    end = text.rfind("\n\n")
    while end >= 0 and len(_FENCE.findall(text[:end])) % 2:  # inside of a fence
        end = text.rfind("\n\n", 0, end)
    return ("", text) if end < 0 else (text[: end + 2], text[end + 2 :])
