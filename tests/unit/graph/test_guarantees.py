"""What a graph's author wrote holds: decisions, guards on every node, copies, odd results, cancels."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from astromesh.graph import (
    BaseNode,
    FunctionNode,
    Guard,
    GuardNode,
    GuardVerdict,
    HumanNode,
    LoopNode,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RouterNode,
    ToolNode,
    TransformNode,
)
from astromesh.testing import RecordingTool, ScriptedProvider
from astromesh.types import Message, ToolCall

F = NodeFlag
BOUND = 20  # seconds that no test ever needs


def says(name: str, value: Any = None, **keywords: Any) -> FunctionNode:
    return FunctionNode(name, lambda state: value(state) if callable(value) else value, **keywords)


def chain(*nodes: BaseNode) -> PromptGraph:
    return PromptGraph("g", nodes=nodes).sequential(*(n.name for n in nodes))


async def ran(*nodes: BaseNode, model: Any = None, context: Any = None, **engine: Any) -> Any:
    return await PromptGraphEngine(chain(*nodes), model, **engine).ainvoke("Why?", context=context)


# -- a person's decision holds for one visit ----------------------------------------------------------------


def reviewed(*drafts: str) -> PromptGraph:
    """A draft and its review, once for each of the drafts."""
    write = says("write", lambda s: drafts[s.node_iterations["write"] - 1])
    more = says("more", lambda s: {"more": s.node_iterations["more"] < len(drafts)})
    graph = PromptGraph("g", nodes=[write, HumanNode("review"), more])
    return graph.sequential("write", "review", "more").on_output("more", "write", "more")


async def decided(graph: PromptGraph, **decisions: Any) -> Any:
    return await PromptGraphEngine(graph).ainvoke("x", context={"_human_decisions": decisions})


async def test_a_decision_is_for_one_draft_of_one_visit() -> None:
    """An approval of the first draft does not approve a second one, nor the same one a second time."""
    for second in ("different", "first"):
        pending = await decided(reviewed("first", second))
        ticket = pending.context["_human_ticket"]
        assert pending.report.stop_reason == "human_denied"
        again = await decided(reviewed("first", second), **{ticket: "approve"})
        assert again.report.stop_reason == "human_denied"
        assert again.report.nodes_visited == ["write", "review", "more", "write", "review"]
        other = again.context["_human_ticket"]
        assert other != ticket
        done = await decided(reviewed("first", second), **{ticket: "approve", other: "approve"})
        assert (done.report.stop_reason, done.report.error) == ("completed", "")
        assert "_human_ticket" not in done.context


async def test_an_approval_does_not_hold_for_a_draft_that_became_another() -> None:
    """What is run again may come out otherwise: that is approved by nobody; an answer is."""
    ticket = (await decided(reviewed("one"))).context["_human_ticket"]
    changed = await decided(reviewed("two"), **{ticket: "approve"})
    assert changed.report.stop_reason == "human_denied"
    assert changed.context["_human_ticket"] != ticket
    answered = await decided(reviewed("two"), **{ticket: {"decision": "answer", "answer": "mine"}})
    assert answered.context["review_output"] == "mine"
    denied = await decided(reviewed("two"), **{ticket: "deny"})
    assert "denied" in denied.report.error


async def test_a_decision_under_a_bare_name_approves_nothing_and_is_explained() -> None:
    """The name of a node says neither which visit nor which draft."""
    result = await decided(reviewed("one"), review="approve")
    assert result.report.stop_reason == "human_denied"
    assert result.context["_human_ticket"] in result.report.error


# -- guards and processors hold on every node ---------------------------------------------------------------


def no_secret(output: Any) -> bool:
    return "secret" not in str(output)


def loud(output: Any) -> str:
    return str(output).upper()


def every_kind(**keywords: Any) -> list[BaseNode]:
    """Nodes of all kinds that do not ask a model for their output, whose output is `secret`."""

    async def body(state: Any) -> str:
        return "secret"

    return [
        says("n", "secret", **keywords),
        FunctionNode("n", body, **keywords),
        FunctionNode("n", lambda state, config: "secret", **keywords),
        TransformNode("n", lambda value: "secret", **keywords),
        LoopNode("n", says("inner", "secret"), lambda result: True, **keywords),
        RouterNode("n", routes=["secret", "n"], choose=lambda state: "secret", **keywords),
        HumanNode("n", **keywords),
    ]


@pytest.mark.parametrize("place", range(7))
async def test_guards_and_processors_hold_on_nodes_of_every_kind(place: int) -> None:
    """A refused output goes nowhere; a postprocessor's is what is written; a preprocessor comes first."""
    handler: dict[str, Any] = {"human_handler": lambda request: "secret"}
    target = says("secret", "went on")

    def graph(**keywords: Any) -> PromptGraph:
        node = every_kind(output_key="kept", **keywords)[place]
        graph = PromptGraph("g", nodes=[node, target])
        return graph if isinstance(node, RouterNode) else graph.always("n", "secret")

    refused = await PromptGraphEngine(graph(guards=[no_secret]), **handler).ainvoke("x")
    assert refused.report.guards[0] == "n: no_secret failed"
    assert "kept" not in refused.context
    assert "n_output" not in refused.context

    made = await PromptGraphEngine(
        graph(postprocessor=loud, preprocessor=lambda s: s.context.update(first=True)), **handler
    ).ainvoke("x")
    assert (made.context["kept"], made.context["first"]) == ("SECRET", True)
    assert graph(guards=[no_secret], postprocessor=loud).validate() == []


