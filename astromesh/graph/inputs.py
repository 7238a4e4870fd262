"""What an engine is asked, as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from astromesh.errors import InvalidInput
from astromesh.graph.records import new_message
from astromesh.types import Message, ToolCall

#: a question, messages (ours or JSON objects of the chat format), or `{"messages": […]}`
Input: TypeAlias = str | Sequence[Message | Mapping[str, Any]] | Mapping[str, Any]

_ROLES = frozenset({"system", "user", "assistant", "tool"})


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
        raise InvalidInput(f"A message needs a role of {', '.join(sorted(_ROLES))}: {given!r}")
    calls = tuple(map(_call, given.get("tool_calls") or ()))
    content = given.get("content") or ""
    if not isinstance(content, str):
        raise InvalidInput("The content of a message must be text.")
    return Message(given["role"], content, calls, given.get("tool_call_id") or "", given.get("name") or "")


def _call(given: Any) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidInput(f"A tool call needs an id and a function with a name: {given!r}")
    return ToolCall(str(given.get("id", "")), function["name"], str(function.get("arguments") or "{}"))
