"""What a reasoning run is made of (document 003): settings, four strategies, five budgets and 26 fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, cast

from msgspec import convert
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astromesh.errors import ConfigError
from astromesh.graph.ledger import MODEL_KEYS, RunLedger
from astromesh.graph.state import GraphState, Restore, SharedObject
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


# -- budgets, on the ledger that model and tool calls charge ------------------------------------------------


class Budgets(SharedObject):
    """Caps on a ledger, counted from now.

    The ledger may have been used before (a controller inside another graph). That use does not count here,
    and `close` restores the ledger's caps.

    Args:
        ledger: The ledger of the graph's run.
        caps: What may be spent from now on, by key.
    """

    def __init__(self, ledger: RunLedger, caps: Mapping[str, int]) -> None:
        self._ledger, self._caps, self.is_open = ledger, caps, True
        self._before = {key: ledger.caps.get(key) for key in caps}
        self._base = {key: ledger.used.get(key, 0) for key in caps}
        for key, cap in caps.items():
            most = self._base[key] + cap
            ledger.caps[key] = min(most, ledger.caps.get(key, most))

    def has_left(self, key: str) -> bool:
        """Whether one more may be spent, here and in every surrounding run."""
        return self._ledger.remaining(key) >= 1

    def try_spend(self, key: str) -> bool:
        return self._ledger.try_spend(key)

    @property
    def has_model_calls_left(self) -> bool:
        """Whether another model call may be made. Tokens and cost count too."""
        return not self._ledger.exhausted(MODEL_KEYS)

    def used(self) -> dict[str, int]:
        """Returns what was spent so far."""
        return {key: int(self._ledger.used.get(key, 0) - base) for key, base in self._base.items()}

    def to_json(self) -> JsonObject:
        return {"caps": dict(self._caps), "used": self.used(), "is_open": self.is_open}

    @classmethod
    def restore(cls, data: JsonObject, before: Budgets | None, ledger: RunLedger) -> Budgets:
        """Returns the budgets that a node of a resumed run left. Recorded calls have charged the ledger.

        Args:
            data: Their JSON.
            before: Those before the node.
        """
        budgets = before if before is not None and before.is_open else cls(ledger, data["caps"])
        used = budgets.used()
        for key, amount in data["used"].items():
            if amount > used[key]:
                ledger.spend(key, amount - used[key])
        if not data["is_open"]:
            budgets.close()
        return budgets

    def close(self) -> None:
        self.is_open = False
        for key, cap in self._before.items():
            if cap is None:
                self._ledger.caps.pop(key, None)
            else:
                self._ledger.caps[key] = cap


def narrow_caps(caps: Mapping[str, int], *overrides: Any) -> tuple[dict[str, int], list[str]]:
    """Returns caps with a request's overrides, and what was wrong with these.

    Args:
        caps: The caps of the configuration.
        overrides: Mappings by key, or None. They may lower a cap and not raise it.
    """
    merged, errors = dict(caps), []
    for override in overrides:
        if override is not None and not isinstance(override, Mapping):
            errors.append("The budget must be an object of whole numbers; it is ignored.")
            continue
        for key, value in (override or {}).items():
            if key not in caps:
                errors.append(f"There is no budget {str(key)[:40]!r}; it is ignored.")
            elif not isinstance(value, int) or isinstance(value, bool) or value < 0:
                errors.append(f"The budget {key!r} must be a whole number from 0; it is ignored.")
            else:
                if value > caps[key]:
                    errors.append(f"The budget {key!r} may not be raised above {caps[key]}.")
                merged[key] = min(merged[key], value)
    return merged, errors


#: Their keys in the graph's context.
KEY, NOTES = "rc", "_rc_notes"


@dataclass(slots=True)
class ReasoningState:
    """What a run knows. The fields, their order and their names are those of document 003."""

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
        """The selected strategy. Before a selection it is the most cautious one."""
        return STRATEGIES[self.selected_strategy or "decompose"]

    def note_error(self, error: str) -> None:
        """Adds an error unless it is already there: a model that fails ten times in the same way adds one."""
        if error and error not in self.errors:
            self.errors.append(error)

    def choose(self, strategy: str, reason: str) -> None:
        self.selected_strategy = strategy
        self.strategy_history.append({"strategy": strategy, "reason": reason})


@dataclass(slots=True)
class Notes:
    """What nodes tell one another beside the fields. No part of it is output.

    Args:
        budgets: On the run's ledger.
        gains: What each evaluation since the last switch added to the confidence.
        strategy_steps: Steps since the last switch.
        refusal: Why the newest proposal was refused (a termination reason), or empty.
        done: The planner sees no useful step.
        mismatch: The judge says that the strategy does not fit.
        needs_evaluation: Something has happened since the last evaluation.
        selection_failed: The strategy of a complex task was chosen by rule.
        is_fallback: The draft was assembled without a model.
        failures: Model calls that failed in a row.
        evidence: The texts of the request's evidence, by source.
    """

    budgets: Budgets
    gains: list[float] = field(default_factory=list)
    strategy_steps: int = 0
    refusal: str = ""
    done: bool = False
    mismatch: bool = False
    needs_evaluation: bool = True
    selection_failed: bool = False
    is_fallback: bool = False
    failures: int = 0
    evidence: list[tuple[str, str]] = field(default_factory=list)


def rc_of(state: GraphState) -> ReasoningState:
    """Returns the fields of the run."""
    return cast(ReasoningState, state.context[KEY])


def notes_of(state: GraphState) -> Notes:
    """Returns the notes of the run."""
    return cast(Notes, state.context[NOTES])


def _restored_state(data: JsonObject, state: GraphState) -> ReasoningState:
    return convert(data, ReasoningState)


def _restored_notes(data: JsonObject, state: GraphState) -> Notes:
    before = state.context.get(NOTES)
    budgets = Budgets.restore(data["budgets"], before.budgets if before else None, state.ledger)
    return convert({**data, "budgets": budgets}, Notes)


#: What a resumed run makes of the JSON of the two keys.
RESTORES: Mapping[str, Restore] = {KEY: _restored_state, NOTES: _restored_notes}
