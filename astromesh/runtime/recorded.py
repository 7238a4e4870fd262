"""Records of a run's steps as JSON and back: what is asked as a hash, what came of it as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import orjson

from astromesh import errors
from astromesh.errors import AllProvidersFailed, AstromeshError, ProviderError, UpstreamError
from astromesh.node.tool_results import to_text
from astromesh.runtime.records import AdmittedQuery, RunRequest
from astromesh.telemetry.traceparent import read_traceparent
from astromesh.types import (
    CallerContext,
    CompletionRequest,
    CompletionResult,
    Image,
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
#: of a request, what only a run that goes on needs
_FOR_THE_RUN = frozenset({"images", "history", "preface"})
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def hash_of(asked: Any) -> str:
    return sha256(orjson.dumps(asked, default=str, option=_SORTED)).hexdigest()


def model_hash(request: CompletionRequest, role: str) -> str:
    """What a model is asked: role and conversation.

    The system message and the offered tools are not part of it: they may be worded anew by a new version of a
    package or a server, and the answer that was given stays the answer (R16).
    """
    said = [_message(m) for m in request.messages if m.role != "system"]
    return hash_of([role, request.role, said])


def tool_hash(call: ToolCall) -> str:
    return hash_of([call.name, call.arguments])


def readable(call: ToolCall) -> Any:
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
        "value": plain(result.value),
        "ends_run": result.ends_run,
        "untrusted": result.untrusted,
    }


def result_of(call: ToolCall, data: JsonObject) -> ToolResult:
    return ToolResult(call.id, call.name, **data)


def plain(value: Any) -> Any:
    """A tool's value as JSON has it; what is none becomes the text that the model was shown."""
    try:
        return orjson.loads(orjson.dumps(value, option=_SORTED))
    except (orjson.JSONEncodeError, TypeError):
        return to_text(value)


# -- failures ------------------------------------------------------------------------------------------------


def failure_to_json(error: UpstreamError) -> JsonObject:
    """A failed model call. The run may have gone another way because of it, so it stays failed."""
    said: JsonObject = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ProviderError):
        said |= {"provider": error.provider, "status": error.status, "retryable": error.retryable}
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
    return asdict(message)


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


# -- what was asked ------------------------------------------------------------------------------------------


def request_to_json(request: RunRequest, query: str) -> JsonObject:
    """A request as it is kept; `query` as the input rules left it, once they have."""
    kept: JsonObject = {
        "query": query,
        "session_id": request.session_id,
        "context": dict(request.context),
        "metadata": dict(request.metadata),
        "journal": SCHEMA,
    }
    if not request.persist:
        kept["persist"] = False
    if request.caused_by.trace_id:
        kept["traceparent"] = request.caused_by.header
    if request.images:
        kept["images"] = [[image.url, image.data, image.media_type] for image in request.images]
    return kept


def asked_to_json(request: RunRequest) -> JsonObject:
    """A request that has not been looked at yet, with all that its first step needs."""
    kept = request_to_json(request, request.query)
    if request.history is not None:
        kept["history"] = [message_to_json(message) for message in request.history]
    if request.preface:
        kept["preface"] = [message_to_json(message) for message in request.preface]
    return kept


def request_of(asked: JsonObject) -> RunRequest:
    history = asked.get("history")
    return RunRequest(
        asked["query"],
        asked["session_id"],
        asked.get("context", {}),
        asked.get("metadata", {}),
        images=tuple(Image(*image) for image in asked.get("images", ())),
        history=None if history is None else tuple(map(message_of, history)),
        preface=tuple(map(message_of, asked.get("preface", ()))),
        persist=asked.get("persist", True),
        caused_by=read_traceparent(asked.get("traceparent")),
    )


def ended_request(asked: JsonObject, admitted: str) -> JsonObject:
    """What stays of a request when its run has ended: no pictures, no query that was never admitted (S10)."""
    return {**{key: asked[key] for key in asked.keys() - _FOR_THE_RUN}, "query": admitted}


def admitted_to_json(admitted: AdmittedQuery) -> JsonObject:
    listed = (admitted.history, admitted.preface)
    history, preface = ([message_to_json(m) for m in given or ()] for given in listed)
    return {
        "query": admitted.query,
        "actions": list(admitted.actions),
        "history": None if admitted.history is None else history,
        "preface": preface,
    }


def admitted_of(request: RunRequest, data: JsonObject) -> AdmittedQuery:
    history = data["history"]
    return AdmittedQuery(
        request,
        data["query"],
        tuple(data["actions"]),
        None if history is None else tuple(map(message_of, history)),
        tuple(map(message_of, data["preface"])),
    )


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
