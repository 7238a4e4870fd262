"""Stages of Tasks that wait for a person or for the inspector: on disk, wherever the Task runs.

The worker of a Task looks every half second for what others did; a decision or an action in its own process
counts at once. A stage that waits when its process dies waits again where the Task goes on, or finds its
answer there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from astromesh.access.scopes import DECIDE, Viewer, permits
from astromesh.durable.approvals import check_decision
from astromesh.durable.tasks import OpenQuestion, TaskControl, TaskRow, TaskStore, TaskWait
from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import ApprovalNotFound, Conflict, Forbidden, InvalidInput, NotWaiting, TaskNotFound
from astromesh.runtime.runs import Decision
from astromesh.runtime.task_log import LiveTask
from astromesh.telemetry.clock import Clock
from astromesh.tools.json_schema import schema_errors, schema_validator
from astromesh.types import CallerContext, JsonObject
from astromesh.workflow.base import StageFault, task_path
from astromesh.workflow.inspector import Inspector
from astromesh.workflow.questions import Question

PAUSE = "pause"
#: open questions of a tenant that are looked through for a caller's
_MAX_OPEN = 5000


class TaskWaits:
    """What the stages of Tasks wait for. A `People` of all engines.

    Args:
        worker: Name of this process among those of the store.
        live: The Tasks that this process executes.
        store: Returns the open store.
        poll: Looks for what others did, at once.
    """

    def __init__(
        self,
        worker: str,
        live: Mapping[str, LiveTask],
        store: Callable[[], Awaitable[TaskStore]],
        clock: Clock,
        poll: Callable[[], Awaitable[None]],
    ) -> None:
        self._worker, self._live, self._store, self._clock = worker, live, store, clock
        self.poll = poll

    # -- stages of this process -----------------------------------------------------------------------------

    def task(self, task: str) -> LiveTask | None:
        """Returns the durable Task that a Task or descendant belongs to; None for one without a row."""
        live = self._live.get(task.partition("/")[0])
        return live if live is not None and live.row.durable else None

    def can_wait(self, task: str) -> bool:
        """See `People`."""
        return self.task(task) is not None

    async def ask(self, task: str, stage: str, ticket: str, question: Question) -> JsonObject:
        """See `People`."""
        now = self._clock.now()
        expires = now + question.seconds
        return await self._answer(task, stage, ticket, question.kind, question.to_json(), now, expires)

    async def pause(
        self, task: str, stage: str, input: Any, context: JsonObject | None, pauses: Callable[[], bool]
    ) -> None:
        """Returns when a paused stage may begin.

        Args:
            pauses: Whether the stage still has to pause.
        """
        question = {"input": input, "context": context}
        await self._answer(task, stage, "", PAUSE, question, self._clock.now(), 0.0, pauses)

    async def _answer(  # noqa: PLR0913 (a wait, and when it ends)
        self,
        task: str,
        stage: str,
        ticket: str,
        kind: str,
        question: JsonObject,
        now: float,
        expires: float,
        pauses: Callable[[], bool] | None = None,
    ) -> JsonObject:
        live, store = self.task(task), await self._store()
        if live is None:
            raise StageFault("not_durable", "Only a durable Task can wait for a person.")
        new = TaskWait(live.id, task_path(task), stage, ticket, kind, now, expires, question)
        changed = live.controlled
        wait, control = await retry_while_unavailable(partial(store.wait, self._worker, new))
        live.apply(control)
        while wait.answer is None:
            if pauses is not None and not pauses():  # released while its pause was stored
                await retry_while_unavailable(partial(store.answer, wait, {}))
            elif wait.expires_at and self._clock.now() >= wait.expires_at:
                expired = {"decision": "expired", "decided_at": self._clock.now()}
                await retry_while_unavailable(partial(store.answer, wait, expired))
            else:
                await self._change(changed, wait.expires_at)
            changed = live.controlled
            wait = await self._stored(store, wait)
        return wait.answer

    async def _change(self, changed: asyncio.Event, expires_at: float) -> None:
        """Waits until somebody acts on the Task, or until a question expires."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(changed.wait())]
        if expires_at:
            left = max(expires_at - self._clock.now(), 0.0)
            waits.append(asyncio.create_task(_sleep(self._clock, left)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _stored(self, store: TaskStore, wait: TaskWait) -> TaskWait:
        waits = await retry_while_unavailable(partial(store.waits, wait.task_id))
        return next((one for one in waits if one.key == wait.key), wait._replace(answer={}))

    def apply(self, controls: Collection[TaskControl]) -> None:
        """Tells the Tasks of this process what others did to them."""
        for control in controls:
            if (live := self._live.get(control.task_id)) is not None:
                live.apply(control)

    # -- people and operators -------------------------------------------------------------------------------

    async def of_task(self, task_id: str) -> tuple[TaskWait, ...]:
        return await (await self._store()).waits(task_id)

    async def open(self, viewer: Viewer, caller: CallerContext, limit: int) -> list[JsonObject]:
        """Returns the questions that a caller may answer, the oldest first."""
        found = await (await self._store()).open_questions(viewer.tenant, _MAX_OPEN)
        mine = [one for one in found if _may_answer(one.wait.question, one.owner, viewer, caller)]
        return [_open_json(one) for one in mine[:limit]]

    async def decide(
        self, task_id: str, viewer: Viewer, caller: CallerContext, ticket: str, decision: Decision
    ) -> None:
        """Stores a decision for a stage that waits; its worker goes on with it.

        Args:
            ticket: Which question, as `id` of an open one says; empty: the only one.

        Raises:
            TaskNotFound: there is no such Task, or not for this caller. ApprovalNotFound: no such question.
            NotWaiting: it is answered, or there is none. Conflict: several wait, and the request names none.
            Forbidden: the caller has no scope of the assignees.
            InvalidInput: the decision does not fit the question, which stays open.
        """
        store = await self._store()
        row = await store.get(task_id)
        waits = [one for one in await store.waits(task_id) if one.kind != PAUSE]
        if row is None or not _may_know(row, waits, viewer, caller):
            raise TaskNotFound(f"There is no Task {task_id!r}.")
        wait = _named(waits, ticket) if ticket else _only(waits, task_id)
        if not _may_answer(wait.question, row.owner, viewer, caller):
            scopes = ", ".join(wait.question["assignees"]) or DECIDE
            raise Forbidden(f"The question needs one of these scopes: {scopes}.")
        answer = _checked(wait, decision, caller, self._clock.now())
        if wait.answer is not None or not await store.answer(wait, answer):
            raise NotWaiting(f"The question {question_id(wait)!r} has been answered already.")
        await self.poll()

    async def act(self, task_id: str, action: Callable[[TaskStore], Awaitable[bool]]) -> bool:
        """Applies an action of the inspector on disk, and at once if the Task runs here."""
        done = await action(await self._store())
        if task_id in self._live:
            await self.poll()
        return done


async def _sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


class TaskGate:
    """The gate of one workflow: on disk for durable Tasks, of this process for the others.

    Args:
        inspector: Pauses Tasks without a row, and knows `task.pause_before`.
    """

    def __init__(self, inspector: Inspector, waits: TaskWaits) -> None:
        self._inspector, self._waits = inspector, waits

    def applies(self, task: str, stage: str) -> bool:
        """See `Gate`."""
        live = self._waits.task(task)
        if live is None:
            return self._inspector.applies(task, stage)
        return stage in self._inspector.pause_before or live.pauses(stage)

    async def __call__(self, task: str, stage: str, input: Any, context: JsonObject | None) -> None:
        """See `Gate`."""
        if self._waits.task(task) is None:
            await self._inspector(task, stage, input, context)
        else:
            await self._waits.pause(task, stage, input, context, partial(self.applies, task, stage))


# -- questions as callers see them -------------------------------------------------------------------------


def question_id(wait: TaskWait) -> str:
    """Returns the id of a question within its Task: path, stage and ticket."""
    return f"{wait.path}@{wait.stage}:{wait.ticket}"


def question_json(wait: TaskWait) -> JsonObject:
    """Returns a question, and its decision, as callers see it."""
    question = wait.question
    about = {key: question[key] for key in ("name", "arguments", "question", "schema", "edges", "assignees")}
    return {
        "id": question_id(wait), "task_id": wait.task_id, "task": wait.path, "stage": wait.stage,
        "kind": wait.kind, **about, "asked_at": wait.asked_at, "expires_at": wait.expires_at,
        **({"decision": wait.answer} if wait.answer is not None else {}),
    }  # fmt: skip


def paused_json(wait: TaskWait) -> JsonObject:
    """Returns a paused stage as callers see it."""
    return {"task": wait.task_id + wait.path, "stage": wait.stage, **wait.question}


def _open_json(one: OpenQuestion) -> JsonObject:
    return {**question_json(one.wait), "workflow": one.workflow}


def _may_answer(question: JsonObject, owner: str, viewer: Viewer, caller: CallerContext) -> bool:
    if assignees := question.get("assignees"):
        return any(permits(caller.scopes, scope) for scope in assignees)
    return permits(caller.scopes, DECIDE) and viewer.owner in (None, owner)


def _may_know(row: TaskRow, waits: Sequence[TaskWait], viewer: Viewer, caller: CallerContext) -> bool:
    """Whether a caller sees a Task: its owner, or somebody who may answer one of its questions."""
    if row.tenant != viewer.tenant:
        return False
    own = viewer.owner in (None, row.owner)
    return own or any(_may_answer(one.question, row.owner, viewer, caller) for one in waits)


def _named(waits: Sequence[TaskWait], ticket: str) -> TaskWait:
    for wait in waits:
        if question_id(wait) == ticket:
            return wait
    raise ApprovalNotFound(f"The Task has no question {ticket!r}.")


def _only(waits: Sequence[TaskWait], task_id: str) -> TaskWait:
    unanswered = [one for one in waits if one.answer is None]
    if not unanswered:
        raise NotWaiting(f"The Task {task_id!r} does not wait for a person.")
    if len(unanswered) > 1:
        known = ", ".join(map(question_id, unanswered))
        raise Conflict(f"The Task {task_id!r} waits for {len(unanswered)} answers; name a question: {known}.")
    return unanswered[0]


def _checked(wait: TaskWait, decision: Decision, caller: CallerContext, now: float) -> JsonObject:
    """Returns a decision as it is stored. Raises: InvalidInput: it does not fit the question."""
    question = {**wait.question, "kind": wait.kind}
    made: JsonObject = {"decision": decision.decision}
    made |= {"arguments": decision.arguments} if decision.arguments is not None else {}
    made |= {"answer": decision.answer} if decision.answer is not None else {}
    made |= {"note": decision.note} if decision.note else {}
    check_decision(question, made)
    if edges := question["edges"]:
        _check_edge(question, made, edges)
    elif question["schema"] and made["decision"] != "deny":
        _check_answer(question, made)
    return {**made, "by": caller.user_id, "decided_at": now}


def _check_answer(question: JsonObject, made: JsonObject) -> None:
    """Checks the output of a `human` node: the answer, or the input that is approved as it is."""
    validator = schema_validator(question["schema"])
    approved = made["decision"] == "approve"
    output = question["arguments"] if approved else made["answer"]
    if not validator.is_valid(output):
        faults = schema_errors(validator, output)
        what = f"decision: 'approve' passes the input on, and it does not fit: {faults}. Answer instead."
        raise InvalidInput(f"{what if approved else f'answer: {faults}.'} The stage still waits.")


def _check_edge(question: JsonObject, made: JsonObject, edges: Sequence[str]) -> None:
    known = ", ".join(map(repr, edges))
    if made["decision"] == "approve":
        raise InvalidInput(f"decision: 'approve' selects no edge. Answer with one of {known}, or deny.")
    if made["decision"] == "answer":
        answer = made["answer"]
        edge = answer.get(question["selection"]) if isinstance(answer, dict) else answer
        if not isinstance(edge, str) or edge not in edges:
            raise InvalidInput(
                f"answer: {edge!r} is not an edge. Known edges: {known}. The stage still waits."
            )
