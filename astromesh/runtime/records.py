"""Requests and answers of runs and Tasks, the records between the steps of a run, and stored requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import UNSET, Struct, convert, field, to_builtins
from msgspec.structs import replace

from astromesh.durable.base import Callback
from astromesh.durable.serialization import (
    SCHEMA,
    attachment_of,
    message_of,
)
from astromesh.errors import InvalidInput
from astromesh.graph.call_record import (
    attachment_to_json,
    message_to_json,
    messages_with_contents,
    with_contents,
)
from astromesh.telemetry.ids import NO_TRACE_PARENT, TraceParent, read_traceparent
from astromesh.text import SINGLE_LINE
from astromesh.tools.base import (
    DEFAULT_NESTED_RUN_OPTIONS,
    NO_CLIENT_TOOLS,
    ClientTools,
    NestedRunOptions,
    ToolPort,
)
from astromesh.types import Attachment, JsonObject, MemoryContext, Message, ToolSpec


class Screening(Struct, frozen=True):
    """The result of the input rules on a request that was checked before it was stored.

    Args:
        actions: Of the rules, `{stage, type, action, count}` each.
        guardrail, message: The type and the message of the rule that refused the request; empty: none did.
        again: Whether messages were merged since then: the rules check their joined text in step 3.
    """

    actions: tuple[JsonObject, ...] = ()
    guardrail: str = ""
    message: str = ""
    again: bool = False


class RunRequest(Struct, frozen=True):
    """One message to an agent.

    Args:
        context: Variables for the prompt template.
        metadata, tags: Stored with the run. Templates see the metadata, models see neither.
        attachments: Images, audio and documents that belong to the query.
        history: Messages that replace the stored session, or None.
        preface: Untrusted context of the client, between history and query.
        persist: Whether the turns are stored.
        terms: How the pattern of another agent executes this run.
        caused_by: The caller's place in its own trace (`traceparent`).
        parameters: Sampling parameters of the model calls whose result may be the answer.
        deps: What tools find as `ToolContext.deps`. It is not stored. None: that of the agent.
        screening: What the input rules did to a request that was stored before it ran.
        continuation: Messages that follow the query: calls of the client's tools, and their results.
        client_tools: Tools that the client executes. A run with any is durable, so that it can wait.
        output_schema: JSON Schema of the answer, in place of the agent's. None: the agent's.
        model: The one of the agent's models that answers. Empty: as the agent's routing chooses.
        tools: Those of the agent's tools that the run may call. None: all of them.
        not_before: When a durable run may begin, in seconds since the epoch. 0: at once.
        priority: A run with a lower number begins before others of its agent. None: as the agent says.
        callback: Whom to tell when the run ends or waits. A run with one is durable.
        accepted_at: The time that prompts show, in seconds since the epoch. 0: when the run was stored.
        protocol: What the encoder of a protocol needs of the request later, as JSON. The input rules do not
            check it: it has no text of the conversation.
        tells_state: Whether its events have what the nodes of the agent's graph change in its state.
    """

    query: str
    session_id: str
    context: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    history: tuple[Message, ...] | None = None
    preface: tuple[Message, ...] = ()
    persist: bool = True
    terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS
    caused_by: TraceParent = NO_TRACE_PARENT
    deps: Any = None
    tags: tuple[str, ...] = ()
    screening: Screening | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    continuation: tuple[Message, ...] = ()
    client_tools: ClientTools = NO_CLIENT_TOOLS
    output_schema: Mapping[str, Any] | None = None
    model: str = ""
    tools: tuple[str, ...] | None = None
    not_before: float = 0.0
    priority: int | None = None
    callback: Callback | None = None
    accepted_at: float = 0.0
    protocol: Mapping[str, Any] = field(default_factory=dict)
    tells_state: bool = False

    @property
    def has_options(self) -> bool:
        """Whether it asks for a form, a model, tools or parameters other than the agent's own."""
        return bool(
            self.parameters
            or self.model
            or self.client_tools.specs
            or self.tools is not None
            or self.output_schema is not None
        )


