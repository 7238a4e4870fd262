"""Lines that a person edits: history over restarts, pasted texts as one message, completion of commands."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout


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
