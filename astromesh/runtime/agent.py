"""An agent after bootstrap: everything that its runs share, and nothing that belongs to one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from astromesh.config.agent import AgentManifest, Budgets
from astromesh.config.checks import PATTERN_ITERATIONS
from astromesh.core.answer_schema import AnswerSchema
from astromesh.core.guardrails import GuardrailsEngine, StreamMode
from astromesh.core.memory import MemoryManager
from astromesh.core.model_router import ModelRouter
from astromesh.core.prompt_engine import PromptTemplate
from astromesh.core.tools import AgentTools
from astromesh.durable.base import BudgetCaps
from astromesh.durable.budgets import BudgetLimit
from astromesh.errors import AgentUnavailable, InvalidInput, InvalidManifest
from astromesh.orchestration.base import Drawable, Pattern
from astromesh.types import JsonObject


def limits_of(budgets: Budgets) -> tuple[BudgetLimit, ...]:
    """Those that bound something; most agents have none."""
    found = (
        BudgetLimit("session", BudgetCaps(**budgets.per_session.caps())),
        BudgetLimit("day", BudgetCaps(**budgets.per_principal_daily.caps())),
    )
    return tuple(limit for limit in found if limit.caps != BudgetCaps())


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent.

    Args:
        timeout_seconds: the deadline of a run, without the time it waits for its session.
        budget: what one run may spend, by key of the ledger.
        limits: what sessions and principals may spend.
        snapshot: its manifest as it was written, and those that its runs need; durable runs keep it (R16).
        max_running: The number of its runs that a process may execute at once; 0 without a limit.
        merges_messages: Whether messages that arrive close together become one run.
        continues_on_disconnect: Whether a synchronous run continues when its client disconnects.
        stream: How text may leave while the model writes it: `token`, `sentence` or `final`.
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
    stream: StreamMode
    budget: dict[str, float]
    output_schema: AnswerSchema | None = None
    snapshot: JsonObject = field(default_factory=dict)
    limits: tuple[BudgetLimit, ...] = ()
    max_running: int = 0
    merges_messages: bool = False
    continues_on_disconnect: bool = False

    def iterations_within(self, limit: int) -> int:
        """Returns the model calls of its tool loop under the limit of an outer pattern.

        The limit does not apply to patterns without such a loop.
        """
        if self.pattern_name in PATTERN_ITERATIONS:
            return self.max_iterations
        return min(limit, self.max_iterations)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of its models; one of them must answer for the agent to work."""
        return tuple(p.name for p in self.router.providers)


# An agent as a Mermaid diagram, for the command and the route.


def agent_diagram(agent: Agent) -> str:
    """What an agent does.

    Raises:
        InvalidInput: its pattern is no graph.
    """
    if not isinstance(agent.pattern, Drawable):
        raise InvalidInput(
            f"The pattern {agent.pattern_name!r} of {agent.name!r} is no graph and cannot be drawn."
        )
    return agent.pattern.to_mermaid(agent.max_iterations)


def unavailable_error(name: str, faults: Sequence[InvalidManifest], *, passing: bool) -> AgentUnavailable:
    """Faults that stand in the manifest are counted; whatever else is there is one, and may pass."""
    first = faults[0]
    if first.line:
        count = f"{len(faults)} fault{'' if len(faults) == 1 else 's'}"
        return AgentUnavailable(f"The agent {name!r} has {count} in its manifest: {first}")
    return AgentUnavailable(
        f"The agent {name!r} cannot run{' now' if passing else ''}: {first}", temporary=passing
    )
