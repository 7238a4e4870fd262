"""The seven steps of a transition: their order, what each answers to, and what none of them may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from astromesh.errors import InvalidGraph
from astromesh.graph import (
    END,
    BaseNode,
    Edge,
    FunctionNode,
    LoopNode,
    NodeFlag,
    NodeResult,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    SubgraphNode,
)
from astromesh.graph.transitions import in_evaluation_order
from astromesh.testing import RecordingTool, ScriptedProvider
from astromesh.types import ToolCall


class Gate(FunctionNode):
    """A guard, as far as the engine is concerned."""

    protected = True


def says(name: str, value: Any = None, **keywords: Any) -> BaseNode:
    return FunctionNode(name, lambda state: value, **keywords)


def gate(name: str, value: Any = None) -> BaseNode:
    return Gate(name, lambda state: value)


async def way(graph: PromptGraph, **engine: Any) -> list[str]:
    """The nodes a run visits."""
    return (await PromptGraphEngine(graph, **engine).ainvoke("Why?")).report.nodes_visited


async def reasons(graph: PromptGraph, **engine: Any) -> list[str]:
    """What each executed node's transition was decided by."""
    seen: list[NodeResult] = []

    class Keep:
        def post_node(self, node, result, state):
            seen.append(result)

    await PromptGraphEngine(graph, hooks=[Keep()], **engine).ainvoke("Why?")
    return [result.transition_reason for result in seen]


def choices(value: Any, **keywords: Any) -> PromptGraph:
    """A node `a` with every kind of way out; each leads to a node named after its step."""
    a = says("a", value, transitions={"word": "transition"}, default_next="default", **keywords)
    targets = ("route", "next", "edge", "unconditional", "transition", "default")
    return PromptGraph(nodes=[a, *map(says, targets)])


# -- the order of the steps --------------------------------------------------------------------------------


async def test_step_1_a_result_with_tool_calls_enters_the_same_node_again() -> None:
    """Tool calls come before everything, even before an unconditional edge."""
    script = ScriptedProvider(ToolCall("1", "look"), "done")
    graph = PromptGraph(nodes=[PromptNode("a", inject_tools=True), says("b")]).always("a", "b")
    tools = [RecordingTool("look")]
    assert await way(graph, model=script, tools=tools) == ["a", "a", "b"]


async def test_step_1_does_not_apply_without_a_tool_loop_there_edges_decide() -> None:
    """`on_tool_call` and `on_no_tool_call` fire where tool_loop is False."""
    asks, answers = ToolCall("1", "look"), "done"
    for said, visited in ((asks, ["a", "tools"]), (answers, ["a", "end"])):
        graph = PromptGraph(
            nodes=[PromptNode("a", inject_tools=True, tool_loop=False), says("tools"), says("end")]
        )
        graph.on_tool_call("a", "tools").on_no_tool_call("a", "end")
        assert await way(graph, model=ScriptedProvider(said), tools=[RecordingTool("look")]) == visited


@pytest.mark.parametrize("field", ["route", "_next", "goto"])
async def test_step_2_the_models_word_comes_before_next_node_edges_and_transitions(field: str) -> None:
    """route, _next and goto name a declared target; they win over steps 3 to 6."""
    graph = choices(NodeResult(output={field: "route"}, next_node="next"), routes=["route"])
    graph.always("a", "unconditional")
    assert await way(graph) == ["a", "route"]
    assert (await reasons(graph))[0] == field


async def test_step_3_next_node_comes_before_edges() -> None:
    """What the node's own code decided."""
    graph = choices(NodeResult(output="word", next_node="next")).always("a", "unconditional")
    assert await way(graph) == ["a", "next"]
    assert (await reasons(graph))[0] == "next_node"


async def test_step_4_edges_come_before_transitions() -> None:
    """An edge that holds wins over a transition that matches."""
    graph = choices("word").when("a", "edge", lambda r: True, label="holds")
    assert await way(graph) == ["a", "edge"]
    assert (await reasons(graph))[0] == "edge: holds"


async def test_step_5_transitions_come_before_the_default() -> None:
    """When no edge holds, the transitions are asked."""
    graph = choices("word").when("a", "edge", lambda r: False)
    assert await way(graph) == ["a", "transition"]
    assert (await reasons(graph))[0] == "transition: word"


