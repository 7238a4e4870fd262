"""Every agent as an OpenAI-compatible model of its name: chat completions and the list of models.

Without a session, the messages of the request are the history, and nothing is stored. With a session (header
`X-Session-Id`, else `user`), only the last user message counts. A client's system text is context, not
instruction: it never becomes the agent's system prompt.

Tools of a request are executed by the client. A run that calls one waits for the result, which comes with the
next request and is found by its `tool_call_id`. A result that no run waits for starts a new run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, takewhile
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from msgspec import UNSET
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, StrictBool, TypeAdapter, ValidationError

from astromesh.access.scopes import RUN, Viewer, principal_of, require_scope
from astromesh.api.chat_requests import (
    ChatSampling,
    attachment_of,
    context_message,
    file_of,
    reject_unsupported,
    requested_parameters,
    require_results,
    split_conversation,
)
from astromesh.api.dependencies import scope
from astromesh.api.errors import openai_error, public_failure
from astromesh.api.event_streams import Hold, RunStreamResponse, json_bytes
from astromesh.api.requests import (
    MAX_TOOLS,
    FunctionToolIn,
    RunMetadata,
    SessionId,
    ToolChoice,
    caller_of,
    cancel_on_disconnect,
    client_tools,
    idempotency_key,
    read_body,
    runtime_of,
)
from astromesh.api.schemas import (
    ChatCompletionOut,
    ModelOut,
    ModelsOut,
    answers,
    event_stream,
    problems,
    request_body,
)
from astromesh.durable.base import RunRow
from astromesh.errors import ApprovalRequired, Interrupted, InvalidInput, error_class
from astromesh.graph.audibility import AnswerText
from astromesh.runtime.agent import Agent
from astromesh.runtime.client_tools import ClientCall, find_waiting, open_calls
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.request_checks import require_allowed
from astromesh.telemetry import ids
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import Attachment, Event, JsonObject, Message, ToolCall, Usage

router = APIRouter(tags=["openai"])
#: seconds that the head of a stream waits for the first output
_MAX_HOLD_SECONDS = 10.0


class Part(BaseModel):
    """A part of a message: text, a refusal of the model, a picture, audio or a file."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "image_url", "input_audio", "file", "refusal"]
    text: str = ""
    refusal: str = ""
    image_url: dict[str, Any] = {}
    input_audio: dict[str, Any] = {}
    file: dict[str, Any] = {}

    def attachment(self) -> Attachment:
        if self.type == "image_url":
            return attachment_of(str(self.image_url.get("url", "")), "image_url.url")
        if self.type == "input_audio":
            kind = f"audio/{self.input_audio.get('format', '')}"
            return file_of(str(self.input_audio.get("data", "")), "", kind)
        if not self.file.get("file_data"):
            raise InvalidInput("file.file_data is missing: there are no stored files.", param="messages")
        return file_of(str(self.file["file_data"]), str(self.file.get("filename") or ""))


_ATTACHED = frozenset({"image_url", "input_audio", "file"})


class CalledFunction(BaseModel):
    name: str
    arguments: str = "{}"


class CallIn(BaseModel):
    """A tool call that an earlier answer has asked for."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1, max_length=256)
    function: CalledFunction


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[CallIn] | None = None
    tool_call_id: str = ""

    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(p.refusal or p.text for p in self.content if p.type not in _ATTACHED)
        return self.content or ""

    def attachments(self) -> tuple[Attachment, ...]:
        parts = self.content if isinstance(self.content, list) else []
        return tuple(part.attachment() for part in parts if part.type in _ATTACHED)


class AnySchema(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str = ""
    form: dict[str, Any] = Field(alias="schema")


class TextFormat(BaseModel):
    type: Literal["text"]

    def schema_for(self, agent: Agent) -> JsonObject | None:
        return None


class ObjectFormat(BaseModel):
    type: Literal["json_object"]

    def schema_for(self, agent: Agent) -> JsonObject | None:
        """Returns no schema if the agent has one: its answers are JSON."""
        return None if agent.output_schema is not None else {"type": "object"}


class SchemaFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: AnySchema

    def schema_for(self, agent: Agent) -> JsonObject | None:
        return self.json_schema.form


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class ChatBody(ChatSampling):
    """The fields that have an effect. Others are refused unless they have the protocol's default."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: StrictBool | None = None
    stream_options: dict[str, Any] | None = None
    user: SessionId | None = None
    metadata: RunMetadata | None = None
    tools: Annotated[list[FunctionToolIn], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Tools that the client executes."
    )
    tool_choice: ToolChoice | None = None
    response_format: ResponseFormat | None = Field(
        None, description="The form of the answer; the agent checks it, and repairs it once."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="false: the calls of one step are handed out one after the other."
    )


