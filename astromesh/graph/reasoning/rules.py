"""Which strategy, which route, which status: tables and pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from astromesh.graph.reasoning.parsing import REPORT_KEYS, line_of, one_line
from astromesh.graph.reasoning.state import BUDGETS, STRATEGIES, Notes, ReasoningState
from astromesh.types import JsonObject

# -- strategies --------------------------------------------------------------------------------------------


class Resources(NamedTuple):
    """The resources of a strategy.

    Args:
        tools: Names of the tools that are registered and allowed.
        has_tool_calls, has_critiques: Whether the budget has one left.
    """

    tools: Collection[str]
    has_tool_calls: bool
    has_critiques: bool


def eligible(names: Sequence[str], profile: JsonObject, resources: Resources) -> list[str]:
    """Returns the strategies whose resources exist."""
    return [name for name in names if _has_resources(name, profile, resources)]


def _has_resources(name: str, profile: JsonObject, resources: Resources) -> bool:
    spec = STRATEGIES[name]
    if spec.require_critique and not resources.has_critiques:
        return False
    return spec.tool_mode != "required" or (resources.has_tool_calls and _has_tool(profile, resources.tools))


def _has_tool(profile: JsonObject, tools: Collection[str]) -> bool:
    needs = profile.get("tool_needs") or ["any"]
    return bool(tools) and ("any" in needs or any(need in tools for need in needs))


class Rule(NamedTuple):
    """A strategy for a kind of task."""

    strategy: str
    reason: str
    applies: Callable[[JsonObject], bool]


def _is_simple(profile: JsonObject) -> bool:
    return profile.get("complexity") == "simple"


#: Tried in order. The last one fits any task.
RULES = (
    Rule("react_tool_loop", "The task needs a tool.", lambda p: bool(p.get("tool_needs"))),
    Rule(
        "critique_and_revise",
        "The task is risky, so its draft has to be criticised.",
        lambda p: p.get("risk") == "high" or p.get("needs_critique") is True,
    ),
    Rule("direct", "The task is simple.", _is_simple),
    Rule("decompose", "The task has several parts.", lambda p: True),
)


def by_rule(names: Sequence[str], profile: JsonObject) -> tuple[str, str] | None:
    """Returns a strategy and the reason for it, or None if there is none. Only simple tasks get `direct`."""
    names = [name for name in names if name != "direct" or _is_simple(profile)]
    for rule in RULES:
        if rule.strategy in names and rule.applies(profile):
            return rule.strategy, rule.reason
    return (names[0], "What the rules prefer is not available.") if names else None


# -- routes ------------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """The state of an evaluation.

    Args:
        supported: The confidence meets the threshold and no gap is open.
        done: The planner sees no useful step.
        draft_now: The strategy drafts now, however sure the judge is.
        has_steps, has_model_calls: Whether the budget has one left.
        model_failing: The model has failed so often that the controller makes no more calls.
        blocked: Why a tool was refused (a termination reason), or empty.
        stalled: The confidence does not grow.
        mismatch: The judge says that the strategy does not fit.
        strategy_exhausted: The strategy has no more steps.
        can_switch: The budget has a switch left and there is an untried strategy.
    """

    supported: bool = False
    done: bool = False
    draft_now: bool = False
    has_steps: bool = True
    has_model_calls: bool = True
    model_failing: bool = False
    blocked: str = ""
    stalled: bool = False
    mismatch: bool = False
    strategy_exhausted: bool = False
    can_switch: bool = False


class Route(NamedTuple):
    """A route decision. `reason` is the termination reason if it ends the run."""

    name: str
    reason: str = ""


def _stop(facts: Facts) -> str:
    if not facts.has_steps or not facts.has_model_calls:
        return "budget_exhausted"
    if facts.model_failing:
        return "insufficient_evidence"
    return "" if facts.can_switch else facts.blocked


def _should_switch(facts: Facts) -> bool:
    return facts.can_switch and bool(
        facts.blocked or facts.stalled or facts.mismatch or facts.strategy_exhausted
    )


#: In order of priority: answerable, hard stop, switch, continue, no useful step.
ROUTES: tuple[tuple[str, Callable[[Facts], bool]], ...] = (
    ("draft", lambda f: f.supported or f.done or f.draft_now),
    ("partial", lambda f: bool(_stop(f))),
    ("switch_strategy", _should_switch),
    ("continue", lambda f: not (f.stalled or f.strategy_exhausted)),
    ("draft", lambda f: True),
)


def route(facts: Facts) -> Route:
    """Returns the first route of the table that applies."""
    name = next(name for name, applies in ROUTES if applies(facts))
    return Route(name, _stop(facts) if name == "partial" else "")


def is_stalled(gains: Sequence[float], delta: float, evaluations: int) -> bool:
    """Whether none of the newest evaluations added as much as `delta` to the confidence."""
    newest = gains[-evaluations:]
    # 0.15 - 0.10 is a little less than 0.05
    return len(newest) == evaluations and all(gain < delta - 1e-9 for gain in newest)


# -- status ------------------------------------------------------------------------------------------------

STATUS = {
    "answer_ready": "ok",
    "budget_exhausted": "partial",
    "insufficient_evidence": "partial",
    "tool_unavailable": "partial",
    "strategy_unavailable": "partial",
    "invalid_input": "invalid_input",
    "error": "failed",
}
_STATUS_BY_POLICY = {"partial": "partial", "block": "blocked", "fail": "failed"}


def status_of(reason: str, on_disallowed: str, on_strategy_unavailable: str) -> str:
    """Returns the status of a run, by its end and the operator's policies."""
    if reason == "tool_unavailable":
        return _STATUS_BY_POLICY[on_disallowed]
    if reason == "strategy_unavailable":
        return _STATUS_BY_POLICY[on_strategy_unavailable]
    return STATUS[reason]


#: The 12 keys of final_output.
KEYS = REPORT_KEYS
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
    "insufficient_evidence": "there is not enough evidence for an answer",
    "tool_unavailable": "a tool that the task needs is not allowed here",
    "strategy_unavailable": "no strategy is available for the task",
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
        settings["tool_policy"]["on_disallowed"] if settings else "partial",
        settings["on_strategy_unavailable"] if settings else "partial",
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
        f"{seen.get('tool') or seen['source']}: {line_of(seen['result'])}"
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
        f"Task: {profile['complexity']}, {profile['risk']} risk." if profile else "",
        f"Strategy: {path}.",
        ", ".join(f"{used[key]} {key.replace('_', ' ')}" for key in _REPORTED_BUDGETS) + ".",
        "Revised the draft." if rc.revised_answer else "",
        f"Ended: {_REASON_TEXT.get(rc.termination_reason or '', 'it was stopped')}.",
        f"Confidence {rc.confidence:.2f}.",
    ]
    return one_line(" ".join(part for part in parts if part), MAX_SUMMARY)
