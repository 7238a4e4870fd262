"""An agent after bootstrap: what its runs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from astromesh.config.agent import AgentManifest, Budgets
from astromesh.config.checks import PATTERN_ITERATIONS
from astromesh.core.answer_schema import AnswerSchema
from astromesh.core.guardrails import GuardrailsEngine, StreamMode
from astromesh.core.memory import MemoryManager
from astromesh.core.model_router import ModelRouter
from astromesh.core.prompt_engine import PromptTemplate
from astromesh.core.tools import AgentTools
from astromesh.durable.budgets import BudgetCaps, BudgetLimit
from astromesh.errors import AgentUnavailable, InvalidManifest
from astromesh.orchestration.base import Pattern
from astromesh.runtime.declarations import NO_LIVE_PARTS, LiveParts
from astromesh.types import JsonObject


def limits_of(budgets: Budgets) -> tuple[BudgetLimit, ...]:
    """Returns the stored budgets of an agent; most agents have none."""
    found = (
        BudgetLimit("session", BudgetCaps(**budgets.per_session.caps())),
        BudgetLimit("day", BudgetCaps(**budgets.per_principal_daily.caps())),
    )
    return tuple(limit for limit in found if limit.caps != BudgetCaps())


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent.

    Args:
        timeout_seconds: The deadline of a run, without the time for which it waits for its session.
        grace_seconds: The time after the deadline, for a pattern that ends at the deadline by itself.
        budget: The budget of one run, by key of the ledger.
        limits: The budgets of sessions and principals.
        snapshot: What durable runs store: its manifest, and those of agents and graphs that it needs.
        max_running: The number of its runs that a process may execute at once; 0 without a limit.
        merges_messages: Whether messages that arrive close together become one run.
        continues_on_disconnect: Whether a synchronous run continues when its client disconnects.
        can_call_tools: Whether one of its models can, those of its roles included.
        skills: The part of its system prompt that names its skills.
        live: What it has beside its manifest if it is declared in Python.
        stream: How text may leave while the model writes it: `token`, `sentence` or `final`.
        loaded_at: Seconds since the epoch.
    """

    name: str
    manifest: AgentManifest
    guardrails: GuardrailsEngine
    memory: MemoryManager
    prompt: PromptTemplate
    tools: AgentTools
    router: ModelRouter
    pattern: Pattern
    pattern_name: str
    max_iterations: int
    timeout_seconds: float
    grace_seconds: float
    stream: StreamMode
    budget: dict[str, float]
    output_schema: AnswerSchema | None = None
    skills: str = ""
    live: LiveParts = NO_LIVE_PARTS
    snapshot: JsonObject = field(default_factory=dict)
    limits: tuple[BudgetLimit, ...] = ()
    max_running: int = 0
    merges_messages: bool = False
    continues_on_disconnect: bool = False
    can_call_tools: bool = True
    loaded_at: float = 0.0

    def iterations_within(self, limit: int) -> int:
        """Returns the model calls of its tool loop under the limit of an outer pattern.

        The limit does not apply to patterns without such a loop.
        """
        if self.pattern_name in PATTERN_ITERATIONS:
            return self.max_iterations
        return min(limit, self.max_iterations)

    @property
    def knowledge_tools(self) -> Mapping[str, str]:
        """The pipelines by the names of the tools that search them; its answers have citations."""
        tools = self.manifest.spec.tools
        return {tool.name: tool.options.pipeline for tool in tools if tool.type == "rag"}

    @property
    def summarizes(self) -> bool:
        """Whether its conversations are summarized (`strategy: summary`)."""
        memory = self.manifest.spec.memory
        return memory.conversational is not None and memory.conversational.strategy == "summary"

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of its models. The agent works if one of them answers."""
        return tuple(p.name for p in self.router.providers)


def unavailable_error(name: str, faults: Sequence[InvalidManifest], *, passing: bool) -> AgentUnavailable:
    """Returns the error of an agent that cannot run.

    Args:
        faults: Faults of its manifest, or the one reason why it could not be opened.
        passing: Whether it works again when a store answers.
    """
    first = faults[0]
    if first.line:
        count = f"{len(faults)} fault{'' if len(faults) == 1 else 's'}"
        return AgentUnavailable(f"The agent {name!r} has {count} in its manifest: {first}")
    return AgentUnavailable(
        f"The agent {name!r} cannot run{' now' if passing else ''}: {first}", temporary=passing
    )
