"""What an engine is asked, as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from astromesh.errors import InvalidInput
from astromesh.graph.records import new_message
from astromesh.types import Message, ToolCall

#: a question, messages (ours or JSON objects of the chat format), or `{"messages": […]}`
Input: TypeAlias = str | Sequence[Message | Mapping[str, Any]] | Mapping[str, Any]

_ROLES = ("assistant", "system", "tool", "user")


def as_messages(given: Input) -> tuple[Message, ...]:
    """Messages out of whatever was given.

    Raises:
        InvalidInput: it is none of the three.
    """
    if isinstance(given, str):
        return (new_message("user", given),)
    if type(given) is tuple and given and all([type(message) is Message for message in given]):  # noqa: C419 (faster)
        return given
    if isinstance(given, Mapping):
        given = given.get("messages", ())
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidInput(
            f"The input must be a text, a list of messages, or {{'messages': […]}}, not {_kind(given)}."
        )
    if not given:
        raise InvalidInput("The input has no messages; it needs one at least.")
    return tuple(message if isinstance(message, Message) else _message(message) for message in given)


def _kind(given: Any) -> str:
    return "None" if given is None else f"of type {type(given).__name__}"


def _message(given: Any) -> Message:
    if not isinstance(given, Mapping) or given.get("role") not in _ROLES:
        raise InvalidInput(f"A message needs a role of {', '.join(_ROLES)}: {given!r}")
    calls = given.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise InvalidInput(f"The tool_calls of a message must be a list, not {calls!r}.")
    content, answered, name = (_text(given, key, "a message") for key in ("content", "tool_call_id", "name"))
    return Message(given["role"], content, tuple(map(_call, calls)), answered, name)


def _text(given: Mapping[str, Any], key: str, owner: str) -> str:
    value = given.get(key) or ""
    if not isinstance(value, str):
        raise InvalidInput(f"The {key} of {owner} must be text.")
    return value


def _call(given: Any) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidInput(f"A tool call needs an id and a function with a name: {given!r}")
    arguments = _text(function, "arguments", "a tool call")
    return ToolCall(_text(given, "id", "a tool call"), function["name"], arguments or "{}")
