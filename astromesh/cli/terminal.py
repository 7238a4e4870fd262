"""Terminal input and output: JSON for scripts, tables for people, runs as they go, lines that are typed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
import typer

from astromesh.types import Event, JsonObject

#: control characters but tab and newline: a model's text must not move the cursor or set the window's title
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: columns of a pipe, so that no cell of a table is cut
_PIPE_COLUMNS = 10_000
#: looks of notes, as typer names them
_STYLES: Mapping[str, Mapping[str, Any]] = {
    "dim": {"dim": True},
    "red": {"fg": "red"},
    "yellow": {"fg": "yellow"},
    "bold yellow": {"fg": "yellow", "bold": True},
}
#: printed characters of a tool's arguments
_MAX_ARGUMENTS = 200


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
    """Prints a line to stderr, with colour in a terminal. Servers print warnings with it, without rich."""
    typer.secho(_CONTROL.sub("", text), err=True, color=_wants_color(os.environ), **_STYLES[style])


def _wants_color(env: Mapping[str, str]) -> bool | None:
    """Returns what the environment says; None: it says nothing."""
    if env.get("NO_COLOR") or env.get("TERM") in ("dumb", "unknown"):
        return False
    return True if env.get("FORCE_COLOR") else None


# -- runs as they go -----------------------------------------------------------------------------------------


class _EventPrinter:
    """An EventSink. An error of the output does not end the run: `finish` raises it."""

    wants_deltas = True

    def __init__(self) -> None:
        self._write_error: OSError | None = None

    def send(self, event: Event) -> None:
        if self._write_error is None:
            try:
                self._print(event)
            except OSError as error:
                self._write_error = error

    def finish(self, response: str = "") -> None:
        """Raises the OSError that stopped the output, if any."""
        if self._write_error is not None:
            raise self._write_error

    def _print(self, event: Event) -> None:
        raise NotImplementedError


class Printer(_EventPrinter):
    """Prints for people. `finish` prints an answer that did not arrive as deltas."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = ""
        self._handlers: dict[str, Callable[[JsonObject], None]] = {
            "model.started": lambda _: self._end_line(),
            "model.restarted": lambda _: self._end_line(),  # the step starts again, its text so far is void
            "model.commentary": lambda _: self._end_line(),
            "model.delta": self._delta,
            "tool.started": self._tool_started,
            "tool.finished": self._tool_finished,
        }

    def _print(self, event: Event) -> None:
        handle = self._handlers.get(event.type)
        if handle is not None:
            handle(event.data)

    def finish(self, response: str = "") -> None:
        """Prints the response where the printed text differs from it, and ends the line.

        Raises:
            OSError: not everything could be printed.
        """
        super().finish(response)
        if self._printed != response:
            self._end_line()
            self._text(response)
            self._printed = response
        self._end_line()

    def _delta(self, data: JsonObject) -> None:
        if data["role"] == "assistant":
            self._printed += data["content"]
            self._text(data["content"])

    def _text(self, text: str) -> None:
        write(text)

    def _tool_started(self, data: JsonObject) -> None:
        self._end_line()
        note(f"  → {data['name']} {_short(data['arguments'])}")

    def _tool_finished(self, data: JsonObject) -> None:
        if data["ok"]:
            note(f"  ← {data['name']} ({data['duration_ms']:.0f} ms)")
        else:
            note(f"  ← {data['name']} failed: {data.get('error') or 'error'}", "red")

    def _end_line(self) -> None:
        """Ends the line, because the text so far is not part of the answer."""
        if self._printed and not self._printed.endswith("\n"):
            write("\n")
        self._printed = ""


class JsonEvents(_EventPrinter):
    """Prints each event as a line of JSON, as `GET /v1/runs/{id}/events` would send it."""

    def _print(self, event: Event) -> None:
        line = {"run_id": event.run_id, "seq": event.seq, "ts": event.ts, "type": event.type, **event.data}
        print(orjson.dumps(line).decode(), flush=True)


def print_fallback(metadata: JsonObject) -> None:
    """Prints which models failed before the one that answered. Args: metadata: of a run's answer."""
    failed = dict.fromkeys(_attempt(one) for one in metadata.get("attempts", ()))
    if not failed:
        return
    by = "/".join(part for part in (metadata["provider"], metadata["model"]) if part)
    with suppress(BrokenPipeError):
        note(f"  ({', '.join(failed)}; answered by {by or 'none'})")


def _attempt(line: JsonObject) -> str:
    status = f", status {line['status']}" if line.get("status") else ""
    return f"{line['provider']} failed: {line['error']}{status}"


def _short(arguments: object) -> str:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return text if len(text) <= _MAX_ARGUMENTS else text[:_MAX_ARGUMENTS] + " …"


# -- lines that a user types ---------------------------------------------------------------------------------


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
