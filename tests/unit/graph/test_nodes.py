"""Every node beside PromptNode: what it does, how it fails, and how data flows between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from astromesh.errors import ProviderRejected, ProviderTimeout
from astromesh.graph import BaseNode, NodeFlag, NodeResult, PromptGraph, node
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.nodes import (
    AutonomousNode,
    FanOutNode,
    GuardNode,
    HumanNode,
    LoopNode,
    ParallelNode,
    PromptNode,
    RetryNode,
    RouterNode,
    SubgraphNode,
    ToolNode,
    TransformNode,
)
from astromesh.graph.nodes.guard import Guard, GuardVerdict
from astromesh.graph.nodes.human import HumanDecision
from astromesh.testing import ManualClock, RecordingTool, ScriptedProvider
from astromesh.types import CompletionResult, ToolCall, Usage

SAFE = {NodeFlag.PARALLEL_SAFE}


def says(name: str, value: Any, **keywords: Any) -> BaseNode:
    """A node that answers a value, or calls it with the state."""

    @node(name, **keywords)
    async def said(state):
        made = value(state) if callable(value) else value
        return await made if hasattr(made, "__await__") else made

    return said


async def run(nodes: Sequence[BaseNode], *script: Any, edges: Any = None, **engine: Any):
    """A graph of these nodes in sequence, or with edges that a function adds: its result and the model."""
    graph = PromptGraph(nodes=nodes)
    if edges:
        edges(graph)
    else:
        graph.sequential(*(n.name for n in nodes))
    context = engine.pop("context", None)
    model = ScriptedProvider(*script)
    return await PromptGraphEngine(graph, model, **engine).ainvoke("Why?", context=context), model


# -- data flow (document 000) --------------------------------------------------------------------------------


async def test_outputs_flow_by_key_by_name_and_directly():
    """`output_key` to `input_keys`, `inherit_context_from`, and the context itself."""

    @node("direct", flags={NodeFlag.STATEFUL})
    def direct(state):
        state.context["own"] = state.context["findings"] + "!"
        return "raw"

    nodes = [
        says("a", "data", output_key="findings"), direct,
        PromptNode("b", input_keys=["findings", "own"], inherit_context_from="direct"),
    ]  # fmt: skip
    result, model = await run(nodes, "ok")
    assert model.requests[0].messages[0].content == (
        "## findings\ndata\n\n## own\ndata!\n\n## Result of direct\nraw"
    )
    assert result.context["a_output"] == "data"


# -- ToolNode ------------------------------------------------------------------------------------------------


async def test_a_tool_node_calls_its_tool_with_its_inputs():
    """Arguments from input keys, a mapping, or a function of the state; the value goes on, not the text."""
    tool = RecordingTool("add", lambda a, b: {"sum": a + b})
    nodes = [
        ToolNode("t1", "add", tools=[tool], input_keys=["a", "b"], output_key="one"),
        ToolNode("t2", "add", {"a": 1, "b": 1}, inject_tools=True, output_key="two"),
        ToolNode(
            "t3",
            "add",
            lambda state: {"a": state.context["one"]["sum"], "b": 5},
            tools=["add"],
            output_key="c",
        ),
        says("answer", lambda state: f"It is {state.context['c']['sum']}"),
    ]
    result, _ = await run(nodes, tools=[tool], context={"a": 2, "b": 3})
    assert (result.context["one"], result.context["two"], result.output) == (
        {"sum": 5},
        {"sum": 2},
        "It is 10",
    )
    assert result.report.tool_calls == ["add", "add", "add"]


async def test_a_failed_tool_fails_its_node():
    """With the tool's name and what it said; an error edge can take over."""
    tool = RecordingTool("add", ValueError("overflow"))
    nodes = [ToolNode("t", "add", {}, tools=[tool]), says("rescue", "saved")]
    result, _ = await run(nodes, edges=lambda g: g.on_error("t", "rescue"))
    assert result.output == "saved"
    result, _ = await run([ToolNode("t", "add", {}, tools=[tool])])
    assert "add: The tool 'add' failed: ValueError: overflow" in result.report.error


