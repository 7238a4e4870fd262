"""The reasoning controller: bounds, determinism, the graph (behaviours 51 to 60, section 3)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.errors import ProviderUnavailable
from astromesh.graph import (
    CycleDetectionHook,
    NodeFlag,
    PromptGraph,
    PromptGraphEngine,
    SubgraphNode,
    prebuilt,
)
from astromesh.graph.hooks import BudgetHook
from astromesh.graph.ledger import RunLedger
from astromesh.graph.reasoning import ReasoningSettings, reasoning_controller
from astromesh.graph.reasoning.rules import KEYS
from astromesh.graph.reasoning.setup import PrepareTask
from astromesh.graph.scope import Scope
from astromesh.testing import RecordingTool, Reply, ScriptedProvider
from astromesh.types import Message, ToolCall, Usage
from tests.unit.graph.reasoning_runs import (
    ASKED,
    COMPLEX,
    LOOKUP,
    NEEDS_TOOL,
    SIMPLE,
    STEP,
    SURE,
    TASK,
    UNSURE,
    model_of,
    node_of,
    reason,
    said,
)

ROOT = Path(__file__).parents[3]
#: what a random model says at any node: sound answers of every node, and nonsense
SAYINGS = st.one_of(
    st.sampled_from(
        [
            COMPLEX, SIMPLE, NEEDS_TOOL, STEP, LOOKUP, {**LOOKUP, "tool": "delete_all"}, {"kind": "done"},
            SURE,
            {**UNSURE, "mismatch": True}, {"strategy": "decompose"}, {"strategy": "react_tool_loop"},
            {"strategy": "critique_and_revise"}, {"strategy": "direct"}, {"acceptable": False},
            {"summary": "s", "conclusions": ["c"]}, "prose", "", "{", ProviderUnavailable("down"),
            ToolCall("c", "lookup", '{"query": "x"}'), ToolCall("c", "lookup", "{"), ToolCall("c", "nope"),
        ]
    ),
    st.builds(
        lambda c, g: {"confidence": c, "gaps": g}, st.floats(), st.lists(st.text(max_size=5), max_size=2)
    ),
)  # fmt: skip
BUDGETS = st.fixed_dictionaries(
    {
        "steps": st.integers(0, 5),
        "tool_calls": st.integers(0, 3),
        "critique_rounds": st.integers(0, 2),
        "strategy_switches": st.integers(0, 3),
        "model_calls": st.integers(0, 14),
    }
)


@settings(max_examples=250, deadline=None)
@given(budgets=BUDGETS, sayings=st.lists(SAYINGS, min_size=1, max_size=12), tool=st.booleans())
async def test_51_and_52_no_budget_is_exceeded_and_every_run_ends_within_its_bound(
    budgets: dict[str, int], sayings: list[Any], tool: bool
) -> None:
    """Whatever the model says. The bound on node executions is that of behaviour 52."""
    lookup = RecordingTool("lookup", "42" if tool else RuntimeError("broken"))
    model = ScriptedProvider(*(said(line) for line in sayings), repeat=True)
    done = await reason(model=model, tools=[lookup], settings={"budgets": budgets})
    used = done.final["budget_used"]
    assert set(used) == set(budgets)
    assert all(used[key] <= cap for key, cap in budgets.items())
    assert used["tool_calls"] == len(lookup.calls) == len(done.report.tool_calls)
    assert used["model_calls"] == len(model.requests)
    acted = ("execute_reasoning_step", "run_tool_action")
    assert used["steps"] == sum(done.path.count(node) for node in acted)
    assert used["strategy_switches"] == done.path.count("switch_strategy")
    blocked = sum(asked["decision"] == "refused" for asked in done.rc.tool_requests)
    loops = budgets["steps"] + budgets["tool_calls"] + blocked
    # one more round where the planner says that it is done, or nothing is left to propose
    assert len(done.path) <= 8 + 3 * (loops + 1) + 2 * budgets["strategy_switches"]
    assert len(done.path) <= ReasoningSettings(budgets=budgets).max_iterations
    assert done.report.stop_reason == "completed"
    assert set(done.final) == set(KEYS)
    json.dumps(done.final)


async def test_52_a_model_that_always_wants_another_step_ends() -> None:
    done = await reason(evaluate_progress=lambda request: {**UNSURE, "confidence": 0.1})
    assert done.final["status"] == "partial"
    assert len(done.path) <= ReasoningSettings().max_iterations


async def test_53_the_same_answers_give_the_same_report_and_path() -> None:
    answers: dict[str, Any] = {
        "analyze_task": NEEDS_TOOL,
        "select_reasoning_strategy": {"strategy": "react_tool_loop"},
        "propose_next_step": (LOOKUP, STEP, {"kind": "done"}),
        "evaluate_progress": (UNSURE, UNSURE, SURE),
        "critique_answer": {"acceptable": False},
    }
    first, second = [await reason(tools=[RecordingTool("lookup")], **answers) for _ in range(2)]
    assert first.final == second.final
    assert first.path == second.path
    assert [r.messages for r in first.model.requests] == [r.messages for r in second.model.requests]


@pytest.mark.parametrize("error", [ProviderUnavailable("down"), RuntimeError("odd")])
async def test_54_with_every_model_call_failing_the_run_is_partial(error: Exception) -> None:
    failing: Any = dict.fromkeys(ASKED, error)
    done = await reason(**failing)
    assert done.final["status"] == "partial"
    assert len(done.model.requests) == 3  # then nobody is asked any more
    assert done.final["answer"].startswith("I could not finish this")


WAYS = ("route", "_next", "goto", "next_node", "_graph_action")


@pytest.mark.parametrize("key", WAYS)
async def test_55_no_field_of_a_models_answer_changes_the_path(key: str) -> None:
    value: Any = (
        {"op": "add_edge", "from": "prepare_task", "to": "x"} if key == "_graph_action" else "draft_answer"
    )
    usual = await reason()
    sound: dict[str, Any] = {"analyze_task": COMPLEX, "propose_next_step": STEP, "evaluate_progress": SURE}
    steered: dict[str, Any] = {node: {key: value, **answer} for node, answer in sound.items()}
    done = await reason(**steered, draft_answer=json.dumps({key: value}))
    assert done.path == usual.path
    assert done.report.mutations == []


def test_55_the_whole_graph_ignores_what_models_say_about_routes() -> None:
    assert reasoning_controller().routing == "edges_only"


async def test_56_the_controller_needs_no_network_and_no_tools() -> None:
    """The suite refuses every connection; this run has no tools at all."""
    assert (await reason()).end == ("ok", "answer_ready")


@pytest.mark.parametrize("most", range(1, 11))
async def test_57_a_run_that_the_engine_ends_early_reports_all_the_same(most: int) -> None:
    engine = PromptGraphEngine(reasoning_controller(), model_of(), max_iterations=most)
    result = await engine.ainvoke(TASK)
    assert set(result.output) == set(KEYS)
    assert result.report.nodes_visited[-1] == "finalize_response"
    if most < 10:
        assert result.report.stop_reason == "max_iterations"
        assert result.output["status"] == ("ok" if most == 9 else "partial")


class Stopping:
    """A hook that stops the run, or breaks, at a node."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self._name, self._error = name, error

    def pre_node(self, node: Any, state: Any) -> None:
        if node.name == self._name:
            if self._error:
                raise self._error
            state.stop("budget", "enough")


