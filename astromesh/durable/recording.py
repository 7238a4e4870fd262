"""What a recorded step shows: its number in the run, its time, its input; and how an ended run is redacted.

A step is numbered when it ends, over all branches and nested runs: whatever it has used has a smaller
number, and the calls in a node come before the node. The input of a model call is its request without the
messages that it shares with the call before it on the same path, so that a long conversation is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter, time
from typing import Any, NamedTuple, Protocol

import orjson
from msgspec import Struct
from msgspec.structs import replace

from astromesh.durable.base import NO_CONTENTS, JournalStep
from astromesh.graph import call_record
from astromesh.guardrails.base import Place
from astromesh.telemetry.events import WAITING, ms_since
from astromesh.types import CompletionRequest, Event, JsonObject, Message, ToolCall

#: the step kinds that call something
_CALL_KINDS = ("model", "tool", "node")


def has_said(step: JournalStep) -> bool:
    """Whether output rules apply to a step: to calls, to questions, and to what a model has asked a run."""
    is_asked = step.kind == "value" and "/run:" in step.path and "out" in (step.about or {})
    return step.kind in _CALL_KINDS or step.kind == "wait" or is_asked


def is_redacted_at_end(step: JournalStep) -> bool:
    """Whether the end of its run redacts a step. A question may be open, any other step has ended."""
    return has_said(step) and (step.state == "done" or step.kind == "wait")


class Redactor(Protocol):
    """Applies the output rules of an agent to JSON data."""

    def __call__(self, value: Any, place: Place) -> Any: ...


class StepStart(NamedTuple):
    """The beginning of a step: seconds since the epoch, and of a clock that only goes on."""

    started_at: float
    started: float

    @classmethod
    def now(cls) -> StepStart:
        return cls(time(), perf_counter())

    def of(self, step: JournalStep, about: JsonObject) -> JournalStep:
        """Returns a step that has ended, with its time."""
        # half as long as `_replace` takes
        return JournalStep(*step[:7], self.started_at, ms_since(self.started), about)


# -- requests of models --------------------------------------------------------------------------------------


class RequestEncoder:
    """Writes the requests of a run as input of its steps: each as what differs from the one before."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, CompletionRequest]] = {}

    def encode(self, path: str, n: int, request: CompletionRequest, redact: Redactor | None) -> JsonObject:
        """Returns `{"messages", "after"?, "same"?, "rest"?}`.

        Args:
            path, n: of the step.
        """
        before, self._last[path] = self._last.get(path), (n, request)
        same, encoded = 0, JsonObject()
        if before is not None:
            same = _common(before[1].messages, request.messages)
            encoded |= {"after": before[0], "same": same}
        encoded["messages"] = [message_json(one, redact) for one in request.messages[same:]]
        if before is None or _without_messages(before[1]) != _without_messages(request):
            encoded["rest"] = call_record.request_to_json(_without_messages(request))
        return encoded

    def note(self, path: str, n: int, request: CompletionRequest) -> None:
        """Notes the request of a step that the record answers."""
        self._last[path] = (n, request)