async def test_a_tools_value_is_never_the_runs_answer():
    """Trap 22: also where the tool node is the last one."""
    tool = RecordingTool("save", "row 7")
    result, _ = await run(
        [PromptNode("p"), ToolNode("t", "save", {}, tools=[tool], output_key="row")], "Saved."
    )
    assert (result.output, result.context["row"]) == ("Saved.", "row 7")
    result, _ = await run([ToolNode("t", "save", {}, tools=[tool])])
    assert (result.output, result.text) == (None, "")


async def test_a_tool_node_without_anything_to_call_fails():
    """It does not go on as if it had done something."""
    result, _ = await run([ToolNode("t")])
    assert "no tool call" in result.report.error


# -- RouterNode ----------------------------------------------------------------------------------------------

WAYS = [says("billing", "B"), says("bill", "b"), says("other", "O")]


@pytest.mark.parametrize(
    ("said", "output"),
    [
        ("billing", "B"), (" `Bill`. ", "b"), ('"BILLING"', "B"), ('{"route": "other"}', "O"),
        ("**other**", "O"),
    ],
)  # fmt: skip
async def test_a_router_goes_where_the_model_says(said, output):
    """Case, quotes and punctuation around the word make no difference."""
    router = RouterNode("r", routes=["billing", "bill", "other"], instructions="Decide.")
    result, model = await run([router, *WAYS], said, edges=lambda g: None)
    assert result.output == output
    assert model.requests[0].messages[0].content.startswith("Decide.")


async def test_a_router_never_matches_a_part_of_a_word():
    """Trap 18: it asks again; each try costs, and that is counted."""
    usage = Usage(10, 1)
    wrong = CompletionResult("I would say billing, not other", usage=usage)
    router = RouterNode("r", routes={"billing": "money", "other": ""})
    result, model = await run(
        [router, *WAYS], wrong, wrong, CompletionResult("other", usage=usage), edges=lambda g: 0
    )
    assert result.output == "O"
    assert result.report.usage == Usage(30, 3)
    assert "billing, other" in model.requests[1].messages[-1].content
    assert "- billing: money" in model.requests[0].messages[0].content


async def test_a_router_that_gets_no_choice_fails_or_takes_the_default():
    """After max_tries; never a guess."""
    router = RouterNode("r", routes=["billing"], max_tries=2)
    result, model = await run([router, *WAYS], "hm", "hm", edges=lambda g: None)
    assert len(model.requests) == 2
    assert "no valid choice" in result.report.error
    router = RouterNode("r", routes=["billing"], max_tries=1, default_next="other")
    result, _ = await run([router, *WAYS], "hm", edges=lambda g: None)
    assert result.output == "O"


async def test_a_router_can_be_a_function_and_lead_by_transitions():
    """Choices may be words of their own, with the nodes they lead to in `transitions`."""
    router = RouterNode("r", transitions={"money": "billing", "rest": "other"}, choose=lambda state: "rest")
    result, _ = await run([router, *WAYS], edges=lambda g: None)
    assert result.output == "O"
    with pytest.raises(ValueError, match="nothing to choose from"):
        RouterNode("r")


# -- GuardNode -----------------------------------------------------------------------------------------------


def no_secret(output):
    return GuardVerdict("secret" not in output, "No secrets.")


async def test_a_guard_lets_good_output_through():
    """The value goes on as the run's answer."""
    result, _ = await run([says("a", "fine"), GuardNode("g", guards=[no_secret])])
    assert result.output == "fine"
    assert result.report.guards == ["g: no_secret passed"]


async def test_a_guard_that_refuses_ends_the_run():
    """Trap 8: nothing behind an unconditional edge runs, and the refused output is no answer."""
    ran: list[str] = []
    nodes = [says("a", "a secret"), GuardNode("g", guards=[no_secret]), says("b", lambda s: ran.append("b"))]
    result, _ = await run(nodes)
    assert (ran, result.output, result.text) == ([], None, "")
    assert result.report.stop_reason == "critical_error"
    assert "No secrets." in result.report.error


async def test_a_guard_that_breaks_lets_nobody_through():
    """An exception in a check, or an input that is missing, is a refusal."""

    def broken(output):
        raise RuntimeError("down")

    for guard in (
        GuardNode("g", guards=[broken]),
        GuardNode("g", guards=[no_secret], input_keys=["missing"]),
    ):
        result, _ = await run([says("a", "x"), guard, says("b", "through")])
        assert result.output is None
        assert result.report.stop_reason == "critical_error"


