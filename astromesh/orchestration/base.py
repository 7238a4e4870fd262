"""The protocol of patterns, with their task and their outcome (document 001, step 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from astromesh.providers.base import ModelPort
from astromesh.tools.base import ToolPort
from astromesh.types import JsonObject, Message, ToolSpec, Usage


class PatternTask(Struct, frozen=True):
    """The input of step 7: everything that a pattern may read.

    Args:
        messages: The system message, the history, and last the user's message.
        tools: The tools of step 6.
        max_iterations: The model calls of one tool loop.
        context: The request's own template variables.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_iterations: int = 10
    context: Mapping[str, Any] = field(default_factory=dict)


class Outcome(Struct, frozen=True):
    """The result of step 7.

    Args:
        text: The answer. It is never a raw tool result and never the question.
        stop_reason: `completed`, `max_iterations`, … (docs/graph/graph.md, Stops).
        iterations: The model calls of the pattern's loop.
        error: The message of a pattern that failed, else empty.
        metadata: Keys for the metadata of the run, e.g. `reasoning`.
        budget: The budget that ended the run, below `spec.budgets`, e.g. `per_run.tokens`. Empty if none did.
    """

    text: str
    stop_reason: str = "completed"
    iterations: int = 0
    usage: Usage = Usage()
    error: str = ""
    metadata: JsonObject = field(default_factory=dict)
    budget: str = ""

    def with_text(self, text: str) -> Outcome:
        """Returns the same outcome with another text."""
        return replace(self, text=text)


class Pattern(Protocol):
    """An orchestration pattern: it takes a model and tools, and returns the final answer.

    `scope` is the run's `astromesh.graph.scope.Scope`.
    """

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Any) -> Outcome: ...


@runtime_checkable
class EndsAtDeadline(Protocol):
    """A pattern that ends at `scope.deadline` by itself, with an answer of what it has.

    Args:
        grace_seconds: The time after the deadline in which it and the rest of the run must end.
    """

    grace_seconds: float


@runtime_checkable
class Drawable(Protocol):
    """A pattern that can be drawn, as graphs can."""

    def to_mermaid(self, iterations: int) -> str:
        """Returns a Mermaid diagram for an agent with this `max_iterations`."""
