"""OpenAI's Responses: what a request has, by the SDK's types, and what goes back without a state."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter, ValidationError

from astromesh.errors import ProviderRejected, ProviderUnavailable
from astromesh.providers.openai_responses import OpenAIResponses, ResponsesOptions
from astromesh.types import Attachment, Image, JsonObject, Message, ToolCall
from tests.unit.providers.test_wire_formats import ASK, OBJECT, TOOL, sent

PARAMETERS: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsNonStreaming)
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
SAID = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary",
    "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
}  # fmt: skip
CALLED = {
    "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "search", "arguments": '{"q":"a"}',
    "status": "completed",
}  # fmt: skip
RESULT = Message("tool", "found", tool_call_id="c1", name="search")


def wire(model: str = "gpt-5", **options: Any) -> OpenAIResponses:
    return OpenAIResponses(ResponsesOptions(model=model, **options))


def asked(made: OpenAIResponses, *messages: Message, **request: Any) -> JsonObject:
    """The body of a request, which the SDK's types accept."""
    body = sent(made, *messages, **request)
    PARAMETERS.validate_python(body)
    return body


def answer(*output: JsonObject, **fields: Any) -> JsonObject:
    return {"output": [*output], "status": "completed", **fields}


def events(*payloads: JsonObject) -> bytes:
    return b"".join(b"data: %s\n\n" % orjson.dumps(one) for one in payloads)


def read(made: OpenAIResponses, payload: JsonObject, *, streamed: bool) -> tuple[ToolCall, ...]:
    if not streamed:
        return made.decode(payload).tool_calls
    reader = made.reader()
    last = {"type": "response.completed", "response": {**payload, "output": []}}  # as some gateways end
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(payload["output"])
    ]
    list(reader.feed(events(*reversed(done), last)))
    return reader.finish().tool_calls


def test_a_request_has_the_apis_own_words() -> None:
    files = (
        Image(url="https://x/a.png"),
        Attachment(data="aGk=", media_type="application/pdf", name="a.pdf"),
        Attachment(url="https://x/b.pdf", media_type="application/pdf"),
    )
    made = wire(parameters={"max_tokens": 9, "reasoning_effort": "low", "verbosity": "low"})
    body = asked(
        made, *ASK[:1], Message("user", "See.", attachments=files), tools=(TOOL,), tool_choice="search",
        output_schema=OBJECT,
    )  # fmt: skip
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert (body["instructions"], body["max_output_tokens"]) == ("Be brief.", 9)
    assert body["reasoning"] == {"effort": "low"}
    assert body["text"]["verbosity"] == "low"
    assert body["text"]["format"]["schema"]["additionalProperties"] is False
    assert body["tools"][0]["strict"] is False
    assert body["tool_choice"] == {"type": "function", "name": "search"}
    assert [part["type"] for part in body["input"][0]["content"]] == [
        "input_text", "input_image", "input_file", "input_file",
    ]  # fmt: skip
    assert asked(made, tools=(TOOL,), tool_choice="required")["tool_choice"] == "required"
    with pytest.raises(ProviderRejected, match="no audio"):
        sent(made, Message("user", attachments=(Attachment(data="aGk=", media_type="audio/wav"),)))


def test_json_mode_and_words_ask_for_an_output_schema_where_they_must() -> None:
    body = asked(wire(structured_output="json_object"), output_schema=OBJECT)
    assert body["text"] == {"format": {"type": "json_object"}}
    assert '"minimum":3' in body["instructions"]
    body = asked(wire(structured_output="none"), Message("user", "Hi"), output_schema=OBJECT)
    assert "text" not in body and '"minimum":3' in body["instructions"]


@pytest.mark.parametrize(
    ("model", "option", "included"),
    [
        ("o3-pro", "auto", True),
        ("openai/gpt-5.2-codex", "auto", True),
        ("gpt-4o-mini", "auto", False),  # the API rejects the question for it
        ("gpt-5-chat-latest", "auto", False),
        ("my-deployment", "auto", False),
        ("my-deployment", "always", True),
        ("o3-pro", "never", False),
    ],
)
def test_encrypted_reasoning_is_asked_of_models_that_reason(model: str, option: str, included: bool) -> None:
    assert ("include" in asked(wire(model, encrypted_reasoning=option))) is included


@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_goes_back_before_the_call_it_led_to_and_to_no_other_model(streamed: bool) -> None:
    made = wire()
    calls = read(made, answer({**REASONING, "status": None}, SAID, CALLED), streamed=streamed)
    loop = (*ASK, Message("assistant", "I look.", calls), RESULT)
    reasoning, said, call, result = asked(made, *loop)["input"][1:]
    assert reasoning == REASONING
    assert said == {"type": "message", "phase": "commentary", "role": "assistant", "content": "I look."}
    assert (call["type"], call["call_id"], call["arguments"]) == ("function_call", "c1", '{"q":"a"}')
    assert result == {"type": "function_call_output", "call_id": "c1", "output": "found"}
    for other in (wire("o3"), wire(encrypted_reasoning="never")):
        said, call, _ = asked(other, *loop)["input"][1:]
        assert (said, "gAAAA" in str(call)) == ({"role": "assistant", "content": "I look."}, False)


def test_reasoning_that_only_the_service_could_read_does_not_go_back() -> None:
    """An item without content names what the service has stored, and it stored nothing."""
    calls = wire().decode(answer({**REASONING, "encrypted_content": None}, CALLED)).tool_calls
    assert calls[0].kept == ""


def test_an_answer_says_how_it_ended() -> None:
    refusal = {**SAID, "content": [{"type": "refusal", "refusal": "No."}]}
    assert wire().decode(answer(refusal))[:3:2] == ("No.", "content_filter")
    short = answer(SAID, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert wire().decode(short)[:3:2] == ("I look.", "length")
    with pytest.raises(ProviderUnavailable, match="too early"):
        wire().decode(answer(SAID, status="in_progress"))


@pytest.mark.parametrize(
    ("code", "kind"), [("server_error", ProviderUnavailable), ("invalid_prompt", ProviderRejected)]
)
def test_a_stream_that_fails_says_why(code: str, kind: type[Exception]) -> None:
    failed = {"status": "failed", "error": {"code": code, "message": "no"}, "output": []}
    with pytest.raises(kind):
        list(wire().reader().feed(events({"type": "response.failed", "response": failed})))


def test_what_would_make_it_remember_is_no_parameter() -> None:
    with pytest.raises(ValidationError, match="must not contain store"):
        ResponsesOptions(model="m", parameters={"store": True})
