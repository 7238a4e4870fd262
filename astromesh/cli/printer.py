"""Prints a run as it goes: the answer to stdout, tool calls dimmed to stderr."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import orjson

from astromesh.cli.terminal import note, write
from astromesh.runtime.records import RunAnswer
from astromesh.types import Event, JsonObject

#: printed characters of a tool's arguments
_MAX_ARGUMENTS = 200


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
        self._tools: dict[str, str] = {}
        self._handlers: dict[str, Callable[[JsonObject], None]] = {
            "model.started": lambda _: self._end_line(),
            "model.restarted": lambda _: self._end_line(),  # the step starts again, its text so far is void
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
        self._tools[data["id"]] = data["name"]
        note(f"  → {data['name']} {_short(data['arguments'])}")

    def _tool_finished(self, data: JsonObject) -> None:
        name = self._tools.pop(data["id"], "tool")
        if data["ok"]:
            note(f"  ← {name} ({data['duration_ms']:.0f} ms)")
        else:
            note(f"  ← {name} failed: {data.get('error') or 'error'}", "red")

    def _end_line(self) -> None:
        """Ends the line, because the text so far belongs to an earlier step."""
        if self._printed and not self._printed.endswith("\n"):
            write("\n")
        self._printed = ""


class JsonEvents(_EventPrinter):
    """Prints each event as a line of JSON, as `GET /v1/runs/{id}/events` would send it."""

    def _print(self, event: Event) -> None:
        line = {"run_id": event.run_id, "seq": event.seq, "ts": event.ts, "type": event.type, **event.data}
        print(orjson.dumps(line).decode(), flush=True)


def print_fallback(answer: RunAnswer) -> None:
    """Prints which models failed before the one that answered."""
    failed = dict.fromkeys(_attempt(one) for one in answer.metadata.get("attempts", ()))
    if not failed:
        return
    by = "/".join(part for part in (answer.metadata["provider"], answer.metadata["model"]) if part)
    with suppress(BrokenPipeError):
        note(f"  ({', '.join(failed)}; answered by {by or 'none'})")


def _attempt(line: JsonObject) -> str:
    status = f", status {line['status']}" if line.get("status") else ""
    return f"{line['provider']} failed: {line['error']}{status}"


def _short(arguments: object) -> str:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return text if len(text) <= _MAX_ARGUMENTS else text[:_MAX_ARGUMENTS] + " …"
