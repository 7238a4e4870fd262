"""Hooks: when they are called, what they may do, that they never harm a run; those of the engine."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from astromesh.graph import (
    END,
    BaseNode,
    BudgetHook,
    CycleDetectionHook,
    FunctionNode,
    GraphState,
    LoggingHook,
    MetricsHook,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    TimingHook,
    node,
)
from astromesh.graph.hooks import cycle_at_end
from astromesh.testing import RecordingTool, Reply, ScriptedProvider
from astromesh.types import Message, ToolCall, ToolResult, Usage

F = NodeFlag


def says(name: str, value: Any = None, **keywords: Any) -> FunctionNode:
    return FunctionNode(name, lambda state: value(state) if callable(value) else value, **keywords)


def fails(name: str, **keywords: Any) -> FunctionNode:
    def body(state):
        raise RuntimeError("broken")

    return FunctionNode(name, body, **keywords)


def chain(*nodes: BaseNode) -> PromptGraph:
    return PromptGraph("g", nodes=nodes).sequential(*(n.name for n in nodes))


async def run(graph: PromptGraph, hooks: Any, *script: Any, **engine: Any):
    model = ScriptedProvider(*script)
    return await PromptGraphEngine(graph, model, hooks=hooks, **engine).ainvoke("Why?")


class Log:
    """Notes every call of every method, sync."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pre_node(self, node, state):
        self.lines.append(f"pre {node.name}")

    def post_node(self, node, result, state):
        self.lines.append(f"post {node.name}")

    def pre_tool(self, call, state):
        self.lines.append(f"pre_tool {call.name}")

    def post_tool(self, call, result, state):
        self.lines.append(f"post_tool {call.name}")

    def on_error(self, node, error, state):
        self.lines.append(f"error {node.name} {error!r}")

    def on_graph_mutation(self, mutation, state):
        self.lines.append(f"mutation {mutation.op}")


class AsyncLog(Log):
    """The same, async."""

    async def pre_node(self, node, state):
        await asyncio.sleep(0)
        Log.pre_node(self, node, state)

    async def post_node(self, node, result, state):
        await asyncio.sleep(0)
        Log.post_node(self, node, result, state)
        return result


# -- when ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Log, AsyncLog])
async def test_hooks_are_called_around_nodes_and_tools_sync_or_async(kind) -> None:
    """The hook points of document 000, in their order."""
    log = kind()
    graph = chain(PromptNode("ask", inject_tools=True), fails("bad"))
    await run(graph, [log], ToolCall("1", "look"), "done", tools=[RecordingTool("look")])
    assert log.lines == [
        "pre ask", "pre_tool look", "post_tool look", "post ask", "pre ask", "post ask",
        "pre bad", "error bad RuntimeError('broken')", "post bad",
    ]  # fmt: skip


async def test_hooks_run_in_registration_order() -> None:
    """First given, first called."""
    order: list[int] = []

    class Numbered:
        def __init__(self, number: int) -> None:
            self.number = number

        def pre_node(self, node, state):
            order.append(self.number)

    await run(chain(says("a")), [Numbered(1), Numbered(2), Numbered(3)])
    assert order == [1, 2, 3]


async def test_pre_and_post_are_always_paired() -> None:
    """Trap 15: also for failures, CRITICAL, skipped nodes, cache hits, nested nodes."""
    log = Log()
    parallel = ParallelNode("p", [says("x"), says("y", flags={F.READONLY})])
    nodes = [
        says("a"),
        parallel,
        fails("b"),
        says("c", flags={F.SKIP_ON_ERROR}),
        fails("d", flags={F.CRITICAL}),
    ]
    await run(chain(*nodes), [log])
    begun = [line[4:] for line in log.lines if line.startswith("pre ")]
    ended = [line[5:] for line in log.lines if line.startswith("post ")]
    assert sorted(begun) == sorted(ended) == sorted(["a", "p", "x", "y", "b", "c", "d"])


