"""AG-UI: an agent as the backend of a frontend (docs/protocols.md).

Every run is durable, so a page can be loaded again, a stream can break, and an open question survives a
restart: a request with a known `runId` gets the events of that run from its start. A run goes on when its
client leaves. `threadId` is the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from astromesh.access.scopes import Viewer, principal_of
from astromesh.api.agui import AguiEncoder, AguiRun, decision_of, interrupt_id, sse
from astromesh.api.chat_requests import attachment_of, context_message, file_of
from astromesh.api.dependencies import scope
from astromesh.api.errors import run_error
from astromesh.api.event_streams import EventBuffer, EventStreamResponse
from astromesh.api.requests import (
    MAX_TOOLS,
    FunctionIn,
    SessionId,
    caller_of,
    headers_of,
    read_body,
    runtime_of,
)
from astromesh.api.routes.runs import decide
from astromesh.api.schemas import event_stream, problems, request_body
from astromesh.durable.approvals import open_questions
from astromesh.durable.base import IdempotencyKey, RunRow
from astromesh.errors import ApprovalNotFound, AstromeshError, InvalidInput, NotWaiting
from astromesh.runtime.agent import Agent
from astromesh.runtime.client_tools import find_waiting, screened_answer
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.idempotency import KEY_SECONDS
from astromesh.runtime.records import RunRequest, request_of
from astromesh.telemetry.ids import read_traceparent
from astromesh.text import is_blank
from astromesh.tools.base import CLIENT_TOOL, ClientTools
from astromesh.types import Attachment, CallerContext, JsonObject, Message, SessionKey, ToolCall, Turn

router = APIRouter(tags=["agui"])
#: turns of a session that a page gets which has lost its messages, the newest ones
_MAX_TURNS = 200
#: what stands between a run and the number of its last event in the place of an AG-UI run
_BEHIND = "@"


class _Wire(BaseModel):
    """Keeps unknown keys, because messages are sent back."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel)


class AguiSource(_Wire):
    type: Literal["data", "url"]
    value: str
    mime_type: str | None = None


class AguiPart(_Wire):
    """A part of a message: text, a picture, audio or a document; `binary` as older clients send them."""

    type: Literal["text", "image", "audio", "document", "binary"]
    text: str = ""
    source: AguiSource | None = None
    url: str | None = None
    data: str | None = None
    mime_type: str = ""
    filename: str | None = None

    def attachment(self) -> Attachment | None:
        name = self.filename or ""
        if self.source is not None:
            kind = self.source.mime_type or ""
            if self.source.type == "data":
                return file_of(self.source.value, name, kind)
            return attachment_of(self.source.value, "messages", kind, name)
        if self.data:
            return file_of(self.data, name, self.mime_type)
        return attachment_of(self.url, "messages", self.mime_type, name) if self.url else None


class AguiFunction(_Wire):
    name: str
    arguments: str = "{}"


class AguiCall(_Wire):
    id: str = Field(min_length=1, max_length=256)
    function: AguiFunction


class AguiMessage(_Wire):
    id: str = Field(max_length=256)
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: Any = None
    tool_calls: list[AguiCall] | None = None
    tool_call_id: str = ""


class AguiContext(_Wire):
    description: str
    value: str


class AguiResume(_Wire):
    interrupt_id: str = Field(max_length=256)
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AguiBody(_Wire):
    """`RunAgentInput` of AG-UI 1.0."""

    thread_id: SessionId = Field(description="The session.")
    run_id: SessionId = Field(description="A known one gets the events of that run again.")
    messages: list[AguiMessage] = Field(
        description="The conversation; what follows the session's last turn is used."
    )
    tools: Annotated[list[FunctionIn], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Tools that the frontend executes."
    )
    context: list[AguiContext] | None = Field(None, description="Information for the model, untrusted.")
    state: Any = Field(None, description="The frontend's state: information for the model, untrusted.")
    resume: list[AguiResume] | None = Field(None, description="Answers to every interrupt of the thread.")


_BODY: TypeAdapter[AguiBody] = TypeAdapter(AguiBody)
_PARTS: TypeAdapter[list[AguiPart]] = TypeAdapter(list[AguiPart])


class Place(NamedTuple):
    """Where the events of an AG-UI run are: in a run, behind one of its events."""

    run_id: str
    after: int = 0