async def test_a_refusal_can_be_handled():
    """By an edge `on_guard_fail`."""
    nodes = [says("a", "a secret"), GuardNode("g", guards=[no_secret]), says("b", "cleaned")]
    result, _ = await run(nodes, edges=lambda g: g.always("a", "g").on_guard_fail("g", "b"))
    assert result.output == "cleaned"


async def test_a_guard_can_send_the_work_back():
    """Mode `retry`: the node before does it again with the feedback, a bounded number of times."""
    guard = GuardNode("g", guards=[Guard(no_secret, "retry", max_retries=1)])
    result, model = await run([PromptNode("p"), guard], "a secret", "fine")
    assert result.output == "fine"
    assert "No secrets." in model.requests[1].messages[-1].content
    result, model = await run([PromptNode("p"), guard], "a secret", "still a secret")
    assert (result.output, result.text, len(model.requests)) == (None, "", 2)


async def test_a_guard_that_warns_notes_and_passes():
    """Mode `warn`."""
    result, _ = await run([says("a", "a secret"), GuardNode("g", guards=[Guard(no_secret, "warn")])])
    assert result.output == "a secret"
    assert result.report.guards == ["g: no_secret failed"]


# -- ParallelNode, FanOutNode --------------------------------------------------------------------------------


async def test_safe_children_run_at_once_and_are_merged_in_order():
    """Each waits for the other; outputs and visits stand in declared order."""
    ready = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def meet(me, other):
        ready[me].set()
        await ready[other].wait()
        return me

    children = [
        says("a", lambda s: meet("a", "b"), flags=SAFE, output_key="ka"),
        says("b", lambda s: meet("b", "a"), flags=SAFE, output_key="kb"),
    ]
    result, _ = await run([ParallelNode("p", children)])
    assert result.output == {"a": "a", "b": "b"}
    assert (result.context["ka"], result.context["kb"]) == ("a", "b")
    assert result.report.nodes_visited == ["p", "p/a", "p/b"]