async def test_a_cancelled_node_is_told_its_end_too() -> None:
    """Trap 15, for cancellation."""
    log = Log()
    started = asyncio.Event()

    @node("wait")
    async def wait(state):
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(PromptGraphEngine(chain(wait), hooks=[log]).ainvoke("x"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.lines == ["pre wait", "post wait"]


# -- what they may do ----------------------------------------------------------------------------------------


async def test_a_hook_may_change_the_state_and_the_result() -> None:
    """pre_node: the state, in place or another; post_node: the result, and what it says is written."""

    class Change:
        def pre_node(self, node, state):
            other = state.fork({})
            other.context["given"] = "by hook"
            return other

        def post_node(self, node, result, state):
            return NodeResult(output=result.output.upper())

    result = await run(chain(says("a", lambda s: s.context["given"], output_key="k")), [Change()])
    assert result.output == result.context["k"] == result.context["a_output"] == "BY HOOK"


async def test_a_hook_that_fails_a_result_keeps_it_from_being_written() -> None:
    """An error set by a hook is the node's error."""

    class Refuse:
        def post_node(self, node, result, state):
            result.error = "not today"

    result = await run(chain(says("a", "x", output_key="k")), [Refuse()])
    assert (result.output, result.context, result.report.error) == (None, {}, "not today")


@pytest.mark.parametrize("where", ["pre_node", "post_node"])
async def test_a_hook_may_end_the_run(where: str) -> None:
    """Setting current_node to __end__ ends the run: before a node it does not run any more."""

    class Stop:
        def pre_node(self, node, state):
            if where == "pre_node" and node.name == "b":
                state.current_node = END

        def post_node(self, node, result, state):
            if where == "post_node" and node.name == "b":
                state.current_node = END

    log = Log()
    report = (await run(chain(says("a"), says("b"), says("c")), [Stop(), log])).report
    assert report.nodes_visited == (["a"] if where == "pre_node" else ["a", "b"])
    assert report.stop_reason == "completed"
    assert log.lines[-1] == "post b"


async def test_a_hook_may_end_the_run_with_a_reason_from_inside_a_nested_node() -> None:
    """state.stop works at every level; what runs beside it ends, what comes after does not begin."""

    class Stop:
        def post_node(self, node, result, state):
            if node.name == "x":
                state.stop("budget", "enough")

    graph = chain(ParallelNode("p", [says("x"), says("y"), says("z")], max_concurrency=1), says("after"))
    report = (await run(graph, [Stop()])).report
    assert report.nodes_visited == ["p", "p/x"]
    assert (report.stop_reason, report.error) == ("budget", "enough")


async def test_tool_hooks_may_change_call_and_result_but_not_whose_answer_it_is() -> None:
    """pre_tool changes arguments, post_tool the result; there is exactly one result for the model's call."""

    class Change:
        async def pre_tool(self, call, state):
            return ToolCall("other id", call.name, '{"q": "changed"}')

        def post_tool(self, call, result, state):
            return ToolResult("wrong id", result.name, result.content + "!", value=result.value)

    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    tool = RecordingTool("look", "found", parameters=schema)
    graph = chain(PromptNode("ask", inject_tools=True))
    result = await run(graph, [Change()], ToolCall("c1", "look", '{"q": "asked"}'), "done", tools=[tool])
    assert tool.calls == [{"q": "changed"}]
    answer = result.messages[2]
    assert (answer.tool_call_id, answer.content) == ("c1", "found!")


# -- trap 6: never harm the run ------------------------------------------------------------------------------


async def test_a_hook_that_raises_or_answers_nonsense_changes_nothing(caplog) -> None:
    """Trap 6: it is logged, and that is all."""

    class Bad:
        def pre_node(self, node, state):
            raise RuntimeError("pre")

        async def post_node(self, node, result, state):
            raise RuntimeError("post")

        def post_tool(self, call, result, state):
            return "nonsense"

        def on_error(self, node, error, state):
            raise RuntimeError("on_error")

    class Nonsense:
        def pre_node(self, node, state):
            return 7

        def post_node(self, node, result, state):
            return "x"

    graph = chain(PromptNode("ask", inject_tools=True), fails("bad"), says("end", "fine"))
    result = await run(
        graph, [Bad(), Nonsense()], ToolCall("1", "look"), "done", tools=[RecordingTool("look")]
    )
    assert (result.output, result.report.nodes_visited) == ("fine", ["ask", "ask", "bad", "end"])
    assert "failed" in caplog.text


async def test_a_pre_tool_hook_that_raises_blocks_the_call() -> None:
    """Trap 6: fails closed; the model gets a corrective result, the tool is not called."""

    class Block:
        def pre_tool(self, call, state):
            raise PermissionError("not this one")

    tool = RecordingTool("look")
    graph = chain(PromptNode("ask", inject_tools=True))
    result = await run(graph, [Block()], ToolCall("c1", "look"), "done", tools=[tool])
    assert tool.calls == []
    assert result.report.tool_calls == []
    assert "blocked" in result.messages[2].content
    assert result.output == "done"


# -- TimingHook, BudgetHook ----------------------------------------------------------------------------------


async def test_timing_measures_and_fails_what_took_too_long() -> None:
    """TimingHook: a budget for all nodes or by name; what is over it has an error."""

    @node("slow")
    async def slow(state):
        await asyncio.sleep(0.01)
        return "x"

    hook = TimingHook({"slow": 1})
    result = await run(chain(says("fast", 1), slow), [hook])
    assert "'slow' took" in result.report.error
    assert result.output is None
    measured = hook.of(result.report)
    assert measured["slow"] >= 9
    assert set(measured) == {"fast", "slow"}
    assert (await run(chain(slow), [TimingHook()])).report.error == ""


async def test_a_budget_ends_the_run_when_it_is_exceeded() -> None:
    """BudgetHook: more tokens than allowed were spent, no further node runs."""
    lines = [Reply("x", usage=Usage(60, 0)), Reply("y", usage=Usage(60, 0)), Reply("z", usage=Usage(60, 0))]
    graph = chain(PromptNode("a"), PromptNode("b"), PromptNode("c"))
    report = (await run(graph, [BudgetHook(100)], *lines)).report
    assert (report.nodes_visited, report.stop_reason) == (["a", "b"], "budget")
    assert "The run's budget of tokens" in report.error


async def test_a_used_up_budget_stops_model_calls_inside_a_node() -> None:
    """BudgetHook: a node that asks the model again and again is stopped before the call that is too much."""

    @node("greedy")
    async def greedy(state, config):
        ask = PromptNode("ask")
        for _ in range(10):
            await config.run(ask, state)

    report = (await run(chain(greedy), [BudgetHook(max_model_calls=3)], *"abcdefghij")).report
    assert report.nodes_visited == ["greedy", *["greedy/ask"] * 4]
    assert report.stop_reason == "budget"


async def test_a_budget_of_tool_calls_ends_the_run_at_the_first_call_beyond_it() -> None:
    """BudgetHook: it is refused and answered, the model not asked again."""
    tool = RecordingTool("look")
    graph = chain(PromptNode("ask", inject_tools=True))
    calls = [ToolCall(str(i), "look") for i in range(3)]
    result = await run(graph, [BudgetHook(max_tool_calls=2)], calls, "done", tools=[tool])
    assert len(tool.calls) == 2
    assert (result.output, result.report.stop_reason) == (None, "budget")
    assert "tool calls" in result.report.error
    assert sum(message.role == "tool" for message in result.messages) == 3
    within = await run(graph, [BudgetHook(max_tool_calls=3)], calls, "done", tools=[tool])
    assert (within.output, within.report.stop_reason) == ("done", "completed")


# -- CycleDetectionHook --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("aaa", "a"),
        ("aa", ""),
        ("xababab", "ab"),
        ("ababa", ""),
        ("abcabcabc", "abc"),
        ("abcab", ""),
        ("", ""),
    ],
)
def test_a_circle_is_a_sequence_that_came_three_times_in_a_row(names: str, found: str) -> None:
    """The shortest one at the end of the path."""
    assert "".join(cycle_at_end(list(names), 4, 3)) == found


