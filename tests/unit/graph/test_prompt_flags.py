"""Flags and traps where they meet prompts and tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from astromesh.errors import ProviderRejected, ProviderTimeout, ProviderUnauthorized
from astromesh.graph import NodeFlag, NodeResult, PromptGraph, PromptGraphEngine, node
from astromesh.graph.nodes import PromptNode
from astromesh.testing import ManualClock, RecordingTool, ScriptedProvider
from astromesh.types import CompletionResult, Message, ToolCall, Usage

F = NodeFlag


def again(times: int):
    """A node that goes round so many times."""

    @node("again")
    def counted(state):
        return {"more": state.node_iterations["again"] < times}

    return counted


async def run(graph: PromptGraph, *script: Any, given: Any = "Why?", **engine: Any):
    model = ScriptedProvider(*script)
    return await PromptGraphEngine(graph, model, **engine).ainvoke(given), model


async def test_a_cached_prompt_with_tools_is_cached_as_a_whole():
    """Trap 1: never the step that asks for tools; a hit repeats the answer without model or tool."""
    tool = RecordingTool("look", "42")
    prompt = PromptNode("p", tools=[tool], flags={F.CACHEABLE}, input_keys=["q"], output_key="a")
    graph = PromptGraph(nodes=[prompt, again(3)]).always("p", "again").on_output("again", "p", "more")
    model = ScriptedProvider(ToolCall("1", "look"), "It is 42.")
    result = await PromptGraphEngine(graph, model).ainvoke("Why?", context={"q": "x"})
    assert (len(model.requests), len(tool.calls)) == (2, 1)
    assert result.context["a"] == "It is 42."
    assert result.report.nodes_visited == ["p", "p", "again", "p", "again", "p", "again"]


async def test_without_declared_inputs_the_conversation_is_part_of_the_key():
    """Trap 1: a prompt that sees other messages is another prompt."""
    prompt = PromptNode("p", flags={F.CACHEABLE})
    graph = PromptGraph(nodes=[prompt, again(2)]).always("p", "again").on_output("again", "p", "more")
    _, model = await run(graph, "one", "two")
    assert len(model.requests) == 2


async def test_no_history_keeps_system_question_and_own_tool_loop():
    """Trap 2; afterwards everything is there again."""
    tool = RecordingTool("look", "42")
    prompt = PromptNode("p", tools=[tool], flags={F.NO_HISTORY})
    given = [
        Message("system", "S"), Message("user", "old"), Message("assistant", "older"),
        Message("user", "Why?"),
    ]  # fmt: skip
    result, model = await run(PromptGraph(nodes=[prompt]), ToolCall("1", "look"), "42.", given=given)
    assert [m.content for m in model.requests[0].messages] == ["S", "Why?"]
    assert [m.role for m in model.requests[1].messages] == ["system", "user", "assistant", "tool"]
    assert [m.role for m in result.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_an_isolated_prompt_sees_its_inputs_alone():
    """Trap 13: and only its output key comes back."""
    prompt = PromptNode(
        "p", flags={F.ISOLATED_CONTEXT}, input_keys=["a"], output_key="o", inherit_context_from="other",
    )  # fmt: skip

    @node("other", flags={F.STATEFUL})
    def other(state):
        state.context.update(a="seen", b="hidden")
        state.plan.append("hidden too")

    graph = PromptGraph(nodes=[other, prompt]).sequential("other", "p")
    result, model = await run(graph, "done")
    assert model.requests[0].messages[0].content == "## a\nseen"
    assert (result.context["o"], result.context["b"]) == ("done", "hidden")


async def test_a_long_answer_is_summarised_before_it_is_written():
    """Trap 7: the summary is output, context and conversation; its tokens count; the original is kept."""
    kept: list[Any] = []

    class Keep:
        def post_node(self, node, result, state):
            kept.append(result.raw_output)

    long = "word " * 300
    prompt = PromptNode("p", flags={F.SUMMARIZE_OUTPUT}, output_key="o")
    script = CompletionResult(long, usage=Usage(1, 300)), CompletionResult("short", usage=Usage(300, 1))
    result, _ = await run(PromptGraph(nodes=[prompt]), *script, hooks=[Keep()])
    assert (result.output, result.context["o"], result.messages[-1].content) == ("short", "short", "short")
    assert result.report.usage == Usage(301, 301)
    assert kept == [long]


class Model(BaseModel):
    n: int


@dataclass
class Data:
    n: int


class Typed(TypedDict):
    n: int


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize("schema", [Model, Data, Typed, SCHEMA])
async def test_outputs_of_every_kind_of_schema_are_validated(schema):
    """Trap 17: of prompts and of functions; what does not fit fails the node."""

    @node("f", output_schema=schema, flags={F.VALIDATE_OUTPUT})
    def made(state):
        return state.context["made"]

    prompt = PromptNode("p", output_schema=schema, flags={F.VALIDATE_OUTPUT})
    result, _ = await run(PromptGraph(nodes=[prompt]), '{"n": 1}')
    assert result.report.error == ""
    engine = PromptGraphEngine(PromptGraph(nodes=[made]))
    assert (await engine.ainvoke("x", context={"made": {"n": 1}})).report.error == ""
    refused = await engine.ainvoke("x", context={"made": {"m": 1}})
    assert refused.output is None
    assert "schema" in refused.report.error


async def test_a_field_called_error_is_no_failure():
    """Trap 20: an answer that talks about an error takes no error transition."""
    graph = PromptGraph(
        nodes=[PromptNode("p", transitions={"error": "rescue"}), node("rescue")(lambda state: "r")]
    )
    graph.always("p", "__end__")
    result, _ = await run(graph, '{"error": true, "text": "404 means not found"}')
    assert result.report.nodes_visited == ["p"]
    assert result.report.error == ""


async def test_retries_pause_and_count():
    """Trap 23: pauses grow, failed tries are paid for, the last error stands in the context meanwhile."""
    clock = ManualClock(jump=True)
    prompt = PromptNode("p", flags={F.RETRYABLE}, input_keys=["_retry_error"], max_iterations=4)
    script = [ProviderTimeout("slow"), ProviderTimeout("slower"), CompletionResult("ok", usage=Usage(5, 1))]
    result, model = await run(PromptGraph(nodes=[prompt]), *script, clock=clock, seed=7)
    assert result.output == "ok"
    assert "slower" in model.requests[2].messages[0].content
    assert [round(s / (0.5, 1.0)[i], 1) for i, s in enumerate(clock.slept)] == pytest.approx(
        [1.0, 1.0], abs=0.11
    )
    assert "_retry_error" not in result.context


@pytest.mark.parametrize("error", [ProviderRejected("400"), ProviderUnauthorized("401")])
async def test_what_cannot_heal_is_tried_once(error):
    """Trap 23."""
    prompt = PromptNode("p", flags={F.RETRYABLE})
    result, model = await run(PromptGraph(nodes=[prompt]), error, clock=ManualClock(jump=True))
    assert len(model.requests) == 1
    assert result.report.error


async def test_critical_prompts_end_the_run():
    """The error of a CRITICAL node is the run's."""
    graph = PromptGraph(nodes=[PromptNode("p", flags={F.CRITICAL}), PromptNode("q")]).sequential("p", "q")
    result, model = await run(graph, ProviderRejected("no"))
    assert (result.report.stop_reason, len(model.requests)) == ("critical_error", 1)


