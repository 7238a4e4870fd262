"""A run in the terminal: the answer as it comes on stdout, what the agent does dimmed on stderr."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import orjson

from astromesh.cli.terminal import note, write
from astromesh.runtime.records import RunAnswer
from astromesh.types import Event, JsonObject

#: characters of a tool's arguments that are shown
_MAX_ARGUMENTS = 200


class _EventPrinter:
    """An EventSink. What cannot be printed ends no run: from there on it is silent, until `finish`."""

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
        """Raises OSError where not all could be printed."""
        if self._write_error is not None:
            raise self._write_error

    def _print(self, event: Event) -> None:
        raise NotImplementedError


class Printer(_EventPrinter):
    """For people. `finish` completes the answer where it did not come piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = ""
        self._tools: dict[str, str] = {}
        self._handlers: dict[str, Callable[[JsonObject], None]] = {
            "model.started": lambda _: self._end_line(),
            "model.restarted": lambda _: self._end_line(),  # what it has said so far is void: it begins anew
            "model.delta": self._delta,
            "tool.started": self._tool_started,
            "tool.finished": self._tool_finished,
        }

    def _print(self, event: Event) -> None:
        handle = self._handlers.get(event.type)
        if handle is not None:
            handle(event.data)

    def finish(self, response: str = "") -> None:
        """Ends the line; first says the response where that is not what was said.

        Raises:
            OSError: not all could be printed.
        """
        super().finish(response)
        if self._printed != response:
            self._end_line()
            write(response)
            self._printed = response
        self._end_line()

    def _delta(self, data: JsonObject) -> None:
        if data["role"] == "assistant":
            self._printed += data["content"]
            write(data["content"])

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
        """What follows stands on a line of its own: the text so far belongs to a step that is over."""
        if self._printed and not self._printed.endswith("\n"):
            write("\n")
        self._printed = ""


class JsonEvents(_EventPrinter):
    """Prints each event as a line of JSON, as `GET /v1/runs/{id}/events` would send it."""

    def _print(self, event: Event) -> None:
        line = {"run_id": event.run_id, "seq": event.seq, "ts": event.ts, "type": event.type, **event.data}
        print(orjson.dumps(line).decode(), flush=True)


def print_fallback(answer: RunAnswer) -> None:
    """Beside an answer: that models before the one that gave it have failed, or were left alone."""
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
