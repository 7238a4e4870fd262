"""Steps, errors, memory and callers as JSON and back; requests of models and tools as hashes."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import orjson
from msgspec import to_builtins

from astromesh import errors
from astromesh.errors import AllProvidersFailed, AstromeshError, ProviderError, UpstreamError
from astromesh.tools.results import to_text
from astromesh.types import (
    CallerContext,
    CompletionRequest,
    CompletionResult,
    JsonObject,
    MemoryContext,
    Message,
    SemanticResult,
    ToolCall,
    ToolResult,
    Usage,
)

#: number of this format; a record of a newer one is left to whoever can read it
SCHEMA = 1


#: of a request, what only a run that continues needs
_FOR_THE_RUN = frozenset({"images", "history", "preface"})


_JSON_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def hash_of(asked: Any) -> str:
    return sha256(orjson.dumps(asked, default=str, option=_JSON_OPTIONS)).hexdigest()


def model_hash(request: CompletionRequest, role: str) -> str:
    """What a model is asked: role and conversation.

    The system message and the offered tools are not part of it: they may be worded anew by a new version of a
    package or a server, and the answer that was given stays the answer (R16).
    """
    said = [_message(m) for m in request.messages if m.role != "system"]
    return hash_of([role, request.role, said])


def tool_hash(call: ToolCall) -> str:
    return hash_of([call.name, call.arguments])


def arguments_of(call: ToolCall) -> Any:
    """The arguments as data, or as the text that they are."""
    try:
        return orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        return call.arguments


def _message(message: Message) -> list[Any]:
    calls = [[c.id, c.name, c.arguments] for c in message.tool_calls]
    images = [sha256((i.url + i.data).encode()).hexdigest() for i in message.images]
    return [message.role, message.content, calls, message.tool_call_id, images]


# -- model calls ---------------------------------------------------------------------------------------------
def completion_to_json(result: CompletionResult) -> JsonObject:
    return {
        "content": result.content,
        "tool_calls": [[c.id, c.name, c.arguments, c.kept] for c in result.tool_calls],
        "usage": result.usage.to_json(),
        "provider": result.provider,
        "model": result.model,
        "finish_reason": result.finish_reason,
        "attempts": list(result.attempts),
        "latency_ms": result.latency_ms,
    }


def completion_of(data: JsonObject) -> CompletionResult:
    calls = tuple(ToolCall(*call) for call in data["tool_calls"])
    kept = {**data, "tool_calls": calls, "usage": Usage(**data["usage"]), "attempts": tuple(data["attempts"])}
    return CompletionResult(**kept)


# -- tool calls ----------------------------------------------------------------------------------------------
def result_to_json(result: ToolResult) -> JsonObject:
    return {
        "content": result.content,
        "ok": result.ok,
        "error": result.error,
        "duration_ms": result.duration_ms,
        "value": to_plain_json(result.value),
        "ends_run": result.ends_run,
        "untrusted": result.untrusted,
    }


def result_of(call: ToolCall, data: JsonObject) -> ToolResult:
    return ToolResult(call.id, call.name, **data)


def to_plain_json(value: Any) -> Any:
    """A tool's value as JSON has it; what is none becomes the text that the model was shown."""
    try:
        return orjson.loads(orjson.dumps(value, option=_JSON_OPTIONS))
    except (orjson.JSONEncodeError, TypeError):
        return to_text(value)


# -- failures ------------------------------------------------------------------------------------------------
def failure_to_json(error: UpstreamError) -> JsonObject:
    """A failed model call. The run may have gone another way because of it, so it stays failed."""
    said: JsonObject = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ProviderError):
        said |= {"provider": error.provider, "status": error.upstream_status, "retryable": error.retryable}
    if isinstance(error, AllProvidersFailed):
        said |= {"failures": [failure_to_json(f) for f in error.failures], "begun": error.begun}
    return said


def failure_of(said: Mapping[str, Any]) -> AstromeshError:
    kind = getattr(errors, said["type"], UpstreamError)
    if kind is AllProvidersFailed:
        failures = [f for f in map(failure_of, said["failures"]) if isinstance(f, ProviderError)]
        return AllProvidersFailed(failures, begun=said["begun"])
    kept = {key: said[key] for key in ("provider", "status", "retryable") if key in said}
    error: AstromeshError = kind(said["message"], **kept)
    return error


# -- memory --------------------------------------------------------------------------------------------------
def message_to_json(message: Message) -> JsonObject:
    data: JsonObject = to_builtins(message)
    return data


def message_of(data: JsonObject) -> Message:
    calls = tuple(ToolCall(**call) for call in data.get("tool_calls", ()))
    return Message(**{**data, "tool_calls": calls, "images": ()})


def memory_to_json(memory: MemoryContext) -> JsonObject:
    return {
        "history": [message_to_json(m) for m in memory.conversation_history],
        "semantic": [[r.content, r.score, r.source, dict(r.metadata)] for r in memory.semantic_results],
        "episodic": list(memory.episodic_events),
        "owner": memory.owner,
        "degraded": list(memory.degraded),
    }


def memory_of(data: JsonObject) -> MemoryContext:
    return MemoryContext(
        tuple(map(message_of, data["history"])),
        tuple(SemanticResult(*found) for found in data["semantic"]),
        tuple(data["episodic"]),
        data["owner"],
        tuple(data["degraded"]),
    )


def ended_request(asked: JsonObject, admitted: str) -> JsonObject:
    """What stays of a request when its run has ended: no pictures, no query that was never admitted (S10)."""
    return {**{key: asked[key] for key in asked.keys() - _FOR_THE_RUN}, "query": admitted}


# -- who asked -----------------------------------------------------------------------------------------------
def caller_to_json(caller: CallerContext) -> JsonObject:
    """Without the token: it is never stored."""
    return {
        "user_id": caller.user_id,
        "tenant_id": caller.tenant_id,
        "roles": sorted(caller.roles),
        "scopes": sorted(caller.scopes),
        "metadata": dict(caller.metadata),
        "had_token": caller.had_token or bool(caller.bearer_token),
    }


def caller_of(data: JsonObject) -> CallerContext:
    return CallerContext(
        data.get("user_id", ""),
        data.get("tenant_id", ""),
        roles=frozenset(data.get("roles", ())),
        scopes=frozenset(data.get("scopes", ())),
        metadata=data.get("metadata", {}),
        had_token=data.get("had_token", False),
    )
