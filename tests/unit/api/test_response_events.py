"""The events of a response where a crash has interrupted the model: no text twice, none lost."""

from __future__ import annotations

from typing import Any

from astromesh.api.response_events import ResponseEvents, ResponseForm, ResponseId
from astromesh.types import Event

RUN = "run_01M8GZ9YAG90DA6KWE7ES5EDXM"
USAGE = {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0, "cost_usd": 0.0}


def encoded(*steps: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    made = ResponseEvents(ResponseForm(ResponseId(RUN), {}, False, 1.0))
    events = [Event(RUN, n, float(n), kind, data) for n, (kind, data) in enumerate(steps, 1)]
    return [one for event in events for one in made.of(event)]


def started(step: int = 1) -> tuple[str, dict[str, Any]]:
    return "model.started", {"step": step, "role": "assistant", "tools": 0}


def delta(text: str, step: int = 1) -> tuple[str, dict[str, Any]]:
    return "model.delta", {"step": step, "role": "assistant", "content": text}


def finished(step: int = 1) -> tuple[str, dict[str, Any]]:
    return "model.finished", {"step": step, "role": "assistant", "tool_calls": 0}


RESTARTED = ("model.restarted", {"step": 1})


def completed(text: str) -> tuple[str, dict[str, Any]]:
    return "run.completed", {"response": text, "metadata": {"usage": USAGE, "guardrails": []}}


def texts_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["delta"] for event in events if event["type"] == "response.output_text.delta"]


def messages_of(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    output = events[-1]["response"]["output"]
    return [(item["status"], "".join(part["text"] for part in item["content"])) for item in output]


def test_a_repeated_text_goes_on_where_the_reader_stands() -> None:
    events = encoded(
        started(),
        delta("one "),
        delta("two "),
        RESTARTED,
        delta("one t"),
        delta("wo thr"),
        delta("ee"),
        finished(),
        completed("one two three"),
    )
    assert texts_of(events) == ["one ", "two ", "thr", "ee"]
    assert messages_of(events) == [("completed", "one two three")]


def test_another_text_is_another_message_and_the_void_one_has_no_text() -> None:
    events = encoded(
        started(),
        delta("one two"),
        RESTARTED,
        delta("one "),
        delta("more"),
        finished(),
        completed("one more"),
    )
    assert texts_of(events) == ["one two", "one more"]
    assert messages_of(events) == [("incomplete", ""), ("completed", "one more")]
    indexes = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert indexes == [0, 1]


def test_a_shorter_text_is_another_message() -> None:
    events = encoded(started(), delta("one two"), RESTARTED, delta("one"), finished(), completed("one"))
    assert messages_of(events) == [("incomplete", ""), ("completed", "one")]


def test_only_the_text_of_the_step_is_void() -> None:
    events = encoded(
        started(2),
        delta("a ", 2),
        finished(2),
        started(),
        delta("b"),
        RESTARTED,
        delta("c"),
        finished(),
        completed("a c"),
    )
    assert messages_of(events) == [("incomplete", "a "), ("completed", "c")]


def test_ids_name_a_run_and_the_event_where_a_response_begins() -> None:
    for named in (ResponseId(RUN), ResponseId(RUN, 300)):
        assert ResponseId.read(str(named)) == named
    for foreign in (
        "resp_1",
        "run_01M8GZ9YAG90DA6KWE7ES5EDXM",
        "resp_" + "é" * 26,
        str(ResponseId(RUN)) + "zz",
    ):
        assert ResponseId.read(foreign) is None