async def test_children_run_at_once_in_order_up_to_max_concurrency():
    """Ten children at a time unless the node says another number. Each works on its own copy."""
    began: list[int] = []
    most = [0, 0]

    async def work(place):
        began.append(place)
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(0)
        most[0] -= 1

    async def highest(make):
        began.clear()
        most[1] = 0
        result, _ = await run([make])
        assert result.ok
        assert began == sorted(began)
        return most[1]

    children = [says(f"n{place}", lambda s, place=place: work(place)) for place in range(12)]
    worker = says("w", lambda s: work(s.context["index"]))
    assert await highest(ParallelNode("p", children)) == 10
    assert await highest(ParallelNode("p", children, max_concurrency=12)) == 12
    assert await highest(ParallelNode("p", children, max_concurrency=1)) == 1
    assert await highest(FanOutNode("f", worker, list(range(30)))) == 10
    assert await highest(FanOutNode("f", worker, list(range(30)), max_concurrency=3)) == 3
    for wrong in (0, True, "all"):
        with pytest.raises((TypeError, ValueError), match="max_concurrency"):
            ParallelNode("p", children, max_concurrency=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("flags", [SAFE, set()])
async def test_a_failed_child_fails_its_parent_unless_collected(flags):
    """Trap 5: `fail` propagates with the child's name; `collect` puts the error where the output would be."""

    def broken(state):
        raise ValueError("boom")

    children = [says("a", "A", flags=flags), says("b", broken, flags=flags)]
    result, _ = await run([ParallelNode("p", children)])
    assert result.output is None
    assert "b" in result.report.error
    assert "boom" in result.report.error
    result, _ = await run([ParallelNode("p", children, on_error="collect")])
    assert result.output == {"a": "A", "b": {"error": "ValueError: boom"}}
    result, _ = await run([ParallelNode("p", children[1:], on_error="collect")])
    assert "boom" in result.report.error


def test_children_need_different_names():
    """Their outputs would overwrite each other."""
    with pytest.raises(ValueError, match="different names"):
        ParallelNode("p", [says("a", 1), says("a", 2)])
    with pytest.raises(ValueError, match="fail or collect"):
        ParallelNode("p", [says("a", 1)], on_error="ignore")  # type: ignore[arg-type]


async def test_fan_out_runs_one_worker_for_each_item():
    """In the items' order, each with its item and position, which stay out of the context around it."""
    worker = says("w", lambda s: f"{s.context['item']}{s.context['index']}", flags=SAFE)
    result, _ = await run([FanOutNode("f", worker, ["a", "b", "c"])])
    assert result.output == ["a0", "b1", "c2"]
    assert result.report.nodes_visited == ["f", "f/w[0]", "f/w[1]", "f/w[2]"]
    assert "item" not in result.context
    result, _ = await run([says("list", ["x"]), FanOutNode("f", worker)])
    assert result.output == ["x0"]
    result, _ = await run([FanOutNode("f", worker, lambda s: s.context["things"])], context={"things": ["t"]})
    assert result.output == ["t0"]


async def test_fan_out_over_prompts_at_once():
    """Twenty model calls of one node share nothing."""
    worker = PromptNode("w", input_keys=["item"], flags=SAFE)

    def echo(request):
        return request.messages[0].content.rpartition("\n")[2]

    items = [f"i{n}" for n in range(20)]
    result, _ = await run([FanOutNode("f", worker, items)], *[echo] * 20)
    assert result.output == items


async def test_fan_out_refuses_what_is_no_list_and_too_many_items():
    """Before anything runs."""
    ran: list[int] = []
    worker = says("w", lambda s: ran.append(1))
    result, _ = await run([FanOutNode("f", worker, lambda s: "text")])
    assert "needs a list" in result.report.error
    result, _ = await run([FanOutNode("f", worker, list(range(5)), max_items=4)])
    assert "at most 4" in result.report.error
    assert ran == []
    result, _ = await run([FanOutNode("f", worker, [])])
    assert result.output == []


async def test_fan_out_collects_failures_in_their_place():
    """One bad item of many does not lose the others."""

    def work(state):
        if state.context["item"] == 2:
            raise ValueError("two")
        return state.context["item"] * 10

    result, _ = await run([FanOutNode("f", says("w", work, flags=SAFE), [1, 2, 3], on_error="collect")])
    assert result.output == [10, {"error": "ValueError: two"}, 30]


# -- LoopNode, SubgraphNode, RetryNode -----------------------------------------------------------------------


async def test_a_loop_runs_until_its_condition_holds():
    """A function of the result, of result and state, or the name of a true value."""

    def count(state):
        state.context["n"] = state.context.get("n", 0) + 1
        return {"n": state.context["n"], "done": state.context["n"] == 3}

    for until in (lambda r: r.output["n"] == 3, lambda r, s: s.context["n"] == 3, "done"):
        result, _ = await run([LoopNode("l", says("c", count), until)])
        assert result.output == {"n": 3, "done": True}
        assert result.report.nodes_visited == ["l", "l/c", "l/c", "l/c"]


async def test_a_loop_that_never_ends_fails_loudly():
    """Trap 11: never a silent end; and a failed child ends it at once."""
    result, _ = await run([LoopNode("l", says("c", 1), lambda r: False, max_loops=2)])
    assert "did not end within 2 rounds" in result.report.error
    assert result.output is None

    def broken(state):
        raise ValueError("boom")

    result, _ = await run([LoopNode("l", [says("a", 1), says("b", broken)], lambda r: False)])
    assert "boom" in result.report.error
    assert result.report.nodes_visited == ["l", "l/a", "l/b"]


async def test_a_subgraph_is_one_node_outside():
    """Its visits stand below it, its output is the graph's, its failure is the node's."""
    inner = PromptGraph("inner", nodes=[says("a", 1), PromptNode("b")]).sequential("a", "b")
    result, _ = await run(
        [SubgraphNode("s", inner, output_key="o"), says("z", lambda s: s.context["o"] + "!")], "in"
    )
    assert result.output == "in!"
    assert result.report.nodes_visited == ["s", "s/a", "s/b", "z"]
    assert inner.validate() == []
    result, _ = await run([SubgraphNode("s", inner)], ProviderRejected("no"))
    assert "no" in result.report.error


async def test_a_retry_node_tries_its_child_again_with_pauses():
    """Trap 23: 0.5 s, 1 s, … with the last error in the context; usage of failed tries counts."""
    clock = ManualClock(jump=True)
    seen: list[Any] = []

    def spy(request):
        seen.append(1)
        return ProviderTimeout("slow") if len(seen) < 3 else "ok"

    nodes = [RetryNode("r", PromptNode("p"), max_attempts=3)]
    result, model = await run(nodes, spy, spy, spy, clock=clock, seed=1)
    assert result.output == "ok"
    assert len(model.requests) == 3
    assert [0.5 <= s <= 0.55 or 1.0 <= s <= 1.1 for s in clock.slept] == [True, True]
    result, model = await run(nodes, *[ProviderTimeout("slow")] * 3, clock=clock)
    assert "slow" in result.report.error


async def test_what_cannot_heal_is_not_tried_again():
    """Trap 23: an invalid request stays invalid."""
    nodes = [RetryNode("r", PromptNode("p"), max_attempts=5)]
    result, model = await run(nodes, ProviderRejected("wrong"), clock=ManualClock(jump=True))
    assert len(model.requests) == 1
    assert "wrong" in result.report.error


# -- TransformNode -------------------------------------------------------------------------------------------


async def test_a_transform_works_on_its_inputs():
    """The last output, one value, several values as a dict; sync or async; with the state or without."""

    async def later(value, state):
        return f"{value}{len(state.context)}"

    nodes = [
        says("a", "x", output_key="one"),
        TransformNode("t1", str.upper, output_key="two"),
        TransformNode("t2", lambda v: v["one"] + v["two"], input_keys=["one", "two"], output_key="three"),
        TransformNode("t3", later, input_keys=["three"]),
    ]
    result, _ = await run(nodes)
    assert result.output == "xX6"
    result, _ = await run([TransformNode("t", str.upper, input_keys=["missing"])])
    assert "missing" in result.report.error


# -- HumanNode -----------------------------------------------------------------------------------------------

HUMAN = [
    says("a", "draft"),
    HumanNode("h", instructions="Publish?"),
    says("b", lambda s: f"done {s.context['h_output']}"),
]


@pytest.mark.parametrize(
    ("said", "output"),
    [
        (True, "done draft"), ("approve", "done draft"), ({"decision": "approve"}, "done draft"),
        (HumanDecision("approve"), "done draft"), ("better text", "done better text"),
        ({"decision": "answer", "answer": "mine"}, "done mine"),
        (HumanDecision("answer", "mine"), "done mine"),
        (False, None), (None, None), ("deny", None), ("", None), ({"decision": "maybe"}, None), (1, None),
        (HumanDecision("deny"), None), ({}, None),
    ],
)  # fmt: skip
async def test_only_a_clear_yes_or_an_answer_goes_on(said, output):
    """Trap 21: everything else is a denial, after which nothing runs."""
    asked: list[Any] = []

    async def handler(request):
        asked.append((request.node, request.question, request.value))
        return said

    result, _ = await run(HUMAN, human_handler=handler)
    assert asked == [("h", "Publish?", "draft")]
    assert result.output == output
    assert result.report.stop_reason == ("completed" if output else "human_denied")
    assert "_awaiting_human" not in result.context


async def test_without_a_handler_nobody_has_approved_and_the_decision_can_follow():
    """Trap 21: the run stays pending; persisted and invoked again with the decision, it goes on."""
    result, _ = await run(HUMAN)
    assert (result.output, result.report.stop_reason) == (None, "human_denied")
    assert result.context["_awaiting_human"] == "h"
    kept = {k: v for k, v in result.context.items() if isinstance(v, str)}
    again, _ = await run(HUMAN, context={**kept, "_human_decisions": {kept["_human_ticket"]: "approve"}})
    assert again.output == "done draft"
    assert "_awaiting_human" not in again.context


async def test_nobody_in_time_is_a_denial():
    """The handler is cancelled, the run ends as human_timeout."""
    cancelled = asyncio.Event()

    async def handler(request):
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    nodes = [HumanNode("h", approval_timeout=0.01), says("b", "through")]
    result, _ = await run(nodes, human_handler=handler)
    assert (result.output, result.report.stop_reason) == (None, "human_timeout")
    assert cancelled.is_set()


async def test_a_handler_that_breaks_has_not_approved():
    """An exception is a denial; a transition `error` can handle it."""

    def handler(request):
        raise RuntimeError("mail server down")

    result, _ = await run([HumanNode("h"), says("b", "through")], human_handler=handler)
    assert (result.output, result.report.stop_reason) == (None, "human_denied")
    assert "mail server down" in result.report.error
    nodes = [HumanNode("h", transitions={"error": "b"}), says("b", "asked otherwise")]
    result, _ = await run(nodes, human_handler=handler, edges=lambda g: None)
    assert result.output == "asked otherwise"


# -- AutonomousNode ------------------------------------------------------------------------------------------

POOL = [
    says("act", "acted", description="Uses tools."),
    PromptNode("answer", instructions="Write it.\nWell.", is_terminal=True),
]


def choose(name: str) -> str:
    return f'I think {{so}}: {{"next_node": "{name}", "reason": "because {{x}}"}}'


async def test_the_model_builds_its_path_until_a_terminal_node_succeeds():
    """Document 000: descriptions in the prompt, JSON anywhere in the answer, results in the next prompt."""
    result, model = await run([AutonomousNode("auto", POOL)], choose("act"), choose("answer"), "Final.")
    assert result.output == "Final."
    assert result.report.nodes_visited == ["auto", "auto/act", "auto/answer"]
    prompt = model.requests[0].messages[0].content
    assert "- act: Uses tools.\n- answer: Write it. (terminal)\n- __done__" in prompt
    assert "1. act: acted" in model.requests[1].messages[0].content


async def test_done_ends_it_with_the_last_result():
    """`__done__`, also as a bare word; at once, without any result, it is a failure."""
    result, _ = await run([AutonomousNode(POOL)], choose("act"), '"__done__"')
    assert result.output == "acted"
    result, _ = await run([AutonomousNode(POOL)], choose("__done__"))
    assert (result.output, "without a result" in result.report.error) == (None, True)


async def test_an_invalid_name_is_asked_again_and_counts(caplog):
    """The model is told, the log too; after max_steps the run says that it was stopped."""
    result, model = await run(
        [AutonomousNode("auto", POOL, max_steps=3)], choose("fly"), "gibberish", choose("act")
    )
    assert len(model.requests) == 3
    assert "'fly' is not one of the nodes." in model.requests[1].messages[0].content
    assert result.report.stop_reason == "max_iterations"
    assert result.report.error == "The node 'auto' was stopped: max_iterations."
    assert result.output == "acted"
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "auto: the model chose 'fly', which is not one of the nodes",
        "auto: the model chose 'gibberish', which is not one of the nodes",
    ]


