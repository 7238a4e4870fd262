"""One segment of a durable run: the pipeline with a record of its steps.

The last transaction of a segment changes the row of the run. If another worker has taken the run, the segment
ends without one.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import ref

from msgspec.structs import replace

from astromesh.durable import failpoints
from astromesh.durable.approvals import ApprovalWaits, decision_event, decisions_of, question_id
from astromesh.durable.base import JournalStep, RunChange, RunRow, RunStore, SegmentClaim
from astromesh.durable.event_stream import DurableStream
from astromesh.durable.journal import RunJournal
from astromesh.durable.queue import LoadLimit
from astromesh.durable.run_registry import partial_result
from astromesh.durable.run_worker import Admission
from astromesh.durable.serialization import SCHEMA, caller_to_json, ended_request
from astromesh.durable.step_log import SegmentRecord, StepLog
from astromesh.durable.writer import SegmentWriter, retry_while_unavailable
from astromesh.errors import AstromeshError, SessionBusy, StoreUnavailable, stored_details
from astromesh.runtime.agent import Agent
from astromesh.runtime.content_capture import redactor_of
from astromesh.runtime.records import (
    RunAnswer,
    RunRequest,
    attachments_of,
    contents_by_hash,
    new_request_to_json,
    request_of,
    request_with_contents,
)
from astromesh.runtime.request_checks import priority_of, screen
from astromesh.runtime.run import Handler, Run
from astromesh.telemetry import ids
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.metrics import Metrics
from astromesh.tools.process_pool import ISOLATED
from astromesh.types import CallerContext, Event, JsonObject

#: events of one read
_PAGE = 1000
_STATUS: dict[str, Any] = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.waiting": "waiting",
}


class SegmentHost(Protocol):
    """The members of a runner that a segment uses."""

    clock: Clock

    @property
    def metrics(self) -> Metrics: ...

    def resumed_run(self, agent: Agent, request: RunRequest, caller: CallerContext, row: RunRow) -> Run: ...

    async def run_durable(self, agent: Agent, request: RunRequest, run: Run) -> RunAnswer: ...

    async def redacted(self, row: RunRow, steps: Sequence[JournalStep]) -> Sequence[JournalStep]: ...


class Segment:
    """One claimed segment. Call `work` once.

    Args:
        row: The row as it was claimed.
        agent: The agent that the row's manifest describes.
        notify: Called after every transaction, with the id of each run that it changed and the number of its
            last new event, or 0.

    Attributes:
        handed_back: The row, if the segment has ended for another one to begin.
        newer_version: Whether a newer astromesh wrote the record, which this one cannot read.
    """

    def __init__(  # noqa: PLR0913 (a segment has these parts)
        self,
        host: SegmentHost,
        store: RunStore,
        row: RunRow,
        request: RunRequest,
        agent: Agent,
        caller: CallerContext,
        notify: Callable[[str, int], None],
    ) -> None:
        self.row, self.agent = row, agent
        self._host, self._store, self._notify = host, store, notify
        self.request = request
        self.run = host.resumed_run(agent, self.request, caller, row)
        self.writer = SegmentWriter(
            store, SegmentClaim(row.run_id, row.segment, row.worker), self._lost, self._written
        )
        self.waiting = ApprovalWaits(host.clock, self._pause)
        self.stream: DurableStream | None = None
        self._task: asyncio.Task[Any] | None = None
        self._paused = self._postponed = False
        self.handed_back: RunRow | None = None
        self.newer_version = False

    async def work(self) -> None:
        """Executes the segment to its end, to a pause, or until another worker takes the run."""
        self._task = asyncio.current_task()
        if self.row.request.get("journal", SCHEMA) > SCHEMA:
            self.handed_back = await retry_while_unavailable(partial(self._store.requeue, self.writer.claim))
            self.newer_version = True
            return
        try:
            await self._open()
            answer = await self._host.run_durable(self.agent, self.request, self.run)
        except asyncio.CancelledError:
            if not (self._paused or self._postponed):
                self.writer.close()
                raise
            self._task.uncancel() if self._task else None
            await (self._wait() if self._paused else self._hand_back())
        except AstromeshError as error:
            await self._end(None, error)
        else:
            await self._end(answer, None)
        finally:
            self.waiting.close()
            self._host.metrics.leave(self.row.run_id)

    def stop(self) -> None:
        """Starts to cancel the run."""
        log = self.run.log
        if log.task is not None and not log.cancel_requested and not self.run.suspended:
            log.cancel_requested = True
            log.task.cancel()

    def suspend(self) -> None:
        """Ends the segment without ending the run: it emits and starts nothing more."""
        self.run.suspended = True
        if self.run.journal is not None:
            self.run.journal.step_log.suspended = True
        if self._task is not None:
            self._task.cancel()

    # -- its beginning -------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self.request.not_before and not self.request.accepted_at:
            self._date()
        row, run = self.row, self.run
        steps, past = await self._load_record()
        self.writer.is_suspect = row.deaths > 0
        # what ended its process ends no second server; a tool that works with its context needs this process
        ISOLATED.set(partial(_is_isolated, ref(self)))  # contexts outlive the segment
        self.stream = stream = DurableStream(row.run_id, self.writer, run.log, (self._host.metrics,), past)
        step_log = StepLog(
            row.run_id,
            row.agent,
            self.writer,
            self.waiting,
            steps,
            accepted_at=(row.forked_from or {}).get(
                "accepted_at", self.request.accepted_at or row.created_at
            ),
            manifest=row.manifest,
            segment=SegmentRecord(self.writer, self._load_events, self._postpone),
            inherited=None if row.forked_from is None else row.forked_from["inherited"],
        )
        step_log.writes_sessions = row.forked_from is None or self.request.persist
        redact = redactor_of(self.agent)
        run.journal = run.scope.journal = RunJournal(step_log, "", row.run_id, run.model, redact)
        run.journal.contents = contents_by_hash(self.request)
        run.use_stream(stream, self.agent)
        run.scope.deadline = self._deadline(steps)
        if past:
            stream.emit("run.resumed", segment=row.segment, **_new_decisions(steps, past))

    def _date(self) -> None:
        """Dates the prompts of a run that was accepted for later: now, in all its segments."""
        self.request = replace(self.request, accepted_at=self._host.clock.now())
        stored = {**self.row.request, "accepted_at": self.request.accepted_at}
        self.row, self.run.admitted_request = replace(self.row, request=stored), stored
        self.writer.change(RunChange(request=stored))

    async def _load_record(self) -> tuple[tuple[JournalStep, ...], list[Event]]:
        """Returns the steps and events of earlier segments. The first segment reads nothing."""
        if self.row.segment == 1:
            return (), []
        return await retry_while_unavailable(
            partial(self._store.steps, self.row.run_id)
        ), await self._load_events(self.row.run_id)

    async def _load_events(self, run_id: str) -> list[Event]:
        """Returns the events of earlier segments, of this run or of one nested in it."""
        found: list[Event] = []
        if self.row.segment == 1:
            return found
        while page := await retry_while_unavailable(
            partial(self._store.events, run_id, found[-1].seq if found else 0, _PAGE)
        ):
            found += page
        return found

    def _deadline(self, steps: tuple[JournalStep, ...]) -> float | None:
        """Returns the deadline by the record, without the time for which the run waited for a person."""
        clock, now = self._host.clock, self._host.clock.now()
        if self.row.deadline_at:
            return clock.monotonic() + self.row.deadline_at - now
        waits = [s.output for s in steps if s.kind == "wait" and s.output and "left" in s.output]
        if not waits:
            return None
        left: float = max(waits, key=lambda question: question["asked_at"])["left"]
        return clock.monotonic() + left

    # -- its end -------------------------------------------------------------------------------------------

    async def _end(self, answer: RunAnswer | None, error: AstromeshError | None) -> None:
        run, last = self.run, self.writer.last
        if last is None:  # another worker took the run before its last event
            self.writer.close()
            return
        usage, log = run.scope.ledger.usage, run.log
        result = answer.to_json() if answer else partial_result(last.data)
        failure = None
        if "code" in last.data:
            more = stored_details(error) if error is not None else {}
            failure = {"code": last.data["code"], "detail": last.data["detail"], "more": more}
        has_asked = None
        if run.journal is not None:
            step_log = run.journal.step_log
            steps = step_log.redact(await self._host.redacted(self.row, step_log.of_unknown_runs()))
            has_asked = any(step.kind == "wait" for step in steps) or None  # its events show the questions
        if self.request.screening is None and not run.admitted_query and self.agent.guardrails.input_rules:
            self.writer.scrub_soon()  # the raw text leaves the row now
        failpoints.reach(failpoints.BEFORE_LAST_EVENT)
        await self.writer.finish(
            RunChange(
                status=_STATUS[last.type],
                result=result,
                error=failure,
                usage=usage,
                attempts=tuple(log.attempts),
                finished_at=self._host.clock.now(),
                request=ended_request(run.admitted_request or self.row.request, run.admitted_query),
                raw=has_asked,
            )
        )

    async def _wait(self) -> None:
        """Makes the row `waiting`, with its event. The coroutines of the run have ended."""
        if self.stream is None:
            return
        clock, deadline = self._host.clock, self.run.scope.deadline
        left = None if deadline is None else max(deadline - clock.monotonic(), 1.0)
        questions = [question for _, question in self.waiting.pending]
        for step, question in self.waiting.pending:
            self.writer.step(step._replace(output={**question, "left": left} if left else question))
        approval, *others = [approval_json(self.row.run_id, question) for question in questions]
        if others:
            approval["others"] = others
        self.run.suspended = False
        usage = self.run.scope.ledger.usage
        self.stream.emit("run.waiting", approval=approval, usage=usage.to_json())
        await self.writer.finish(
            RunChange(
                status="waiting",
                waiting_for=approval,
                wake_at=min(question["expires_at"] for question in questions),
                deadline_at=0.0,
                usage=usage,
            )
        )

    async def _hand_back(self) -> None:
        """Stores what was done and queues the row again."""
        if await self.writer.finish(RunChange(wake_at=0.0)):
            self.handed_back = await retry_while_unavailable(partial(self._store.requeue, self.writer.claim))

    def _postpone(self) -> None:
        self._postponed = True
        self.suspend()

    def _pause(self) -> None:
        self._paused = True
        self.suspend()

    def _lost(self) -> None:
        self.suspend()

    def _written(self, events: Sequence[Event]) -> None:
        if self.stream is not None:
            self.stream.deliver([event for event in events if event.run_id == self.row.run_id])
        last = {self.row.run_id: 0} | {event.run_id: event.seq for event in events}
        for run_id, seq in last.items():
            self._notify(run_id, seq)


def _is_isolated(segment: ref[Segment], takes_context: bool) -> bool:
    found = segment()
    return found is not None and found.writer.is_suspect and not takes_context


def _new_decisions(steps: Sequence[JournalStep], past: Sequence[Event]) -> JsonObject:
    """Returns the decisions that no event has reported yet."""
    before = [e.data.get("decisions", ()) for e in past if e.type == "run.resumed"]
    known = {one["decided_at"] for decisions in before for one in decisions}
    news = [
        decision_event(one)
        for one in decisions_of(steps)
        if one["decided_at"] and one["decided_at"] not in known
    ]
    return {"decisions": news} if news else {}


def approval_json(run_id: str, question: JsonObject) -> JsonObject:
    """Returns what a person sees of a question."""
    keys = ("kind", "name", "arguments", "question", "asked_at", "expires_at", "path", "n")
    own = {"run_id": run_id, "id": question_id(question["path"], question["n"])}
    return {**own, **{key: question[key] for key in keys}, "asking_agent": question.get("agent", "")}


def under_journal(handler: Handler) -> Handler:
    """Stores the deadline in the row, and ends a run that does not repeat its record."""

    async def run_by_its_record(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        journal = run.journal
        assert journal is not None
        step_log, clock = journal.step_log, run.scope.clock
        if run.scope.deadline is not None:
            step_log.segment.writer.change(
                RunChange(deadline_at=clock.now() + run.scope.deadline - clock.monotonic())
            )
        try:
            answer = await handler(agent, request, run)
        except AstromeshError:
            if step_log.failure is not None:
                raise step_log.failure from None
            raise
        if step_log.failure is not None:
            raise step_log.failure
        return answer

    return run_by_its_record


def waiting_for_session(handler: Handler) -> Handler:
    """Makes a durable run wait for its session without a timeout: it was admitted when it was accepted.

    If a store does not answer, another segment continues after what is done.
    """

    async def run_patiently(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        while True:
            try:
                return await handler(agent, request, run)
            except SessionBusy:
                if run.admitted_query:
                    raise
            except StoreUnavailable:
                assert run.journal is not None
                run.journal.step_log.segment.postpone()
                await asyncio.get_running_loop().create_future()

    return run_patiently


async def stored_request(store: RunStore, row: RunRow) -> RunRequest:
    """Returns the request of a stored run, with the contents of its attachments."""
    request = request_of(row.request)
    if not any(one.sha256 for one in attachments_of(request)):
        return request
    found = await retry_while_unavailable(partial(store.attachments, row.run_id))
    return request_with_contents(request, {name: b64encode(data).decode() for name, data in found.items()})


def accepted_row(
    agent: Agent, request: RunRequest, caller: CallerContext, who: tuple[str, str], now: float, trace_id: str
) -> RunRow:
    """Returns the row of a run that is accepted now."""
    spec, (tenant, owner) = agent.manifest.spec, who
    merges = spec.sessions.concurrency == "merge"
    wake_at = now + spec.sessions.merge_window_ms / 1000 if merges else 0.0
    request = screen(agent.guardrails, request)
    is_checked = request.screening is not None or not agent.guardrails.input_rules
    return RunRow(
        run_id=ids.new_id("run_"),
        tenant=tenant,
        owner=owner,
        agent=agent.name,
        session_id=request.session_id,
        trace_id=trace_id or request.caused_by.trace_id or ids.trace_id(),
        status="queued",
        created_at=now,
        durable=True,
        request=new_request_to_json(request),
        metadata=dict(request.metadata) if is_checked else {},
        tags=request.tags if is_checked else (),
        manifest=agent.snapshot,
        caller=caller_to_json(caller),
        priority=priority_of(agent, request),
        ordered=not request.not_before,
        wake_at=request.not_before or wake_at,
    )


def admission_of(agent: Agent) -> Admission:
    """Returns how the runs of an agent are admitted."""
    spec = agent.manifest.spec
    keeps_token = any(tool.as_caller for tool in agent.tools.specs())
    queue = LoadLimit(spec.queue.max_queued, spec.queue.max_wait_seconds)
    return Admission(spec.sessions.concurrency, queue, keeps_token)
