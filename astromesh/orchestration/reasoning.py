"""The pattern `reasoning`: its options, and the reasoning controller inside a run of the pipeline."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import GraphError
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.reasoning import BUDGETS, STRATEGIES, ReasoningSettings, reasoning_controller
from astromesh.graph.scope import Scope
from astromesh.orchestration.base import Outcome, PatternTask
from astromesh.plugins import Deps
from astromesh.providers.base import ModelPort
from astromesh.tools.base import ToolPort

Strategy = Literal["direct", "decompose", "react_tool_loop", "critique_and_revise"]


_Cap = Annotated[int, Field(ge=0, le=1000, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetOptions(_Strict):
    """Most that one run may spend."""

    steps: _Cap = Field(BUDGETS["steps"], description="Steps of reasoning and tool calls together.")
    tool_calls: _Cap = Field(BUDGETS["tool_calls"], description="Tool calls; at 0 no tool is used.")
    critique_rounds: _Cap = Field(
        BUDGETS["critique_rounds"],
        description="Critiques of a draft; at 0 the draft is the answer and streams.",
    )
    strategy_switches: _Cap = Field(BUDGETS["strategy_switches"], description="Changes of strategy.")
    model_calls: _Cap = Field(BUDGETS["model_calls"], description="Model calls of all roles together.")


class ToolPolicyOptions(_Strict):
    """How a run ends if a refused tool ends it."""

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
        """The settings of the controller."""
        return ReasoningSettings.of(self.model_dump())


#: the only key of the context of a request that the controller reads
REQUEST = "reasoning"


class Reasoning:
    """A bounded controller: profile, strategy, evaluated steps, draft, critique, revision, report.

    Args:
        settings: the bounds; a request's `context.reasoning` may narrow them.
    """

    Options = ReasoningOptions

    def __init__(self, settings: ReasoningSettings) -> None:
        most = settings.max_iterations
        self._engine = PromptGraphEngine(
            reasoning_controller(settings), max_iterations=most, max_node_iterations=most
        )

    @classmethod
    async def open(cls, options: ReasoningOptions, deps: Deps) -> Reasoning:
        return cls(options.settings())

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        """One run. It always has an answer; `metadata["reasoning"]` is the final_output of the controller."""
        # other keys are for templates; they must not replace the checked query
        context = {REQUEST: task.context[REQUEST]} if REQUEST in task.context else {}
        run = self._engine.start(task.messages, scope, model=model, tools=tools, context=context)
        result = await run.execute()
        final = result.output
        if not isinstance(final, dict):  # only if finalize_response itself failed
            raise GraphError(f"The reasoning controller ended without a report: {result.report.error}")
        return Outcome(
            final["answer"],
            final["termination_reason"],
            final["budget_used"]["model_calls"],
            result.report.usage,
            metadata={REQUEST: final},
        )
