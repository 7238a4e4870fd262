"""Each line of document 002's flag table, with the traps of graph.md section 3 that concern it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from astromesh.errors import (
    AllProvidersFailed,
    NodeFailed,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from astromesh.graph import (
    END,
    BaseNode,
    FunctionNode,
    GraphState,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RetryNode,
    node,
)
from astromesh.graph.effects import AFTER, BEFORE
from astromesh.graph.nodes import KINDS
from astromesh.graph.policies import RetryPolicy, is_retryable
from astromesh.graph.scope import Scope
from astromesh.testing import ManualClock, RecordingTool, Reply, ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, Message, ToolCall, Usage

F = NodeFlag


def says(name: str, value: Any = None, **keywords: Any) -> FunctionNode:
    return FunctionNode(name, lambda state: value(state) if callable(value) else value, **keywords)


def fails(name: str, error: BaseException | None = None, **keywords: Any) -> FunctionNode:
    def body(state):
        raise error or RuntimeError("broken")

    return FunctionNode(name, body, **keywords)


def chain(*nodes: BaseNode) -> PromptGraph:
    return PromptGraph("g", nodes=nodes).sequential(*(n.name for n in nodes))


def looped(*nodes: BaseNode, rounds: int) -> PromptGraph:
    """The nodes in sequence, so many times over."""
    gate = says("again", lambda s: s.node_iterations["again"] < rounds)
    graph = chain(*nodes, gate)
    return graph.when("again", nodes[0].name, lambda r: r.output)


async def run(graph: PromptGraph, *script: Any, context: Any = None, given: Any = "Why?", **engine: Any):
    model = engine.pop("model", None) or ScriptedProvider(*script)
    return await PromptGraphEngine(graph, model, **engine).ainvoke(given, context=context)


# -- the flags themselves ----------------------------------------------------------------------------------


def test_there_are_the_18_flags_of_document_002() -> None:
    """Names and number."""
    assert {f.name for f in F} == {
        "ENTRY", "TERMINAL", "CRITICAL", "SKIP_ON_ERROR", "RETRYABLE", "REQUIRES_HUMAN", "NO_HISTORY",
        "ISOLATED_CONTEXT", "CACHEABLE", "INJECT_TOOLS", "LIGHTWEIGHT", "OBSERVABLE", "VERBOSE",
        "SUMMARIZE_OUTPUT", "VALIDATE_OUTPUT", "READONLY", "STATEFUL", "PARALLEL_SAFE",
    }  # fmt: skip


def test_the_tables_hold_the_flags_in_the_order_of_document_000() -> None:
    """As amended: summary and validation come before anything is written, cached or aborted."""
    assert [f.name for f, _ in BEFORE] == [
        "SKIP_ON_ERROR", "CACHEABLE", "NO_HISTORY", "ISOLATED_CONTEXT", "LIGHTWEIGHT", "REQUIRES_HUMAN",
        "READONLY",
    ]  # fmt: skip
    assert [f.name for f, _ in AFTER] == [
        "SUMMARIZE_OUTPUT", "VALIDATE_OUTPUT", "CRITICAL", "NO_HISTORY", "ISOLATED_CONTEXT", "CACHEABLE",
        "STATEFUL", "VERBOSE", "OBSERVABLE",
    ]  # fmt: skip


def test_any_hashable_value_is_a_flag_and_keywords_set_theirs() -> None:
    """Custom flags, has_flag, and the flags that are set by keywords."""
    n = says("a", flags={"audit", ("x", 1), F.CRITICAL}, is_entry=True, is_terminal=True, inject_tools=True)
    for flag in ("audit", ("x", 1), F.CRITICAL, F.ENTRY, F.TERMINAL, F.INJECT_TOOLS):
        assert n.has_flag(flag)
    assert not n.has_flag(F.READONLY)
    by_flag = says("b", flags={F.ENTRY, F.TERMINAL, F.INJECT_TOOLS})
    assert (by_flag.is_entry, by_flag.is_terminal, by_flag.inject_tools) == (True, True, True)


async def test_entry_is_where_the_run_begins() -> None:
    """ENTRY."""
    assert (await run(PromptGraph(nodes=[says("a"), says("b", flags={F.ENTRY})]))).report.nodes_visited == [
        "b"
    ]


async def test_inject_tools_offers_all_of_the_engines_tools() -> None:
    """INJECT_TOOLS; a node without it is offered only what it names."""
    tools = [RecordingTool("one"), RecordingTool("two")]
    offered = {}
    for flags, own in ((F.INJECT_TOOLS, ()), (F.VERBOSE, ("two",)), (F.VERBOSE, ())):
        model = ScriptedProvider("done")
        await run(chain(PromptNode("a", flags={flags}, tools=own)), model=model, tools=tools)
        offered[flags, own] = [spec.name for spec in model.requests[0].tools]
    assert list(offered.values()) == [["one", "two"], ["two"], []]


# -- CRITICAL, SKIP_ON_ERROR -------------------------------------------------------------------------------


async def test_critical_aborts_the_graph_at_once() -> None:
    """CRITICAL: report.error is the node's, not even an error edge is followed."""
    graph = chain(fails("a", flags={F.CRITICAL}), says("b")).on_error("a", "b")
    report = (await run(graph)).report
    assert report.nodes_visited == ["a"]
    assert (report.stop_reason, report.error) == ("critical_error", "RuntimeError: broken")