async def test_57_a_run_stopped_before_its_revision_does_not_state_what_was_found_unsupported() -> None:
    critique = {"acceptable": False, "unsupported_claims": ["It takes one day."]}
    done = await reason(
        hooks=[Stopping("revise_answer")], draft_answer="Yes. It takes one day.", critique_answer=critique
    )
    assert done.final["answer"] == "Yes."
    assert done.end == ("partial", "budget_exhausted")


@pytest.mark.parametrize("name", ["prepare_task", "analyze_task", "evaluate_progress", "critique_answer"])
async def test_57_a_hook_that_stops_the_run_leaves_a_report(name: str) -> None:
    done = await reason(hooks=[Stopping(name)])
    assert set(done.final) == set(KEYS)
    assert done.report.stop_reason == "budget"


async def test_57_a_budget_of_tokens_ends_in_fallbacks_and_a_report() -> None:
    reply = Reply(json.dumps(COMPLEX), usage=Usage(500, 500))
    done = await reason(analyze_task=reply, hooks=[BudgetHook(max_tokens=1000)])
    assert done.final["status"] == "partial"
    assert done.final["termination_reason"] in ("budget_exhausted", "strategy_unavailable")
    assert len(done.model.requests) == 1


async def test_57_a_cancelled_run_runs_the_finalizer() -> None:
    waiting = asyncio.Event()

    async def hang(request: Any) -> str:
        waiting.set()
        await asyncio.sleep(3600)
        return ""

    lines = model_of()
    model = ScriptedProvider(
        lambda r: hang(r) if "(node: draft_answer)" in r.messages[0].content else lines.complete(r),
        repeat=True,
    )
    engine = PromptGraphEngine(reasoning_controller(), model)
    run = engine.start([Message("user", TASK)], Scope())
    task = asyncio.create_task(run.execute())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.result is not None
    assert set(run.result.output) == set(KEYS)
    assert run.result.output["status"] == "partial"


