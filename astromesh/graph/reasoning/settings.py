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

#: The five budgets and their defaults.
BUDGETS: Mapping[str, int] = {
    "steps": 6,
    "tool_calls": 4,
    "critique_rounds": 1,
    "strategy_switches": 1,
    "model_calls": 30,
}


class InvalidSettings(ConfigError, ValueError):
    """The settings of a reasoning controller are invalid. The message names the key."""


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """A way of working.

    Args:
        propose_prompt: What the planner is asked when it proposes a step.
        max_steps: The limit of steps. None: as many as the budget allows.
        tool_mode: Whether steps may be tool calls. `required`: the strategy is useless without a tool.
        draft_after: The number of steps after which a draft is written in any case. None: when the judge is
            sure.
        require_critique: The strategy is useless without a critique.
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
        strategies: Names of `STRATEGIES` that may be chosen.
        budgets: Caps by the keys of `BUDGETS`. Missing ones have their defaults.
        threshold: The confidence in [0, 1] from which an answer counts as supported.
        stall_delta, stall_evaluations: The run stalls if confidence gains less than this in so many
            evaluations.
        allowed_tools: Names of the run's tools that may be used. None: all of them.
        on_disallowed: The status of a run that ends because a tool was refused: `partial`, `block`, `fail`.
        on_strategy_unavailable: `partial` or `fail`, if no strategy could be chosen for a complex task.

    Raises:
        InvalidSettings: A strategy, budget or policy is unknown, or a number is out of range.
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
    def of(cls, value: ReasoningSettings | Mapping[str, Any] | None) -> ReasoningSettings:
        """Returns settings unchanged, or from a mapping with the keys of the YAML (`tool_policy` included).

        Raises:
            InvalidSettings: A key is unknown or a value is out of range.
        """
        if isinstance(value, ReasoningSettings):
            return value
        values = dict(value or {})
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
        """The node executions that a run within these budgets cannot exceed, for the engine's own limit."""
        caps = self.caps
        loops = caps["steps"] + caps["tool_calls"] + caps["strategy_switches"] + 1
        return 8 + 3 * loops + 2 * caps["strategy_switches"]

    def to_json(self) -> JsonObject:
        """Returns the settings with plain lists and all five budgets."""
        data: JsonObject = {name: getattr(self, name) for name in self.__slots__}
        data["budgets"], data["strategies"] = self.caps, list(self.strategies)
        data["allowed_tools"] = None if self.allowed_tools is None else list(self.allowed_tools)
        return data


def is_count(value: object) -> bool:
    """Whether a value can be a budget: a non-negative integer, and no bool."""
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
