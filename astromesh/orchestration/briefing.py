"""A model at work on a conversation of its own: a branch, a stage, a step of a plan.

`ToolLoop` is the model with its tools, bounded in model calls; `Briefed` gives it its conversation and takes
nothing of it back but the result, so that one worker never reads what another one said on the way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

from astromesh.errors import GraphStopped, IterationsExhausted
from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.config import Graph, Node, NodeConfig
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import CompletionRequest, CompletionResult, Message

#: the conversation that a worker is given
Brief = Callable[[GraphState, NodeConfig], Sequence[Message]]


class ToolLoop(PromptNode):
    """A model that calls tools until it answers, in so many calls; one that needs more fails.

    Args:
        max_rounds: model calls; that they are used up is an IterationsExhausted in the result.
        role: who speaks, see PromptNode.
        answers: whether what it says may be the run's answer.
        keywords: see `NodeKeywords`.
    """

    own_voice = True
    own: ClassVar[tuple[str, ...]] = ("role", "max_rounds", "answers")

    def __init__(
        self,
        name: str,
        *,
        max_rounds: int,
        role: str = "",
        answers: bool = True,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        keywords.setdefault("inject_tools", True)
        keywords.setdefault("routing", "edges_only")  # what it says is for readers: it goes out as it is
        super().__init__(name, role=role, **keywords)
        self.max_rounds, self.answers = max_rounds, answers

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        error = used_up(self.name, state, self.max_rounds)
        if error is None:
            return await super().execute(state, config)
        return NodeResult(self.name, error=str(error), exception=error)

    def _ask(self, request: CompletionRequest, config: NodeConfig) -> Awaitable[CompletionResult]:
        return super()._ask(request if self.answers else replace(request, answers=False), config)


def used_up(name: str, state: GraphState, max_rounds: int) -> IterationsExhausted | None:
    """The error of a tool loop that made all its model calls, or None while it may make another.

    Args:
        name: of the node that loops.
        max_rounds: model calls that it may make.
    """
    if sum(message.role == "assistant" for message in state.loop) < max_rounds:
        return None
    return IterationsExhausted(f"{name!r} has used up its {max_rounds} model calls.")


class Briefed(BaseNode):
    """Runs a prompt on a conversation of its own. Output: the prompt's.

    Args:
        prompt: whom to brief.
        brief: the conversation it is given; by default that of the run.
        collected: whether its limit is its own failure, for those who go on without it; else it ends the run.
        keywords: see `NodeKeywords`.
    """

    own_voice = True
    own: ClassVar[tuple[str, ...]] = ("prompt", "brief", "collected")

    def __init__(
        self,
        name: str,
        prompt: PromptNode,
        brief: Brief | None = None,
        *,
        collected: bool = False,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        super().__init__(name, **keywords)
        self.prompt, self.brief, self.collected = prompt, brief or _as_it_is, collected

    def children(self) -> Iterable[BaseNode]:
        return (self.prompt,)

    def lets_speak(self, child: Node | Graph) -> bool:
        return True

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        given = self.brief(state, config)
        own = apart(state, given)
        try:
            result = await config.run(self.prompt, own)
        except GraphStopped:
            _keep_last_words(state, own.messages[len(given) :])
            raise
        if result.error:
            _keep_last_words(state, own.messages[len(given) :])
            if isinstance(result.exception, IterationsExhausted) and not self.collected:
                raise result.exception
        return NodeResult(
            self.name, result.output, result.raw_output, error=result.error, exception=result.exception
        )


def _as_it_is(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    return state.messages


def apart(state: GraphState, messages: Sequence[Message]) -> GraphState:
    """The run seen with other messages, without what others gathered; what is written stays in it."""
    own = state.view(list(messages), dict(state.context))
    own.plan, own.observations, own.reflections = [], [], []
    return own


def _keep_last_words(state: GraphState, said: Sequence[Message]) -> None:
    """What a worker that did not finish said last, for a run that a limit ends here."""
    words = next((m.content for m in reversed(said) if m.role == "assistant" and m.content), "")
    if words:
        state.messages.append(Message("assistant", words))


# -- briefs ------------------------------------------------------------------------------------------------


def asked(messages: Sequence[Message], **sections: Any) -> tuple[Message, ...]:
    """A conversation whose last question is followed by titled sections, empty ones left out.

    Args:
        messages: system, history, the user's question.
        sections: texts by title.
    """
    place = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    if place < 0:
        return tuple(messages)
    question = messages[place]
    parts = [question.content, *(f"## {title}\n{text}" for title, text in sections.items() if text)]
    return (*messages[:place], Message("user", "\n\n".join(parts), images=question.images))