def _common(earlier: tuple[Message, ...], later: tuple[Message, ...]) -> int:
    count = 0
    for one, other in zip(earlier, later, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count


def _without_messages(request: CompletionRequest) -> CompletionRequest:
    return replace(request, messages=())


def message_json(message: Message, redact: Redactor | None) -> JsonObject:
    """Returns a message as steps show it: without what only its provider may read, under the rules.

    Attachments have the hash of their content in place of it.
    """
    if message.tool_calls:
        message = replace(message, tool_calls=tuple(replace(call, kept="") for call in message.tool_calls))
    data: JsonObject = without_contents(call_record.request_to_json(message))
    if redact is not None:
        place: Place = "tool_result" if message.role == "tool" else "output"
        if message.content:
            data["content"] = redact(message.content, place)
        for call in data.get("tool_calls", ()):
            call["arguments"] = redacted_arguments(call.get("arguments", "{}"), redact)
    return data


def without_contents(message: JsonObject) -> JsonObject:
    """Returns a message without the contents of its attachments, which earlier versions recorded."""
    attached = message.get("attachments")
    if not attached:
        return message
    named = [{**one, "data": ""} if one.get("sha256") else one for one in attached]
    dropped = [{key: value for key, value in one.items() if (key, value) != ("data", "")} for one in named]
    return {**message, "attachments": dropped}


def requests_of(steps: Iterable[JournalStep]) -> dict[tuple[str, int], JsonObject]:
    """Returns the whole requests of model calls by path and number: messages and other keys.

    Args:
        steps: in the order of their paths and numbers, as the store returns them.
    """
    found: dict[tuple[str, int], JsonObject] = {}
    for step in steps:
        encoded = (step.about or {}).get("in") if step.kind == "model" else None
        if encoded is None:
            continue
        before = found.get((step.path, encoded["after"]), {}) if "after" in encoded else {}
        rest = encoded.get("rest", {key: value for key, value in before.items() if key != "messages"})
        shared = before.get("messages", [])[: encoded.get("same", 0)]
        own = map(without_contents, encoded["messages"])
        found[step.path, step.n] = {**rest, "messages": [*shared, *own]}
    return found


def redacted_arguments(arguments: str, redact: Redactor) -> str:
    """Returns the arguments of a tool call under the rules, as JSON text."""
    data = call_record.arguments_of(ToolCall("", "", arguments))
    checked = redact(data, "tool_argument")
    if checked == data:
        return arguments
    return checked if isinstance(checked, str) else orjson.dumps(checked).decode()


# -- the record of an ended run ------------------------------------------------------------------------------


def redacted(step: JournalStep, redact: Redactor) -> JournalStep:
    """Returns a finished step as it is stored once its run has ended.

    Its texts are those that the rules leave, so its request is no longer compared: `request_hash` is empty.
    """
    output = step.output
    if output is None:
        return step
    if step.kind == "model" and "result" in output:
        output = {**output, "result": _redacted_answer(output["result"], redact)}
    elif step.kind == "tool":
        output = {key: redact(value, "tool_result") if key in ("content", "value") else value
                  for key, value in output.items()}  # fmt: skip
    elif step.kind == "node":
        output = _redacted_node(output, redact)
    elif step.kind == "wait":
        output = redacted_question(output, redact)
    elif step.kind == "value":
        output = (step.about or {})["out"]
    return step._replace(output=output, request_hash="")


#: the texts of a question to a person, and of the decision
_QUESTION: Mapping[str, Place] = {
    "arguments": "tool_argument",
    "asked_arguments": "tool_argument",
    "question": "output",
    "answer": "tool_result",
    "note": "tool_result",
}


def redacted_question(question: JsonObject, redact: Redactor) -> JsonObject:
    """Returns a question to a person, or a decision about it, under the rules of the agent that asks."""
    return {key: redact(value, _QUESTION[key]) if key in _QUESTION else value
            for key, value in question.items()}  # fmt: skip


def redacted_events(events: Iterable[Event], steps: Iterable[JournalStep]) -> Iterator[Event]:
    """Yields the events of an ended run that show questions, with the texts of their redacted steps.

    Args:
        steps: of the run, redacted.
    """
    questions = {(step.path, step.n): step.output or {} for step in steps if step.kind == "wait"}
    for event in events:
        if event.type == WAITING:
            first = {key: value for key, value in event.data["approval"].items() if key != "others"}
            approvals = [
                _as_asked(one, questions) for one in (first, *event.data["approval"].get("others", ()))
            ]
            approval = {**approvals[0], "others": approvals[1:]} if approvals[1:] else approvals[0]
            if approval != event.data["approval"]:
                yield Event(
                    event.run_id, event.seq, event.ts, event.type, {**event.data, "approval": approval}
                )


def _as_asked(approval: JsonObject, questions: Mapping[tuple[str, int], JsonObject]) -> JsonObject:
    """Returns a question of an event with the texts of its step."""
    stored = questions.get((approval["path"], approval["n"]))
    if stored is None:
        return approval
    arguments = stored.get("asked_arguments", stored.get("arguments"))
    return {**approval, "arguments": arguments, "question": stored.get("question", "")}


def _redacted_answer(result: JsonObject, redact: Redactor) -> JsonObject:
    calls = [
        {**call, "arguments": redacted_arguments(call.get("arguments", "{}"), redact), "kept": ""}
        for call in result.get("tool_calls", ())
    ]
    return {**result, "content": redact(result["content"], "output"), "tool_calls": calls}


#: texts of a node's record that are not said by anybody: names, ids and places
_NAMES = frozenset(
    {"id", "tool_call_id", "call_id", "name", "node_name", "role", "tool", "transition_reason"}
)


#: what a node has made: values of any form, of which no key and no text is the record's own
_DATA = frozenset({"output", "raw_output", "context"})


def is_sealed(key: str, holder: Mapping[str, Any]) -> bool:
    """Whether a key of an object holds what only the provider of a model may read: that of a tool call."""
    return key == "kept" and "name" in holder and "arguments" in holder


def _redacted_data(value: Any, redact: Redactor) -> Any:
    if isinstance(value, list):
        return [_redacted_data(one, redact) for one in value]
    if isinstance(value, dict):
        return {
            redact(key, "output"): "" if is_sealed(key, value) else _redacted_data(inner, redact)
            for key, inner in value.items()
        }
    return redact(value, "output")


def _redacted_texts(value: Any, redact: Redactor, key: str = "") -> Any:
    """Returns a part of the record of a node under the rules. Args: key: under which it stands."""
    if isinstance(value, str):
        if key in _NAMES:
            return value
        return redacted_arguments(value, redact) if key == "arguments" else redact(value, "output")
    if isinstance(value, list):
        return [_redacted_texts(one, redact) for one in value]
    if isinstance(value, dict):
        return {key: _redacted_field(key, value, redact) for key in value}
    return value


def _redacted_field(key: str, holder: JsonObject, redact: Redactor) -> Any:
    if key in _DATA:
        return _redacted_data(holder[key], redact)
    return "" if is_sealed(key, holder) else _redacted_texts(holder[key], redact, key)


def _redacted_node(record: JsonObject, redact: Redactor) -> JsonObject:
    """Returns the record of a node with the texts of its result, its writes and its calls redacted.

    Names, paths and numbers of the record itself stay: the run follows them.
    """
    record = orjson.loads(orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS))  # parts may be encoded
    for key in ("result", "writes", "text"):
        if key in record:
            record[key] = _redacted_texts(record[key], redact)
    for call in record.get("calls", ()):
        call.pop("request", None)
        if "arguments" in call:
            call["arguments"] = redacted_arguments(call["arguments"], redact)
    return record


