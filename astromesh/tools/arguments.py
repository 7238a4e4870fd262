"""Arguments of tool calls: parsed from the model's text and checked against the tool's schema."""

from __future__ import annotations

from typing import Any

import orjson

from astromesh.errors import ConfigError, InvalidToolCall
from astromesh.text import has_long_integer
from astromesh.tools.base import DeclaredTool, Invoke, ToolContext
from astromesh.tools.json_schema import is_too_costly, schema_validator
from astromesh.types import JsonObject, ToolCall, ToolSpec

#: most faults that the model receives, and characters of one
_MAX_FAULTS, _MAX_FAULT_CHARACTERS = 8, 500


def arguments(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Parses the JSON and validates it against the tool's schema, which is compiled once."""
    name, validator = tool.spec.name, argument_validator(tool.spec)

    async def checked(arguments: str | JsonObject, context: ToolContext) -> Any:
        if isinstance(arguments, str):
            arguments = parse_arguments(ToolCall(context.call_id, name, arguments))
        if not validator.is_valid(arguments):
            raise InvalidToolCall(argument_error(name, validator, arguments))
        return await invoke(arguments, context)

    return checked


def parse_arguments(call: ToolCall) -> JsonObject:
    """Returns the arguments of a call.

    Raises:
        InvalidToolCall: they are not a JSON object; the message tells the model what to send.
    """
    text = call.arguments.strip()
    try:
        arguments = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise InvalidToolCall(
            f"The arguments of {call.name!r} are not valid JSON ({error}). Send one JSON object."
        ) from error
    if has_long_integer(text.encode(errors="replace")):
        raise InvalidToolCall(
            f"The arguments of {call.name!r} have an integer beyond 64 bits. Send it as text: it is rounded."
        )
    if arguments is None:  # some models write this for no arguments
        return {}
    if not isinstance(arguments, dict):
        raise InvalidToolCall(f"The arguments of {call.name!r} must be a JSON object, not {text[:80]}.")
    return arguments


def argument_validator(spec: ToolSpec) -> Any:
    """Returns a compiled JSON Schema validator of a tool's arguments.

    Raises:
        ConfigError: the schema is not a JSON Schema, refers to another document, or is too costly to check.
    """
    if is_too_costly(spec.parameters):
        raise ConfigError(
            f"The parameters of the tool {spec.name!r} are too costly to check: their references repeat the "
            "same parts too often. Write these parts out, or accept any object there."
        )
    try:
        return schema_validator(spec.parameters)
    except ValueError as error:
        raise ConfigError(
            f"The parameters of the tool {spec.name!r} are not a JSON Schema: {error}"
        ) from error


def argument_error(tool: str, validator: Any, arguments: JsonObject) -> str:
    """Returns the faults of arguments as a message to the model, or an empty string."""
    faults = schema_errors(validator, arguments)
    return f"The arguments of {tool!r} are not valid: {faults}. Correct them and call again."


def schema_errors(validator: Any, arguments: JsonObject) -> str:
    """Returns the faults of arguments, each with its place."""
    faults = [
        f"{'.'.join(str(part) for part in fault.instance_path) or 'arguments'}: {_short(fault.message)}"
        for fault in validator.iter_errors(arguments)
    ]
    more = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return "; ".join(faults[:_MAX_FAULTS]) + more


def _short(text: str) -> str:
    return text if len(text) <= _MAX_FAULT_CHARACTERS else f"{text[:_MAX_FAULT_CHARACTERS]}…"
