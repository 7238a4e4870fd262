"""Stored responses: in the background, read, cancelled, deleted; the `openai` package; what is refused."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import openresponses_types.types as published
import pydantic
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from astromesh.durable.serialization import message_of
from astromesh.testing import ManualClock, Reply
from astromesh.types import ToolCall
from tests.integration.api.responses_client import EVENTS, House, checked, house_of, text_of

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
ROME = ToolCall("c1", "weather", '{"city": "Rome"}')
PII = {"input": [{"type": "pii_detection", "action": "redact"}]}
SECRET = "ann@example.com"


async def ended(house: House, name: str) -> dict[str, Any]:
    while (response := await house.get(name))["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
    return response


async def test_a_response_in_the_background_is_read_and_cancelled_by_the_openai_package(
    tmp_path: Path,
) -> None:
    script = (Reply("Done."), Reply("Never.", delay=3600), Reply("Streamed."))
    async with house_of(tmp_path, *script) as house:
        client = house.openai.responses
        accepted = await client.create(model="helper", input="Work.", background=True)
        done = await ended(house, accepted.id)
        assert (done["status"], text_of(done)) == ("completed", "Done.")
        slow = await client.create(model="helper", input="Work.", background=True)
        assert slow.status in ("queued", "in_progress")
        cancelled = await client.cancel(slow.id)
        assert cancelled.status == "cancelled"
        events = await house.replay(slow.id)
        assert events[-1]["type"] == "response.incomplete"
        assert await house.get(slow.id) == events[-1]["response"]
        refused = await house.http.post(f"/responses/{(await house.create())['id']}/cancel")
        assert refused.status_code == 400
        streamed = await client.retrieve(accepted.id, stream=True, starting_after=3)
        numbers = [event.sequence_number async for event in streamed]
        assert numbers == list(range(4, len(await house.replay(accepted.id))))


async def test_a_deleted_response_is_gone_and_those_after_it_stay(tmp_path: Path) -> None:
    async with house_of(tmp_path, "One.", "Two.", "Three.", "Four.") as house:
        client = house.openai.responses
        first = await client.create(model="helper", input="1")
        second = await client.create(model="helper", input="2", previous_response_id=first.id)
        await client.delete(first.id)
        gone = {"model": "helper", "input": "3", "previous_response_id": first.id}
        response, items, run, refused = await asyncio.gather(
            house.http.get(f"/responses/{first.id}"),
            house.http.get(f"/responses/{first.id}/input_items"),
            house.http.get(f"/runs/{first.id.replace('resp_', 'run_')}"),
            house.http.post("/responses", json=gone),
        )
        for answer in (response, items):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
        assert run.status_code == 404
        assert refused.json()["error"]["param"] == "previous_response_id"
        await client.create(model="helper", input="3", previous_response_id=second.id)
        assert house.conversation() == [
            ("user", "1"), ("assistant", "One."), ("user", "2"), ("assistant", "Two."), ("user", "3"),
        ]  # fmt: skip
        unstored = await client.create(model="helper", input="4", store=False)
        assert (await house.http.get(f"/responses/{unstored.id}")).status_code == 404


async def test_who_continues_a_long_response_reads_its_conversation_a_few_times(tmp_path: Path) -> None:
    """Once for each event: 400 messages and an answer of 1,000 pieces held the server for four seconds."""
    read = 0

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal read
        read += event == "call" and frame.f_code is message_of.__code__

    said = [{"role": "user", "content": f"Message {number}."} for number in range(30)]
    async with house_of(tmp_path, Reply(chunks=("word ",) * 50), "Fine.") as house:
        events = await house.stream(said)
        sys.setprofile(count)
        try:
            await house.create("And?", previous_response_id=events[-1]["response"]["id"])
        finally:
            sys.setprofile(None)
        assert len(house.conversation()) == len(said) + 2
    assert len(said) <= read < 10 * len(said)


async def test_the_openai_package_streams_parses_and_lists(tmp_path: Path) -> None:
    class City(pydantic.BaseModel):
        name: str

    async with house_of(tmp_path, Reply(chunks=("a ", "b")), '{"name": "Rome"}', "Fine.") as house:
        client = house.openai.responses
        async with client.stream(model="helper", input="Stream.") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "a b"
        assert {kind for kind in kinds if kind.startswith("response.")} <= EVENTS.keys()
        parsed = await client.parse(model="helper", input="A city.", text_format=City)
        assert parsed.output_parsed == City(name="Rome")
        assert house.provider.requests[-1].output_schema is not None
        item: Any = final.output[0]
        items: list[Any] = [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
            {"id": item.id, "type": "item_reference"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "user", "content": "And?"},
        ]
        last = await client.create(model="helper", input=items)
        assert house.conversation() == [("user", "Hi."), ("assistant", "a b"), ("user", "And?")]
        page = await client.input_items.list(last.id, limit=2, order="asc")
        found: list[Any] = [item async for item in page]
        assert [item.content[0].text for item in found] == ["Hi.", "a b", "And?"]
        assert [item.role for item in found] == ["user", "assistant", "user"]


async def test_a_reference_to_an_item_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with house_of(tmp_path, "Hi.") as house:
        item = (await house.create("Hello."))["output"][0]["id"]
        said = [{"type": "item_reference", "id": f"{item}9"}, {"role": "user", "content": "And?"}]
        answer = await house.http.post("/responses", json={"model": "helper", "input": said})
    assert answer.status_code == 400
    assert f"has no item '{item}9'" in answer.json()["detail"]


async def test_two_references_to_one_item_are_refused(tmp_path: Path) -> None:
    """A short request that names a long item again and again would become a huge one."""
    async with house_of(tmp_path, "Hi.") as house:
        item = (await house.create("Hello."))["output"][0]["id"]
        again = [{"type": "item_reference", "id": item}] * 2
        said = [*again, {"role": "user", "content": "And?"}]
        answer = await house.http.post("/responses", json={"model": "helper", "input": said})
    assert answer.status_code == 400
    assert f"two references to the item '{item}'" in answer.json()["detail"]


async def test_what_input_rules_remove_is_in_no_response(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME], "Sunny.", guardrails=PII) as house:
        tell = {"instructions": f"I am {SECRET}.", "metadata": {"mail": SECRET}, "tools": [WEATHER]}
        asked = await house.create(f"Mail {SECRET}.", **tell)
        result = {"type": "function_call_output", "call_id": asked["output"][0]["call_id"], "output": SECRET}
        more = {**tell, "previous_response_id": asked["id"]}
        answer = await house.create([result], **more)
        assert answer["instructions"] == asked["instructions"] == "I am [EMAIL]."
        for name in (asked["id"], answer["id"]):
            items = (await house.http.get(f"/responses/{name}/input_items")).text
            assert SECRET not in items and "[EMAIL]" in items
            assert SECRET not in str(await house.replay(name))


async def test_a_result_that_comes_too_late_starts_a_new_run_of_the_conversation(tmp_path: Path) -> None:
    clock = ManualClock()
    async with house_of(tmp_path, [ROME], "Late.", clock=clock) as house:
        asked = await house.create("Weather?", tools=[WEATHER])
        clock.advance(601)
        result = {"type": "function_call_output", "call_id": asked["output"][0]["call_id"], "output": "22"}
        late = await house.create([result], previous_response_id=asked["id"])
        assert (text_of(late), late["id"][:31] == asked["id"][:31]) == ("Late.", False)
        assert [role for role, _ in house.conversation()] == ["user", "assistant", "tool"]


OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}
CALLED = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tools", {"tools": [{"type": "web_search"}]}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("tools", {"tools": [{"type": "function", "name": ""}]}),
    ("tools", {"tools": [{"type": "function", "name": "get weather"}]}),
    ("tools", {"tools": [{"type": "function", "name": "x" * 65}]}),
    ("tools", {"tools": [{"type": 3}]}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": {"type": "function", "name": ""}}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "time"}}),
    ("tool_choice", {"tool_choice": "required"}),
    (
        "tool_choice",
        {
            "tools": [WEATHER],
            "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "time"}]},
        },
    ),
    ("input", {"input": [{"type": "web_search_call", "id": "x"}]}),
    ("input", {"input": [{"role": "user", "content": "x"}, CALLED, OUTPUT, OUTPUT]}),
    ("store", {"store": False, "background": True}),
    ("previous_response_id", {"previous_response_id": "resp_unknown"}),
    ("conversation", {"conversation": "conv_1"}),
    ("colour", {"colour": "red"}),
    ("temperature", {"temperature": 3}),
    ("include", {"include": ["web_search_call.results"]}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("metadata", {"metadata": {"n": 1}}),
    ("metadata", {"metadata": {"k" * 65: "v"}}),
    ("metadata", {"metadata": {"k": "v" * 513}}),
    ("metadata", {"metadata": {str(n): "v" for n in range(17)}}),
)


async def test_what_an_agent_cannot_follow_is_400_in_openais_form(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    async with house_of(tmp_path, "x", "y") as house:
        for param, more in REFUSED:
            with subtests.test(param, more=more):
                answer = await house.http.post("/responses", json={"model": "helper", "input": "x", **more})
                error = answer.json()["error"]
                assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
                assert error["param"] == param and error["message"]
        accepted = {"user": "u", "truncation": "auto", "service_tier": "auto", "top_p": 1, "top_logprobs": 0}
        include = ["reasoning.encrypted_content"]
        await house.create(parallel_tool_calls=False, include=include, reasoning=None, **accepted)
        unknown = await house.http.post("/responses", json={"model": "nobody", "input": "x"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "agent_not_found")
        assert not house.provider.requests[1:]
        response = await house.create(metadata={str(n): "v" * 200 for n in range(16)})
        for query in ("after=nonsense", "limit=0"):
            answer = await house.http.get(f"/responses/{response['id']}/input_items?{query}")
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, query.partition("=")[0])


async def test_a_response_is_continued_by_its_own_agent_and_a_call_has_one_output(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME], "Sunny.", others=("other",)) as house:
        asked = await house.create("Weather?", tools=[WEATHER])
        output = {**OUTPUT, "call_id": asked["output"][0]["call_id"]}
        for more, param in (
            ({"model": "other", "input": "x"}, "previous_response_id"),
            ({"input": [output, {**output, "output": "2"}]}, "input"),
        ):
            body = {"model": "helper", "previous_response_id": asked["id"], **more}
            refused = await house.http.post("/responses", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert text_of(await house.create([output], previous_response_id=asked["id"])) == "Sunny."


async def test_failures_are_a_status_or_the_last_event(tmp_path: Path) -> None:
    limit = {"input": [{"type": "max_length", "max_chars": 5, "message": "Too long."}]}
    async with house_of(tmp_path, "x", guardrails=limit) as house:
        for store in (True, False):
            body = {"model": "helper", "input": "far too long", "store": store}
            answer = await house.http.post("/responses", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "guardrail_blocked")
        (failed,) = (await house.stream("far too long"))[-1:]
        assert (failed["type"], failed["response"]["error"]["code"]) == (
            "response.failed",
            "guardrail_blocked",
        )
        checked(failed["response"])
        unstored = await house.http.post("/responses", json={**body, "stream": True})
        assert unstored.status_code == 422


async def test_a_compacted_conversation_goes_on_from_its_summary(tmp_path: Path) -> None:
    async with house_of(tmp_path, "Hi Ann.", "Ann likes tea.", "Tea!") as house:
        first = await house.create("I am Ann. I like tea.")
        client = house.openai.responses.with_raw_response
        answer = await client.compact(model="helper", previous_response_id=first["id"])
        published.CompactResource.model_validate_json(answer.text)
        assert [item.type for item in answer.parse().output] == ["message", "compaction"]
        assert "user: I am Ann. I like tea.\nassistant: Hi Ann." in house.conversation()[0][1]
        items = json.loads(answer.text)["output"]
        await house.create([*items, {"role": "user", "content": "What do I like?"}])
        assert [text.splitlines()[-1] for _, text in house.conversation()] == [
            "I am Ann. I like tea.", "Ann likes tea.", "What do I like?",
        ]  # fmt: skip
        empty = await house.http.post("/responses/compact", json={"model": "helper"})
        assert (empty.status_code, empty.json()["error"]["param"]) == (400, "input")


async def test_a_response_waits_for_a_person_and_goes_on_with_the_decision(tmp_path: Path) -> None:
    pay = {"name": "pay", "type": "internal", "function": "tests.integration.sample_tools:lookup"}
    tools = [{**pay, "approval": "required"}]
    async with house_of(tmp_path, [ToolCall("c1", "pay", '{"query": "x"}')], "Paid.", tools=tools) as house:
        waiting = await house.create("Pay.")
        assert (waiting["status"], waiting["output"]) == ("in_progress", [])
        run = waiting["id"].replace("resp_", "run_")
        await house.http.post(f"/runs/{run}/resume", json={"decision": "approve"})
        assert text_of(await ended(house, waiting["id"])) == "Paid."


async def test_langchain_speaks_it_unchanged(tmp_path: Path) -> None:
    class City(pydantic.BaseModel):
        name: str

    async with house_of(tmp_path, [ROME], "Sunny.", '{"name": "Rome"}') as house:
        model = ChatOpenAI(
            model="helper",
            base_url=str(house.http.base_url),
            api_key=SecretStr("none"),
            use_responses_api=True,
        )
        bound = model.bind_tools([WEATHER])
        asked = await bound.ainvoke([HumanMessage("The weather?")])
        (call,) = asked.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Rome"})
        result = ToolMessage("22", tool_call_id=call["id"])
        assert (await bound.ainvoke([HumanMessage("The weather?"), asked, result])).text == "Sunny."
        assert await model.with_structured_output(City).ainvoke("A city.") == City(name="Rome")
