"""The reasoning nodes and the prebuilt graphs."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.errors import ProviderRejected
from astromesh.graph import BaseNode, NodeFlag, PromptGraph, node, prebuilt
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.nodes import (
    CritiqueNode,
    FanOutNode,
    JustifyNode,
    ObserveNode,
    PlanNode,
    PromptNode,
    ReflectNode,
    RetryNode,
    SynthesizeNode,
    ThinkNode,
    ValidateNode,
)
from astromesh.graph.nodes.reasoning import steps_of
from astromesh.testing import RecordingTool, ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, Message, ToolCall

F = NodeFlag


async def run(nodes: Any, *script: Any, **engine: Any):
    graph = nodes if isinstance(nodes, PromptGraph) else PromptGraph(nodes=nodes)
    if not isinstance(nodes, PromptGraph):
        graph.sequential(*(n.name for n in nodes))
    model = ScriptedProvider(*script)
    return await PromptGraphEngine(graph, model, **engine).ainvoke("Why?"), model


def system(request: CompletionRequest) -> str:
    return request.messages[0].content if request.messages[0].role == "system" else ""


# -- document 002: default flags -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "flags"),
    [
        (ThinkNode("n"), {F.READONLY, F.LIGHTWEIGHT}),
        (ReflectNode("n"), {F.STATEFUL, F.OBSERVABLE}),
        (ObserveNode("n"), {F.STATEFUL}),
        (JustifyNode("n"), {F.READONLY, F.OBSERVABLE, F.VERBOSE}),
        (CritiqueNode("n"), {F.READONLY, F.OBSERVABLE}),
        (PlanNode("n"), {F.STATEFUL, F.OBSERVABLE}),
        (SynthesizeNode("n"), {F.OBSERVABLE}),
        (ValidateNode("n"), {F.READONLY, F.VALIDATE_OUTPUT}),
        (RetryNode("n", ThinkNode("c")), {F.RETRYABLE}),
        (FanOutNode("n", ThinkNode("c"), []), {F.PARALLEL_SAFE}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_default_flags(made: BaseNode, flags):
    """The table at the end of document 002, and further flags beside them."""
    assert made.flags == flags
    more = type(made)("n", *([ThinkNode("c")] if hasattr(made, "node") else []), flags={F.CRITICAL, "mine"})
    assert more.flags == flags | {F.CRITICAL, "mine"}


# -- what they find ------------------------------------------------------------------------------------------


async def test_think_keeps_its_thought_to_itself():
    """The thought is an output for other nodes; the conversation stays, and the small model is asked."""
    small = ScriptedProvider("first look, then answer")
    nodes = [
        ThinkNode("t", instructions="About cats.", output_key="thought"),
        PromptNode("p", input_keys=["thought"]),
    ]
    result, model = await run(nodes, "ok", lightweight_model=small)
    assert result.context["thought"] == "first look, then answer"
    assert [m.content for m in result.messages] == ["Why?", "ok"]
    assert system(small.requests[0]).endswith("About cats.")
    assert "first look" in system(model.requests[0])


async def test_reflections_are_gathered_and_seen_by_later_nodes():
    """Writes to `state.reflections`."""
    result, model = await run([ReflectNode("r"), PromptNode("p")], "be brief", "ok")
    assert "## Reflections\n- be brief" in system(model.requests[1])
    assert result.output == "ok"


@pytest.mark.parametrize(
    ("said", "entities", "facts"),
    [
        ('{"entities": {"Ada": "a person"}, "facts": ["Ada codes"]}', {"Ada": "a person"}, ["Ada codes"]),
        ('Here: {"entities": ["Ada"], "facts": "Ada codes"}', {"Ada": ""}, ["Ada codes"]),
        ("Ada codes", {}, ["Ada codes"]),
    ],
)
async def test_observations_go_into_the_context(said, entities, facts):
    """Entities and facts, merged with what is there; facts also become observations."""

    @node("before", flags={F.STATEFUL})
    def before(state):
        state.context["facts"] = ["old"]

    result, model = await run([before, ObserveNode("o"), PromptNode("p")], said, "ok")
    assert result.context["entities"] == entities
    assert result.context["facts"] == ["old", *facts]
    assert "## Observations\n- Ada codes" in system(model.requests[1])


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        ('["a", "b"]', ["a", "b"]),
        ('```json\n["a", "b"]\n```', ["a", "b"]),
        ('See [1]. My plan: ["a", "b"]', ["a", "b"]),
        ('{"thought": "none needed"}', ['{"thought": "none needed"}']),
        ("[]", []),
        ('{"steps": ["a"]}', ["a"]),
        ('{"plan": ["a", {"do": "b"}]}', ["a", {"do": "b"}]),
        ("1. first\n2) second\n", ["first", "second"]),
        ("- a\n- b", ["a", "b"]),
        ("one line", ["one line"]),
        ("", []),
    ],
)
def test_plans_are_read_from_json_and_from_lists(said, steps):
    """Models answer with arrays, objects and numbered lists."""
    assert steps_of(said) == steps


async def test_a_plan_is_written_to_the_state():
    """A new plan takes the place of the old one, and later nodes see it."""
    result, model = await run([PlanNode("a"), PlanNode("b"), PromptNode("p")], '["x"]', '["y", "z"]', "ok")
    assert result.context["b_output"] == '["y", "z"]'
    assert "## Plan\n1. y\n2. z" in system(model.requests[2])


@pytest.mark.parametrize(
    ("said", "severity", "visited"),
    [
        ('{"severity": "high", "issues": ["wrong"]}', "high", ["c", "fix"]),
        ('{"severity": "low", "issues": []}', "low", ["c", "done"]),
        ("It is all wrong.", "medium", ["c", "done"]),
    ],
)
async def test_a_severe_critique_leads_to_the_revision(said, severity, visited):
    """Document 000, step 3: reasoning nodes set `next_node`; no severity counts as medium."""

    @node("fix")
    def fix(state):
        return state.context["c"]

    @node("done")
    def done(state):
        return state.context["c"]

    graph = PromptGraph(nodes=[CritiqueNode("c", revise="fix", threshold="high", output_key="c"), fix, done])
    graph.always("c", "done").always("fix", "__end__").always("done", "__end__")
    result, _ = await run(graph, said)
    assert result.report.nodes_visited == visited
    assert result.output["severity"] == severity
    assert result.output["issues"] == (
        [] if severity == "low" else ["wrong"] if severity == "high" else [said]
    )


@pytest.mark.parametrize(("said", "visited"), [("true", ["v", "yes"]), ("false", ["v", "no"])])
async def test_validation_leads_to_one_of_two_ways(said, visited):
    """Its output is checked against its own schema, and repaired once."""

    @node("yes")
    def yes(state):
        return "yes"

    @node("no")
    def no(state):
        return "no"

    graph = PromptGraph(nodes=[ValidateNode("v", on_valid="yes", on_invalid="no"), yes, no])
    graph.always("yes", "__end__")
    result, model = await run(graph, "I think so", f'{{"valid": {said}, "problems": []}}')
    assert result.report.nodes_visited == visited
    assert model.requests[0].output_schema == ValidateNode.schema
    assert graph.validate() == []
    failed, _ = await run(graph, "I think so", "still talking")
    assert "output_schema" in failed.report.error


async def test_justify_and_synthesize_answer_in_words():
    """The justification is for auditors, the synthesis for the reader."""
    result, _ = await run([JustifyNode("j"), SynthesizeNode("s")], "because", "The answer.")
    assert result.context["j_output"] == "because"
    assert [m.content for m in result.messages] == ["Why?", "The answer."]


@pytest.mark.parametrize(
    ("made", "voice"),
    [
        (ThinkNode("n"), "think"), (ReflectNode("n"), "reflect"), (ObserveNode("n"), "observe"),
        (JustifyNode("n"), "justify"), (CritiqueNode("n"), "critic"), (PlanNode("n"), "planner"),
        (ValidateNode("n"), "validate"), (SynthesizeNode("n"), "assistant"),
    ],
    ids=lambda value: getattr(value, "name", value) and type(value).__name__,
)  # fmt: skip
async def test_only_the_synthesis_is_the_runs_own_voice(made, voice):
    """What the others say is for the graph and never a token of the answer."""
    engine = PromptGraphEngine(PromptGraph(nodes=[made]), ScriptedProvider('{"valid": true}'))
    events = [e async for e in engine.astream_events("Why?")]
    assert {e.data["role"] for e in events if e.type == "model.started"} == {voice}


async def test_a_failed_reasoning_node_writes_nothing():
    """The failure is the node's."""
    result, _ = await run([ReflectNode("r")], ProviderRejected("no"))
    assert "no" in result.report.error
    assert result.output is None


