"""The format of recorded calls: requests as hashes; answers, results and errors as JSON.

The journal of a durable run, the recording of a workflow and that of an agent store calls in this form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from hashlib import blake2b, sha256
from typing import Any, NamedTuple

import orjson
from msgspec import NODEFAULT, Struct, convert, structs, to_builtins
from msgspec.structs import replace

from astromesh import errors
from astromesh.errors import (
    AllProvidersFailed,
    AstromeshError,
    ProviderError,
    ProvidersRateLimited,
    UpstreamError,
)
from astromesh.tools.results import to_text
from astromesh.types import (
    Attachment,
    Command,
    CompletionRequest,
    CompletionResult,
    JsonObject,
    Message,
    ToolCall,
    ToolResult,
    ToolSpec,
)

_JSON_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS

# -- requests ------------------------------------------------------------------------------------------------


def hash_of(value: Any) -> str:
    """Returns the SHA-256 of a value in canonical JSON."""
    return sha256(orjson.dumps(value, default=str, option=_JSON_OPTIONS)).hexdigest()


def model_hash(request: CompletionRequest, role: str) -> str:
    """Returns the hash of a model call in a run that is resumed: its role and its conversation.

    It ignores the system message and the offered tools. A new version of a package or a server may word them
    differently, and the recorded answer still counts.
    """
    messages = [_message(m) for m in request.messages if m.role != "system"]
    return hash_of([role, request.role, messages])


def tool_hash(call: ToolCall) -> str:
    """Returns the hash of a tool call in a run that is resumed."""
    return hash_of([call.name, call.arguments])


def _message(message: Message) -> list[Any]:
    calls = [[c.id, c.name, c.arguments] for c in message.tool_calls]
    images = [sha256((i.url + i.data).encode()).hexdigest() for i in message.attachments]
    return [message.role, message.content, calls, message.tool_call_id, images]


def request_hash(request: Any) -> str:
    """Returns the hash of a whole request in a recording, without the fields that have their default.

    A field that a later version adds to the records therefore does not change the hash of a recorded request.
    """
    return sha256(_request_bytes(request)).hexdigest()


def request_to_json(request: Any) -> Any:
    """Returns a request in the form that `request_hash` hashes."""
    return orjson.loads(_request_bytes(request))


def _request_bytes(request: Any) -> bytes:
    option = _JSON_OPTIONS | orjson.OPT_PASSTHROUGH_DATACLASS
    return orjson.dumps(request, default=_without_defaults, option=option)


def _without_defaults(value: Any) -> Any:
    if isinstance(value, Struct):
        defaults = _defaults_of(type(value))
        return {name: one for name, default in defaults if (one := getattr(value, name)) != default}
    return _plain(value)


@cache
def _defaults_of(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Returns the fields of a record with their defaults; one without a default has what no value equals."""
    factories = ((one, one.default_factory) for one in structs.fields(kind))
    return tuple((one.name, one.default if new is NODEFAULT else new()) for one, new in factories)


# -- messages: the contents of attachments are stored apart, by their hash -----------------------------------


def message_to_json(message: Message) -> JsonObject:
    data: JsonObject = to_builtins(message)
    if message.attachments:
        data["attachments"] = [*map(attachment_to_json, message.attachments)]
    return data


def attachment_to_json(one: Attachment) -> JsonObject:
    """Returns an attachment with the hash of its content in place of it."""
    about = {"media_type": one.media_type, "name": one.name}
    return {**about, "sha256": one.sha256} if one.sha256 else {**about, "url": one.url, "data": one.data}


def with_contents(attachments: Iterable[Attachment], contents: Mapping[str, str]) -> tuple[Attachment, ...]:
    """Returns attachments with their content, without those whose content was deleted.

    Args:
        contents: base64 text by hash.
    """
    found = (
        replace(one, data=contents.get(one.sha256, "")) if one.sha256 and not one.data else one
        for one in attachments
    )
    return tuple(one for one in found if one.data or one.url)


def messages_with_contents(messages: Iterable[Message], contents: Mapping[str, str]) -> tuple[Message, ...]:
    return tuple(
        replace(message, attachments=with_contents(message.attachments, contents))
        if message.attachments
        else message
        for message in messages
    )