async def test_a_lightweight_prompt_asks_the_small_model_unless_it_has_its_own():
    """LIGHTWEIGHT gives way to `model_override`."""
    small, own = ScriptedProvider("small"), ScriptedProvider("own")
    for override, expected in ((None, "small"), (own, "own")):
        prompt = PromptNode("p", flags={F.LIGHTWEIGHT}, model_override=override)
        result, main = await run(PromptGraph(nodes=[prompt]), lightweight_model=small)
        assert (result.output, main.requests) == (expected, [])


async def test_the_model_may_only_name_declared_targets():
    """Graph.md section 4: `route` in an answer leads where an edge or `routes` declares it, else nowhere."""
    other = node("other")(lambda state: "other")
    for routes, visited in (([], ["p"]), (["other"], ["p", "other"])):
        graph = PromptGraph(nodes=[PromptNode("p", routes=routes), other])
        result, _ = await run(graph, '{"route": "other"}')
        assert result.report.nodes_visited == visited
    strict = PromptGraph(nodes=[PromptNode("p", routes=["other"], routing="edges_only"), other])
    result, _ = await run(strict, '{"route": "other"}')
    assert result.report.nodes_visited == ["p"]


async def test_malformed_graph_actions_of_a_model_are_recorded():
    """Trap 3: never an exception, never applied."""
    graph = PromptGraph(nodes=[PromptNode("p")])
    for said in (
        '{"_graph_action": 3}',
        '{"_graph_action": {"op": "add_node", "name": "g", "kind": "guard"}}',
    ):
        result, _ = await run(graph, said, allow_self_modification=True)
        (mutation,) = result.report.mutations
        assert mutation.rejected
        assert list(graph.nodes) == ["p"]


def test_results_tell_steps_from_answers():
    """A step of a tool loop is no answer."""
    assert not NodeResult("p", "x").wants_tools