async def test_the_model_is_shown_the_pool_in_the_words_of_the_document():
    """Document 000: every node with its description, which ones are terminal, and the question."""
    pool = [
        PromptNode("plan", description="Break task into subgoals"),
        PromptNode("answer", description="Final synthesis", is_terminal=True),
    ]
    _, model = await run([AutonomousNode("auto", pool)], choose("answer"), "done")
    shown = model.requests[0].messages[0].content
    assert shown.startswith(
        "Here are available nodes:\n- plan: Break task into subgoals\n- answer: Final synthesis (terminal)\n"
    )
    assert "Which should run next?" in shown


async def test_a_failed_pool_node_is_told_to_the_model():
    """It may choose another way; if it ends there, the failure is the node's."""

    def broken(state):
        raise ValueError("boom")

    pool = [says("act", broken), says("other", "fine")]
    result, model = await run(
        [AutonomousNode("auto", pool)], choose("act"), choose("other"), choose("__done__")
    )
    assert "act failed: ValueError: boom" in model.requests[1].messages[0].content
    assert result.output == "fine"
    result, _ = await run([AutonomousNode("auto", pool)], choose("act"), choose("__done__"))
    assert "boom" in result.report.error


async def test_a_graph_in_autonomous_mode_is_a_pool():
    """`PromptGraph(mode="autonomous")` and `from_pool` run the same node."""
    for graph in (PromptGraph("g", mode="autonomous", nodes=POOL), PromptGraph.from_pool(POOL)):
        model = ScriptedProvider(choose("answer"), "Final.")
        result = await PromptGraphEngine(graph, model).ainvoke("Why?")
        assert result.output == "Final."


