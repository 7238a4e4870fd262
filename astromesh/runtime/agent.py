"""An agent as bootstrapped: everything that its runs share, nothing that belongs to one run."""

from __future__ import annotations

from dataclasses import dataclass

from astromesh.abc.run import Pattern
from astromesh.config.agent import AgentManifest
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.core.memory import MemoryManager
from astromesh.core.model_router import ModelRouter
from astromesh.core.prompt_engine import PromptTemplate
from astromesh.core.tools import ToolRegistry


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent.

    Args:
        timeout_seconds: the deadline of a run, without the time it waits for its session.
        stream: how text may leave while it is made: `token`, `sentence` or `final`.
    """

    name: str
    manifest: AgentManifest
    guardrails: GuardrailsEngine
    memory: MemoryManager
    prompt: PromptTemplate
    tools: ToolRegistry
    router: ModelRouter
    pattern: Pattern
    pattern_name: str
    max_iterations: int
    timeout_seconds: float
    stream: str
