"""What people decide about runs that wait, written down: the run goes on from its row, wherever that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from astromesh.abc.durable import RunRow, RunStore, Step
from astromesh.errors import ApprovalNotFound, Forbidden, InvalidInput, NotDurable, NotWaiting
from astromesh.node.tool_results import argument_validator, faults_of
from astromesh.runtime.recorded import caller_of
from astromesh.runtime.run import ANONYMOUS
from astromesh.types import CallerContext, JsonObject, ToolSpec

#: what may be decided, by kind of question; of a kind that is not here, all
_ALL = ("approve", "deny", "answer")
_MAY: Mapping[str, Sequence[str]] = {
    "unknown_outcome": ("approve", "deny"),
    "identity": ("approve", "deny"),
}
_TOLD = ("kind", "name", "decision", "by", "decided_at")


async def decide(store: RunStore, row: RunRow, decision: JsonObject) -> RunRow:
    """The row as it is queued again; any process of its database may take it up.

    Args:
        decision: `{"decision", "arguments"?, "answer"?, "by", "decided_at"}`.

    Raises:
        NotDurable: it never waits. NotWaiting: it does not wait, or no longer.
        InvalidInput: the decision does not fit the question, which stays open.
    """
    step = await question_of(store, row)
    asked = step.output or {}
    check(asked, decision)
    kept = {**asked, "asked_arguments": asked.get("arguments"), **decision}
    advanced = await store.advance(row.run_id, row.segment, [step._replace(state="done", output=kept)])
    if advanced is None:
        raise NotWaiting(f"The run {row.run_id!r} has been decided already.")
    return advanced


async def question_of(store: RunStore, row: RunRow) -> Step:
    """The step that a run waits in.

    Raises:
        NotDurable: it never waits. NotWaiting: it does not wait, or no longer.
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


def resumed_as(row: RunRow, decision: str, by: CallerContext) -> CallerContext | None:
    """As whom a run goes on that somebody decides on: its caller, with the token that they show again.

    None where nobody does: the run asks for it when it needs it. Nobody's token but its caller's is used.

    Raises:
        Forbidden, InvalidInput: it waits for its caller's token, and this is another one, or none.
    """
    own = (by.tenant_id or "default", by.user_id or ANONYMOUS) == (row.tenant, row.owner)
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


def check(question: JsonObject, decision: JsonObject) -> None:
    """Raises: InvalidInput: the decision does not fit the question, or its parts do not go together."""
    kind, said = question.get("kind", ""), decision["decision"]
    may = _MAY.get(kind, _ALL)
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
        faults = faults_of(validator, arguments)
        raise InvalidInput(
            f"The arguments of {question['name']!r} do not fit: {faults}. The run still waits."
        )


# -- what was decided ----------------------------------------------------------------------------------------


def decided(steps: Iterable[Step]) -> list[JsonObject]:
    """What people decided in a run and in those nested in it, in order, as `GET /v1/runs/{id}` has it."""
    outputs = [s.output for s in steps if s.kind == "wait" and s.state == "done" and s.output]
    return sorted(map(_record, outputs), key=lambda one: one["decided_at"] or 0.0)


def told(decision: JsonObject) -> JsonObject:
    """A decision as an event tells it: no content."""
    return {key: decision[key] for key in _TOLD}


def _record(output: JsonObject) -> JsonObject:
    """`arguments`: that were asked about; `edited`: that the person wrote instead."""
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