async def test_what_a_postprocessor_makes_is_guarded_too() -> None:
    result = await ran(says("n", "fine", guards=[no_secret], postprocessor=lambda output: "secret"))
    assert (result.output, "no_secret" in result.report.error) == (None, True)


@pytest.mark.parametrize("empty", ["", 0, [], {}])
async def test_an_empty_output_is_guarded_whatever_other_guards_have_said(empty: Any) -> None:
    """A function may report guards of its own that only warned."""
    warned = NodeResult(output=empty, guards_failed=("its_own",))
    result = await ran(says("n", warned, guards=[bool]))
    assert result.output is None
    assert "refused by bool" in result.report.error


async def test_a_guard_that_retries_runs_a_function_again_with_its_feedback() -> None:
    """The feedback stands where RETRYABLE puts the last error, and is gone afterwards."""
    seen = []

    def body(state: Any) -> str:
        seen.append(state.context.get("_retry_error"))
        return "secret" if len(seen) < 3 else "fine"

    guard = Guard(lambda o: GuardVerdict(o == "fine", "No secrets."), "retry", name="quiet")
    result = await ran(FunctionNode("n", body, guards=[guard]))
    assert (result.output, seen) == ("fine", [None, "No secrets.", "No secrets."])
    assert "_retry_error" not in result.context


async def test_a_router_hears_why_its_choice_was_refused() -> None:
    model = ScriptedProvider("left", "right")
    guard = Guard(lambda o: GuardVerdict(o != "left", "The left is closed."), "retry", name="open")
    router = RouterNode("r", routes=["left", "right"], guards=[guard])
    graph = PromptGraph("g", nodes=[router, says("left", "l"), says("right", "r")])
    result = await PromptGraphEngine(graph, model).ainvoke("x")
    assert (result.output, result.report.nodes_visited) == ("r", ["r", "right"])
    assert "The left is closed." in model.requests[1].messages[0].content


@pytest.mark.parametrize(
    ("node", "key"),
    [
        (says("n", 1, strategy="chain_of_thought"), "strategy"),
        (says("n", 1, blocks=["x"]), "blocks"),
        (says("n", 1, tools=["x"]), "tools"),
        (TransformNode("n", lambda v: v, perspective="critic"), "perspective"),
        (TransformNode("n", lambda v: v, inject_tools=True), "inject_tools"),
        (RouterNode("n", routes=["n"], strategy="chain_of_thought"), "strategy"),
        (HumanNode("n", model_override="judge"), "model_override"),
        (says("n", 1, output_schema={"type": "string"}), "output_schema"),
        (says("n", 1, inherit_context_from="n"), "inherit_context_from"),
    ],
)
def test_a_keyword_that_means_nothing_to_a_node_is_a_problem(node: BaseNode, key: str) -> None:
    """A graph never silently ignores what its author wrote."""
    problems = PromptGraph("g", nodes=[node]).validate()
    assert any(key in problem and "'n'" in problem for problem in problems), problems