async def test_a_circle_ends_the_run() -> None:
    """CycleDetectionHook: stop_reason cycle, and the report names the way."""
    graph = PromptGraph(nodes=[says("a"), says("b")]).always("a", "b").always("b", "a")
    report = (await run(graph, [CycleDetectionHook()])).report
    assert (report.stop_reason, report.iterations) == ("cycle", 6)
    assert "a → b" in report.error or "b → a" in report.error


async def test_tool_loops_bounded_loops_and_exempt_nodes_are_no_circles() -> None:
    """Rounds of a tool loop do not count; max_iterations declares a bound; names can be exempt."""
    calls = [ToolCall(str(i), "look") for i in range(8)]
    looped = chain(PromptNode("ask", inject_tools=True))
    report = (await run(looped, [CycleDetectionHook()], *calls, "done", tools=[RecordingTool("look")])).report
    assert report.stop_reason == "completed"
    bounded = PromptGraph(nodes=[says("a", max_iterations=9), says("b")]).always("a", "b").always("b", "a")
    assert (await run(bounded, [CycleDetectionHook()])).report.stop_reason == "stuck_node"
    free = PromptGraph(nodes=[says("a"), says("b")]).always("a", "b").always("b", "a")
    hook = CycleDetectionHook(exempt=["b"])
    assert (await run(free, [hook], max_iterations=20)).report.stop_reason == "max_iterations"


