"""Nested execution: children and graphs inside nodes are under the run's hooks, limits and cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from astromesh.errors import NodeFailed, ProviderUnauthorized
from astromesh.graph import (
    BaseNode,
    Child,
    FanOutNode,
    FunctionNode,
    LoopNode,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RetryNode,
    SubgraphNode,
    node,
)
from astromesh.graph.scope import Scope
from astromesh.telemetry.events import EventStream
from astromesh.testing import RecordingSink, RecordingTool, ScriptedProvider
from astromesh.types import Message, ToolCall

SAFE = {NodeFlag.PARALLEL_SAFE}


def says(name: str, value: Any = None, **keywords: Any) -> FunctionNode:
    return FunctionNode(name, lambda state: value(state) if callable(value) else value, **keywords)


def fails(name: str, **keywords: Any) -> FunctionNode:
    def body(state):
        raise RuntimeError("broken")

    return FunctionNode(name, body, **keywords)


def outer(name: str, work: Any, **keywords: Any) -> FunctionNode:
    """A node that does something with `config`."""

    async def body(state, config):
        return await work(state, config)

    return FunctionNode(name, body, **keywords)


async def run(*nodes: BaseNode, script: Any = (), **engine: Any):
    graph = PromptGraph("g", nodes=nodes).sequential(*(n.name for n in nodes))
    return await PromptGraphEngine(graph, ScriptedProvider(*script), **engine).ainvoke("Why?")


async def test_a_child_runs_to_its_answer_with_its_tool_loop() -> None:
    """config.run enters a child again as long as it asks for tools, like the engine does."""
    ask = PromptNode("ask", inject_tools=True)

    async def work(state, config):
        result = await config.run(ask, state)
        return result.output, len(state.messages)

    script = (ToolCall("1", "look"), ToolCall("2", "look"), "done")
    result = await run(outer("o", work), script=script, tools=[RecordingTool("look")])
    assert result.output == ("done", 6)
    assert result.report.nodes_visited == ["o", "o/ask", "o/ask", "o/ask"]
    assert result.report.tool_calls == ["look", "look"]


async def test_hooks_and_flags_work_on_children() -> None:
    """Trap 4: policy is inherited, at every depth."""
    seen: list[str] = []

    class Watch:
        def pre_node(self, node, state):
            seen.append(node.name)

    leaf = says("leaf", lambda s: dict(s.context), flags={NodeFlag.ISOLATED_CONTEXT})
    middle = outer("middle", lambda s, c: c.run(leaf, s))
    result = await run(says("first", 1), outer("top", lambda s, c: c.run(middle, s)), hooks=[Watch()])
    assert seen == ["first", "top", "middle", "leaf"]
    assert result.output == {}
    assert result.report.nodes_visited == ["first", "top", "top/middle", "top/middle/leaf"]


async def test_the_limits_of_a_run_hold_inside() -> None:
    """Trap 4: max_iterations counts everything; max_node_iterations counts a child by its path."""
    step = says("step", 1)

    async def forever(state, config):
        while True:
            result = await config.run(step, state)
            if result.error:
                return result

    limited = await run(outer("o", forever), says("after"), max_iterations=5)
    assert (limited.report.stop_reason, limited.report.iterations) == ("max_iterations", 5)
    assert "after" not in limited.report.nodes_visited
    stuck = await run(outer("o", forever), max_node_iterations=4)
    assert stuck.report.nodes_visited == ["o", *["o/step"] * 4]
    assert "'o/step' is stuck" in stuck.report.error


async def test_a_failed_child_is_its_parents_to_judge_and_never_swallowed() -> None:
    """Trap 5: `collect` answers every result, `fail` raises and cancels the others."""
    children = [Child(fails("bad", flags=SAFE)), Child(says("good", 1, flags=SAFE))]

    async def collect(state, config):
        return [r.error or r.output for r in await config.together(children, state, on_error="collect")]

    assert (await run(outer("o", collect))).output == ["RuntimeError: broken", 1]
    failed = await run(outer("o", lambda s, c: c.together(children, s)))
    assert failed.report.error == "o/bad: RuntimeError: broken"
    caught: list[NodeFailed] = []

    async def catch(state, config):
        try:
            await config.together(children, state)
        except NodeFailed as error:
            caught.append(error)
            raise

    await run(outer("o", catch))
    assert isinstance(caught[0].cause, RuntimeError)


async def test_under_fail_the_others_are_cancelled() -> None:
    """What still runs when one child failed does not go on."""
    ended: list[str] = []

    @node("slow", flags=SAFE)
    async def slow(state):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @node("bad", flags=SAFE)
    async def bad(state):
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    await run(outer("o", lambda s, c: c.together([Child(slow), Child(bad)], s)))
    assert ended == ["cancelled"]


async def test_cancelling_the_run_cancels_its_children() -> None:
    """Trap 4, cancellation: nothing is left at work."""
    at_work = [0]

    @node("slow", flags=SAFE)
    async def slow(state):
        at_work[0] += 1
        try:
            await asyncio.sleep(60)
        finally:
            at_work[0] -= 1

    work = outer("o", lambda s, c: c.together([Child(slow, f"s{i}") for i in range(3)], s))
    task = asyncio.create_task(run(work))
    while at_work[0] < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert at_work == [0]


async def test_each_branch_has_its_own_path_in_scope_and_report() -> None:
    """Recorded steps are keyed by scope.path: names given, names repeated, names nested."""
    paths: list[str] = []

    @node("leaf", flags=SAFE)
    async def leaf(state, config):
        paths.append(config.scope.path)
        await asyncio.sleep(0)

    named = [Child(leaf, f"leaf[{i}]") for i in range(2)]

    async def work(state, config):
        await config.together([*named, Child(leaf), Child(leaf)], state)
        await config.run(leaf, state)

    graph = PromptGraph(nodes=[outer("o", work)])
    run_ = PromptGraphEngine(graph).start([Message("user", "x")], Scope("r").child("pattern"))
    report = (await run_.execute()).report
    expected = ["o/leaf[0]", "o/leaf[1]", "o/leaf", "o/leaf#2", "o/leaf"]
    assert paths == [f"pattern/{path}" for path in expected]
    assert report.nodes_visited == ["o", *expected]


async def test_a_childs_own_values_stay_with_it() -> None:
    """Child.context is seen by that child alone; what it makes of it is its own write."""
    item = says(
        "item", lambda s: (s.context["item"], s.context.update(item=s.context["item"] * 10))[0], flags=SAFE
    )
    children = [Child(item, f"item[{i}]", {"item": i, "keep": i}) for i in (1, 2, 3)]

    async def work(state, config):
        results = await config.together(children, state)
        return [r.output for r in results], state.context.get("item"), state.context.get("keep")

    assert (await run(outer("o", work))).output == ([1, 2, 3], 30, None)


async def test_a_nested_graph_has_its_own_visits_and_the_runs_context() -> None:
    """config.run_graph: from entry to end on a level of its own; writes go to the run."""
    inner = PromptGraph(
        "inner", nodes=[says("x", 1), says("y", lambda s: (s.visited.copy(), s.context["x_output"]))]
    )
    inner.always("x", "y")
    work = outer("o", lambda s, c: c.run_graph(inner, s))
    result = await run(says("a"), work, says("z", lambda s: s.visited.copy()))
    assert result.context["y_output"] == (["x", "y"], 1)
    assert result.output == ["a", "o", "z"]
    assert result.report.nodes_visited == ["a", "o", "o/x", "o/y", "z"]


async def test_a_failed_or_broken_nested_graph_fails_its_node() -> None:
    """Trap 5 and 10: errors, missing nodes and stuck nodes inside come out as the node's error."""
    broken = {
        "RuntimeError: broken": (PromptGraph(nodes=[fails("x")]), "failed"),
        "no node 'gone'": (PromptGraph(nodes=[says("x")]).always("x", "gone"), "unknown_node"),
        "'o/x' is stuck": (PromptGraph(nodes=[says("x")]).always("x", "x"), "stuck_node"),
    }
    for expected, (inner, reason) in broken.items():
        result = await run(outer("o", lambda s, c, inner=inner: c.run_graph(inner, s)), max_node_iterations=3)
        assert expected in result.report.error
        assert result.report.stop_reason == reason


