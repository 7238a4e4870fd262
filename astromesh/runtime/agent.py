"""An agent as bootstrapped: everything that its runs share, nothing that belongs to one run."""

from __future__ import annotations

from dataclasses import dataclass, field

from astromesh.abc.run import Pattern
from astromesh.config.agent import AgentManifest
from astromesh.config.checks import ITERATIONS
from astromesh.core.guardrails import GuardrailsEngine, StreamMode
from astromesh.core.memory import MemoryManager
from astromesh.core.model_router import ModelRouter
from astromesh.core.prompt_engine import PromptTemplate
from astromesh.core.structured import AnswerSchema
from astromesh.core.tools import AgentTools
from astromesh.runtime.budget_limits import Limit
from astromesh.types import JsonObject


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent.

    Args:
        timeout_seconds: the deadline of a run, without the time it waits for its session.
        budget: what one run may spend, by key of the ledger.
        limits: what sessions and principals may spend.
        snapshot: its manifest as it was written, and those that its runs need; durable runs keep it (R16).
        most_running: how many of its runs may go on at once in a process; 0 without bound.
        stream: how text may leave while it is made: `token`, `sentence` or `final`.
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
    limits: tuple[Limit, ...] = ()
    most_running: int = 0

    def iterations_within(self, most: int | None) -> int:
        """Model calls of its tool loop; an outer pattern's bound holds where its pattern has such a loop."""
        if most is None or self.pattern_name in ITERATIONS:
            return self.max_iterations
        return min(most, self.max_iterations)

    @property
    def merges(self) -> bool:
        """Whether messages that come close together become one run."""
        return self.manifest.spec.sessions.concurrency == "merge"

    @property
    def outlives_its_client(self) -> bool:
        """Whether a synchronous run goes on when its client has gone (`on_disconnect: continue`)."""
        return self.manifest.spec.on_disconnect == "continue"

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of its models; one of them must answer for the agent to work."""
        return tuple(p.name for p in self.router.providers)
