"""`type: builtin`: the tools that ship with astromesh; `builtin: NAME` selects one."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import InvalidToolCall, NetError, NetTimeout, ToolFailed, ToolTimeout
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock
from astromesh.tools.base import Tool, ToolContext
from astromesh.tools.file_root import FileRoot
from astromesh.tools.functions import FunctionTool
from astromesh.tools.results import LongResults
from astromesh.types import JsonObject

#: headers that a model may not set: they select the target or the sender of a request
_RESERVED_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "cookie", "proxy-authorization"}
)
#: a policy limits the time of a call; this limit only ends calls without one
_TIMEOUT_SECONDS = 60.0
#: characters of a stored result that one call reads
_READ_CHARACTERS = 24_000
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


class BuiltinTool:
    """Opens one of the tools that ship with astromesh."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        builtin: Literal[
            "http_request", "current_time", "calculator", "read_file", "write_file", "read_result"
        ] = Field(description="Which tool.")
        root: str = Field(
            "",
            description="read_file, write_file: the folder that contains the files, relative to the "
            "configuration's; absent: `files` in the data folder.",
        )  # fmt: skip
        max_bytes: int = Field(
            1_048_576, ge=1, description="Most bytes of a file, and of a response to http_request."
        )
        methods: tuple[Method, ...] = Field(
            ("GET", "HEAD"), min_length=1, description="http_request: methods that a model may use."
        )

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Tool:
        root = FileRoot(_root_folder(options.root, deps), options.max_bytes)
        match options.builtin:
            case "http_request":
                return http_request(deps.http, options.methods, options.max_bytes)
            case "current_time":
                return current_time(deps.clock)
            case "calculator":
                return _trusted(FunctionTool(calculator))
            case "read_file":
                return read_file(root)
            case "write_file":
                return write_file(root)
            case "read_result":
                return read_result(await deps.resources.shared(LongResults, lambda: LongResults(deps.clock)))


def _trusted(tool: FunctionTool) -> FunctionTool:
    """Marks a tool whose results contain no foreign text."""
    tool.spec = replace(tool.spec, trusted=True)
    return tool


def _root_folder(root: str, deps: Deps) -> Path:
    return deps.config_dir / root if root else deps.data_dir / "files"


async def calculator(expression: str) -> JsonObject:
    """Calculates an arithmetic expression, e.g. `(3 + 4) * sqrt(2)`.

    Args:
        expression: numbers, + - * / // % **, parentheses, pi, e, functions like sqrt, log, sin, min, round
    """
    return {"result": calculate(expression)}


def current_time(clock: Clock) -> FunctionTool:
    async def current_time(timezone: str = "UTC") -> JsonObject:
        """Returns the date and time.

        Args:
            timezone: an IANA name, e.g. Europe/Berlin
        """
        try:
            zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidToolCall(
                f"There is no time zone {timezone[:64]!r}; Europe/Madrid is one."
            ) from error
        now = datetime.fromtimestamp(clock.now(), UTC).astimezone(zone)
        return {
            "time": now.isoformat(timespec="seconds"),
            "weekday": now.strftime("%A"),
            "timezone": timezone,
        }

    return _trusted(FunctionTool(current_time))


def read_file(root: FileRoot) -> FunctionTool:
    async def read_file(path: str) -> str:
        """Reads a text file.

        Args:
            path: inside the folder, e.g. notes/today.txt
        """
        return await root.read(path)

    return FunctionTool(read_file)


def write_file(root: FileRoot) -> FunctionTool:
    async def write_file(path: str, content: str) -> JsonObject:
        """Writes a text file; replaces an existing one.

        Args:
            path: inside the folder, e.g. notes/today.txt
            content: the whole text
        """
        return {"path": path, "bytes": await root.write(path, content)}

    return _trusted(FunctionTool(write_file, effect="write"))


def read_result(cache: LongResults) -> FunctionTool:
    async def read_result(id: str, context: ToolContext, start: int = 0) -> str:
        """Continues to read a tool's result that was cut.

        Args:
            id: the id in the note at the end of the result
            start: the first character, e.g. where the result was cut
        """
        found = cache.find(context.run_id, id)
        if found is None:
            raise InvalidToolCall(f"This run has no stored result {id[:64]!r}, or it has expired.")
        if not 0 <= start < len(found.text):
            raise InvalidToolCall(f"start must be between 0 and {len(found.text) - 1}.")
        end = min(start + _READ_CHARACTERS, len(found.text))
        return f"{found.text[start:end]}\n[characters {start} to {end} of {found.characters}]"

    return FunctionTool(read_result)


