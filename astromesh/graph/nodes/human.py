"""HumanNode: a person decides whether and how a run continues."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Unpack

from astromesh.errors import is_failure, text_of
from astromesh.graph.base import MODEL_KEYWORDS, BaseNode, NodeKeywords
from astromesh.graph.flags import NodeFlag
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.function import declared_input, may_answer
from astromesh.graph.records import NodeResult, digest
from astromesh.graph.scope import Scope
from astromesh.graph.state import (
    AWAITING_HUMAN,
    HUMAN_DECISIONS,
    HUMAN_TICKET,
    GraphState,
    engine_forget,
    engine_write,
)
from astromesh.graph.validation import check_seconds
from astromesh.tools.base import HumanQuestion
from astromesh.types import JsonObject

Decision = Literal["approve", "deny", "answer"]


@dataclass(frozen=True, slots=True)
class HumanRequest:
    """The question to a person.

    Args:
        question: The node's instructions.
        value: What is to be decided on: the node's input, or the last output.
        ticket: The identity of this visit and this value, for stored decisions.
        seconds: The time that the node allows, or None.
    """

    node: str
    question: str
    value: Any
    state: GraphState
    ticket: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HumanDecision:
    """The decision of a person. `answer`, if there is one, becomes the output of the node."""

    decision: Decision
    answer: Any = None


class HumanNode(BaseNode):
    """Asks the engine's `human_handler` and continues only after an approval or an answer.

    The handler takes a HumanRequest, sync or async. It returns a HumanDecision, a bool (approve or deny), a
    mapping `{"decision", "answer"}`, or a text: `approve`, `deny`, `no` and similar words are decisions, any
    other text is the answer. A missing handler, a handler that fails, an invalid answer and an unclear
    decision are denials.

    Without a handler the run ends as `human_denied` and stays pending: `context["_awaiting_human"]` names the
    node, `context["_human_ticket"]` is the ticket of the decision. Store them. To resume, invoke the graph
    again with the decision under `context["_human_decisions"][TICKET]`. An approval is valid for this visit
    and this draft alone. A denial and an answer are valid for this visit, even if the draft has changed.

    Args:
        approval_timeout: Seconds that a person has. After them it is a denial. None: no limit.
        keywords: See `NodeKeywords`. `instructions` are the question.
    """

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.REQUIRES_HUMAN})
    protected = True
    constructor_keys = ("approval_timeout",)
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

    def __init__(
        self, name: str, *, approval_timeout: float | None = None, **keywords: Unpack[NodeKeywords]
    ) -> None:
        super().__init__(name, **keywords)
        if approval_timeout is not None:
            check_seconds(f"Node {name!r}", "approval_timeout", approval_timeout)
        self.approval_timeout = approval_timeout

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        value = declared_input(self, state)
        visit = f"{config.path}#{1 + sum(done.node_name == self.name for done in state.node_history)}:"
        ticket = visit + digest(value)
        decision = _stored_decision(state.context.get(HUMAN_DECISIONS), visit, ticket)
        if decision is not None:
            return self._result_of(decision, value, state)
        if config.human_handler is None:
            engine_write(state.context, AWAITING_HUMAN, self.name)
            engine_write(state.context, HUMAN_TICKET, ticket)
            why = f"{self.name!r} waits for a person and there is no handler; its ticket is {ticket!r}."
            return NodeResult(self.name, error=why, stop_reason="human_denied")
        try:
            request = HumanRequest(self.name, self.instructions, value, state, ticket, self.approval_timeout)
            answer = await self._ask(config.human_handler, request)
        except TimeoutError:
            return self._denied(state, "human_timeout", f"{self.name!r} got no decision in time.")
        except BaseException as error:  # boundary of a node: after any failure nobody has approved
            if not is_failure(error):
                raise
            why = text_of(error) or type(error).__name__
            denied = self._denied(state, "human_denied", f"The handler of {self.name!r} failed: {why}")
            return replace(denied, exception=error)
        return self._result_of(_decision(answer), value, state)

    async def _ask(self, handler: Callable[[HumanRequest], Any], request: HumanRequest) -> Any:
        async with asyncio.timeout(self.approval_timeout):
            answer = handler(request)
            return await answer if inspect.isawaitable(answer) else answer

    def _result_of(self, decision: HumanDecision, value: Any, state: GraphState) -> NodeResult:
        if decision.decision == "deny":
            return self._denied(state, "human_denied", f"{self.name!r} was denied.")
        _clear_pending(state)
        if decision.answer is not None:
            return NodeResult(self.name, decision.answer)
        return NodeResult(self.name, value, is_answer=may_answer(value, state))

    def _denied(
        self, state: GraphState, reason: Literal["human_denied", "human_timeout"], error: str
    ) -> NodeResult:
        _clear_pending(state)
        return NodeResult(self.name, error=error, stop_reason=reason)


def human_handler(scope: Scope) -> Callable[[HumanRequest], Awaitable[JsonObject]]:
    """Returns the handler of human nodes in a run with a journal. The run waits until a person decides."""

    async def ask(request: HumanRequest) -> JsonObject:
        journal = scope.journal
        assert journal is not None
        question = HumanQuestion("human", request.node, request.value, request.question)
        if request.seconds is not None:
            question = question._replace(seconds=request.seconds)
        decision = await journal.person(scope, request.ticket, question)
        if decision["decision"] == "expired":
            raise TimeoutError
        return decision

    return ask


def _stored_decision(decisions: Any, visit: str, ticket: str) -> HumanDecision | None:
    """Returns an earlier decision: for this visit and draft, or a denial or an answer for this visit."""
    if not isinstance(decisions, Mapping):
        return None
    if ticket in decisions and ticket != visit:  # a draft without a fingerprint equals no other
        return _decision(decisions[ticket])
    others = (_decision(answer) for key, answer in decisions.items() if str(key).startswith(visit))
    return next((other for other in others if other.decision != "approve"), None)


def _clear_pending(state: GraphState) -> None:
    for key in (AWAITING_HUMAN, HUMAN_TICKET):
        engine_forget(state.context, key)


def _decision(answer: Any) -> HumanDecision:
    """Returns a handler's answer as a decision. Anything unclear is a denial."""
    if isinstance(answer, str):
        return _decision_in_text(answer)
    if isinstance(answer, Mapping):
        answer = HumanDecision(answer.get("decision"), answer.get("answer"))  # type: ignore[arg-type]
    if isinstance(answer, HumanDecision):
        return answer if _is_valid(answer) else _DENIED
    return HumanDecision("approve") if answer is True else _DENIED


def _is_valid(decision: HumanDecision) -> bool:
    return decision.decision in _DECISIONS and (decision.decision != "answer" or decision.answer is not None)


def _decision_in_text(text: str) -> HumanDecision:
    """Returns a text as the answer, unless all of it is a decision."""
    word = text.strip().rstrip(".!").casefold()
    if word in _DENIAL_WORDS:
        return _DENIED
    return HumanDecision("approve") if word == "approve" else HumanDecision("answer", text)


_DECISIONS = ("approve", "deny", "answer")
_DENIED = HumanDecision("deny")
#: Texts that deny, in upper or lower case.
_DENIAL_WORDS = frozenset({"", "deny", "denied", "no", "false", "reject", "rejected", "refuse", "refused"})
