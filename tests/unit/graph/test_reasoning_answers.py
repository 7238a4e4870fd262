"""The reasoning controller: draft, critique, revise, finalize (behaviours 40 to 50)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astromesh.errors import ProviderUnavailable
from astromesh.graph.reasoning.parsing import mark_claims, without_claims
from astromesh.graph.reasoning.rules import KEYS, MAX_SUMMARY
from astromesh.testing import RecordingTool, Reply
from tests.unit.graph.reasoning_runs import (
    ACCEPTED,
    COMPLEX,
    DRAFT,
    LOOKUP,
    SIMPLE,
    STEP,
    SURE,
    UNSURE,
    USUAL,
    reason,
)

CLAIM = "The parser handles 10 GB files."
FINDING = {**ACCEPTED, "acceptable": False, "unsupported_claims": [CLAIM]}
SECRET = "XYZZY-SECRET"


async def test_40_the_draft_is_written_from_memory_and_observations() -> None:
    done = await reason(
        request={"evidence": {"notes.md": "Two engineers."}, "constraints": {"tests": "required"}},
        analyze_task={**COMPLEX, "assumptions": ["schema is stable"]},
    )
    shown = done.request("draft_answer").messages[-1].content
    for known in ("The parser exists.", "Two engineers.", "schema is stable", '"tests":"required"'):
        assert known in shown
    assert done.rc.draft_answer == DRAFT


async def test_40_without_a_model_the_draft_is_put_together_from_what_is_established() -> None:
    done = await reason(draft_answer=ProviderUnavailable("down"))
    assert "- The parser exists." in done.final["answer"]
    assert done.end == ("partial", "insufficient_evidence")
    assert "critique_answer" not in done.asked


async def test_40_status_and_answer_give_one_reason_why_there_is_no_written_draft() -> None:
    """Five calls are used up before the draft; a model that is down is another matter."""
    spent = await reason(settings={"budgets": {"model_calls": 5}})
    assert spent.end == ("partial", "budget_exhausted")
    assert "the budget for this task is used up" in spent.final["answer"]
    down = await reason(draft_answer=ProviderUnavailable("down"))
    assert "there is not enough evidence for an answer" in down.final["answer"]


async def test_41_an_accepted_draft_is_not_revised() -> None:
    done = await reason()
    assert "revise_answer" not in done.path
    assert done.final["answer"] == DRAFT
    assert done.rc.critique == ACCEPTED


@pytest.mark.parametrize("finding", ["unsupported_claims", "missing_constraints", "clarity_issues"])
async def test_42_each_kind_of_finding_leads_to_one_revision(finding: str) -> None:
    done = await reason(critique_answer={**ACCEPTED, finding: ["something"]})
    assert done.path[-3:] == ["critique_answer", "revise_answer", "finalize_response"]
    assert done.path.count("revise_answer") == 1
    assert done.final["answer"] == done.rc.revised_answer == USUAL["revise_answer"]
    assert "something" in done.request("revise_answer").messages[-1].content


async def test_42_a_draft_that_is_not_accepted_without_findings_is_revised_too() -> None:
    done = await reason(critique_answer={"acceptable": False})
    assert "revise_answer" in done.path


async def test_43_a_claim_that_the_reviser_repeats_is_marked() -> None:
    done = await reason(
        draft_answer=f"Yes. {CLAIM}", critique_answer=FINDING, revise_answer=f"Probably yes. {CLAIM} Ask."
    )
    assert done.final["answer"] == f"Probably yes. {CLAIM} [unverified] Ask."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes. The  PARSER handles 10 GB files! Ok", "Yes. The  PARSER handles 10 GB files! [unverified] Ok"),
        ("- the parser handles 10 GB files\n- b", "- the parser handles 10 GB files [unverified]\n- b"),
        ("Parser files of 10 GB: the handles.", "Parser files of 10 GB: the handles. [unverified]"),
        ("The parser handles 10\n\nGB files.", f"The parser handles 10\n\nGB files.\n[unverified] {CLAIM}"),
        ("Nothing of it.", "Nothing of it."),
        ("", ""),
    ],
)  # fmt: skip
def test_43_claims_are_found_in_other_spelling_other_order_and_over_lines(text: str, expected: str) -> None:
    assert mark_claims(text, [CLAIM]) == expected


async def test_44_without_a_critique_in_the_budget_the_draft_is_the_answer() -> None:
    done = await reason(settings={"budgets": {"critique_rounds": 0}})
    assert done.path[-2:] == ["critique_answer", "finalize_response"]
    assert "critique_answer" not in done.asked
    assert done.final["answer"] == DRAFT
    assert done.end == ("ok", "answer_ready")


@pytest.mark.parametrize(
    "answer", [ProviderUnavailable("down"), RuntimeError("x"), "It is fine.", "{}", "[]"]
)
async def test_45_a_failed_critique_keeps_the_draft_warns_and_lowers_the_confidence(answer: Any) -> None:
    done = await reason(critique_answer=answer)
    assert done.final["answer"] == DRAFT
    assert any(error.endswith("The draft was not criticised.") for error in done.final["errors"])
    assert done.final["confidence"] == pytest.approx(0.9 * 0.8)
    assert done.end == ("ok", "answer_ready")


@pytest.mark.parametrize("answer", [ProviderUnavailable("down"), "", "<think>hm</think>"])
async def test_46_a_failed_revision_keeps_the_draft_without_the_claims(answer: Any) -> None:
    done = await reason(
        draft_answer=f"Yes, with a known schema. {CLAIM}", critique_answer=FINDING, revise_answer=answer
    )
    assert done.final["answer"] == "Yes, with a known schema."


def test_46_a_draft_that_is_nothing_but_claims_is_marked() -> None:
    assert without_claims(CLAIM, [CLAIM]) == f"{CLAIM} [unverified]"


PATHS: dict[str, dict[str, Any]] = {
    "ok": {},
    "direct": {"analyze_task": SIMPLE, "select_reasoning_strategy": {"strategy": "direct"}},
    "blank": {"task": " "},
    "no strategy": {"request": {"available_strategies": []}},
    "out of steps": {"settings": {"budgets": {"steps": 0}}},
    "out of models": {"settings": {"budgets": {"model_calls": 0}}},
    "refused tool": {"propose_next_step": LOOKUP},
    "stalled": {"evaluate_progress": UNSURE},
    "revised": {"critique_answer": FINDING},
    "tool": {"tools": [RecordingTool("lookup")], "propose_next_step": (LOOKUP, STEP)},
    "dead": dict.fromkeys(USUAL, RuntimeError("x")),
}


@pytest.mark.parametrize("name", PATHS)
async def test_47_every_path_ends_with_exactly_the_12_keys(name: str) -> None:
    done = await reason(**PATHS[name])
    assert tuple(done.final) == KEYS
    assert len(KEYS) == 12
    assert done.path[-1] == "finalize_response"
    assert done.final == done.rc.final_output
    assert done.report.stop_reason == "completed"
    json.dumps(done.final)


@pytest.mark.parametrize("name", PATHS)
async def test_48_the_summary_names_path_counts_and_end_in_a_few_words(name: str) -> None:
    done = await reason(**PATHS[name])
    summary = done.final["reasoning_summary"]
    assert 0 < len(summary) <= MAX_SUMMARY
    if name != "blank":
        assert f"{done.final['budget_used']['steps']} steps" in summary
        assert " → ".join(done.strategies) in summary
        assert "Ended: " in summary


def leaky(answer: Any) -> Any:
    """The same answer with deliberation around and inside it."""
    if isinstance(answer, str):
        return f'<think>{SECRET} {{"kind": "done"}}</think>{answer}'
    hidden = dict.fromkeys(("chain_of_thought", "thoughts", "scratchpad", "raw", "reasoning"), SECRET)
    return f"<thinking>{SECRET}</thinking>Sure, {SECRET}: {json.dumps({**hidden, **answer})} {SECRET}"


async def test_49_no_deliberation_prompt_or_raw_output_is_in_the_report() -> None:
    answers = {node: leaky(answer) for node, answer in USUAL.items()}
    done = await reason(**answers | {"critique_answer": leaky(FINDING), "propose_next_step": leaky(STEP)})
    text = json.dumps(done.final)
    assert SECRET not in text
    for key in ("chain_of_thought", "thoughts", "scratchpad", '"raw"', "(node: ", "Answer with one JSON"):
        assert key not in text
    assert done.end == ("ok", "answer_ready")
    assert done.final["answer"] == USUAL["revise_answer"]


@pytest.mark.parametrize("node", USUAL)
async def test_49_an_unreadable_answer_is_not_shown_either(node: str) -> None:
    """Only what draft and reviser say to the reader is shown as they say it."""
    if node in ("draft_answer", "revise_answer"):
        return
    unreadable: Any = {node: f"{SECRET} and no JSON"}
    done = await reason(**unreadable)
    assert SECRET not in json.dumps(done.final)


@pytest.mark.parametrize("node", USUAL)
@pytest.mark.parametrize(
    "error", [ProviderUnavailable("down"), ValueError("odd"), KeyError("x"), StopIteration()]
)
async def test_50_exceptions_become_errors_and_never_leave_the_graph(node: str, error: Exception) -> None:
    answers: Any = {"critique_answer": FINDING, node: error}
    done = await reason(**answers)
    assert all(isinstance(entry, str) for entry in done.final["errors"])
    assert any(entry.startswith(node) for entry in done.final["errors"])
    assert done.report.error == ""


async def test_the_draft_is_never_the_runs_own_voice() -> None:
    """Its tokens could show thinking, or what the critique takes out again (behaviour 49)."""
    final = await reason(settings={"budgets": {"critique_rounds": 0}})
    assert final.request("draft_answer").role == "writer"
    checked = await reason()
    assert checked.request("draft_answer").role == "writer"


async def test_roles_of_the_calls_are_those_of_model_roles() -> None:
    done = await reason(critique_answer=FINDING)
    roles = dict(zip(done.asked, (request.role for request in done.model.requests), strict=True))
    assert roles == {
        "analyze_task": "planner",
        "select_reasoning_strategy": "planner",
        "propose_next_step": "planner",
        "execute_reasoning_step": "worker",
        "evaluate_progress": "judge",
        "draft_answer": "writer",
        "critique_answer": "critic",
        "revise_answer": "writer",
    }


async def test_what_a_draft_was_told_shows_the_users_own_lines() -> None:
    done = await reason(
        "Fix this:\n    a = 1\n    b = 2", draft_answer=Reply("Done."), evaluate_progress=SURE
    )
    assert "Fix this:\n    a = 1" in done.request("draft_answer").messages[-1].content
    assert "Fix this: a = 1" in done.request("analyze_task").messages[-1].content
