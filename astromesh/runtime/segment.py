"""One segment of a durable run: the ordinary pipeline, with a record.

A segment ends in one transaction with the change of the run's row, or silently: where somebody else has the
run, or will have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from astromesh.abc.clock import Clock
from astromesh.abc.durable import Change, Claim, RunRow, RunStore, Step
from astromesh.abc.events import EventSink
from astromesh.errors import AstromeshError, SessionBusy, StoreUnavailable
from astromesh.runtime import failpoints
from astromesh.runtime.agent import Agent
from astromesh.runtime.decisions import decided, told
from astromesh.runtime.durable_stream import DurableStream
from astromesh.runtime.journal import Book, RunJournal
from astromesh.runtime.recorded import SCHEMA, ended_request, request_of
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.registry import left_of
from astromesh.runtime.run import GatedEvents, Run
from astromesh.runtime.runs import Handler
from astromesh.runtime.waiting import Waiting
from astromesh.runtime.writer import Writer, surely
from astromesh.types import CallerContext, Event, JsonObject

#: events that are read at once
_PAGE = 1000
_STATUS: dict[str, Any] = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.waiting": "waiting",
}


class Host(Protocol):
    """What a segment needs of the runtime."""

    clock: Clock

    @property
    def metrics(self) -> EventSink: ...

    def new_run(self, agent: Agent, request: RunRequest, caller: CallerContext, row: RunRow) -> Run: ...

    async def work_off(self, agent: Agent, request: RunRequest, run: Run, handle: Handler) -> RunAnswer: ...


class Segment:
    """One segment under way. `await work(handle)` once.

    Args:
        row: as it was claimed.
        agent: that the row's manifest describes.
        caller: who asked.
        told: called behind every transaction, with each run of the tree that it was about.
    """

    def __init__(
        self,
        host: Host,
        store: RunStore,
        row: RunRow,
        agent: Agent,
        caller: CallerContext,
        told: Callable[[str], None],
    ) -> None:
        self.row, self.agent = row, agent
        self._host, self._store, self._told = host, store, told
        self.request = request_of(row.request)
        self.run = host.new_run(agent, self.request, caller, row)
        self.writer = Writer(store, Claim(row.run_id, row.segment, row.worker), self._lost, self._written)
        self.waiting = Waiting(host.clock, self._pause)
        self.stream: DurableStream | None = None
        self._task: asyncio.Task[Any] | None = None
        self._paused = self._postponed = False
        #: the row, where the segment has ended for another one to begin
        self.handed_back: RunRow | None = None
        #: its record is of a newer astromesh
        self.too_new = False

    async def work(self, handle: Handler) -> None:
        """Works it off to its end, a pause, or until somebody else has it."""
        self._task = asyncio.current_task()
        if self.row.request.get("journal", SCHEMA) > SCHEMA:
            self.handed_back = await surely(partial(self._store.hand_back, self.writer.claim))
            self.too_new = True
            return
        try:
            await self._open()
            answer = await self._host.work_off(self.agent, self.request, self.run, handle)
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

    def stop(self) -> None:
        """Begins to cancel the run."""
        log = self.run.log
        if log.task is not None and not log.stopped and not self.run.suspended:
            log.stopped = True
            log.task.cancel()

    def suspend(self) -> None:
        """Ends the segment, and not the run: nothing more is said, nothing begins."""
        self.run.suspended = True
        if self.run.journal is not None:
            self.run.journal.book.suspended = True
        if self._task is not None:
            self._task.cancel()

    # -- its beginning -------------------------------------------------------------------------------------

    async def _open(self) -> None:
        row, run = self.row, self.run
        steps, past = await self._record()
        self.stream = stream = DurableStream(row.run_id, self.writer, run.log, (self._host.metrics,), past)
        run.stream = run.log.stream = stream
        run.events = run.scope.events = GatedEvents(stream, self.agent, run.scope.ledger)
        run.asked_at, run.said = row.created_at, stream.said
        book = Book(row, self.writer, self.waiting, steps, self._past, self._postpone)
        run.journal = run.scope.journal = RunJournal(book, "", row.run_id, run.model)
        run.journal.hear(stream)
        run.scope.deadline = self._deadline(steps)
        if steps:
            stream.emit("run.resumed", segment=row.segment, **_news(steps, past))

    async def _record(self) -> tuple[tuple[Step, ...], list[Event]]:
        """What earlier segments have left: for the first one nothing, without asking."""
        if self.row.segment == 1:
            return (), []
        return await surely(partial(self._store.steps, self.row.run_id)), await self._past(self.row.run_id)

    async def _past(self, run_id: str) -> list[Event]:
        """The events of this run, or of one nested in it, that earlier segments have left."""
        found: list[Event] = []
        if self.row.segment == 1:
            return found
        while page := await surely(partial(self._store.events, run_id, found[-1].seq if found else 0, _PAGE)):
            found += page
        return found

    def _deadline(self, steps: tuple[Step, ...]) -> float | None:
        """By the run's record: time that it waited for a person does not count."""
        clock, now = self._host.clock, self._host.clock.now()
        if self.row.deadline_at:
            return clock.monotonic() + self.row.deadline_at - now
        waits = [s.output for s in steps if s.kind == "wait" and s.output and "left" in s.output]
        if not waits:
            return None
        left: float = max(waits, key=lambda said: said["asked_at"])["left"]
        return clock.monotonic() + left

    # -- its end -------------------------------------------------------------------------------------------

    async def _end(self, answer: RunAnswer | None, error: AstromeshError | None) -> None:
        run, last = self.run, self.writer.last
        if last is None:  # lost before its last event
            self.writer.close()
            return
        usage, log = run.scope.ledger.usage, run.log
        result = answer.to_json() if answer else left_of(last.data)
        failure = None
        if last.type == "run.failed":
            failure = {"code": last.data["code"], "detail": last.data["detail"]}
        if run.journal is not None:
            run.journal.book.forget(always=bool(self.agent.guardrails.output_rules))
        failpoints.passing(failpoints.BEFORE_LAST_EVENT)
        await self.writer.finish(
            Change(
                status=_STATUS[last.type],
                result=result,
                error=failure,
                usage=usage,
                attempts=tuple(log.attempts),
                finished_at=self._host.clock.now(),
                request=ended_request(self.row.request, run.admitted),
            )
        )

    async def _wait(self) -> None:
        """The row becomes `waiting` with its event; the coroutines of the run are gone."""
        if self.stream is None:
            return
        clock, deadline = self._host.clock, self.run.scope.deadline
        left = None if deadline is None else max(deadline - clock.monotonic(), 1.0)
        questions = [said for _, said in self.waiting.open]
        for step, said in self.waiting.open:
            self.writer.step(step._replace(output={**said, "left": left} if left else said))
        approval = shown(self.row.run_id, questions[0])
        self.run.suspended = False
        self.stream.emit("run.waiting", approval=approval)
        await self.writer.finish(
            Change(
                status="waiting",
                waiting_for=approval,
                wake_at=min(said["expires_at"] for said in questions),
                deadline_at=0.0,
                usage=self.run.scope.ledger.usage,
            )
        )

    async def _hand_back(self) -> None:
        """What was done is on disk, and the row is queued again."""
        if await self.writer.finish(Change(wake_at=0.0)):
            self.handed_back = await surely(partial(self._store.hand_back, self.writer.claim))

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
        for run_id in {self.row.run_id, *(event.run_id for event in events)}:
            self._told(run_id)