class Continuation(NamedTuple):
    """The answers of a request to a run that waits."""

    row: RunRow
    decisions: Mapping[str, JsonObject]


@router.post(
    "/v1/agents/{name}/agui",
    summary="Run an agent for an AG-UI frontend",
    openapi_extra=request_body(AguiBody),
    response_model=None,
    status_code=200,
    response_class=EventStreamResponse,
    responses={
        200: {"content": event_stream("AguiEvents")},
        **problems(401, 403, 404, 409, 413, 422, 429, 503),
    },
    dependencies=[scope("agents:run", "name")],
)
async def agui(name: str, request: Request) -> Response:
    """Starts or continues a run, or sends its events again, as AG-UI events."""
    runtime, caller = runtime_of(request), caller_of(request)
    agent = runtime.agent(name)
    body = await read_body(request, _BODY)
    run = AguiRun(
        body.thread_id,
        body.run_id,
        messages=[message.model_dump(by_alias=True, exclude_unset=True) for message in body.messages],
        frontend_tools=frozenset(tool.name for tool in body.tools or ()),
        subagents=_subagents(agent),
    )
    finder = _RunFinder(runtime, agent, caller, body, request)
    try:
        place = await finder.enter()
    except (ApprovalNotFound, NotWaiting) as error:  # the protocol wants an event, not a status
        return _refusal(run, error)
    buffer = EventBuffer()
    row = await runtime.runs.row(place.run_id, finder.viewer)
    stored_tools = (spec["name"] for spec in row.request.get("client_tools", {}).get("specs", ()))
    if not run.messages:
        run = run._replace(messages=await finder.stored_messages(row))
    run = run._replace(after=place.after, frontend_tools=run.frontend_tools | frozenset(stored_tools))
    request.app.state.followers.add(buffer)
    encoder = AguiEncoder(run, buffer.close)
    leave = await runtime.runs.follow(place.run_id, finder.viewer, 0, buffer)
    if leave is None:
        buffer.close()
    return EventStreamResponse(buffer, leave, encoder=encoder)


