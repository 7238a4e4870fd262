"""The reasoning controller: evaluation and routes (behaviours 30 to 39)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astromesh.graph.reasoning.rules import Facts, by_rule, is_stalled, route
from astromesh.testing import RecordingTool
from tests.unit.graph.reasoning_runs import (
    COMPLEX,
    DRAFT,
    LOOKUP,
    SIMPLE,
    STEP,
    SURE,
    UNSURE,
    reason,
)

DECOMPOSE_ONLY = {"strategies": ["decompose"]}
NO_SWITCH = {"budgets": {"strategy_switches": 0}}


@pytest.mark.parametrize(("said", "kept"), [(7, 1.0), (-3, 0.0), (0.75, 0.75), (1, 1.0)])
async def test_30_confidence_is_kept_within_0_and_1(said: float, kept: float) -> None:
    done = await reason(evaluate_progress={**SURE, "confidence": said, "done": True})
    assert done.final["confidence"] == kept
    assert done.final["errors"] == []


@pytest.mark.parametrize("said", ["NaN", "Infinity", '"high"', "null", "true", "[0.9]"])
async def test_30_what_is_no_number_is_an_error_and_changes_nothing(said: str) -> None:
    done = await reason(
        settings=DECOMPOSE_ONLY,
        evaluate_progress=({**UNSURE, "confidence": 0.4}, f'{{"confidence": {said}, "done": true}}'),
    )
    assert done.final["confidence"] == 0.4
    assert any("the confidence is not a number" in error for error in done.final["errors"])


async def test_31_confidence_at_the_threshold_without_gaps_leads_to_the_draft() -> None:
    done = await reason(evaluate_progress={**SURE, "confidence": 0.7})
    assert done.path.count("propose_next_step") == 1
    assert done.end == ("ok", "answer_ready")


async def test_31_the_threshold_is_the_operators() -> None:
    done = await reason(settings={"threshold": 0.95, **NO_SWITCH})
    assert done.end == ("partial", "insufficient_evidence")


@pytest.mark.parametrize(
    "answers",
    [
        {"propose_next_step": {"kind": "done"}, "evaluate_progress": UNSURE},
        {"evaluate_progress": {**UNSURE, "done": True}},
    ],
    ids=["the planner", "the judge"],
)
async def test_32_where_no_step_would_help_the_draft_is_written_and_gaps_make_it_partial(
    answers: dict[str, Any],
) -> None:
    done = await reason(**answers)
    assert done.end == ("partial", "insufficient_evidence")
    assert done.final["answer"] == f"{DRAFT}\n\nNot established: file size"
    assert done.path.count("evaluate_progress") == 1


async def test_33_gaps_and_steps_left_lead_to_another_step() -> None:
    done = await reason(evaluate_progress=({**UNSURE, "confidence": 0.9}, SURE))
    assert done.path.count("propose_next_step") == 2
    assert done.end == ("ok", "answer_ready")


@pytest.mark.parametrize("switches", [0, 1, 2])
async def test_34_a_stall_leads_to_as_many_switches_as_there_are(switches: int) -> None:
    done = await reason(
        evaluate_progress=UNSURE,
        tools=[RecordingTool("lookup")],
        settings={"budgets": {"strategy_switches": switches, "steps": 40, "model_calls": 200}},
    )
    assert done.path.count("switch_strategy") == switches
    assert done.final["budget_used"]["strategy_switches"] == switches
    assert len(set(done.strategies)) == len(done.strategies) == switches + 1


async def test_34_a_declared_mismatch_leads_to_a_switch_at_once() -> None:
    done = await reason(evaluate_progress=({**UNSURE, "mismatch": True}, SURE))
    assert done.path.index("switch_strategy") == done.path.index("evaluate_progress") + 1
    assert done.end == ("ok", "answer_ready")


def test_34_a_stall_is_no_gain_over_so_many_evaluations() -> None:
    assert not is_stalled([0.0], 0.05, 2)
    assert is_stalled([0.3, 0.0, 0.049], 0.05, 2)
    assert not is_stalled([0.0, 0.05], 0.05, 2)


async def test_35_a_stall_without_a_switch_ends_with_what_there_is() -> None:
    done = await reason(evaluate_progress=UNSURE, settings=NO_SWITCH)
    assert done.end == ("partial", "insufficient_evidence")
    assert done.path.count("evaluate_progress") == 3
    assert done.final["knowledge_gaps"] == ["file size"]


async def test_36_a_switch_resets_the_stall_and_never_goes_back_or_to_direct() -> None:
    done = await reason(
        evaluate_progress=UNSURE,
        settings={"budgets": {"strategy_switches": 5, "steps": 40, "model_calls": 200}},
    )
    assert "direct" not in done.strategies
    assert len(set(done.strategies)) == len(done.strategies)
    switched = done.path.index("switch_strategy")
    assert done.path[switched + 1 : switched + 4] == [
        "propose_next_step",
        "execute_reasoning_step",
        "evaluate_progress",
    ]


@given(
    names=st.lists(
        st.sampled_from(["direct", "decompose", "react_tool_loop", "critique_and_revise"]), unique=True
    ),
    risk=st.sampled_from(["low", "medium", "high"]),
    needs=st.lists(st.just("lookup"), max_size=1),
)
def test_36_no_rule_sends_a_complex_task_direct(names: list[str], risk: str, needs: list[str]) -> None:
    chosen = by_rule(names, {**COMPLEX, "risk": risk, "tool_needs": needs})
    assert chosen is None or chosen[0] != "direct"
    assert (chosen is None) == (set(names) <= {"direct"})


async def test_36_after_a_switch_the_new_strategy_has_its_own_evaluations_before_it_stalls() -> None:
    done = await reason(
        evaluate_progress=UNSURE,
        tools=[RecordingTool("lookup")],
        settings={"strategies": ["decompose", "react_tool_loop"], "budgets": {"steps": 40}},
    )
    switched = done.path.index("switch_strategy")
    assert done.path[:switched].count("evaluate_progress") == 3
    assert done.path[switched:].count("evaluate_progress") == 2


async def test_36_a_direct_answer_that_does_not_hold_goes_over_to_another_strategy() -> None:
    done = await reason(
        analyze_task=SIMPLE,
        select_reasoning_strategy={"strategy": "direct"},
        evaluate_progress=(UNSURE, SURE),
    )
    assert done.strategies == ["direct", "decompose"]
    assert done.end == ("ok", "answer_ready")


async def test_37_an_exhausted_budget_ends_partial_and_says_what_is_missing() -> None:
    done = await reason(
        evaluate_progress=({**UNSURE, "confidence": 0.2}, {**UNSURE, "confidence": 0.4}),
        settings={"budgets": {"steps": 2}},
    )
    assert done.end == ("partial", "budget_exhausted")
    assert done.final["knowledge_gaps"] == ["file size"]
    assert done.path[-2:] == ["evaluate_progress", "finalize_response"]
    assert done.final["answer"] == (
        "I could not finish this: the budget for this task is used up.\n\n"
        "What is established so far:\n- The parser exists.\n\nWhat is missing:\n- file size"
    )


BLOCKED = Facts(blocked="tool_unavailable")


@pytest.mark.parametrize(
    ("facts", "name", "reason_"),
    [
        (Facts(supported=True, has_steps=False), "draft", ""),
        (Facts(supported=True, blocked="tool_unavailable"), "draft", ""),
        (Facts(done=True, has_steps=False), "draft", ""),
        (Facts(has_steps=False, stalled=True, can_switch=True), "partial", "budget_exhausted"),
        (Facts(has_model_calls=False, mismatch=True, can_switch=True), "partial", "budget_exhausted"),
        (Facts(model_failing=True), "partial", "insufficient_evidence"),
        (BLOCKED, "partial", "tool_unavailable"),
        (BLOCKED._replace(can_switch=True), "switch_strategy", ""),
        (Facts(stalled=True, can_switch=True), "switch_strategy", ""),
        (Facts(mismatch=True, can_switch=True), "switch_strategy", ""),
        (Facts(strategy_exhausted=True, can_switch=True), "switch_strategy", ""),
        (Facts(can_switch=True), "continue", ""),
        (Facts(mismatch=True), "continue", ""),
        (Facts(stalled=True), "draft", ""),
        (Facts(strategy_exhausted=True), "draft", ""),
        (Facts(), "continue", ""),
    ],
)
def test_38_the_priority_of_routes_is_fixed(facts: Facts, name: str, reason_: str) -> None:
    assert route(facts) == (name, reason_)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"evaluate_progress": SURE, "settings": {"budgets": {"steps": 1}}}, "draft_answer"),
        ({"evaluate_progress": {**UNSURE, "mismatch": True}, "settings": {"budgets": {"steps": 1}}},
         "finalize_response"),
        ({"evaluate_progress": ({**UNSURE, "mismatch": True}, SURE)}, "switch_strategy"),
        ({"evaluate_progress": (UNSURE, SURE)}, "propose_next_step"),
    ],
    ids=["answerable over stop", "stop over switch", "switch over continue", "continue"],
)  # fmt: skip
async def test_38_each_pair_of_neighbours_in_a_run(answers: dict[str, Any], expected: str) -> None:
    done = await reason(**answers)
    assert done.path[done.path.index("evaluate_progress") + 1] == expected


async def test_39_the_route_decision_is_the_way_taken_and_stands_in_the_trace() -> None:
    done = await reason(
        evaluate_progress=(UNSURE, UNSURE, UNSURE, SURE),
        propose_next_step=STEP,
        tools=[RecordingTool("lookup")],
    )
    ways = {"draft_answer": "draft", "switch_strategy": "switch_strategy", "propose_next_step": "continue"}
    taken = [
        ways[after]
        for node, after in zip(done.path, done.path[1:], strict=False)
        if node == "evaluate_progress"
    ]
    traced = [e["result"].split(":")[0] for e in done.rc.step_trace if e["step"] == "evaluate_progress"]
    assert taken == traced == ["continue", "continue", "switch_strategy", "draft"]
    assert done.rc.route_decision == "draft"


async def test_39_a_refused_tool_is_evaluated_too() -> None:
    done = await reason(propose_next_step=LOOKUP, settings=NO_SWITCH)
    assert done.rc.step_trace[-1] == {"step": "evaluate_progress", "result": "partial: confidence 0.00"}