def test_ways_of_a_child_alone_are_a_problem() -> None:
    """Nobody follows the transitions of a node that another one runs."""
    child = says("c", 1, transitions={"error": "x"}, default_next="y", flags={F.PARALLEL_SAFE})
    (problem,) = PromptGraph("g", nodes=[ParallelNode("p", [child])]).validate()
    assert "transitions" in problem
    assert "default_next" in problem


# -- a guard that sends work back, as a child ---------------------------------------------------------------


def picky(*, tries: int = 2) -> GuardNode:
    return GuardNode("gate", guards=[Guard(lambda o: o == "good", "retry", name="good", max_retries=tries)])


async def test_a_guard_in_a_loop_sends_the_work_back_within_it() -> None:
    drafts = iter(["bad", "good"])
    loop = LoopNode("loop", [says("draft", lambda s: next(drafts)), picky()], lambda result: True)
    result = await ran(loop)
    assert (result.output, result.report.error) == ("good", "")
    assert result.report.nodes_visited == ["loop", *["loop/draft", "loop/gate"] * 2]
    assert any("cannot be accepted" in m.content for m in result.messages)


async def test_a_guard_in_a_loop_refuses_in_the_end() -> None:
    loop = LoopNode("loop", [says("draft", "bad"), picky(tries=1)], lambda result: True)
    result = await ran(loop, says("after", "got through"))
    assert (result.output, result.report.stop_reason) == (None, "critical_error")
    assert "refused by good" in result.report.error


@pytest.mark.parametrize("on_error", ["fail", "collect"])
async def test_a_guard_that_cannot_send_the_work_back_has_refused(on_error: Any) -> None:
    """In a parallel node nobody goes back: that is a failure, never a success with nothing."""
    node = ParallelNode("p", [picky(), says("other", 1)], on_error=on_error, output_key="kept")
    result = await ran(says("draft", "bad"), node)
    if on_error == "fail":
        assert "refused by good" in result.report.error
    else:
        assert "refused by good" in result.context["kept"]["gate"]["error"]


# -- CACHEABLE ----------------------------------------------------------------------------------------------


async def twice(node: BaseNode, between: Any = None, **context: Any) -> Any:
    gate = says("again", lambda s: (between(s) if between else None, s.node_iterations["again"] < 2)[1])
    graph = chain(node, gate).when("again", node.name, lambda r: r.output)
    return await PromptGraphEngine(graph).ainvoke("x", context=context)


class Twin:
    """Two of them look alike."""

    def __repr__(self) -> str:
        return "Twin"


async def test_what_only_looks_alike_is_not_the_same_input(caplog: Any) -> None:
    """An input without a canonical form cannot be told from another: the node runs, and it is said why."""
    caplog.set_level(logging.INFO, "astromesh.graph")
    calls: list[int] = []
    node = says("n", lambda s: calls.append(1), flags={F.CACHEABLE}, input_keys=["in"])
    await twice(node, lambda s: s.context.update({"in": Twin()}), **{"in": Twin()})
    assert len(calls) == 2
    assert "is not cached" in caplog.text
    assert "Twin" in caplog.text


async def test_the_order_of_keys_makes_no_other_input() -> None:
    calls: list[int] = []
    node = says("n", lambda s: calls.append(1), flags={F.CACHEABLE}, input_keys=["in"])
    await twice(node, lambda s: s.context.update({"in": {"b": 2, "a": 1}}), **{"in": {"a": 1, "b": 2}})
    assert len(calls) == 1


async def test_a_cached_result_is_handed_out_as_a_copy() -> None:
    """Whoever changes what it was given changes neither the cache nor what others were given."""
    seen: list[Any] = []

    def spoil(state: Any) -> None:
        seen.append(list(state.context["kept"]))
        state.context["kept"].append("spoilt")

    node = says("n", lambda s: ["fresh"], flags={F.CACHEABLE}, input_keys=["in"], output_key="kept")
    await twice(node, spoil, **{"in": 1})
    assert seen == [["fresh"], ["fresh"]]


async def test_an_output_that_cannot_be_copied_is_not_cached(caplog: Any) -> None:
    """The node succeeds all the same."""
    caplog.set_level(logging.INFO, "astromesh.graph")
    calls: list[int] = []

    def body(state: Any) -> Any:
        calls.append(1)
        return (c for c in "generators cannot be copied")

    result = await twice(FunctionNode("n", body, flags={F.CACHEABLE}, input_keys=["in"]), **{"in": 1})
    assert (len(calls), result.report.error) == (2, "")
    assert "is not cached" in caplog.text