def http_request(http: Http, methods: tuple[str, ...], max_bytes: int) -> FunctionTool:
    async def http_request(
        url: str, method: str = "GET", headers: dict[str, str] | None = None, body: Any = None
    ) -> JsonObject:
        """Sends an HTTP request to a public host.

        Args:
            url: http or https
            method: one of the allowed methods
            headers: of the request
            body: a text, or a value to send as JSON
        """
        if method not in methods:
            raise InvalidToolCall(f"The method must be one of {', '.join(methods)}.")
        named = {name.lower(): value for name, value in (headers or {}).items()}
        if reserved := sorted(named.keys() & _RESERVED_HEADERS):
            raise InvalidToolCall(f"The header {reserved[0]!r} cannot be set.")
        if any(not value.isprintable() or not name.isascii() for name, value in named.items()):
            raise InvalidToolCall("A header contains invalid characters.")
        data = body.encode() if isinstance(body, str) else None if body is None else orjson.dumps(body)
        if data is not None and not isinstance(body, str):
            named.setdefault("content-type", "application/json")
        try:
            answer = await http.fetch_untrusted(
                method, url, body=data, headers=named, timeout=_TIMEOUT_SECONDS, limit=max_bytes
            )
        except NetTimeout as error:
            raise ToolTimeout(str(error)) from error
        except NetError as error:
            raise ToolFailed(str(error)) from error
        kind = answer.headers.get("content-type", "")
        text = answer.body.decode("utf-8", "replace")
        return {"status": answer.status, "content_type": kind, "url": answer.url, "body": text}

    return FunctionTool(http_request, effect="read" if {*methods} <= {"GET", "HEAD"} else "external")


# -- calculator --------------------------------------------------------------------------------------------

#: characters of an expression, its depth, bits of an integer, digits of `round`
MAX_LENGTH, MAX_DEPTH, MAX_BITS, MAX_DIGITS = 1000, 600, 4096, 300
Number = int | float
_LEADING_ZEROS = re.compile(r"(?<![\w.])0+(?=\d)")


def calculate(expression: str) -> Number:
    """Returns the value of an arithmetic expression; Python parses it, nothing of it is executed.

    Raises:
        InvalidToolCall: it is invalid, too long or too deep, or its value is too large or not a number.
    """
    if len(expression) > MAX_LENGTH:
        raise InvalidToolCall(f"The expression has more than {MAX_LENGTH} characters.")
    text = _LEADING_ZEROS.sub("", " ".join(expression.split()).replace("^", "**"))
    try:
        value = _evaluate(ast.parse(text, mode="eval").body, MAX_DEPTH)
        if not math.isfinite(value):
            raise InvalidToolCall("The value is not a number.")
    except SyntaxError as error:
        raise InvalidToolCall(f"The expression is not valid: {error.msg}.") from error
    except (MemoryError, RecursionError) as error:
        raise InvalidToolCall("The expression is nested too deeply.") from error
    except (ArithmeticError, ValueError, TypeError) as error:
        raise InvalidToolCall(f"This cannot be calculated: {error}.") from error
    return value


def _evaluate(node: ast.expr, depth: int) -> Number:
    if not depth:
        raise InvalidToolCall("The expression is nested too deeply.")
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            number: Number = value  # type: ignore[assignment]  # mypy does not follow the guard
            return number
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_evaluate(operand, depth - 1))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            parts = _evaluate(left, depth - 1), _evaluate(right, depth - 1)
            return _check_size(_OPERATORS[type(sign)](*parts))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _check_size(_FUNCTIONS[name](*[_evaluate(one, depth - 1) for one in arguments]))
    raise InvalidToolCall(f"{ast.unparse(node)[:80]!r} is not a number or function.")


def _power(base: Number, exponent: Number) -> Number:
    """Returns a power; checks its size before it is computed."""
    if isinstance(base, int) and isinstance(exponent, int):
        if base.bit_length() * max(exponent, 1) > MAX_BITS:
            raise InvalidToolCall("The value is too large.")
        return _check_size(base**exponent)
    value: Number = float(base) ** float(exponent)
    return value


def _check_size(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise InvalidToolCall("The value is too large.")
    return value


def _round(value: Number, digits: Number = 0) -> Number:
    """Rounds with a limit on the digits, since `round` has none."""
    if abs(digits) > MAX_DIGITS:
        raise InvalidToolCall(f"round takes at most {MAX_DIGITS} digits.")
    return round(value, int(digits)) if digits else round(value)


_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_SIGNS: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip
_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs, "round": _round, "min": min, "max": max, "sqrt": math.sqrt, "floor": math.floor,
    "ceil": math.ceil, "log": math.log, "log10": math.log10, "log2": math.log2, "exp": math.exp,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin, "acos": math.acos,
    "atan": math.atan, "atan2": math.atan2, "hypot": math.hypot, "degrees": math.degrees,
    "radians": math.radians, "gcd": math.gcd,
}  # fmt: skip
