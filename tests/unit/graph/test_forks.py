"""Branches of a graph that run at once: forks, joins, sends."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import pytest

from astromesh.errors import InvalidGraph
from astromesh.graph import (
    END,
    FunctionNode,
    NodeFlag,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    Send,
    SubgraphNode,
)
from astromesh.testing import ScriptedProvider


def says(name: str, value: Any = None, turns: int = 0, **keywords: Any) -> FunctionNode:
    """A node that answers after some turns of the event loop."""

    async def body(state):
        for _ in range(turns):
            await asyncio.sleep(0)
        return value(state) if callable(value) else value

    return FunctionNode(name, body, **keywords)


def fails(name: str, **keywords: Any) -> FunctionNode:
    async def body(state):
        raise ValueError("boom")

    return FunctionNode(name, body, **keywords)


async def run(graph: PromptGraph, context: Any = None, **engine: Any):
    assert graph.validate() == []
    return await PromptGraphEngine(graph, **engine).ainvoke("q", context=context)


def diamond(*nodes: FunctionNode, join: Any = "all", **keywords: Any) -> PromptGraph:
    """`s` forks to the nodes, which meet at `j`."""
    meet = says("j", lambda s: sorted(key for key in s.context if key in "abc"), join=join)
    graph = PromptGraph("g", nodes=[says("s", 0), *nodes, meet], **keywords)
    graph.fork("s", *(node.name for node in nodes))
    for one in nodes:
        graph.always(one.name, "j")
    return graph


async def test_branches_run_at_once_and_meet_once() -> None:
    """Each waits for the other, the node where they meet runs once and sees the writes of both."""
    ready = {"a": asyncio.Event(), "b": asyncio.Event()}

    def meets(name: str, other: str) -> FunctionNode:
        async def body(state):
            ready[name].set()
            await ready[other].wait()
            return name

        return FunctionNode(name, body, output_key=name)

    result = await run(diamond(meets("a", "b"), meets("b", "a")))
    assert result.output == ["a", "b"]
    assert result.report.nodes_visited == ["s", "a", "b", "j"]


async def test_writes_are_merged_in_the_order_of_the_targets_whatever_ended_first() -> None:
    """By the reducers of the graph; without one two values are an error that names both nodes."""
    children = [says("a", ["a"], 5, output_key="log"), says("b", ["b"], output_key="log")]
    graph = diamond(*children, reducers={"log": operator.add})
    assert (await run(graph, {"log": ["before"]})).context["log"] == ["before", "a", "b"]
    result = await run(diamond(*children))
    assert result.report.stop_reason == "failed"
    assert "'a' and 'b' ran at once and wrote different values under 'log'" in result.error
    assert result.report.nodes_visited == ["s", "a", "b"]


async def test_a_branch_may_be_long_and_branches_may_fork_again() -> None:
    """An inner fork is part of its branch. The writes of all reach the node where all meet."""
    graph = PromptGraph(
        "g",
        nodes=[
            says("s"), says("a"), says("a1", ["a1"], output_key="log"), says("a2", ["a2"], output_key="log"),
            says("aj"), says("b", ["b"], output_key="log"), says("b2"), says("j", lambda s: s.context["log"]),
        ],
        reducers={"log": operator.add},
    )  # fmt: skip
    graph.fork("s", "a", "b").fork("a", "a1", "a2").sequential("b", "b2", "j")
    graph.always("a1", "aj").always("a2", "aj").always("aj", "j")
    result = await run(graph)
    assert result.output == ["a1", "a2", "b"]
    assert sorted(result.report.nodes_visited) == ["a", "a1", "a2", "aj", "b", "b2", "j", "s"]
    assert result.report.nodes_visited[-1] == "j"


async def test_branches_that_meet_in_steps_reduce_each_write_once() -> None:
    """`a` and `b` meet at `x`, and both meet `c` at `j`."""
    nodes = [says(name, [name], output_key="log") for name in "abc"]
    graph = PromptGraph(nodes=[says("s"), *nodes, says("x"), says("j", lambda s: s.context["log"])],
                        reducers={"log": operator.add})  # fmt: skip
    graph.fork("s", "a", "b", "c").always("a", "x").always("b", "x").always("x", "j").always("c", "j")
    result = await run(graph, {"log": [0]})
    assert result.output == [0, "a", "b", "c"]
    assert result.report.nodes_visited.count("x") == result.report.nodes_visited.count("j") == 1


async def test_a_node_waits_only_for_branches_that_can_still_reach_it() -> None:
    """A branch that has gone another way, or ended, is not waited for."""
    hold = asyncio.Event()

    async def wait(state):
        await hold.wait()

    def go(state):
        hold.set()
        return "met"

    away, j = FunctionNode("away", wait), FunctionNode("j", go, inline=True)
    graph = PromptGraph(nodes=[says("s"), says("a"), says("b"), says("c", "aside"), j, away])
    graph.fork("s", "a", "b", "c").always("a", "j").always("b", "j").always("c", "away")
    result = await run(graph)
    assert result.report.nodes_visited.index("away") < result.report.nodes_visited.index("j")
    assert result.context["j_output"] == "met"
    graph = PromptGraph(nodes=[says("s"), says("a"), says("b", 1), says("j", "met")])
    graph.fork("s", "a", "b").always("a", "j").when("b", "j", lambda r: r.output == 2)
    result = await run(graph)
    assert (result.output, result.report.nodes_visited) == ("met", ["s", "a", "b", "j"])


@pytest.mark.parametrize(("join", "met"), [("any", ["b"]), (1, ["b"]), (2, ["b", "c"]), (3, ["a", "b", "c"])])
async def test_any_and_a_number_wait_for_the_first(join: Any, met: list[str]) -> None:
    """Those that come too late are cancelled."""
    cancelled: list[str] = []

    def branch(name: str, turns: int) -> FunctionNode:
        async def body(state):
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                cancelled.append(name)
                raise
            return name

        return FunctionNode(name, body, output_key=name)

    result = await run(diamond(branch("a", 60), branch("b", 1), branch("c", 20), join=join))
    assert result.output == met
    assert sorted([*met, *cancelled]) == ["a", "b", "c"]


async def test_a_branch_that_fails_cancels_the_others_and_takes_the_error_edge() -> None:
    """Of the node that forked; without one the run fails. Nothing is merged."""
    ended: list[str] = []

    async def slow(state):
        state.context["b"] = 1
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("b")

    graph = diamond(fails("a"), FunctionNode("b", slow))
    result = await run(graph)
    assert (result.report.stop_reason, result.error) == ("failed", "ValueError: boom")
    assert (ended, "b" in result.context) == (["b"], False)
    graph.add_node(says("rescue", "saved")).on_error("s", "rescue")
    result = await run(graph)
    assert (result.ok, result.output) == (True, "saved")
    assert [(e.node, e.type) for e in result.report.errors] == [("a", "ValueError")]
    inside = diamond(fails("a"), says("b", 1, output_key="b"))
    inside.add_node(says("help", "helped", output_key="a")).on_error("a", "help").always("help", "j")
    assert (await run(inside)).output == ["a", "b"]


async def test_a_reducer_or_a_missing_node_fails_the_fork() -> None:
    """With the reason, in the report too."""
    children = [says("a", 1, output_key="n"), says("b", "x", output_key="n")]
    result = await run(diamond(*children, reducers={"n": operator.add}))
    assert "The reducer of 'n' failed" in result.error
    assert result.report.errors[0].node == "s"
    graph = PromptGraph(nodes=[says("s"), says("a")]).fork("s", "a", "gone")
    assert graph.validate() == ["Node 's' has a fork to 'gone', which is not a node."]
    result = await PromptGraphEngine(graph).ainvoke("q")
    assert "There is no node 'gone'" in result.error


async def test_sends_go_to_different_nodes_at_once() -> None:
    """Each node finds its value; several values for one node are several branches, which meet behind it."""

    async def split(state):
        return [Send("short", "a"), Send("long", "bb"), Send("short", "c")]

    nodes = [
        FunctionNode("split", split, routes=["short", "long"]),
        says("short", lambda s: [(s.context["item"], s.context["index"])], output_key="found"),
        says("long", lambda s: [s.context["item"] * 2], output_key="found"),
        says("j", lambda s: s.context["found"]),
    ]
    graph = (
        PromptGraph(nodes=nodes, reducers={"found": operator.add}).always("short", "j").always("long", "j")
    )
    result = await run(graph)
    assert result.output == [("a", 0), "bbbb", ("c", 2)]
    assert result.report.nodes_visited == ["split", "short[0]/short", "long[1]/long", "short[2]/short", "j"]
    assert not {"item", "index"} & result.context.keys()


async def test_many_sends_have_limits_of_their_own_and_run_a_few_at_a_time() -> None:
    """60 values for one node, ten at a time, within the default limits."""
    now = [0, 0]

    async def work(state):
        now[0] += 1
        now[1] = max(now)
        await asyncio.sleep(0)
        now[0] -= 1
        return [state.context["item"]]

    split = FunctionNode("split", lambda s: [Send("w", n) for n in range(60)], routes=["w"], inline=True)
    graph = PromptGraph(
        nodes=[split, FunctionNode("w", work, output_key="all"), says("j", lambda s: s.context["all"])],
        reducers={"all": operator.add},
    ).always("w", "j")
    result = await run(graph)
    assert (result.output, now[1]) == (list(range(60)), 10)


async def test_a_send_to_a_node_that_is_not_declared_fails() -> None:
    """As every other target that a node chooses."""
    split = FunctionNode("split", lambda s: [Send("b", 1)], routes=["a"], inline=True)
    graph = PromptGraph(nodes=[split, says("a"), says("b")]).always("a", "b")
    assert "sends to 'b', which is not one of its targets or routes" in (await run(graph)).error


async def test_max_concurrency_of_a_fork() -> None:
    """The branches that run at a time, in order."""
    began: list[str] = []
    most = [0, 0]

    def branch(name: str) -> FunctionNode:
        async def body(state):
            began.append(name)
            most[0] += 1
            most[1] = max(most)
            await asyncio.sleep(0)
            most[0] -= 1

        return FunctionNode(name, body)

    graph = PromptGraph(nodes=[says("s"), *(branch(name) for name in "abcd"), says("j")])
    graph.fork("s", *"abcd", max_concurrency=2)
    for name in "abcd":
        graph.always(name, "j")
    await run(graph)
    assert (began, most[1]) == (["a", "b", "c", "d"], 2)


async def test_ends_limits_stops_and_cancellation_hold_in_branches() -> None:
    """A graph may end in its branches; CRITICAL and limits end the run; a cancelled run leaves nothing."""
    ends = PromptGraph(nodes=[says("s"), says("a", 1), says("b", 2)]).fork("s", "a", "b")
    result = await run(ends)
    assert (result.output, result.context["a_output"], result.context["b_output"]) == (2, 1, 2)
    critical = PromptGraph(nodes=[says("s"), fails("a", flags={NodeFlag.CRITICAL}), says("b")]).fork(
        "s", "a", "b"
    )
    assert (await run(critical)).report.stop_reason == "critical_error"
    assert (await run(ends, max_iterations=2)).report.stop_reason == "max_iterations"
    begun, left = asyncio.Event(), asyncio.Event()

    async def forever(state):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            left.set()

    graph = PromptGraph(nodes=[says("s"), FunctionNode("a", forever), says("b")]).fork("s", "a", "b")
    work = asyncio.create_task(run(graph))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert left.is_set()


async def test_ordinary_edges_take_one_and_a_fork_may_be_conditional_or_repeated() -> None:
    """Conditional edges come first. A circle through a fork begins its branches anew."""
    graph = diamond(says("a", 1), says("b", 2))
    graph.when("s", "b", lambda r, s: s.context.get("skip", False))
    assert (await run(graph, {"skip": True})).report.nodes_visited == ["s", "b", "j"]
    again = diamond(says("a", 1), says("b", 2)).when("j", "s", lambda r, s: s.node_iterations["j"] < 3)
    assert (await run(again)).report.nodes_visited == ["s", "a", "b", "j"] * 3


async def test_forks_work_in_nested_graphs() -> None:
    """With the path of the node that runs the graph."""
    result = await run(PromptGraph(nodes=[SubgraphNode("n", diamond(says("a", 1), says("b", 2)))]))
    assert result.report.nodes_visited == ["n", "n/s", "n/a", "n/b", "n/j"]


def test_forks_are_checked_when_they_are_made_and_by_validate() -> None:
    """Names, numbers, and what would never be taken."""
    graph = PromptGraph(nodes=[says("s"), says("a"), says("b")])
    for targets, why in ((("a",), "two or more"), (("a", "a"), "different"), (("a", END), "two or more")):
        with pytest.raises(ValueError, match=why):
            graph.fork("s", *targets)
    with pytest.raises(ValueError, match="max_concurrency"):
        graph.fork("s", "a", "b", max_concurrency=0)
    graph.fork("s", "a", "b")
    with pytest.raises(ValueError, match="a fork already"):
        graph.fork("s", "a", "b")
    with pytest.raises(ValueError, match="join must be"):
        says("x", join=0)
    graph.always("s", "a")
    assert graph.validate() == ["The fork s → a, b (fork) is never taken: 's' has an unconditional edge."]
    assert graph.copy().remove_node("b").forks == {}
    assert set(graph.forks) == {"s"}


def test_forks_are_drawn_and_written() -> None:
    """In Mermaid, in words, in YAML."""
    graph = PromptGraph("g", nodes=[FunctionNode(name, str) for name in "sab"])
    graph.add_node(FunctionNode("j", str, join=2)).fork("s", "a", "b", max_concurrency=3)
    graph.always("a", "j").always("b", "j")
    drawn = graph.to_mermaid()
    assert 'n0 -->|"fork"| n1' in drawn
    assert 'n0 -->|"fork"| n2' in drawn
    assert "n0 --> end__" not in drawn
    assert "→ a [fork]" in graph.describe()
    data = graph.to_config()
    assert data["forks"] == [{"from": "s", "to": ["a", "b"], "max_concurrency": 3}]
    assert data["nodes"][3]["join"] == 2
    again = PromptGraph.from_config(data)
    assert again.to_config() == data
    assert again.forks == graph.forks
    data["forks"][0]["to"] = ["a"]
    with pytest.raises(InvalidGraph, match=r"forks.0.to: Fork of 's': needs two or more"):
        PromptGraph.from_config(data)


async def test_models_in_branches_do_not_stream_into_each_other() -> None:
    """What is heard of the assistant, joined, is the answer, though two models speak at once."""
    graph = PromptGraph(nodes=[says("s"), PromptNode("a"), PromptNode("b")]).fork("s", "a", "b")
    assert graph.validate() == []
    engine = PromptGraphEngine(graph, ScriptedProvider("one two", "three four"))
    events = [event async for event in engine.astream_events("q")]
    heard = [e.data for e in events if e.type == "model.delta"]
    text = "".join(data["content"] for data in heard if data["role"] == "assistant")
    assert text == events[-1].data["response"] == "three four"
    assert {data["role"] for data in heard} >= {"a", "b"}
