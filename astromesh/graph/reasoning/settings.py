"""What an operator may set, and the four strategies as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from astromesh.errors import ConfigError
from astromesh.types import JsonObject

ToolMode = Literal["none", "optional", "required"]
OnDisallowed = Literal["partial", "block", "fail"]
OnUnavailable = Literal["partial", "fail"]

#: the five budgets and their defaults
BUDGETS: Mapping[str, int] = {
    "steps": 6,
    "tool_calls": 4,
    "critique_rounds": 1,
    "strategy_switches": 1,
    "model_calls": 30,
}


class InvalidSettings(ConfigError, ValueError):
    """The settings of a reasoning controller are wrong; the message names the key."""


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """A way of working.

    Args:
        propose_prompt: what the planner is told when it proposes a step.
        max_steps: after so many the strategy has nothing more to do; None for as many as the budget has.
        tool_mode: whether steps may be tool calls; `required`: the strategy is nothing without a tool.
        draft_after: steps after which a draft is written however sure the judge is; None: when it is sure.
        require_critique: the strategy is nothing without a critique.
    """

    propose_prompt: str
    max_steps: int | None = None
    tool_mode: ToolMode = "optional"
    draft_after: int | None = None
    require_critique: bool = False


STRATEGIES: Mapping[str, StrategySpec] = {
    "direct": StrategySpec("Work out the answer in one step.", max_steps=1, tool_mode="none"),
    "decompose": StrategySpec(
        "Work through the subgoals one by one. Propose the next part that is still open."
    ),
    "react_tool_loop": StrategySpec(
        "Use tools to establish what is not known yet. Look at what they answered before you call the next.",
        tool_mode="required",
    ),
    "critique_and_revise": StrategySpec(
        "Collect what a first draft needs; it will be criticised and revised.",
        draft_after=1,
        require_critique=True,
    ),
}


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """How a controller works. Requests may narrow it, never widen it.

    Args:
        strategies: names of `STRATEGIES` that may be chosen.
        budgets: caps by the keys of `BUDGETS`; missing ones have their defaults.
        threshold: confidence in [0, 1] from which an answer counts as supported.
        stall_delta, stall_evaluations: it stalls when confidence gains less than this in so many evaluations.
        allowed_tools: names of the run's tools that may be used; None for all of them.
        on_disallowed: what a run counts as that ends because a tool was refused: `partial`, `block`, `fail`.
        on_strategy_unavailable: `partial` or `fail`, where no strategy could be chosen for a complex task.

    Raises:
        InvalidSettings: an unknown strategy, budget or policy, or a number out of its range.
    """

    strategies: tuple[str, ...] = tuple(STRATEGIES)
    budgets: Mapping[str, int] = field(default_factory=dict)
    threshold: float = 0.7
    stall_delta: float = 0.05
    stall_evaluations: int = 2
    allowed_tools: tuple[str, ...] | None = None
    on_disallowed: OnDisallowed = "partial"
    on_strategy_unavailable: OnUnavailable = "partial"

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise InvalidSettings(problem)

    @classmethod
    def of(cls, given: ReasoningSettings | Mapping[str, Any] | None) -> ReasoningSettings:
        """Settings as they are, or from a mapping with the keys of the YAML (`tool_policy` included).

        Raises:
            InvalidSettings: an unknown key, or a value out of its range.
        """
        if isinstance(given, ReasoningSettings):
            return given
        values = dict(given or {})
        policy = values.pop("tool_policy", None)
        if policy is not None:
            values.update(policy)
        if unknown := sorted(values.keys() - {f.name for f in fields(cls)}):
            raise InvalidSettings(f"The reasoning controller has no setting {unknown[0]!r}.")
        for key in ("strategies", "allowed_tools"):
            if values.get(key) is not None:
                values[key] = tuple(values[key])
        return cls(**values)

    @property
    def caps(self) -> dict[str, int]:
        """All five budgets."""
        return {**BUDGETS, **self.budgets}

    @property
    def max_iterations(self) -> int:
        """Node executions that a run within these budgets cannot exceed, for the engine's own cap."""
        caps = self.caps
        loops = caps["steps"] + caps["tool_calls"] + caps["strategy_switches"] + 1
        return 8 + 3 * loops + 2 * caps["strategy_switches"]

    def to_json(self) -> JsonObject:
        """With plain lists and all five budgets."""
        data: JsonObject = {name: getattr(self, name) for name in self.__slots__}
        data["budgets"], data["strategies"] = self.caps, list(self.strategies)
        data["allowed_tools"] = None if self.allowed_tools is None else list(self.allowed_tools)
        return data


def is_count(value: object) -> bool:
    """Whether a value can be a budget: a whole number, not negative, and not True or False."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _problems(settings: ReasoningSettings) -> list[str]:
    unknown = [s for s in settings.strategies if s not in STRATEGIES]
    strange = [k for k in settings.budgets if k not in BUDGETS]
    wrong = [k for k, v in settings.budgets.items() if not is_count(v)]
    checks = (
        (not settings.strategies, "strategies must not be empty."),
        (unknown, f"There is no strategy {next(iter(unknown), '')!r}; known: {', '.join(STRATEGIES)}."),
        (strange, f"There is no budget {next(iter(strange), '')!r}; known: {', '.join(BUDGETS)}."),
        (wrong, f"The budget {next(iter(wrong), '')!r} must be a whole number from 0."),
        (not 0 <= settings.threshold <= 1, "threshold must be from 0 to 1."),
        (not 0 <= settings.stall_delta <= 1, "stall_delta must be from 0 to 1."),
        (settings.stall_evaluations < 1, "stall_evaluations must be at least 1."),
        (settings.on_disallowed not in get_args(OnDisallowed), "on_disallowed is partial, block or fail."),
        (
            settings.on_strategy_unavailable not in get_args(OnUnavailable),
            "on_strategy_unavailable is partial or fail.",
        ),
    )
    return [sentence for is_wrong, sentence in checks if is_wrong]
