"""The execution loop of document 000, box by box: entry, visits, limits, stops, the report, the finalizer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from astromesh.errors import BudgetExhausted, InvalidGraph, InvalidInput
from astromesh.graph import (
    END,
    BaseNode,
    FunctionNode,
    GraphState,
    NodeConfig,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    SubgraphNode,
    node,
)
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import Scope
from astromesh.telemetry.events import EventStream
from astromesh.testing import ManualClock, RecordingSink, RecordingTool, ScriptedProvider
from astromesh.types import CallerContext, Message, ToolCall, Usage, get_current_caller

CALL = ToolCall("c1", "lookup", "{}")


def says(name: str, value: Any = None, **keywords: Any) -> FunctionNode:
    """A node that answers a value, or what a function of the state answers."""
    return FunctionNode(name, lambda state: value(state) if callable(value) else value, **keywords)


def fails(name: str, message: str = "broken", **keywords: Any) -> FunctionNode:
    """A node that raises."""

    def body(state):
        raise RuntimeError(message)

    return FunctionNode(name, body, **keywords)


def chain(*nodes: BaseNode) -> PromptGraph:
    return PromptGraph("g", nodes=nodes).sequential(*(n.name for n in nodes))


async def run(graph: PromptGraph, *script: Any, **engine: Any):
    return await PromptGraphEngine(graph, ScriptedProvider(*script), **engine).ainvoke("Why?")


# -- from entry to end -------------------------------------------------------------------------------------


async def test_nodes_run_in_the_order_of_their_edges_and_the_last_output_is_the_answer() -> None:
    """The loop goes from the entry along the edges until __end__; the report tells the way."""
    result = await run(chain(says("a", 1), says("b", lambda s: s.context["a_output"] + 1), says("c", "done")))
    assert result.output == "done"
    assert result.context == {"a_output": 1, "b_output": 2, "c_output": "done"}
    assert result.report.nodes_visited == ["a", "b", "c"]
    assert (result.report.iterations, result.report.stop_reason, result.report.error) == (3, "completed", "")
    assert result.report.duration_ms > 0
    assert "a → b → c" in result.report.summary()


async def test_the_entry_is_what_was_set_else_what_is_marked_else_the_first() -> None:
    """Three ways to say where a run begins, in this order."""
    graph = PromptGraph(nodes=[says("a"), says("b", is_entry=True), says("c")])
    assert graph.entry == "b"
    assert graph.set_entry("c").entry == "c"
    assert PromptGraph(nodes=[says("a"), says("b")]).entry == "a"


@pytest.mark.parametrize("given", ["Why?", [Message("user", "Why?")], [{"role": "user", "content": "Why?"}],
                                   {"messages": [{"role": "user", "content": "Why?"}]}])  # fmt: skip
async def test_the_input_may_be_a_text_messages_or_a_mapping(given) -> None:
    """All forms of input become the same messages."""
    result = await PromptGraphEngine(chain(says("a", lambda s: s.question))).ainvoke(given)
    assert result.output == "Why?"
    assert result.messages == [Message("user", "Why?")]


@pytest.mark.parametrize("given", [[], (), {"messages": []}, {"messages": ()}])
async def test_the_input_may_be_no_messages(given: Any) -> None:
    """Nodes find no question. A model is asked all the same."""
    result = await PromptGraphEngine(chain(says("a", lambda s: s.question or "nothing"))).ainvoke(given)
    assert (result.output, result.messages) == ("nothing", [])
    model = ScriptedProvider("Hello.")
    engine = PromptGraphEngine(PromptGraph(nodes=[PromptNode("p", instructions="Greet.")]), model)
    assert (await engine.ainvoke(given)).output == "Hello."
    assert [m.role for m in model.requests[0].messages] == ["system"]
    events = [event.type async for event in engine.astream_events(given)]
    assert events[-1] == "run.failed"  # the script has ended, and not before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "not of type dict"),
        (7, "not of type int"),
        (None, "not None"),
        (b"Why?", "not of type bytes"),
        ({"messages": None}, "not None"),
        ({"messages": "Why?"}, "not of type str"),
        ([{"role": "x"}], "needs a role"),
        ([7], "needs a role"),
        ([{"role": ["user"]}], "needs a role"),
        ([{"role": "user", "content": ["Why?"]}], "content of a message must be text"),
        ([{"role": "tool", "tool_call_id": 7}], "tool_call_id of a message must be text"),
        ([{"role": "assistant", "tool_calls": 7}], "tool_calls of a message must be a list"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}],
            "arguments of a tool call must be text",
        ),
    ],
)
async def test_an_input_that_is_none_of_them_is_refused(given: Any, said: str) -> None:
    """A wrong input is the caller's fault, and says what is wrong with it."""
    with pytest.raises(InvalidInput, match=said):
        await PromptGraphEngine(chain(says("a"))).ainvoke(given)


