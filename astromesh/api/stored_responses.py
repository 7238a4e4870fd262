"""Stored responses: a response is a durable run, or the part of one that a request has continued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from astromesh.access.scopes import Viewer
from astromesh.api.chat_requests import add_call, context_text
from astromesh.api.response_bodies import message_items
from astromesh.api.response_events import ResponseEvents, ResponseForm, ResponseId
from astromesh.durable.base import JournalStep, RunQuery, RunRow
from astromesh.durable.serialization import message_of
from astromesh.errors import InvalidInput, RunNotFound
from astromesh.graph.call_record import messages_with_contents, with_contents
from astromesh.runtime.client_tools import ClientCall, results_of
from astromesh.runtime.records import request_of
from astromesh.runtime.runs import Runs
from astromesh.telemetry import ids
from astromesh.types import Event, JsonObject, Message, ToolCall

#: the key under which a run has what its response needs of the request
PROTOCOL = "responses"


class RequestRecord(NamedTuple):
    """What is stored of a request beside its messages.

    Args:
        echo: its parameters, as the response shows them.
        instructions: whether the first context message is the instructions.
        system: how many context messages come from earlier responses.
        messages: how many messages are its own, at the end of the conversation.
        in_session: whether the memory of the session has the whole conversation.
        one_call: whether one of several calls is handed out.
        after: of a request that has continued a run: the event after which it did.
    """

    echo: JsonObject
    instructions: bool = False
    system: int = 0
    messages: int = 0
    in_session: bool = False
    one_call: bool = False
    after: int = 0

    def to_json(self) -> JsonObject:
        return {PROTOCOL: self._asdict()}


class _Recorded(NamedTuple):
    """The messages of a run's request as the input rules have let them through."""

    query: Message
    history: tuple[Message, ...]
    preface: tuple[Message, ...]
    continuation: tuple[Message, ...]


class StoredResponse(NamedTuple):
    """A response with the record of its run."""

    id: ResponseId
    row: RunRow
    record: RequestRecord
    steps: tuple[JournalStep, ...]
    events: list[Event]
    #: of the attachments of the run: base64 text by hash
    contents: Mapping[str, str]

    @property
    def form(self) -> ResponseForm:
        before, created_at = self._start()
        return ResponseForm(
            self.id,
            {**self.record.echo, **self._checked_echo()},
            bool(self.record.echo["background"]),
            created_at,
            before,
            self.record.one_call,
        )

    def current(self) -> ResponseEvents:
        """Returns the encoder after all events so far."""
        form = self.form
        made = ResponseEvents(form)
        for event in self._own_events(form):
            made.of(event)
        return made

    @property
    def is_last(self) -> bool:
        """Whether the response is the last one of its run."""
        return self.events[-1:] == list(self._own_events(self.form))[-1:]

    def conversation(self) -> tuple[list[str], list[Message]]:
        """Returns the system texts and the messages up to the end of this response.

        Raises:
            InvalidInput: the response has not ended, or its record is no longer stored.
        """
        if not self.current().has_ended:
            raise InvalidInput(
                f"The response {str(self.id)!r} has not ended. Continue it when it has.",
                param="previous_response_id",
            )
        request, form = self._request(), self.form
        messages = [*request.history, request.query, *request.continuation]
        results = results_of(self.id.run_id, self.steps)
        for event in self._events_to_the_end(form):
            if event.type == "run.completed":
                messages.append(Message("assistant", event.data["response"]))
            calls = form.calls(event)
            for call in calls:
                add_call(messages, ToolCall(*call))
            if event.seq <= self.id.after:
                messages += _results(calls, results)
        return [context_text(one) for one in request.preface[self.record.instructions :]], messages

    def items(self) -> list[JsonObject]:
        """Returns the items that the request has sent."""
        request = self._request()
        if not self.id.after:
            own_context = request.preface[self.record.instructions + self.record.system :]
            system = [context_text(one) for one in own_context]
            own = [*request.history, request.query, *request.continuation][-self.record.messages :]
            return message_items(self.id.suffix, system, own)
        pause = next(event for event in self.events if event.seq == self.id.after)
        results = results_of(self.id.run_id, self.steps)
        return message_items(self.id.suffix, (), _results(self.form.calls(pause), results))

    def _own_events(self, form: ResponseForm) -> Iterator[Event]:
        for event in self.events:
            if event.seq > self.id.after:
                yield event
                if form.ends(event):
                    return

    def _events_to_the_end(self, form: ResponseForm) -> Iterator[Event]:
        yield from (event for event in self.events if event.seq <= self.id.after)
        yield from self._own_events(form)

    def _start(self) -> tuple[Mapping[str, Any], float]:
        """Returns what the run had used when the response began, and when that was."""
        if not self.id.after:
            return {}, ids.created_at(self.id.run_id)
        pause = next(event for event in self.events if event.seq == self.id.after)
        output = _continued(self.steps, self.id.after) or {}
        return pause.data["usage"], output["decided_at"]

    def _checked_echo(self) -> JsonObject:
        """Returns the parameters that the input rules have checked."""
        if self.id.after:
            return {}
        preface = self._request().preface
        instructions = context_text(preface[0]) if self.record.instructions and preface else None
        return {"instructions": instructions, "metadata": dict(self.row.metadata)}

    def _request(self) -> _Recorded:
        request, admitted = request_of(self.row.request), _output(self.steps, "input")
        history, preface, continuation = request.history, request.preface, request.continuation
        if admitted is not None:
            history = _messages(admitted["history"])
            preface = _messages(admitted["preface"]) or ()
            continuation = _messages(admitted["continuation"]) or ()
        if history is None:
            history = _messages((_output(self.steps, "memory") or {}).get("history"))
        history = messages_with_contents(history or (), self.contents)
        attached = with_contents(request.attachments, self.contents)
        query = Message("user", request.query, attachments=attached)
        return _Recorded(query, history, preface, continuation)


