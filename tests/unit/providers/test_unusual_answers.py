"""Services that send more, less or otherwise than their format says are read for what they mean."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from astromesh.errors import ProviderUnavailable
from astromesh.providers.anthropic import Anthropic, AnthropicOptions
from astromesh.providers.gemini import Gemini, GeminiOptions
from astromesh.providers.ollama import Ollama, OllamaOptions
from astromesh.providers.openai import OpenAI, OpenAIOptions
from astromesh.providers.wire import Reply, TokenCounts
from astromesh.types import JsonObject, ToolCall

DONE = b"data: [DONE]\n\n"


def event(*choices: JsonObject) -> bytes:
    return b"data: " + orjson.dumps({"choices": choices}) + b"\n\n"


def said(text: str, index: int = 0, finish: str | None = None) -> JsonObject:
    return {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}


def called(*pieces: JsonObject) -> bytes:
    return event({"index": 0, "delta": {"tool_calls": pieces}})


def piece(index: int, name: str | None = None, arguments: str = "", call_id: str = "") -> JsonObject:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "function": function} | ({"id": call_id} if call_id else {})


def streamed(wire: Any, *events: bytes) -> tuple[str, Reply]:
    """The deltas joined, and the whole answer; the events come in one chunk and byte by byte alike."""
    found = []
    for chunks in ([b"".join(events)], [bytes([byte]) for byte in b"".join(events)]):
        reader = wire.reader()
        text = "".join(text for chunk in chunks for text in reader.feed(chunk))
        found.append((text, reader.finish()))
    assert found[0] == found[1]
    return found[0]


def openai(*events: bytes) -> tuple[str, Reply]:
    return streamed(OpenAI(OpenAIOptions(model="m")), *events)


def calls(*events: bytes) -> list[tuple[str, str]]:
    _, reply = openai(*events, event(said("", finish="tool_calls")), DONE)
    return [(call.name, call.arguments) for call in reply.tool_calls]


@pytest.mark.parametrize(
    "nothing", [b"data:\n\n", b"data: \n\n", b"data\n\n", b"event: x\ndata:\n\n", b": hi\n\n"]
)
def test_an_event_without_data_says_nothing(nothing):
    text, reply = openai(nothing, event(said("a")), nothing, event(said("b", finish="stop")), nothing, DONE)
    assert (text, reply.content) == ("ab", "ab")
    gemini = {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]}
    events = (nothing, b"data: " + orjson.dumps(gemini) + b"\n\n", nothing)
    assert streamed(Gemini(GeminiOptions(model="m")), *events)[0] == "a"
    end = b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\n\n'
    stop = b'data: {"type": "message_stop"}\n\n'
    assert streamed(Anthropic(AnthropicOptions(model="m")), nothing, end, nothing, stop)[0] == ""


def test_of_several_choices_one_is_read_whatever_their_order():
    both = event(said("B1", 1), said("A1", 0)), event(said("B2", 1)), event(said("A2", 0), said("B3", 1))
    ends = event(said("", 1, "length")), event(said("", 0, "stop")), event(said("late", 1))
    text, reply = openai(*both, *ends, DONE)
    assert (text, reply.content, reply.finish_reason) == ("A1A2", "A1A2", "stop")
    wire = OpenAI(OpenAIOptions(model="m"))
    choices = [{"index": 1, "message": {"content": "B"}}, {"index": 0, "message": {"content": "A"}}]
    assert wire.decode({"choices": choices}).content == "A"


def test_a_service_that_numbers_its_only_choice_from_one_is_read():
    assert openai(event(said("a", 1)), event(said("b", 1, "stop")), DONE)[0] == "ab"


def test_what_stands_behind_the_end_is_no_part_of_the_answer():
    text, reply = openai(event(said("a", finish="stop")), DONE, event(said("b")), b"data: not JSON\n\n")
    assert (text, reply.content) == ("a", "a")


def test_calls_stand_in_the_order_of_their_numbers():
    assert calls(called(piece(1, "g", "{}", "b")), called(piece(0, "f", "{}", "a"))) == [
        ("f", "{}"),
        ("g", "{}"),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("echo", None, None),
        ("ec", "ho", None),
        ("ec", "ho", ""),
        ("e", "c", "ho"),
        ("echo", "echo", "echo"),
        ("ec", "echo", "echo"),  # as far as it has come, each time
        (None, "echo", None),
    ],
)
def test_a_name_is_whole_whether_it_is_cut_or_repeated(names):
    pieces = [called(piece(0, name, "", "a" if number == 0 else "")) for number, name in enumerate(names)]
    assert calls(*pieces, called(piece(0, None, "{}"))) == [("echo", "{}")]


@pytest.mark.parametrize("again", ["echo", "else", None])
def test_a_name_is_not_changed_any_more_once_arguments_have_come(again):
    assert calls(called(piece(0, "echo", '{"a"', "a")), called(piece(0, again, ":1}", "a"))) == [
        ("echo", '{"a":1}')
    ]


@pytest.mark.parametrize(
    ("given", "read"), [('{"q": 1}', '{"q": 1}'), ({"q": 1}, '{"q":1}'), ("", "{}"), (None, "{}")]
)
def test_ollamas_arguments_may_be_text_or_an_object(given, read):
    wire = Ollama(OllamaOptions(model="m"))
    line = {
        "message": {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": given}}]},
        "done": True,
    }
    assert wire.decode(line).tool_calls == (ToolCall("a", "f", read),)
    assert streamed(wire, orjson.dumps(line) + b"\n")[1].tool_calls == (ToolCall("a", "f", read),)


FAULT = {"code": 502, "message": "Provider disconnected"}


@pytest.mark.parametrize(
    "end",
    [
        {"error": FAULT, "choices": [said("", finish="error")]},
        {"error": FAULT, "choices": [said("")]},
        {"choices": [{**said("", finish="error"), "error": FAULT}]},
        {"choices": [said("", finish="error")]},
    ],
)
def test_an_answer_that_broke_off_behind_a_gateway_is_a_fault(end):
    """OpenRouter tells it beside the choice of a stream, and in the choice of a whole answer."""
    wire = OpenAI(OpenAIOptions(model="m"))
    reader = wire.reader()
    with pytest.raises(ProviderUnavailable):
        list(reader.feed(event(said("a")) + b"data: " + orjson.dumps(end) + b"\n\n" + DONE))
    assert reader.partial().content == "a"
    whole = {**end["choices"][0], "message": {"content": "a"}}
    if whole.get("error") or whole["finish_reason"]:
        with pytest.raises(ProviderUnavailable):
            wire.decode({"choices": [whole]})


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_an_answer_that_gemini_threw_away_is_a_fault_and_none_that_is_empty(reason):
    wire = Gemini(GeminiOptions(model="m"))
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3}
    payload = {"candidates": [{"finishReason": reason}], "usageMetadata": usage}
    with pytest.raises(ProviderUnavailable, match=reason):
        wire.decode(payload)
    reader = wire.reader()
    assert list(reader.feed(b"data: " + orjson.dumps(payload) + b"\n\n")) == []
    with pytest.raises(ProviderUnavailable, match=reason):
        reader.finish()
    assert reader.partial().counts == TokenCounts(7, 3)


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({}, None),
        ({"total_tokens": 5}, TokenCounts(None, None)),
        ({"prompt_tokens": None, "completion_tokens": None}, TokenCounts(None, None)),
        ({"prompt_tokens": 7, "total_tokens": 9}, TokenCounts(7, None)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, TokenCounts(0, 0)),
    ],
)
def test_tokens_that_openai_s_likes_name_and_do_not_count_are_not_none_of_them(usage, read):
    wire = OpenAI(OpenAIOptions(model="m"))
    choice = {"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}
    assert wire.decode({"choices": [choice], "usage": usage}).counts == read
    last = b"data: " + orjson.dumps({"choices": [], "usage": usage}) + b"\n\n"
    assert streamed(wire, event(said("Yes.", finish="stop")), last, DONE)[1].counts == read


def test_counts_that_came_stay_where_a_later_event_has_none():
    """Some servers put their usage into every event, and null into those that count nothing."""
    wire = OpenAI(OpenAIOptions(model="m"))
    whole = b"data: " + orjson.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    none = b"data: " + orjson.dumps({"choices": [], "usage": {"prompt_tokens": None}})
    ends = event(said("Yes.", finish="stop"))
    assert streamed(wire, ends, whole + b"\n\n", none + b"\n\n", DONE)[1].counts == TokenCounts(7, 2)