# -- trap 16: state is per run -------------------------------------------------------------------------------


async def test_a_hooks_data_belongs_to_the_run() -> None:
    """Trap 16: one hook object, many runs at once, nothing is mixed up."""
    timing, metrics, cycle = TimingHook(), MetricsHook(), CycleDetectionHook()

    @node("a", max_iterations=99)
    async def a(state):
        await asyncio.sleep(0)
        return state.node_iterations["a"] < int(state.question)

    graph = PromptGraph(nodes=[a]).when("a", "a", lambda r: r.output)
    engine = PromptGraphEngine(graph, hooks=[timing, metrics, cycle])
    results = await asyncio.gather(*(engine.ainvoke(str(n)) for n in range(1, 8)))
    assert [metrics.of(r.report)["a"].visits for r in results] == list(range(1, 8))
    assert all(timing.of(r.report).keys() == {"a"} for r in results)
    assert not [k for k, v in vars(timing).items() if isinstance(v, dict) and v]


# -- LoggingHook, MetricsHook --------------------------------------------------------------------------------


async def test_logging_tells_what_happens_but_no_outputs(caplog) -> None:
    """LoggingHook: nodes, tools, failures; never what was said."""
    graph = chain(PromptNode("ask", inject_tools=True), fails("bad"))
    with caplog.at_level(logging.INFO, "astromesh.graph.run"):
        await run(graph, [LoggingHook()], ToolCall("1", "look"), "a secret", tools=[RecordingTool("look")])
    for expected in (
        "node ask begins",
        "tool look is called",
        "tool look answered",
        "node bad failed: broken",
    ):
        assert expected in caplog.text
    assert "secret" not in caplog.text


async def test_metrics_add_up_by_node_and_hand_on_observable_ones() -> None:
    """MetricsHook: totals of every node, single executions of OBSERVABLE ones."""
    seen: list[Any] = []
    hook = MetricsHook(seen.append)
    graph = chain(PromptNode("ask", flags={F.OBSERVABLE, F.INJECT_TOOLS}), fails("bad"))
    script = (Reply(tool_calls=[ToolCall("1", "look")], usage=Usage(1, 2)), Reply("done", usage=Usage(3, 4)))
    result = await run(graph, [hook], *script, tools=[RecordingTool("look")])
    totals = hook.of(result.report)
    assert (totals["ask"].visits, totals["ask"].tokens, totals["ask"].tool_calls) == (2, 10, 1)
    assert (totals["bad"].visits, totals["bad"].errors) == (1, 1)
    assert [m.tokens for m in seen] == [3, 7]


async def test_custom_flags_are_for_hooks_to_ask() -> None:
    """Document 002: `node.has_flag(MyFlags.AUDIT_REQUIRED)` in a hook."""
    audited: list[str] = []

    class Audit:
        async def post_node(self, node, result, state):
            if node.has_flag("audit"):
                audited.append(node.name)
            return result

    await run(chain(says("a", flags={"audit"}), says("b")), [Audit()])
    assert audited == ["a"]


async def test_a_hook_sees_the_messages_and_outputs_of_the_nodes_before() -> None:
    """pre_node comes when everything before it has been written."""
    seen: list[Any] = []

    class Look:
        def pre_node(self, node, state):
            seen.append((node.name, len(state.messages), state.context.get("a_output"), state.current_node))

    said = NodeResult(output="x", messages_added=[Message("assistant", "x")])
    await run(chain(says("a", said), says("b")), [Look()])
    assert seen == [("a", 1, None, "a"), ("b", 2, "x", "b")]


class Inner:
    """Lets the cancellation of something of its own out, wherever it is asked."""

    async def _ask(self, *arguments: Any) -> None:
        task = asyncio.create_task(asyncio.sleep(9))
        task.cancel()
        await task

    pre_node = post_node = post_tool = _ask


