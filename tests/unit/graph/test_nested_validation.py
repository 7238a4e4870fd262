"""Graphs within graphs: what is wrong in them is found, and how they end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from astromesh.graph import (
    BaseNode,
    FanOutNode,
    FunctionNode,
    LoopNode,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    RetryNode,
    SubgraphNode,
    ThinkNode,
)


def says(name: str, value: object = None) -> FunctionNode:
    return FunctionNode(name, lambda state: value)


def bad() -> PromptGraph:
    graph = PromptGraph("x", nodes=[ThinkNode("a", default_next="zz")])
    return graph.add_edge("a", "yy", condition=lambda result: True).add_node(ThinkNode("lost"))


def named(name: str) -> PromptGraph:
    def lead(state):
        return NodeResult(next_node="nowhere")

    return PromptGraph("x", nodes=[FunctionNode("a", lead)])


def circling() -> PromptGraph:
    return PromptGraph("x", nodes=[FunctionNode("a", lambda state: "again")]).always("a", "a")


NESTINGS: list[Callable[[PromptGraph], BaseNode]] = [
    lambda graph: SubgraphNode("f", graph),
    lambda graph: LoopNode("l", SubgraphNode("f", graph), until=lambda result: True),
    lambda graph: RetryNode("r", SubgraphNode("f", graph)),
    lambda graph: ParallelNode("p", [SubgraphNode("f", graph)]),
    lambda graph: SubgraphNode("o", PromptGraph("outer", nodes=[SubgraphNode("f", graph)])),
]


@pytest.mark.parametrize("nest", NESTINGS)
def test_what_is_wrong_in_a_nested_graph_is_found_from_outside(nest):
    found = PromptGraph(nodes=[nest(bad())]).validate()
    assert len(bad().validate()) >= 3
    for problem in bad().validate():
        assert any(text.endswith(problem) for text in found), problem


def test_a_child_that_is_to_be_checked_by_no_schema_is_a_problem():
    child = FunctionNode("c", lambda state: 1, flags={NodeFlag.VALIDATE_OUTPUT})
    assert PromptGraph(nodes=[ParallelNode("p", [child])]).validate() == [
        "Node 'p': c: flags: VALIDATE_OUTPUT, but there is no output_schema."
    ]


def test_a_graph_that_contains_itself_is_a_problem():
    graph = PromptGraph("g", nodes=[FunctionNode("a", lambda state: 1)])
    graph.add_node(SubgraphNode("s", graph)).sequential("a", "s")
    assert graph.validate() == ["Node 's': The graph 'g' contains itself."]


def test_a_graph_that_is_used_twice_does_not_contain_itself():
    inner = PromptGraph("i", nodes=[FunctionNode("a", lambda state: 1)])
    graph = PromptGraph("g", nodes=[SubgraphNode("s", inner), SubgraphNode("t", inner)])
    assert graph.sequential("s", "t").validate() == []


@pytest.mark.parametrize("nest", NESTINGS)
@pytest.mark.parametrize(("make", "reason"), [(circling, "stuck_node"), (lambda: named("x"), "unknown_node")])
async def test_a_nested_graph_that_cannot_go_on_says_so_in_the_stop_reason(nest, make, reason):
    after = FunctionNode("after", lambda state: "went on")
    graph = PromptGraph(nodes=[nest(make()), after])
    graph.always(graph.entry, "after")
    result = await PromptGraphEngine(graph, max_node_iterations=3).ainvoke("q")
    assert result.report.stop_reason == reason
    assert result.report.error
    assert "after" not in result.report.nodes_visited


@pytest.mark.parametrize("nest", NESTINGS)
async def test_an_error_edge_leads_on_from_a_nested_graph_that_cannot_go_on(nest):
    graph = PromptGraph(nodes=[nest(circling()), FunctionNode("rescue", lambda state: "rescued")])
    graph.on_error(graph.entry, "rescue")
    result = await PromptGraphEngine(graph, max_node_iterations=3).ainvoke("q")
    assert (result.output, result.report.stop_reason) == ("rescued", "completed")


async def test_a_collected_child_that_is_stuck_does_not_stop_the_others():
    stuck = SubgraphNode("f", circling())
    graph = PromptGraph(
        nodes=[ParallelNode("p", [stuck, FunctionNode("w", lambda state: "done")], on_error="collect")]
    )
    result = await PromptGraphEngine(graph, max_node_iterations=3).ainvoke("q")
    assert result.output["w"] == "done"
    assert result.report.stop_reason == "completed"


def finalized(body: FunctionNode, ran: list[str]) -> PromptGraph:
    inner = PromptGraph("i", nodes=[body, FunctionNode("fin", lambda state: ran.append("fin"))])
    return inner.set_finalizer("fin")


@pytest.mark.parametrize("nest", NESTINGS)
async def test_a_nested_finalizer_runs_once_when_the_run_is_stopped(nest):
    ran: list[str] = []
    inner = finalized(FunctionNode("a", lambda state: "again"), ran).always("a", "a")
    result = await PromptGraphEngine(PromptGraph(nodes=[nest(inner)]), max_iterations=7).ainvoke("q")
    assert ran == ["fin"]
    assert result.report.stop_reason == "max_iterations"
    assert result.report.nodes_visited[-1].endswith("f/fin")


async def test_a_nested_finalizer_runs_when_the_run_is_cancelled_and_when_its_graph_alone_is_stopped():
    ran: list[str] = []
    begun = asyncio.Event()

    async def wait(state):
        begun.set()
        await asyncio.Event().wait()

    graph = PromptGraph(nodes=[SubgraphNode("f", finalized(FunctionNode("a", wait), ran))])
    task = asyncio.create_task(PromptGraphEngine(graph).ainvoke("q"))
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == ["fin"]

    inner = finalized(FunctionNode("a", lambda state: "again"), ran).always("a", "a")
    graph = PromptGraph(nodes=[SubgraphNode("f", inner), FunctionNode("rescue", lambda state: "rescued")])
    result = await PromptGraphEngine(graph.on_error("f", "rescue"), max_node_iterations=3).ainvoke("q")
    assert (ran, result.output, result.report.stop_reason) == (["fin", "fin"], "rescued", "completed")


async def test_a_nested_finalizer_does_not_run_when_its_graph_is_complete():
    ran: list[str] = []
    graph = PromptGraph(nodes=[SubgraphNode("f", finalized(FunctionNode("a", lambda state: 1), ran))])
    assert (await PromptGraphEngine(graph).ainvoke("q")).output == 1
    assert ran == []


# -- what can never fit the limits ---------------------------------------------------------------------------


def _steps(count: int) -> PromptGraph:
    graph = PromptGraph("steps", nodes=[says(f"n{i}", i) for i in range(count)])
    return graph.sequential(*graph.nodes)


def test_a_way_that_is_longer_than_max_iterations_is_a_problem():
    """The shortest way counts, with the children of concurrent nodes and the nodes of subgraphs."""
    assert _steps(50).validate() == []
    assert _steps(51).validate() == [
        "The graph 'steps' needs at least 51 node executions, but max_iterations is 50."
    ]
    assert _steps(51).validate(max_iterations=51) == _steps(51).validate(max_iterations=None) == []
    shortcut = _steps(51).when("n0", "n50", bool)
    assert shortcut.validate() == []
    many = ParallelNode("p", [says(f"c{i}") for i in range(50)])
    (problem,) = PromptGraph("g", nodes=[many]).validate()
    assert "at least 51" in problem
    (problem,) = PromptGraph("g", nodes=[RetryNode("r", SubgraphNode("s", _steps(49)))]).validate()
    assert "at least 51" in problem


def test_items_and_rounds_that_can_never_fit_are_problems():
    """60 items of one step fit, and 40 rounds; items beyond max_items, and too long work, do not."""
    worker = says("w")
    assert PromptGraph(nodes=[FanOutNode("f", worker, list(range(60)))]).validate() == []
    assert PromptGraph(nodes=[LoopNode("l", worker, bool, max_loops=400)]).validate() == []
    found = PromptGraph(nodes=[FanOutNode("f", worker, list(range(60)), max_items=50)]).validate()
    assert found == ["Node 'f': items: 60 items, but max_items is 50."]
    long = SubgraphNode("s", _steps(50))
    found = PromptGraph(nodes=[FanOutNode("f", long, [1])]).validate()
    assert found == ["Node 'f': An item needs at least 51 node executions, but max_iterations is 50."]
    found = PromptGraph(
        nodes=[SubgraphNode("o", PromptGraph("i", nodes=[LoopNode("l", long, bool)]))]
    ).validate()
    assert found == ["Node 'o': i: l: A round needs at least 51 node executions, but max_iterations is 50."]