def _refusal(run: AguiRun, error: AstromeshError) -> Response:
    started = {"type": "RUN_STARTED", "threadId": run.thread_id, "runId": run.run_id}
    events = sse(started) + sse(run_error(str(error), error.code))
    return Response(events, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _subagents(agent: Agent) -> Mapping[str, str]:
    """Returns the agents that a run may call, by the names of the tools that call them."""
    spec = agent.manifest.spec
    tools = {tool.name: str(tool.plugin_value("agent")) for tool in spec.tools if tool.type == "agent"}
    workers = spec.orchestration.plugin_value("workers") if agent.pattern_name == "supervisor" else ()
    return {**tools, **{name: name for name in workers or ()}}


class _RunFinder:
    """Finds or makes the run of a request."""

    def __init__(
        self,
        runtime: AgentRuntime,
        agent: Agent,
        caller: CallerContext,
        body: AguiBody,
        request: Request,
    ) -> None:
        self._runtime, self._agent, self._caller, self._body = runtime, agent, caller, body
        self._headers, self._audit = headers_of(request.scope), request.app.state.audit
        tenant, owner = principal_of(caller)
        self.viewer = Viewer(tenant, owner)
        self._session = SessionKey(tenant, agent.name, body.thread_id, owner)
        expires = runtime.clock.now() + KEY_SECONDS
        route, key = f"agui {agent.name}", orjson.dumps([body.thread_id, body.run_id]).decode()
        # the run of a known `runId` is followed, whatever else the request has
        self._key = IdempotencyKey(tenant, owner, route, key, sha256(b"").hexdigest(), expires)

    async def enter(self) -> Place:
        """Returns the place of the AG-UI run: a known one, that of a run that goes on, or of a new one.

        Raises:
            ApprovalNotFound, NotWaiting: the answers fit no open question, or one is not answered.
            InvalidInput: there is nothing to answer, or a call or an interrupt has two answers.
        """
        known = await self._known()
        row = await self._runtime.runs.row(known.run_id, self.viewer) if known else None
        # it may have been named, and its process died before it went on
        if known and not (known.after and row and row.status == "waiting"):
            return known
        if known and await self._runtime.runs.last_event(known.run_id) != known.after:
            return known
        found = await self._continuation()
        return await (self._start() if found is None else self._continue(found))

    async def _known(self) -> Place | None:
        store = await self._runtime.runner.durable.open()
        # an unknown key is stored without duration
        unknown = self._key._replace(expires_at=self._runtime.clock.now())
        stored = await store.reserve_key(unknown, "")
        run_id, _, after = stored.partition(_BEHIND)
        return Place(run_id, int(after or 0)) if run_id else None

    async def stored_messages(self, row: RunRow) -> list[JsonObject]:
        """Returns the conversation before a run and its question, for a page that has lost its messages."""
        request, store = request_of(row.request), self._agent.memory.conversations
        info = await store.info(self._session) if store is not None else None
        turns: Sequence[Turn] = ()
        if store is not None and info is not None:
            found = await store.page(self._session, after=max(info.turns - _MAX_TURNS, 0), limit=_MAX_TURNS)
            turns = [one for one in found if one.created_at < row.created_at]
        before = [Message(turn.role, turn.content) for turn in turns] or request.history or ()
        messages = [*before, Message("user", request.query), *request.continuation]
        return [_message_json(f"{row.run_id}-in-{n}", message) for n, message in enumerate(messages)]

    # -- a run that goes on --------------------------------------------------------------------------------

    async def _continuation(self) -> Continuation | None:
        messages = _after_last_call(self._body.messages)
        results = {m.tool_call_id: _text(m) for m in messages}
        if len(results) < len(messages):
            raise InvalidInput("messages: there are two results of one tool call.", param="messages")
        now = self._runtime.clock.now()
        waiting = (
            await find_waiting(self._runtime.runs, self.viewer, self._agent.name, results, now)
            if results
            else None
        )
        row, answers = waiting or (None, {})
        decisions = {
            question: {"decision": "answer", "answer": screened_answer(self._agent, answer)}
            for question, answer in answers.items()
        }
        open_rows = [row] if row is not None else await self._waiting_rows()
        asking = [one for one in open_rows if _interrupts(one)]
        if not asking and not self._body.resume:
            return Continuation(row, decisions) if row is not None else None
        row = asking[0] if asking else row
        return Continuation(*self._resumed(row, decisions))

    def _resumed(self, row: RunRow | None, decisions: JsonObject) -> tuple[RunRow, JsonObject]:
        """Adds the decisions about the interrupts of a run, all of them."""
        questions = {interrupt_id(one): one for one in (_interrupts(row) if row is not None else ())}
        entries = self._body.resume or ()
        answers = {entry.interrupt_id: entry for entry in entries}
        if len(answers) < len(entries):
            raise InvalidInput("resume: there are two answers to one interrupt.", param="resume")
        if unknown := answers.keys() - questions.keys():
            raise ApprovalNotFound(f"resume: the thread has no open interrupt {min(unknown)!r}.")
        if missing := questions.keys() - answers.keys():
            ids = ", ".join(sorted(missing))
            raise ApprovalNotFound(f"The thread waits. Answer in `resume`, all at once: {ids}.")
        assert row is not None
        made = {}
        for which, entry in answers.items():
            question = questions[which]
            if question["expires_at"] <= self._runtime.clock.now():
                raise NotWaiting(f"resume: the interrupt {which!r} has expired.")
            made[question["id"]] = decision_of(question, entry.status, entry.payload)
        return row, {**decisions, **made}

    async def _waiting_rows(self) -> Sequence[RunRow]:
        runs = self._runtime.runs
        found = await runs.open_of_session(self.viewer, self._agent.name, self._body.thread_id)
        return [row for row in found if row.status == "waiting"]

    async def _continue(self, found: Continuation) -> Place:
        runtime, row = self._runtime, found.row
        place = Place(row.run_id, await runtime.runs.last_event(row.run_id))
        store = await runtime.runner.durable.open()
        # named first: a request that is sent again after a crash finds it, and decides then
        await store.reserve_key(self._key, f"{place.run_id}{_BEHIND}{place.after}")
        await decide(runtime, row, found.decisions, self._caller, self._audit)
        return place

    # -- a new run -----------------------------------------------------------------------------------------

    async def _start(self) -> Place:
        runtime, request = self._runtime, await self._request()
        for row in await self._waiting_rows():  # for results of tools that the frontend does not send
            await runtime.runs.stop(row.run_id, self.viewer)
        accepted = await runtime.runner.accept(self._agent, request, caller=self._caller, key=self._key)
        return Place(accepted.run_id)

    async def _request(self) -> RunRequest:
        body = self._body
        messages = [m for m in body.messages if m.role in ("user", "assistant", "tool")]
        names = {c.id: c.function.name for m in messages for c in m.tool_calls or ()}
        newest = max((n for n, m in enumerate(messages) if m.role == "user"), default=-1)
        behind = messages[newest + 1 :]
        if newest < 0 or (behind and behind[-1].role != "tool"):
            raise InvalidInput("messages: the last one must be the user's.", param="messages")
        first = newest
        while first and messages[first - 1].role == "user":
            first -= 1
        questions = messages[first : newest + 1]
        query = "\n".join(map(_text, questions))
        attachments = tuple(one for message in questions for one in _attachments(message))
        if is_blank(query) and not attachments:
            raise InvalidInput("messages: the last one must have text or an attachment.", param="messages")
        store = self._agent.memory.conversations
        info = await store.info(self._session) if store is not None else None
        before = messages[:first] if info is None or not info.turns else []
        return RunRequest(
            query,
            body.thread_id,
            attachments=attachments,
            preface=self._preface(),
            history=tuple(_message(m, names) for m in before) or None,
            continuation=tuple(_message(m, names) for m in behind),
            caused_by=read_traceparent(self._headers.get("traceparent")),
            client_tools=ClientTools(tuple(tool.spec() for tool in body.tools or ())),
            tells_state=True,
        )

    def _preface(self) -> tuple[Message, ...]:
        """Returns what the frontend says beside the conversation, as context that is not trusted."""
        body = self._body
        parts = [_text(m) for m in body.messages if m.role in ("system", "developer")]
        parts += [f"{one.description}: {one.value}" for one in body.context or ()]
        if body.state not in (None, {}, [], ""):
            parts.append(f"State of the application: {orjson.dumps(body.state).decode()}")
        return context_message("\n".join(parts))


def _message_json(id: str, message: Message) -> JsonObject:
    """Returns a stored message in the form of the protocol. Frontends have attachments of their own."""
    message_json = {"id": id, "role": message.role, "content": message.content}
    if message.role == "tool":
        return {**message_json, "toolCallId": message.tool_call_id}
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for one in message.tool_calls
    ]
    return {**message_json, "toolCalls": calls} if calls else message_json