# -- hooks in pairs -----------------------------------------------------------------------------------------


class Watch:
    """Notes what it is told; `hang` names a method in which it waits for ever."""

    def __init__(self, name: str, told: list[str], hang: str = "") -> None:
        self.name, self.told, self.hang, self.hangs = name, told, hang, asyncio.Event()

    async def _tell(self, what: str) -> None:
        self.told.append(f"{self.name}.{what}")
        if what == self.hang:
            self.hangs.set()
            await asyncio.Event().wait()

    async def pre_node(self, node: Any, state: Any) -> None:
        await self._tell("pre")

    async def post_node(self, node: Any, result: Any, state: Any) -> None:
        await self._tell("post")

    async def on_error(self, node: Any, error: Any, state: Any) -> None:
        await self._tell("error")


@pytest.mark.parametrize(
    ("hang", "told"),
    [
        ("pre", ["a.pre", "b.pre", "a.post", "b.post"]),
        ("error", ["a.pre", "b.pre", "c.pre", "a.error", "b.error", "a.post", "b.post", "c.post"]),
        ("post", ["a.pre", "b.pre", "c.pre", "a.error", "b.error", "c.error", "a.post", "b.post", "c.post"]),
    ],
)
async def test_hooks_that_began_are_told_the_end_wherever_a_cancel_comes(hang: str, told: list[str]) -> None:
    """Trap 15: one post_node for each pre_node that began, none for those that did not."""
    heard: list[str] = []
    second = Watch("b", heard, hang)
    hooks = [Watch("a", heard), second, Watch("c", heard)]

    def broken(state: Any) -> None:
        raise RuntimeError("broken")

    engine = PromptGraphEngine(chain(FunctionNode("n", broken)), hooks=hooks)
    task = asyncio.create_task(engine.ainvoke("x"))
    await asyncio.wait_for(second.hangs.wait(), BOUND)
    task.cancel()
    await asyncio.wait([task], timeout=BOUND)
    assert task.cancelled()
    assert heard == told


# -- odd results --------------------------------------------------------------------------------------------


class Labelled(NodeResult):
    """A result of the user's own."""


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_result_of_a_class_of_ones_own_is_a_result(is_async: bool) -> None:
    def body(state: Any) -> Any:
        return Labelled(output="mine", next_node="b")

    async def later(state: Any) -> Any:
        return body(state)

    graph = PromptGraph("g", nodes=[FunctionNode("a", later if is_async else body), says("b", "end")])
    result = await PromptGraphEngine(graph).ainvoke("x")
    assert (result.report.nodes_visited, result.context["a_output"]) == (["a", "b"], "mine")


ODD: list[tuple[str, Any]] = [
    ("next_node", ["b"]),
    ("usage", None),
    ("stop_reason", "weird"),
    ("error", None),
    ("error", ValueError("x")),
    ("tool_calls", ["look"]),
    ("tool_calls", None),
    ("messages_added", ["hello"]),
    ("messages_added", Message("user", "not in a list")),
    ("guards_failed", "a text"),
    ("guards_passed", [1]),
    ("graph_mutations", [{}]),
    ("transition_reason", None),
    ("node_name", 7),
    ("duration_ms", "long"),
    ("is_answer", "yes"),
    ("skipped", None),
    ("exception", "text"),
]


@pytest.mark.parametrize(("field", "value"), ODD, ids=[f"{f}-{type(v).__name__}" for f, v in ODD])
@pytest.mark.parametrize("kind", ["function", "async", "node", "hooked"])
async def test_an_odd_field_of_a_result_is_an_error_of_its_node(field: str, value: Any, kind: str) -> None:
    """It says which node and which field; nothing raises out of the run, nothing odd gets into the report."""

    def body(state: Any) -> Any:
        return NodeResult(output="kept?", **{field: value})

    async def later(state: Any) -> Any:
        return body(state)

    class Own(BaseNode):
        """A node of the user's own."""

        async def execute(self, state: Any, config: Any) -> NodeResult:
            made: NodeResult = body(state)
            return made

    node = {
        "function": lambda: FunctionNode("a", body),
        "async": lambda: FunctionNode("a", later),
        "node": lambda: Own("a"),
        "hooked": lambda: FunctionNode("a", later, flags={F.OBSERVABLE}),
    }[kind]()
    hooks = [Watch("w", [])] if kind == "hooked" else []
    result = await PromptGraphEngine(PromptGraph("g", nodes=[node]), hooks=hooks).ainvoke("x")
    assert (result.output, result.report.stop_reason) == (None, "failed")
    assert f"'a' returned an invalid NodeResult: {field} " in result.report.error
    assert "a_output" not in result.context
    result.report.to_json()