def known_contents(messages: Iterable[Message]) -> dict[str, str]:
    """Returns the contents of the attachments of messages, as base64 text by hash."""
    found = (one for message in messages for one in message.attachments)
    return {one.sha256: one.data for one in found if one.sha256 and one.data}


# -- answers of models ---------------------------------------------------------------------------------------


def completion_to_json(result: CompletionResult) -> JsonObject:
    """Returns an answer as JSON, without its latency, which differs from call to call."""
    data: JsonObject = to_builtins(result)
    del data["latency_ms"]
    return data


def completion_of(data: JsonObject) -> CompletionResult:
    """Restores an answer. Earlier versions recorded each tool call as a list of its fields."""
    calls = [
        dict(zip(ToolCall.__struct_fields__, call, strict=False)) if isinstance(call, list) else call
        for call in data["tool_calls"]
    ]
    return convert({**data, "tool_calls": calls}, CompletionResult)


# -- results of tools ----------------------------------------------------------------------------------------


def result_to_json(result: ToolResult) -> JsonObject:
    return {
        "content": result.content,
        "ok": result.ok,
        "error": result.error,
        "duration_ms": result.duration_ms,
        "value": to_plain_json(result.value),
        "ends_run": result.ends_run,
        "untrusted": result.untrusted,
        **({} if result.command is None else {"command": to_lenient_json(result.command)}),
    }


def result_of(call: ToolCall, data: JsonObject) -> ToolResult:
    if "command" in data:
        data = {**data, "command": convert(data["command"], Command)}
    return ToolResult(call.id, call.name, **data)


def arguments_of(call: ToolCall) -> Any:
    """Returns the arguments as data, or as text if they are not JSON."""
    try:
        return orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        return call.arguments


def to_plain_json(value: Any) -> Any:
    """Returns a tool's value in JSON form, or as the text that the model receives if it has no JSON form."""
    try:
        return orjson.loads(orjson.dumps(value, option=_JSON_OPTIONS))
    except (orjson.JSONEncodeError, TypeError):
        return to_text(value)


def to_lenient_json(value: Any) -> Any:
    """Returns a value in JSON form. What has no JSON form becomes text."""
    return orjson.loads(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS))


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return structs.asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else str(value)


# -- errors --------------------------------------------------------------------------------------------------


def error_to_json(error: AstromeshError) -> JsonObject:
    """Returns an error as JSON. What follows a failed call may depend on it, so it is recorded, too."""
    data: JsonObject = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ProviderError):
        data |= {"provider": error.provider, "status": error.upstream_status, "retryable": error.retryable}
    if isinstance(error, AllProvidersFailed):
        data |= {"failures": [error_to_json(f) for f in error.failures], "begun": error.begun}
    if isinstance(error, ProvidersRateLimited):
        data["retry_after"] = error.retry_after
    return data


def error_of(data: Mapping[str, Any], default: type[AstromeshError] = UpstreamError) -> AstromeshError:
    """Restores an error.

    Args:
        default: The class of an error whose own class is unknown or needs more than its message.
    """
    kind = getattr(errors, data["type"], default)
    if issubclass(kind, AllProvidersFailed) and "failures" in data:
        failures = [f for f in map(error_of, data["failures"]) if isinstance(f, ProviderError)]
        if kind is ProvidersRateLimited:
            return ProvidersRateLimited(failures, retry_after=data["retry_after"])
        return AllProvidersFailed(failures, begun=data["begun"])
    if not (issubclass(kind, ProviderError) or kind.__init__ is AstromeshError.__init__):
        kind = default
    fields = {key: data[key] for key in ("provider", "status", "retryable") if key in data}
    error: AstromeshError = kind(data["message"], **fields)
    return error


# -- the file of an agent's recording ---------------------------------------------------------------------


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
    request_json = _request_json(request)
    answer = {"error": error} if result is None else {"result": to_builtins(result)}
    return {"key": _key(request_json), "request": request_json, **answer}


def key_of(request: CompletionRequest) -> str:
    """Returns the key by which a recording finds the answer to a request."""
    return _key(_request_json(request))


def _request_json(request: CompletionRequest) -> JsonObject:
    data: JsonObject = to_builtins(request, builtin_types=(), str_keys=True)
    return data


def _key(request: JsonObject) -> str:
    return blake2b(orjson.dumps(request, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()
