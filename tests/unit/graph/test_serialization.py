"""Graphs as plain data: nothing is lost, nothing is code, and every problem has its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from astromesh.errors import InvalidGraph
from astromesh.graph import prebuilt
from astromesh.graph.base import BaseNode
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes import (
    KINDS,
    AutonomousNode,
    CritiqueNode,
    FanOutNode,
    GuardNode,
    HumanNode,
    LoopNode,
    ParallelNode,
    PlanNode,
    PromptNode,
    RetryNode,
    RouterNode,
    SubgraphNode,
    ThinkNode,
    ToolNode,
    TransformNode,
    ValidateNode,
)
from astromesh.graph.nodes.function import FunctionNode, node
from astromesh.graph.nodes.guard import Guard
from astromesh.graph.nodes.system_prompt import (
    AnswerAfterMarker,
    Examples,
    FromState,
    Rules,
    Text,
    chain_of_thought,
)
from astromesh.graph.policies import RetryPolicy
from astromesh.graph.transitions import OnConfidence, OnOutput
from astromesh.testing import RecordingTool, ScriptedProvider


class Answer(BaseModel):
    text: str


def clean(value):
    return value


def is_polite(output) -> bool:
    return True


def greet(state) -> str:
    return "hi"


async def work(state):
    return "done"


def enough(result, state) -> bool:
    return True


class MyNode(BaseNode):
    async def execute(self, state, config):
        raise NotImplementedError


class Audited:
    """A custom flag."""


SPECIAL = AnswerAfterMarker("special", "Be special.")


def everything() -> PromptGraph:
    """A graph that uses every kind of node and every kind of value."""
    prompt = PromptNode(
        "prompt",
        role="worker",
        instructions="Say `{python: x}` and\nnewlines.",
        description="all keywords",
        blocks=[
            "text", Text("a", "B"), Rules(("x", "y")), Examples((("i", "o"),)), greet,
            FromState(greet), FromState(greet, "Now"),
        ],
        strategy=chain_of_thought,
        perspective="analyst",
        preprocessor=clean,
        postprocessor=clean,
        guards=[is_polite, Guard(is_polite, "retry", name="kind", max_retries=4)],
        tools=["search", RecordingTool("look")],
        inject_tools=True,
        tool_loop=False,
        input_keys=["a", "b"],
        output_key="c",
        inherit_context_from="think",
        output_schema=Answer,
        model_override="planner",
        flags={NodeFlag.CRITICAL, NodeFlag.OBSERVABLE, "pii", Audited},
        is_entry=True,
        is_terminal=True,
        transitions={"yes": "think", True: "tool", 3: "human"},
        default_next="tool",
        routes=["router"],
        routing="edges_only",
        timeout=2.5,
        pure=True,
        max_iterations=7,
    )  # fmt: skip
    inner = PromptGraph("inner", nodes=[ThinkNode("t")], routing="edges_only")
    nodes: list[BaseNode] = [
        prompt,
        ThinkNode("think", output_schema={"type": "object", "properties": {"python": {"type": "string"}}}),
        ToolNode("tool", "search", {"python": "not an object", "q": [1, {"literal": 2}]}),
        ToolNode("tool2", "search", clean),
        RouterNode("router", routes={"think": "to think", "x": ""}, transitions={"x": "tool"}, max_tries=2),
        RouterNode("router2", transitions={"a": "think", "error": "tool"}, choose=greet),
        GuardNode("guard", guards=[is_polite], retry_node="prompt", routes=["think"]),
        ParallelNode("parallel", [ThinkNode("p1"), MyNode("p2", output_key="o")], on_error="collect"),
        FanOutNode("fan", PromptNode("worker"), ["a", {"python": "x"}], item_key="it", max_items=3),
        FanOutNode("fan2", FunctionNode("f", work), clean),
        LoopNode("loop", [PlanNode("l1"), FunctionNode("l2", work)], enough, max_loops=2),
        LoopNode("loop2", PlanNode("l1"), "done"),
        HumanNode("human", instructions="ok?", approval_timeout=3),
        TransformNode("transform", clean, input_keys=["c"]),
        SubgraphNode("sub", inner),
        AutonomousNode("auto", [ThinkNode("a1"), PromptNode("a2", is_terminal=True)], 4),
        RetryNode("retry", FunctionNode("r", work), max_attempts=5),
        CritiqueNode("critique", revise="prompt", threshold="high"),
        ValidateNode("validate", on_valid="think", on_invalid="prompt", routes=["tool"]),
        FunctionNode("function", work, strategy=SPECIAL),
    ]
    graph = PromptGraph("everything", nodes=nodes, routing="edges_only")
    graph.set_entry("think").set_finalizer("function")
    graph.always("think", "tool", label="go", priority=3).on_error("tool", "human")
    graph.on_tool_call("prompt", "tool").on_no_tool_call("prompt", "guard").on_guard_fail("guard", "human")
    graph.on_output("router", "tool", "key", {"python": "a:b"}).on_confidence("router", "sub", 0.75)
    return graph.when("loop", "sub", enough, label="done").loop_until("loop2", "sub", is_polite)


NAMES = {"special": SPECIAL}


def found(graph: PromptGraph, name: str) -> Any:
    return graph.get_node(name)


def test_everything_survives_yaml():
    """Written to YAML text and read again, the graph writes the same data."""
    data = everything().to_config(objects=NAMES)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    again = PromptGraph.from_config(yaml.safe_load(text), objects=NAMES)
    assert again.to_config(objects=NAMES) == data
    assert {type(n) for n in again.nodes.values()} == {type(n) for n in everything().nodes.values()}


def test_objects_come_back_as_themselves():
    """Functions, classes, guards, conditions and flags are the very same objects again."""
    again = PromptGraph.from_config(everything().to_config(objects=NAMES), objects=NAMES)
    prompt = again.get_node("prompt")
    assert prompt.output_schema is Answer
    assert prompt.preprocessor is clean
    assert prompt.guards[0] is is_polite
    assert (prompt.guards[1].check, prompt.guards[1].mode, prompt.guards[1].max_retries) == (
        is_polite,
        "retry",
        4,
    )
    assert prompt.tools == ("search", "look")
    assert prompt.flags >= {NodeFlag.CRITICAL, NodeFlag.ENTRY, NodeFlag.INJECT_TOOLS, "pii", Audited}
    assert prompt.transitions == {"yes": "think", True: "tool", 3: "human"}
    assert prompt.blocks[4] is greet
    assert found(again, "function").strategy is SPECIAL
    assert found(again, "tool").arguments == {"python": "not an object", "q": [1, {"literal": 2}]}
    assert found(again, "fan").items == ["a", {"python": "x"}]
    assert found(again, "loop").until is enough
    conditions = [e.condition for e in again.get_edges_from("router")]
    assert conditions == [OnOutput("key", {"python": "a:b"}), OnConfidence(0.75)]
    assert (again.entry, again.finalizer, again.routing) == ("think", "function", "edges_only")


def test_defaults_are_left_out():
    """A file says only what differs from the defaults, those of the class's own arguments included."""
    graph = PromptGraph("g", nodes=[PromptNode("p"), AutonomousNode("a", [ThinkNode("t")])])
    assert graph.to_config() == {
        "name": "g",
        "entry": "p",
        "nodes": [
            {"name": "p", "kind": "prompt"},
            {"name": "a", "kind": "autonomous", "pool": [{"name": "t", "kind": "think"}]},
        ],
    }