async def test_a_graph_without_nodes_cannot_run() -> None:
    """The one thing that raises: a graph that cannot run at all."""
    with pytest.raises(InvalidGraph, match="no nodes"):
        await PromptGraphEngine(PromptGraph()).ainvoke("Why?")


async def test_context_and_config_come_in_and_the_context_comes_out() -> None:
    """Initial values are copied: the caller's own mappings stay as they are."""
    context, config = {"n": 1}, {"k": "v"}

    @node("a", output_key="n")
    async def a(state, config):
        config["seen"] = True
        return state.context["n"] + len(config["k"])

    result = await PromptGraphEngine(chain(a)).ainvoke("Why?", context=context, config=config)
    assert result.context["n"] == 2
    assert (context, config) == ({"n": 1}, {"k": "v"})


async def test_the_caller_is_known_inside_the_run_and_forgotten_after_it() -> None:
    """CallerContext is the current caller of everything that a run does, nodes and tools alike."""
    seen = []

    @node("a")
    async def a(state, config):
        seen.extend([get_current_caller(), config.caller])

    caller = CallerContext(user_id="u", bearer_token="t")
    await PromptGraphEngine(chain(a)).ainvoke("Why?", caller=caller)
    assert seen == [caller, caller]
    assert get_current_caller() is None


async def test_a_graph_changed_after_the_engine_was_made_counts_from_the_next_run_on() -> None:
    """The plan is compiled once and again only when the graph was changed."""
    graph = chain(says("a", 1))
    engine = PromptGraphEngine(graph)
    assert (await engine.ainvoke("x")).output == 1
    plan = engine.plan
    assert engine.plan is plan
    graph.add_node(says("b", 2)).always("a", "b")
    assert (await engine.ainvoke("x")).output == 2


# -- trap 10: a missing target -----------------------------------------------------------------------------


async def test_a_missing_target_is_a_problem_at_validate_and_a_failed_run_at_run_time() -> None:
    """Trap 10: never a silent end."""
    graph = PromptGraph(nodes=[says("a", 1)]).always("a", "nowhere")
    assert any("nowhere" in problem for problem in graph.validate())
    report = (await run(graph)).report
    assert report.stop_reason == "unknown_node"
    assert "nowhere" in report.error


async def test_a_next_node_that_does_not_exist_is_a_failed_run_too(caplog) -> None:
    """Trap 10, for targets that only the run knows; document 000: it is logged, then the run ends."""
    result = await run(chain(says("a", lambda s: NodeResult(next_node="nowhere", output="x"))))
    assert (result.report.stop_reason, result.output) == ("unknown_node", None)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("ERROR", "There is no node 'nowhere' in 'g'.")
    ]


# -- trap 11: limits ---------------------------------------------------------------------------------------


async def test_n_iterations_are_exactly_n_model_calls_and_the_report_says_so() -> None:
    """Trap 11: a tool loop that never ends makes max_iterations model calls, and the end is not silent."""
    model = ScriptedProvider(CALL, repeat=True)
    tool = RecordingTool("lookup", "raw tool result")
    graph = PromptGraph(nodes=[PromptNode("ask", inject_tools=True)])
    result = await PromptGraphEngine(graph, model, tools=[tool], max_iterations=4).ainvoke("Why?")
    assert len(model.requests) == 4
    assert result.report.iterations == 4
    assert result.report.stop_reason == "max_iterations"
    assert "4" in result.report.error
    assert result.output is None  # trap 22: neither the tool's result nor the question