async def test_a_field_that_results_do_not_have_is_an_error_of_its_node() -> None:
    """A slip of the pen is told, not lost."""

    def body(state: Any) -> Any:
        result = NodeResult(output=1)
        result.nextnode = "b"  # type: ignore[attr-defined]
        return result

    result = await ran(FunctionNode("a", body))
    assert "nextnode" in result.report.error


async def test_a_result_that_is_given_out_again_counts_once() -> None:
    """A constant result keeps nothing of one visit for the next, nor of one run for another."""
    constant = NodeResult(output="x")
    looked: list[str] = []

    async def same(state: Any) -> Any:
        looked.append(constant.transition_reason)
        return constant

    engine = PromptGraphEngine(PromptGraph("g", nodes=[FunctionNode("a", same)]))
    for _ in range(2):
        assert (await engine.ainvoke("x")).output == "x"
    assert looked[-1] in ("", "end")


async def test_a_hook_that_answers_an_odd_result_changes_nothing(caplog: Any) -> None:
    class Odd:
        def post_node(self, node: Any, result: Any, state: Any) -> Any:
            return NodeResult(output="odd", next_node=["b"])  # type: ignore[arg-type]

    result = await ran(says("a", "fine"), hooks=[Odd()])
    assert (result.output, result.report.error) == ("fine", "")
    assert "next_node" in caplog.text


# -- SUMMARIZE_OUTPUT ---------------------------------------------------------------------------------------


async def test_a_long_answer_that_is_json_is_summarised_too() -> None:
    """Document 002: what counts is the raw output, whatever it was read as."""
    long = '{"finding": "' + "x" * 1200 + '"}'
    result = await ran(
        PromptNode("p", flags={F.SUMMARIZE_OUTPUT}, output_key="kept"), model=ScriptedProvider(long, "short")
    )
    assert (result.output, result.context["kept"]) == ("short", "short")
    assert result.messages[-1].content == "short"


async def test_long_data_of_a_function_is_summarised_and_a_schema_keeps_it() -> None:
    data = {"finding": "x" * 1200}
    summed = await ran(says("n", data, flags={F.SUMMARIZE_OUTPUT}), model=ScriptedProvider("short"))
    assert summed.output == "short"
    node = says("n", data, flags={F.SUMMARIZE_OUTPUT, F.VALIDATE_OUTPUT}, output_schema={"type": "object"})
    kept = await ran(node, model=ScriptedProvider())
    assert kept.output == data


async def test_a_summary_does_not_take_the_models_way_away() -> None:
    """What says where to go stays as it was said."""
    long = '{"route": "b", "why": "' + "x" * 1200 + '"}'
    graph = PromptGraph(
        "g", nodes=[PromptNode("p", flags={F.SUMMARIZE_OUTPUT}, routes=["b"]), says("b", "end")]
    )
    result = await PromptGraphEngine(graph, ScriptedProvider(long)).ainvoke("x")
    assert result.report.nodes_visited == ["p", "b"]


# -- the rest -----------------------------------------------------------------------------------------------


async def test_a_tool_that_nobody_has_was_not_called() -> None:
    model = ScriptedProvider([ToolCall("1", "lok"), ToolCall("2", "look")], "Done.")
    result = await ran(PromptNode("p", tools=[RecordingTool("look", "seen")]), model=model)
    assert result.report.tool_calls == ["look"]