_BODY: TypeAdapter[ChatBody] = TypeAdapter(ChatBody)
_SESSION: TypeAdapter[str] = TypeAdapter(SessionId)


@router.get(
    "/v1/models", summary="List agents as models", response_model=None, responses=answers(ModelsOut),
    dependencies=[scope("agents:read")],
)  # fmt: skip
async def models(request: Request) -> JsonObject:
    """Lists the agents in the form that OpenAI clients read. `created` is when an agent was loaded."""
    agents = runtime_of(request).agents
    return {"object": "list", "data": [_model(agents[name]) for name in sorted(agents)]}


@router.get(
    "/v1/models/{name}",
    summary="One agent as a model",
    response_model=None,
    responses={**answers(ModelOut), **problems(404)},
    dependencies=[scope("agents:read")],
)
async def model(name: str, request: Request) -> JsonObject:
    """Returns an agent in the form that OpenAI clients read."""
    return _model(runtime_of(request).agent(name))


def _model(agent: Agent) -> JsonObject:
    return {"id": agent.name, "object": "model", "created": int(agent.loaded_at), "owned_by": "astromesh"}


@router.post(
    "/v1/chat/completions",
    summary="Run an agent as an OpenAI-compatible model",
    openapi_extra=request_body(ChatBody),
    response_model=None,
    responses={
        200: {"model": ChatCompletionOut, "content": event_stream("ChatCompletionChunks")},
        **problems(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504),
    },
    dependencies=[scope(RUN, any_resource=True)],
)
async def chat_completions(request: Request) -> Response:
    """Runs the agent that `model` names.

    A stream begins with its first text or tool call, at the latest after 10 seconds. What fails before that
    is a status.
    """
    body = await read_body(request, _BODY)
    reject_unsupported(body)
    require_results(_messages(body.messages))
    agent = _agent(request, body)
    parameters = requested_parameters(body, agent)
    tools = client_tools(body.tools or [], body.tool_choice)
    if not tools and (body.tool_choice not in (None, "auto", "none") or body.parallel_tool_calls is False):
        name = "tool_choice" if body.parallel_tool_calls is not False else "parallel_tool_calls"
        raise InvalidInput(f"Remove {name}: the request has no tools.", param=name)
    runtime = runtime_of(request)
    form = _Form(body.model, one_call=body.parallel_tool_calls is False)
    results = {m.tool_call_id: m.text() for m in _after_last_call(body.messages)}
    viewer = Viewer(*principal_of(caller_of(request)))
    now = runtime.clock.now()
    waiting = await find_waiting(runtime.runs, viewer, agent.name, results, now) if results else None
    if waiting is not None:
        row, answers = waiting
        form = form.of_segment(row)
        start = partial(
            runtime.runner.send_results,
            agent,
            row,
            answers,
            choice="none" if body.tool_choice == "none" else tools.choice,
            caller=caller_of(request),
        )
    else:
        new = replace(
            _run_request(body, request.headers),
            parameters=parameters,
            client_tools=tools,
            output_schema=body.response_format.schema_for(agent) if body.response_format else None,
        )
        require_allowed(agent, new)
        start = partial(
            runtime.runner.start,
            agent,
            new,
            caller=caller_of(request),
            key=await idempotency_key(request, request.headers.get("x-session-id", "")),
        )
    if body.stream:
        chunks = _Chunks(form, bool((body.stream_options or {}).get("include_usage")))
        return RunStreamResponse(
            start,
            keep_running=agent.continues_on_disconnect,
            encoder=chunks,
            hold=Hold(lambda: chunks.has_output, partial(runtime.clock.sleep, _MAX_HOLD_SECONDS)),
        )
    try:
        answer = await (start() if agent.continues_on_disconnect else cancel_on_disconnect(request, start()))
    except ApprovalRequired as waits:
        if not open_calls(waits.waiting_for):
            raise
        completion = form.waiting(await runtime.runs.row(waits.run_id, viewer))
    else:
        completion = form.completion(answer)
    return Response(json_bytes(completion), media_type="application/json")


def _agent(request: Request, body: ChatBody) -> Agent:
    require_scope(caller_of(request).scopes, RUN, body.model)
    return runtime_of(request).agent(body.model)


