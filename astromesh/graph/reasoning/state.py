"""The 26 fields of a run (document 003), and what nodes note beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from astromesh.graph.reasoning.budgets import Budgets
from astromesh.graph.reasoning.settings import STRATEGIES, StrategySpec
from astromesh.graph.state import GraphState
from astromesh.types import JsonObject

#: where they stand in the graph's context
KEY, NOTES = "rc", "_rc_notes"


@dataclass(slots=True)
class ReasoningState:
    """What a run knows; the fields, their order and their names are those of document 003."""

    input: Any = ""
    normalized_input: str = ""
    constraints: JsonObject = field(default_factory=dict)
    engine_config: JsonObject = field(default_factory=dict)
    available_strategies: list[str] = field(default_factory=list)
    selected_strategy: str | None = None
    strategy_history: list[JsonObject] = field(default_factory=list)
    task_profile: JsonObject = field(default_factory=dict)
    reasoning_budget: dict[str, int] = field(default_factory=dict)
    budget_used: dict[str, int] = field(default_factory=dict)
    working_memory: JsonObject = field(default_factory=dict)
    next_step: JsonObject | None = None
    step_trace: list[JsonObject] = field(default_factory=list)
    tool_requests: list[JsonObject] = field(default_factory=list)
    observations: list[JsonObject] = field(default_factory=list)
    knowledge_gaps: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    confidence: float = 0.0
    route_decision: str | None = None
    draft_answer: str | None = None
    critique: JsonObject | None = None
    revised_answer: str | None = None
    reasoning_summary: str | None = None
    termination_reason: str | None = None
    status: str = "running"
    final_output: JsonObject | None = None

    @property
    def is_simple(self) -> bool:
        return self.task_profile.get("complexity") == "simple"

    @property
    def strategy(self) -> StrategySpec:
        """The selected one; before anything is selected the most cautious."""
        return STRATEGIES[self.selected_strategy or "decompose"]

    def note_error(self, error: str) -> None:
        """Each error once: a model that fails the same way ten times says nothing new."""
        if error and error not in self.errors:
            self.errors.append(error)

    def choose(self, strategy: str, reason: str) -> None:
        self.selected_strategy = strategy
        self.strategy_history.append({"strategy": strategy, "reason": reason})


@dataclass(slots=True)
class Notes:
    """What nodes tell one another beside the fields; no part of any output.

    Args:
        budgets: on the run's ledger.
        gains: what each evaluation since the last switch added to the confidence.
        strategy_steps: taken since the last switch.
        refused: why the newest proposal was refused (a termination reason), or empty.
        done: the planner sees no useful step any more.
        mismatch: the judge says that the strategy does not fit.
        unjudged: something happened since the judge looked.
        selection_failed: the strategy of a complex task had to be chosen by rule.
        makeshift: the draft was put together without a model.
        failures: model calls that failed in a row.
        evidence: the texts of the evidence that came with the request, by source.
    """

    budgets: Budgets
    gains: list[float] = field(default_factory=list)
    strategy_steps: int = 0
    refused: str = ""
    done: bool = False
    mismatch: bool = False
    unjudged: bool = True
    selection_failed: bool = False
    makeshift: bool = False
    failures: int = 0
    evidence: list[tuple[str, str]] = field(default_factory=list)


def rc_of(state: GraphState) -> ReasoningState:
    """The run's fields."""
    return cast(ReasoningState, state.context[KEY])


def notes_of(state: GraphState) -> Notes:
    """What nodes noted in this run."""
    return cast(Notes, state.context[NOTES])
