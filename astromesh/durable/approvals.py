"""Runs that wait for a person, or for their client: the wait, the decision, and what callers see of both.

A waiting run is a row in a database and nothing else. The step that asks adds itself to `ApprovalWaits` and
never returns. When every active step waits, and no call begins for a moment, the segment ends as `waiting`
and its coroutines are gone. The decision is a finished step. It queues the next segment, which replays the
record up to the same place and finds the decision there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from typing import Any, Protocol

from msgspec.structs import replace

from astromesh.durable.base import JournalStep, RunRow, RunStore
from astromesh.durable.leases import LEASE_SECONDS
from astromesh.durable.serialization import caller_of
from astromesh.errors import ApprovalNotFound, Forbidden, InvalidInput, NotDurable, NotWaiting, ToolFailed
from astromesh.telemetry.clock import Clock
from astromesh.tools.base import HumanQuestion
from astromesh.tools.json_schema import argument_validator, schema_errors
from astromesh.types import ANONYMOUS_USER, CallerContext, JsonObject, ToolSpec

#: the decisions that a kind of question allows; any other kind allows all
_ANY_DECISION = ("approve", "deny", "answer")

_DECISIONS: Mapping[str, Sequence[str]] = {
    "unknown_outcome": ("approve", "deny"),
    "identity": ("approve", "deny"),
    "client_tool": ("answer", "deny"),
}


def question_id(path: str, n: int) -> str:
    """Returns the id of a question of a run: of the n-th step on a path."""
    return sha256(f"{path}#{n}".encode()).hexdigest()[:16]


_EVENT_KEYS = ("kind", "name", "decision", "by", "decided_at")


async def decide(store: RunStore, row: RunRow, decisions: Mapping[str, JsonObject]) -> RunRow:
    """Stores decisions in one transaction, and returns the queued row. Any process may resume it.

    Args:
        decisions: by the id of the question, `{"decision", "arguments"?, "answer"?, "note"?, "by",
            "decided_at"}`. The empty id is that of the oldest question.

    Raises:
        NotDurable: the run never waits. NotWaiting: the run does not wait now.
        ApprovalNotFound: it does not wait for one of these questions.
        InvalidInput: a decision does not fit its question. All questions stay open.
    """
    steps = await store.steps(row.run_id)
    decided: list[JournalStep] = []
    for which, decision in decisions.items():
        question = open_question(row, which)
        step = next((s for s in steps if (s.path, s.n) == (question["path"], question["n"])), None)
        if step is None:
            raise _no_such_question(row)
        check_decision(step.output or {}, decision)
        decided.append(decided_step(step, decision, (*steps, *decided)))
    advanced = await store.advance(row.run_id, row.segment, decided)
    if advanced is None:
        raise NotWaiting(f"The run {row.run_id!r} has been decided already.")
    return advanced


def decided_step(step: JournalStep, decision: JsonObject, steps: Iterable[JournalStep]) -> JournalStep:
    """Returns the step of a question with its decision, as the newest of the steps of its run."""
    question = step.output or {}
    output = {**question, "asked_arguments": question.get("arguments"), **decision}
    ordinal = 1 + max((one.ordinal for one in steps), default=0)
    return step._replace(state="done", output=output, ordinal=ordinal, started_at=decision["decided_at"])


def open_questions(row: RunRow) -> list[JsonObject]:
    """Returns what a waiting run asks, the oldest question first."""
    return questions_in(row.waiting_for)


def questions_in(waiting_for: Mapping[str, Any] | None) -> list[JsonObject]:
    """Returns the questions of `RunRow.waiting_for`, the oldest first."""
    if waiting_for is None:
        return []
    first = {key: value for key, value in waiting_for.items() if key != "others"}
    return [first, *waiting_for.get("others", ())]


def open_question(row: RunRow, which: str = "") -> JsonObject:
    """Returns a question of a waiting run, the oldest one without an id.

    Raises:
        NotDurable: the run never waits. NotWaiting: the run does not wait now.
        ApprovalNotFound: it does not wait for this question.
    """
    if not row.durable:
        raise NotDurable(f"The run {row.run_id!r} is not durable: it never waits for a person.")
    if row.status != "waiting" or row.waiting_for is None:
        text = f"The run {row.run_id!r} does not wait for a person; it is {row.status}."
        if row.status == "running":
            text += f" If its process has died, one with this store continues it within {LEASE_SECONDS:g} s."
        raise NotWaiting(text)
    found = (one for one in open_questions(row) if which in ("", question_id(one["path"], one["n"])))
    question = next(found, None)
    if question is None:
        raise _no_such_question(row)
    return question


def _no_such_question(row: RunRow) -> ApprovalNotFound:
    return ApprovalNotFound(
        f"The run {row.run_id!r} has no such question. GET /v1/runs/{row.run_id} lists its questions."
    )


def caller_after_decision(
    row: RunRow, question: JsonObject, decision: str, by: CallerContext
) -> CallerContext | None:
    """Returns the caller that a run continues with, if the person who decides is its own caller with a token.

    Otherwise returns None, and the run asks for a token when it needs one. The token of another person is
    never used.

    Raises:
        Forbidden, InvalidInput: the run waits for the token of its caller, and receives another one or none.
    """
    own = (by.tenant_id or "default", by.user_id or ANONYMOUS_USER) == (row.tenant, row.owner)
    if question.get("kind") == "identity" and decision != "deny":
        if not own:
            raise Forbidden(
                f"The run acts in the name of {row.owner!r}: only that caller can send its token."
            )
        if not by.bearer_token:
            raise InvalidInput(
                "The run waits for its caller's token: resume it with a token, not with a key."
            )
        if decision != "approve":
            raise InvalidInput("The run waits for its caller's token: send 'approve' with it, or 'deny'.")
    if not own or not by.bearer_token:
        return None
    return replace(caller_of(row.caller), bearer_token=by.bearer_token)


def check_decision(question: JsonObject, decision: JsonObject) -> None:
    """Raises: InvalidInput: the decision does not fit the question, or its parts do not go together."""
    kind, word = question.get("kind", ""), decision["decision"]
    allowed = _DECISIONS.get(kind, _ANY_DECISION)
    if word not in allowed:
        raise InvalidInput(
            f"decision: {word!r} does not answer a question of kind {kind}. Use {' or '.join(allowed)}."
        )
    is_null = word == "answer" and decision.get("answer") is None
    if is_null and not (kind == "client_tool" and "answer" in decision):  # null is the result of a tool
        raise InvalidInput("answer: the decision 'answer' needs an answer that is not null.")
    if word != "answer" and decision.get("answer") is not None:
        raise InvalidInput(f"answer: only the decision 'answer' takes an answer, not {word!r}.")
    if decision.get("arguments") is not None:
        _check_arguments(question, word, decision["arguments"])


def _check_arguments(question: JsonObject, decision: str, arguments: JsonObject) -> None:
    kind, parameters = question.get("kind"), question.get("parameters")
    if decision != "approve" or kind != "approval":
        raise InvalidInput(
            "arguments: only 'approve' of a tool call (kind: approval) takes them, "
            f"not {decision!r} of {kind}."
        )
    if parameters is None:  # a former version did not store them; the call checks its arguments
        return
    validator = argument_validator(ToolSpec(question["name"], parameters=parameters))
    if not validator.is_valid(arguments):
        faults = schema_errors(validator, arguments)
        raise InvalidInput(
            f"The arguments of {question['name']!r} do not fit: {faults}. The run still waits."
        )


# -- decisions -----------------------------------------------------------------------------------------------


def decisions_of(steps: Iterable[JournalStep]) -> list[JsonObject]:
    """Returns the decisions of a run and of its nested runs, in order, as `GET /v1/runs/{id}` shows them."""
    outputs = [s.output for s in steps if s.kind == "wait" and s.state == "done" and s.output]
    return sorted(map(_decision_json, outputs), key=lambda one: one["decided_at"] or 0.0)


def decision_event(decision: JsonObject) -> JsonObject:
    """Returns a decision as an event shows it, without content."""
    return {key: decision[key] for key in _EVENT_KEYS}


def _decision_json(output: JsonObject) -> JsonObject:
    """`arguments`: those of the question; `edited`: those that the person wrote instead."""
    arguments = output.get("asked_arguments", output.get("arguments"))
    edited = {"edited": output["arguments"]} if output.get("arguments") != arguments else {}
    answer = {"answer": output["answer"]} if "answer" in output else {}
    note = {"note": output["note"]} if output.get("note") else {}
    return {
        "kind": output.get("kind", ""),
        "name": output.get("name", ""),
        "agent": output.get("agent", ""),
        "arguments": arguments,
        "asked_at": output.get("asked_at"),
        "decision": output.get("decision", ""),
        "by": output.get("by", ""),
        "decided_at": output.get("decided_at"),
        **edited,
        **answer,
        **note,
    }


# -- the wait ------------------------------------------------------------------------------------------------

#: seconds in which other branches of the run may continue before it pauses
SETTLE_SECONDS = 0.05


class ApprovalWaits:
    """The approvals that a segment waits for.

    Args:
        pause: ends the segment; called once.
    """

    def __init__(self, clock: Clock, pause: Callable[[], None]) -> None:
        self._clock, self._pause = clock, pause
        self._watch: asyncio.Task[None] | None = None
        #: the steps that wait, each with its question
        self.pending: list[tuple[JournalStep, JsonObject]] = []
        #: the number of active model and tool calls, and of those that have begun
        self.active = self.begun = 0

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Counts a call as active."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Counts a call as active until `end`."""
        self.active += 1
        self.begun += 1

    def end(self) -> None:
        self.active -= 1

    @contextmanager
    def suspended_call(self) -> Iterator[None]:
        """Does not count the active call while it waits for a nested run, whose own calls count."""
        self.active -= 1
        try:
            yield
        finally:
            self.active += 1

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        """Returns the decision. Without one it never returns: the segment ends instead.

        Args:
            found: the step in the record.
        """
        if found is not None and found.state == "done":
            return found.output or {}
        question = (found.output if found is not None else None) or self._question(step, human_question)
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

    def _question(self, step: JournalStep, question: HumanQuestion) -> JsonObject:
        now = self._clock.now()
        return {
            "kind": question.kind,
            "name": question.name,
            "arguments": question.arguments,
            "question": question.question,
            "path": step.path,
            "n": step.n,
            "asked_at": now,
            "expires_at": now + question.seconds,
            "parameters": question.parameters,
            "agent": question.agent,
        }

    async def _pause_when_idle(self) -> None:
        before = -1
        while self.active or self.begun != before:
            before = self.begun
            await asyncio.sleep(SETTLE_SECONDS)
        self._watch = None
        self._pause()


class Waits(Protocol):
    """Asks people: `ApprovalWaits`, or one that counts no calls."""

    def begin(self) -> None:
        """Counts a call as active until `end`."""

    def end(self) -> None: ...

    def calling(self) -> AbstractContextManager[None]: ...

    def suspended_call(self) -> AbstractContextManager[None]: ...

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject: ...


class UncountedWaits:
    """Counts no calls: nothing ends while one is active. Subclasses say how a question is answered."""

    def begin(self) -> None:
        """Counts nothing."""

    def end(self) -> None:
        """Counts nothing."""

    @contextmanager
    def calling(self) -> Iterator[None]:
        yield

    suspended_call = calling


class NoWaits(UncountedWaits):
    """Asks nobody: a plain run does not wait."""

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        """Raises: ToolFailed: always."""
        raise ToolFailed(
            f"A person must approve a call of {human_question.name!r}, and this run cannot wait for one: "
            "give the graph (its engine) or the agent a `store`, or start a durable run."
        )
