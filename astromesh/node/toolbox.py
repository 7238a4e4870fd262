"""A `ToolPort` over plain tools: arguments are read and checked, calls are timed, failures become results.

Every call gets exactly one result. What the model did wrong (an unknown tool, arguments that are no JSON or
do not fit) comes back as a corrective result that says what would have been right. Permissions, rate limits
and approval are wrappers around this.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias, cast

import jsonschema_rs
import orjson

from astromesh.abc.tool import Tool, ToolContext, ToolPort
from astromesh.errors import ConfigError, InvalidToolCall, LimitReached, ToolError, ToolFailed, ToolTimeout
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec

#: a tool, or a Python function that becomes one by its type hints and docstring
ToolLike: TypeAlias = "Tool | Callable[..., Any]"

TIMEOUT = 30.0
#: characters of a result that the model is shown; more would only push the conversation out of its window
MAX_RESULT = 100_000


class ToolBox:
    """Tools by name.

    Args:
        tools: tools and Python functions; names must differ.
        timeout: seconds that one call may take.
        timeouts: seconds by tool name, instead of `timeout`.

    Raises:
        ConfigError: two tools of one name, or a function that cannot be a tool.
    """

    def __init__(
        self,
        tools: Iterable[ToolLike] = (),
        *,
        timeout: float = TIMEOUT,
        timeouts: Mapping[str, float] | None = None,
    ) -> None:
        self._timeout, self._timeouts = timeout, dict(timeouts or {})
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, Any] = {}
        for tool in map(as_tool, tools):
            if tool.spec.name in self._tools:
                raise ConfigError(f"There are two tools named {tool.spec.name!r}.")
            self._tools[tool.spec.name] = tool
        self._specs = tuple(tool.spec for tool in self._tools.values())

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        started = perf_counter()
        try:
            tool = self._find(call.name)
            arguments = self._check(tool.spec, parse_arguments(call))
            value = await self._call(tool, arguments, context)
            content = to_text(value)
        except LimitReached:
            raise  # a limit of the run is not the tool's failure
        except ToolError as error:
            return _failed(call, error, started)
        except Exception as error:  # noqa: BLE001 (the border of a tool call: any fault of a tool is its result)
            fault = ToolFailed(f"The tool {call.name!r} failed: {type(error).__name__}: {str(error)[:500]}")
            return _failed(call, fault, started)
        return ToolResult(call.id, call.name, content, duration_ms=_since(started), value=value)

    def _find(self, name: str) -> Tool:
        tool = self._tools.get(name)
        if tool is None:
            raise InvalidToolCall(unknown_tool(name, tuple(self._tools)))
        return tool

    def _check(self, spec: ToolSpec, arguments: JsonObject) -> JsonObject:
        validator = self._validators.get(spec.name)
        if validator is None:
            validator = self._validators[spec.name] = argument_validator(spec)
        if not validator.is_valid(arguments):
            raise InvalidToolCall(misfit(spec.name, validator, arguments))
        return arguments

    async def _call(self, tool: Tool, arguments: JsonObject, context: ToolContext) -> Any:
        seconds = self._timeouts.get(tool.spec.name, self._timeout)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await tool.call(arguments, context)
        except TimeoutError as error:
            if not limit.expired():  # the tool's own TimeoutError
                raise
            raise ToolTimeout(f"The tool {tool.spec.name!r} did not answer within {seconds:g} s.") from error


class NoTools:
    """A `ToolPort` without tools."""

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        return _failed(call, InvalidToolCall(unknown_tool(call.name, ())), perf_counter())


def tool_port(tools: ToolPort | Iterable[ToolLike] | None) -> ToolPort:
    """A port over whatever was given as tools: a port, a list of tools and functions, or nothing."""
    if tools is None:
        return NoTools()
    if hasattr(tools, "execute"):
        return cast("ToolPort", tools)
    return ToolBox(tools)


def as_tool(tool: ToolLike) -> Tool:
    """A tool as it is, or the tool that a Python function makes."""
    if hasattr(tool, "spec") and hasattr(tool, "call"):
        return tool
    if not callable(tool):
        raise ConfigError(f"{tool!r} is neither a tool nor a function.")
    # loaded on first use: it brings pydantic along, which graphs without Python functions never need
    functions = importlib.import_module("astromesh.abc.functions")
    made: Tool = functions.FunctionTool(tool)
    return made


# -- what the model wrote ----------------------------------------------------------------------------------


def parse_arguments(call: ToolCall) -> JsonObject:
    """The arguments of a call.

    Raises:
        InvalidToolCall: they are no JSON object; the message tells the model what to send.
    """
    text = call.arguments.strip()
    try:
        arguments = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise InvalidToolCall(
            f"The arguments of {call.name!r} are not valid JSON ({error}). Send one JSON object."
        ) from error
    if arguments is None:  # how some models say "no arguments"
        return {}
    if not isinstance(arguments, dict):
        raise InvalidToolCall(f"The arguments of {call.name!r} must be a JSON object, not {text[:80]}.")
    return arguments


def argument_validator(spec: ToolSpec) -> Any:
    """A compiled JSON Schema validator of a tool's arguments.

    Raises:
        ConfigError: the tool's schema is no JSON Schema.
    """
    try:
        return jsonschema_rs.validator_for(dict(spec.parameters))
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise ConfigError(f"The parameters of the tool {spec.name!r} are no JSON Schema: {error}") from error


def misfit(tool: str, validator: Any, arguments: JsonObject) -> str:
    """What is wrong with arguments, each fault with its place, for the model to correct."""
    faults = "; ".join(
        f"{'.'.join(str(part) for part in fault.instance_path) or 'arguments'}: {fault.message}"
        for fault in validator.iter_errors(arguments)
    )
    return f"The arguments of {tool!r} do not fit: {faults}. Correct them and call again."


def unknown_tool(name: str, known: Sequence[str]) -> str:
    """A sentence for the model that names the nearest tool."""
    if not known:
        return f"There is no tool {name!r}; no tools are available. Answer without tools."
    folded = {tool.casefold(): tool for tool in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1, 0.0)
    return f"There is no tool {name!r}. Did you mean {folded[near[0]]!r}? Available: {', '.join(known)}."


# -- what the model is shown -------------------------------------------------------------------------------


def to_text(value: Any) -> str:
    """A tool's value as text for the model: strings as they are, everything else as JSON."""
    text = (
        value if isinstance(value, str) else orjson.dumps(value, default=_jsonable, option=_OPTIONS).decode()
    )
    if len(text) <= MAX_RESULT:
        return text
    return f"{text[:MAX_RESULT]}\n[cut: the result has {len(text)} characters]"


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # a pydantic model, told by its method: pydantic need not be loaded here
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def _failed(call: ToolCall, error: ToolError, started: float) -> ToolResult:
    return ToolResult(call.id, call.name, str(error), False, error.code, _since(started))


def _since(started: float) -> float:
    return round((perf_counter() - started) * 1000, 3)
