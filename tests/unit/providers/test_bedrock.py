"""Bedrock: what a request has, held against AWS's own model of the service, and what goes back to a model."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from botocore.session import Session
from botocore.validate import ParamValidator

from astromesh.errors import ProviderRejected, ProviderUnavailable
from astromesh.providers.bedrock import Bedrock, BedrockOptions
from astromesh.types import Attachment, Image, JsonObject, Message, ToolCall
from tests.platform import aws
from tests.unit.providers.test_wire_formats import ASK, OBJECT, TOOL, sent

CLAUDE = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
CONVERSE = Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape
CALL = ToolCall("c1", "search", '{"q":"a"}')
RESULT = Message("tool", "found", tool_call_id="c1", name="search")
POINT = {"cachePoint": {"type": "default"}}


def wire(model: str = "m", **options: Any) -> Bedrock:
    return Bedrock(BedrockOptions(model=model, **options))


def asked(made: Bedrock, *messages: Message, **request: Any) -> JsonObject:
    """The body of a request, which fits AWS's model of the service."""
    body = sent(made, *messages, **request)
    report = ParamValidator().validate({"modelId": made.model, **body}, CONVERSE)
    assert not report.has_errors(), report.generate_report()
    return body


def test_a_request_has_the_services_own_words() -> None:
    files = (
        Image(data="aGk=", media_type="image/jpeg"),
        Attachment(data="aGk=", media_type="application/pdf", name="Q3 / plan.v2.pdf"),
    )
    guard = {"guardrailIdentifier": "g", "guardrailVersion": "1"}
    made = wire(parameters={"max_tokens": 9, "stop": "END", "top_k": 5, "guardrailConfig": guard})
    body = asked(
        made, *ASK[:1], Message("user", attachments=files), tools=(TOOL,), tool_choice="search",
        parameters={"temperature": 0.5},
    )  # fmt: skip
    assert body["inferenceConfig"] == {"maxTokens": 9, "stopSequences": ["END"], "temperature": 0.5}
    assert body["additionalModelRequestFields"] == {"top_k": 5}
    assert body["guardrailConfig"] == guard
    assert body["toolConfig"]["toolChoice"] == {"tool": {"name": "search"}}
    image, document, text = body["messages"][0]["content"]
    assert image["image"]["format"] == "jpeg"
    assert document["document"]["name"].startswith("Q3-plan-v2-")
    assert text == {"text": "(see the document)"}  # the API wants one
    assert asked(made, tools=(TOOL,), tool_choice="required")["toolConfig"]["toolChoice"] == {"any": {}}


@pytest.mark.parametrize(
    "one",
    [
        Image(url="https://x/a.png"),
        Image(data="aGk=", media_type="image/tiff"),
        Attachment(data="aGk=", media_type="audio/wav"),
    ],
)
def test_what_it_does_not_take_is_refused(one: Attachment) -> None:
    with pytest.raises(ProviderRejected, match="Bedrock"):
        sent(wire(), Message("user", attachments=(one,)))


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_conversation_with_calls_declares_their_tools_though_none_is_offered(choice: str) -> None:
    tools = (TOOL,) if choice == "none" else ()
    body = asked(wire(), *ASK, Message("assistant", "", (CALL,)), RESULT, tools=tools, tool_choice=choice)
    (declared,) = body["toolConfig"]["tools"]
    assert declared["toolSpec"]["name"] == "search"
    assert "Do not call it" in declared["toolSpec"]["description"]
    assert "toolConfig" not in asked(wire(), tools=tools, tool_choice=choice)


def test_marks_for_the_cache_and_schemas_go_to_models_that_take_them() -> None:
    body = asked(wire(CLAUDE), *ASK, tools=(TOOL,), output_schema=OBJECT)
    assert (
        body["system"][-1] == body["toolConfig"]["tools"][-1] == body["messages"][-1]["content"][-1] == POINT
    )
    form = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert orjson.loads(form["schema"])["additionalProperties"] is False
    for other in (wire(), wire("anthropic.claude-3-haiku-20240307-v1:0")):
        body = asked(other, *ASK, tools=(TOOL,), output_schema=OBJECT)
        assert "cachePoint" not in str(body) and "outputConfig" not in body
        assert '"minimum":3' in body["system"][0]["text"]
    assert "cachePoint" in str(asked(wire(prompt_cache=True)))
    assert "outputConfig" in asked(wire(structured_output="json_schema"), output_schema=OBJECT)


def thinking(*, streamed: bool) -> tuple[ToolCall, ...]:
    """The calls of an answer that thought before it called."""
    signed, hidden = {"text": "Hm.", "signature": "sig"}, {"redactedContent": "aGk="}
    used = {"toolUseId": "c1", "name": "search"}
    if not streamed:
        blocks = [
            {"reasoningContent": {"reasoningText": signed}}, {"reasoningContent": hidden},
            {"toolUse": {**used, "input": {"q": "a"}}},
        ]  # fmt: skip
        answer = {"output": {"message": {"content": blocks}}, "stopReason": "tool_use"}
        return wire(CLAUDE).decode(answer).tool_calls
    reader = wire(CLAUDE).reader()
    deltas = [{"text": "H"}, {"text": "m."}, {"signature": "sig"}]
    events = [
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": d}}) for d in deltas
    ]
    events += [
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"reasoningContent": hidden}}),
        ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": used}}),
        ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"q":"a"}'}}}),
        ("messageStop", {"stopReason": "tool_use"}),
    ]
    data = b"".join(aws.event(kind, payload) for kind, payload in events)
    for byte in data:
        list(reader.feed(bytes([byte])))
    return reader.finish().tool_calls


@pytest.mark.parametrize("streamed", [False, True])
def test_thoughts_go_back_before_the_call_they_led_to_and_to_no_other_model(streamed: bool) -> None:
    calls = thinking(streamed=streamed)
    loop = (*ASK, Message("assistant", "", calls), RESULT)
    enabled = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    body = asked(wire(CLAUDE, parameters=enabled), *loop)
    signed, hidden, used = body["messages"][1]["content"]
    assert signed == {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}}
    assert hidden == {"reasoningContent": {"redactedContent": "aGk="}}
    assert used["toolUse"]["input"] == {"q": "a"}
    assert body["additionalModelRequestFields"] == enabled
    other = asked(wire(f"{CLAUDE}2", parameters=enabled), *loop)
    assert "reasoningContent" not in str(other)
    assert "additionalModelRequestFields" not in other


@pytest.mark.parametrize("reason", ["malformed_model_output", "malformed_tool_use"])
def test_an_answer_that_the_service_threw_away_is_a_fault(reason: str) -> None:
    with pytest.raises(ProviderUnavailable, match=reason):
        wire().decode({"output": {"message": {"content": []}}, "stopReason": reason})


@pytest.mark.parametrize("at", [0, 9, 40, -1])
def test_a_frame_with_a_wrong_checksum_is_no_answer(at: int) -> None:
    frame = bytearray(aws.event("messageStop", {"stopReason": "end_turn"}))
    frame[at] ^= 1
    reader = wire().reader()
    try:
        list(reader.feed(bytes(frame)))
    except ValueError:
        return
    with pytest.raises(ProviderUnavailable):  # a length that is too large waits for the rest
        reader.finish()
