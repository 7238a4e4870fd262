"""The reasoning controller: input and setup (behaviours 1 to 7)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.graph.reasoning import BUDGETS, InvalidSettings, ReasoningSettings, ReasoningState
from astromesh.graph.reasoning.rules import KEYS
from astromesh.testing import RecordingTool
from tests.unit.graph.reasoning_runs import COMPLEX, reason

FIELDS = [
    "input",
    "normalized_input",
    "constraints",
    "engine_config",
    "available_strategies",
    "selected_strategy",
    "strategy_history",
    "task_profile",
    "reasoning_budget",
    "budget_used",
    "working_memory",
    "next_step",
    "step_trace",
    "tool_requests",
    "observations",
    "knowledge_gaps",
    "errors",
    "confidence",
    "route_decision",
    "draft_answer",
    "critique",
    "revised_answer",
    "reasoning_summary",
    "termination_reason",
    "status",
    "final_output",
]


@pytest.mark.parametrize("task", ["", "   ", "\n\t "])
async def test_01_blank_input_runs_two_nodes_and_asks_no_model(task: str) -> None:
    done = await reason(task)
    assert done.path == ["prepare_task", "finalize_response"]
    assert done.end == ("invalid_input", "invalid_input")
    assert done.model.requests == []
    assert done.report.stop_reason == "completed"


@pytest.mark.parametrize("task", [42, None, ["a"], {"a": 1}])
async def test_02_input_that_is_no_text_is_invalid_and_recorded(task: Any) -> None:
    done = await reason("ignored", context={"input": task})
    assert done.end == ("invalid_input", "invalid_input")
    assert type(task).__name__ in done.final["errors"][0]
    assert done.model.requests == []


async def test_03_the_input_is_normalized_beside_itself() -> None:
    done = await reason("  What   is\n\nthis? ")
    assert done.rc.input == "  What   is\n\nthis? "
    assert done.rc.normalized_input == "What is this?"
    assert done.request("analyze_task").messages[-1].content.startswith("What is this?")


async def test_04_all_26_fields_exist_and_no_two_runs_share_any() -> None:
    assert [f.name for f in fields(ReasoningState)] == FIELDS
    assert len(FIELDS) == 26
    first, second = await reason(""), await reason("")
    for name in FIELDS:
        one, other = getattr(first.rc, name), getattr(second.rc, name)
        assert not isinstance(one, dict | list) or one is not other, name


async def test_05_budget_overrides_merge_over_the_configuration_over_the_defaults() -> None:
    done = await reason(settings={"budgets": {"steps": 4, "tool_calls": 3}}, request={"budget": {"steps": 2}})
    assert done.rc.reasoning_budget == {**BUDGETS, "steps": 2, "tool_calls": 3}
    assert done.final["errors"] == []


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ({"stepz": 3}, "no budget 'stepz'"),
        ({"steps": -1}, "whole number"),
        ({"steps": True}, "whole number"),
        ({"steps": 2.5}, "whole number"),
        ({"steps": "2"}, "whole number"),
        ({"steps": None}, "whole number"),
        ({"steps": 7}, "may not be raised above 6"),
        ([1], "must be an object"),
    ],
)
async def test_05_a_wrong_budget_override_is_ignored_with_an_error(override: Any, fault: str) -> None:
    done = await reason(request={"budget": override})
    assert done.rc.reasoning_budget == BUDGETS
    assert fault in " ".join(done.final["errors"])


async def test_06_budgets_in_the_constraints_count_like_overrides() -> None:
    done = await reason(
        request={"constraints": {"budget": {"steps": 1, "nope": 1}}, "budget": {"steps": 3, "tool_calls": 0}}
    )
    assert done.rc.reasoning_budget == {**BUDGETS, "steps": 1, "tool_calls": 0}
    assert "no budget 'nope'" in " ".join(done.final["errors"])


async def test_07_unknown_strategies_are_dropped_with_an_error() -> None:
    done = await reason(request={"available_strategies": ["decompose", "intuition"]})
    assert done.rc.available_strategies == ["decompose"]
    assert "The strategy 'intuition' does not exist; it is ignored." in done.final["errors"]
    assert done.end == ("ok", "answer_ready")


@pytest.mark.parametrize("names", [["intuition"], [], "decompose", 5, [1]])
async def test_07_where_no_strategy_remains_the_run_is_partial(names: Any) -> None:
    done = await reason(request={"available_strategies": names})
    assert done.end == ("partial", "strategy_unavailable")
    assert done.path[-2:] == ["select_reasoning_strategy", "finalize_response"]
    assert done.final["selected_strategy"] is None


async def test_07_a_request_only_narrows_the_configured_strategies() -> None:
    done = await reason(
        settings={"strategies": ["decompose"]}, request={"available_strategies": ["direct", "decompose"]}
    )
    assert done.rc.available_strategies == ["decompose"]
    assert "is not available here" in " ".join(done.final["errors"])


@pytest.mark.parametrize(
    ("settings_", "fault"),
    [
        ({"strategies": ["guess"]}, "strategies.0: Input should be 'direct'"),
        ({"strategies": []}, "strategies: .* at least 1"),
        ({"budgets": {"step": 1}}, "budgets.step: "),
        ({"budgets": {"steps": -1}}, "budgets.steps: .* greater than or equal to 0"),
        ({"threshold": 1.5}, "threshold"),
        ({"stall_evaluations": 0}, "stall_evaluations"),
        ({"tool_policy": {"on_disallowed": "shrug"}}, "on_disallowed"),
        ({"on_strategy_unavailable": "ok"}, "on_strategy_unavailable"),
        ({"treshold": 0.5}, "treshold: "),
        ({"a": 1, "b": 1}, "a: Extra inputs are not permitted; b: Extra"),
    ],
)
def test_wrong_settings_are_refused_when_the_graph_is_made(settings_: Any, fault: str) -> None:
    with pytest.raises(InvalidSettings, match=fault):
        ReasoningSettings.of(settings_)


def test_settings_of_an_earlier_version_are_read() -> None:
    assert ReasoningSettings.of({"on_disallowed": "block"}).tool_policy.on_disallowed == "block"


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    request=junk
    | st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("constraints", "evidence", "allowed_tools", "available_strategies", "budget", "route"), junk
        ),
    )
)
async def test_whatever_a_request_says_about_its_reasoning_the_run_reports(request: Any) -> None:
    """`context.reasoning` comes from the outside: nothing in it breaks a run or widens what it may do."""
    done = await reason(
        request=request, tools=[RecordingTool("lookup")], settings={"allowed_tools": []}, analyze_task=COMPLEX
    )
    assert set(done.final) == set(KEYS)
    assert done.rc.engine_config["tools"] == {}
    assert all(done.rc.reasoning_budget[key] <= cap for key, cap in BUDGETS.items())