def test_a_pool_needs_nodes_with_different_names():
    """Found when the node is made."""
    for pool in ([], [says("a", 1), says("a", 2)], [says("__done__", 1)]):
        with pytest.raises(ValueError, match="auto"):
            AutonomousNode("auto", pool)


# -- all of them ---------------------------------------------------------------------------------------------


class Watch:
    """Counts the hooks' calls by node."""

    def __init__(self):
        self.calls: list[str] = []

    def pre_node(self, node, state):
        self.calls.append(f"+{node.name}")

    def post_node(self, node, result, state):
        self.calls.append(f"-{node.name}")

    def pre_tool(self, call, state):
        self.calls.append(f"*{call.name}")


async def test_nested_execution_goes_through_the_hooks():
    """Trap 4: children of every composite are seen, in pairs, and so are their tools."""
    tool = RecordingTool("t", "x")
    prompt = PromptNode("p", tools=[tool], flags=SAFE)
    inner = PromptGraph("inner", nodes=[prompt])
    script = [ToolCall("1", "t"), "ok"]
    for composite, extra in [
        (ParallelNode("c", [prompt]), []),
        (FanOutNode("c", prompt, ["i"]), []),
        (LoopNode("c", prompt, lambda r: True), []),
        (SubgraphNode("c", inner), []),
        (RetryNode("c", prompt), []),
        (AutonomousNode("c", [prompt]), [choose("p")]),
    ]:
        watch = Watch()
        done = [choose("__done__")] if extra else []
        result, _ = await run([composite], *extra, *script, *done, hooks=[watch])
        assert watch.calls == ["+c", "+p", "*t", "-p", "+p", "-p", "-c"], composite
        assert result.report.tool_calls == ["t"]
        assert result.report.error == ""


