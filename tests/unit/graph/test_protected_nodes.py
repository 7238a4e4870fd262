"""A guard or a human inside another node protects as well as one that stands alone."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.graph import (
    AutonomousNode,
    BaseNode,
    FunctionNode,
    Guard,
    GuardNode,
    HumanDecision,
    HumanNode,
    LoopNode,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RetryNode,
    SubgraphNode,
)
from astromesh.testing import ScriptedProvider


def refuses(output: Any) -> bool:
    return False


def kinds() -> dict[str, BaseNode]:
    """Nodes called `s` around a guard or a human."""
    guard, human = GuardNode("guard", guards=[refuses]), HumanNode("human")
    return {
        "guard": GuardNode("s", guards=[refuses]),
        "human": HumanNode("s"),
        "graph": SubgraphNode("s", PromptGraph("inner", nodes=[guard])),
        "graph with a human": SubgraphNode("s", PromptGraph("inner", nodes=[human])),
        "parallel": ParallelNode("s", [guard]),
        "loop": LoopNode("s", guard, until=lambda result: True),
        "retry": RetryNode("s", guard, max_attempts=1),
        "deep": SubgraphNode("s", PromptGraph("i", nodes=[RetryNode("r", ParallelNode("p", [human]))])),
    }


KINDS = list(kinds())


def published(kind: str, output: Any, **keywords: Any) -> tuple[PromptGraph, list[str]]:
    """draft → s → publish, and what was published."""
    done: list[str] = []

    def publish(state: Any) -> str:
        done.append("published")
        return "published"

    draft = PromptNode("draft", postprocessor=lambda said: output, **keywords)
    nodes = [draft, kinds()[kind], FunctionNode("publish", publish)]
    return PromptGraph("g", nodes=nodes).sequential("draft", "s", "publish"), done


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["routes", "edge", "terminal"])
async def test_the_model_does_not_get_round_it(kind: str, how: str) -> None:
    """Whatever lets the model name another target: none of them leads past `s`."""
    keywords: dict[str, Any] = {"routes": {"routes": ["publish"]}, "terminal": {"is_terminal": True}}
    goto = "__end__" if how == "terminal" else "publish"
    graph, done = published(kind, {"goto": goto, "text": "hi"}, **keywords.get(how, {}))
    if how == "edge":
        graph.when("draft", "publish", lambda result: False)
    result = await PromptGraphEngine(graph, ScriptedProvider("x", repeat=True)).ainvoke("q")
    assert "s" in result.report.nodes_visited
    assert (done, result.output) == ([], None)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_graph_action_does_not_get_round_it(kind: str) -> None:
    actions = [
        {"op": "add_edge", "from": "draft", "to": "publish"},
        {"op": "remove_edge", "from": "draft", "to": "s"},
    ]
    graph, done = published(kind, {"_graph_action": actions, "text": "hi"})
    engine = PromptGraphEngine(graph, ScriptedProvider("x", repeat=True), allow_self_modification=True)
    result = await engine.ainvoke("q")
    assert [mutation.applied for mutation in result.report.mutations] == [False, False]
    assert (done, result.output) == ([], None)


async def test_a_loop_whose_guard_refused_to_the_end_lets_nobody_through() -> None:
    """It fails, and only ways for failures lead on."""
    done: list[str] = []
    guard = GuardNode("guard", guards=[Guard(refuses, "retry", max_retries=9)])
    loop = LoopNode("s", [PromptNode("draft"), guard], until=lambda result: True, max_loops=2)
    publish = FunctionNode("publish", lambda state: done.append("published"))
    graph = PromptGraph("g", nodes=[loop, publish]).sequential("s", "publish")
    result = await PromptGraphEngine(graph, ScriptedProvider("x", repeat=True)).ainvoke("q")
    assert (done, result.output) == ([], None)
    assert result.report.error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nested", [False, True])
async def test_a_limit_before_a_guard_does_not_let_the_draft_out(kind: str, nested: bool) -> None:
    """What was said last is no answer while a guard or a human has not had its say."""
    graph, done = published(kind, "a draft")
    if nested:
        graph = PromptGraph("outer", nodes=[SubgraphNode("inner", graph)])
    engine = PromptGraphEngine(graph, ScriptedProvider("x", repeat=True), max_iterations=1 + nested)
    result = await engine.ainvoke("q")
    assert (done, result.output, result.report.stop_reason) == ([], None, "max_iterations")
    assert "draft" not in result.text


def test_a_guard_that_the_model_may_leave_out_is_a_problem() -> None:
    """In an autonomous graph and in a pool; what a node brings along is none."""
    guard = GuardNode("guard", guards=[refuses])
    work = PromptNode("work", guards=[refuses])
    whole = SubgraphNode("whole", PromptGraph("i", nodes=[PromptNode("p"), guard]).always("p", "guard"))
    (problem,) = PromptGraph.from_pool([work, guard]).validate()
    assert "guard" in problem
    assert "a guard in a pool has no effect" in problem
    (problem,) = PromptGraph("g", nodes=[AutonomousNode("a", [work, guard])]).validate()
    assert "a guard in a pool has no effect" in problem
    assert PromptGraph.from_pool([work, whole, HumanNode("ask")]).validate() == []


# -- what a person said ------------------------------------------------------------------------------------

UNCLEAR: list[Any] = [
    *(HumanDecision(said) for said in ("reject", "Deny", "APPROVE", "", None, True, ["approve"])),  # type: ignore[arg-type]
    HumanDecision("answer"),
    {"decision": "answer"},
    {"decision": "answer", "answer": None},
    {"decision": "DENY"},
    {"decision": ["approve"]},
    {},
    *("Deny", " deny", "deny\n", "no", "No.", "NO!", "denied", "Rejected", "reject", "false", "", "  "),
    *(None, False, 0, 1, [], object()),
]


@pytest.mark.parametrize("said", UNCLEAR, ids=lambda said: type(said).__name__)
@pytest.mark.parametrize("kept", [False, True])
async def test_what_is_not_clearly_an_approval_or_an_answer_is_a_denial(said: Any, kept: bool) -> None:
    """From a handler, and as a decision that was kept under its ticket."""
    graph = PromptGraph("g", nodes=[HumanNode("h"), FunctionNode("publish", lambda state: "published")])
    graph.always("h", "publish")
    handler: Any = None if kept else (lambda request: said)
    engine = PromptGraphEngine(graph, human_handler=handler)
    result = await engine.ainvoke("q")
    if kept:
        ticket = result.context["_human_ticket"]
        result = await engine.ainvoke("q", context={"_human_decisions": {ticket: said}})
    assert (result.output, result.report.stop_reason) == (None, "human_denied")


@pytest.mark.parametrize(
    ("said", "output"),
    [
        (True, "q"),
        ("approve", "q"),
        (" Approve ", "q"),
        (HumanDecision("approve"), "q"),
        ({"decision": "approve"}, "q"),
        ("No problem, send it", "No problem, send it"),
        (HumanDecision("answer", "mine"), "mine"),
        ({"decision": "answer", "answer": "no"}, "no"),
        ({"decision": "answer", "answer": False}, False),
    ],
)
async def test_a_clear_decision_goes_on_with_what_was_approved_or_answered(said: Any, output: Any) -> None:
    graph = PromptGraph("g", nodes=[HumanNode("h", output_key="kept", input_keys=["draft"])])
    engine = PromptGraphEngine(graph, human_handler=lambda request: said)
    result = await engine.ainvoke("?", context={"draft": "q"})
    assert (result.context["kept"], result.report.stop_reason) == (output, "completed")
