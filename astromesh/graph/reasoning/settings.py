"""The settings of the reasoning controller, in Python and YAML alike, and the four strategies as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astromesh.errors import ConfigError
from astromesh.types import JsonObject

ToolMode = Literal["none", "optional", "required"]
StrategyName = Literal["direct", "decompose", "react_tool_loop", "critique_and_revise"]


class InvalidSettings(ConfigError, ValueError):
    """The settings of a reasoning controller are invalid. The message names the key."""


class StrategySpec(NamedTuple):
    """A way of working.

    Args:
        propose_prompt: The planner's instructions for a proposal.
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


_Cap = Annotated[int, Field(ge=0, le=1000, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetSettings(_Strict):
    """The limits of one run."""

    steps: _Cap = Field(6, description="Steps of reasoning and tool calls together.")
    tool_calls: _Cap = Field(4, description="Tool calls. With 0 the run uses no tool.")
    critique_rounds: _Cap = Field(
        1, description="Critiques of a draft. With 0 the draft is the answer, and it streams."
    )
    strategy_switches: _Cap = Field(1, description="Changes of strategy.")
    model_calls: _Cap = Field(30, description="Model calls of all roles together.")


#: The five budgets and their defaults.
BUDGETS: Mapping[str, int] = BudgetSettings().model_dump()


class ToolPolicy(_Strict):
    """How a run ends when one of its tools is refused."""

    on_disallowed: Literal["partial", "block", "fail"] = Field(
        "partial", description="The status of a run that ends because a tool was refused."
    )


class ReasoningSettings(_Strict):
    """The settings of a controller. A request may narrow them by `context.reasoning`, and never widen them.

    Raises:
        pydantic.ValidationError: A setting is unknown or invalid. `of` raises InvalidSettings instead.
    """

    strategies: list[StrategyName] = Field(
        list(STRATEGIES),
        min_length=1,
        description="The strategies that may be chosen.",
        validate_default=True,
    )
    budgets: BudgetSettings = Field(BudgetSettings(), description="The limits of one run.")
    threshold: float = Field(
        0.7, ge=0, le=1, description="The confidence from which an answer counts as supported."
    )
    stall_delta: float = Field(
        0.05, ge=0, le=1, description="A smaller gain of confidence counts as no progress."
    )
    stall_evaluations: int = Field(
        2, ge=1, description="The run stalls after this many evaluations in a row without progress."
    )
    allowed_tools: tuple[str, ...] | None = Field(
        None, description="The tools of the agent that may be used. The default is all of them."
    )
    tool_policy: ToolPolicy = Field(
        ToolPolicy(), description="How a run ends when one of its tools is refused."
    )
    on_strategy_unavailable: Literal["partial", "fail"] = Field(
        "partial",
        description="The status of a run if no strategy can be chosen for a complex task.",
    )

    @classmethod
    def of(cls, value: ReasoningSettings | Mapping[str, Any] | None) -> ReasoningSettings:
        """Returns settings unchanged, or those of a mapping with the keys of the YAML.

        Raises:
            InvalidSettings: A key is unknown or a value is invalid.
        """
        if isinstance(value, cls):
            return value
        values = dict(value or {})
        if "on_disallowed" in values:  # in graphs that earlier versions have written
            values["tool_policy"] = {"on_disallowed": values.pop("on_disallowed")}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
            text = "; ".join(faults)
            raise InvalidSettings(f"The settings of the reasoning controller are invalid: {text}.") from error

    @property
    def max_iterations(self) -> int:
        """The node executions that a run within these budgets cannot exceed, for the engine's own limit."""
        caps = self.budgets
        loops = caps.steps + caps.tool_calls + caps.strategy_switches + 1
        return 8 + 3 * loops + 2 * caps.strategy_switches

    def to_json(self) -> JsonObject:
        return self.model_dump(mode="json")