class Recording(Struct, frozen=True):
    """A plain run that has ended, as it is stored beside its row.

    Args:
        steps: empty if they were too long.
        request, manifest, caller: as in a `RunRow`; the request has `accepted_at`.
        attachments: contents that the request refers to, by hash.
    """

    steps: Sequence[JournalStep]
    request: JsonObject
    manifest: JsonObject
    caller: JsonObject
    attachments: Mapping[str, bytes] = NO_CONTENTS


class MemorySteps:
    """The steps of a plain run in memory until it has ended: a `StepWriter`.

    Nothing is answered from them, and no process continues the run. They are written with the row of the run,
    by `astromesh.durable.run_registry.RunArchive`.

    Args:
        max_bytes: of all steps; beyond it none are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._steps: dict[tuple[str, int], JournalStep] = {}
        self._room = max_bytes

    @property
    def steps(self) -> tuple[JournalStep, ...]:
        return tuple(self._steps.values()) if self._room >= 0 else ()

    def step(self, step: JournalStep) -> None:
        if step.state != "done" or self._room < 0:
            return
        known = (step.path, step.n) in self._steps  # it is redacted at the end
        self._room -= 0 if known else _size(step)
        if self._room < 0:
            self._steps.clear()
        else:
            self._steps[step.path, step.n] = step

    async def flush(self) -> None:
        """Has nothing to write."""


def _size(step: JournalStep) -> int:
    return len(orjson.dumps([step.output, step.about], option=orjson.OPT_NON_STR_KEYS))
