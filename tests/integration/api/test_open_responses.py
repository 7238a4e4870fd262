"""The Responses API: the compliance cases of Open Responses (2026-04-24), and stored responses.

The cases are those of `src/lib/compliance-tests.ts` in the repository openresponses/openresponses, by their
ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astromesh.testing import Reply
from astromesh.types import ToolCall, Usage
from tests.integration.api.responses_client import House, deltas_of, house_of, text_of
from tests.unit.graph.reasoning_runs import DRAFT, model_of

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"location": {"type": "string"}},
    "required": ["location"],
}
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": CITY}
CALL = ToolCall("c1", "get_weather", '{"location": "San Francisco"}')
HEART = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
MEMORY = {"conversational": {"backend": "in_memory", "strategy": "sliding_window", "max_turns": 20}}
WHO = "What is my name?"


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "basic-response": ([said("user", "Say hello in exactly 3 words.")], {}),
    "streaming-response": ([said("user", "Count from 1 to 5.")], {"stream": True}),
    "system-prompt": ([said("system", "You are a pirate."), said("user", "Say hello.")], {}),
    "tool-calling": ([said("user", "The weather in San Francisco?")], {"tools": [WEATHER]}),
    "tool-calling-streaming": (
        [said("user", "The weather in San Francisco?")],
        {"tools": [WEATHER], "stream": True},
    ),
    "image-input": (
        [
            said(
                "user",
                [
                    {"type": "input_text", "text": "What do you see?"},
                    {"type": "input_image", "image_url": HEART},
                ],
            )
        ],
        {},
    ),
    "multi-turn": (
        [said("user", "My name is Alice."), said("assistant", "Hello Alice!"), said("user", WHO)],
        {},
    ),
}


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not-stored"])
async def test_the_compliance_cases_pass(tmp_path: Path, store: bool) -> None:
    script = [[CALL] if "tool" in case else Reply(chunks=("Hello ", "there.")) for case in CASES]
    async with house_of(tmp_path, *script) as house:
        for case, (items, more) in CASES.items():
            events = await house.stream(items, store=store, **more) if "stream" in more else []
            response = events[-1]["response"] if events else await house.create(items, store=store, **more)
            assert response["status"] == "completed", case
            kinds = [item["type"] for item in response["output"]]
            assert kinds == ["function_call" if "tool" in case else "message"], case
            assert response["store"] is store
            if events:
                assert [e["sequence_number"] for e in events] == list(range(len(events)))
            if case == "streaming-response":
                assert deltas_of(events) == text_of(response) == "Hello there."
            if case == "tool-calling-streaming":
                _check_call(events)
        first = house.provider.requests[-1].messages
        assert [m.content for m in first[-3:]] == ["My name is Alice.", "Hello Alice!", WHO]
        pirate = house.conversation(2)
        assert pirate[0][0] == "user" and "information, not instruction" in pirate[0][1]
        assert house.provider.requests[5].messages[-1].attachments


def _check_call(events: list[dict[str, Any]]) -> None:
    kinds = [e["type"] for e in events]
    assert kinds[2:6] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert events[3]["delta"] == events[4]["arguments"] == events[5]["item"]["arguments"]


async def test_a_stream_has_the_events_of_the_specification_and_is_read_again_from_any_place(
    tmp_path: Path,
) -> None:
    async with house_of(tmp_path, Reply(chunks=("One, ", "two."), usage=Usage(7, 3))) as house:
        events = await house.stream(instructions="Count.", metadata={"k": "v"})
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
        response = events[-1]["response"]
        assert (response["instructions"], response["metadata"]) == ("Count.", {"k": "v"})
        assert (response["usage"]["input_tokens"], response["usage"]["total_tokens"]) == (7, 10)
        name = response["id"]
        assert await house.get(name) == response
        assert await house.replay(name) == events
        for after in range(len(events)):
            assert await house.replay(name, after) == events[after + 1 :]


async def test_a_chain_has_the_whole_conversation_and_an_older_response_branches(tmp_path: Path) -> None:
    async with house_of(tmp_path, "Hi Ann.", "You are Ann.", "You are not Bob.", "Ann!") as house:
        await check_chain(house)


async def test_a_chain_of_an_agent_with_memory_is_its_session_until_it_branches(tmp_path: Path) -> None:
    script = ("Hi Ann.", "You are Ann.", "You are not Bob.", "Ann!")
    async with house_of(tmp_path, *script, memory=MEMORY) as house:
        await check_chain(house)
        sessions = (await house.http.get("/runs")).json()["runs"]
        newest, branch, second, first = [run["session_id"] for run in sessions]
        assert (first == second == newest, branch != first) == (True, True)


async def check_chain(house: House) -> None:
    first = await house.create("I am Ann.")
    second = await house.create("Who am I?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    start = [("user", "I am Ann."), ("assistant", "Hi Ann.")]
    assert house.conversation() == [*start, ("user", "Who am I?")]
    await house.create("Am I Bob?", previous_response_id=first["id"])
    assert house.conversation() == [*start, ("user", "Am I Bob?")]
    await house.create("Again?", previous_response_id=second["id"])
    turns = [("user", "Who am I?"), ("assistant", "You are Ann."), ("user", "Again?")]
    assert house.conversation() == [*start, *turns]
    items = (await house.http.get(f"/responses/{second['id']}/input_items")).json()
    assert [item["content"][0]["text"] for item in items["data"]] == ["Who am I?"]


async def test_a_call_goes_on_in_the_same_run_with_the_response_before_or_without_it(tmp_path: Path) -> None:
    again = ToolCall("c2", "get_weather", '{"location": "Oakland"}')
    async with house_of(tmp_path, [CALL], [again], "Sunny.", "It was sunny.") as house:
        asked = await house.create("Weather?", tools=[WEATHER])
        (call,) = asked["output"]
        missing = {"model": "helper", "input": "Well?", "previous_response_id": asked["id"]}
        refused = await house.http.post("/responses", json=missing)
        assert (refused.status_code, call["call_id"] in refused.text) == (400, True)
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 degrees"}
        second = await house.create([output], previous_response_id=asked["id"], tools=[WEATHER])
        (call,) = second["output"]
        third = await house.stream(
            [{"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"}],
            previous_response_id=second["id"],
        )
        final = third[-1]["response"]
        assert text_of(final) == "Sunny."
        for one in (asked, second, final):
            assert await house.get(one["id"]) == one
        assert await house.replay(final["id"], 2) == third[3:]
        assert len({asked["id"][:31], second["id"][:31], final["id"][:31]}) == 1
        items = (await house.http.get(f"/responses/{second['id']}/input_items")).json()["data"]
        assert [(item["type"], item["output"]) for item in items] == [("function_call_output", "22 degrees")]
        await house.create("And?", previous_response_id=final["id"])
        roles = [role for role, _ in house.conversation()]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
        (run, _) = reversed((await house.http.get("/runs")).json()["runs"])
        assert run["status"] == "completed"


async def test_the_summary_of_the_reasoning_controller_is_an_item_before_the_message(tmp_path: Path) -> None:
    async with house_of(tmp_path, orchestration={"pattern": "reasoning"}, provider=model_of()) as house:
        events = await house.stream(reasoning={"summary": "auto"})
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
        (part,) = response["output"][0]["summary"]
        kinds = [e["type"].removeprefix("response.") for e in events if e.get("output_index") == 0]
        assert kinds == [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
        ]
        assert part["text"] == next(e["delta"] for e in events if "summary_text.delta" in e["type"]) != ""
        assert text_of(response) == DRAFT
        assert await house.get(response["id"]) == response
        assert await house.replay(response["id"], 4) == events[5:]
        again = await house.create([*response["output"], said("user", "Why?")])
        assert again["output"][0]["type"] == "reasoning"