async def test_limits_hold_in_nested_execution():
    """Trap 4: a circle inside a subgraph cannot run past the run's own limit, nor one inside a round."""
    inner = PromptGraph("inner", nodes=[says("c", 1)]).always("c", "c")
    result, _ = await run([SubgraphNode("s", inner)], max_iterations=10, max_node_iterations=1000)
    assert result.report.stop_reason == "max_iterations"
    assert result.report.iterations == 10
    loop = LoopNode("l", SubgraphNode("s", inner), lambda r: False, max_loops=1000)
    result, _ = await run([loop], max_iterations=10, max_node_iterations=1000)
    assert result.report.stop_reason == "max_iterations"
    assert result.report.nodes_visited == ["l", "l/s", *["l/s/c"] * 9]


async def test_items_and_rounds_count_against_their_own_limits():
    """With the default limits: 60 items, 60 items of several steps, 40 rounds, 40 rounds of two nodes."""
    worker = says("w", lambda s: s.context["item"])
    result, _ = await run([FanOutNode("f", worker, list(range(60)))])
    assert result.output == list(range(60))
    assert result.report.iterations == 61
    inner = PromptGraph("inner", nodes=[says("x", 1), says("y", 2)]).always("x", "y")
    result, _ = await run([FanOutNode("f", SubgraphNode("s", inner), list(range(60)))])
    assert result.output == [2] * 60

    def count(state):
        state.context["n"] = state.context.get("n", 0) + 1
        return state.context["n"]

    for body in ([says("c", count)], [says("before", 0), says("c", count)]):
        result, _ = await run([LoopNode("l", body, lambda r: r.output == 40, max_loops=40)])
        assert result.output == 40
    result, _ = await run([LoopNode("l", says("c", count), lambda r: r.output == 41, max_loops=40)])
    assert "did not end within 40 rounds" in result.report.error


