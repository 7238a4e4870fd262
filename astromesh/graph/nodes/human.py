"""HumanNode: a person decides whether and how a run goes on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Unpack

from astromesh.graph.base import WITHOUT_MODEL, BaseNode, NodeKeywords
from astromesh.graph.canonical import digest
from astromesh.graph.config import NodeConfig
from astromesh.graph.containers import engine_forget, engine_write
from astromesh.graph.flags import NodeFlag
from astromesh.graph.keywords import check_seconds
from astromesh.graph.nodes.transform import declared_input, may_answer
from astromesh.graph.own_keys import AWAITING_HUMAN, HUMAN_DECISIONS, HUMAN_TICKET
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState

Decision = Literal["approve", "deny", "answer"]


@dataclass(frozen=True, slots=True)
class HumanRequest:
    """What a person is asked.

    Args:
        question: the node's instructions.
        value: what is to be decided on: the node's input, or the last output.
        ticket: of this visit and this value, for decisions that are kept.
        seconds: that the node gives a person, or None.
    """

    node: str
    question: str
    value: Any
    state: GraphState
    ticket: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HumanDecision:
    """What a person said. `answer` is the output of the node where one was given."""

    decision: Decision
    answer: Any = None


class HumanNode(BaseNode):
    """Asks the engine's `human_handler` and goes on only with an approval or an answer.

    The handler takes a HumanRequest, sync or async, and answers a HumanDecision, a bool (approve or deny), a
    mapping `{"decision", "answer"}`, or a text: `approve`, `deny`, `no` and the like are meant as such, any
    other is the answer. No handler, a handler that fails, an answer that is none, and a decision that is not
    clearly one of these are denials.

    Without a handler the run ends as `human_denied` and stays pending: `context["_awaiting_human"]` names the
    node, `context["_human_ticket"]` is the ticket of what is to be decided. Persist them; to resume, invoke
    again with the decision under `context["_human_decisions"][TICKET]`. An approval holds for this visit
    and this draft alone; a denial and an answer for this visit, whatever the draft has become.

    Args:
        approval_timeout: seconds a person has; then it is a denial. None: as long as it takes.
        keywords: see `NodeKeywords`; `instructions` are the question.
    """

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.REQUIRES_HUMAN})
    protected = True
    own = ("approval_timeout",)
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

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
        decision = _recorded(state.context.get(HUMAN_DECISIONS), visit, ticket)
        if decision is not None:
            return self._decided(decision, value, state)
        if config.human_handler is None:
            engine_write(state.context, AWAITING_HUMAN, self.name)
            engine_write(state.context, HUMAN_TICKET, ticket)
            why = f"{self.name!r} waits for a person and there is no handler; its ticket is {ticket!r}."
            return NodeResult(self.name, error=why, stop_reason="human_denied")
        try:
            request = HumanRequest(self.name, self.instructions, value, state, ticket, self.approval_timeout)
            said = await self._ask(config.human_handler, request)
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
        _no_longer_awaited(state)
        if decision.answer is not None:
            return NodeResult(self.name, decision.answer)
        return NodeResult(self.name, value, is_answer=may_answer(value, state))

    def _stopped(
        self, state: GraphState, reason: Literal["human_denied", "human_timeout"], error: str
    ) -> NodeResult:
        _no_longer_awaited(state)
        return NodeResult(self.name, error=error, stop_reason=reason)


def _recorded(decisions: Any, visit: str, ticket: str) -> HumanDecision | None:
    """What was decided before: for this visit and draft, or by a denial or an answer for this visit."""
    if not isinstance(decisions, Mapping):
        return None
    if ticket in decisions and ticket != visit:  # a draft without a fingerprint is like no other
        return _decision(decisions[ticket])
    others = (_decision(said) for key, said in decisions.items() if str(key).startswith(visit))
    return next((other for other in others if other.decision != "approve"), None)


def _no_longer_awaited(state: GraphState) -> None:
    for key in (AWAITING_HUMAN, HUMAN_TICKET):
        engine_forget(state.context, key)


def _decision(said: Any) -> HumanDecision:
    """What a handler answered as a decision; anything that is not clearly one is a denial."""
    if isinstance(said, str):
        return _in_words(said)
    if isinstance(said, Mapping):
        said = HumanDecision(said.get("decision"), said.get("answer"))  # type: ignore[arg-type]
    if isinstance(said, HumanDecision):
        return said if _is_clear(said) else _DENIED
    return HumanDecision("approve") if said is True else _DENIED


def _is_clear(said: HumanDecision) -> bool:
    return said.decision in _KNOWN and (said.decision != "answer" or said.answer is not None)


def _in_words(said: str) -> HumanDecision:
    """A text is the answer, unless all it says is a decision."""
    word = said.strip().rstrip(".!").casefold()
    if word in _DENIALS:
        return _DENIED
    return HumanDecision("approve") if word == "approve" else HumanDecision("answer", said)


_KNOWN = ("approve", "deny", "answer")
_DENIED = HumanDecision("deny")
#: texts that deny, in whatever case
_DENIALS = frozenset({"", "deny", "denied", "no", "false", "reject", "rejected", "refuse", "refused"})
