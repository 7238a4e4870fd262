"""The reasoning controller: propose, execute, tools (behaviours 18 to 29)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from astromesh.errors import ToolFailed
from astromesh.testing import RecordingTool, Reply, ScriptedTools
from astromesh.tools.toolbox import ToolBox
from astromesh.types import ToolCall
from tests.unit.graph.reasoning_runs import (
    LOOKUP,
    NEEDS_TOOL,
    STEP,
    SURE,
    TASK,
    UNSURE,
    Done,
    reason,
)

CALL = ToolCall("c1", "lookup", '{"query": "csv"}')
REACT: dict[str, Any] = {
    "analyze_task": NEEDS_TOOL,
    "select_reasoning_strategy": {"strategy": "react_tool_loop"},
}


def after(path: list[str], node: str) -> str:
    """What ran after the first visit of a node."""
    return path[path.index(node) + 1]


async def with_tool(answer: Any = "42", proposal: Any = LOOKUP, **more: Any) -> tuple[Done, RecordingTool]:
    """A run that calls the tool `lookup` once."""
    tool = RecordingTool("lookup", answer)
    more.setdefault("propose_next_step", (proposal, STEP))
    more.setdefault("evaluate_progress", (UNSURE, SURE))
    return await reason(**{"tools": [tool], **REACT, **more}), tool


@pytest.mark.parametrize("kind", ["decomposition", "analysis", "comparison", "synthesis_preparation"])
async def test_18_steps_of_reasoning_are_executed(kind: str) -> None:
    done = await reason(propose_next_step={"kind": kind, "step": "do it"})
    assert after(done.path, "propose_next_step") == "execute_reasoning_step"
    assert done.rc.next_step == {"kind": kind, "step": "do it"}


@pytest.mark.parametrize("kind", ["synthesis preparation", "Synthesis-Preparation", "synthesis"])
async def test_18_kinds_are_read_as_people_write_them(kind: str) -> None:
    done = await reason(propose_next_step={"kind": kind, "step": "do it"})
    assert done.rc.next_step == {"kind": "synthesis_preparation", "step": "do it"}


@pytest.mark.parametrize("proposal", [LOOKUP, CALL], ids=["as JSON", "as a tool call"])
async def test_19_a_requested_allowed_registered_tool_within_the_budget_is_called(proposal: Any) -> None:
    done, tool = await with_tool(proposal=proposal)
    assert after(done.path, "propose_next_step") == "run_tool_action"
    assert tool.calls == [{"query": "csv"}]
    assert done.report.tool_calls == ["lookup"]


@pytest.mark.parametrize(
    "unless",
    [
        {"propose_next_step": STEP},
        {"settings": {"allowed_tools": ["other"]}},
        {"request": {"allowed_tools": ["other"]}},
        {"tools": [RecordingTool("other")]},
        {"settings": {"budgets": {"tool_calls": 0}}},
        {"settings": {"budgets": {"steps": 0}}},
    ],
    ids=["not requested", "not allowed", "narrowed away", "not registered", "no calls left", "no steps left"],
)
async def test_19_a_tool_is_called_only_if_all_four_hold(unless: dict[str, Any]) -> None:
    done, tool = await with_tool(**unless)
    assert "run_tool_action" not in done.path
    assert tool.calls == []
    assert done.final["budget_used"]["tool_calls"] == 0


async def test_20_every_proposed_call_is_kept_also_refused_and_surplus_ones() -> None:
    several = [CALL, ToolCall("c2", "lookup", '{"query": "more"}')]
    done, _ = await with_tool(
        propose_next_step=(Reply(tool_calls=several), {**LOOKUP, "tool": "delete_all"}, STEP),
        evaluate_progress=(UNSURE, SURE),
    )
    assert [(asked["tool"], asked["decision"]) for asked in done.rc.tool_requests] == [
        ("lookup", "one at a time"),
        ("lookup", "accepted"),
        ("delete_all", "refused"),
    ]


async def test_21_a_disallowed_tool_is_never_invoked_and_the_run_says_so() -> None:
    danger = RecordingTool("delete_all")
    done = await reason(
        tools=[danger],
        settings={"allowed_tools": ["lookup"], "budgets": {"strategy_switches": 0}},
        propose_next_step={**LOOKUP, "tool": "delete_all"},
    )
    assert danger.calls == []
    assert done.final["budget_used"]["tool_calls"] == 0
    assert done.end == ("partial", "tool_unavailable")
    assert any("'delete_all' is not allowed here" in error for error in done.final["errors"])


@pytest.mark.parametrize(
    ("policy", "status"), [("partial", "partial"), ("block", "blocked"), ("fail", "failed")]
)
async def test_21_what_such_a_run_counts_as_is_the_operators_choice(policy: str, status: str) -> None:
    done = await reason(
        settings={"tool_policy": {"on_disallowed": policy}, "budgets": {"strategy_switches": 0}},
        propose_next_step=LOOKUP,
    )
    assert done.end == (status, "tool_unavailable")


async def test_21_refused_proposals_end_the_run_after_one_more_than_there_are_switches() -> None:
    done = await reason(propose_next_step=LOOKUP)
    assert [asked["decision"] for asked in done.rc.tool_requests] == ["refused", "refused"]
    assert done.end == ("partial", "tool_unavailable")


async def test_22_after_a_refusal_another_strategy_finishes_the_task() -> None:
    done = await reason(propose_next_step=(LOOKUP, STEP))
    assert len(done.strategies) == 2
    assert "switch_strategy" in done.path
    assert done.end == ("ok", "answer_ready")


@pytest.mark.parametrize("failure", [RuntimeError("broken"), ToolFailed("The service is down.")])
async def test_23_a_tool_that_raises_is_noted_counted_once_and_survived(failure: Exception) -> None:
    done, tool = await with_tool(failure)
    assert len(tool.calls) == done.final["budget_used"]["tool_calls"] == 1
    assert done.final["observations"][0]["success"] is False
    assert done.final["trace_summary"][0]["result"].startswith("failed: ")
    assert any("'lookup' failed (tool_failed)" in error for error in done.final["errors"])
    assert done.end == ("ok", "answer_ready")


async def test_24_an_observation_says_which_tool_with_what_and_what_came_of_it() -> None:
    done, _ = await with_tool("forty-two")
    assert done.final["observations"] == [
        {
            "source": "tool",
            "tool": "lookup",
            "args": {"query": "csv"},
            "success": True,
            "result": "forty-two",
        }
    ]
    failed, _ = await with_tool(RuntimeError("broken"))
    assert "broken" in failed.final["observations"][0]["error"]


async def test_25_long_results_and_arguments_are_cut_in_observations_and_trace() -> None:
    long = {**LOOKUP, "args": {"query": "q" * 5000}}
    done, tool = await with_tool("word " * 4000, long)
    seen = done.final["observations"][0]
    assert len(seen["result"]) <= 1000
    assert len(str(seen["args"])) < 1100
    assert all(len(entry["result"]) <= 240 for entry in done.final["trace_summary"])
    assert len(tool.calls[0]["query"]) == 5000


async def test_26_functions_that_block_and_functions_that_await_are_both_tools() -> None:
    def lookup(query: str) -> str:
        """Looks up."""
        return f"blocking {query}"

    async def search(query: str) -> str:
        """Searches."""
        await asyncio.sleep(0)
        return f"awaiting {query}"

    done = await reason(
        tools=[lookup, search],
        **REACT,
        propose_next_step=(LOOKUP, {**LOOKUP, "tool": "search"}, STEP),
        evaluate_progress=(UNSURE, UNSURE | {"confidence": 0.5}, SURE),
    )
    assert [seen["result"] for seen in done.final["observations"]] == ["blocking csv", "awaiting csv"]


async def test_26_a_tool_that_does_not_answer_in_time_has_failed() -> None:
    hanging = RecordingTool("lookup", lambda **_: asyncio.sleep(3600))
    done, _ = await with_tool(tools=ToolBox([hanging], timeouts={"lookup": 0.01}))
    assert "did not answer within 0.01 s" in done.final["observations"][0]["error"]
    assert done.final["budget_used"]["tool_calls"] == 1


async def test_27_a_model_that_insists_on_tools_ends_with_the_budget() -> None:
    done, tool = await with_tool(
        propose_next_step=LOOKUP,
        evaluate_progress=UNSURE,
        settings={"budgets": {"tool_calls": 1, "strategy_switches": 0, "steps": 50}},
    )
    assert len(tool.calls) == 1
    assert done.end == ("partial", "budget_exhausted")
    assert done.final["budget_used"]["steps"] == 1


async def test_28_trace_entries_are_a_step_and_a_short_result_without_prompts() -> None:
    done = await reason(execute_reasoning_step={"summary": "s" * 2000, "conclusions": ["c"]})
    for entry in done.rc.step_trace:
        assert set(entry) == {"step", "result"}
        assert len(entry["step"]) <= 100
        assert len(entry["result"]) <= 240
        assert TASK not in entry["result"]
        assert "Carry out the step" not in entry["result"]


@pytest.mark.parametrize(
    ("proposal", "fault"),
    [
        ("I would look at the risks first.", "is not a JSON object"),
        ('["analysis"]', "is not a JSON object"),
        ({"kind": "meditate", "step": "ommm"}, "an unknown kind: 'meditate'"),
        ({"kind": None, "step": 5}, "an unknown kind"),
        ({"kind": "tool"}, "names none"),
        ({"kind": {"deep": 1}, "next_step": 4}, "an unknown kind"),
    ],
)
async def test_29_a_malformed_proposal_is_an_error_and_an_analysis_step(proposal: Any, fault: str) -> None:
    done = await reason(propose_next_step=proposal)
    assert fault in " ".join(done.final["errors"])
    assert done.rc.next_step == {"kind": "analysis", "step": "analysis"}
    assert done.end == ("ok", "answer_ready")


async def test_29_arguments_that_are_no_object_are_noted_and_the_tool_judges_what_it_got() -> None:
    done, tool = await with_tool(proposal={**LOOKUP, "args": "csv"})
    assert "the arguments of 'lookup' are not an object" in " ".join(done.final["errors"])
    assert tool.calls == [{}]


async def test_the_tools_port_decides_over_its_calls_as_in_every_pattern() -> None:
    """Calls go through the run's one ToolPort; an id of each call is its own."""
    port = ScriptedTools({"lookup": "42"})
    done, _ = await with_tool(
        tools=port, propose_next_step=(LOOKUP, LOOKUP, STEP), evaluate_progress=(UNSURE, UNSURE, SURE)
    )
    assert len({call.id for call in port.calls}) == len(port.calls) == 2
    assert done.report.tool_calls == ["lookup", "lookup"]


async def test_with_tools_at_hand_prose_instead_of_a_call_means_that_none_is_needed() -> None:
    done, tool = await with_tool(propose_next_step="I know enough.", evaluate_progress=SURE)
    assert tool.calls == []
    assert done.final["errors"] == []
    assert done.end == ("ok", "answer_ready")


async def test_the_draft_sees_what_the_tools_answered_and_may_not_call_them() -> None:
    done, _ = await with_tool("forty-two")
    request = done.request("draft_answer")
    assert [m.content for m in request.messages if m.role == "tool"] == ["forty-two"]
    assert request.tool_choice == "none"
    judged = done.request("evaluate_progress")
    assert "forty-two" in judged.messages[-1].content
