"""What is special in each wire format, without a network."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest
from pydantic import ValidationError

from astromesh.errors import NetError, ProviderRejected, ProviderUnavailable
from astromesh.graph.call_record import completion_of, completion_to_json
from astromesh.net.provider_errors import from_body
from astromesh.providers.anthropic import Anthropic, AnthropicOptions
from astromesh.providers.catalog import Price, cost, model_info
from astromesh.providers.gemini import Gemini, GeminiOptions
from astromesh.providers.ollama import Ollama, OllamaOptions
from astromesh.providers.openai import OpenAI, OpenAIOptions
from astromesh.providers.options import ModelOptions, capabilities_of, price_of
from astromesh.providers.service import ServiceProvider
from astromesh.providers.wire import FragmentCache, close_objects
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Image,
    JsonObject,
    Message,
    ToolCall,
    ToolSpec,
)

TOOL = ToolSpec("search", "Searches", {"type": "object", "properties": {"q": {"type": "string"}}})
ASK = (Message("system", "Be brief."), Message("user", "Hi"))
OBJECT = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 3}}}


def sent(wire: Any, *messages: Message, stream: bool = False, **request: Any) -> JsonObject:
    body: JsonObject = orjson.loads(wire.encode(CompletionRequest(messages or ASK, **request), stream))
    return body


def openai_wire(official: bool = False, **options: Any) -> OpenAI:
    return OpenAI(OpenAIOptions(model="m", endpoint="" if official else "http://models/v1", **options))


def anthropic_wire(**options: Any) -> Anthropic:
    return Anthropic(AnthropicOptions(model="m", **options))


def ollama_wire(**options: Any) -> Ollama:
    return Ollama(OllamaOptions(model="m", **options))


def chunk(delta: JsonObject, finish: str | None = None) -> bytes:
    event = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + orjson.dumps(event) + b"\n\n"


def call_piece(
    index: int | None = None, call_id: str = "", name: str = "", arguments: Any = None
) -> JsonObject:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v}
    numbered = {} if index is None else {"index": index}
    return {"tool_calls": [{**numbered, **({"id": call_id} if call_id else {}), "function": function}]}


# -- openai --------------------------------------------------------------------------------------------------


def test_openai_itself_gets_the_new_name_of_max_tokens_and_others_the_old_one():
    parameters = {"max_tokens": 7}
    assert sent(openai_wire(official=True, parameters=parameters))["max_completion_tokens"] == 7
    assert sent(openai_wire(parameters=parameters))["max_tokens"] == 7
    assert sent(openai_wire(official=True), parameters=parameters)["max_completion_tokens"] == 7


def test_usage_is_asked_for_in_streams_unless_the_server_is_too_old():
    assert sent(openai_wire(), stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in sent(openai_wire(stream_usage=False), stream=True)
    assert "stream" not in sent(openai_wire())


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", "none"),
        ("required", "required"),
        ("search", {"type": "function", "function": {"name": "search"}}),
    ],
)
def test_a_tool_choice_is_told(choice, expected):
    assert sent(openai_wire(), tools=(TOOL,), tool_choice=choice)["tool_choice"] == expected


def test_plain_json_mode_tells_the_schema_in_words():
    body = sent(openai_wire(structured_output="json_object"), output_schema=OBJECT)
    assert body["response_format"] == {"type": "json_object"}
    assert '"minimum":3' in body["messages"][0]["content"]
    assert [m["role"] for m in body["messages"]] == ["system", "user"]


def test_words_are_all_that_a_service_without_structured_output_gets():
    body = sent(openai_wire(structured_output="none"), output_schema=OBJECT)
    assert "response_format" not in body
    assert '"minimum":3' in body["messages"][0]["content"]
    alone = sent(openai_wire(structured_output="none"), Message("user", "Hi"), output_schema=OBJECT)
    assert '"minimum":3' in alone["messages"][0]["content"]
    assert alone["messages"][1] == {"role": "user", "content": "Hi"}


NATIVE: dict[str, tuple[Callable[[], Any], str]] = {
    "openai": (lambda: openai_wire(official=True), "response_format"),
    "azure": (lambda: openai_wire(api_version="2024-10-21"), "response_format"),
    "anthropic": (anthropic_wire, "output_config"),
}
IN_WORDS: dict[str, tuple[Callable[[], Any], Callable[[JsonObject], Any], bool]] = {
    "compatible": (openai_wire, lambda body: body.get("response_format"), True),
    "ollama": (ollama_wire, lambda body: body.get("format"), True),
    "gemini": (
        lambda: Gemini(GeminiOptions(model="m")),
        lambda body: body.get("generationConfig", {}).get("responseJsonSchema"),
        False,
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_services_that_combine_a_schema_with_tools_get_it_natively(name):
    make, key = NATIVE[name]
    for choice in ("auto", "none"):
        body = sent(make(), tools=(TOOL,), tool_choice=choice, output_schema=OBJECT)
        assert body[key] == sent(make(), output_schema=OBJECT)[key]
        assert body["tools"]
        assert b"JSON Schema:" not in orjson.dumps(body)


@pytest.mark.parametrize("name", IN_WORDS)
def test_others_are_told_the_schema_in_words_beside_tools(name):
    """And natively as well once no tool may be called, where that goes together."""
    make, schema, held = IN_WORDS[name]
    body = sent(make(), tools=(TOOL,), output_schema=OBJECT)
    assert schema(body) is None
    assert '"minimum":3' in decoded(body)
    assert (schema(sent(make(), tools=(TOOL,), tool_choice="none", output_schema=OBJECT)) is not None) == held
    assert schema(sent(make(), output_schema=OBJECT)) is not None


def decoded(body: JsonObject) -> str:
    return orjson.dumps(body).decode().replace('\\"', '"')


@pytest.mark.parametrize("name", [*NATIVE, *IN_WORDS, "words alone", "json mode", "prompt"])
def test_a_schema_leaves_the_prefix_of_the_prompt_alike_from_call_to_call(name):
    """Tool loop and repair: what was sent before is the beginning of what is sent now, to the byte."""
    makers: dict[str, Callable[[], Any]] = {
        **{key: made[0] for key, made in NATIVE.items()},
        **{key: made[0] for key, made in IN_WORDS.items()},
        "words alone": lambda: openai_wire(structured_output="none"),
        "json mode": lambda: openai_wire(structured_output="json_object"),
        "prompt": lambda: anthropic_wire(structured_output="prompt"),
    }
    wire = makers[name]()
    call = Message("assistant", "", (ToolCall("c1", "search", "{}"),))
    loop = (*ASK, call, Message("tool", "found", tool_call_id="c1", name="search"))
    again = (*loop, Message("assistant", "{}"), Message("user", "Once more."))
    calls = [
        sent(wire, *messages, tools=(TOOL,), tool_choice=choice, output_schema=OBJECT)
        for messages, choice in ((ASK, "auto"), (loop, "auto"), (again, "none"))
    ]
    # the mark of Anthropic's cache moves on with the conversation, and is no part of what is cached
    mark = b',"cache_control":{"type":"ephemeral"}'
    calls = [orjson.loads(orjson.dumps(body).replace(mark, b"")) for body in calls]
    spoken = [body.get("messages") or body["contents"] for body in calls]
    heads = [(body.get("system"), body.get("systemInstruction")) for body in calls]
    assert heads[0] == heads[1] == heads[2]
    assert spoken[1][: len(spoken[0])] == spoken[0]
    assert spoken[2][: len(spoken[1])] == spoken[1]


def test_calls_that_a_server_neither_numbers_nor_names_are_told_apart():
    reader = openai_wire().reader()
    stream = chunk(call_piece(call_id="a", name="f", arguments='{"x"'))
    stream += chunk(call_piece(arguments=": 1}"))
    stream += chunk(call_piece(call_id="b", name="g")) + chunk({}, "tool_calls")
    assert list(reader.feed(stream)) == []
    calls = reader.finish().tool_calls
    assert calls == (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}"))


def test_calls_that_a_server_gives_the_same_number_are_told_apart_by_id_and_name():
    reader = openai_wire().reader()
    stream = chunk(call_piece(0, "a", "f", '{"x"')) + chunk(call_piece(0, "made-up", "", ": 1}"))
    stream += chunk(call_piece(0, "b", "g", "{")) + chunk(call_piece(0, "", "", "}"))
    assert list(reader.feed(stream + chunk({}, "tool_calls"))) == []
    assert [(c.name, c.arguments) for c in reader.finish().tool_calls] == [("f", '{"x": 1}'), ("g", "{}")]


def test_arguments_as_an_object_and_a_missing_id_are_put_right():
    message = {"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    reply = openai_wire().decode({"choices": [{"message": message}]})
    assert reply.tool_calls[0].arguments == '{"x":1}'
    assert reply.tool_calls[0].id


def test_a_refusal_is_an_answer_that_was_filtered():
    reply = openai_wire().decode({"choices": [{"message": {"content": None, "refusal": "I can't."}}]})
    assert (reply.content, reply.finish_reason) == ("I can't.", "content_filter")
    reader = openai_wire().reader()
    assert list(reader.feed(chunk({"refusal": "No."}) + chunk({}, "stop"))) == ["No."]
    assert reader.finish().finish_reason == "content_filter"


def test_a_stream_without_its_last_word_counts_when_the_model_had_finished():
    reader = openai_wire().reader()
    assert list(reader.feed(chunk({"content": "Hi"}) + chunk({}, "stop"))) == ["Hi"]
    assert reader.finish().content == "Hi"
    cut_off = openai_wire().reader()
    assert list(cut_off.feed(chunk({"content": "Hi"}))) == ["Hi"]
    with pytest.raises(ProviderUnavailable):
        cut_off.finish()


def test_text_before_a_fault_in_the_same_chunk_still_goes_out():
    feeding = openai_wire().reader().feed(chunk({"content": "Hi"}) + b"data: {\n\n")
    assert next(feeding) == "Hi"
    with pytest.raises(orjson.JSONDecodeError):
        next(feeding)


# -- anthropic -----------------------------------------------------------------------------------------------


def test_an_anthropic_stream_without_its_last_blank_line_is_whole():
    reader = anthropic_wire().reader()
    events = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    data = b"\n\n".join(b"data: " + orjson.dumps(event) for event in events)
    assert list(reader.feed(data)) == ["Hi"]
    assert reader.finish().content == "Hi"


THOUGHTS: list[JsonObject] = [
    {"type": "thinking", "thinking": "Let me look.", "signature": "SIG=="},
    {"type": "redacted_thinking", "data": "hidden"},
]
THINKING: JsonObject = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def thoughtful_reply(wire: Anthropic, stream: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """Thoughts, a word and two tool calls, as the API sends them."""
    tools = [
        {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "a"}},
        {"type": "tool_use", "id": "t2", "name": "search", "input": {}},
    ]
    if not stream:
        blocks = [*THOUGHTS, {"type": "text", "text": "I look."}, *tools]
        whole = wire.decode({"content": blocks, "stop_reason": "tool_use"})
        return whole.content, whole.tool_calls
    begun = [
        {"type": "thinking", "thinking": "", "signature": ""},
        THOUGHTS[1],
        {"type": "text", "text": ""},
        *({**tool, "input": {}} for tool in tools),
    ]
    deltas = [
        (0, {"type": "thinking_delta", "thinking": "Let me "}),
        (0, {"type": "thinking_delta", "thinking": "look."}),
        (0, {"type": "signature_delta", "signature": "SIG=="}),
        (2, {"type": "text_delta", "text": "I look."}),
        (3, {"type": "input_json_delta", "partial_json": '{"q":'}),
        (3, {"type": "input_json_delta", "partial_json": '"a"}'}),
    ]
    events: list[JsonObject] = []
    for index, block in enumerate(begun):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": i, "delta": d} for i, d in deltas if i == index]
    events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    reader = wire.reader()
    list(reader.feed(b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)))
    reply = reader.finish()
    return reply.content, reply.tool_calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("resumed", [False, True])
def test_thoughts_go_back_unchanged_before_the_calls_that_they_led_to(stream, resumed):
    """Anthropic refuses the tool loop of a thinking model without them; records of durable runs have them."""
    wire = anthropic_wire(parameters=THINKING)
    said, calls = thoughtful_reply(wire, stream)
    if resumed:
        kept = orjson.loads(orjson.dumps(completion_to_json(CompletionResult(said, calls))))
        calls = completion_of(kept).tool_calls
    assert [(call.id, orjson.loads(call.arguments)) for call in calls] == [("t1", {"q": "a"}), ("t2", {})]
    results = (Message("tool", "one", tool_call_id="t1"), Message("tool", "two", tool_call_id="t2"))
    loop = (Message("user", "Go."), Message("assistant", said, calls), *results)
    body = sent(wire, *loop, tools=(TOOL,))
    blocks = body["messages"][1]["content"]
    assert blocks[:2] == THOUGHTS
    assert [block["type"] for block in blocks[2:]] == ["text", "tool_use", "tool_use"]
    assert body["thinking"] == THINKING["thinking"]


def test_another_model_gets_no_thoughts_and_begins_none_amid_a_tool_loop():
    said, calls = thoughtful_reply(anthropic_wire(), stream=False)
    loop = (
        Message("user", "Go."),
        Message("assistant", said, calls),
        Message("tool", "1", tool_call_id="t1"),
    )
    other = Anthropic(AnthropicOptions(model="other", parameters=THINKING))
    body = sent(other, *loop, tools=(TOOL,))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    assert "thinking" not in body
    assert "thinking" in sent(other, *loop, Message("user", "And now?"), tools=(TOOL,))
    assert "SIG" not in str(sent(openai_wire(), *loop))
    assert "SIG" not in str(sent(Gemini(GeminiOptions(model="gemini-3-pro")), *loop))


def test_results_of_parallel_calls_are_one_message_and_roles_take_turns():
    calls = (ToolCall("1", "f", "{}"), ToolCall("2", "f", "no JSON"))
    body = sent(
        anthropic_wire(),
        Message("assistant", "Earlier."),
        Message("user", "Go."),
        Message("assistant", " ", calls),
        Message("tool", "one", tool_call_id="1"),
        Message("tool", "two", tool_call_id="2"),
        Message("user", "And?"),
    )
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert [b["type"] for b in body["messages"][-1]["content"]] == ["tool_result", "tool_result", "text"]
    assert body["messages"][3]["content"][1]["input"] == {"invalid": "no JSON"}


def test_tools_and_system_prompt_are_marked_for_the_cache_unless_told_not_to():
    marked = sent(anthropic_wire(), tools=(TOOL, TOOL))
    assert [("cache_control" in tool) for tool in marked["tools"]] == [False, True]
    assert marked["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" not in str(sent(anthropic_wire(prompt_cache=False), tools=(TOOL,)))


def test_words_that_the_api_names_otherwise_are_renamed():
    body = sent(anthropic_wire(parameters={"max_tokens": 5}), parameters={"stop": "END"})
    assert (body["max_tokens"], body["stop_sequences"]) == (5, ["END"])
    assert sent(anthropic_wire())["max_tokens"] > 1000
    assert sent(anthropic_wire(), tools=(TOOL,), tool_choice="required")["tool_choice"] == {"type": "any"}


def test_a_schema_that_is_no_grammar_is_asked_for_in_words():
    assert "output_config" in sent(anthropic_wire(), output_schema=OBJECT)
    for wire, schema in (
        (anthropic_wire(), {"type": "object"}),
        (anthropic_wire(structured_output="prompt"), OBJECT),
    ):
        body = sent(wire, output_schema=schema)
        assert "output_config" not in body
        assert "JSON Schema" in body["system"][0]["text"]


def test_a_closed_schema_keeps_what_a_grammar_holds_and_tells_the_rest():
    inner = close_objects(
        {"type": "object", "properties": {"list": {"type": "array", "items": OBJECT}}, "$defs": {"x": OBJECT}}
    )
    assert inner is not None
    number = inner["properties"]["list"]["items"]["properties"]["a"]
    assert number == {"type": "integer", "description": '{"minimum":3}'}
    assert inner["additionalProperties"] is False
    assert inner["$defs"]["x"]["additionalProperties"] is False
    assert close_objects({"anyOf": [{"type": "string"}, {"type": "object"}]}) is None
    assert close_objects({"properties": {"a": {}}}) is None


# -- ollama --------------------------------------------------------------------------------------------------


def test_parameters_are_the_models_options_except_those_of_the_request():
    wire = ollama_wire(
        context_window=8192, parameters={"max_tokens": 5, "temperature": 0.1, "keep_alive": "5m"}
    )
    body = sent(wire, parameters={"temperature": 0.9})
    assert body["options"] == {"num_ctx": 8192, "num_predict": 5, "temperature": 0.9}
    assert body["keep_alive"] == "5m"


def test_a_picture_by_url_is_refused_as_ollama_takes_none():
    with pytest.raises(ProviderRejected, match="URL"):
        sent(ollama_wire(), Message("user", "?", attachments=(Image(url="https://example.test/a.png"),)))


def test_no_tools_are_offered_where_none_may_be_called():
    assert "tools" not in sent(ollama_wire(), tools=(TOOL,), tool_choice="none")


# -- what they share -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"type": "overloaded_error"}, "provider_unavailable"),
        ({"type": "rate_limit_error"}, "provider_rate_limited"),
        ({"code": "insufficient_quota"}, "provider_rate_limited"),
        ({"code": 401}, "provider_unauthorized"),
        ({"type": "invalid_request_error", "message": "too long"}, "provider_rejected"),
        ("out of memory", "provider_unavailable"),
        (7, "provider_unavailable"),
    ],
)
def test_errors_inside_answers_are_known_by_their_names(error, code):
    assert from_body(error).code == code


def test_nothing_is_left_of_a_bearer_token_in_what_a_service_says():
    said = {"code": 400, "message": "Sent: Bearer abcdef/ghij+kl~mn==, which is not a key-abc123/xyz"}
    assert from_body(said).quote == "Sent: ***, which is not a ***"


def test_the_operators_prices_and_quality_stand_over_the_table():
    options = ModelOptions(
        model="gpt-4o-mini", prices={"gpt-4o-mini": Price(input_per_million=9)}, quality={"gpt-4o-mini": 3}
    )
    assert price_of(options) == Price(input_per_million=9)
    assert capabilities_of(options).quality == 3
    assert not capabilities_of(ModelOptions(model="unknown")).priced
    assert model_info("gpt-4o-2024-08-06") == model_info("gpt-4o")


@pytest.mark.parametrize(
    ("bedrock", "name", "premium"),
    [
        ("global.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5", 1.0),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5", 1.1),
        ("anthropic.claude-opus-4-1-20250805-v1:0", "claude-opus-4-1", 1.0),
        ("amazon.nova-pro-v1:0:300k", "nova-pro", 1.0),
        ("us-gov.amazon.nova-lite-v1:0", "nova-lite", 1.0),
        (
            "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-haiku-4-5-20251001-v1:0",
            "claude-haiku-4-5", 1.1,
        ),
    ],
)  # fmt: skip
def test_ids_of_bedrock_are_in_the_table(bedrock, name, premium):
    """A model that costs more in a region than anywhere costs that."""
    found, listed = model_info(bedrock), model_info(name)
    assert found is not None
    assert listed is not None
    assert (found.window, found.vision) == (listed.window, listed.vision)
    assert found.price.input_per_million == pytest.approx(listed.price.input_per_million * premium)
    assert found.price.output_per_million == pytest.approx(listed.price.output_per_million * premium)
    assert model_info("meta.llama3-3-70b-instruct-v1:0") is None


def test_cached_and_written_tokens_have_prices_of_their_own():
    price = Price(
        input_per_million=10, output_per_million=20, cached_per_million=1, cache_write_per_million=12
    )
    assert cost(price, 1_000_000, 0) == 10
    assert cost(price, 1_000_000, 1_000_000, 500_000, 100_000) == pytest.approx(4 + 0.5 + 1.2 + 20)
    assert cost(None, 5, 5) == 0


def test_the_first_of_models_is_the_default():
    assert ModelOptions(models=("a", "b")).model_name == "a"
    assert ModelOptions(model="c", models=("a", "b")).model_name == "c"


def test_offered_tools_are_encoded_once_as_long_as_they_are_the_same_objects():
    shaped: list[tuple[ToolSpec, ...]] = []

    def shape(tools: tuple[ToolSpec, ...]) -> list[str]:
        shaped.append(tools)
        return [tool.name for tool in tools]

    cache = FragmentCache(shape)
    first = cache.of((TOOL,))
    assert cache.of((TOOL,)) is first
    assert len(shaped) == 1
    for number in range(600):  # bounded: tools may come and go with a server
        cache.of((ToolSpec(str(number)),))
    assert cache.of((TOOL,)) is not first


@pytest.mark.parametrize("endpoint", ["notaurl", "ftp://host/v1", "http://", "http://[::1"])
def test_an_endpoint_that_is_no_url_is_a_wrong_option(endpoint):
    """So that the configuration is refused with its line, and not the agent when it is opened."""
    with pytest.raises(ValidationError, match="must be an http or https URL with a host"):
        ModelOptions(endpoint=endpoint)
    assert ModelOptions(endpoint="http://localhost:11434").endpoint == "http://localhost:11434"


class _Waiting:
    """A service whose calls it holds, and does not answer."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def request(self, *_: object, body: bytes, **_more: object) -> None:
        self.bodies.append(body)
        raise NetError("no answer")


async def test_a_request_that_waits_takes_no_more_memory_than_its_bytes() -> None:
    """What orjson returns takes at least 4 KiB, and hundreds of runs wait for their models at once."""
    http = _Waiting()
    service = ServiceProvider(openai_wire(), OpenAIOptions(model="m"), "", cast(Any, http))
    tracemalloc.start()
    try:
        for _ in range(50):
            with pytest.raises(ProviderUnavailable):
                await service.complete(CompletionRequest((Message("user", "hello"),)))
        held = [trace.size for trace in tracemalloc.take_snapshot().traces]
    finally:
        tracemalloc.stop()
    assert len(http.bodies) == 50
    assert sum(3000 < size < 6000 for size in held) < 25
