"""The shipped doubles do what tests rely on."""

import asyncio

import pytest

from astromesh.errors import ProviderUnavailable, StoreUnavailable, ToolFailed
from astromesh.telemetry.events import EventStream
from astromesh.testing import (
    FaultInjector,
    ManualClock,
    RecordingSink,
    RecordingTool,
    Reply,
    ScriptedProvider,
    ScriptedTools,
    plugin_of,
)
from astromesh.tools.base import ToolContext
from astromesh.types import CompletionRequest, CompletionResult, Delta, Message, ToolCall

ASK = CompletionRequest((Message("user", "two words"),))


async def test_each_call_gets_the_next_line_and_is_recorded():
    async def later(request):
        return request.messages[0].content.upper()

    provider = ScriptedProvider("first", ToolCall("1", "lookup"), later, CompletionResult("whole"))
    assert (await provider.complete(ASK)).content == "first"
    asked = await provider.complete(ASK)
    assert (asked.tool_calls[0].name, asked.finish_reason) == ("lookup", "tool_calls")
    assert (await provider.complete(ASK)).content == "TWO WORDS"
    assert (await provider.complete(ASK)).content == "whole"
    assert provider.requests == [ASK] * 4
    with pytest.raises(AssertionError, match="4 lines"):
        await provider.complete(ASK)


async def test_a_repeating_script_says_its_last_line_again():
    provider = ScriptedProvider("a", "b", repeat=True)
    assert [(await provider.complete(ASK)).content for _ in range(3)] == ["a", "b", "b"]


async def test_a_stream_is_word_deltas_that_join_to_the_text_and_then_the_result():
    provider = ScriptedProvider(" one  two\nthree ", Reply(chunks=("ab", "c")))
    *deltas, result = [piece async for piece in provider.stream(ASK)]
    assert "".join(d.content for d in deltas) == " one  two\nthree " == result.content
    assert len(deltas) == 4
    assert [p async for p in provider.stream(ASK)][:2] == [Delta("ab"), Delta("c")]


async def test_a_stream_that_breaks_raises_after_its_chunks_and_one_that_is_left_is_counted():
    provider = ScriptedProvider(Reply("a b", error=ProviderUnavailable("cut")), "c d e")
    cut = provider.stream(ASK)
    assert [await anext(cut), await anext(cut)] == [Delta("a "), Delta("b")]
    with pytest.raises(ProviderUnavailable):
        await anext(cut)
    assert provider.closed_streams == 0
    left = provider.stream(ASK)
    await anext(left)
    await left.aclose()
    assert provider.closed_streams == 1


async def test_delays_go_by_the_given_clock():
    clock = ManualClock()
    provider = ScriptedProvider(Reply("x", delay=2.0), clock=clock)
    running = asyncio.create_task(provider.complete(ASK))
    await clock.run_for(1.9)
    assert not running.done()
    await clock.run_for(0.2)
    assert running.result().content == "x"


async def test_sleepers_wake_in_order_at_their_own_moment():
    clock, seen = ManualClock(start=100), []

    async def sleeper(seconds):
        await clock.sleep(seconds)
        seen.append((seconds, clock.now()))

    tasks = [asyncio.create_task(sleeper(s)) for s in (3, 1, 2)]
    await clock.run_for(2.5)
    assert seen == [(1, 101), (2, 102)]
    assert clock.sleepers == 1
    clock.advance(1)
    await asyncio.gather(*tasks)
    assert seen[-1] == (3, 103.5)
    assert sorted(clock.slept) == [1, 2, 3]


async def test_a_jumping_clock_never_waits():
    clock = ManualClock(jump=True)
    await clock.sleep(3600)
    assert clock.monotonic() == 3600


async def test_a_faulty_store_fails_as_planned_and_then_works():
    tool = FaultInjector(RecordingTool("t", 7), call=[StoreUnavailable("locked"), None])
    with pytest.raises(StoreUnavailable):
        await tool.call({}, ToolContext())
    assert await tool.call({}, ToolContext()) == 7
    assert tool.calls == ["call", "call"]
    assert tool.spec.name == "t"


async def test_scripted_tools_answer_and_turn_tool_errors_into_results():
    tools = ScriptedTools({"add": lambda a, b: a + b, "bad": ToolFailed("broken"), "say": {"x": 1}})
    say = [await tools.execute(ToolCall("1", n, a), ToolContext()) for n, a in
           (("add", '{"a": 1, "b": 2}'), ("bad", ""), ("say", ""), ("none", ""))]  # fmt: skip
    assert [(r.content, r.ok) for r in say[:3]] == [("3", True), ("broken", False), ('{"x":1}', True)]
    assert say[3].error == "invalid_tool_call"
    assert len(tools.specs()) == 3


def test_a_recording_sink_hears_the_stream_in_order():
    sink = RecordingSink()
    stream = EventStream("r", [sink])
    assert stream.streaming
    stream.emit("model.delta", role="assistant", content="a")
    stream.emit("model.delta", role="judge", content="b")
    stream.emit("run.completed", response="a")
    assert sink.types == ["model.delta", "model.delta", "run.completed"]
    assert sink.text() == "a"
    assert sink.one("run.completed") == {"response": "a"}
    with pytest.raises(AssertionError, match="2 events"):
        sink.one("model.delta")


async def test_a_ready_object_comes_in_by_the_plugin_door():
    provider = ScriptedProvider("x")
    plugin = plugin_of(provider)
    assert await plugin.open(plugin.Options(model="m"), None) is provider
