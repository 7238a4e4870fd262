"""Nodes that run a model on a conversation of its own: a branch, a stage, a step of a plan.

`ToolLoop` is a model with its tools, bounded in model calls. `IsolatedNode` runs a prompt on its own
conversation and returns only the result, so that no worker reads the messages of another.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from msgspec.structs import replace

from astromesh.errors import GraphStopped, IterationsExhausted
from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.node_config import Graph, Node, NodeConfig
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import CompletionRequest, CompletionResult, Message

#: Makes the conversation of a worker.
Brief = Callable[[GraphState, NodeConfig], Sequence[Message]]


class ToolLoop(PromptNode):
    """A model that calls tools until it answers, within a number of calls.

    Args:
        max_rounds: The limit of model calls. After it the node fails with IterationsExhausted.
        role: See PromptNode.
        answers: Whether its text may be the answer of the run.
        keywords: See `NodeKeywords`.
    """

    decides_streaming = True

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
        keywords.setdefault("routing", "edges_only")  # its text is for readers and leaves unchanged
        super().__init__(name, role=role, **keywords)
        self.max_rounds, self.answers = max_rounds, answers

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        error = rounds_error(self.name, state, self.max_rounds)
        if error is None:
            return await super().execute(state, config)
        return NodeResult(self.name, error=str(error), exception=error)

    def _ask(self, request: CompletionRequest, config: NodeConfig) -> Awaitable[CompletionResult]:
        return super()._ask(request if self.answers else replace(request, answers=False), config)


def rounds_error(name: str, state: GraphState, max_rounds: int) -> IterationsExhausted | None:
    """Returns the error of a tool loop that has made all its model calls, or None if it may make another.

    Args:
        name: The name of the node.
        max_rounds: The limit of model calls.
    """
    if sum(message.role == "assistant" for message in state.loop) < max_rounds:
        return None
    return IterationsExhausted(f"{name!r} has used up its {max_rounds} model calls.")


class IsolatedNode(BaseNode):
    """Runs a prompt on its own conversation. The output is that of the prompt.

    Args:
        prompt: The node to run.
        brief: Makes the conversation. The default is that of the run.
        collected: Whether an exhausted limit is a failure of this node alone. Otherwise it ends the run.
        keywords: See `NodeKeywords`.
    """

    decides_streaming = True

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
        self.prompt, self.brief, self.collected = prompt, brief, collected

    def children(self) -> Iterable[BaseNode]:
        return (self.prompt,)

    def streams_child(self, child: Node | Graph) -> bool:
        return True

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        messages = self.brief(state, config) if self.brief else state.messages
        own = isolated_state(state, messages)
        try:
            result = await config.run(self.prompt, own)
        except GraphStopped:
            _keep_last_text(state, own.messages[len(messages) :])
            raise
        if result.error:
            _keep_last_text(state, own.messages[len(messages) :])
            if isinstance(result.exception, IterationsExhausted) and not self.collected:
                raise result.exception
        return NodeResult(
            self.name, result.output, result.raw_output, error=result.error, exception=result.exception
        )


def isolated_state(state: GraphState, messages: Sequence[Message]) -> GraphState:
    """Returns the state with other messages, and without plan, observations and reflections."""
    own = state.view(list(messages), dict(state.context))
    own.plan, own.observations, own.reflections = [], [], []
    return own


def _keep_last_text(state: GraphState, messages: Sequence[Message]) -> None:
    """Adds the last text of a worker that did not finish, for a run that a limit ends here."""
    text = next((m.content for m in reversed(messages) if m.role == "assistant" and m.content), "")
    if text:
        state.messages.append(Message("assistant", text))


# -- conversations -----------------------------------------------------------------------------------------
def append_sections(messages: Sequence[Message], **sections: Any) -> tuple[Message, ...]:
    """Returns a conversation with titled sections after its last question. Empty ones are left out.

    Args:
        messages: System, history, the user's question.
        sections: Texts by title.
    """
    place = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    if place < 0:
        return tuple(messages)
    question = messages[place]
    parts = [question.content, *(f"## {title}\n{text}" for title, text in sections.items() if text)]
    return (*messages[:place], Message("user", "\n\n".join(parts), attachments=question.attachments))


# -- the best worker for a task ----------------------------------------------------------------------------

_WORD = re.compile(r"[^\W_]{3,}")
#: Words that say nothing about the purpose of a worker.
_STOP_WORDS = frozenset(
    _WORD.findall(
        "about agent all and any answer answers anything are ask asks can could did does for from get has "
        "have her him his how its may more not our out question questions she should that the their them "
        "they this use user was were what when where which who why will with would you your"
    )
)


def best_fit(task: str, candidates: Mapping[str, str]) -> str:
    """Returns the candidate whose name and description share most words with a task. Ties go to the first.

    Args:
        task: What is to be done.
        candidates: The descriptions by name, at least one.
    """
    wanted = _stems(task)
    return max(candidates, key=lambda name: len(wanted & _stems(f"{name} {candidates[name]}")))


def _stems(text: str) -> set[str]:
    """Returns the beginnings of words, so that `plans` equals `plan`, and `billed` equals `billing`."""
    return {word.rstrip("s")[:4] for word in _WORD.findall(text.casefold()) if word not in _STOP_WORDS}
