"""Graph actions of a model: what is applied, what is refused and recorded, that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.graph import BaseNode, FunctionNode, LoopNode, PromptGraph, PromptGraphEngine, SubgraphNode
from astromesh.graph.scope import Scope
from astromesh.telemetry.events import EventStream
from astromesh.testing import RecordingSink, ScriptedProvider
from astromesh.types import Message


class Gate(FunctionNode):
    protected = True


def says(name: str, value: Any = None, **keywords: Any) -> BaseNode:
    return FunctionNode(name, lambda state: value(state) if callable(value) else value, **keywords)


def gate(name: str) -> BaseNode:
    return Gate(name, lambda state: None)


def act(*actions: Any) -> dict[str, Any]:
    return {"_graph_action": actions[0] if len(actions) == 1 else list(actions)}


def add(name: str, **keywords: Any) -> dict[str, Any]:
    return {"op": "add_node", "name": name, **keywords}


def edge(source: Any, target: Any, op: str = "add_edge") -> dict[str, Any]:
    return {"op": op, "from": source, "to": target}


async def run(graph: PromptGraph, *script: Any, allow: bool = True, **engine: Any):
    model = ScriptedProvider(*script)
    return await PromptGraphEngine(graph, model, allow_self_modification=allow, **engine).ainvoke("Why?")


async def test_a_model_may_add_a_node_and_lead_to_it() -> None:
    """add_node, remove_edge, add_edge, applied to the run's own copy before the transition."""
    actions = act(
        add("extra", instructions="Help."),
        edge("a", "b", "remove_edge"),
        edge("a", "extra"),
        edge("extra", "b"),
    )
    graph = PromptGraph(nodes=[says("a", actions), says("b", "end")]).always("a", "b")
    result = await run(graph, "helped")
    assert result.report.nodes_visited == ["a", "extra", "b"]
    assert [m.op for m in result.report.mutations if m.applied] == [
        "add_node",
        "remove_edge",
        "add_edge",
        "add_edge",
    ]
    assert result.context["extra_output"] == "helped"
    assert list(graph.nodes) == ["a", "b"]
    assert [str(e) for e in graph.edges] == ["a → b"]


async def test_what_an_added_node_says_last_is_the_answer() -> None:
    """In the graph of a run, and in one inside it: there on each visit, whose changes are its own."""
    answer = says("a", act(add("extra", instructions="Help."), edge("a", "extra")))
    result = await run(PromptGraph(nodes=[answer]), "helped")
    assert (result.output, result.report.nodes_visited) == ("helped", ["a", "extra"])

    inner = SubgraphNode("inner", PromptGraph(nodes=[answer]))
    twice = LoopNode("twice", inner, until=lambda result: result.output == "again")
    result = await run(PromptGraph(nodes=[twice]), "helped", "again")
    assert result.output == "again"
    assert result.report.nodes_visited.count("twice/inner/extra") == 2


async def test_what_an_added_node_said_before_a_guard_is_no_answer() -> None:
    """The run was stopped on the way to the guard that had to see it."""
    actions = act(add("extra"), edge("extra", "gate"), edge("a", "b", "remove_edge"), edge("a", "extra"))
    graph = PromptGraph(nodes=[says("a", actions), says("b"), gate("gate")]).sequential("a", "b", "gate")
    result = await run(graph, "unseen", max_iterations=2)
    assert result.report.nodes_visited == ["a", "extra"]
    assert (result.output, result.report.stop_reason) == (None, "max_iterations")


async def test_the_next_run_begins_with_the_graph_as_it_was() -> None:
    """Trap 19 and 25: a run's changes are its own."""
    nodes = [says("a", act(edge("a", "b", "remove_edge"))), says("b")]
    engine = PromptGraphEngine(PromptGraph(nodes=nodes).always("a", "b"), allow_self_modification=True)
    for _ in range(2):
        report = (await engine.ainvoke("x")).report
        assert report.nodes_visited == ["a"]
        assert report.mutations[0].applied


async def test_self_modification_is_off_unless_asked_for() -> None:
    """Trap 3: the action is recorded as refused, the run goes on."""
    graph = PromptGraph(nodes=[says("a", act(edge("a", "b", "remove_edge"))), says("b")]).always("a", "b")
    report = (await run(graph, allow=False)).report
    assert report.nodes_visited == ["a", "b"]
    assert "does not allow" in report.mutations[0].rejected


MALFORMED: list[Any] = [
    None, 7, "add_node", [], [[]], {}, {"op": None}, {"op": []}, {"op": "drop"}, {"op": "add_node"}, add(""),
    add("__end__"), add("x/y"), add("x", kind="function"), add("x", kind=["prompt"]), add("x", kind="router"),
    add("x", tools=["rm"]), add("x", instructions=7), add("x", input_keys="abc"), add("x", input_keys=[1]),
    add("b"), {"op": "add_node", "name": 7},
    edge("a", "nowhere"), edge("nowhere", "a"), edge(None, None), edge(["a"], {"b": 1}), edge("a", "b"),
    edge("b", "a", "remove_edge"), edge("a", "c", "remove_edge"),
]  # fmt: skip


@pytest.mark.parametrize("action", MALFORMED, ids=repr)
async def test_a_malformed_action_is_refused_and_recorded_and_never_raises(action) -> None:
    """Trap 3: each with a reason; the graph stays as it is."""
    graph = PromptGraph(nodes=[says("a", {"_graph_action": action}), says("b", "end"), says("c")])
    graph.always("a", "b").when("b", "c", lambda r: False)
    result = await run(graph)
    assert (result.output, result.report.nodes_visited) == ("end", ["a", "b"])
    assert all(m.rejected for m in result.report.mutations)
    assert len(result.report.mutations) == (0 if action is None or action == [] else 1)


