"""Terminal input and output: JSON for scripts, tables for people, lines that a user types."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import orjson


class LineReader:
    """Reads lines of stdin on demand. A thread waits for them, not the event loop.

    Args:
        prompt: printed before each line in a terminal.
    """

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self.interactive = sys.stdin.isatty()

    async def next(self, text: str = "", prompt: str = "") -> str | None:
        """Returns the next line without its end, None after the last.

        Args:
            text: a text to edit.
            prompt: instead of the usual one.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | None] = loop.create_future()

        def read() -> None:
            line = self._read_typed(text, prompt or self._prompt) if self.interactive else _read_piped()
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_set_line, answer, line)

        threading.Thread(target=read, daemon=True).start()
        return await answer

    def _read_typed(self, text: str, prompt: str) -> str | None:
        import readline  # gives input() history and editing

        fill: Callable[[], None] | None = (lambda: readline.insert_text(text)) if text else None
        readline.set_startup_hook(fill)
        try:
            return input(prompt).strip()
        except EOFError:
            print()
            return None
        finally:
            readline.set_startup_hook(None)


def _set_line(waiting: asyncio.Future[str | None], line: str | None) -> None:
    if not waiting.done():
        waiting.set_result(line)


def _read_piped() -> str | None:
    line = sys.stdin.readline()
    return line.strip() if line else None


#: control characters but tab and newline: a model's text must not move the cursor or set the window's title
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: columns of a pipe, so that no cell of a table is cut
_PIPE_COLUMNS = 10_000


def plain(text: str) -> str:
    """Returns the text, for a terminal without control characters."""
    return _CONTROL.sub("", text) if sys.stdout.isatty() else text


def write(text: str) -> None:
    """Prints text of a model or a tool at once."""
    sys.stdout.write(plain(text))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Prints a JSON value, indented in a terminal, on one line in a pipe."""
    option = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    sys.stdout.write(orjson.dumps(value, option=option | orjson.OPT_APPEND_NEWLINE).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table without lines. In a pipe, no cell is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = (
        Console(highlight=False) if sys.stdout.isatty() else Console(width=_PIPE_COLUMNS, highlight=False)
    )
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(_CONTROL.sub("", cell)) for cell in row))
    console.print(table)


def note(text: str, style: str = "dim") -> None:
    """Prints a line to stderr, with colour in a terminal."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(_CONTROL.sub("", text), style))