class RunAnswer(Struct, frozen=True):
    """The answer of step 12.

    Args:
        output: the JSON value of the answer of an agent with an output schema.
        citations: the passages that the answer of an agent with knowledge draws on.
    """

    response: str
    agent: str
    session_id: str
    run_id: str
    metadata: JsonObject
    output: Any = UNSET
    citations: Any = UNSET

    def to_json(self) -> JsonObject:
        """The body of the response (docs/api.md, Runs)."""
        body: JsonObject = {
            "response": self.response,
            "agent": self.agent,
            "session_id": self.session_id,
            "run_id": self.run_id,
            "metadata": self.metadata,
        }
        if self.output is not UNSET:
            body["output"] = self.output
        if self.citations is not UNSET:
            body["citations"] = self.citations
        return body


# -- what each step hands to the next: reading a later step early does not type-check ------------------------


class AdmittedQuery(Struct, frozen=True):
    """Step 3: the query after the input rules. No later step sees the raw query."""

    request: RunRequest
    query: str
    actions: tuple[JsonObject, ...]
    history: tuple[Message, ...] | None = None
    preface: tuple[Message, ...] = ()
    continuation: tuple[Message, ...] = ()


class RecalledQuery(Struct, frozen=True):
    """Step 4: with the memory of its session."""

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
    """Step 10: the answer after the output rules. No later step sees the raw answer."""

    admitted: AdmittedQuery
    response: str
    actions: tuple[JsonObject, ...]
    details: JsonObject
    output: Any = UNSET


# -- requests as they are stored -----------------------------------------------------------------------------


def request_to_json(request: RunRequest, query: str) -> JsonObject:
    """Returns a request as it is stored. `query`: its text, after step 3 without what input rules redact."""
    data: JsonObject = {
        "query": query,
        "session_id": request.session_id,
        "context": dict(request.context),
        "metadata": dict(request.metadata),
        "journal": SCHEMA,
        **_options_to_json(request),
    }
    if request.tags:
        data["tags"] = list(request.tags)
    if request.not_before:
        data["not_before"] = request.not_before
    if request.accepted_at:
        data["accepted_at"] = request.accepted_at
    if not request.persist:
        data["persist"] = False
    if request.caused_by.trace_id:
        data["traceparent"] = request.caused_by.header
    if request.attachments:
        data["attachments"] = [*map(attachment_to_json, request.attachments)]
    return data


def _options_to_json(request: RunRequest) -> JsonObject:
    """Returns what a request changes of its agent."""
    data: JsonObject = {}
    if request.tells_state:
        data["tells_state"] = True
    if request.parameters:
        data["parameters"] = dict(request.parameters)
    if request.output_schema is not None:
        data["output_schema"] = dict(request.output_schema)
    if request.model:
        data["model"] = request.model
    if request.tools is not None:
        data["tools"] = list(request.tools)
    if request.priority is not None:
        data["priority"] = request.priority
    if request.protocol:
        data["protocol"] = dict(request.protocol)
    if request.client_tools.specs:
        data["client_tools"] = to_builtins(request.client_tools)
    return data


def new_request_to_json(request: RunRequest) -> JsonObject:
    """Returns an accepted request, with all that its first step needs."""
    data = request_to_json(request, request.query)
    if request.history is not None:
        data["history"] = [*map(message_to_json, request.history)]
    if request.preface:
        data["preface"] = [*map(message_to_json, request.preface)]
    if request.continuation:
        data["continuation"] = [*map(message_to_json, request.continuation)]
    if request.screening is not None:
        data["screening"] = to_builtins(request.screening)
    return data


def request_of(data: JsonObject) -> RunRequest:
    """Returns the request of a stored one."""
    return RunRequest(
        data["query"],
        data["session_id"],
        data.get("context", {}),
        data.get("metadata", {}),
        attachments=(
            *map(attachment_of, data.get("attachments", ())),
            *(Attachment(*image) for image in data.get("images", ())),  # as an earlier version wrote them
        ),
        history=_messages_of(data.get("history")),
        preface=_messages_of(data.get("preface")) or (),
        persist=data.get("persist", True),
        caused_by=read_traceparent(data.get("traceparent")),
        tags=tuple(data.get("tags", ())),
        parameters=data.get("parameters", {}),
        screening=convert(data["screening"], Screening) if "screening" in data else None,
        continuation=_messages_of(data.get("continuation")) or (),
        client_tools=convert(data.get("client_tools", {}), ClientTools),
        output_schema=data.get("output_schema"),
        model=data.get("model", ""),
        tools=tuple(data["tools"]) if "tools" in data else None,
        not_before=data.get("not_before", 0.0),
        priority=data.get("priority"),
        accepted_at=data.get("accepted_at", 0.0),
        protocol=data.get("protocol", {}),
        tells_state=data.get("tells_state", False),
    )