async def test_a_run_that_ends_with_its_last_turn_is_complete() -> None:
    """The limit is what may happen, not what may not: three nodes fit into three iterations."""
    report = (await run(chain(says("a"), says("b"), says("c")), max_iterations=3)).report
    assert (report.stop_reason, report.iterations) == ("completed", 3)


async def test_of_two_limits_the_smaller_wins() -> None:
    """A node's own max_iterations and the engine's max_node_iterations: whichever is reached first."""
    for own, limit, visits in ((2, 5, 2), (5, 3, 3), (None, 4, 4)):
        graph = PromptGraph(nodes=[says("a", max_iterations=own)]).always("a", "a")
        report = (await run(graph, max_node_iterations=limit)).report
        assert report.nodes_visited == ["a"] * visits
        assert report.stop_reason == "stuck_node"


# -- stuck nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["edge", "transition", "error node"])
async def test_a_stuck_node_follows_its_error_transition_else_the_error_node(how: str) -> None:
    """Over max_node_iterations: the node's error transition first, then `__error__`."""
    keywords: dict[str, Any] = {"transitions": {"error": "rescue"}} if how == "transition" else {}
    name = "__error__" if how == "error node" else "rescue"
    graph = PromptGraph(nodes=[says("a", **keywords), says(name, "rescued")]).always("a", "a")
    if how == "edge":
        graph.on_error("a", "rescue")
    result = await run(graph, max_node_iterations=3)
    assert result.report.nodes_visited == ["a", "a", "a", name]
    assert (result.output, result.report.stop_reason, result.report.error) == ("rescued", "completed", "")


async def test_a_stuck_node_without_a_way_out_ends_the_run() -> None:
    """The third way: stop_reason stuck_node, and no answer is made up."""
    result = await run(PromptGraph(nodes=[says("a", "x")]).always("a", "a"), max_node_iterations=2)
    assert (result.report.stop_reason, result.output) == ("stuck_node", None)
    assert "'a'" in result.report.error


async def test_two_nodes_that_are_stuck_on_each_other_end() -> None:
    """A rescuer that is stuck itself is no way out: the run ends instead of going round for ever."""
    graph = PromptGraph(nodes=[says("a"), says("b")])
    graph.always("a", "b").always("b", "a").on_error("a", "b").on_error("b", "a")
    report = (await run(graph, max_node_iterations=3, max_iterations=1000)).report
    assert report.stop_reason == "stuck_node"
    assert report.iterations == 6


# -- failures ----------------------------------------------------------------------------------------------


async def test_a_failed_node_goes_on_along_its_edges_and_a_later_success_heals_the_run() -> None:
    """A failed node without an error edge goes on; what a later node makes of it counts."""
    healed = await run(chain(says("a", 1), fails("b"), says("c", "fine")))
    assert (healed.output, healed.report.error) == ("fine", "")
    failed = await run(chain(says("a", 1), fails("b", "no luck")))
    assert failed.output is None
    assert failed.report.error == "RuntimeError: no luck"
    assert failed.report.stop_reason == "failed"


async def test_a_failed_node_writes_no_output() -> None:
    """What a failed node said is not passed on."""
    result = await run(chain(says("a", lambda s: NodeResult(output="half", error="broken"), output_key="k")))
    assert result.context == {}


async def test_a_silent_node_at_the_end_does_not_take_the_answer_away() -> None:
    """A node that returns nothing leaves the answer of the one before."""
    assert (await run(chain(says("a", "answer"), says("log")))).output == "answer"


async def test_a_timeout_cancels_the_node() -> None:
    """Trap 16: a timeout ends the node's work, it does not only measure it."""
    went_on = []

    @node("slow", timeout=0.01)
    async def slow(state):
        await asyncio.sleep(5)
        went_on.append(True)

    result = await run(chain(slow))
    assert "0.01 s" in result.report.error
    assert not went_on