async def test_58_runs_at_the_same_time_on_one_graph_do_not_meet() -> None:
    lines = model_of()

    async def later(request: Any) -> Any:
        await asyncio.sleep(0)
        return await lines.complete(request)

    engine = PromptGraphEngine(reasoning_controller(), ScriptedProvider(later, repeat=True))
    budgets = [{"steps": 1 + i % 3, "model_calls": 10 + i} for i in range(20)]
    results = await asyncio.gather(
        *(
            engine.ainvoke(f"Question {i}?", context={"reasoning": {"budget": budget}})
            for i, budget in enumerate(budgets)
        )
    )
    for i, result in enumerate(results):
        rc = result.context["rc"]
        assert rc.normalized_input == f"Question {i}?"
        assert rc.reasoning_budget["model_calls"] == 10 + i
        assert rc.budget_used["model_calls"] == 7
        assert result.output["status"] == "ok"


def test_59_the_page_says_that_appendix_f_is_a_reconstruction_and_no_code_needs_the_pdf() -> None:
    page = (ROOT / "docs" / "reasoning.md").read_text()
    assert "reconstruction" in page
    assert "Appendix F" in page
    sources = (ROOT / "astromesh" / "graph" / "reasoning").glob("*.py")
    assert not any(".pdf" in source.read_text().lower() for source in sources)


@pytest.mark.parametrize("calls", range(9))
async def test_60_a_model_budget_that_ends_at_any_node_gives_a_report(calls: int) -> None:
    done = await reason(settings={"budgets": {"model_calls": calls}}, critique_answer={"acceptable": False})
    assert set(done.final) == set(KEYS)
    assert len(done.model.requests) == done.final["budget_used"]["model_calls"] == min(calls, 8)
    assert done.final["status"] == ("ok" if calls >= 6 else "partial")


# -- section 3: the graph ----------------------------------------------------------------------------------


def test_it_is_one_graph_of_13_nodes_and_21_edges_with_a_finalizer() -> None:
    graph = prebuilt.reasoning_controller()
    assert list(graph.nodes) == [
        "prepare_task",
        "analyze_task",
        "select_reasoning_strategy",
        "prepare_working_memory",
        "propose_next_step",
        "execute_reasoning_step",
        "run_tool_action",
        "evaluate_progress",
        "switch_strategy",
        "draft_answer",
        "critique_answer",
        "revise_answer",
        "finalize_response",
    ]
    assert len(graph.edges) == 21
    assert graph.finalizer == "finalize_response"
    assert graph.validate() == []


def test_its_edges_are_tried_in_order_of_priority() -> None:
    edges = reasoning_controller().get_edges_from("evaluate_progress")
    assert [edge.target for edge in edges] == [
        "draft_answer",
        "finalize_response",
        "switch_strategy",
        "propose_next_step",
    ]


def test_its_nodes_have_the_flags_of_the_page() -> None:
    nodes = reasoning_controller().nodes
    flags = {name: node.flags - {NodeFlag.INJECT_TOOLS} for name, node in nodes.items()}
    lightweight, observable = {NodeFlag.LIGHTWEIGHT}, {NodeFlag.OBSERVABLE}
    stateful = ("prepare_working_memory", "propose_next_step", "execute_reasoning_step", "run_tool_action",
                "draft_answer", "revise_answer")  # fmt: skip
    assert flags == {
        "prepare_task": set(),
        "analyze_task": lightweight,
        "select_reasoning_strategy": lightweight,
        **{name: {NodeFlag.STATEFUL} for name in stateful},
        "evaluate_progress": observable,
        "switch_strategy": observable,
        "critique_answer": {NodeFlag.READONLY, NodeFlag.OBSERVABLE},
        "finalize_response": {NodeFlag.TERMINAL, NodeFlag.VALIDATE_OUTPUT},
    }