async def test_step_6_the_default_comes_last_and_step_7_is_the_end() -> None:
    """When nothing matches: default_next, and without one the end."""
    graph = choices("another word")
    assert await way(graph) == ["a", "default"]
    assert await reasons(graph) == ["default", "end"]


# -- step 2: what a model may not do -----------------------------------------------------------------------


async def test_a_model_may_name_only_declared_targets() -> None:
    """A node that exists but is not declared here is no target; the next steps decide."""
    graph = PromptGraph(nodes=[says("a", {"route": "b"}), says("b"), says("c")]).always("a", "c")
    assert await way(graph) == ["a", "c"]
    declared = PromptGraph(nodes=[says("a", {"route": "b"}, routes=["b"]), says("b"), says("c")]).always(
        "a", "c"
    )
    assert await way(declared) == ["a", "b"]


async def test_a_model_may_name_a_transition_by_its_key_and_the_target_of_an_edge() -> None:
    """Declared are: keys of transitions, targets of edges, `routes`."""
    keyed = PromptGraph(nodes=[says("a", {"goto": "yes"}, transitions={"yes": "b"}), says("b")])
    assert await way(keyed) == ["a", "b"]
    edged = PromptGraph(nodes=[says("a", {"goto": "b"}), says("b"), says("c")])
    edged.when("a", "b", lambda r: False).always("a", "c")
    assert await way(edged) == ["a", "b"]


@pytest.mark.parametrize("where", ["node", "graph"])
async def test_edges_only_ignores_what_the_model_says(where: str) -> None:
    """routing="edges_only", of the node or of the graph."""
    keywords: dict[str, Any] = {"routing": "edges_only"} if where == "node" else {}
    a = says(
        "a",
        {"route": "b", "_graph_action": {"op": "remove_edge", "from": "a", "to": "c"}},
        routes=["b"],
        **keywords,
    )
    graph = PromptGraph(nodes=[a, says("b"), says("c")], routing="" if where == "node" else "edges_only")
    graph.always("a", "c")
    assert await way(graph, allow_self_modification=True) == ["a", "c"]


async def test_a_model_cannot_jump_over_a_guard() -> None:
    """A route to what edges reach only through a guard is not taken, even where `routes` names it."""
    graph = PromptGraph(nodes=[says("a", {"route": "b"}, routes=["b"]), gate("g"), says("b")])
    graph.sequential("a", "g", "b")
    assert await way(graph) == ["a", "g", "b"]


async def test_a_model_cannot_leave_when_the_edges_lead_to_a_guard() -> None:
    """Where the graph's own rules lead to a guard now, the model's word leads nowhere else."""
    graph = PromptGraph(nodes=[says("a", {"route": "b"}), gate("g"), says("b")])
    graph.when("a", "g", lambda r: True).always("a", "b")
    assert await way(graph) == ["a", "g"]


async def test_a_terminal_node_may_be_ended_by_the_model_unless_a_guard_follows() -> None:
    """TERMINAL makes __end__ a target that may be named; a guard behind the node is not skipped by it."""
    free = PromptGraph(nodes=[says("a", {"route": END}, is_terminal=True), says("b")]).always("a", "b")
    assert await way(free) == ["a"]
    bound = PromptGraph(nodes=[says("a", {"route": END}), says("b")]).always("a", "b")
    assert await way(bound) == ["a", "b"]
    guarded = PromptGraph(nodes=[says("a", {"route": END}, is_terminal=True), gate("g")]).always("a", "g")
    assert await way(guarded) == ["a", "g"]


async def test_a_text_that_names_a_node_is_no_route() -> None:
    """Only fields of a structured output say where to go."""
    graph = PromptGraph(nodes=[says("a", "b", routes=["b"]), says("b")])
    assert await way(graph) == ["a"]


@dataclass
class Choice:
    route: str


async def test_a_record_with_a_field_route_is_heard_like_a_mapping() -> None:
    """Structured outputs are pydantic models or dataclasses as well as dicts."""
    graph = PromptGraph(nodes=[says("a", Choice("b"), routes=["b"]), says("b")])
    assert await way(graph) == ["a", "b"]


# -- step 4: edges -----------------------------------------------------------------------------------------


