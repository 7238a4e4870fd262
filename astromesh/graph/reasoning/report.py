"""The answer, the summary and the 12 keys of final_output, assembled by code alone from safe parts."""

from __future__ import annotations

from typing import Any

from astromesh.graph.reasoning.parsing import one_line
from astromesh.graph.reasoning.rules import status_of
from astromesh.graph.reasoning.settings import BUDGETS
from astromesh.graph.reasoning.state import Notes, ReasoningState
from astromesh.types import JsonObject

KEYS = (
    "status", "answer", "reasoning_summary", "selected_strategy", "strategy_history", "termination_reason",
    "confidence", "knowledge_gaps", "trace_summary", "observations", "budget_used", "errors",
)  # fmt: skip
#: Characters of a reasoning summary.
MAX_SUMMARY = 400
_REPORTED_BUDGETS = ("steps", "tool_calls", "critique_rounds", "model_calls")
#: The node whose lines in the trace are decisions and not steps.
EVALUATION = "evaluate_progress"
_TEXT: JsonObject = {"type": "string"}
_TEXTS: JsonObject = {"type": "array", "items": _TEXT}
_RECORDS: JsonObject = {"type": "array", "items": {"type": "object"}}
#: The output schema of finalize_response.
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ok", "partial", "invalid_input", "blocked", "failed"]},
        "answer": _TEXT,
        "reasoning_summary": {"type": "string", "maxLength": MAX_SUMMARY},
        "selected_strategy": {"type": ["string", "null"]},
        "strategy_history": _RECORDS,
        "termination_reason": _TEXT,
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "knowledge_gaps": _TEXTS,
        "trace_summary": _RECORDS,
        "observations": _RECORDS,
        "budget_used": {"type": "object"},
        "errors": _TEXTS,
    },
    "required": list(KEYS),
    "additionalProperties": False,
}
_REASON_TEXT = {
    "answer_ready": "the answer is supported",
    "budget_exhausted": "the budget for this task is used up",
    "insufficient_evidence": "there is not enough to rest an answer on",
    "tool_unavailable": "a tool that it needs may not be used here",
    "strategy_unavailable": "no strategy for it could be selected",
    "invalid_input": "there is no task",
    "error": "something in it failed",
}


def final_output(rc: ReasoningState, notes: Notes, *, finished: bool, cut_short: str) -> JsonObject:
    """Returns the 12 keys.

    Args:
        finished: The draft was written, criticised and, if required, revised.
        cut_short: The termination reason of a run that ended before it decided to.
    """
    rc.termination_reason = reason = _reason(rc, notes, "" if finished else cut_short)
    settings = rc.engine_config
    rc.status = status_of(
        reason,
        settings.get("on_disallowed", "partial"),
        settings.get("on_strategy_unavailable", "partial"),
    )
    rc.reasoning_summary = _summary(rc)
    return {
        "status": rc.status,
        "answer": _answer(rc, is_fallback=notes.is_fallback),
        "reasoning_summary": rc.reasoning_summary,
        "selected_strategy": rc.selected_strategy,
        "strategy_history": [dict(entry) for entry in rc.strategy_history],
        "termination_reason": reason,
        "confidence": rc.confidence,
        "knowledge_gaps": list(rc.knowledge_gaps),
        "trace_summary": [dict(entry) for entry in rc.step_trace if entry["step"] != EVALUATION],
        "observations": [dict(seen) for seen in rc.observations],
        "budget_used": {**dict.fromkeys(BUDGETS, 0), **rc.budget_used},
        "errors": list(rc.errors),
    }


def _reason(rc: ReasoningState, notes: Notes, cut_short: str) -> str:
    if rc.termination_reason is not None:
        return rc.termination_reason
    if cut_short:
        return cut_short
    if notes.is_fallback:
        return "insufficient_evidence" if notes.budgets.has_model_calls_left else "budget_exhausted"
    if rc.confidence < rc.engine_config["threshold"] or rc.knowledge_gaps:
        return "insufficient_evidence"
    return "strategy_unavailable" if notes.selection_failed else "answer_ready"


def _answer(rc: ReasoningState, *, is_fallback: bool) -> str:
    if rc.status == "invalid_input":
        return "There is no task here. Write what I should do."
    answer = rc.revised_answer or rc.draft_answer
    if answer is None or is_fallback:  # only now it is known why the run ended
        return fallback_answer(rc)
    if rc.status == "ok" or not rc.knowledge_gaps or all(gap in answer for gap in rc.knowledge_gaps):
        return answer
    return f"{answer}\n\nNot established: {'; '.join(rc.knowledge_gaps)}"


def fallback_answer(rc: ReasoningState) -> str:
    """Returns an answer without a model: what is established, and what is missing. Nothing is invented."""
    why = _REASON_TEXT.get(rc.termination_reason or "budget_exhausted", "it was stopped")
    parts = [f"I could not finish this: {why}."]
    known = [*rc.working_memory.get("partial_conclusions", ()), *_tool_findings(rc)]
    if known:
        parts.append("What is established so far:\n" + "\n".join(f"- {line}" for line in known))
    missing = list(dict.fromkeys([*rc.knowledge_gaps, *rc.working_memory.get("open_questions", ())]))
    if missing:
        parts.append("What is missing:\n" + "\n".join(f"- {line}" for line in missing))
    return "\n\n".join(parts)


def _tool_findings(rc: ReasoningState) -> list[str]:
    return [
        f"{seen.get('tool') or seen['source']}: {one_line(seen['result'])}"
        for seen in rc.observations
        if seen["success"]
    ]


def _summary(rc: ReasoningState) -> str:
    if rc.status == "invalid_input":
        return "There was no task, so nothing was done."
    profile: dict[str, Any] = rc.task_profile
    path = " → ".join(entry["strategy"] for entry in rc.strategy_history) or "none"
    used = {**dict.fromkeys(BUDGETS, 0), **rc.budget_used}
    parts = [
        f"Took it for a {profile['complexity']} task of {profile['risk']} risk." if profile else "",
        f"Strategy: {path}.",
        ", ".join(f"{used[key]} {key.replace('_', ' ')}" for key in _REPORTED_BUDGETS) + ".",
        "Revised the draft." if rc.revised_answer else "",
        f"Ended: {_REASON_TEXT.get(rc.termination_reason or '', 'it was stopped')}.",
        f"Confidence {rc.confidence:.2f}.",
    ]
    return one_line(" ".join(part for part in parts if part), MAX_SUMMARY)