async def test_a_timeout_error_of_the_nodes_own_is_not_taken_for_the_nodes_timeout() -> None:
    """What a node raises by itself keeps its own words."""

    @node("slow", timeout=10)
    async def slow(state):
        raise TimeoutError("the database")

    assert (await run(chain(slow))).report.error == "TimeoutError: the database"


async def test_usage_of_a_node_that_spends_past_the_engine_counts() -> None:
    """A node may report what it spent elsewhere; the ledger and the report know it."""
    result = await run(chain(says("a", lambda s: NodeResult(output=1, usage=Usage(3, 4)))))
    assert result.report.usage.total_tokens == 7


# -- cancellation and the finalizer ------------------------------------------------------------------------


def with_finalizer(*nodes: BaseNode) -> PromptGraph:
    return chain(*nodes).add_node(says("sum_up", lambda s: f"so far: {s.visited}")).set_finalizer("sum_up")


@pytest.mark.parametrize(
    ("first", "engine", "reason"),
    [
        (says("a"), {"max_iterations": 2}, "max_iterations"),
        (says("a"), {"max_node_iterations": 2}, "stuck_node"),
        (fails("a", flags={NodeFlag.CRITICAL}), {}, "critical_error"),
        (says("a", lambda s: NodeResult(next_node="nowhere")), {}, "unknown_node"),
        (says("a", lambda s: s.stop("budget", "spent")), {}, "budget"),
        (says("a", lambda s: NodeResult(error="no", stop_reason="human_denied")), {}, "human_denied"),
    ],
)
async def test_a_finalizer_runs_once_on_every_stop_but_completed(first, engine, reason) -> None:
    """Whatever stops a run, the finalizer's output stands in for the answer, and the reason stays."""
    graph = with_finalizer(first).always("a", "a")
    result = await run(graph, **engine)
    assert result.report.stop_reason == reason
    assert result.report.error
    assert result.report.nodes_visited.count("sum_up") == 1
    assert result.output.startswith("so far:")


async def test_a_finalizer_does_not_run_when_the_run_is_complete() -> None:
    """A complete run needs none."""
    assert (await run(with_finalizer(says("a", 1)))).report.nodes_visited == ["a"]


async def test_a_finalizer_has_no_model() -> None:
    """It runs without a model: asking one fails the finalizer, costs nothing, and the stop's reason stays."""

    @node("sum_up")
    async def sum_up(state, config):
        await PromptNode("ask").execute(state, config)

    model = ScriptedProvider("never")
    graph = PromptGraph(nodes=[says("a"), sum_up]).always("a", "a").set_finalizer("sum_up")
    result = await PromptGraphEngine(graph, model, max_iterations=1).ainvoke("Why?")
    assert model.requests == []
    assert result.report.stop_reason == "max_iterations"
    assert "The finalizer failed" in result.report.error


async def test_cancelling_stops_the_node_runs_the_finalizer_and_keeps_what_there_is() -> None:
    """A cancel passes on to the caller; the run's result holds the report."""
    begun = asyncio.Event()

    @node("wait")
    async def wait(state):
        begun.set()
        await asyncio.sleep(60)

    graph = chain(says("a", "x"), wait, says("never")).add_node(says("sum_up", "cut short"))
    run_ = PromptGraphEngine(graph.set_finalizer("sum_up")).start([Message("user", "Why?")], Scope("r1"))
    task = asyncio.create_task(run_.execute())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run_.result is not None
    assert run_.result.report.stop_reason == "cancelled"
    assert run_.result.report.nodes_visited == ["a", "wait", "sum_up"]
    assert run_.result.output == "cut short"