async def test_a_finalizer_that_hangs_does_not_keep_a_cancelled_run() -> None:
    """It has its seconds; then the cancel goes through."""
    began, last = asyncio.Event(), asyncio.Event()

    async def hang(state: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async def final(state: Any) -> None:
        last.set()
        await asyncio.Event().wait()

    graph = PromptGraph("g", nodes=[FunctionNode("n", hang), FunctionNode("f", final)]).set_finalizer("f")
    task = asyncio.create_task(PromptGraphEngine(graph, finalizer_seconds=0.01).ainvoke("x"))
    await asyncio.wait_for(began.wait(), BOUND)
    task.cancel()
    await asyncio.wait([task], timeout=BOUND)
    assert task.cancelled()
    assert last.is_set()


async def test_a_finalizer_that_hangs_does_not_keep_a_stopped_run() -> None:
    async def final(state: Any) -> None:
        await asyncio.Event().wait()

    graph = chain(says("a", 1), says("b", 2), FunctionNode("f", final)).set_finalizer("f")
    engine = PromptGraphEngine(graph, max_iterations=1, finalizer_seconds=0.01)
    result = await asyncio.wait_for(engine.ainvoke("x"), BOUND)
    assert result.report.stop_reason == "max_iterations"
    assert "finalizer" in result.report.error


def test_edges_without_a_label_are_drawn_in_words() -> None:
    edges = [
        {"from": "a", "to": "b", "when": when}
        for when in ("error", "tool_call", "guard_fail", {"output": "ok", "equals": 1}, {"confidence": 0.8})
    ]
    nodes = [{"name": "a", "kind": "prompt"}, {"name": "b", "kind": "prompt"}]
    graph = PromptGraph.from_config({"nodes": nodes, "edges": edges})
    drawn = graph.to_mermaid()
    for words in ("error", "tool call", "guard failed", "ok = 1", "confidence ≥ 0.8"):
        assert f'|"{words}"|' in drawn
    assert "On" not in drawn
    assert "[error]" in graph.describe()


def test_importing_the_engine_loads_nothing_that_only_some_graphs_need() -> None:
    code = "import sys, astromesh.graph; print({'jsonschema_rs', 'pydantic', 'yaml'} & sys.modules.keys())"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout == "set()\n"


def test_prebuilt_graphs_are_there_when_they_are_first_asked_for() -> None:
    """Importing the engine does not import them; the attribute and the star find them all the same."""
    code = (
        "import sys, astromesh.graph as g; assert 'astromesh.graph.reasoning' not in sys.modules;"
        "assert g.prebuilt.react().entry == 'react'; assert not hasattr(g, 'prebuild');"
        "from astromesh.graph import *; assert prebuilt is g.prebuilt"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_result_that_the_engine_made_is_like_any_other() -> None:
    """The engine leaves the fields that a plain answer does not say to the class; nobody can tell."""
    kept: list[NodeResult] = []
    await ran(says("a", "x"), says("b", lambda s: kept.extend(s.node_history)))
    made = kept[0]
    like = NodeResult("a", "x", transition_reason="edge", duration_ms=made.duration_ms)
    assert (made, repr(made), deepcopy(made)) == (like, repr(like), like)
    assert replace(made, error="e") == replace(like, error="e")
    made.error = "mine"
    assert NodeResult().error == ""


def test_ways_in_an_autonomous_graph_are_a_problem() -> None:
    """The model chooses there: edges and transitions would be ignored."""
    pool = [says("a", 1, transitions={"x": "b"}), says("b", 2, is_terminal=True)]
    problems = PromptGraph.from_pool(pool).always("a", "b").validate()
    assert any("a → b" in problem for problem in problems)
    assert any("'a'" in problem and "transitions" in problem for problem in problems)
    assert PromptGraph.from_pool([says("a", 1), says("b", 2, is_terminal=True)]).validate() == []


def test_a_hook_without_a_method_that_is_ever_called_is_told(caplog: Any) -> None:
    class Slip:
        def pre_nodes(self, node: Any, state: Any) -> None: ...

    PromptGraphEngine(chain(says("a", 1)), hooks=[Slip()])
    assert "Slip" in caplog.text
    assert "pre_node" in caplog.text


async def test_a_transform_that_changes_nothing_does_not_echo_the_question() -> None:
    """Trap 22: what is only passed on is no answer; neither is a tool's result."""
    assert (await ran(TransformNode("t", lambda value: value))).output is None
    passed = [ToolNode("look", "look"), TransformNode("t", lambda value: value)]
    assert (await ran(*passed, tools=[RecordingTool("look", "raw")])).output is None
    assert (await ran(TransformNode("t", str.upper))).output == "WHY?"


def test_an_engine_needs_time_for_its_finalizer() -> None:
    with pytest.raises(ValueError, match="finalizer_seconds"):
        PromptGraphEngine(chain(says("a", 1)), finalizer_seconds=0)