# -- prebuilt graphs -----------------------------------------------------------------------------------------

TOOL = RecordingTool("look", "42")


async def test_react_calls_tools_until_it_answers():
    """With the engine's tools, or its own; what the caller's system prompt says stays."""
    result, model = await run(prebuilt.react("Be kind."), ToolCall("1", "look"), "It is 42.", tools=[TOOL])
    assert result.output == "It is 42."
    assert system(model.requests[0]).startswith("Be kind.")
    own, model = await run(prebuilt.react(tools=[TOOL]), ToolCall("1", "look"), "It is 42.")
    assert (own.output, own.report.tool_calls) == ("It is 42.", ["look"])
    engine = PromptGraphEngine(prebuilt.react(), model := ScriptedProvider('{"route": "x"}'), tools=[TOOL])
    given = [Message("system", "Rendered."), Message("user", "Hi")]
    assert (await engine.ainvoke(given)).output == '{"route": "x"}'
    assert model.requests[0].messages == tuple(given)


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_react_makes_exactly_so_many_model_calls(limit):
    """Traps 11 and 22: at the limit the last words of the model, never a tool result."""
    reply = CompletionResult("Looking.", (ToolCall("1", "look"),))
    result, model = await run(prebuilt.react(), *[reply] * limit, tools=[TOOL], max_iterations=limit)
    assert (len(model.requests), result.report.stop_reason) == (limit, "max_iterations")
    assert (result.text, result.output) == ("Looking.", None)