def test_edges_are_tried_by_priority_then_conditional_first_then_as_added() -> None:
    """The order of a node's edges, whatever the order they were added in."""
    holds = bool
    edges = [
        Edge("a", "low"),
        Edge("a", "first", holds),
        Edge("a", "second", holds),
        Edge("a", "high", None, "", 5),
        Edge("a", "higher", holds, "", 5),
    ]
    assert [e.target for e in in_evaluation_order(edges)] == ["higher", "high", "first", "second", "low"]


async def test_a_condition_takes_the_result_or_the_result_and_the_state() -> None:
    """How many arguments it takes is seen when the graph is built."""
    graph = PromptGraph(nodes=[says("a", 1), says("b"), says("c")])
    graph.when("a", "b", lambda r: r.output == 2).when(
        "a", "c", lambda r, s: s.context["a_output"] == r.output
    )
    assert await way(graph) == ["a", "c"]
    with pytest.raises(TypeError, match="1 to 2"):
        graph.when("a", "b", lambda: True)

    async def later(result):
        return True

    with pytest.raises(TypeError, match="async"):
        graph.when("a", "b", later)


async def test_defaults_of_a_lambda_are_its_own() -> None:
    """`lambda r, n=n:` is the usual way to bind a loop's variable: it takes the result alone."""
    graph = PromptGraph(nodes=[says("a", 1), says("b")])
    for n in (0, 1):
        graph.when("a", "b", lambda r, n=n: r.output == n)
    assert await way(graph) == ["a", "b"]


async def test_a_condition_that_raises_does_not_hold_and_fails_the_node() -> None:
    """Nothing is swallowed: the report says which condition broke."""
    graph = PromptGraph(nodes=[says("a", {}), says("b")])
    graph.when("a", "b", lambda r: r.output["missing"] > 3, label="big")
    report = (await PromptGraphEngine(graph).ainvoke("Why?")).report
    assert report.nodes_visited == ["a"]
    assert "edge: big" in report.error


@pytest.mark.parametrize(
    ("build", "output", "taken"),
    [
        (lambda g: g.on_output("a", "b", "ok"), {"ok": True}, True),
        (lambda g: g.on_output("a", "b", "ok"), {"ok": 1}, False),
        (lambda g: g.on_output("a", "b", "ok"), "ok", False),
        (lambda g: g.on_output("a", "b", "kind", "x"), {"kind": "x"}, True),
        (lambda g: g.on_confidence("a", "b", 0.7), {"confidence": 0.7}, True),
        (lambda g: g.on_confidence("a", "b", 0.7), {"confidence": 0.69}, False),
        (lambda g: g.on_confidence("a", "b", 0.7), {"confidence": "0.9"}, False),
        (lambda g: g.on_confidence("a", "b", 0.7), {"confidence": True}, False),
        (lambda g: g.on_error("a", "b"), NodeResult(error="x"), True),
        (lambda g: g.on_error("a", "b"), "x", False),
        (lambda g: g.on_guard_fail("a", "b"), NodeResult(guards_failed=["g"], error="x"), True),
        (lambda g: g.on_guard_fail("a", "b"), NodeResult(guards_passed=["g"]), False),
        (lambda g: g.on_no_tool_call("a", "b"), NodeResult(error="x"), False),
    ],
)
async def test_each_helper_makes_the_edge_it_names(build, output, taken) -> None:
    """on_output, on_confidence, on_error, on_guard_fail."""
    graph = PromptGraph(nodes=[says("a", output), says("b")])
    build(graph)
    assert await way(graph) == (["a", "b"] if taken else ["a"])


async def test_an_error_edge_is_tried_before_the_others() -> None:
    """on_error has a higher priority: an unconditional edge added before it does not hide it."""
    graph = PromptGraph(nodes=[says("a", NodeResult(error="x")), says("b"), says("c")])
    graph.always("a", "b").on_error("a", "c")
    assert await way(graph) == ["a", "c"]


async def test_loop_until_goes_back_until_the_condition_holds() -> None:
    """To the node itself, or further back."""
    counted = {"n": 0}

    def count(state):
        counted["n"] += 1
        return counted["n"]

    graph = PromptGraph(nodes=[says("a"), FunctionNode("b", count), says("c")])
    graph.always("a", "b").loop_until("b", "c", lambda r: r.output == 3, back_to="a")
    assert await way(graph) == ["a", "b", "a", "b", "a", "b", "c"]


