"""Runs as other parts see them: what to run, what came out, and the protocol by which tools start one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from astromesh.abc.provider import ModelPort
from astromesh.abc.tool import ToolContext, ToolPort
from astromesh.quick import quick
from astromesh.types import Image, JsonObject, Message, ToolSpec, Usage


@quick
@dataclass(frozen=True, slots=True)
class PatternTask:
    """What step 7 gets: everything a pattern may look at.

    Args:
        messages: system message first, then history, last the user's message.
        tools: what step 6 equipped it with.
        max_iterations: model calls of one tool loop.
        context: the request's own template variables.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_iterations: int = 10
    context: Mapping[str, Any] = field(default_factory=dict)


@quick
@dataclass(frozen=True, slots=True)
class Outcome:
    """What step 7 answers.

    Args:
        text: the answer; never a raw tool result, never the question.
        stop_reason: `completed`, `max_iterations`, … (graph.md section 2, Stops).
        iterations: model calls of the pattern's loop.
        error: message where the pattern failed, else empty.
        metadata: what the pattern adds to the run's metadata, e.g. `reasoning`.
    """

    text: str
    stop_reason: str = "completed"
    iterations: int = 0
    usage: Usage = Usage()
    error: str = ""
    metadata: JsonObject = field(default_factory=dict)

    def saying(self, text: str) -> Outcome:
        """The same outcome with another text."""
        return replace(self, text=text)


class Pattern(Protocol):
    """An orchestration pattern (document 001, step 7): model_fn and tool_fn in, the final answer out.

    `scope` is the run's `astromesh.node.Scope`.
    """

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Any) -> Outcome: ...


@runtime_checkable
class Drawable(Protocol):
    """A pattern that can be drawn; those that are graphs can."""

    def to_mermaid(self, iterations: int) -> str:
        """A Mermaid diagram, for an agent with this `max_iterations`."""


@quick
@dataclass(frozen=True, slots=True)
class Terms:
    """How a pattern runs another agent; the defaults are those of an agent tool.

    Args:
        history: the conversation so far, in place of the agent's stored session; then nothing is stored.
        images: pictures that belong to the query.
        instructions: added to the agent's own system prompt.
        tools: offered beside the agent's own.
        max_iterations: model calls of the agent's tool loop, where its own bound is not smaller.
        speaks: its words are the outer run's own voice and stream as such.
        withheld: of a text that begins like JSON, whether it is no answer (a hand-off written as text).
    """

    history: tuple[Message, ...] | None = None
    images: tuple[Image, ...] = ()
    instructions: str = ""
    tools: ToolPort | None = None
    max_iterations: int | None = None
    speaks: bool = False
    withheld: Callable[[str], bool] | None = None


#: the terms of an agent tool
OWN_TERMS = Terms()


class RunAgent(Protocol):
    """Starts a nested run of another agent; injected into agent tools so that they do not know the runtime.

    Answers the run's answer as `POST /run` does: `{response, agent, session_id, run_id, metadata}`.
    """

    async def __call__(
        self,
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: Terms = OWN_TERMS,
    ) -> Mapping[str, Any]: ...