async def test_plan_and_execute_works_through_its_plan():
    """Plan, each step with tools, answer; later steps see what earlier ones found."""
    script = ['["look", "sum up"]', ToolCall("1", "look"), "found 42", "summed", "It is 42."]
    result, model = await run(prebuilt.plan_and_execute("Be kind."), *script, tools=[TOOL])
    assert result.output == "It is 42."
    assert result.report.nodes_visited == [
        "plan", "next_step", "work", "work/react", "work/react", "next_step", "work",
        "work/react", "next_step", "answer",
    ]  # fmt: skip
    assert "## step\nlook" in system(model.requests[1])
    assert "## step\nsum up" in system(model.requests[3])
    assert any(m.content == "found 42" for m in model.requests[3].messages)
    assert model.requests[0].role == "planner"
    assert [m.content for m in result.messages if m.role == "assistant"][-1] == "It is 42."


async def test_plan_and_execute_plans_anew_after_a_failure():
    """The planner is told which step failed; max_replans bounds it, then the answer is written anyway."""
    script = ['["a"]', ProviderRejected("no such thing"), '["b"]', "did b", "Done."]
    result, model = await run(prebuilt.plan_and_execute(), *script)
    assert result.output == "Done."
    assert "The step 'a' failed" in system(model.requests[2])
    script = ['["a"]', ProviderRejected("no"), '["b"]', ProviderRejected("no"), "Could not."]
    result, model = await run(prebuilt.plan_and_execute(max_replans=1), *script)
    assert (result.output, len(model.requests)) == ("Could not.", 5)


async def test_a_step_of_a_plan_has_its_own_limit():
    """`max_iterations` counts the model calls of each step, not those of all together."""
    looking = ToolCall("1", "look")
    script = ['["a", "b"]', looking, "did a", looking, "did b", "Done."]
    result, _ = await run(prebuilt.plan_and_execute(max_iterations=2), *script, tools=[TOOL])
    assert (result.output, result.report.error) == ("Done.", "")


