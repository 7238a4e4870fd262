"""The reasoning controller: analysis, selection, working memory (behaviours 8 to 17)."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.errors import ProviderUnavailable
from astromesh.testing import RecordingTool
from tests.unit.graph.reasoning_runs import (
    COMPLEX,
    LOOKUP,
    NEEDS_TOOL,
    RISKY,
    SIMPLE,
    STEP,
    SURE,
    UNSURE,
    reason,
)


def choice(name: str) -> dict[str, str]:
    return {"strategy": name, "reason": "It fits."}


async def test_08_the_profile_says_what_the_task_is_like() -> None:
    profile = {**COMPLEX, "tool_needs": ["lookup"], "evidence_needs": ["size"], "output_type": "estimate"}
    done = await reason(analyze_task=profile)
    assert done.rc.task_profile == {
        "complexity": "complex",
        "domain": "planning",
        "risk": "medium",
        "tool_needs": ["lookup"],
        "evidence_needs": ["size"],
        "output_type": "estimate",
        "needs_critique": False,
    }


@pytest.mark.parametrize(
    "answer", ["I would say complex.", "{}", '{"complexity": "huge"}', "[1]", ProviderUnavailable("down")]
)
async def test_09_a_failed_analysis_is_an_error_and_a_conservative_profile(answer: Any) -> None:
    done = await reason(analyze_task=answer)
    assert done.rc.task_profile["complexity"] == "complex"
    assert any(error.startswith("analyze_task: ") for error in done.final["errors"])
    assert done.end == ("ok", "answer_ready")


async def test_10_a_simple_task_goes_direct_in_one_step_and_is_ok() -> None:
    done = await reason(analyze_task=SIMPLE, select_reasoning_strategy=choice("direct"))
    assert done.strategies == ["direct"]
    assert done.final["budget_used"]["steps"] == 1
    assert done.end == ("ok", "answer_ready")
    assert "propose_next_step" not in done.asked


async def test_11_a_task_of_several_parts_is_decomposed_into_evaluated_steps() -> None:
    done = await reason(
        propose_next_step=({**STEP, "step": "workstreams"}, {**STEP, "step": "risks"}),
        evaluate_progress=({**UNSURE, "confidence": 0.5}, SURE),
    )
    assert [entry["step"] for entry in done.final["trace_summary"]] == ["workstreams", "risks"]
    assert done.strategies == ["decompose"]
    assert done.end == ("ok", "answer_ready")


@pytest.mark.parametrize(
    ("tools", "settings", "request_", "expected"),
    [
        (["lookup"], {}, None, "react_tool_loop"),
        ([], {}, None, "decompose"),
        (["other"], {}, None, "decompose"),
        (["lookup"], {"allowed_tools": ["other"]}, None, "decompose"),
        (["lookup"], {}, {"allowed_tools": []}, "decompose"),
        (["lookup"], {"budgets": {"tool_calls": 0}}, None, "decompose"),
    ],
)
async def test_12_the_tool_loop_needs_a_tool_that_is_registered_and_allowed(
    tools: list[str], settings: Any, request_: Any, expected: str
) -> None:
    done = await reason(
        tools=[RecordingTool(name) for name in tools],
        settings=settings,
        request=request_,
        analyze_task=NEEDS_TOOL,
        select_reasoning_strategy=choice("react_tool_loop"),
        propose_next_step=(STEP,),
    )
    assert done.strategies == [expected]
    assert done.end == ("ok", "answer_ready")


async def test_13_a_risky_task_is_drafted_early_and_criticised() -> None:
    done = await reason(
        analyze_task=RISKY,
        select_reasoning_strategy=choice("critique_and_revise"),
        evaluate_progress={**UNSURE, "gaps": []},
    )
    assert done.strategies == ["critique_and_revise"]
    assert done.path.count("execute_reasoning_step") == 1
    assert "critique_answer" in done.asked


async def test_13_without_a_critique_in_the_budget_that_strategy_is_not_there() -> None:
    done = await reason(
        analyze_task=RISKY,
        select_reasoning_strategy=choice("critique_and_revise"),
        settings={"budgets": {"critique_rounds": 0}},
    )
    assert done.strategies == ["decompose"]


@pytest.mark.parametrize("named", ["intuition", "", "DIRECT", 7])
async def test_14_a_selector_that_names_no_available_strategy_is_an_error(named: Any) -> None:
    done = await reason(select_reasoning_strategy={"strategy": named}, analyze_task=SIMPLE)
    assert any("is not an available strategy" in error for error in done.final["errors"])
    assert done.strategies == ["direct"]


@pytest.mark.parametrize("answer", ["no JSON", {"strategy": "intuition"}, ProviderUnavailable("down")])
async def test_15_a_failed_selection_goes_direct_for_a_simple_task(answer: Any) -> None:
    done = await reason(analyze_task=SIMPLE, select_reasoning_strategy=answer)
    assert done.strategies == ["direct"]
    assert done.end == ("ok", "answer_ready")


@pytest.mark.parametrize("answer", ["no JSON", {"strategy": "intuition"}, ProviderUnavailable("down")])
async def test_15_a_failed_selection_leaves_a_complex_task_partial_and_never_direct(answer: Any) -> None:
    done = await reason(select_reasoning_strategy=answer)
    assert done.end == ("partial", "strategy_unavailable")
    assert "direct" not in done.strategies
    assert done.final["answer"].startswith("Yes, within a limited scope.")


async def test_15_an_operator_may_want_it_failed() -> None:
    done = await reason(select_reasoning_strategy="no JSON", settings={"on_strategy_unavailable": "fail"})
    assert done.end == ("failed", "strategy_unavailable")
    assert done.path[-2:] == ["select_reasoning_strategy", "finalize_response"]


async def test_16_the_history_has_one_entry_for_each_choice_and_switch() -> None:
    done = await reason(evaluate_progress=(UNSURE, UNSURE, UNSURE, SURE), propose_next_step=STEP)
    history = done.final["strategy_history"]
    assert [set(entry) for entry in history] == [{"strategy", "reason"}] * 2
    assert done.final["selected_strategy"] == history[-1]["strategy"] != history[0]["strategy"]


async def test_17_working_memory_is_seeded_and_evidence_is_observed_with_its_source() -> None:
    done = await reason(
        analyze_task={**COMPLEX, "assumptions": ["schema is stable"], "open_questions": ["file size?"]},
        request={"evidence": [{"source": "notes.md", "content": "The parser exists."}, "Two engineers."]},
    )
    memory = done.rc.working_memory
    assert memory["subgoals"] == ["work", "risks"]
    assert memory["assumptions"] == ["schema is stable"]
    assert memory["open_questions"] == ["file size?"]
    assert done.final["observations"] == [
        {"source": "notes.md", "result": "The parser exists.", "success": True},
        {"source": "evidence 2", "result": "Two engineers.", "success": True},
    ]
    assert "Evidence from notes.md:\nThe parser exists." in done.request("draft_answer").messages[-1].content


@pytest.mark.parametrize(
    "evidence", ["The parser exists.", {"notes.md": "The parser exists."}, [{"text": "The parser exists."}]]
)
async def test_17_evidence_may_be_a_text_an_object_or_a_list(evidence: Any) -> None:
    done = await reason(request={"evidence": evidence})
    assert [seen["result"] for seen in done.final["observations"]] == ["The parser exists."]


async def test_the_tools_are_shown_to_the_planner_and_the_proposal_may_be_a_tool() -> None:
    done = await reason(
        tools=[RecordingTool("lookup", description="Finds passages.")],
        propose_next_step=(LOOKUP, STEP),
        evaluate_progress=(UNSURE, SURE),
    )
    assert "lookup: Finds passages." in done.request("analyze_task").messages[-1].content