def test_every_kind_is_in_the_graph_of_everything():
    """So that no kind can be forgotten by the tests above."""
    data = everything().to_config(objects=NAMES)
    kinds = {n["kind"] for n in data["nodes"]}
    assert KINDS.keys() - kinds == {
        "reflect",
        "observe",
        "justify",
        "plan",
        "synthesize",
    }  # no arguments of their own


@pytest.mark.parametrize(
    "graph",
    [
        prebuilt.react("Be kind.", max_iterations=3),
        prebuilt.plan_and_execute(max_replans=2),
        prebuilt.deliberate(),
        prebuilt.debate(rounds=3),
        prebuilt.pipeline([{"name": "a", "prompt": "A"}, {"name": "b", "prompt": "B", "role": "judge"}]),
        prebuilt.autonomous([ThinkNode("think")]),
    ],
    ids=lambda g: g.name,
)
def test_prebuilt_graphs_are_sound_and_survive(graph):
    """Each has no problems and is the same after a round trip."""
    assert graph.validate() == []
    data = yaml.safe_load(yaml.safe_dump(graph.to_config()))
    again = PromptGraph.from_config(data)
    assert again.to_config() == graph.to_config()
    assert again.to_mermaid() == graph.to_mermaid()


@dataclass
class Thing:
    x: int


@pytest.mark.parametrize(
    ("change", "place", "why"),
    [
        (lambda g: g.add_node(FunctionNode("n", lambda state: 1)), "nodes.n.function", "lambda"),
        (lambda g: g.when("a", "a", lambda result: True), "edges.0.when", "lambda"),
        (lambda g: g.add_node(PromptNode("n", guards=[lambda o: True])), "nodes.n.guards", "lambda"),
        (lambda g: g.add_node(PromptNode("n", strategy=SPECIAL)), "nodes.n.strategy", "objects"),
        (lambda g: g.add_node(PromptNode("n", blocks=[FromState(lambda s: "")])), "nodes.n.blocks", "lambda"),
        (lambda g: g.add_node(ToolNode("n", "t", {"x": Thing(1)})), "nodes.n.arguments", "objects"),
        (lambda g: g.add_node(PromptNode("n", flags={"critical"})), "nodes.n.flags", "NodeFlag"),
        (lambda g: g.add_node(ParallelNode("n", [FunctionNode("m", lambda s: 1)])), "n.nodes", "lambda"),
    ],
)
def test_what_has_no_name_is_refused_with_its_place(change, place, why):
    """A lambda cannot be written, nor an instance that nobody named."""
    graph = PromptGraph("g", nodes=[ThinkNode("a")])
    change(graph)
    with pytest.raises(InvalidGraph) as caught:
        graph.to_config()
    assert place in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize("title", ["", "Now"])