def attachments_of(request: RunRequest) -> tuple[Attachment, ...]:
    """Returns the attachments of a request and of the messages before it."""
    before = (one for message in request.history or () for one in message.attachments)
    return (*request.attachments, *before)


def contents_by_hash(request: RunRequest) -> dict[str, str]:
    """Returns the contents of all attachments of a request, as base64 text by hash."""
    return {one.sha256: one.data for one in attachments_of(request) if one.sha256 and one.data}


def request_with_contents(request: RunRequest, contents: Mapping[str, str]) -> RunRequest:
    """Returns a stored request with what it refers to. Args: contents: base64 text by hash."""
    if not attachments_of(request):
        return request
    history = None if request.history is None else messages_with_contents(request.history, contents)
    return replace(request, attachments=with_contents(request.attachments, contents), history=history)


def _messages_of(data: list[JsonObject] | None) -> tuple[Message, ...] | None:
    return None if data is None else tuple(map(message_of, data))


def admitted_to_json(admitted: AdmittedQuery) -> JsonObject:
    return {
        "query": admitted.query,
        "actions": list(admitted.actions),
        "history": None if admitted.history is None else [*map(message_to_json, admitted.history)],
        "preface": [*map(message_to_json, admitted.preface)],
        "continuation": [*map(message_to_json, admitted.continuation)],
    }


def admitted_of(request: RunRequest, data: JsonObject) -> AdmittedQuery:
    history, preface = _messages_of(data["history"]), _messages_of(data["preface"]) or ()
    continuation = _messages_of(data.get("continuation")) or ()
    if history and (contents := contents_by_hash(request)):
        history = messages_with_contents(history, contents)
    return AdmittedQuery(request, data["query"], tuple(data["actions"]), history, preface, continuation)


class TaskRequest(Struct, frozen=True):
    """The request for one Task.

    Args:
        input: A JSON value. Any other value is refused before there is a Task.
        start: The start node. None: the workflow's default.
        caused_by: The caller's place in its own trace (`traceparent`).
        priority: A run with a lower number begins before others of its agent. None: as the agent says.
        callback: Whom to tell when the Task ends or waits. Only a durable Task may have one.
    """

    input: Any = None
    start: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    caused_by: TraceParent = NO_TRACE_PARENT
    callback: Callback | None = None


#: keys and bytes as JSON of the metadata of a run; its tags and their characters
MAX_KEYS, MAX_BYTES, MAX_TAGS, MAX_TAG_LENGTH = 32, 4096, 16, 64
_TAG = re.compile(SINGLE_LINE)


def metadata_fault(metadata: Mapping[str, Any]) -> str:
    """Returns what is wrong with the metadata of a run; empty if nothing is."""
    if len(metadata) > MAX_KEYS:
        return f"it must have at most {MAX_KEYS} keys"
    try:
        text = orjson.dumps(dict(metadata))
    except TypeError as error:
        return f"it must be JSON: {error}"
    if len(text) > MAX_BYTES:
        return f"it must have at most {MAX_BYTES // 1024} KiB as JSON"
    if b"\\u0000" in text.replace(b"\\\\", b""):  # PostgreSQL cannot search it
        return "it must not contain NUL"
    return ""


def tags_fault(tags: Sequence[Any]) -> str:
    """Returns what is wrong with the tags of a run; empty if nothing is."""
    if len(tags) > MAX_TAGS:
        return f"there may be at most {MAX_TAGS}"
    if all(isinstance(tag, str) and len(tag) <= MAX_TAG_LENGTH and _TAG.fullmatch(tag) for tag in tags):
        return ""
    return f"each must be a text of 1 to {MAX_TAG_LENGTH} characters on one line"


def require_valid(request: RunRequest) -> None:
    """Raises: InvalidInput: the metadata or the tags of a request are not valid."""
    if request.metadata and (fault := metadata_fault(request.metadata)):
        raise InvalidInput(f"The metadata of a run is not valid: {fault}.", param="metadata")
    if request.tags and (fault := tags_fault(request.tags)):
        raise InvalidInput(f"The tags of a run are not valid: {fault}.", param="tags")
