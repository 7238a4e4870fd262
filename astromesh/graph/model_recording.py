"""The file of an agent's recording: its model calls, by their requests, and its tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import orjson
from msgspec import to_builtins

from astromesh.types import CompletionRequest, CompletionResult, JsonObject, ToolSpec

VERSION = 1


class RecordedAnswer(NamedTuple):
    """A model call. Args: result: None if it failed. error: `{code, message}` of a failed call."""

    request: CompletionRequest
    result: CompletionResult | None
    error: JsonObject | None = None


class RecordedToolCall(NamedTuple):
    """A tool call. Args: arguments: JSON text. content: what the model received."""

    name: str
    arguments: str
    content: str
    ok: bool = True


def recording_json(
    answers: Iterable[RecordedAnswer], tools: Iterable[ToolSpec], calls: Iterable[RecordedToolCall]
) -> JsonObject:
    """Returns the content of a recording.

    Args:
        tools: All tools of the agent: a replay replaces them.
    """
    return {
        "version": VERSION,
        "calls": [call_json(one.request, one.result, one.error) for one in answers],
        "tools": [to_builtins(one) for one in tools],
        "tool_calls": [one._asdict() for one in calls],
    }


def call_json(
    request: CompletionRequest, result: CompletionResult | None, error: JsonObject | None = None
) -> JsonObject:
    """Returns a model call as it is recorded."""
    asked = _request_json(request)
    answer = {"error": error} if result is None else {"result": to_builtins(result)}
    return {"key": _key(asked), "request": asked, **answer}


def key_of(request: CompletionRequest) -> str:
    """Returns the key by which a recording finds the answer to a request."""
    return _key(_request_json(request))


def _request_json(request: CompletionRequest) -> JsonObject:
    data: JsonObject = to_builtins(request, builtin_types=(), str_keys=True)
    return data


def _key(request: JsonObject) -> str:
    return blake2b(orjson.dumps(request, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()
