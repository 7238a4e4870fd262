"""Requests and answers of runs and Tasks, what each stage hands to the next.

And requests as JSON (api.md section 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec import field as struct_field

from astromesh.durable.serialization import SCHEMA, message_of, message_to_json
from astromesh.telemetry.ids import NO_TRACE_PARENT, TraceParent, read_traceparent
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, ToolPort
from astromesh.types import Image, JsonObject, MemoryContext, Message, ToolSpec


class RunRequest(Struct, frozen=True):
    """One message to an agent.

    Args:
        context: the caller's template variables.
        metadata: kept with the run, never shown to the model.
        images: pictures that belong to the query.
        history: messages that stand in for the stored session, or None to use that.
        preface: untrusted context of the client, between history and query.
        persist: False leaves no turn behind.
        terms: on which another agent's pattern runs this one.
        caused_by: where the caller's own trace stands (`traceparent`).
    """

    query: str
    session_id: str
    context: Mapping[str, Any] = struct_field(default_factory=dict)
    metadata: Mapping[str, Any] = struct_field(default_factory=dict)
    images: tuple[Image, ...] = ()
    history: tuple[Message, ...] | None = None
    preface: tuple[Message, ...] = ()
    persist: bool = True
    terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS
    caused_by: TraceParent = NO_TRACE_PARENT


class RunAnswer(Struct, frozen=True):
    """The answer of step 12. Its fields are the body of the response (docs/api.md, Runs)."""

    response: str
    agent: str
    session_id: str
    run_id: str
    metadata: JsonObject


# -- what each step hands to the next; a later stage cannot be read early ----------------------------------
class AdmittedQuery(Struct, frozen=True):
    """Step 3: the query after the input rules. From here on nobody sees the raw one."""

    request: RunRequest
    query: str
    actions: tuple[JsonObject, ...]
    history: tuple[Message, ...] | None = None
    preface: tuple[Message, ...] = ()


class RecalledQuery(Struct, frozen=True):
    """Step 4: with what memory knows."""

    admitted: AdmittedQuery
    memory: MemoryContext


class PromptedQuery(Struct, frozen=True):
    """Step 5: the message array for the model, system message first."""

    recalled: RecalledQuery
    messages: tuple[Message, ...]


class EquippedQuery(Struct, frozen=True):
    """Step 6: with the tools that this run may use, those of an outer pattern included, and their schemas."""

    prompted: PromptedQuery
    tools: ToolPort
    specs: tuple[ToolSpec, ...]


class ReleasedAnswer(Struct, frozen=True):
    """Step 10: the answer after the output rules. From here on nobody sees the raw one."""

    admitted: AdmittedQuery
    response: str
    actions: tuple[JsonObject, ...]
    details: JsonObject


# -- what was asked ------------------------------------------------------------------------------------------
def request_to_json(request: RunRequest, query: str) -> JsonObject:
    """A request as it is stored; `query` as the input rules left it, once they have."""
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


def new_request_to_json(request: RunRequest) -> JsonObject:
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


# What a Task is asked for with.


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """What a caller wants run.

    Args:
        input: a JSON value; what is none is refused before there is a Task (E61).
        caused_by: where the caller's own trace stands (`traceparent`).
    """

    input: Any = None
    start: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    caused_by: TraceParent = NO_TRACE_PARENT