async def test_cancelling_within_a_finalizer_keeps_what_there_is() -> None:
    """The run was stopped already: it ends as cancelled, and its finalizer does not begin once more."""
    begun = asyncio.Event()

    @node("sum_up")
    async def sum_up(state):
        begun.set()
        await asyncio.sleep(60)

    graph = chain(says("a", "x"), says("b", "y")).add_node(sum_up).set_finalizer("sum_up")
    engine = PromptGraphEngine(graph, max_iterations=1)
    run_ = engine.start([Message("user", "Why?")], Scope("r1"))
    task = asyncio.create_task(run_.execute())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run_.result is not None
    assert run_.result.report.stop_reason == "cancelled"
    assert run_.result.report.nodes_visited == ["a", "sum_up"]
    assert run_.result.output == "x"


async def test_a_cancellation_of_something_of_a_nodes_own_is_its_failure_not_the_runs() -> None:
    """A node that awaits a cancelled task fails; nobody cancelled the run."""

    @node("a")
    async def a(state):
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    report = (await run(chain(a, says("b", 1)))).report
    assert (report.stop_reason, report.nodes_visited) == ("completed", ["a", "b"])


# -- budgets -----------------------------------------------------------------------------------------------


async def test_a_used_up_budget_of_the_surrounding_run_stops_before_the_model_call() -> None:
    """The ledger of the scope holds inside: stop_reason budget, and the call is not made."""
    model = ScriptedProvider("one", "two")
    scope = Scope("r1", ledger=RunLedger({"model_calls": 1}))
    graph = chain(PromptNode("a"), PromptNode("b"), PromptNode("c"))
    result = await PromptGraphEngine(graph, model).start([Message("user", "Why?")], scope).execute()
    assert len(model.requests) == 1
    assert result.report.stop_reason == "budget"
    assert result.report.nodes_visited == ["a", "b"]
    assert scope.ledger.used["model_calls"] == 1


async def test_a_limit_raised_by_a_node_stops_the_run() -> None:
    """BudgetExhausted is not the node's failure: it ends the run, whatever edges there are."""

    @node("a")
    async def a(state):
        raise BudgetExhausted("all gone")

    graph = chain(a, says("b")).on_error("a", "b")
    report = (await run(graph)).report
    assert (report.stop_reason, report.error, report.nodes_visited) == ("budget", "all gone", ["a"])


async def test_what_a_run_costs_is_charged_to_the_surrounding_ledger_and_reported_alone() -> None:
    """The report tells what this graph cost; the scope's ledger adds it to what was spent before."""
    scope = Scope("r1")
    scope.ledger.add_usage(Usage(100, 0))
    graph = chain(PromptNode("a"))
    run_ = PromptGraphEngine(graph, ScriptedProvider("two words")).start([Message("user", "Why?")], scope)
    result = await run_.execute()
    assert result.report.usage == Usage(1, 2)
    assert scope.ledger.usage == Usage(101, 2)


# -- output_key --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), {NodeFlag.ISOLATED_CONTEXT}, {NodeFlag.OBSERVABLE}])
async def test_an_output_of_none_does_not_erase_what_the_node_wrote_under_its_key(flags: Any) -> None:
    @node("a", output_key="k", input_keys=["k"], flags=flags)
    def collect(state: GraphState) -> None:
        state.context.setdefault("k", []).append(len(state.context["k"]))

    @node("b")
    def last(state: GraphState) -> Any:
        return state.context["k"]

    graph = PromptGraph(nodes=[collect, last]).sequential("a", "b")
    assert (await run(graph)).output == [0]
    again = PromptGraph(nodes=[SubgraphNode("s", graph)])
    assert (await run(again)).context["k"] == [0]


async def test_an_output_of_none_under_a_new_key_is_none() -> None:
    result = await run(chain(says("a", output_key="k")))
    assert result.context["k"] is None