@pytest.mark.parametrize(
    "actions",
    [
        [edge("a", "b")],
        [edge("g", "c")],
        [edge("a", "g", "remove_edge")],
        [edge("g", "b", "remove_edge")],
        [add("x"), edge("start", "x"), edge("x", "b")],
        [edge("start", "b")],
        [edge("start", "__end__")],
        [edge("start", "c")],
        [add("g")],
    ],
    ids=repr,
)
async def test_a_guard_can_not_be_replaced_or_bypassed(actions) -> None:
    """Trap 3: whatever detour a model builds, it does not lead around a guard."""
    graph = PromptGraph(nodes=[says("start", act(*actions)), says("a"), gate("g"), says("b"), says("c")])
    graph.sequential("start", "a", "g", "b", "c")
    result = await run(graph)
    assert result.report.nodes_visited == ["start", "a", "g", "b", "c"]
    assert any(m.rejected for m in result.report.mutations)


async def test_changes_before_a_guard_that_leave_it_in_the_way_are_allowed() -> None:
    """The rule protects guards; it does not forbid everything near them."""
    actions = act(add("x"), edge("start", "a", "remove_edge"), edge("start", "x"), edge("x", "a"))
    graph = PromptGraph(nodes=[says("start", actions), says("a"), gate("g"), says("b")])
    graph.sequential("start", "a", "g", "b")
    result = await run(graph, "x")
    assert result.report.nodes_visited == ["start", "x", "a", "g", "b"]


async def test_the_number_of_changes_is_capped() -> None:
    """max_mutations_per_run counts what is applied; the next one is refused and recorded."""
    actions = [add(f"n{i}") for i in range(9)]
    graph = PromptGraph(nodes=[says("a", act(*actions))])
    report = (await run(graph, max_mutations_per_run=3)).report
    assert [m.applied for m in report.mutations] == [True, True, True, False]
    assert "limit of graph actions" in report.mutations[-1].rejected


async def test_hooks_and_listeners_hear_of_changes() -> None:
    """on_graph_mutation for what was applied, `graph.mutated` for each, graph_mutations in the result."""
    heard: list[Any] = []

    class Watch:
        async def on_graph_mutation(self, mutation, state):
            heard.append(mutation.op)

        def post_node(self, node, result, state):
            kept.append(result)

    kept: list[Any] = []
    sink = RecordingSink()
    scope = Scope("r1", events=EventStream("r1", [sink]))
    graph = PromptGraph(nodes=[says("a", act(add("x"), {"op": "drop"}))])
    engine = PromptGraphEngine(graph, hooks=[Watch()], allow_self_modification=True)
    await engine.start([Message("user", "x")], scope).execute()
    assert heard == ["add_node"]
    told = [(e.data["op"], bool(e.data["rejected"])) for e in sink.events if e.type == "graph.mutated"]
    assert told == [("add_node", False), ("drop", True)]
    assert [m.op for m in kept[0].graph_mutations] == ["add_node", "drop"]


async def test_a_child_cannot_change_the_graph_it_is_in() -> None:
    """Only a node of the graph itself acts on it; a child's wish is recorded as refused."""

    class Outer(BaseNode):
        async def execute(self, state, config):
            return await config.run(says("inner", act(add("x"))), state)

    report = (await run(PromptGraph(nodes=[Outer("outer")]))).report
    assert report.nodes_visited == ["outer", "outer/inner"]
    assert any("inside another" in m.rejected for m in report.mutations)


async def test_a_model_cannot_write_what_belongs_to_the_engine() -> None:
    """A decision under `_human_decisions` would be an approval that nobody gave."""
    for keywords in (
        {"output_key": "_human_decisions"},
        {"input_keys": ["_x"]},
        {"inherit_context_from": "_x"},
    ):
        report = (await run(PromptGraph(nodes=[says("a", act(add("x", **keywords)))]))).report
        assert ["are reserved" in m.rejected for m in report.mutations] == [True]


async def test_nothing_comes_in_between_behind_a_guard() -> None:
    """What the guard let through must be what goes on."""
    actions = [add("x"), edge("late", "x"), edge("late", "end", "remove_edge"), edge("x", "end")]
    graph = PromptGraph(nodes=[says("a", act(*actions)), gate("gate"), says("late", "l"), says("end", "e")])
    report = (await run(graph.sequential("a", "gate", "late", "end"))).report
    assert report.nodes_visited == ["a", "gate", "late", "end"]
    assert [m.op for m in report.mutations if "behind 'gate'" in m.rejected] == ["add_edge", "remove_edge"]


async def test_the_error_node_leads_around_no_guard() -> None:
    """A stuck node goes to `__error__`, so that is a way into the graph like the entry."""
    nodes = [says("a", act(edge("__error__", "end"))), gate("gate"), says("end", "e"), says("__error__", "x")]
    report = (await run(PromptGraph(nodes=nodes).sequential("a", "gate", "end"))).report
    assert ["bypass 'gate'" in m.rejected for m in report.mutations] == [True]


async def test_a_pool_has_nothing_to_change() -> None:
    """In autonomous mode the model's path has no edges: the wish is refused and recorded, it never raises."""
    graph = PromptGraph.from_pool([says("a", act(add("x")), is_terminal=True)])
    report = (await run(graph, '{"next_node": "a"}')).report
    assert (report.nodes_visited, report.stop_reason) == (["autonomous", "autonomous/a"], "completed")
    assert report.mutations
    assert not any(m.applied for m in report.mutations)
