"""The keys of `orchestration: {pattern: reasoning, …}`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from astromesh.graph.reasoning import BUDGETS, STRATEGIES, ReasoningSettings

Strategy = Literal["direct", "decompose", "react_tool_loop", "critique_and_revise"]
_Cap = Annotated[int, Field(ge=0, le=1000, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetOptions(_Strict):
    """Most that one run may spend; what is not written has its default."""

    steps: _Cap = Field(BUDGETS["steps"], description="Steps of reasoning and tool calls together.")
    tool_calls: _Cap = Field(BUDGETS["tool_calls"], description="Tool calls; at 0 no tool is used.")
    critique_rounds: _Cap = Field(
        BUDGETS["critique_rounds"],
        description="Critiques of a draft; at 0 the draft is the answer and streams.",
    )
    strategy_switches: _Cap = Field(BUDGETS["strategy_switches"], description="Changes of strategy.")
    model_calls: _Cap = Field(BUDGETS["model_calls"], description="Model calls of all roles together.")


class ToolPolicyOptions(_Strict):
    """What becomes of a run that a refused tool ends."""

    on_disallowed: Literal["partial", "block", "fail"] = Field(
        "partial",
        description="Status of a run that ends because a tool was refused: partial, blocked, failed.",
    )


class ReasoningOptions(_Strict):
    """Options of `reasoning`; a request may narrow them by `context.reasoning`."""

    strategies: list[Strategy] = Field(
        list(STRATEGIES),
        min_length=1,
        description="Strategies that may be chosen.",
        validate_default=True,
    )
    budgets: BudgetOptions = Field(BudgetOptions(), description="Most that one run may spend.")
    threshold: float = Field(
        0.7, ge=0, le=1, description="Confidence from which an answer counts as supported."
    )
    stall_delta: float = Field(0.05, ge=0, le=1, description="Less gain than this is no progress …")
    stall_evaluations: int = Field(2, ge=1, description="… when so many evaluations in a row had it.")
    allowed_tools: tuple[str, ...] | None = Field(
        None, description="Only these of the agent's tools; absent: all of them."
    )
    tool_policy: ToolPolicyOptions = Field(ToolPolicyOptions(), description="How refused tools count.")
    on_strategy_unavailable: Literal["partial", "fail"] = Field(
        "partial",
        description="fail: a complex task whose strategy cannot be chosen fails; else it is partial.",
    )

    def settings(self) -> ReasoningSettings:
        """As the controller takes them."""
        return ReasoningSettings.of(self.model_dump())