async def test_a_block_from_the_state_comes_back_from_yaml_and_renders_the_same(title):
    graph = PromptGraph("g", nodes=[PromptNode("p", blocks=[FromState(greet, title)])])
    again = PromptGraph.from_config(yaml.safe_load(yaml.safe_dump(graph.to_config())))
    assert again.to_config() == graph.to_config()
    seen = []
    for one in (graph, again):
        model = ScriptedProvider("ok")
        await PromptGraphEngine(one, model).ainvoke("Ann")
        seen.append(model.requests[0].messages[0].content)
    assert seen[0] == seen[1]
    assert "hi" in seen[0]
    assert ("## Now" in seen[0]) is bool(title)


def test_local_functions_are_refused_unless_named():
    """A function within a function cannot be found again by its module; a name given in `objects` can."""

    def local(state):
        return 1

    graph = PromptGraph("g", nodes=[FunctionNode("n", local)])
    with pytest.raises(InvalidGraph, match="objects"):
        graph.to_config()
    data = graph.to_config(objects={"local": local})
    assert found(PromptGraph.from_config(data, objects={"local": local}), "n").function is local


@node("stamp", join="any", retry=RetryPolicy(attempts=2, on=ConnectionError))
def stamp(state):
    return "stamped"


def test_a_function_behind_the_decorator_is_found_by_its_name():
    """`@node` puts a node in the place of the function."""
    data = PromptGraph("g", nodes=[stamp]).to_config()
    assert data["nodes"][0]["function"] == f"{__name__}:stamp"
    again = PromptGraph.from_config(data)
    assert found(again, "stamp").function is stamp.function
    assert again.to_config() == data


def test_all_problems_of_a_file_are_found_at_once():
    """Each with its place and a guess where a name is near."""
    data = {
        "name": "g",
        "mod": "static",
        "nodes": [
            {"name": "a", "kind": "promt"},
            {"name": "b", "instruction": "x"},
            {"name": "c", "strategy": "nothing"},
            {"name": "d", "kind": "function", "function": "os:nothing_there"},
            {"name": "e", "kind": "transform"},
            {"name": "f", "guards": ["no_such_module_x:f"]},
            {"name": "g/h"},
            "nonsense",
        ],
        "edges": [{"from": "a"}, {"from": "a", "to": "b", "when": {"outptu": 1}}],
    }
    with pytest.raises(InvalidGraph) as caught:
        PromptGraph.from_config(data)
    text = str(caught.value)
    for expected in (
        "mod: unknown key `mod`. Did you mean `mode`?",
        "nodes.0.kind: There is no kind of node 'promt'. Did you mean `prompt`?",
        "nodes.1.instruction: unknown key `instruction`. Did you mean `instructions`?",
        "nodes.2.strategy: 'nothing' is not a Python object",
        "nodes.3.function: There is no 'nothing_there' in the module 'os'.",
        "nodes.4: ",
        "nodes.5.guards: 'no_such_module_x:f' cannot be loaded",
        "nodes.6: A node's name must not",
        "nodes.7: must be a mapping",
        "edges.0: needs 'to'.",
        "edges.1.when",
    ):
        assert expected in text


def test_code_is_never_run():
    """A name is looked up, never evaluated."""
    for name in ("os:system('x')", "__import__('os').system", "lambda x: x", "os:path.join()"):
        with pytest.raises(InvalidGraph):
            PromptGraph.from_config({"nodes": [{"name": "a", "kind": "function", "function": name}]})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["python", "literal", "block"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


# on a busy machine the first values take seconds; that says nothing of what is tested
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(), plain, max_size=3), plain, st.text())
def test_any_plain_value_survives(arguments, value, words):
    """Arguments, edge values and prompts of any content come back equal, whatever they look like."""
    node = ToolNode("t", "tool", arguments, instructions=words)
    graph = PromptGraph("g", nodes=[node]).on_output("t", "t", words, value)
    again = PromptGraph.from_config(graph.to_config())
    assert found(again, "t").arguments == arguments
    assert found(again, "t").instructions == words
    assert again.edges[0].condition == OnOutput(words, value)