def _news(steps: Sequence[Step], past: Sequence[Event]) -> JsonObject:
    """What people decided that no event has told yet."""
    before = [e.data.get("decisions", ()) for e in past if e.type == "run.resumed"]
    known = {one["decided_at"] for decisions in before for one in decisions}
    news = [told(one) for one in decided(steps) if one["decided_at"] and one["decided_at"] not in known]
    return {"decisions": news} if news else {}


def shown(run_id: str, question: JsonObject) -> JsonObject:
    """What a person is shown of a question."""
    kept = ("kind", "name", "arguments", "question", "asked_at", "expires_at", "path", "n")
    asking = question.get("agent", "")
    return {"run_id": run_id, **{key: question[key] for key in kept}, "asking_agent": asking}


def by_its_record(handler: Handler) -> Handler:
    """The innermost wrapper of a durable run: its deadline is in its row, its divergence is its end."""

    async def run_by_its_record(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        journal = run.journal
        assert journal is not None
        book, clock = journal.book, run.scope.clock
        if run.scope.deadline is not None:
            book.writer.change(Change(deadline_at=clock.now() + run.scope.deadline - clock.monotonic()))
        try:
            answer = await handler(agent, request, run)
        except AstromeshError:
            if book.failure is not None:
                raise book.failure from None
            raise
        if book.failure is not None:
            raise book.failure
        return answer

    return run_by_its_record


def patiently(handler: Handler) -> Handler:
    """An accepted run waits for its session as long as it takes, and for a store that is away.

    It was let in before. Where a store does not answer in its own time, another segment goes on behind what
    is done.
    """

    async def run_patiently(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        while True:
            try:
                return await handler(agent, request, run)
            except SessionBusy:
                if run.admitted:
                    raise
            except StoreUnavailable:
                assert run.journal is not None
                run.journal.book.postpone()
                await asyncio.get_running_loop().create_future()

    return run_patiently