def _interrupts(row: RunRow) -> list[JsonObject]:
    """Returns the questions of a waiting run to a person."""
    if row.status != "waiting":
        return []
    return [one for one in open_questions(row) if one["kind"] != CLIENT_TOOL]


def _after_last_call(messages: Sequence[AguiMessage]) -> list[AguiMessage]:
    """Returns the results at the end of the messages."""
    found: list[AguiMessage] = []
    for message in reversed(messages):
        if message.role == "tool":
            found.append(message)
        elif message.role not in ("activity", "reasoning"):
            break
    return found[::-1]


def _parts(message: AguiMessage) -> Sequence[AguiPart]:
    content = message.content
    if content is None or isinstance(content, str):
        return [AguiPart(type="text", text=content or "")]
    try:
        return _PARTS.validate_python(content)
    except ValueError as error:
        raise InvalidInput(
            "messages: content must be text, or parts of text, images, audio and documents.", param="messages"
        ) from error


def _text(message: AguiMessage) -> str:
    return "\n".join(part.text for part in _parts(message) if part.type == "text")


def _attachments(message: AguiMessage) -> list[Attachment]:
    found = [part.attachment() for part in _parts(message) if part.type != "text"]
    return [one for one in found if one is not None]


def _message(message: AguiMessage, names: Mapping[str, str]) -> Message:
    if message.role == "tool":
        call = message.tool_call_id
        return Message("tool", _text(message), tool_call_id=call, name=names.get(call, ""))
    role: Literal["user", "assistant"] = "user" if message.role == "user" else "assistant"
    calls = tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
    return Message(role, _text(message), calls, attachments=tuple(_attachments(message)))