async def test_a_hooks_own_cancellation_is_not_the_runs() -> None:
    """Trap 6: whatever a hook lets out harms nothing; in pre_tool it blocks the call."""
    tool = RecordingTool("look", "seen")
    result = await run(chain(PromptNode("p", tools=[tool])), [Inner()], ToolCall("1", "look"), "done")
    assert (result.output, len(tool.calls)) == ("done", 1)

    class Blocks:
        pre_tool = Inner._ask

    result = await run(chain(PromptNode("p", tools=[tool])), [Blocks()], ToolCall("1", "look"), "done")
    assert (result.output, len(tool.calls)) == ("done", 1)


async def test_a_hooks_result_is_the_nodes_whatever_name_it_has() -> None:
    """Another name would hide the answer from the run, and the node from its graph actions."""

    class Renames:
        def post_node(self, node, result, state):
            return NodeResult("other", {"answer": 1, "_graph_action": {"op": "add_node", "name": "z"}})

    result = await run(chain(says("a")), [Renames()], allow_self_modification=True)
    assert result.output["answer"] == 1
    assert [m.node for m in result.report.mutations] == ["a"]


_GARBAGE: list[tuple[str, Any]] = [
    ("messages", None), ("messages", 5), ("context", None), ("visited", None), ("node_history", None),
    ("node_history", [5]), ("shared", None),
]  # fmt: skip


@pytest.mark.parametrize("by", ["hook", "node"])
@pytest.mark.parametrize(("field", "garbage"), _GARBAGE)
async def test_what_breaks_the_state_fails_the_run_and_raises_nothing(
    field: str, garbage: Any, by: str
) -> None:
    """A failed run is a result too: it says what is wrong and at which node (trap 6)."""

    class Breaks:
        def pre_node(self, node: BaseNode, state: GraphState) -> None:
            if node.name == "a" and by == "hook":
                setattr(state, field, garbage)

    @node("a", output_key="k")
    def a(state: GraphState) -> str:
        if by == "node":
            setattr(state, field, garbage)
        return "one"

    @node("b")
    def b(state: GraphState) -> str:
        return "two"

    graph = PromptGraph(nodes=[a, PromptNode("p"), b]).sequential("a", "p", "b")
    engine = PromptGraphEngine(graph, ScriptedProvider("x", repeat=True), hooks=[Breaks()])
    result = await engine.ainvoke("q")
    report = result.report
    json.dumps(report.to_json())
    if report.stop_reason == "completed":  # where nothing needed what was broken
        assert result.output == "two"
    else:
        assert (report.stop_reason, result.output) == ("critical_error", None)
        assert field in report.error
    assert isinstance(result.messages, list)


@pytest.mark.parametrize("output", [1, {"a": 1}, ["x"], None])
async def test_a_hook_that_changes_a_result_in_place_decides_like_the_node(output: Any) -> None:
    """Whatever the node returned: a route, an error and a next node of a hook count."""

    class Leads:
        def post_node(self, node, result, state):
            if node.name == "a":
                result.output = {"route": "c"}

    class Fails:
        def post_node(self, node, result, state):
            result.error = "no" if node.name == "a" else ""

    graph = PromptGraph(nodes=[says("a", output, routes=["c"]), says("b"), says("c")]).always("a", "b")
    led = await PromptGraphEngine(graph, hooks=[Leads()]).ainvoke("Why?")
    assert led.report.nodes_visited == ["a", "c"]
    plain = await PromptGraphEngine(graph).ainvoke("Why?")
    assert plain.report.nodes_visited == ["a", "b"]
    failed = await PromptGraphEngine(graph, hooks=[Fails()]).ainvoke("Why?")
    assert failed.report.errors[0].message == "no"


async def test_a_cancelled_node_is_told_to_hooks_that_only_see_the_end() -> None:
    """As to those that saw its start."""
    seen: list[str] = []

    class Ends:
        def post_node(self, node, result, state):
            seen.append(result.error)

    async def wait(state):
        await asyncio.sleep(60)

    graph = PromptGraph(nodes=[FunctionNode("a", wait)])
    task = asyncio.create_task(PromptGraphEngine(graph, hooks=[Ends()]).ainvoke("Why?"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert seen == ["cancelled"]
