"""Which strategy, which route, which status: tables and pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from astromesh.graph.reasoning.settings import STRATEGIES
from astromesh.types import JsonObject

# -- strategies --------------------------------------------------------------------------------------------


class Means(NamedTuple):
    """What there is to work with.

    Args:
        tools: names of the tools that are registered and allowed.
        tool_calls, critiques: whether the budget has one left.
    """

    tools: Collection[str]
    tool_calls: bool
    critiques: bool


def eligible(names: Sequence[str], profile: JsonObject, means: Means) -> list[str]:
    """The strategies that have what they need."""
    return [name for name in names if _has_its_means(name, profile, means)]


def _has_its_means(name: str, profile: JsonObject, means: Means) -> bool:
    spec = STRATEGIES[name]
    if spec.require_critique and not means.critiques:
        return False
    return spec.tool_mode != "required" or (means.tool_calls and _has_tool(profile, means.tools))


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


#: tried in order; the last one takes any task
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
    """A strategy and the reason for it, or None where there is none; `direct` for simple tasks alone."""
    names = [name for name in names if name != "direct" or _is_simple(profile)]
    for rule in RULES:
        if rule.strategy in names and rule.applies(profile):
            return rule.strategy, rule.reason
    return (names[0], "What the rules prefer is not available.") if names else None


# -- routes ------------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """Where an evaluation stands.

    Args:
        supported: the confidence meets the threshold and no gap is open.
        done: no useful step is left, says the planner.
        early: the strategy drafts now, however sure the judge is.
        steps, models: whether the budget has one left.
        dead: the model has failed so often that it is not asked any more.
        blocked: why a tool was refused (a termination reason), or empty.
        stalled: the confidence does not grow.
        mismatch: the judge says that the strategy does not fit.
        spent: the strategy has nothing more to do.
        can_switch: the budget has a switch left and there is a strategy that was not tried.
    """

    supported: bool = False
    done: bool = False
    early: bool = False
    steps: bool = True
    models: bool = True
    dead: bool = False
    blocked: str = ""
    stalled: bool = False
    mismatch: bool = False
    spent: bool = False
    can_switch: bool = False


class Route(NamedTuple):
    """A route decision; `reason` is the termination reason where it ends the run."""

    name: str
    reason: str = ""


def _stop(facts: Facts) -> str:
    if not facts.steps or not facts.models:
        return "budget_exhausted"
    if facts.dead:
        return "insufficient_evidence"
    return "" if facts.can_switch else facts.blocked


def _switches(facts: Facts) -> bool:
    return facts.can_switch and bool(facts.blocked or facts.stalled or facts.mismatch or facts.spent)


#: in order of priority: answerable, hard stop, switch, continue; what then is left has no useful step
ROUTES: tuple[tuple[str, Callable[[Facts], bool]], ...] = (
    ("draft", lambda f: f.supported or f.done or f.early),
    ("partial", lambda f: bool(_stop(f))),
    ("switch_strategy", _switches),
    ("continue", lambda f: not (f.stalled or f.spent)),
    ("draft", lambda f: True),
)


def route(facts: Facts) -> Route:
    """The first route of the table that applies."""
    name = next(name for name, applies in ROUTES if applies(facts))
    return Route(name, _stop(facts) if name == "partial" else "")


def stalls(gains: Sequence[float], delta: float, evaluations: int) -> bool:
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
_BY_POLICY = {"partial": "partial", "block": "blocked", "fail": "failed"}


def status_of(reason: str, on_disallowed: str, on_strategy_unavailable: str) -> str:
    """How a run counts, by why it ended and the operator's policies."""
    if reason == "tool_unavailable":
        return _BY_POLICY[on_disallowed]
    if reason == "strategy_unavailable":
        return _BY_POLICY[on_strategy_unavailable]
    return STATUS[reason]