async def test_it_can_be_written_as_data_and_read_again() -> None:
    settings_ = {"budgets": {"steps": 3}, "tool_policy": {"on_disallowed": "block"}}
    kinds = {"prepare_task": PrepareTask}
    data = json.loads(json.dumps(reasoning_controller(settings_).to_config(kinds=kinds)))
    graph = PromptGraph.from_config(data, kinds=kinds)
    assert graph.to_config(kinds=kinds) == data
    result = await PromptGraphEngine(graph, model_of(propose_next_step=LOOKUP)).ainvoke(TASK)
    assert result.output["status"] == "blocked"
    assert result.context["rc"].reasoning_budget["steps"] == 3


@pytest.mark.parametrize("node", ["propose_next_step", "draft_answer"])
async def test_read_from_data_and_inside_another_graph_it_continues_where_it_was(
    tmp_path: Path, node: str
) -> None:
    """The nodes that have finished are read from the record, with the fields and the budgets they left."""
    reached = asyncio.Event()

    async def hang(request: Any) -> Any:
        if node_of(request) == node:
            reached.set()
            await asyncio.sleep(3600)
        return await model_of().complete(request)

    def engine(model: ScriptedProvider) -> PromptGraphEngine:
        inner = PromptGraph.from_config(json.loads(json.dumps(reasoning_controller().to_config())))
        outer = PromptGraph("outer", nodes=[SubgraphNode("inner", inner)])
        return PromptGraphEngine(outer, model, store=f"sqlite:{tmp_path / 'g.db'}")

    first = asyncio.create_task(engine(ScriptedProvider(hang, repeat=True)).ainvoke(TASK, run_id="first"))
    await reached.wait()
    model = model_of()
    result = await engine(model).resume("first")
    whole = await PromptGraphEngine(reasoning_controller(), model_of()).ainvoke(TASK)
    assert node_of(model.requests[0]) == node
    assert result.output == whole.output
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_its_loop_is_no_circle() -> None:
    done = await reason(
        hooks=[CycleDetectionHook()],
        settings={"strategies": ["decompose"], "budgets": {"steps": 12, "model_calls": 60}},
        evaluate_progress=tuple({**UNSURE, "confidence": 0.05 * i} for i in range(20)),
    )
    assert done.end == ("partial", "budget_exhausted")
    assert done.final["budget_used"]["steps"] == 12


async def test_inside_another_graph_it_counts_its_own_spending_and_leaves_the_ledger_as_it_was() -> None:
    inner = reasoning_controller({"budgets": {"model_calls": 9}})
    outer = PromptGraph("outer", nodes=[SubgraphNode("first", inner), SubgraphNode("second", inner)])
    outer.sequential("first", "second")
    ledger = RunLedger()
    engine = PromptGraphEngine(outer, model_of(), max_iterations=100)
    result = await engine.start([Message("user", TASK)], Scope(ledger=ledger)).execute()
    assert result.output["budget_used"]["model_calls"] == 7
    assert result.output["status"] == "ok"
    assert ledger.used["model_calls"] == 14
    assert ledger.caps == {}


async def test_a_surrounding_runs_budget_of_tokens_bounds_it_too() -> None:
    """Also when its own budget of tool calls is used up, which must not hide the other one."""
    ledger = RunLedger({"tokens": 1000})
    reply = Reply(json.dumps(COMPLEX), usage=Usage(500, 500))
    model = model_of(analyze_task=reply)
    engine = PromptGraphEngine(reasoning_controller({"budgets": {"tool_calls": 0}}), model)
    result = await engine.start([Message("user", TASK)], Scope(ledger=ledger)).execute()
    assert len(model.requests) == 1
    assert result.output["status"] == "partial"


async def test_the_conversation_ends_with_the_answer() -> None:
    result = await PromptGraphEngine(reasoning_controller(), model_of()).ainvoke(TASK)
    assert result.messages[-1] == Message("assistant", result.output["answer"])
