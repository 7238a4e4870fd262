"""Which strategy, which route, which status: tables and pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from astromesh.graph.reasoning.settings import STRATEGIES
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
        model_failing: The model has failed so often that it is not asked again.
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
