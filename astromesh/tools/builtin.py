"""`type: builtin`: tools that need no writing; `builtin: NAME` says which."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.functions import FunctionTool
from astromesh.abc.kept import KeptResults
from astromesh.abc.tool import Tool, ToolContext
from astromesh.errors import InvalidToolCall, NetError, NetTimeout, ToolFailed, ToolTimeout
from astromesh.net.http import Http
from astromesh.tools.calculator import calculate
from astromesh.tools.files import Root
from astromesh.types import JsonObject

#: headers that a model may not choose: they say where a request goes, or who sends it
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "cookie", "proxy-authorization"}
)
#: the time limit of a call is a layer around the tool; this one only ends calls that nobody limits
_SECONDS = 60.0
#: characters of a kept result that are read at once: within what a tool may answer
_PORTION = 24_000

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


class BuiltinTool:
    """Opens one of the tools that come with astromesh."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        builtin: Literal[
            "http_request", "current_time", "calculator", "read_file", "write_file", "read_result"
        ] = Field(description="Which tool.")
        root: str = Field(
            "",
            description="read_file, write_file: the folder they stay in, from the configuration's; absent: "
            "`files` in the data folder.",
        )  # fmt: skip
        max_bytes: int = Field(
            1_048_576, ge=1, description="Bytes of a file, and of an answer to http_request."
        )
        methods: tuple[Method, ...] = Field(
            ("GET", "HEAD"), min_length=1, description="http_request: methods that a model may use."
        )

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Tool:
        root = Root(_root(options.root, deps), options.max_bytes)
        match options.builtin:
            case "http_request":
                return http_request(deps.http, options.methods, options.max_bytes)
            case "current_time":
                return current_time(deps.clock)
            case "calculator":
                return _own_words(FunctionTool(calculator))
            case "read_file":
                return read_file(root)
            case "write_file":
                return write_file(root)
            case "read_result":
                return read_result(await deps.resources.shared(KeptResults, lambda: KeptResults(deps.clock)))


def _own_words(tool: FunctionTool) -> FunctionTool:
    """A tool that says nothing which somebody else has written."""
    tool.spec = replace(tool.spec, trusted=True)
    return tool


def _root(root: str, deps: Deps) -> Path:
    return deps.config_dir / root if root else deps.data_dir / "files"


async def calculator(expression: str) -> JsonObject:
    """Calculates an arithmetic expression, e.g. `(3 + 4) * sqrt(2)`.

    Args:
        expression: numbers, + - * / // % **, parentheses, pi, e, functions like sqrt, log, sin, min, round
    """
    return {"result": calculate(expression)}


def current_time(clock: Clock) -> FunctionTool:
    async def current_time(timezone: str = "UTC") -> JsonObject:
        """Tells the date and time.

        Args:
            timezone: an IANA name, e.g. Europe/Berlin
        """
        try:
            zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidToolCall(f"There is no time zone {timezone[:64]!r}.") from error
        now = datetime.fromtimestamp(clock.now(), UTC).astimezone(zone)
        return {
            "time": now.isoformat(timespec="seconds"),
            "weekday": now.strftime("%A"),
            "timezone": timezone,
        }

    return _own_words(FunctionTool(current_time))


def read_file(root: Root) -> FunctionTool:
    async def read_file(path: str) -> str:
        """Reads a text file.

        Args:
            path: inside the folder, e.g. notes/today.txt
        """
        return await root.read(path)

    return FunctionTool(read_file)


def write_file(root: Root) -> FunctionTool:
    async def write_file(path: str, content: str) -> JsonObject:
        """Writes a whole text file, in place of what was there.

        Args:
            path: inside the folder, e.g. notes/today.txt
            content: the whole text
        """
        return {"path": path, "bytes": await root.write(path, content)}

    return _own_words(FunctionTool(write_file, effect="write"))


def read_result(kept: KeptResults) -> FunctionTool:
    async def read_result(id: str, context: ToolContext, start: int = 0) -> str:
        """Reads on in a tool's result that was cut.

        Args:
            id: what the note at the end of the result says that it is kept as
            start: the first character, e.g. where the result was cut
        """
        found = kept.find(context.run_id, id)
        if found is None:
            raise InvalidToolCall(f"Nothing is kept as {id[:64]!r} in this run, or no longer.")
        if not 0 <= start < len(found.text):
            raise InvalidToolCall(f"start must be between 0 and {len(found.text) - 1}.")
        end = min(start + _PORTION, len(found.text))
        return f"{found.text[start:end]}\n[characters {start} to {end} of {found.characters}]"

    return FunctionTool(read_result)


def http_request(http: Http, methods: tuple[str, ...], most: int) -> FunctionTool:
    async def http_request(
        url: str, method: str = "GET", headers: dict[str, str] | None = None, body: Any = None
    ) -> JsonObject:
        """Sends an HTTP request to a host of the open Internet.

        Args:
            url: http or https
            method: of those that are allowed
            headers: of the request
            body: a text, or a value that is sent as JSON
        """
        if method not in methods:
            raise InvalidToolCall(f"The method must be one of {', '.join(methods)}.")
        named = {name.lower(): value for name, value in (headers or {}).items()}
        if taken := sorted(named.keys() & _OURS):
            raise InvalidToolCall(f"The header {taken[0]!r} cannot be chosen.")
        if any(not value.isprintable() or not name.isascii() for name, value in named.items()):
            raise InvalidToolCall("A header has characters that headers cannot have.")
        data = body.encode() if isinstance(body, str) else None if body is None else orjson.dumps(body)
        if data is not None and not isinstance(body, str):
            named.setdefault("content-type", "application/json")
        try:
            answer = await http.fetch_untrusted(
                method, url, body=data, headers=named, timeout=_SECONDS, limit=most
            )
        except NetTimeout as error:
            raise ToolTimeout(str(error)) from error
        except NetError as error:
            raise ToolFailed(str(error)) from error
        kind = answer.headers.get("content-type", "")
        text = answer.body.decode("utf-8", "replace")
        return {"status": answer.status, "content_type": kind, "url": answer.url, "body": text}

    return FunctionTool(http_request, effect="read" if {*methods} <= {"GET", "HEAD"} else "external")
