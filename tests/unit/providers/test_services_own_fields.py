"""What single services want: strict schemas, reasoning back, keys at the top level, marks for their cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from astromesh.providers.anthropic import Anthropic
from astromesh.providers.gemini import Gemini, GeminiOptions
from astromesh.providers.openai import OpenAI, OpenAIOptions
from astromesh.types import JsonObject, Message, ToolCall, Usage
from tests.unit.providers.test_wire_formats import TOOL, anthropic_wire, openai_wire, sent

# -- openai: strict schemas ----------------------------------------------------------------------------------

CLOSED: JsonObject = {
    "type": "object",
    "required": ["a", "b"],
    "additionalProperties": False,
    "properties": {
        "a": {"type": "integer", "minimum": 3, "description": "A count."},
        "b": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    },
}
OPEN: JsonObject = {key: value for key, value in CLOSED.items() if key != "additionalProperties"}
#: why a schema is not asked for strictly
NOT_STRICT: dict[str, Mapping[str, Any]] = {
    "a property may be missing": {**CLOSED, "required": ["a"]},
    "other properties are allowed": {**CLOSED, "additionalProperties": True},
    "no properties": {"type": "object"},
    "no object": {"type": "array", "items": {"type": "string"}},
    "a keyword": {**CLOSED, "allOf": [{"required": ["a"]}]},
    "an open object inside": {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "object", "additionalProperties": {"type": "string"}}},
    },
    "no type inside": {"type": "object", "required": ["a"], "properties": {"a": {}}},
    "a format": {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "string", "format": "color"}},
    },
}


def form(schema: Mapping[str, Any], **options: Any) -> JsonObject:
    asked: JsonObject = sent(openai_wire(**options), output_schema=schema)["response_format"]["json_schema"]
    return asked


@pytest.mark.parametrize(
    "schema", [CLOSED, OPEN, {**OPEN, "$schema": "https://json-schema.org/draft/2020-12"}]
)
@pytest.mark.parametrize("official", [True, False])
def test_a_schema_that_allows_it_is_asked_for_strictly(schema: JsonObject, official: bool) -> None:
    assert form(schema, official=official) == {"name": "answer", "strict": True, "schema": CLOSED}


@pytest.mark.parametrize("why", NOT_STRICT)
def test_any_other_schema_is_sent_as_it_is(why: str) -> None:
    assert form(NOT_STRICT[why]) == {"name": "answer", "schema": NOT_STRICT[why]}


def test_objects_in_definitions_are_closed_too() -> None:
    point = {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}
    schema = {
        "type": "object",
        "required": ["p"],
        "properties": {"p": {"$ref": "#/$defs/point"}},
        "$defs": {"point": point},
    }
    asked = form(schema)
    assert asked["strict"] is True
    assert asked["schema"]["$defs"]["point"] == {**point, "additionalProperties": False}


# -- openai: reasoning within a tool loop --------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
RESULT = Message("tool", "seen", tool_call_id="c1", name="search")


def answered(wire: OpenAI, *, streamed: bool) -> tuple[ToolCall, ...]:
    """The calls of an answer that thought before it called."""
    message = {"role": "assistant", "content": None, "reasoning_content": "Let me see.", "tool_calls": [CALL]}
    if not streamed:
        return wire.decode({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).tool_calls
    reader = wire.reader()
    for delta in ({"reasoning_content": "Let me "}, {"reasoning_content": "see."}, {"tool_calls": [CALL]}):
        list(reader.feed(b"data: " + orjson.dumps({"choices": [{"delta": delta}]}) + b"\n\n"))
    list(reader.feed(b"data: [DONE]\n\n"))
    return reader.finish().tool_calls


@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_goes_back_with_the_results_of_the_calls_it_led_to(streamed: bool) -> None:
    wire = openai_wire()
    calls = answered(wire, streamed=streamed)
    body = sent(wire, Message("user", "Hi"), Message("assistant", tool_calls=calls), RESULT)
    assert body["messages"][1]["reasoning_content"] == "Let me see."


def test_reasoning_does_not_leave_its_tool_loop_nor_its_model() -> None:
    wire = openai_wire()
    calls = answered(wire, streamed=False)
    earlier = (
        Message("user", "Hi"),
        Message("assistant", tool_calls=calls),
        RESULT,
        Message("assistant", "Yes."),
    )
    assert "Let me see" not in str(sent(wire, *earlier, Message("user", "And now?")))
    other = OpenAI(OpenAIOptions(model="other", endpoint="http://models/v1"))
    assert "Let me see" not in str(sent(other, *earlier[:3]))
    assert "Let me see" not in str(sent(anthropic_wire(), *earlier[:3]))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_service_that_rejects_reasoning_never_gets_it(streamed: bool) -> None:
    wire = openai_wire(reasoning_in_tool_loop="never")
    calls = answered(wire, streamed=streamed)
    body = sent(wire, Message("user", "Hi"), Message("assistant", tool_calls=calls), RESULT)
    assert "Let me see" not in str(body)
    assert calls[0].kept == ""


# -- gemini: keys at the top level ---------------------------------------------------------------------------


@pytest.mark.parametrize("by_request", [False, True])
def test_geminis_own_keys_stand_at_the_top(by_request: bool) -> None:
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    own: JsonObject = {"safetySettings": safety, "cachedContent": "cachedContents/x", "max_tokens": 5}
    own["toolConfig"] = {"retrievalConfig": {"languageCode": "de"}}
    wire = Gemini(GeminiOptions(model="m", parameters={} if by_request else own))
    body = sent(wire, tools=(TOOL,), tool_choice="required", parameters=own if by_request else {})
    assert body["safetySettings"] == safety
    assert body["cachedContent"] == "cachedContents/x"
    assert body["toolConfig"] == {**own["toolConfig"], "functionCallingConfig": {"mode": "ANY"}}
    assert body["generationConfig"] == {"maxOutputTokens": 5}


# -- anthropic: the cache of the conversation ----------------------------------------------------------------

MARK = {"type": "ephemeral"}


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(marks(inner) for inner in value.values())
    return sum(map(marks, value)) if isinstance(value, list) else 0


def test_the_end_of_the_conversation_is_a_breakpoint_of_anthropics_cache() -> None:
    call = ToolCall("c1", "search", "{}")
    loop = (Message("user", "Hi"), Message("assistant", "I look.", (call,)), RESULT)
    for messages in (loop[:1], loop):
        body = sent(anthropic_wire(), Message("system", "Be brief."), *messages, tools=(TOOL,))
        assert body["messages"][-1]["content"][-1]["cache_control"] == MARK
        assert marks(body) == 3  # tools, system, conversation; the API allows four
    assert marks(sent(anthropic_wire(prompt_cache=False), *loop, tools=(TOOL,))) == 0


# -- usage ---------------------------------------------------------------------------------------------------


def test_usage_shows_reasoning_and_cache_writes() -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    openai = openai_wire().token_counts({"usage": {"prompt_tokens": 9, "completion_tokens": 8, **details}})
    assert openai is not None and openai.reasoning == 7
    counts = {"promptTokenCount": 9, "candidatesTokenCount": 1, "thoughtsTokenCount": 7}
    gemini = Gemini(GeminiOptions(model="m")).token_counts({"usageMetadata": counts})
    assert gemini is not None and (gemini.output, gemini.reasoning) == (8, 7)
    wire: Anthropic = anthropic_wire()
    usage = {"input_tokens": 9, "output_tokens": 8, "cache_creation_input_tokens": 6}
    anthropic = wire.token_counts({"usage": usage})
    assert anthropic is not None and (anthropic.input, anthropic.written) == (15, 6)


def test_usage_adds_up_and_names_only_what_there_was() -> None:
    one, two = Usage(9, 8, reasoning_tokens=7), Usage(1, 1, cache_write_tokens=6, estimated=True)
    assert (one + two).to_json() == {
        "input_tokens": 10, "output_tokens": 9, "cached_tokens": 0, "cost_usd": 0.0, "reasoning_tokens": 7,
        "cache_write_tokens": 6, "estimated": True,
    }  # fmt: skip
    assert Usage(1, 2).to_json().keys() == {"input_tokens", "output_tokens", "cached_tokens", "cost_usd"}