async def find_response(runs: Runs, text: str, viewer: Viewer, param: str = "") -> StoredResponse:
    """Returns a stored response.

    Args:
        param: the parameter of the request that names it.

    Raises:
        RunNotFound: there is none, it was not to be stored, or this viewer may not see it.
        InvalidInput: the same, of a parameter.
    """
    named = ResponseId.read(text)
    found = await _find(runs, named, viewer) if named is not None else None
    if found is not None:
        return found
    missing = f"There is no response {text!r}, or it was not stored."
    raise InvalidInput(missing, param=param) if param else RunNotFound(missing)


async def read_response(runs: Runs, id: ResponseId, viewer: Viewer) -> StoredResponse:
    """Returns a response that the caller has just asked for, also one that is not to be stored."""
    found = await _read(runs, id, viewer)
    if found is None:
        raise RunNotFound(f"There is no response {str(id)!r}.")
    return found


async def _find(runs: Runs, id: ResponseId, viewer: Viewer) -> StoredResponse | None:
    found = await _read(runs, id, viewer)
    return found if found is not None and found.record.echo["store"] else None


async def _read(runs: Runs, id: ResponseId, viewer: Viewer) -> StoredResponse | None:
    try:
        row = await runs.row(id.run_id, viewer)
    except RunNotFound:
        return None
    data = row.request.get("protocol", {}).get(PROTOCOL)
    if data is None or not row.durable:
        return None
    steps, events = await runs.record(id.run_id)
    if id.after:
        data = ((_continued(steps, id.after) or {}).get("protocol") or {}).get(PROTOCOL)
    if data is None:
        return None
    return StoredResponse(id, row, RequestRecord(**data), steps, events, await runs.attachments(id.run_id))


async def is_newest(runs: Runs, response: StoredResponse) -> bool:
    """Whether nothing in its session follows a response, so that the next one continues the session."""
    row = response.row
    page = await runs.list(RunQuery(row.tenant, row.owner, row.agent, row.session_id, limit=1))
    return [run["run_id"] for run in page.runs] == [row.run_id] and response.is_last


def _continued(steps: Sequence[JournalStep], after: int) -> JsonObject | None:
    """Returns the answered question with which a request has continued a run after an event."""
    outputs = (step.output or {} for step in steps if step.kind == "wait" and step.state == "done")
    return next((one for one in outputs if (one.get("protocol") or {}).get("after") == after), None)


def _output(steps: Sequence[JournalStep], path: str) -> JsonObject | None:
    return next((step.output for step in steps if step.path == path and step.kind == "value"), None)


def _messages(data: Sequence[JsonObject] | None) -> tuple[Message, ...] | None:
    return None if data is None else tuple(map(message_of, data))


def _results(calls: Sequence[ClientCall], results: Mapping[str, Any]) -> list[Message]:
    return [
        Message("tool", _text(results[call.id]), tool_call_id=call.id, name=call.name)
        for call in calls
        if call.id in results
    ]


def _text(result: Any) -> str:
    return result if isinstance(result, str) else orjson.dumps(result).decode()
