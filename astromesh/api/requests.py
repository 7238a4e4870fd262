"""Reads requests: caller, headers, JSON bodies, `Idempotency-Key`, and clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Annotated, Any, Literal, Self, TypeVar, cast

import orjson
from msgspec.structs import replace
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import Scope

from astromesh.access.scopes import ANY_SESSION, Viewer, principal_of
from astromesh.api.errors import NOT_JSON, validation_detail
from astromesh.api.middleware.response import BODY_STATE
from astromesh.config.agent import (
    ALL_EVENTS,
    MAX_HEADERS,
    CallbackEvent,
    CallbackHeader,
    CalledUrl,
    is_called,
)
from astromesh.durable.base import Callback, IdempotencyKey
from astromesh.errors import InvalidInput
from astromesh.runtime.attachments import MAX_ATTACHMENTS
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.idempotency import KEY_SECONDS
from astromesh.runtime.records import MAX_KEYS, MAX_TAG_LENGTH, MAX_TAGS, RunRequest, metadata_fault
from astromesh.telemetry.ids import NO_TRACE_PARENT, read_traceparent
from astromesh.text import SINGLE_LINE, is_blank
from astromesh.tools.base import ClientTools
from astromesh.types import Attachment, CallerContext, ToolSpec

T = TypeVar("T")
#: where a scope holds its parsed headers
_HEADERS_KEY = "astromesh.headers"
#: headers whose lines are one list (RFC 9110, 5.3), of those that are read here
_LISTS = frozenset({b"accept"})
EVENT_STREAM = "text/event-stream"
_JSON = "application/json"
#: seconds after which a request starts to watch whether its client is still connected
_WATCH_AFTER_SECONDS = 0.1
_IDEMPOTENCY_KEY, _MAX_KEY_LENGTH = "idempotency-key", 255


def runtime_of(request: Request) -> AgentRuntime:
    return cast(AgentRuntime, request.app.state["runtime"])


def caller_of(connection: HTTPConnection) -> CallerContext:
    return cast(CallerContext, connection.state["caller"])


def viewer_of(connection: HTTPConnection) -> Viewer:
    """Returns whose sessions and runs the caller may see and end: its own, or all of its tenant."""
    return viewer_of_caller(caller_of(connection))


def viewer_of_caller(caller: CallerContext) -> Viewer:
    """Returns whose sessions and runs a caller may see, as `viewer_of`."""
    return Viewer(caller.tenant_id, None if caller.scopes & ANY_SESSION else caller.user_id)


# -- headers -----------------------------------------------------------------------------------------------


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Returns the headers by lower-case name, parsed once; of a repeated header, the first line counts.

    Starlette searches all lines for each header that is read.
    """
    if _HEADERS_KEY not in scope:
        lines = list(scope["headers"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(lines)}
        if len(headers) < len(lines):
            headers.update(_joined_lists(lines))
        scope[_HEADERS_KEY] = headers
    return cast("Mapping[str, str]", scope[_HEADERS_KEY])


def _joined_lists(lines: list[tuple[bytes, bytes]]) -> dict[str, str]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in lines:
        if name in _LISTS:
            values.setdefault(name, []).append(value)
    return {name.decode(): b", ".join(parts).decode("latin-1") for name, parts in values.items()}


def wants_stream(accept: str) -> bool:
    """Whether an Accept header names server-sent events and does not prefer JSON to them."""
    if accept == EVENT_STREAM:
        return True
    accept = accept.lower()
    if EVENT_STREAM not in accept:
        return False
    ranges = dict(map(_media_range, accept.split(",")))
    stream = ranges.get(EVENT_STREAM, 0.0)
    json = next((ranges[name] for name in (_JSON, "application/*", "*/*") if name in ranges), 0.0)
    return stream > 0.0 and stream >= json


def _media_range(text: str) -> tuple[str, float]:
    """Returns a media range and its weight; a weight that is not a number counts as 1."""
    name, *parameters = (part.strip() for part in text.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            with suppress(ValueError):
                return name, min(max(float(value), 0.0), 1.0)
    return name, 1.0


# -- tools of clients, in OpenAI's form and in that of `/run` ------------------------------------------------

#: the tools that one request may bring, as OpenAI limits them
MAX_TOOLS = 128


ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class FunctionIn(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments.")

    def spec(self) -> ToolSpec:
        spec = ToolSpec(self.name, self.description or "")
        return replace(spec, parameters=self.parameters) if self.parameters else spec


class ClientToolIn(FunctionIn):
    """A tool that the client executes."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FunctionToolIn(BaseModel):
    """A tool in OpenAI's form. Calls are always checked against the schema, as `strict` asks."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    function: FunctionIn


class FunctionName(BaseModel):
    name: str


class NamedChoice(BaseModel):
    """The choice of one tool."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["auto", "none", "required"] | NamedChoice


def client_tools(tools: list[FunctionToolIn], choice: ToolChoice | None) -> ClientTools:
    """Returns the tools of a request; with the choice `none`, they are not offered."""
    if choice == "none":
        return ClientTools()
    named = choice.function.name if isinstance(choice, NamedChoice) else choice or "auto"
    return ClientTools(tuple(tool.function.spec() for tool in tools), named)


# -- bodies ------------------------------------------------------------------------------------------------

SessionId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=SINGLE_LINE)]
#: positions in logs and histories are 64-bit integers in every store
MAX_SEQ = 2**63 - 1


def _not_blank(query: str) -> str:
    if is_blank(query):
        raise PydanticCustomError("blank", "it must not be blank")
    return query


def storable(metadata: dict[str, Any]) -> dict[str, Any]:
    if fault := metadata_fault(metadata):
        raise PydanticCustomError("metadata", "{fault}", {"fault": fault})
    return metadata


_MAX_QUERY = 100_000
Query = Annotated[
    str, StringConstraints(min_length=1, max_length=_MAX_QUERY, pattern=r"\S"), AfterValidator(_not_blank)
]


#: what callers say about a run
RunMetadata = Annotated[dict[str, Any], Field(max_length=MAX_KEYS), AfterValidator(storable)]
Tags = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG_LENGTH, pattern=SINGLE_LINE)]],
    Field(max_length=MAX_TAGS),
    AfterValidator(lambda tags: list(dict.fromkeys(tags))),
]


HeaderValue = Annotated[str, Field(max_length=4096, pattern=r"^[\t\x20-\x7e]*$")]


def as_integer(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is an integer, as JSON Schema has it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WholeNumber = Annotated[int, Field(ge=1, le=MAX_SEQ), BeforeValidator(as_integer)]


class CallbackIn(BaseModel):
    """Whom the server calls when the run or Task ends or waits (Standard Webhooks)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    url: CalledUrl
    events: Annotated[list[CallbackEvent], Field(min_length=1, max_length=len(ALL_EVENTS))] = Field(
        list(ALL_EVENTS), description="Which events are sent."
    )
    headers: Annotated[dict[CallbackHeader, HeaderValue], Field(max_length=MAX_HEADERS)] = Field(
        default_factory=dict, description="Headers of every call; they are stored encrypted."
    )

    def callback(self) -> Callback:
        return Callback(self.url, tuple(dict.fromkeys(self.events)), self.headers)


_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class AttachmentIn(BaseModel):
    """An image, an audio file or a document: its URL, or its content."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"oneOf": [{"required": ["url"]}, {"required": ["data"]}]},
    )

    url: Annotated[str, Field(max_length=2048, pattern=r"^https?://"), AfterValidator(is_called)] = Field(
        default_factory=str,
        description="The server fetches it; the host must be public, or in network.allow_hosts.",
    )
    data: Annotated[str, Field(min_length=4, pattern=_BASE64)] = Field(
        default_factory=str, description="The content in base64."
    )
    media_type: Annotated[str, Field(max_length=128)] = Field(
        "", description="E.g. image/png. Empty: as the name or the server of the URL says."
    )
    name: Annotated[str, Field(max_length=256)] = Field("", description="The name of the file.")

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if bool(self.url) == bool(self.data):
            raise ValueError("set exactly one of 'url' and 'data'")
        return self

    def attachment(self) -> Attachment:
        return Attachment(self.url, self.data, self.media_type, self.name)


class RunBody(BaseModel):
    """One message to an agent."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "anyOf": [
                {"properties": {"query": {"type": "string", "minLength": 1, "pattern": r"\S"}}},
                {
                    "properties": {"attachments": {"type": "array", "items": {}, "minItems": 1}},
                    "required": ["attachments"],
                },
            ]
        },
    )

    query: Annotated[str, Field(max_length=_MAX_QUERY)] = Field(
        description="The user's message; it may be empty beside `attachments`.",
        examples=["How do I reset my password?"],
    )
    session_id: SessionId = Field(description="Names the conversation.", examples=["session-42"])
    context: dict[str, Any] = Field(default_factory=dict, description="Variables for the prompt template.")
    metadata: RunMetadata = Field(
        default_factory=dict,
        description="Stored with the run, at most 4 KiB of JSON; templates see it as `metadata`.",
    )
    tags: Tags = Field(
        default_factory=list, description="Stored with the run; lists can be filtered by them."
    )
    output_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema of the answer, in place of the agent's."
    )
    model: str = Field("", description="One of the agent's models, if `overridable` has `model`.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: WholeNumber | None = Field(None, description="Most tokens of the answer.")
    tools: list[str] | None = Field(
        None, description="Those of the agent's tools that it may call, if `overridable` has `tools`."
    )
    client_tools: Annotated[list[ClientToolIn], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list, description="Tools that the client executes; they make the run durable."
    )

    attachments: Annotated[list[AttachmentIn], Field(max_length=MAX_ATTACHMENTS)] = Field(
        default_factory=list, description="Images, audio and documents that belong to the message."
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = Field(
        None,
        description="Waiting runs with lower numbers begin first; absent: `queue.priority` of the agent. "
        "A lower number than that needs the scope `runs:priority`.",
    )
    callback: CallbackIn | None = Field(
        None, description="Whom to call when the run ends or waits; it makes the run durable."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if is_blank(self.query) and not self.attachments:
            raise PydanticCustomError("blank", "query: it must not be blank", {"param": "query"})
        return self

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of the model calls that the body has."""
        found = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in found.items() if value is not None}


def _is_time(value: object) -> object:
    """Returns a time as it is written in ISO 8601, not a number, whose unit is unknown."""
    if isinstance(value, str) and ":" in value:
        return value
    raise ValueError('it must be a time with its zone, as "2026-12-24T18:00:00+01:00"')


class DurableRunBody(RunBody):
    """One message to an agent, answered by a durable run."""

    not_before: Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_is_time)] | None = Field(
        None, description="The run begins at this time or later, at most 30 days ahead."
    )


_DURABLE_RUN: TypeAdapter[DurableRunBody] = TypeAdapter(DurableRunBody)
_RUN: TypeAdapter[RunBody] = TypeAdapter(RunBody)
_RUN_EXAMPLE = '{"query": "How do I reset my password?", "session_id": "session-42"}'


async def _raw_body(request: Request) -> bytes:
    body = request.scope.get("state", {}).get(BODY_STATE)
    return body if isinstance(body, bytes) else await request.body()


async def read_body(request: Request, adapter: TypeAdapter[T], example: str = "") -> T:
    """Returns the validated body.

    Args:
        example: a body that works, for a caller whose body lacks a field.

    Raises:
        InvalidInput: which field is wrong and how.
    """
    raw = await _raw_body(request)
    try:
        return adapter.validate_python(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{NOT_JSON}: {error}.") from error
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        is_incomplete = any(fault["type"] == "missing" for fault in faults)
        hint = f" This body works: {example}" if example and is_incomplete else ""
        param = str(next(iter(faults[0]["loc"]), faults[0].get("ctx", {}).get("param", "")))
        raise InvalidInput(validation_detail(faults) + hint, param=param) from error


async def read_durable_run_request(request: Request) -> RunRequest:
    """Returns the durable run that the body asks for. Raises: InvalidInput."""
    body = await read_body(request, _DURABLE_RUN, _RUN_EXAMPLE)
    later = body.not_before.timestamp() if body.not_before else 0.0
    return replace(run_request(body, headers_of(request.scope).get("traceparent")), not_before=later)


async def read_run_request(request: Request) -> RunRequest:
    """Returns the run that the body asks for. Raises: InvalidInput."""
    body = await read_body(request, _RUN, _RUN_EXAMPLE)
    return run_request(body, headers_of(request.scope).get("traceparent"))


def run_request(body: RunBody, traceparent: str | None) -> RunRequest:
    """Returns the run that a body or a frame asks for."""
    return RunRequest(
        body.query,
        body.session_id,
        body.context,
        body.metadata,
        caused_by=read_traceparent(traceparent) if traceparent else NO_TRACE_PARENT,
        tags=tuple(body.tags),
        client_tools=ClientTools(tuple(tool.spec() for tool in body.client_tools)),
        output_schema=body.output_schema,
        model=body.model,
        tools=None if body.tools is None else tuple(body.tools),
        parameters=body.parameters(),
        callback=body.callback.callback() if body.callback else None,
        attachments=tuple(one.attachment() for one in body.attachments),
        priority=body.priority,
    )


async def idempotency_key(request: Request, *more: str) -> IdempotencyKey | None:
    """Returns the `Idempotency-Key` of a request whose body is valid; None where it has none.

    Every route that starts a run passes it on: `runner.start(…, key=…)`, `runner.accept(…, key=…)`. A key
    belongs to its caller (tenant, principal) and its route. Only a hash of the body is stored; bodies that
    differ in white space or in the order of their keys are the same.

    Args:
        more: what else the run depends on, e.g. other headers.

    Raises:
        InvalidInput: the key is empty, too long, or not printable ASCII.
    """
    key = headers_of(request.scope).get(_IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not 0 < len(key) <= _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"Idempotency-Key must have 1 to {_MAX_KEY_LENGTH} printable ASCII characters.")
    body = orjson.dumps([orjson.loads(await _raw_body(request)), *more], option=orjson.OPT_SORT_KEYS)
    expires = runtime_of(request).clock.now() + KEY_SECONDS
    route = f"{request.method} {request.url.path}"
    return IdempotencyKey(*principal_of(caller_of(request)), route, key, sha256(body).hexdigest(), expires)


# -- clients that disconnect -------------------------------------------------------------------------------


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work` and cancels it when the client disconnects. Work that ends soon is never watched.

    Raises:
        ClientDisconnect: in place of the cancellation.
    """
    loop = asyncio.get_running_loop()
    current: asyncio.Task[Any] | None = asyncio.current_task()
    assert current is not None
    watches: list[asyncio.Task[None]] = []
    is_disconnected = False

    async def watch() -> None:
        nonlocal is_disconnected
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_disconnected = True
        current.cancel()

    timer = loop.call_later(_WATCH_AFTER_SECONDS, lambda: watches.append(loop.create_task(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if is_disconnected and current.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        for task in watches:
            task.cancel()