# -- step 5: transitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "target"),
    [
        ("approve", "yes"),
        ("  approve\n", "yes"),
        ("I approve", ""),
        (True, "true"),
        ({"approve": True}, "yes"),
        ({"approve": "true"}, ""),
        (Choice("x"), ""),
        ([1], ""),
        (([],), ""),
    ],
)
async def test_a_transition_matches_the_whole_output_or_a_true_field(output, target) -> None:
    """Exact texts (but for blanks around them), scalars, and fields that are True."""
    a = says("a", output, transitions={"approve": "yes", True: "true"})
    assert await way(PromptGraph(nodes=[a, says("yes"), says("true")])) == (
        ["a", target] if target else ["a"]
    )


@pytest.mark.parametrize("output", [{"error": True}, {"error": "bad"}, "error", {"error": "x", "ok": True}])
async def test_an_output_cannot_take_the_error_transition(output) -> None:
    """Trap 20: the key `error` is for failures alone."""
    a = says("a", output, transitions={"error": "rescue", "ok": "fine"})
    visited = await way(PromptGraph(nodes=[a, says("rescue"), says("fine")]))
    assert "rescue" not in visited


async def test_a_failure_takes_the_error_transition_and_no_other() -> None:
    """A failed node's output matches nothing any more."""
    a = says("a", NodeResult(output="ok", error="broken"), transitions={"ok": "fine", "error": "rescue"})
    assert await way(PromptGraph(nodes=[a, says("fine"), says("rescue")])) == ["a", "rescue"]


# -- results that end the run ------------------------------------------------------------------------------


async def test_a_denial_follows_conditional_ways_only() -> None:
    """A result with a stop_reason ends the run, unless the graph says what to do about it."""
    denied = NodeResult(error="no", stop_reason="human_denied")
    plain = PromptGraph(nodes=[says("a", denied, default_next="b"), says("b")]).always("a", "b")
    result = await PromptGraphEngine(plain).ainvoke("Why?")
    assert result.report.nodes_visited == ["a"]
    assert result.report.stop_reason == "human_denied"
    caught = PromptGraph(nodes=[says("a", denied), says("b", "apology"), says("c")])
    caught.always("a", "c").on_error("a", "b")
    result = await PromptGraphEngine(caught).ainvoke("Why?")
    assert (result.report.stop_reason, result.output) == ("completed", "apology")


# -- the graph as a whole ----------------------------------------------------------------------------------


def test_validate_finds_what_is_wrong_and_nothing_else() -> None:
    """One sentence for each problem; a good graph has none."""
    good = PromptGraph(nodes=[says("a"), says("b", is_terminal=True)]).always("a", "b")
    assert good.validate() == []
    nodes = [
        says("a", is_entry=True, transitions={"x": "gone"}),
        says("b", is_entry=True, inherit_context_from="ghost"),
        says("lost"),
        says("v", flags=[NodeFlag.VALIDATE_OUTPUT]),
    ]
    bad = PromptGraph("bad", nodes=nodes)
    bad.always("a", "b").always("a", "v").always("nobody", "a").always("b", "b").set_finalizer("none")
    found = "\n".join(bad.validate())
    for expected in (
        "Several nodes are marked as the entry: a, b", "'none' is not a node", "inherits from 'ghost'",
        "no output_schema", "a transition to 'gone'", "starts at 'nobody'", "'lost' is never reached",
        "never tried", "From node 'b' no path leads to an end",
    ):  # fmt: skip
        assert expected in found, expected


def test_validate_looks_into_children() -> None:
    """A node inside another one is checked with it."""

    class Outer(BaseNode):
        def children(self):
            return [Inner("inner")]

    class Inner(BaseNode):
        def problems(self):
            return ["is lame."]

    assert PromptGraph(nodes=[Outer("outer")]).validate() == ["Node 'outer': inner: is lame."]