async def test_critical_inside_a_nested_node_aborts_the_whole_run() -> None:
    """The entire graph is aborted, not only the level."""
    graph = chain(ParallelNode("p", [fails("x", flags={F.CRITICAL})], on_error="collect"), says("b"))
    report = (await run(graph)).report
    assert report.nodes_visited == ["p", "p/x"]
    assert report.stop_reason == "critical_error"


async def test_skip_on_error_skips_after_a_failure_and_is_transparent() -> None:
    """Trap 12: skipped nodes look at the last node that ran; only a later success heals the run."""
    skipped = [says(n, "x", flags={F.SKIP_ON_ERROR}) for n in ("b", "c")]
    failed = await run(chain(fails("a"), *skipped))
    assert failed.report.nodes_visited == ["a"]
    assert failed.report.iterations == 1
    assert failed.report.error == "RuntimeError: broken"
    assert failed.output is None
    healed = await run(chain(fails("a"), *skipped, says("d", "fine")))
    assert (healed.report.nodes_visited, healed.report.error) == (["a", "d"], "")
    unharmed = await run(chain(says("a"), *skipped))
    assert unharmed.report.nodes_visited == ["a", "b", "c"]


async def test_a_circle_of_skipped_nodes_ends() -> None:
    """Skipped nodes count for the limits, or the run would go round for ever."""
    b, c = (says(n, flags={F.SKIP_ON_ERROR}) for n in "bc")
    graph = PromptGraph(nodes=[fails("a"), b, c]).always("a", "b").always("b", "c").always("c", "b")
    report = (await run(graph, max_iterations=10, max_node_iterations=100)).report
    assert (report.stop_reason, report.iterations) == ("max_iterations", 1)


# -- RETRYABLE ---------------------------------------------------------------------------------------------


def flaky(failures: int, error: Exception | None = None, seen: list[Any] | None = None, **keywords: Any):
    """Fails so many times, then answers; notes what it finds as the last error."""
    left = [failures]

    def body(state):
        if seen is not None:
            seen.append(state.context.get("_retry_error"))
        if left[0]:
            left[0] -= 1
            raise error or RuntimeError(f"failure {failures - left[0]}")
        return "done"

    return FunctionNode("a", body, flags={F.RETRYABLE}, **keywords)


async def test_retryable_says_nothing_a_second_time() -> None:
    """An answer that broke off after its first words is not asked for again: they cannot be taken back."""
    seen: list[Any] = []
    cut = AllProvidersFailed([ProviderUnavailable("cut")], begun=True)
    result = await run(chain(flaky(1, cut, seen)), clock=ManualClock(jump=True))
    assert result.output != "done"
    assert seen == [None]


async def test_retryable_tries_again_and_tells_the_node_why() -> None:
    """Three attempts by default; `_retry_error` holds the last error in between, and is gone afterwards."""
    seen: list[Any] = []
    clock = ManualClock(jump=True)
    result = await run(chain(flaky(2, seen=seen)), clock=clock, seed=1)
    assert result.output == "done"
    assert seen == [None, "RuntimeError: failure 1", "RuntimeError: failure 2"]
    assert "_retry_error" not in result.context
    assert result.report.nodes_visited == ["a"]
    assert [0.5 <= clock.slept[0] <= 0.55, 1.0 <= clock.slept[1] <= 1.1] == [True, True]


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize("kind", ["async", "plain", "retry"])
async def test_failed_attempts_leave_no_writes(failures: int, kind: str) -> None:
    """Neither in the context, nested values too, nor in a list. An attempt that succeeds does."""
    left = [failures]

    def write(state: GraphState) -> str:
        state.context["tries"] = state.context.get("tries", 0) + 1
        state.context["cart"]["items"].append("tea")
        del state.context["gone"]
        state.plan.append("step")
        state.observations.append("seen")
        state.messages.append(Message("assistant", "said"))
        if left[0]:
            left[0] -= 1
            raise RuntimeError("broken")
        return "done"

    async def writes(state: GraphState) -> str:
        return write(state)

    found: list[Any] = []
    last = FunctionNode("last", lambda s: found.extend([s.plan, s.observations, s.messages]), inline=True)
    work = FunctionNode("work", writes if kind == "async" else write)
    first = RetryNode("a", work) if kind == "retry" else FunctionNode("a", work.function, flags={F.RETRYABLE})
    clock = ManualClock(jump=True)
    context = {"cart": {"items": []}, "gone": 1}
    result = await run(chain(first, last), context=context, clock=clock)
    plan, observations, messages = found
    succeeded = failures < 3
    assert result.context.get("tries", 0) == succeeded
    assert result.context["cart"] == {"items": ["tea"] * succeeded}
    assert ("gone" in result.context) is not succeeded
    assert (len(plan), len(observations), len(messages)) == (succeeded, succeeded, 1 + succeeded)