async def test_a_denial_inside_stops_the_whole_run() -> None:
    """What a human refused is not gone around by the node that asked."""
    denied = says("ask", NodeResult(error="no", stop_reason="human_denied"))

    async def insist(state, config):
        await config.run(denied, state)
        return (await config.run(says("anyway", "done"), state)).output

    report = (await run(outer("o", insist), says("after"))).report
    assert report.stop_reason == "human_denied"
    assert report.nodes_visited == ["o", "o/ask"]


async def test_events_tell_of_children_by_their_path() -> None:
    """Trap 4, events: started and finished, nested and paired."""
    sink = RecordingSink()
    graph = PromptGraph(nodes=[outer("o", lambda s, c: c.run(fails("x"), s))])
    scope = Scope("r", events=EventStream("r", [sink]))
    await PromptGraphEngine(graph).start([Message("user", "x")], scope).execute()
    assert [(e.type, e.data["node"]) for e in sink.events] == [
        ("node.started", "o"), ("node.started", "o/x"), ("node.finished", "o/x"), ("node.failed", "o/x"),
        ("node.finished", "o"), ("node.failed", "o"),
    ]  # fmt: skip


async def test_usage_of_children_is_booked_once() -> None:
    """A parent that hands on its child's result does not pay twice."""
    ask = PromptNode("ask")
    result = await run(outer("o", lambda s, c: c.run(ask, s)), script=("two words",))
    assert result.report.usage.output_tokens == 2
    assert (result.output, result.report.nodes_visited) == ("two words", ["o", "o/ask"])