def test_mermaid_draws_every_node_edge_and_end_with_names_quoted() -> None:
    """Guards, terminals, labels, missing targets, the finalizer; any name can be drawn."""
    graph = PromptGraph(nodes=[says('a "b" <c>'), gate("g"), says("z", is_terminal=True)])
    graph.always('a "b" <c>', "g").on_output("g", "z", "ok").when("g", "gone", bool).set_finalizer("z")
    drawn = graph.to_mermaid()
    assert drawn.splitlines()[0] == "flowchart TD"
    for expected in ('n0["a &quot;b&quot; &lt;c&gt;"]', 'n1{{"g"}}', 'n2(["z"])', "start --> n0", "n0 --> n1",
                     'n1 -->|"ok = True"| n2', '"gone (missing)"',
                     "n2 --> end__", "stop((stop)) -.-> n2"):  # fmt: skip
        assert expected in drawn, expected


def test_nested_graphs_are_drawn_as_subgraphs() -> None:
    """With their nodes and edges, at every depth. Nodes without graphs in them stay boxes."""
    deep = PromptGraph("deep", nodes=[says("x"), says("y")]).always("x", "y", label="then")
    middle = PromptGraph("middle", nodes=[SubgraphNode("d", deep)], mode="static")
    loop = LoopNode("l", [says("c"), SubgraphNode("m", middle)], bool)
    graph = PromptGraph(nodes=[says("a"), loop, LoopNode("plain", says("c"), bool)]).sequential(
        "a", "l", "plain"
    )
    assert (
        graph.to_mermaid()
        == """flowchart TD
    n0["a"]
    subgraph n1["l"]
        n1_0["c"]
        subgraph n1_1["m"]
            subgraph n1_1_0_n0["d"]
                n1_1_0_n0_0_n0["x"]
                n1_1_0_n0_0_n1["y"]
                n1_1_0_n0_0_start((start))
                n1_1_0_n0_0_end__(("end"))
                n1_1_0_n0_0_start --> n1_1_0_n0_0_n0
                n1_1_0_n0_0_n0 -->|"then"| n1_1_0_n0_0_n1
                n1_1_0_n0_0_n1 --> n1_1_0_n0_0_end__
            end
            n1_1_0_start((start))
            n1_1_0_end__(("end"))
            n1_1_0_start --> n1_1_0_n0
            n1_1_0_n0 --> n1_1_0_end__
        end
    end
    n2["plain<br/>(c)"]
    start((start))
    end__(("end"))
    start --> n0
    n0 --> n1
    n1 --> n2
    n2 --> end__"""
    )


def test_a_graph_in_itself_is_drawn_once() -> None:
    """And a pool in a subgraph has the model in it."""
    graph = PromptGraph("g", nodes=[says("a")])
    graph.add_node(SubgraphNode("again", graph)).always("a", "again")
    assert 'n1["again<br/>(g)"]' in graph.to_mermaid()
    pool = PromptGraph(nodes=[SubgraphNode("s", PromptGraph.from_pool([says("p")]))])
    assert 'n0_0_model{"the model chooses"}' in pool.to_mermaid()
    assert "n0_0_model --> n0_0_n0" in pool.to_mermaid()


def test_describe_names_nodes_flags_and_ways_out() -> None:
    """A graph in words."""
    graph = PromptGraph("g", nodes=[says("a", flags=[NodeFlag.CRITICAL]), says("b")]).always(
        "a", "b", label="then"
    )
    text = graph.describe()
    assert "g (static): 2 nodes, entry a" in text
    assert "a: FunctionNode {CRITICAL}" in text
    assert "→ b [then]" in text


def test_building_is_checked_where_it_can_be() -> None:
    """Names are unique, what is removed must be there, a copy is independent."""
    graph = PromptGraph("g", nodes=[says("a"), says("b")]).always("a", "b")
    with pytest.raises(InvalidGraph, match="already a node"):
        graph.add_node(says("a"))
    with pytest.raises(InvalidGraph, match="no node 'x'"):
        graph.remove_node("x")
    with pytest.raises(InvalidGraph, match="no edge"):
        graph.remove_edge("b", "a")
    copy = graph.copy()
    copy.remove_node("b")
    assert (graph.has_node("b"), len(graph.edges)) == (True, 1)
    assert (copy.has_node("b"), len(copy.edges), copy.get_edges_from("a")) == (False, 0, ())
