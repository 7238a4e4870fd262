"""What a model wrote becomes arguments, and whatever a tool does becomes exactly one result.

Shared by every `ToolPort`: `ToolBox` for graphs that stand alone, the tool registry for agents.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import orjson

from astromesh.abc.clock import ms_since
from astromesh.errors import (
    ConfigError,
    InvalidToolCall,
    LimitReached,
    ToolBusy,
    ToolError,
    ToolFailed,
    ToolTimeout,
)  # fmt: skip
from astromesh.node.json_schemas import schema_validator
from astromesh.node.schema_cost import too_costly
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec

#: keeps a whole result and answers its id
Keep: TypeAlias = Callable[[str], str]
#: characters of a result that the model is shown; more would only push the conversation out of its window
MAX_RESULT = 100_000
#: characters of one fault that the model is shown
_MAX_FAULT = 500
_MAX_FAULTS = 8

# Exceptions of foreign libraries like to quote what they sent.
_SECRETS = re.compile(
    r"(?i)(\bbearer\s+|\bbasic\s+|\bsk-|\b(?:api[_-]?key|access[_-]?token|token|secret|password)[\"']?\s*[=:]\s*[\"']?"
    r"|://[^/\s:@]*:)[^\s\"'&@,;]{3,}"
)


async def settle(
    call: ToolCall,
    value: Awaitable[Any],
    max_characters: int = MAX_RESULT,
    keep: Keep | None = None,
    untrusted: bool = False,
) -> ToolResult:
    """The border of a tool call: its value, or the fault it ended with, as the call's one result.

    Args:
        call: what the model asked for.
        value: the call under way.
        max_characters: of the text that the model is shown.
        keep: takes the whole of a text that is longer, and answers where it is.
        untrusted: whether what the tool says, its failures too, is somebody else's words.

    Raises:
        LimitReached: a limit of the run is not the tool's failure.
        asyncio.CancelledError: the run was cancelled.
    """
    started = perf_counter()
    try:
        answer = await value
        content = to_text(answer, max_characters, keep)
    except LimitReached:
        raise
    except ToolError as error:
        return failed(call, error, started, untrusted)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # nobody cancelled the run: the tool let the cancellation of something of its own out
        return failed(call, ToolFailed(f"The tool {call.name!r} was cancelled from within."), started)
    except GeneratorExit:  # nobody is there any more
        raise
    except BaseException as error:  # noqa: BLE001 (the border of a tool call: any fault is its result)
        return failed(
            call, ToolFailed(f"The tool {call.name!r} failed: {describe(error)}"), started, untrusted
        )
    return ToolResult(
        call.id, call.name, content, duration_ms=ms_since(started), value=answer, untrusted=untrusted
    )


def failed(call: ToolCall, error: ToolError, started: float = 0.0, untrusted: bool = False) -> ToolResult:
    """A failure as the model sees it.

    Args:
        started: `perf_counter()` of the call, 0.0 where it never began.
        untrusted: whether the tool's own words are; all other failures are said in ours.
    """
    duration = ms_since(started) if started else 0.0
    words = untrusted and error.code == ToolFailed.code
    said = text_of(error)
    if error.code != InvalidToolCall.code:  # that one quotes only what the model itself wrote
        said = _SECRETS.sub(r"\1***", said)
    return ToolResult(call.id, call.name, said, False, error.code, duration, untrusted=words)


def too_slow(limited: TimeoutError, otherwise: str) -> ToolError:
    """A tool's time limit, as it is to be told.

    Args:
        limited: what `asyncio.timeout` raised; its cause is what the call made of the cancellation.
        otherwise: the sentence for a call that had begun.
    """
    cause = limited.__cause__
    told = cause.args[0] if cause is not None and cause.args else None
    return told if isinstance(told, ToolBusy) else ToolTimeout(otherwise)


def describe(error: BaseException) -> str:
    """Type and message of a foreign exception, without what looks like a secret and without its stack."""
    message = _SECRETS.sub(r"\1***", text_of(error)[: 2 * _MAX_FAULT])[:_MAX_FAULT]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def text_of(error: BaseException) -> str:
    """What an exception says; nothing where saying it fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (a foreign `__str__` may raise anything)
        return ""


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
        ConfigError: the tool's schema is no JSON Schema, refers to another document, or would keep us busy.
    """
    if too_costly(spec.parameters):
        raise ConfigError(
            f"The parameters of the tool {spec.name!r} are too costly to check: their references lead to the "
            "same place in too many ways."
        )
    try:
        return schema_validator(spec.parameters)
    except ValueError as error:
        raise ConfigError(f"The parameters of the tool {spec.name!r} are no JSON Schema: {error}") from error


def misfit(tool: str, validator: Any, arguments: JsonObject) -> str:
    """What is wrong with arguments, for the model to correct."""
    faults = faults_of(validator, arguments)
    return f"The arguments of {tool!r} do not fit: {faults}. Correct them and call again."


def faults_of(validator: Any, arguments: JsonObject) -> str:
    """What is wrong with arguments, each fault with its place."""
    faults = [
        f"{'.'.join(str(part) for part in fault.instance_path) or 'arguments'}: {_short(fault.message)}"
        for fault in validator.iter_errors(arguments)
    ]
    more = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return "; ".join(faults[:_MAX_FAULTS]) + more


def unknown_tool(name: str, known: Sequence[str]) -> str:
    """A sentence for the model that names the nearest tool."""
    name = name[:64]
    if not known:
        return f"There is no tool {name!r}; no tools are available. Answer without tools."
    folded = {tool.casefold(): tool for tool in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1, 0.0)
    return f"There is no tool {name!r}. Did you mean {folded[near[0]]!r}? Available: {', '.join(known)}."


# -- what the model is shown -------------------------------------------------------------------------------


def to_text(value: Any, max_characters: int = MAX_RESULT, keep: Keep | None = None) -> str:
    """A tool's value as text for the model: strings as they are, everything else as JSON."""
    text = value if isinstance(value, str) else _json(value)
    if not text.isascii():  # half a surrogate pair could not be sent to anybody
        text = text.encode("utf-8", "replace").decode()
    if len(text) <= max_characters:
        return text
    where = f", kept as {keep(text)!r}" if keep else ""
    return f"{text[:max_characters]}\n[cut: the result has {len(text)} characters{where}]"


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=_jsonable, option=_OPTIONS).decode()
    except orjson.JSONEncodeError:  # integers beyond 64 bits, half surrogate pairs
        return json.dumps(value, default=_jsonable)


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # a pydantic model, told by its method: pydantic need not be loaded here
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_FAULT else f"{text[:_MAX_FAULT]}…"
