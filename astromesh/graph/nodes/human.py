"""HumanNode: a person decides whether and how a run goes on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Unpack

from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.config import NodeConfig
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes.transform import declared_input, may_answer
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState

Decision = Literal["approve", "deny", "answer"]

#: where in the context the name of the node that waits for a person stands
AWAITING = "_awaiting_human"
#: where in the context a person's decisions are put, by the name of the node that waits for them
DECISIONS = "_human_decisions"


@dataclass(frozen=True, slots=True)
class HumanRequest:
    """What a person is asked.

    Args:
        question: the node's instructions.
        value: what is to be decided on: the node's input, or the last output.
    """

    node: str
    question: str
    value: Any
    state: GraphState


@dataclass(frozen=True, slots=True)
class HumanDecision:
    """What a person said. `answer` is the output of the node where one was given."""

    decision: Decision
    answer: Any = None


class HumanNode(BaseNode):
    """Asks the engine's `human_handler` and goes on only with an approval or an answer.

    The handler takes a HumanRequest, sync or async, and answers a HumanDecision, a bool (approve or deny), a
    mapping `{"decision", "answer"}`, or a text, the answer. No handler, a handler that fails, and a decision
    that is none of these are denials.

    Without a handler the run ends as `human_denied` and stays pending: `context["_awaiting_human"]` names the
    node. Persist the context and the messages; to resume, add the decision under
    `context["_human_decisions"][NAME]` and invoke again.

    Args:
        approval_timeout: seconds a person has; then it is a denial. None: as long as it takes.
        keywords: see `NodeKeywords`; `instructions` are the question.
    """

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.REQUIRES_HUMAN})
    protected = True
    own = ("approval_timeout",)

    def __init__(
        self, name: str, *, approval_timeout: float | None = None, **keywords: Unpack[NodeKeywords]
    ) -> None:
        super().__init__(name, **keywords)
        self.approval_timeout = approval_timeout

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        value = declared_input(self, state)
        recorded = state.context.get(DECISIONS, {})
        if self.name in recorded:
            return self._decided(_decision(recorded[self.name]), value, state)
        if config.human_handler is None:
            state.context[AWAITING] = self.name
            why = f"{self.name!r} waits for a person and there is no handler."
            return NodeResult(self.name, error=why, stop_reason="human_denied")
        try:
            said = await self._ask(
                config.human_handler, HumanRequest(self.name, self.instructions, value, state)
            )
        except TimeoutError:
            return self._stopped(state, "human_timeout", f"{self.name!r} got no decision in time.")
        except Exception as error:  # noqa: BLE001 (a node's border: whatever breaks, nobody has approved)
            return self._stopped(state, "human_denied", f"The handler of {self.name!r} failed: {error}")
        return self._decided(_decision(said), value, state)

    async def _ask(self, handler: Callable[[HumanRequest], Any], request: HumanRequest) -> Any:
        async with asyncio.timeout(self.approval_timeout):
            said = handler(request)
            return await said if inspect.isawaitable(said) else said

    def _decided(self, decision: HumanDecision, value: Any, state: GraphState) -> NodeResult:
        if decision.decision == "deny":
            return self._stopped(state, "human_denied", f"{self.name!r} was denied.")
        state.context.pop(AWAITING, None)
        if decision.answer is not None:
            return NodeResult(self.name, decision.answer)
        return NodeResult(self.name, value, is_answer=may_answer(value, state))

    def _stopped(
        self, state: GraphState, reason: Literal["human_denied", "human_timeout"], error: str
    ) -> NodeResult:
        state.context.pop(AWAITING, None)
        return NodeResult(self.name, error=error, stop_reason=reason)


def _decision(said: Any) -> HumanDecision:
    """What a handler answered as a decision; anything that is not clearly one is a denial."""
    if isinstance(said, HumanDecision):
        return said
    if said is True:
        return HumanDecision("approve")
    if isinstance(said, Mapping):
        decision = said.get("decision")
        return HumanDecision(decision, said.get("answer")) if decision in _KNOWN else HumanDecision("deny")
    if isinstance(said, str) and said:
        # "deny" and "approve" said as a text are meant as such, not as an answer
        return HumanDecision(said) if said in ("approve", "deny") else HumanDecision("answer", said)  # type: ignore[arg-type]
    return HumanDecision("deny")


_KNOWN = ("approve", "deny", "answer")
