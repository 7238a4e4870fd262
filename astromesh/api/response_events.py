"""A run's events as the events and the object of a response (Open Responses, 2026-04-24).

The encoding depends on the events alone, so that any process makes the same events with the same
`sequence_number` again, and a reader continues after any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from astromesh.api.errors import public_failure
from astromesh.api.event_streams import json_bytes
from astromesh.graph.audibility import AnswerText
from astromesh.runtime.client_tools import ClientCall, open_calls
from astromesh.telemetry.events import TERMINAL_EVENTS
from astromesh.types import Event, JsonObject

RESPONSE_PREFIX, RUN_PREFIX = "resp_", "run_"
#: the characters of a run's id behind its prefix; in the id of a later response of a run, a number follows
_RUN_LENGTH = 26
DONE = b"data: [DONE]\n\n"
#: of an answer that is not complete
_NOTHING: Mapping[str, Any] = {}
_LENGTH, _FILTER = "max_output_tokens", "content_filter"


class ResponseId(NamedTuple):
    """The id of a response: of a run, and of the event after which the response begins.

    A run has one response for each request that continues it with results of the client's tools.
    """

    run_id: str
    after: int = 0

    def __str__(self) -> str:
        return f"{RESPONSE_PREFIX}{self.suffix}"

    @property
    def suffix(self) -> str:
        """What the ids of the response and of its items have in common."""
        return self.run_id.removeprefix(RUN_PREFIX) + (f"{self.after:x}" if self.after else "")

    @classmethod
    def read(cls, text: str) -> ResponseId | None:
        """Returns None for an id of another service."""
        suffix = text.removeprefix(RESPONSE_PREFIX)
        run, number = suffix[:_RUN_LENGTH], suffix[_RUN_LENGTH:]
        if suffix == text or len(run) < _RUN_LENGTH or not run.isalnum() or not run.isascii():
            return None
        try:
            return cls(f"{RUN_PREFIX}{run}", int(number, 16) if number else 0)
        except ValueError:
            return None


class ResponseForm(NamedTuple):
    """What a response has of its request.

    Args:
        echo: the parameters of the request as the response shows them.
        before: what earlier responses of the run have used.
        created_at: in seconds since the epoch.
    """

    id: ResponseId
    echo: Mapping[str, Any]
    background: bool
    created_at: float
    before: Mapping[str, Any] = {}
    one_call: bool = False

    def calls(self, event: Event) -> list[ClientCall]:
        """Returns the calls with which an event ends the response."""
        found = open_calls(event.data["approval"]) if event.type == "run.waiting" else []
        return found[:1] if self.one_call else found

    def ends(self, event: Event) -> bool:
        """Whether the response has no event of the run after this one."""
        return event.type in TERMINAL_EVENTS or bool(self.calls(event))


class ResponseEvents:
    """Encodes the events of a run in order.

    Args:
        after: the `sequence_number` of the last event that the reader has; -1: none.

    Attributes:
        has_output: whether there is an event that a client shows: text, a call, an end without an error.
        has_ended: whether the last event is made.
    """

    def __init__(self, form: ResponseForm, after: int = -1) -> None:
        self._form, self._after = form, after
        self._number = 0
        self._text = AnswerText()
        self._status = "queued" if form.background else "in_progress"
        self._output: list[JsonObject] = []
        self._message: _Message | None = None
        self._ended_at: float | None = None
        self._error: JsonObject | None = None
        self._incomplete = ""
        self._usage: JsonObject | None = None
        self.has_output = self.has_ended = False

    def __call__(self, event: Event) -> bytes:
        """Returns the server-sent events of an event of the run, those that the reader has left out."""
        made = self.of(event)
        unread = (one for one in made if one["sequence_number"] > self._after)
        return b"".join(map(_sse, unread)) + (DONE if made and self.has_ended else b"")

    def begin(self) -> bytes:
        """Returns what a reader gets before the first event of the run."""
        return b"".join(_sse(one) for one in self._begin() if one["sequence_number"] > self._after)

    def of(self, event: Event) -> list[JsonObject]:
        """Returns the events of the response that an event of the run makes."""
        if self.has_ended:
            return []
        start_events = [*self._begin(), *self._started()]
        make = getattr(self, "_" + event.type.replace(".", "_"), None)
        texts = self._text.of(event)
        return [*start_events, *self._texts(event, texts), *(make(event) if make else ())]

    def response(self) -> JsonObject:
        """Returns the response as it is after the events so far."""
        return {
            "id": str(self._form.id),
            "object": "response",
            "created_at": int(self._form.created_at),
            "completed_at": int(self._ended_at) if self._ended_at and self._status == "completed" else None,
            "status": self._status,
            "incomplete_details": {"reason": self._incomplete} if self._incomplete else None,
            "error": self._error,
            **self._form.echo,
            "output": list(self._output),
            "usage": self._usage,
        }

    # -- the beginning -------------------------------------------------------------------------------------

    def _begin(self) -> Iterator[JsonObject]:
        if self._number == 0:
            yield self._event("response.created", response=self.response())
            if self._form.background:
                yield self._event("response.queued", response=self.response())

    def _started(self) -> Iterator[JsonObject]:
        if self._number == 1 + self._form.background:
            self._status = "in_progress"
            yield self._event("response.in_progress", response=self.response())

    # -- text ----------------------------------------------------------------------------------------------

    def _texts(self, event: Event, texts: Iterable[str]) -> Iterator[JsonObject]:
        for text in texts:
            unsent = text
            if self._message is not None and self._message.void:
                unsent = self._message.unsent(text)
                if self._message.differs:
                    yield from self._replace_message()
            if unsent:
                yield from self._delta(unsent)

    def _replace_message(self) -> Iterator[JsonObject]:
        """Ends a message whose step says something else after a crash. The response keeps what is valid."""
        message = self._message
        assert message is not None
        valid = message.valid()
        yield from self._close("incomplete")
        content = [_output_text(valid)] if valid else []
        self._output[message.index] = message.item("incomplete", content)

    def _delta(self, text: str) -> Iterator[JsonObject]:
        self.has_output = True
        if self._message is None:
            self._message = _Message(f"msg_{self._form.id.suffix}_{len(self._output)}", len(self._output))
            self._output.append(self._message.item("in_progress", []))
            yield self._event("response.output_item.added", **self._at(), item=dict(self._output[-1]))
            part = _output_text("")
            yield self._event("response.content_part.added", **self._in_text(), part=part)
        self._message.parts.append(text)
        yield self._event("response.output_text.delta", **self._in_text(), delta=text, logprobs=[])

    def _close(self, status: str, completed: Mapping[str, Any] = _NOTHING) -> Iterator[JsonObject]:
        """Ends the message, if there is one. Args: completed: what the answer says, with its citations."""
        message = self._message
        if message is None:
            return
        text = message.text()
        annotations = url_citations(text, completed)
        for place, one in enumerate(annotations):
            where = {**self._in_text(), "annotation_index": place}
            yield self._event("response.output_text.annotation.added", **where, annotation=one)
        yield self._event("response.output_text.done", **self._in_text(), text=text, logprobs=[])
        part = {**_output_text(text), "annotations": annotations}
        yield self._event("response.content_part.done", **self._in_text(), part=part)
        self._output[message.index] = message.item(status, [part])
        yield self._event("response.output_item.done", **self._at(), item=self._output[message.index])
        self._message = None

    def _at(self) -> JsonObject:
        return {"output_index": len(self._output) - 1}

    def _in_text(self) -> JsonObject:
        assert self._message is not None
        return {"item_id": self._message.id, "output_index": self._message.index, "content_index": 0}

    def _model_started(self, event: Event) -> Iterator[JsonObject]:
        if self._message is not None:
            self._message.begin_step()
        return iter(())

    def _model_restarted(self, event: Event) -> Iterator[JsonObject]:
        """The step starts again after a crash: the text that a reader has is not sent twice."""
        if self._message is not None and self._text.is_sent(event.data["step"]):
            self._message.restart()
        return iter(())

    # -- the end -------------------------------------------------------------------------------------------

    def _run_completed(self, event: Event) -> Iterator[JsonObject]:
        metadata = event.data["metadata"]
        report = metadata.get("reasoning") or {}
        if summary := report.get("reasoning_summary"):
            yield from self._reasoning(summary)
        yield from self._texts(event, self._text.rest())
        if self._message is not None and self._message.void:  # the repetition is shorter
            again = self._message.again
            yield from self._replace_message()
            yield from self._delta(again)
        if self._message is None:
            yield from self._delta(event.data["response"])
        self._incomplete = _incomplete_reason(metadata)
        status = "incomplete" if self._incomplete else "completed"
        yield from self._close(status, event.data)
        yield self._end(event, status, metadata["usage"])

    def _run_failed(self, event: Event) -> Iterator[JsonObject]:
        failure = public_failure(event.data)
        self._error = {"code": failure["code"], "message": failure["detail"]}
        yield from self._close("incomplete")
        yield self._end(event, "failed", event.data.get("usage"))

    def _run_cancelled(self, event: Event) -> Iterator[JsonObject]:
        yield from self._close("incomplete")
        yield self._end(event, "cancelled", event.data.get("usage"))

    def _run_waiting(self, event: Event) -> Iterator[JsonObject]:
        calls = self._form.calls(event)
        if not calls:  # the run waits for a person, and the response with it
            return
        self._text.discard()
        yield from self._close("completed")
        for call in calls:
            yield from self._call(call)
        yield self._end(event, "completed", event.data["usage"])

    def _reasoning(self, summary: str) -> Iterator[JsonObject]:
        """Shows what the reasoning controller tells of its work. Hidden reasoning is in no event."""
        item = {"type": "reasoning", "id": f"rs_{self._form.id.suffix}_{len(self._output)}", "summary": []}
        self._output.append(item)
        part = _summary_text(summary)
        where = {"item_id": item["id"], **self._at(), "summary_index": 0}
        yield self._event("response.output_item.added", **self._at(), item=item)
        yield self._event("response.reasoning_summary_part.added", **where, part=_summary_text(""))
        yield self._event("response.reasoning_summary_text.delta", **where, delta=summary)
        yield self._event("response.reasoning_summary_text.done", **where, text=summary)
        yield self._event("response.reasoning_summary_part.done", **where, part=part)
        self._output[-1] = done = {**item, "summary": [part]}
        yield self._event("response.output_item.done", **self._at(), item=done)

    def _call(self, call: ClientCall) -> Iterator[JsonObject]:
        item = {
            "type": "function_call",
            "id": f"fc_{self._form.id.suffix}_{len(self._output)}",
            "call_id": call.id,
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        self._output.append(item)
        where = {"item_id": item["id"], **self._at()}
        yield self._event("response.output_item.added", **self._at(), item=item)
        yield self._event("response.function_call_arguments.delta", **where, delta=call.arguments)
        yield self._event(
            "response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments
        )
        self._output[-1] = done = {**item, "arguments": call.arguments, "status": "completed"}
        yield self._event("response.output_item.done", **self._at(), item=done)

    def _end(self, event: Event, status: str, usage: Mapping[str, Any] | None) -> JsonObject:
        self.has_ended = True
        self.has_output = self.has_output or status not in ("failed", "cancelled")
        self._status, self._ended_at = status, event.ts
        self._usage = usage_json(usage, self._form.before) if usage else None
        # there is no event of its own for a response that was cancelled
        kind = "incomplete" if status == "cancelled" else status
        return self._event(f"response.{kind}", response=self.response())

    def _event(self, type: str, **data: Any) -> JsonObject:
        number, self._number = self._number, self._number + 1
        return {"type": type, "sequence_number": number, **data}


class _Message:
    """The message of a response while its text arrives.

    Attributes:
        void: the text of a step that has started again after a crash, until its repetition has the length of
            what was sent.
        again: the repetition so far.
        differs: the repetition is another text.
    """

    def __init__(self, id: str, index: int) -> None:
        self.id, self.index = id, index
        self.parts: list[str] = []
        self.void, self.differs, self.again = "", False, ""
        self._earlier = 0

    def text(self) -> str:
        return "".join(self.parts)

    def item(self, status: str, content: list[JsonObject]) -> JsonObject:
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}

    def begin_step(self) -> None:
        self._earlier = len(self.parts)

    def restart(self) -> None:
        self.void, self.again = "".join(self.parts[self._earlier :]), ""

    def valid(self) -> str:
        """Returns the text of the steps before the one that differs."""
        return "".join(self.parts[: self._earlier])

    def unsent(self, delta: str) -> str:
        """Returns what a reader does not have yet of the repeated text, all of it if it is another one."""
        self.again += delta
        again, sent = self.again, self.void
        if again.startswith(sent):
            self.void = ""
            return again[len(sent) :]
        if not sent.startswith(again):
            self.void, self.differs = "", True
            return again
        return ""


def _summary_text(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}


def _output_text(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def url_citations(text: str, completed: Mapping[str, Any]) -> list[JsonObject]:
    """Returns the citations of an answer as annotations of the text of its message, in order of the text."""
    before = max(text.rfind(completed["response"]), 0) if completed.get("citations") else 0
    found = [
        {
            "type": "url_citation", "url": one["url"], "title": one["title"] or one["document"],
            "start_index": before + start, "end_index": before + end,
        }
        for one in completed.get("citations", ())
        for start, end in one["spans"]
        if before + end <= len(text)
    ]  # fmt: skip
    return sorted(found, key=lambda one: one["start_index"])


def _incomplete_reason(metadata: Mapping[str, Any]) -> str:
    """Returns why an answer is not whole; empty: it is."""
    actions = {one["action"] for one in metadata["guardrails"] if one["stage"] == "output"}
    if "block" in actions or metadata.get("finish_reason") == "content_filter":
        return _FILTER
    return _LENGTH if "truncate" in actions or metadata.get("finish_reason") == "length" else ""


def usage_json(usage: Mapping[str, Any], before: Mapping[str, Any]) -> JsonObject:
    """Returns what one response has used of what its run has."""

    def used(key: str) -> int:
        return int(usage.get(key, 0) - before.get(key, 0))

    inputs, outputs = used("input_tokens"), used("output_tokens")
    return {
        "input_tokens": inputs,
        "input_tokens_details": {"cached_tokens": used("cached_tokens")},
        "output_tokens": outputs,
        "output_tokens_details": {"reasoning_tokens": used("reasoning_tokens")},
        "total_tokens": inputs + outputs,
    }


def _sse(event: JsonObject) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json_bytes(event))