async def test_deliberate_takes_its_six_steps():
    """Think, plan, act, observe, reflect, answer."""
    script = ["think", '["look"]', ToolCall("1", "look"), "42 seen", '{"facts": ["it is 42"]}', "good", "42."]
    result, model = await run(prebuilt.deliberate("Be kind."), *script, tools=[TOOL])
    assert result.output == "42."
    assert result.report.nodes_visited == ["think", "plan", "act", "act", "observe", "reflect", "answer"]
    assert "it is 42" in system(model.requests[-1])


async def test_a_debate_goes_in_turns_and_is_judged():
    """Proposer and critic as often as asked, or until the critic is content; then judge and answer."""
    bad, good = '{"severity": "high", "issues": ["weak"]}', '{"severity": "none", "issues": []}'
    result, model = await run(prebuilt.debate(rounds=2), "p1", bad, "p2", bad, "judged", "Answer.")
    turn = ["proposer", "critic", "count_round"]
    assert result.report.nodes_visited == [*turn, *turn, "judge", "answer"]
    assert "weak" in system(model.requests[2])
    assert "judged" in system(model.requests[-1])
    assert result.output == "Answer."
    result, _ = await run(prebuilt.debate(rounds=5), "p1", good, "judged", "Answer.")
    assert result.report.nodes_visited == ["proposer", "critic", "judge", "answer"]
    with pytest.raises(ValueError, match="at least one round"):
        prebuilt.debate(rounds=0)


async def test_a_pipeline_hands_on_from_stage_to_stage():
    """Stages as mappings or as nodes; only the last one speaks to the reader."""
    stages = [{"name": "draft", "prompt": "Draft."}, {"name": "edit", "prompt": "Edit.", "role": "critic"}]
    graph = prebuilt.pipeline(stages)
    model = ScriptedProvider("a draft", "An edit.")
    events = [e async for e in PromptGraphEngine(graph, model).astream_events("Why?")]
    assert {e.data["role"] for e in events if e.type == "model.delta"} == {"draft", "assistant"}
    assert "## Result of draft\na draft" in system(model.requests[1])
    assert model.requests[1].role == "critic"
    mine = ThinkNode("t")
    before = dict(vars(mine))
    await run(prebuilt.pipeline([mine, stages[0]]), "x", "y")
    assert vars(mine) == before
    with pytest.raises(ValueError, match="at least one stage"):
        prebuilt.pipeline([])


async def test_autonomous_lets_the_model_choose():
    """A pool in one node."""
    graph = prebuilt.autonomous([ThinkNode("think"), PromptNode("answer", is_terminal=True)], max_steps=4)
    result, _ = await run(graph, '{"next_node": "think"}', "hm", '{"next_node": "answer"}', "42.")
    assert result.output == "42."
    assert result.report.nodes_visited == ["autonomous", "autonomous/think", "autonomous/answer"]


def test_prebuilt_graphs_are_new_each_time():
    """Trap 19: changing one changes no other."""
    one, other = prebuilt.react(), prebuilt.react()
    one.add_node(ThinkNode("x"))
    assert not other.has_node("x")


@pytest.mark.parametrize("made", [prebuilt.pipeline, prebuilt.autonomous, PromptGraph.from_pool])
async def test_a_prebuilt_graph_leaves_the_nodes_it_is_given_as_they_were(made):
    """Trap 19: neither building nor running changes them, so that several graphs may use them."""
    given = [ThinkNode("think"), PromptNode("answer", is_terminal=True, tools=[RecordingTool("look")])]
    before = [dict(vars(n)) for n in given]
    script = ['{"next_node": "answer"}', "done"] if made is not prebuilt.pipeline else ["hm", "done"]
    for _ in range(2):
        result, _ = await run(made(given), *script)
        assert result.output == "done"
    assert [dict(vars(n)) for n in given] == before