async def test_what_runs_after_items_and_rounds_has_what_the_run_has_left():
    """The run counts its own nodes, and a second visit of a FanOutNode begins anew."""
    worker = says("w", lambda s: s.context["item"])
    again = says("again", lambda s: s.iteration, max_iterations=3)
    graph = PromptGraph(nodes=[FanOutNode("f", worker, [1, 2]), again]).sequential("f", "again", "f")
    result = await PromptGraphEngine(graph, max_iterations=5, max_node_iterations=1).ainvoke("q")
    assert result.report.nodes_visited == ["f", "f/w[0]", "f/w[1]", "again"]
    assert result.report.stop_reason == "stuck_node"
    result = await PromptGraphEngine(graph, max_iterations=3).ainvoke("q")
    assert result.report.nodes_visited[4:] == ["f", "f/w[0]", "f/w[1]"]
    assert result.report.stop_reason == "max_iterations"


async def test_the_visits_of_a_node_begin_anew_in_each_round():
    """A tool loop in a round has the limit of one node for itself."""

    def ask(name):
        return PromptNode(name, inject_tools=True)

    script = [ToolCall("1", "look"), ToolCall("2", "look"), "no"] * 2 + [ToolCall("3", "look"), "yes"]
    loop = LoopNode("l", ask("a"), lambda r: r.output == "yes")
    result, _ = await run([loop], *script, tools=[RecordingTool("look")], max_node_iterations=3)
    assert result.output == "yes"
    result, _ = await run([loop], *script, tools=[RecordingTool("look")], max_node_iterations=2)
    assert "'l/a' is stuck after 2 visits" in result.report.error


def test_a_result_has_defaults_for_everything():
    """So that a function node can return just what it has."""
    assert NodeResult().output is None


# -- the answer (trap 22) ------------------------------------------------------------------------------------


async def test_what_is_only_passed_on_is_no_answer():
    """The question behind a guard or a human is not the answer, nor is a tool's result, however wrapped."""
    tool = ToolNode("t", "look", {})
    guard, human = GuardNode("g", guards=[lambda o: True]), HumanNode("h")
    wrapped = [
        RetryNode("r", tool), LoopNode("l", tool, until=lambda r: True), ParallelNode("p", [tool])
    ]  # fmt: skip
    chains: list[list[Any]] = [
        [guard],
        [human],
        [guard, tool],
        [tool, guard],
        [tool, human],
        *([w] for w in wrapped),
    ]
    for nodes in chains:
        engine = {"tools": [RecordingTool("look", "raw")], "human_handler": lambda request: True}
        result, _ = await run(nodes, **engine)
        assert (result.output, result.report.error) == (None, "")
        assert result.context[f"{nodes[-1].name}_output"] in ("Why?", "raw", {"t": "raw"})
    result, _ = await run([says("a", "made"), guard, human], human_handler=lambda request: True)
    assert result.output == "made"


async def test_a_tool_node_may_name_any_tool_of_the_engine():
    """As docs/graph/yaml.md writes it: `tool: send_mail`, without `tools`."""
    tool = RecordingTool("send_mail", "sent")
    result, _ = await run([ToolNode("send", "send_mail", {"to": "ada"}, output_key="k")], tools=[tool])
    assert (result.context["k"], result.report.error) == ("sent", "")
    assert tool.calls == [{"to": "ada"}]


async def test_each_round_of_a_guard_has_retries_of_its_own():
    """Retries that an earlier answer used up, and passed, are not the next one's."""
    verdicts = iter([False, False, True, False, False, True])
    guard = GuardNode("g", guards=[Guard(lambda output: next(verdicts), "retry")])
    again = says("again", lambda s: {"more": s.node_iterations["again"] < 2})
    result, _ = await run(
        [says("w", "work"), guard, again],
        edges=lambda g: g.sequential("w", "g", "again").on_output("again", "w", "more"),
    )
    assert result.report.stop_reason == "completed"
    assert result.report.nodes_visited.count("g") == 6


async def test_an_answer_that_json_cannot_say_is_text_all_the_same():
    """A model's JSON may hold integers beyond 64 bits and half a surrogate pair."""
    for said in ('{"n": 123456789012345678901234567890}', '{"s": "\\ud83d"}'):
        result, _ = await run([PromptNode("a"), PromptNode("b", inherit_context_from="a")], said, said)
        assert result.text.encode() == said.encode()
        assert result.report.error == ""