# -- states that hooks leave behind ------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["pre_node", "post_node"])
@pytest.mark.parametrize("attribute", ["messages", "context"])
@pytest.mark.parametrize("last", ["function", "prompt", "tool loop", "subgraph", "wrapped", "parallel"])
async def test_a_hook_that_leaves_none_behind_is_a_critical_error_at_the_last_node_too(
    when: str, attribute: str, last: str
) -> None:
    nodes: dict[str, Any] = {
        "function": says("z", 1),
        "prompt": PromptNode("z"),
        "tool loop": PromptNode("z", tools=[RecordingTool("look")]),
        "subgraph": SubgraphNode("z", chain(says("inner", 1))),
        "wrapped": says("z", 1, flags={NodeFlag.RETRYABLE}),
        "parallel": ParallelNode("z", [says("x", 1), says("y", 2)]),
    }

    class Breaks:
        def _break(self, node: Any, state: Any) -> None:
            if node.name == "z":
                setattr(state, attribute, None)

        if when == "pre_node":

            def pre_node(self, node: Any, state: Any) -> None:
                self._break(node, state)

        else:

            def post_node(self, node: Any, result: Any, state: Any) -> None:
                self._break(node, state)

    graph = chain(says("a", 0), nodes[last])
    for model in (ScriptedProvider("ok"), ScriptedProvider("ok")):
        result = await PromptGraphEngine(graph, model, hooks=[Breaks()]).ainvoke("q")
        assert result.report.stop_reason == "critical_error", result.report
        assert "the state became invalid" in result.report.error
        assert not result.ok
        assert result.messages == [Message("user", "q")] or attribute == "context" or result.messages == []


# -- trap 25: isolation of runs ----------------------------------------------------------------------------


async def test_two_runs_of_one_engine_at_once_share_nothing_but_the_plan() -> None:
    """Trap 25: contexts, messages, counts and reports are each run's own, however runs interleave."""

    @node("count", output_key="n")
    async def count(state):
        await asyncio.sleep(0)
        state.observations.append(state.question)
        return state.context.get("n", 0) + 1

    @node("out")
    async def out(state):
        return state.question, state.context["n"], list(state.observations)

    graph = PromptGraph(nodes=[count, out])
    graph.when("count", "out", lambda r: r.output >= 5).always("count", "count")
    engine = PromptGraphEngine(graph)
    results = await asyncio.gather(*(engine.ainvoke(str(i)) for i in range(20)))
    assert [r.output for r in results] == [(str(i), 5, [str(i)] * 5) for i in range(20)]
    assert all(r.report.iterations == 6 for r in results)


async def test_a_run_leaves_the_callers_graph_and_messages_as_they_were() -> None:
    """Trap 19: neither the graph nor its nodes nor the given messages are changed."""
    nodes = [says("a", lambda s: s.messages.append(Message("assistant", "x"))), fails("b")]
    graph = chain(*nodes).on_error("b", END)
    before = (dict(graph.nodes), graph.edges, graph.version, [dict(vars(n)) for n in nodes])
    given = [Message("user", "Why?")]
    result = await PromptGraphEngine(graph).ainvoke(given)
    assert len(result.messages) == 2
    assert given == [Message("user", "Why?")]
    assert (dict(graph.nodes), graph.edges, graph.version, [dict(vars(n)) for n in nodes]) == before


# -- events ------------------------------------------------------------------------------------------------


async def test_streaming_tells_the_same_run_in_the_runtimes_events() -> None:
    """astream_events is ainvoke with a listener: node, model, delta, tool events, one terminal event."""
    script = (CALL, "two words")

    def engine() -> PromptGraphEngine:
        graph = PromptGraph(nodes=[PromptNode("ask", inject_tools=True)])
        return PromptGraphEngine(graph, ScriptedProvider(*script), tools=[RecordingTool("lookup", "found")])

    events = [event async for event in engine().astream_events("Why?")]
    types = [event.type for event in events]
    assert types == [
        "run.started",
        "node.started", "model.started", "model.finished", "tool.started", "tool.finished", "node.finished",
        "node.started", "model.started", "model.delta", "model.delta", "model.finished", "node.finished",
        "run.completed",
    ]  # fmt: skip
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    silent = await engine().ainvoke("Why?")
    last = events[-1].data
    assert last["response"] == silent.output == "two words"
    told, alone = last["metadata"], silent.report.to_json()
    assert {**told, "duration_ms": 0} == {**alone, "duration_ms": 0}
    finished = [e.data for e in events if e.type == "node.finished"]
    assert all(e["node"] == "ask" and e["duration_ms"] >= 0 for e in finished)