async def test_children_named_only_at_run_time_run_like_declared_ones() -> None:
    """A node made on the spot is compiled for this run alone."""

    async def work(state, config):
        return [(await config.run(says(f"n{i}", i), state)).output for i in range(3)]

    assert (await run(outer("o", work))).output == [0, 1, 2]


async def test_a_graph_that_contains_itself_ends_at_the_limit() -> None:
    """Recursion is bounded by max_iterations like everything else."""
    graph = PromptGraph("g")

    class Self(BaseNode):
        def children(self):
            return (graph,)

        async def execute(self, state, config):
            return await config.run_graph(graph, state)

    graph.add_node(Self("again"))
    report = (await PromptGraphEngine(graph, max_iterations=6).ainvoke("x")).report
    assert (report.stop_reason, report.iterations) == ("max_iterations", 6)
    assert report.nodes_visited[-1] == "again/again/again/again/again/again"


def _asks_nobody_again(child: PromptNode) -> dict[str, BaseNode]:
    inner = PromptGraph("inner", nodes=[child])
    again = {NodeFlag.RETRYABLE}
    return {
        "subgraph": SubgraphNode("n", inner, flags=again),
        "loop": LoopNode("n", child, until=lambda result: True, flags=again),
        "collect": ParallelNode("n", [child], on_error="collect", flags=again),
        "fan_out": FanOutNode("n", child, [1], on_error="collect", flags=again),
        "retry": RetryNode("n", SubgraphNode("s", inner)),
    }


@pytest.mark.parametrize("kind", ["subgraph", "loop", "collect", "fan_out", "retry"])
async def test_what_cannot_heal_is_not_tried_again_from_outside_either(kind: str) -> None:
    """Nodes that run others hand on what was raised: a wrong key costs one call, however deep (trap 23)."""
    model = ScriptedProvider(ProviderUnauthorized("no key"), repeat=True)
    node = _asks_nobody_again(PromptNode("ask"))[kind]
    result = await PromptGraphEngine(PromptGraph(nodes=[node]), model).ainvoke("q")
    assert len(model.requests) == 1
    assert "no key" in result.report.error
