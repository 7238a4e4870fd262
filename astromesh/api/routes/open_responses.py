"""Every agent behind the Responses API (Open Responses, 2026-04-24; what that leaves out, as OpenAI has it).

A stored response is a durable run, whose events any process encodes again. Tools of a request are executed
by the client, as in chat completions. The conversation of a response is that of the responses before it; an
agent with a memory of conversations continues the session of the newest one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace
from pydantic import TypeAdapter
from starlette.convertors import StringConvertor, register_url_convertor

from astromesh.access.scopes import RUN, Viewer, principal_of, require_scope
from astromesh.api.chat_requests import (
    context_message,
    reject_unsupported,
    requested_parameters,
    require_results,
    split_conversation,
)
from astromesh.api.dependencies import audited, scope
from astromesh.api.event_streams import EventBuffer, EventStreamResponse, Hold, RunStreamResponse, json_bytes
from astromesh.api.requests import (
    MAX_SEQ,
    caller_of,
    cancel_on_disconnect,
    idempotency_key,
    read_body,
    runtime_of,
    viewer_of,
)
from astromesh.api.response_bodies import (
    CompactBody,
    ConversationBody,
    ItemContent,
    ReferenceItem,
    ResponseBody,
    compaction_item,
    message_items,
    read_items,
    reject_impossible,
    stored_items,
)
from astromesh.api.response_events import (
    RESPONSE_PREFIX,
    ResponseEvents,
    ResponseForm,
    ResponseId,
    usage_json,
)
from astromesh.api.schemas import (
    CompactionOut,
    DeletedOut,
    ItemsOut,
    ResponseOut,
    answers,
    event_stream,
    problems,
    request_body,
)
from astromesh.api.stored_responses import (
    RequestRecord,
    StoredResponse,
    find_response,
    is_newest,
    read_response,
)
from astromesh.errors import ApprovalRequired, InvalidCursor, InvalidInput, ProviderUnavailable
from astromesh.memory.base import summary_prompt
from astromesh.runtime.agent import Agent
from astromesh.runtime.client_tools import find_waiting, screened_answer
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.request_checks import check_request, require_allowed
from astromesh.runtime.runs import Runs
from astromesh.telemetry import ids
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import CompletionRequest, Event, JsonObject, Message, Usage

router = APIRouter(tags=["openai"])
#: seconds that the head of a stream waits for the first output, if the response is not stored
_MAX_HOLD_SECONDS = 10.0
#: a stored event is never joined with another one: each has its own number
_NO_LIMIT = 1 << 62
#: characters of a message that the model sees which summarizes it
_MAX_SUMMARIZED = 8000
_NO_CALL = "There is no call {!r} for this function_call_output."
_NO_RESULT = "These function calls have no function_call_output: {}."
_BODY: TypeAdapter[ResponseBody] = TypeAdapter(ResponseBody)
_COMPACT: TypeAdapter[CompactBody] = TypeAdapter(CompactBody)
_PROBLEMS = problems(400, 401, 403, 404)


class _Request(NamedTuple):
    """A request as it is read."""

    http: Request
    body: ResponseBody
    agent: Agent

    @property
    def viewer(self) -> Viewer:
        return Viewer(*principal_of(caller_of(self.http)))


@router.post(
    "/v1/responses",
    summary="Run an agent behind the Responses API",
    openapi_extra=request_body(ResponseBody),
    response_model=None,
    responses={
        200: {"model": ResponseOut, "content": event_stream("ResponseEvents")},
        **problems(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504),
    },
    dependencies=[scope("agents:run", any_resource=True)],
)
async def create(request: Request) -> Response:
    """Runs the agent that `model` names.

    A response in the background, and a stream that is stored, are on disk when this answers.
    """
    body = await read_body(request, _BODY)
    require_scope(caller_of(request).scopes, RUN, body.model)
    reject_unsupported(body, "responses")
    reject_impossible(body)
    runtime = runtime_of(request)
    call = _Request(request, body, runtime.agent(body.model))
    parameters = requested_parameters(body, call.agent)
    tools, previous = body.client_tools(), None
    if body.previous_response_id:
        previous = await _previous(request, body.previous_response_id, body.model)
    context, messages = previous.conversation() if previous else ([], [])
    content = read_items(
        await _resolved(request, body), {c.id: c.name for m in messages for c in m.tool_calls}
    )
    now = runtime.clock.now()
    waiting = await find_waiting(runtime.runs, call.viewer, body.model, content.results, now)
    if waiting is not None:
        row, results = waiting
        metadata: Any = screened_answer(call.agent, body.metadata or {})
        instructions = body.instructions and screened_answer(call.agent, body.instructions)
        echo = {**body.echo(), "metadata": metadata, "instructions": instructions}
        record = RequestRecord(echo, one_call=body.parallel_tool_calls is False)
        row, last = await runtime.runner.accept_results(
            call.agent,
            row,
            results,
            choice="none" if body.tool_choice == "none" else tools.choice,
            caller=caller_of(request),
            protocol=record.to_json(),
        )
        return await _answer(call, ResponseId(row.run_id, last))
    new = replace(await _run_request(call, previous, context, messages, content), parameters=parameters)
    require_allowed(call.agent, new)
    key = await idempotency_key(request)
    if body.is_stored or runtime.runner.may_wait(call.agent, new):
        row = await runtime.runner.accept(call.agent, new, caller=caller_of(request), key=key)
        return await _answer(call, ResponseId(row.run_id))
    start = partial(runtime.runner.start, call.agent, new, caller=caller_of(request), key=key)
    return await _unstored(call, start)


async def _resolved(request: Request, body: ConversationBody) -> list[Any]:
    """Returns the input items, with the items of stored responses in place of references."""
    items: list[Any] = []
    read: dict[str, dict[str, JsonObject]] = {}
    referred: set[str] = set()
    for item in body.items():
        if not isinstance(item, ReferenceItem):
            items.append(item)
            continue
        if item.id in referred:  # a short request must not become a huge one
            raise InvalidInput(f"There are two references to the item {item.id!r}.", param="input")
        referred.add(item.id)
        place = item.id.rpartition("_")[0]
        if place not in read:
            read[place] = await _items_by_id(request, place)
        if item.id not in read[place]:
            raise InvalidInput(f"The response {_response_at(place)} has no item {item.id!r}.", param="input")
        items += stored_items([read[place][item.id]])
    return items


async def _items_by_id(request: Request, place: str) -> dict[str, JsonObject]:
    """Returns the items of a stored response. Args: place: what their ids begin with, e.g. `msg_SUFFIX`."""
    response = await _find(request, _response_at(place), "input")
    is_input = place.startswith("in_")
    items = response.items() if is_input else response.current().response()["output"]
    return {one["id"]: one for one in items}


def _response_at(place: str) -> str:
    return f"{RESPONSE_PREFIX}{place.partition('_')[2]}"


async def _run_request(
    call: _Request,
    previous: StoredResponse | None,
    context: list[str],
    before: list[Message],
    content: ItemContent,
) -> RunRequest:
    """Returns the request of a new run, which has the conversation so far as its history or in its memory."""
    body, agent, runs = call.body, call.agent, runtime_of(call.http).runs
    messages = [*before, *content.messages]
    require_results(messages, "input", _NO_CALL, _NO_RESULT)
    conversation = split_conversation(messages)
    has_memory = agent.memory.conversational is not None
    in_session = (
        has_memory
        and not (context or content.system)
        and [message.role for message in content.messages] == ["user"]
        and (previous is None or await _is_continued(runs, previous))
    )
    record = RequestRecord(
        body.echo(),
        instructions=bool(body.instructions),
        system=len(context),
        messages=len(content.messages),
        in_session=in_session,
        one_call=body.parallel_tool_calls is False,
    )
    session = previous.row.session_id if previous and in_session else ids.new_id()
    preface = [body.instructions, *context, *content.system]
    return RunRequest(
        conversation.query.content,
        session,
        attachments=conversation.query.attachments,
        preface=tuple(message for text in preface if text for message in context_message(text)),
        history=None if previous and in_session else conversation.history,
        persist=body.is_stored and has_memory,
        metadata=body.metadata or {},
        caused_by=read_traceparent(call.http.headers.get("traceparent")),
        continuation=conversation.continuation,
        client_tools=body.client_tools(),
        output_schema=body.output_schema(has_own=agent.output_schema is not None),
        protocol=record.to_json(),
    )


async def _is_continued(runs: Runs, previous: StoredResponse) -> bool:
    """Whether the session of a response has its conversation, and nothing else, so that it continues it."""
    return previous.record.in_session and await is_newest(runs, previous)


# -- answers -------------------------------------------------------------------------------------------------


async def _answer(call: _Request, id: ResponseId) -> Response:
    """Answers with a response whose run is accepted."""
    runtime, body = runtime_of(call.http), call.body
    response = await read_response(runtime.runs, id, call.viewer)
    if body.stream:
        stays = bool(body.background) or call.agent.continues_on_disconnect
        return await _stream(call.http, response, call.viewer, stops=not stays)
    if not body.background:
        wait = runtime.runner.wait(response.row, id.after)
        with suppress(ApprovalRequired):  # the response shows what the run waits for
            await (wait if call.agent.continues_on_disconnect else cancel_on_disconnect(call.http, wait))
        response = await read_response(runtime.runs, id, call.viewer)
    return _json(response.current().response())


class _Buffer(EventBuffer):
    """A buffer that closes with the last event of a response."""

    def __init__(self, form: ResponseForm) -> None:
        super().__init__(_NO_LIMIT, close_at_end=True)
        self._form = form

    def send(self, event: Event) -> None:
        super().send(event)
        if self._form.ends(event):
            self.close()


async def _stream(
    request: Request, response: StoredResponse, viewer: Viewer, *, after: int = -1, stops: bool = False
) -> Response:
    """Streams a stored response.

    Args:
        after: the `sequence_number` of the last event that the reader has.
        stops: cancels the run if the reader leaves before the end.
    """
    runs, form, run_id = runtime_of(request).runs, response.form, response.id.run_id
    buffer, encoder = _Buffer(form), ResponseEvents(form, after)
    request.app.state.followers.add(buffer)
    leave = await runs.follow(run_id, viewer, response.id.after, buffer)
    if leave is None:
        buffer.close()

    def on_disconnect() -> None:
        if leave is not None:
            leave()
        if stops and not encoder.has_ended:
            stopping = asyncio.ensure_future(runs.stop(run_id, viewer))
            _stopping.add(stopping)
            stopping.add_done_callback(_stopping.discard)

    return EventStreamResponse(buffer, on_disconnect, encoder=encoder, first=encoder.begin())


#: runs that are being stopped, because their readers have left
_stopping: set[asyncio.Future[bool]] = set()


class _Unstored:
    """The encoder of a response that is not stored: its id is known with its first event."""

    def __init__(self, body: ResponseBody) -> None:
        self._body = body
        self._events: ResponseEvents | None = None

    def __call__(self, event: Event) -> bytes:
        return self.of(event)(event)

    def of(self, event: Event) -> ResponseEvents:
        if self._events is None:
            echo = {
                **self._body.echo(),
                "instructions": self._body.instructions,
                "metadata": self._body.metadata or {},
            }
            form = ResponseForm(ResponseId(event.run_id), echo, False, ids.created_at(event.run_id))
            self._events = ResponseEvents(form)
        return self._events

    def has_output(self) -> bool:
        return self._events is not None and self._events.has_output


async def _unstored(call: _Request, start: Callable[..., Awaitable[RunAnswer]]) -> Response:
    """Answers with a response that is not stored, whose run begins now."""
    clock, encoder, stays = (
        runtime_of(call.http).clock,
        _Unstored(call.body),
        call.agent.continues_on_disconnect,
    )
    if call.body.stream:
        hold = Hold(encoder.has_output, partial(clock.sleep, _MAX_HOLD_SECONDS))
        return RunStreamResponse(start, keep_running=stays, encoder=encoder, hold=hold)
    answer = await (start() if stays else cancel_on_disconnect(call.http, start()))
    ended = Event(answer.run_id, 1, clock.now(), "run.completed", answer.to_json())
    made = encoder.of(ended)
    made.of(ended)
    return _json(made.response())


def _json(body: JsonObject) -> Response:
    return Response(json_bytes(body), media_type="application/json")


@router.post(
    "/v1/responses/compact",
    summary="Compact a conversation",
    openapi_extra=request_body(CompactBody),
    response_model=None,
    responses={
        **answers(CompactionOut),
        **problems(400, 401, 403, 404, 413, 422, 429, 502, 503, 504),
    },
    dependencies=[scope("agents:run", any_resource=True)],
)
async def compact(request: Request) -> Response:
    """Returns a shorter conversation: the user's messages, and a summary as an item for later requests.

    The agent's model for summaries writes it. Nothing is stored.
    """
    body = await read_body(request, _COMPACT)
    require_scope(caller_of(request).scopes, RUN, body.model)
    reject_unsupported(body, "compactions")
    runtime = runtime_of(request)
    agent = runtime.agent(body.model)
    previous = None
    if body.previous_response_id:
        previous = await _previous(request, body.previous_response_id, body.model)
    context, before = previous.conversation() if previous else ([], [])
    content = read_items(await _resolved(request, body), {})
    system = [text for text in (body.instructions, *context, *content.system) if text]
    messages = [*(Message("system", text) for text in system), *before, *content.messages]
    if not messages:
        raise InvalidInput("There is nothing to compact: send input or previous_response_id.", param="input")
    made = await _summarize(agent, tuple(messages))
    name = ids.new_id()
    users = [message for message in made.messages if message.role == "user"]
    summary = compaction_item(f"cmp_{name}", made.text)
    return _json({
        "id": f"{RESPONSE_PREFIX}{name}",
        "object": "response.compaction",
        "created_at": int(runtime.clock.now()),
        "output": [*message_items(name, (), users), summary],
        "usage": usage_json(made.usage.to_json(), {}),
    })  # fmt: skip


class _Summary(NamedTuple):
    """A summary, and the messages that it is made of as the input rules have let them through."""

    text: str
    messages: tuple[Message, ...]
    usage: Usage


async def _summarize(agent: Agent, messages: tuple[Message, ...]) -> _Summary:
    """Returns a summary of messages, written by the agent's model for summaries.

    Raises:
        GuardrailBlocked: an input rule refuses a message.
        UpstreamError: no model answers.
    """
    request = check_request(agent.guardrails, RunRequest("", "", history=messages)).request
    checked = request.history or ()
    prompt = summary_prompt("", "\n".join(map(_line_of, checked)))
    result = await agent.router.complete(CompletionRequest(prompt, role="summary", answers=False))
    text = agent.guardrails.check_output(result.content.strip()).text
    if not text:
        raise ProviderUnavailable("The model answered with an empty summary.", provider=result.provider)
    return _Summary(text, checked, result.usage)


def _line_of(message: Message) -> str:
    calls = " ".join(f"[calls {call.name}({call.arguments})]" for call in message.tool_calls)
    return f"{message.role}: {message.content} {calls}".strip()[:_MAX_SUMMARIZED]


# -- stored responses ----------------------------------------------------------------------------------------


async def _find(request: Request, id: str, param: str = "") -> StoredResponse:
    viewer = viewer_of(request) if not param else Viewer(*principal_of(caller_of(request)))
    return await find_response(runtime_of(request).runs, id, viewer, param)


async def _previous(request: Request, id: str, model: str) -> StoredResponse:
    """Returns the response that a request continues. Raises: InvalidInput: there is none of this agent."""
    found = await _find(request, id, "previous_response_id")
    if found.row.agent != model:
        raise InvalidInput(
            f"The response {id!r} is one of {found.row.agent!r}. Continue it with this model, or send the "
            "conversation as input.",
            param="previous_response_id",
        )
    return found


class _ResponseId(StringConvertor):
    """The id of a response in a path. `compact` is the name of a route."""

    regex = "(?!compact$)[^/]+"


register_url_convertor("response", _ResponseId())


@router.get(
    "/v1/responses/{response_id:response}",
    summary="A stored response",
    response_model=None,
    responses={200: {"model": ResponseOut, "content": event_stream("ResponseEvents")}, **_PROBLEMS},
    dependencies=[scope("runs:read")],
)
async def retrieve(
    response_id: str,
    request: Request,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, le=MAX_SEQ, description="A sequence_number.")] = None,
) -> Response:
    """Returns a response as it is now, or its events: those after `starting_after`, then new ones."""
    response = await _find(request, response_id)
    if stream:
        after = -1 if starting_after is None else starting_after
        return await _stream(request, response, viewer_of(request), after=after)
    if starting_after is not None:
        raise InvalidInput("starting_after needs stream=true.", param="starting_after")
    return _json(response.current().response())


@router.post(
    "/v1/responses/{response_id}/cancel",
    summary="Cancel a response in the background",
    response_model=None,
    responses={**answers(ResponseOut), **_PROBLEMS},
    dependencies=[audited("run.cancel", "response_id"), scope("runs:write")],
)
async def cancel(response_id: str, request: Request) -> Response:
    """Ends the run of a response, and answers when it has ended. An ended response stays as it is."""
    response = await _find(request, response_id)
    if not response.form.background:
        raise InvalidInput(
            "Only a response with background: true can be cancelled. Close the connection of any other."
        )
    if not response.current().has_ended:
        await runtime_of(request).runs.cancel(response.id.run_id, viewer_of(request))
        response = await _find(request, response_id)
    return _json(response.current().response())


@router.delete(
    "/v1/responses/{response_id:response}",
    summary="Delete a response",
    response_model=DeletedOut,
    responses=_PROBLEMS,
    dependencies=[audited("run.delete", "response_id"), scope("runs:write")],
)
async def delete(response_id: str, request: Request) -> JsonObject:
    """Deletes the run of a response with its events, an active one after its end."""
    response = await _find(request, response_id)
    await runtime_of(request).runs.delete(response.id.run_id, viewer_of(request))
    return {"id": response_id, "object": "response", "deleted": True}


@router.get(
    "/v1/responses/{response_id}/input_items",
    summary="What the request of a response has sent",
    response_model=None,
    responses=answers(ItemsOut) | _PROBLEMS,
    dependencies=[scope("runs:read")],
)
async def input_items(
    response_id: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str = "",
) -> JsonObject:
    """Lists the input items of a request, newest first, without those of earlier responses."""
    items = (await _find(request, response_id)).items()
    items = items if order == "asc" else items[::-1]
    if after:
        at = next((n for n, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise InvalidCursor(f"after: the response has no input item {after[:64]!r}.", param="after")
        items = items[at + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