async def test_a_failed_run_ends_with_run_failed() -> None:
    """The last event says what went wrong."""
    events = [event async for event in PromptGraphEngine(chain(fails("a"))).astream_events("Why?")]
    assert events[-1].type == "run.failed"
    assert events[-1].data["code"] == "node_failed"
    assert events[-1].data["detail"] == "RuntimeError: broken"


async def test_closing_the_stream_cancels_the_run() -> None:
    """Nothing goes on behind a listener that left; started and finished events stay paired."""
    ended = []

    @node("wait")
    async def wait(state):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    events = PromptGraphEngine(chain(wait)).astream_events("Why?")
    seen = [await anext(events), await anext(events)]
    await events.aclose()  # type: ignore[attr-defined]
    assert [e.type for e in seen] == ["run.started", "node.started"]
    assert ended == [True]


async def test_a_run_inside_another_one_emits_into_its_stream_under_its_path() -> None:
    """`start` is the pipeline's way in: the scope's events, clock and path are the run's."""
    sink = RecordingSink()
    clock = ManualClock()
    scope = Scope("r1", events=EventStream("r1", [sink]), clock=clock).child("react")
    paths: list[Any] = []

    @node("a")
    async def a(state, config):
        paths.extend([config.scope.path, config.path, config.clock is clock])

    await PromptGraphEngine(chain(a)).start([Message("user", "Why?")], scope).execute()
    assert paths == ["react/a", "a", True]
    assert [e.type for e in sink.events] == ["node.started", "node.finished"]


async def test_nested_graphs_report_and_stop_with_the_whole_run() -> None:
    """Trap 4: limits are the run's, visits appear as outer/inner."""
    inner = PromptGraph("inner", nodes=[says("x"), says("y")]).always("x", "y").always("y", "x")
    graph = chain(says("a"), SubgraphNode("outer", inner), says("b"))
    report = (await run(graph, max_iterations=5)).report
    assert report.nodes_visited == ["a", "outer", "outer/x", "outer/y", "outer/x"]
    assert report.stop_reason == "max_iterations"


class _Shouting(FunctionNode):
    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        return NodeResult(self.name, str(self.function(state)).upper())


async def _late() -> str:
    return "late"


def _stops(state: GraphState) -> str:
    raise StopIteration


@pytest.mark.parametrize(
    ("made", "output", "error"),
    [
        (FunctionNode("f", lambda state: "now", inline=True), "now", ""),
        (FunctionNode("f", lambda state: _late(), inline=True), "late", ""),
        (FunctionNode("f", lambda state: NodeResult(output=[1]), inline=True), [1], ""),
        (FunctionNode("f", lambda state, config: config.path, inline=True), "f", ""),
        (FunctionNode("f", lambda state: "in time", timeout=60, inline=True), "in time", ""),
        (FunctionNode("f", _stops, inline=True), None, "StopIteration"),
        (FunctionNode("f", lambda state: "now"), "now", ""),
        (FunctionNode("f", lambda state: _late()), "late", ""),
        (FunctionNode("f", lambda state: NodeResult(output=[1])), [1], ""),
        (FunctionNode("f", lambda state, config: config.path), "f", ""),
        (FunctionNode("f", _stops), None, "RuntimeError: raised StopIteration"),
        (_Shouting("f", lambda state: "loud"), "LOUD", ""),
    ],
)
async def test_a_plain_function_comes_to_the_same_inline_and_in_a_thread(
    made: FunctionNode, output: Any, error: str
) -> None:
    """Whatever it answers; a subclass's own `execute` is asked."""
    graph = PromptGraph(nodes=[made])
    heard = [event.type async for event in PromptGraphEngine(graph).astream_events("q")]
    result = await PromptGraphEngine(graph).ainvoke("q")
    assert (result.output, result.report.error) == (output, error)
    assert heard[-1] == ("run.failed" if error else "run.completed")