def _after_last_call(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Returns the results at the end of the messages."""
    return list(takewhile(lambda message: message.role == "tool", reversed(messages)))[::-1]


def _run_request(body: ChatBody, headers: Mapping[str, str]) -> RunRequest:
    """Returns the request of a new run: what follows the last user message is its continuation."""
    session = _session(headers.get("x-session-id")) or body.user
    conversation = split_conversation(_messages(body.messages))
    system = "\n".join(m.text() for m in body.messages if m.role in ("system", "developer"))
    return RunRequest(
        conversation.query.content,
        session or ids.new_id(),
        attachments=conversation.query.attachments,
        preface=context_message(system),
        history=conversation.history if not session else None,
        persist=bool(session),
        metadata=body.metadata or {},
        caused_by=read_traceparent(headers.get("traceparent")),
        continuation=conversation.continuation,
    )


def _session(header: str | None) -> str | None:
    """Checks the header by the rule of `session_id` in a run's body. Text beyond ASCII is UTF-8, as there."""
    if not header:
        return None
    with suppress(UnicodeDecodeError):
        header = header.encode("latin-1").decode()
    try:
        return _SESSION.validate_python(header)
    except ValidationError as error:
        raise InvalidInput(f"X-Session-Id: {error.errors()[0]['msg']}.") from error


def _messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Returns the messages but those of the system; a result has the name of the tool that was called."""
    names = {call.id: call.function.name for m in messages for call in m.tool_calls or ()}
    return [_message(m, names) for m in messages if m.role not in ("system", "developer")]


def _message(message: ChatMessage, names: Mapping[str, str]) -> Message:
    if message.role == "tool":
        call = message.tool_call_id
        return Message("tool", message.text(), tool_call_id=call, name=names.get(call, ""))
    role: Literal["user", "assistant"] = "user" if message.role == "user" else "assistant"
    calls = tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
    return Message(role, message.text(), calls, attachments=message.attachments())


# -- answers -----------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """What the answers to one request have in common.

    Args:
        model: as the request names it.
        one_call: whether one of several calls is handed out.
        segment: of the run, which has one for each request that continues it.
        before: what the earlier requests of the run have used.
    """

    model: str
    one_call: bool = False
    segment: int = 1
    before: Usage = Usage()

    def of_segment(self, row: RunRow) -> _Form:
        """Returns the form of answers to a request that continues a run."""
        return self._replace(segment=row.segment + 1, before=row.usage)

    def id(self, run_id: str) -> str:
        return run_id if self.segment == 1 else f"{run_id}-{self.segment}"

    def completion(self, answer: RunAnswer) -> JsonObject:
        message = {"role": "assistant", "content": answer.response}
        extension = {"run_id": answer.run_id, "session_id": answer.session_id, **answer.metadata}
        if answer.output is not UNSET:
            extension["output"] = answer.output
        if answer.citations is not UNSET:
            extension["citations"] = answer.citations
        reason, usage = _finish_reason(answer.metadata), self.usage(answer.metadata["usage"])
        return self._completion(answer.run_id, message, reason, usage, extension)

    def waiting(self, row: RunRow) -> JsonObject:
        """Returns the completion of a run that waits for its client."""
        calls = [_call_json(call) for call in self.calls(row.waiting_for)]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        extension = {"run_id": row.run_id, "session_id": row.session_id, "status": row.status}
        usage = self.usage(row.usage.to_json())
        return self._completion(row.run_id, message, "tool_calls", usage, extension)

    def calls(self, waiting_for: Mapping[str, Any] | None) -> list[ClientCall]:
        found = open_calls(waiting_for)
        return found[:1] if self.one_call else found

    def usage(self, usage: Mapping[str, Any]) -> JsonObject:
        """Returns what this request has used."""
        before = self.before
        prompt = usage["input_tokens"] - before.input_tokens
        output = usage["output_tokens"] - before.output_tokens
        cached = usage["cached_tokens"] - before.cached_tokens
        reasoning = usage.get("reasoning_tokens", 0) - before.reasoning_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def _completion(
        self, run_id: str, message: JsonObject, reason: str, usage: JsonObject, extension: JsonObject
    ) -> JsonObject:
        return {
            "id": self.id(run_id),
            "object": "chat.completion",
            "created": int(ids.created_at(run_id)),  # the same for a repeated request
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": usage,
            "astromesh": extension,
        }


def _call_json(call: ClientCall) -> JsonObject:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _finish_reason(metadata: Mapping[str, Any]) -> str:
    actions = {g["action"] for g in metadata["guardrails"] if g["stage"] == "output"}
    if "block" in actions:
        return "content_filter"
    if "truncate" in actions:
        return "length"
    reason = metadata.get("finish_reason")
    return reason if reason in ("length", "content_filter") else "stop"


class _Chunks:
    """Encodes a run's events as `chat.completion.chunk`s, tool activity in the extension `astromesh`."""

    def __init__(self, form: _Form, usage: bool) -> None:
        self._form = form
        self._usage = usage
        self._text = AnswerText()
        self._started = False
        #: whether there is a chunk that a client shows: text, a tool call, the end
        self.has_output = False

    def __call__(self, event: Event) -> bytes:
        make = getattr(self, "_" + event.type.replace(".", "_"), None)
        texts = self._texts(event, self._text.of(event))
        return b"".join(map(_data, chain(texts, make(event) if make else ())))

    def _run_started(self, event: Event) -> list[Any]:
        return [self._chunk(event, {"role": "assistant", "content": ""})]

    _run_resumed = _run_started

    def _tool_started(self, event: Event) -> list[Any]:
        return [self._chunk(event, {}, astromesh={"type": event.type, **event.data})]

    _tool_finished = _tool_started

    def _run_completed(self, event: Event) -> list[Any]:
        metadata = event.data["metadata"]
        more = {key: event.data[key] for key in ("output", "citations") if key in event.data}
        extension = {"type": event.type, **metadata, **more}
        chunks = [
            *self._unfinished(event),
            *([] if self._started else self._entire_answer(event)),
            self._chunk(event, {}, _finish_reason(metadata), astromesh=extension),
        ]
        return [*chunks, *self._end(event, metadata["usage"])]

    def _end(self, event: Event, usage: Mapping[str, Any]) -> list[Any]:
        if not self._usage:
            return [b"[DONE]"]
        counts = {**self._chunk(event, {}), "choices": [], "usage": self._form.usage(usage)}
        return [counts, b"[DONE]"]

    def _entire_answer(self, event: Event) -> list[Any]:
        """Chunks for a repeated request whose run has no stored events any more."""
        return [*self._run_started(event), self._chunk(event, {"content": event.data["response"]})]

    def _run_failed(self, event: Event) -> list[Any]:
        failure = public_failure(event.data)
        return [*self._unfinished(event), _error(error_class(event.data["code"]).status, failure)]

    def _run_cancelled(self, event: Event) -> list[Any]:
        stopped = {"code": Interrupted.code, "detail": "The run was cancelled."}
        return [*self._unfinished(event), _error(Interrupted.status, stopped)]

    def _run_waiting(self, event: Event) -> list[Any]:
        if calls := self._form.calls(event.data["approval"]):
            self._text.discard()
            handed_out = (self._call_chunks(event, index, call) for index, call in enumerate(calls))
            finish = self._chunk(event, {}, "tool_calls")
            return [*chain.from_iterable(handed_out), finish, *self._end(event, event.data["usage"])]
        waits = {
            "code": ApprovalRequired.code,
            "detail": f"The run waits for a person. POST /v1/runs/{event.run_id}/resume decides.",
        }
        return [*self._unfinished(event), _error(ApprovalRequired.status, waits)]

    def _call_chunks(self, event: Event, index: int, call: ClientCall) -> Iterator[JsonObject]:
        """Chunks of one call: its name, then its arguments."""
        begin = _call_json(call._replace(arguments=""))
        for part in (begin, {"function": {"arguments": call.arguments}}):
            yield self._chunk(event, {"tool_calls": [{"index": index, **part}]})

    def _unfinished(self, event: Event) -> Iterator[JsonObject]:
        """Chunks for the text that still waits when the run ends."""
        return self._texts(event, self._text.rest())

    def _texts(self, event: Event, texts: Iterable[str]) -> Iterator[JsonObject]:
        return (self._chunk(event, {"content": text}) for text in texts)

    def _chunk(self, event: Event, delta: JsonObject, finish: str | None = None, **more: Any) -> JsonObject:
        self._started = True
        has_text = delta.get("content") or delta.get("tool_calls")
        self.has_output = self.has_output or bool(has_text or finish or more)
        return {
            "id": self._form.id(event.run_id),
            "object": "chat.completion.chunk",
            "created": int(ids.created_at(event.run_id)),
            "model": self._form.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            **more,
        }


def _data(value: Any) -> bytes:
    return b"data: %s\n\n" % (value if isinstance(value, bytes) else json_bytes(value))


def _error(status: int, failure: JsonObject) -> JsonObject:
    return {"error": openai_error(status, failure)}