async def test_attempts_are_max_iterations_and_then_the_failure_stands() -> None:
    """max_iterations is the number of attempts under RETRYABLE."""
    clock = ManualClock(jump=True)
    result = await run(chain(flaky(9, max_iterations=7)), clock=clock, seed=7)
    assert result.report.error == "RuntimeError: failure 7"
    for slept, planned in zip(clock.slept, (0.5, 1, 2, 4, 8, 8), strict=True):
        assert planned <= slept <= planned * 1.1


def test_pauses_double_up_to_eight_seconds_with_little_jitter() -> None:
    """Trap 23: 0.5, 1, 2, 4, 8 s, capped, with 0 to 10 % on top."""
    policy = RetryPolicy()
    assert [policy.pause(n, 0.0) for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert policy.pause(3, 0.999) == pytest.approx(2.2, rel=1e-3)


async def test_jitter_comes_from_the_engines_seed() -> None:
    """Two engines with one seed pause alike."""
    slept = []
    for seed in (3, 3, 4):
        clock = ManualClock(jump=True)
        await run(chain(flaky(2)), clock=clock, seed=seed)
        slept.append(tuple(clock.slept))
    assert slept[0] == slept[1] != slept[2]


@pytest.mark.parametrize(
    ("error", "may_heal"),
    [
        (RuntimeError("x"), True),
        (ProviderTimeout("x"), True),
        (ProviderUnauthorized("x"), False),
        (ProviderRejected("x"), False),
        (AllProvidersFailed([ProviderRejected("x"), ProviderTimeout("x")]), True),
        (AllProvidersFailed([ProviderRejected("x"), ProviderUnauthorized("x")]), False),
        (NodeFailed("p/x", "x", ProviderRejected("x")), False),
        (NodeFailed("p/x", "x"), True),
        (None, True),
    ],
)
async def test_what_cannot_heal_is_not_tried_again(error, may_heal) -> None:
    """Trap 23: authentication and invalid requests stay wrong."""
    assert is_retryable(error) is may_heal
    if isinstance(error, Exception):
        seen: list[Any] = []
        await run(chain(flaky(1, error, seen)), clock=ManualClock(jump=True))
        assert len(seen) == (2 if may_heal else 1)


async def test_the_usage_of_failed_attempts_counts() -> None:
    """Trap 23: what a failed attempt spent was spent."""
    spent = Usage(10, 5)

    @node("a", flags={F.RETRYABLE})
    async def a(state, config):
        answer = await config.complete(CompletionRequest((Message("user", "x"),)))
        if answer.content == "bad":
            raise RuntimeError("bad")
        return answer.content

    lines = [Reply("bad", usage=spent), Reply("good", usage=spent)]
    result = await run(chain(a), *lines, clock=ManualClock(jump=True))
    assert result.output == "good"
    assert result.report.usage == spent + spent


async def test_the_retry_budget_of_the_whole_run_is_not_exceeded() -> None:
    """One retry budget per run over all layers: a node gets no more than what is left."""
    seen: list[Any] = []
    scope = Scope("r1", clock=ManualClock(jump=True), retries=1)
    engine = PromptGraphEngine(chain(flaky(9, seen=seen, max_iterations=5)))
    await engine.start([Message("user", "x")], scope).execute()
    assert len(seen) == 2


# -- REQUIRES_HUMAN ----------------------------------------------------------------------------------------


async def test_requires_human_marks_the_state_tells_the_hooks_and_runs() -> None:
    """REQUIRES_HUMAN: `_awaiting_human` names the node, the node still runs."""
    told: list[str] = []

    class Watch:
        def on_human_required(self, node, state):
            told.append(node.name)

    seen = says("a", lambda s: s.context["_awaiting_human"], flags={F.REQUIRES_HUMAN})
    result = await run(chain(seen), hooks=[Watch()])
    assert result.output == "a"
    assert told == ["a"]
    assert result.context["_awaiting_human"] == "a"


# -- NO_HISTORY --------------------------------------------------------------------------------------------

TALK = [
    Message("system", "Be kind."),
    Message("user", "first"),
    Message("assistant", "answer"),
    Message("user", "question"),
]


async def test_no_history_shows_system_and_question_and_restores_the_rest() -> None:
    """NO_HISTORY: the conversation is stripped for the node, restored after it, what it added stays."""

    @node("a", flags={F.NO_HISTORY})
    async def a(state):
        seen = [m.content for m in state.messages]
        state.messages.append(Message("assistant", "mine"))
        return NodeResult(output=seen, messages_added=[Message("assistant", "added")])

    result = await run(chain(a), given=TALK)
    assert result.output == ["Be kind.", "question"]
    assert [m.content for m in result.messages] == [
        "Be kind.", "first", "answer", "question", "mine", "added",
    ]  # fmt: skip


async def test_no_history_keeps_the_nodes_own_tool_loop() -> None:
    """Trap 2: on re-entry the node sees its tool call and the result, not the history."""
    model = ScriptedProvider(ToolCall("1", "look"), "done")
    graph = chain(PromptNode("a", flags={F.NO_HISTORY, F.INJECT_TOOLS}))
    result = await run(graph, model=model, given=TALK, tools=[RecordingTool("look", "found")])
    roles = [[m.role for m in request.messages] for request in model.requests]
    assert roles == [["system", "user"], ["system", "user", "assistant", "tool"]]
    assert model.requests[1].messages[1].content == "question"
    assert len(result.messages) == len(TALK) + 3
    assert result.output == "done"


# -- ISOLATED_CONTEXT --------------------------------------------------------------------------------------


async def test_isolated_context_shows_the_input_keys_and_merges_the_output_key() -> None:
    """ISOLATED_CONTEXT: a clean context with the declared inputs; nothing but output_key comes back."""

    @node("a", flags={F.ISOLATED_CONTEXT}, input_keys=["x"], output_key="y")
    async def a(state):
        seen = dict(state.context)
        state.context["leak"] = 1
        return seen

    result = await run(chain(a), context={"x": 1, "other": 2})
    assert result.output == {"x": 1}
    assert result.context == {"x": 1, "other": 2, "y": {"x": 1}, "a_output": {"x": 1}}


async def test_isolation_is_deep() -> None:
    """Trap 13: values, plan, observations and messages of the run cannot be reached from inside."""

    @node("a", flags={F.ISOLATED_CONTEXT}, input_keys=["x"])
    async def a(state):
        state.context["x"].append("leak")
        found = [list(state.plan), list(state.observations)]
        for gathered in (state.plan, state.observations, state.reflections, state.messages):
            gathered.append(Message("assistant", "leak"))
        return found

    fill = says("fill", lambda s: (s.plan.append("p"), s.observations.append("o"), None)[-1])
    check = says("check", lambda s: [s.plan, s.observations, s.reflections, s.context["x"]])
    result = await run(chain(fill, a, check), context={"x": ["given"]})
    assert result.output == [["p"], ["o"], [], ["given"]]
    assert [m.content for m in result.messages] == ["Why?"]


async def test_awaiting_human_survives_isolation() -> None:
    """Trap 13: the mark of REQUIRES_HUMAN is not lost with the isolated context."""
    result = await run(chain(says("a", 1, flags={F.ISOLATED_CONTEXT, F.REQUIRES_HUMAN})))
    assert result.context["_awaiting_human"] == "a"


async def test_an_isolated_node_sees_its_own_tool_loop() -> None:
    """Isolation does not cut the node off from its own tool results; the conversation gains nothing."""
    model = ScriptedProvider(ToolCall("1", "look"), "done")
    graph = chain(PromptNode("a", flags={F.ISOLATED_CONTEXT, F.INJECT_TOOLS}))
    result = await run(graph, model=model, tools=[RecordingTool("look", "found")])
    assert [m.role for m in model.requests[1].messages if m.role != "system"] == ["user", "assistant", "tool"]
    assert (result.output, len(result.messages)) == ("done", 1)


async def test_what_cannot_be_isolated_fails_the_node() -> None:
    """A value that cannot be copied is an error that says so, not a crash."""

    class Stubborn:
        def __deepcopy__(self, memo):
            raise TypeError("not me")

    graph = chain(says("a", 1, flags={F.ISOLATED_CONTEXT}, input_keys=["x"]))
    result = await run(graph, context={"x": Stubborn()})
    assert result.report.error == "TypeError: not me"


# -- CACHEABLE ---------------------------------------------------------------------------------------------


def counted(**keywords: Any) -> tuple[FunctionNode, list[int]]:
    calls: list[int] = []

    def body(state):
        calls.append(1)
        return len(calls)

    return FunctionNode("a", body, **{"flags": {F.CACHEABLE}, **keywords}), calls


async def test_cacheable_answers_the_same_inputs_from_the_cache() -> None:
    """CACHEABLE: keyed on name and input_keys values; other inputs run the node again."""
    a, calls = counted(input_keys=["x"])
    change = says("change", lambda s: s.context.update(x=s.node_iterations["change"] // 3))
    result = await run(looped(a, change, rounds=5), context={"x": 0})
    assert len(calls) == 2
    assert result.report.nodes_visited.count("a") == 5
    assert "_node_cache" not in result.context


async def test_without_input_keys_the_messages_are_part_of_the_key() -> None:
    """Trap 1: a node that declares nothing runs again when the conversation went on, unless it is pure."""
    for keywords, runs in (({}, 3), ({"pure": True}, 1), ({"input_keys": ["x"]}, 1)):
        a, calls = counted(**keywords)
        talk = says("talk", lambda s: s.messages.append(Message("user", "more")))
        await run(looped(a, talk, rounds=3))
        assert len(calls) == runs, keywords


async def test_a_hit_repeats_the_nodes_writes_and_costs_nothing() -> None:
    """Trap 1: what the node wrote to the state and said is there again."""

    @node("a", flags={F.CACHEABLE}, input_keys=["x"], output_key="y")
    async def a(state):
        state.context["side"] = "effect"
        state.observations.append("seen")
        return NodeResult(output="out", messages_added=[Message("assistant", "said")], usage=Usage(5, 5))

    wipe = says("wipe", lambda s: [s.context.pop(k, None) for k in ("side", "y", "a_output")] and None)
    gate = says("again", lambda s: s.node_iterations["again"] < 2)
    graph = PromptGraph(nodes=[a, wipe, gate]).sequential("wipe", "a", "again").set_entry("wipe")
    graph.when("again", "wipe", lambda r: r.output)
    result = await run(graph, context={"x": 1})
    assert result.context["side"] == "effect"
    assert result.context["y"] == result.context["a_output"] == "out"
    assert [m.content for m in result.messages] == ["Why?", "said", "said"]
    assert result.report.usage == Usage(5, 5)


async def test_a_failure_is_not_cached() -> None:
    """Only what succeeded is worth repeating."""
    calls: list[int] = []

    def body(state):
        calls.append(1)
        raise RuntimeError("x")

    a = FunctionNode("a", body, flags={F.CACHEABLE}, input_keys=["x"])
    await run(looped(a, rounds=3))
    assert len(calls) == 3


async def test_a_step_that_asks_for_tools_is_never_cached() -> None:
    """Trap 1: the tool loop runs whole the first time; only its answer is repeated."""
    model = ScriptedProvider(ToolCall("1", "look"), "answer", ToolCall("2", "look"), "another")
    tool = RecordingTool("look", "found")
    a = PromptNode("a", flags={F.CACHEABLE, F.INJECT_TOOLS}, input_keys=["x"])
    result = await run(looped(a, rounds=3), model=model, tools=[tool], context={"x": 1})
    assert len(model.requests) == 2
    assert len(tool.calls) == 1
    assert result.context["a_output"] == "answer"


async def test_two_runs_do_not_share_a_cache() -> None:
    """Trap 25: a cache belongs to its run."""
    a, calls = counted(input_keys=["x"])
    engine = PromptGraphEngine(looped(a, rounds=2))
    await engine.ainvoke("x")
    await engine.ainvoke("x")
    assert len(calls) == 2


# -- LIGHTWEIGHT -------------------------------------------------------------------------------------------


async def test_lightweight_swaps_the_model_for_this_node_alone() -> None:
    """LIGHTWEIGHT: with a lightweight_model and without a model_override."""
    big, small, own = (ScriptedProvider(name, repeat=True) for name in ("big", "small", "own"))
    graph = chain(
        PromptNode("a", flags={F.LIGHTWEIGHT}),
        PromptNode("b"),
        PromptNode("c", flags={F.LIGHTWEIGHT}, model_override=own),
    )
    result = await run(graph, model=big, lightweight_model=small)
    assert [result.context[f"{n}_output"] for n in "abc"] == ["small", "big", "own"]
    without = await run(graph, model=big)
    assert without.context["a_output"] == "big"


async def test_a_model_override_by_name_asks_for_that_role() -> None:
    """A name is one of the agent's roles: the router chooses."""
    model = ScriptedProvider("x")
    await run(chain(PromptNode("a", model_override="planner")), model=model)
    assert model.requests[0].role == "planner"


# -- OBSERVABLE, VERBOSE -----------------------------------------------------------------------------------


async def test_observable_nodes_emit_metrics_with_their_real_duration() -> None:
    """Trap 14: for function nodes, model nodes, failing and nested ones alike."""
    got = {}

    class Watch:
        async def on_node_metrics(self, node, metrics):
            got[metrics.path] = metrics

        def on_observable_event(self, node, metrics):
            got["event " + metrics.path] = metrics

    @node("slow", flags={F.OBSERVABLE})
    async def slow(state):
        await asyncio.sleep(0.005)

    graph = chain(
        slow,
        PromptNode("ask", flags={F.OBSERVABLE, F.INJECT_TOOLS}),
        ParallelNode("p", [says("x", 1, flags={F.OBSERVABLE})]),
        fails("bad", flags={F.OBSERVABLE}),
        says("silent"),
    )
    script = (Reply(tool_calls=[ToolCall("1", "look")], usage=Usage(1, 2)), Reply("done", usage=Usage(3, 4)))
    await run(graph, *script, hooks=[Watch()], tools=[RecordingTool("look")])
    assert {name for name in got if " " not in name} == {"slow", "ask", "p/x", "bad"}
    assert got["slow"].duration_ms >= 4.5
    assert all(m.duration_ms > 0 for m in got.values())
    assert (got["ask"].tokens, got["bad"].error) == (7, "RuntimeError: broken")
    assert got["event slow"] is got["slow"]


@node("work")
async def work(state):
    await asyncio.sleep(0.002)
    return "done"


async def slowly(value: Any) -> Any:
    await asyncio.sleep(0.002)
    return True


class Slow:
    """A model that takes its time and says what suits every node that asks."""

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        await asyncio.sleep(0.002)
        return CompletionResult('{"next_node": "work", "valid": true}')

    async def stream(self, request: CompletionRequest) -> Any:
        yield await self.complete(request)


async def look() -> str:
    """Looks, slowly."""
    await asyncio.sleep(0.002)
    return "seen"


#: how a node of each kind is made, so that it has something to wait for
MAKING: dict[str, Any] = {
    "function": lambda cls, **kw: cls("n", slowly, **kw),
    "transform": lambda cls, **kw: cls("n", slowly, **kw),
    "tool": lambda cls, **kw: cls("n", "look", {}, **kw),
    "router": lambda cls, **kw: cls("n", choose=slowly, routes=[END], transitions={True: END}, **kw),
    "guard": lambda cls, **kw: cls("n", guards=[slowly], **kw),
    "human": lambda cls, **kw: cls("n", **kw),
    "parallel": lambda cls, **kw: cls("n", [work], **kw),
    "fan_out": lambda cls, **kw: cls("n", work, [1], **kw),
    "loop": lambda cls, **kw: cls("n", work, bool, **kw),
    "retry": lambda cls, **kw: cls("n", work, **kw),
    "subgraph": lambda cls, **kw: cls("n", chain(work), **kw),
    "autonomous": lambda cls, **kw: cls("n", [FunctionNode("work", work.execute, is_terminal=True)], **kw),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_duration_is_real_for_every_kind_of_node(kind) -> None:
    """Trap 14: whatever a node waits for (model, tool, person, child) is in its metrics."""
    got = []

    class Watch:
        def on_node_metrics(self, node, metrics):
            got.append(metrics)

    make = MAKING.get(kind, lambda cls, **kw: cls("n", **kw))
    graph = chain(make(KINDS[kind], flags={F.OBSERVABLE}))
    engine = PromptGraphEngine(graph, Slow(), hooks=[Watch()], tools=[look], human_handler=slowly)
    await engine.ainvoke("Why?")
    (metrics,) = got
    assert (metrics.node, metrics.path) == ("n", "n")
    assert metrics.duration_ms >= 1.5


async def test_verbose_logs_the_full_raw_output(caplog) -> None:
    """VERBOSE: at DEBUG, whole."""
    text = "x" * 5000
    with caplog.at_level(logging.DEBUG, "astromesh.graph"):
        await run(chain(says("a", NodeResult(output="short", raw_output=text), flags={F.VERBOSE})))
    assert text in caplog.text


# -- SUMMARIZE_OUTPUT --------------------------------------------------------------------------------------


async def test_summarize_output_shortens_what_exceeds_1000_characters() -> None:
    """Trap 7: before anything is written; its tokens count; the original stays in the trace."""
    kept: list[NodeResult] = []

    class Keep:
        def post_node(self, node, result, state):
            kept.append(result)

    long = "fact " * 300
    a = PromptNode("a", flags={F.SUMMARIZE_OUTPUT}, output_key="k")
    lines = [Reply(long, usage=Usage(1, 300)), Reply("in short", usage=Usage(300, 2))]
    model = ScriptedProvider(*lines)
    result = await run(chain(a), model=model, hooks=[Keep()])
    assert result.output == result.context["k"] == result.context["a_output"] == "in short"
    assert result.messages[-1].content == "in short"
    assert kept[0].raw_output == long
    assert kept[0].usage == result.report.usage == Usage(301, 302)
    assert model.requests[1].messages[-1].content == long


async def test_1000_characters_are_not_summarised() -> None:
    """The border: exceeds means more."""
    for length, calls in ((1000, 0), (1001, 1)):
        model = ScriptedProvider("short", repeat=True)
        await run(chain(says("a", "x" * length, flags={F.SUMMARIZE_OUTPUT})), model=model)
        assert len(model.requests) == calls


async def test_a_summary_that_fails_leaves_the_answer_whole() -> None:
    """A failing summary is no reason to lose the answer."""
    text = "x" * 1001
    graph = chain(says("a", text, flags={F.SUMMARIZE_OUTPUT}))
    result = await run(graph, ProviderTimeout("slow"))
    assert (result.output, result.report.error) == (text, "")


async def test_the_summary_is_what_is_cached_and_validated() -> None:
    """SUMMARIZE_OUTPUT comes first, then VALIDATE_OUTPUT, then everything else."""
    flags = {F.SUMMARIZE_OUTPUT, F.VALIDATE_OUTPUT, F.CACHEABLE}
    a = says(
        "a", "x" * 1001, flags=flags, input_keys=["q"], output_schema={"type": "string", "maxLength": 10}
    )
    model = ScriptedProvider("short")
    result = await run(looped(a, rounds=2), model=model)
    assert (result.context["a_output"], len(model.requests)) == ("short", 1)


# -- VALIDATE_OUTPUT ---------------------------------------------------------------------------------------


async def test_validate_output_sets_guards_failed_and_error_before_critical() -> None:
    """What does not fit is not written, is in guards_failed, and is an error that CRITICAL sees."""
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    bad = says("a", {"n": "x"}, flags={F.VALIDATE_OUTPUT, F.CRITICAL}, output_schema=schema, output_key="k")
    result = await run(chain(bad, says("b")))
    assert result.report.stop_reason == "critical_error"
    assert result.report.nodes_visited == ["a"]
    assert result.output is None
    assert result.context == {}
    assert any("output_schema" in guard for guard in result.report.guards)
    good = says("a", {"n": 1}, flags={F.VALIDATE_OUTPUT}, output_schema=schema)
    assert (await run(chain(good))).output == {"n": 1}


# -- READONLY, STATEFUL, PARALLEL_SAFE ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.context.update(x=1),
        lambda s: s.context.__setitem__("x", 1),
        lambda s: s.context.setdefault("x", 1),
        lambda s: s.plan.append(1),
        lambda s: s.observations.extend([1]),
        lambda s: setattr(s, "context", {}),
        lambda s: setattr(s, "plan", []),
        lambda s: s.messages.append(Message("user", "x")),
        lambda s: s.messages.clear(),
        lambda s: s.reflections.append("x"),
        lambda s: setattr(s, "messages", []),
        lambda s: setattr(s, "reflections", []),
    ],
)
async def test_readonly_forbids_the_nodes_own_writes(write) -> None:
    """READONLY: context and every list; the attempt fails the node and says why."""
    result = await run(chain(says("a", write, flags={F.READONLY})), context={"k": 1})
    assert "READONLY" in result.report.error
    assert result.context == {"k": 1}
    assert [message.role for message in result.messages] == ["user"]


async def test_readonly_allows_reading_and_the_engines_writes() -> None:
    """output_key, NAME_output and messages are the engine's to write."""
    talk = Message("assistant", "said")
    a = says(
        "a",
        lambda s: NodeResult(output=s.context["k"], messages_added=[talk]),
        flags={F.READONLY},
        output_key="y",
    )
    result = await run(chain(a), context={"k": 1})
    assert result.context == {"k": 1, "y": 1, "a_output": 1}
    assert result.messages[-1] is talk


async def test_children_of_a_readonly_node_may_have_outputs() -> None:
    """The engine writes through the view."""
    graph = chain(ParallelNode("p", [says("x", 1, flags={F.READONLY}), says("y", 2)], flags={F.READONLY}))
    result = await run(graph)
    assert result.context["p_output"] == {"x": 1, "y": 2}


async def test_stateful_drops_cached_results_that_read_its_output_key() -> None:
    """STATEFUL: dependency tracking; a cached reader runs again although its key would still match."""
    a, calls = counted(input_keys=["x"])
    put = says("put", 7, flags={F.STATEFUL}, output_key="x")
    await run(looped(put, a, rounds=3))
    assert len(calls) == 3
    b, calls = counted(input_keys=["x"])
    await run(looped(says("put", 7, output_key="x"), b, rounds=3))
    assert len(calls) == 1


async def overlap(*flags: set[Any]) -> tuple[int, list[str]]:
    """How many children of a ParallelNode were at work at once, and in what order they began."""
    now, most, began = [0], [0], []

    def child(name: str, flags_: set[Any]) -> BaseNode:
        @node(name, flags=flags_)
        async def body(state):
            began.append(name)
            now[0] += 1
            most[0] = max(most[0], now[0])
            await asyncio.sleep(0)
            now[0] -= 1
            return name

        return body

    children = [child(f"c{i}", f) for i, f in enumerate(flags)]
    result = await run(chain(ParallelNode("p", children)))
    assert result.output == {f"c{i}": f"c{i}" for i in range(len(flags))}
    return most[0], began


async def test_parallel_runs_children_together_whatever_their_flags() -> None:
    """All children run at once, in declared order. READONLY and PARALLEL_SAFE decide what they see."""
    assert await overlap({F.READONLY}, {F.PARALLEL_SAFE}, {F.READONLY}) == (3, ["c0", "c1", "c2"])
    assert await overlap(set(), {F.STATEFUL}, {F.READONLY}, set()) == (4, ["c0", "c1", "c2", "c3"])


async def test_a_parallel_safe_child_shares_the_context_and_others_work_on_copies() -> None:
    """What a safe child writes is seen by its safe siblings at once, and by no other child."""

    def child(name: str, flags_: set[Any]) -> BaseNode:
        @node(name, flags=flags_)
        async def body(state):
            await asyncio.sleep(0)
            state.context[name] = 1
            await asyncio.sleep(0)
            return sorted(key for key in state.context if key in "wxyz")

        return body

    safe = [child("x", {F.PARALLEL_SAFE}), child("y", {F.PARALLEL_SAFE})]
    p = ParallelNode("p", [*safe, child("z", set())])
    result = await run(chain(p), context={"w": 1})
    assert result.output == {"x": ["w", "x", "y"], "y": ["w", "x", "y"], "z": ["w", "z"]}
    assert {"w", "x", "y", "z"} <= result.context.keys()


async def test_results_of_children_are_merged_in_declared_order_whatever_the_timing() -> None:
    """The slowest child first: messages and observations come out as declared, not as they ended."""

    def child(name: str, turns: int) -> BaseNode:
        @node(name, flags={F.PARALLEL_SAFE})
        async def body(state):
            for _ in range(turns):
                await asyncio.sleep(0)
            state.observations.append(name)
            return NodeResult(output=name, messages_added=[Message("assistant", name)])

        return body

    p = ParallelNode("p", [child("x", 9), child("y", 5), child("z", 1)])
    result = await run(chain(p, says("end", lambda s: list(s.observations))))
    assert result.output == ["x", "y", "z"]
    assert [m.content for m in result.messages] == ["Why?", "x", "y", "z"]


# -- together ----------------------------------------------------------------------------------------------


async def test_a_node_that_does_not_run_leaves_the_history_as_it_is() -> None:
    """NO_HISTORY restores what it hid, and nothing where a skip or a cached result came first."""
    skipped = says("b", flags={F.SKIP_ON_ERROR, F.NO_HISTORY})
    assert len((await run(chain(fails("a"), skipped))).messages) == 1
    cached = says("a", "x", flags={F.CACHEABLE, F.NO_HISTORY}, input_keys=["q"])
    assert len((await run(looped(cached, rounds=3), context={"q": 1})).messages) == 1


async def test_a_readonly_node_may_be_tried_again() -> None:
    """READONLY forbids the node to write, not the engine: `_retry_error` is there between the tries."""
    seen: list[Any] = []

    @node("a", flags={F.READONLY, F.RETRYABLE})
    def flaky(state):
        seen.append(state.context.get("_retry_error"))
        if len(seen) == 1:
            raise RuntimeError("broken")
        return "ok"

    result = await run(PromptGraph(nodes=[flaky]), clock=ManualClock(jump=True))
    assert (result.output, seen) == ("ok", [None, "RuntimeError: broken"])
    assert "_retry_error" not in result.context


async def test_a_schema_that_breaks_fails_its_node_not_the_run() -> None:
    """VALIDATE_OUTPUT: a validator of the user's own may raise anything."""

    class Broken(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def check(cls, value: int) -> int:
            raise RuntimeError("broken")

    a = says("a", {"a": 1}, output_schema=Broken, output_key="k", flags={F.VALIDATE_OUTPUT, F.CRITICAL})
    result = await run(PromptGraph(nodes=[a]))
    assert (result.output, "k" in result.context) == (None, False)
    assert (result.report.error, result.report.stop_reason) == ("RuntimeError: broken", "critical_error")


async def test_a_summary_is_guarded_like_the_answer_it_stands_for() -> None:
    """SUMMARIZE_OUTPUT: what guards refuse is let out nowhere, whoever wrote it (trap 8)."""
    a = PromptNode("a", guards=[lambda o: "secret" not in o], flags={F.SUMMARIZE_OUTPUT}, output_key="k")
    result = await run(PromptGraph(nodes=[a]), "x" * 1001, "the secret")
    assert (result.output, "k" in result.context) == (None, False)
    assert "refused by" in result.report.error
    assert "secret" not in str(result.messages)


async def test_a_model_that_breaks_leaves_the_answer_unsummarised() -> None:
    """A model is anybody's code and may raise anything."""

    class Broken:
        async def complete(self, request):
            raise RuntimeError("down")

    result = await run(PromptGraph(nodes=[says("a", "x" * 1001, flags={F.SUMMARIZE_OUTPUT})]), model=Broken())
    assert (result.output, result.report.error) == ("x" * 1001, "")
