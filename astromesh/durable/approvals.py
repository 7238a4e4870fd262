"""Runs that wait for a person: the wait, the decision, and what callers see of both.

A run that waits is a row in a database and nothing else. The step that asks adds itself to `ApprovalWaits`
and never returns. When every active step waits and nothing else has happened for a moment, the segment ends
as `waiting` and its coroutines are gone. The decision is a finished step. It queues the next segment, which
reaches the same place by the record and finds the decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from astromesh.access.scopes import ANONYMOUS_USER
from astromesh.durable.base import JournalStep, RunRow, RunStore
from astromesh.durable.serialization import caller_of
from astromesh.errors import ApprovalNotFound, Forbidden, InvalidInput, NotDurable, NotWaiting
from astromesh.telemetry.clock import Clock
from astromesh.tools.base import HumanQuestion
from astromesh.tools.results import argument_validator, schema_errors
from astromesh.types import CallerContext, JsonObject, ToolSpec

#: what may be decided, by kind of question; of a kind that is not here, all
_ANY_DECISION = ("approve", "deny", "answer")


_DECISIONS: Mapping[str, Sequence[str]] = {
    "unknown_outcome": ("approve", "deny"),
    "identity": ("approve", "deny"),
}


_EVENT_KEYS = ("kind", "name", "decision", "by", "decided_at")


async def decide(store: RunStore, row: RunRow, decision: JsonObject) -> RunRow:
    """Stores a decision and returns the queued row. Any process of the database may resume it.

    Args:
        decision: `{"decision", "arguments"?, "answer"?, "by", "decided_at"}`.

    Raises:
        NotDurable: the run never waits. NotWaiting: the run does not wait now.
        InvalidInput: the decision does not fit the question, which stays open.
    """
    step = await pending_step(store, row)
    asked = step.output or {}
    check_decision(asked, decision)
    kept = {**asked, "asked_arguments": asked.get("arguments"), **decision}
    advanced = await store.advance(row.run_id, row.segment, [step._replace(state="done", output=kept)])
    if advanced is None:
        raise NotWaiting(f"The run {row.run_id!r} has been decided already.")
    return advanced


async def pending_step(store: RunStore, row: RunRow) -> JournalStep:
    """The step that a run waits in.

    Raises:
        NotDurable: the run never waits. NotWaiting: the run does not wait now.
    """
    if not row.durable:
        raise NotDurable(f"The run {row.run_id!r} is not durable: it never waits for a person.")
    if row.status != "waiting" or row.waiting_for is None:
        raise NotWaiting(f"The run {row.run_id!r} does not wait for anybody; it is {row.status}.")
    asked = row.waiting_for
    steps = await store.steps(row.run_id)
    step = next((s for s in steps if (s.path, s.n) == (asked["path"], asked["n"])), None)
    if step is None:
        raise ApprovalNotFound(f"The run {row.run_id!r} has no such question.")
    return step


def caller_after_decision(row: RunRow, decision: str, by: CallerContext) -> CallerContext | None:
    """As whom a run continues that somebody decides on: its caller, with the token that they show again.

    None where nobody does: the run asks for it when it needs it. Nobody's token but its caller's is used.

    Raises:
        Forbidden, InvalidInput: it waits for its caller's token, and this is another one, or none.
    """
    own = (by.tenant_id or "default", by.user_id or ANONYMOUS_USER) == (row.tenant, row.owner)
    if (row.waiting_for or {}).get("kind") == "identity" and decision != "deny":
        if not own:
            raise Forbidden(f"The run acts in the name of {row.owner!r}, who alone can show their token.")
        if not by.bearer_token:
            raise InvalidInput("The run goes on with the caller's token: resume it with one, not with a key.")
        if decision != "approve":
            raise InvalidInput("The run waits for its caller's token: 'approve' with it, or 'deny'.")
    if not own or not by.bearer_token:
        return None
    return replace(caller_of(row.caller), bearer_token=by.bearer_token)


def check_decision(question: JsonObject, decision: JsonObject) -> None:
    """Raises: InvalidInput: the decision does not fit the question, or its parts do not go together."""
    kind, said = question.get("kind", ""), decision["decision"]
    may = _DECISIONS.get(kind, _ANY_DECISION)
    if said not in may:
        raise InvalidInput(f"decision: {said!r} is none for what is asked ({kind}): {' or '.join(may)}.")
    if said == "answer" and decision.get("answer") is None:
        raise InvalidInput("answer: the decision 'answer' needs one, which is not null.")
    if said != "answer" and decision.get("answer") is not None:
        raise InvalidInput(f"answer: it goes with the decision 'answer' alone, not with {said!r}.")
    if decision.get("arguments") is not None:
        _check_arguments(question, said, decision["arguments"])


def _check_arguments(question: JsonObject, said: str, arguments: JsonObject) -> None:
    kind, parameters = question.get("kind"), question.get("parameters")
    if said != "approve" or kind != "approval":
        raise InvalidInput(
            f"arguments: they go with 'approve' of a tool call alone (kind: approval), not with {said!r} "
            f"of {kind}."
        )
    if parameters is None:  # asked by a version that did not keep them: the call itself checks
        return
    validator = argument_validator(ToolSpec(question["name"], parameters=parameters))
    if not validator.is_valid(arguments):
        faults = schema_errors(validator, arguments)
        raise InvalidInput(
            f"The arguments of {question['name']!r} do not fit: {faults}. The run still waits."
        )


# -- what was decided ----------------------------------------------------------------------------------------
def decisions_of(steps: Iterable[JournalStep]) -> list[JsonObject]:
    """Returns the decisions of a run and of its nested runs, in order, as `GET /v1/runs/{id}` shows them."""
    outputs = [s.output for s in steps if s.kind == "wait" and s.state == "done" and s.output]
    return sorted(map(_decision_json, outputs), key=lambda one: one["decided_at"] or 0.0)


def decision_event(decision: JsonObject) -> JsonObject:
    """Returns a decision as an event shows it, without content."""
    return {key: decision[key] for key in _EVENT_KEYS}


def _decision_json(output: JsonObject) -> JsonObject:
    """`arguments`: those of the question; `edited`: those that the person wrote instead."""
    asked = output.get("asked_arguments", output.get("arguments"))
    edited = {"edited": output["arguments"]} if output.get("arguments") != asked else {}
    answer = {"answer": output["answer"]} if "answer" in output else {}
    return {
        "kind": output.get("kind", ""),
        "name": output.get("name", ""),
        "agent": output.get("agent", ""),
        "arguments": asked,
        "asked_at": output.get("asked_at"),
        "decision": output.get("decision", ""),
        "by": output.get("by", ""),
        "decided_at": output.get("decided_at"),
        **edited,
        **answer,
    }


#: seconds in which other branches of the run may go on before it pauses
SETTLE_SECONDS = 0.05


class ApprovalWaits:
    """The approvals that a segment waits for.

    Args:
        pause: ends the segment; called once.
    """

    def __init__(self, clock: Clock, pause: Callable[[], None]) -> None:
        self._clock, self._pause = clock, pause
        self._watch: asyncio.Task[None] | None = None
        #: steps that wait, and what each asks
        self.pending: list[tuple[JournalStep, JsonObject]] = []
        #: model and tool calls under way, and how many have begun
        self.active = self.begun = 0

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call is under way."""
        self.active += 1
        self.begun += 1
        try:
            yield
        finally:
            self.active -= 1

    @contextmanager
    def suspended_call(self) -> Iterator[None]:
        """The call under way waits for a nested run, whose own calls count."""
        self.active -= 1
        try:
            yield
        finally:
            self.active += 1

    async def decision(
        self, step: JournalStep, asked: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        """Returns the decision. Without one it never returns: the segment ends instead."""
        if found is not None and found.state == "done":
            return found.output or {}
        question = (found.output if found is not None else None) or self._question(step, asked)
        if question["expires_at"] <= self._clock.now():
            return {"decision": "expired"}
        self.pending.append((step._replace(output=question), question))
        if self._watch is None:
            self._watch = asyncio.create_task(self._pause_when_idle())
        with self.suspended_call():
            await asyncio.get_running_loop().create_future()
        raise AssertionError("a pause only ends by cancelling")

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _question(self, step: JournalStep, asked: HumanQuestion) -> JsonObject:
        now = self._clock.now()
        return {
            "kind": asked.kind,
            "name": asked.name,
            "arguments": asked.arguments,
            "question": asked.question,
            "path": step.path,
            "n": step.n,
            "asked_at": now,
            "expires_at": now + asked.seconds,
            "parameters": asked.parameters,
            "agent": asked.agent,
        }

    async def _pause_when_idle(self) -> None:
        before = -1
        while self.active or self.begun != before:
            before = self.begun
            await asyncio.sleep(SETTLE_SECONDS)
        self._watch = None
        self._pause()
