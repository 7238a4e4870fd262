"""The durable runs of one process: accepted, dispatched, worked off segment by segment, taken over.

The row of a run is the truth: it is there before a caller hears 202. Dispatching comes behind it and may
happen any number of times; the claim of a segment decides who works. A sweeper dispatches again what nobody
has worked on for a while, and what a dead worker had.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from socket import gethostname
from time import monotonic
from typing import Any, Protocol

import structlog

from astromesh.abc.durable import (
    Change,
    Claim,
    DurableBackend,
    IdempotencyKey,
    RunRow,
    RunStore,
)
from astromesh.errors import (
    AstromeshError,
    LeaseLost,
    NotWaiting,
    Overloaded,
    ShuttingDown,
    StoreError,
)  # fmt: skip
from astromesh.runtime import failpoints, ids
from astromesh.runtime.agent import Agent
from astromesh.runtime.backlog import Backlog
from astromesh.runtime.decisions import decide, resumed_as
from astromesh.runtime.news import News
from astromesh.runtime.presence import Presence
from astromesh.runtime.recorded import asked_to_json, caller_of, caller_to_json, ended_request
from astromesh.runtime.records import RunRequest
from astromesh.runtime.retention import Kept, expire
from astromesh.runtime.run import ANONYMOUS
from astromesh.runtime.runs import Handler
from astromesh.runtime.segment import Host, Segment
from astromesh.runtime.slots import Room
from astromesh.runtime.writer import ended, outages, surely
from astromesh.types import CallerContext, Event, JsonObject

#: seconds after which a worker that is not heard of is dead, and between two signs of life; tests of crashes
#: shorten the first, in every process of a database alike
LEASE = float(os.environ.get("ASTROMESH_LEASE_SECONDS", "10"))
BEAT = LEASE / 5
#: seconds after which a run that is still queued is dispatched again, wherever it was before
QUEUED = 2.0
#: seconds between two looks for runs that were cancelled elsewhere, and for those nobody works on
_CANCELS, _SWEEP = 0.5, 1.0

#: runs that a process begins by itself as it accepts them, and those that it holds until it has room; more go
#: to the queue, for whoever has room
_HERE, _NEXT = 128, 1000
#: seconds: no run has been queued for so long
_NEVER = 1e9
#: seconds until a run begins again that found a store away
_POSTPONED = 0.5
#: seconds in which others may take a run whose record this version cannot read
_TOO_NEW = 5.0
#: callers of runs that no segment has begun of here
_MOST_CALLERS = 10_000

log = structlog.get_logger("astromesh.durable")


class Opening(Host, Protocol):
    """What durable runs need of the runtime beside its runs."""

    @property
    def may_hold_runs(self) -> bool: ...

    async def open_runs(self) -> RunStore: ...

    async def open_backend(self) -> DurableBackend: ...

    @property
    def kept(self) -> Kept: ...

    @property
    def most_running(self) -> Mapping[str, int]: ...

    async def agent_of(self, row: RunRow) -> Agent: ...


class DurableRuns:
    """Opened by the first run that needs it, or by `start`.

    Args:
        handle: the pipeline with all that wraps a durable run.
        presence: which workers of this machine live.
    """

    def __init__(self, host: Opening, handle: Handler, presence: Presence) -> None:
        self._presence = presence
        self.worker = f"{gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._host, self._handle = host, handle
        self._store: RunStore | None = None
        self._backend: DurableBackend | None = None
        self._opening = asyncio.Lock()
        self._draining = False
        #: at first all that is queued: whoever had it may have died with the last process
        self._queued = 1e-6
        self._segments: dict[str, Segment] = {}
        #: runs that a claim was asked for or that are worked on
        self._mine: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tending: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._callers: dict[str, CallerContext] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        #: runs that are begun here at once
        self.at_once = _HERE
        self._next = Backlog(_NEXT)
        self._later: set[asyncio.Task[None]] = set()
        self._news = News()
        self._room: dict[str, Room] = {}
        self._choosing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # -- life ----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._store is not None

    @property
    def store(self) -> RunStore:
        if self._store is None:
            raise ShuttingDown("The store of runs is not open.")
        return self._store

    async def open(self) -> RunStore:
        """The store; runs can be asked about, and none is worked on by that."""
        async with self._opening:
            if self._store is None:
                self._store, (days, most) = await self._host.open_runs(), self._host.kept
                delete = partial(self._store.expire, most=most)
                self._expiring = asyncio.create_task(expire(delete, self._host.clock, days))
            return self._store

    async def reach(self) -> RunStore | None:
        """The store, where it may hold runs of other processes or earlier ones; else None."""
        if self._store is None and self._host.may_hold_runs:
            await self.open()
        return self._store

    async def start(self) -> None:
        """Works on runs from now on, those that a dead process left too."""
        store = await self.open()
        async with self._opening:
            if self._backend is not None or self._draining:
                return
            await store.beat(self.worker)
            self._presence.enter(self.worker)
            self._backend = await self._started()
            self._tending = asyncio.create_task(self._tend())

    async def _started(self) -> DurableBackend:
        """What dispatches, dispatching; where it cannot begin, nothing of it stays open."""
        backend = await self._host.open_backend()
        try:
            await backend.start(self.work)
        except BaseException:
            await backend.close()
            raise
        return backend

    async def drain(self) -> None:
        """Takes no new segments; those under way go on."""
        self._draining = True
        if self._backend is not None:
            await self._backend.drain()

    async def close(self, grace: float) -> None:
        """Takes no new segments, waits at most `grace` seconds for those under way, hands over the rest.

        A worker that has left is thought dead: before this, runs that named it must have ended.
        """
        await self.drain()
        async with self._opening:  # one that begins meanwhile ends here too
            pass
        await ended(self._expiring)
        if self._backend is None:
            return
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for segment in tuple(self._segments.values()):
            segment.suspend()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for beginning in (*self._later, *self._beginning):
            await ended(beginning)
        await ended(self._tending)
        await self._hand_over()
        await self._backend.close()

    async def _hand_over(self) -> None:
        """What was not done is queued for whoever looks next; nothing is dispatched here any more."""
        try:
            await self.store.leave(self.worker)
            self._presence.leave(self.worker)
        except StoreError as error:  # they are taken over when the lease has passed
            log.warning("runs_not_handed_over", error=str(error))

    # -- accepting -----------------------------------------------------------------------------------------

    async def accept(
        self,
        agent: Agent,
        request: RunRequest,
        caller: CallerContext,
        who: tuple[str, str],
        *,
        trace_id: str = "",
        key: IdempotencyKey | None = None,
    ) -> RunRow:
        """Keeps a run for good; when this returns it survives any crash.

        Args:
            who: tenant and owner.
            key: the caller's own name of this request; the run that has it already is answered.

        Raises:
            StoreUnavailable: it was not accepted.
            SessionBusy: its agent's policy is to reject, and the session answers another message.
            Overloaded: as many runs of its agent wait to begin as may.
            IdempotencyConflict: the key was used with another body.
        """
        if self._draining:
            raise ShuttingDown("The server is shutting down; send the request again.")
        await self.start()
        row = accepted(agent, request, caller, who, self._host.clock.now(), trace_id)
        kept = await self._let_in(agent, row, key)
        failpoints.passing(failpoints.ACCEPTED)
        if kept.run_id != row.run_id:  # it was there, or this one has become part of it
            return kept
        self._remember(row.run_id, caller)
        policy = agent.manifest.spec.sessions.concurrency
        if policy == "interrupt":
            with suppress(StoreError):  # they are looked for again in a moment
                await self._cancel_asked()
        if policy == "merge":
            self._keep(self._send_later(kept))
            return kept
        if caller.bearer_token and any(spec.as_caller for spec in agent.tools.specs()):
            self._begin(kept.run_id, kept.segment)
        await self._send(kept)
        return kept

    async def _let_in(self, agent: Agent, row: RunRow, key: IdempotencyKey | None) -> RunRow:
        """The run, or the one that it has become part of, or that has its key; where there is room."""
        spec, room = agent.manifest.spec, self._room.setdefault(agent.name, Room(self._host.clock))
        count = partial(self.store.queued, agent.name)
        accept = partial(self.store.accept, row, key, spec.sessions.concurrency)
        try:
            return await room.enter(count, agent.name, spec.queue.max_queued, accept)
        except Overloaded:
            earlier = await self._earlier(key, row)
            if earlier is None:
                raise
            return earlier

    async def _earlier(self, key: IdempotencyKey | None, row: RunRow) -> RunRow | None:
        """The run that has a key already; a key that nobody has is kept for no time."""
        if key is None:
            return None
        run_id = await self.store.name(key._replace(expires_at=row.created_at), row.run_id)
        return await self.store.get(run_id)

    async def _send_later(self, row: RunRow) -> None:
        """When its window has closed. Where this process dies before, the sweeper of another one does it."""
        while (left := row.wake_at - self._host.clock.now()) > 0:
            await self._host.clock.sleep(left)
        await self._send(row)

    async def decide(self, row: RunRow, decision: JsonObject, by: CallerContext) -> RunRow:
        """What a person decided about a run that waits; the run goes on.

        Args:
            decision: `{"decision", "arguments"?, "answer"?}`.
            by: who decides, which is kept; the run goes on with their token where it is its own caller.

        Raises:
            NotWaiting: it does not wait, or no longer.
            Forbidden, InvalidInput: it waits for the token of its caller, and this is another one, or none.
            InvalidInput: the decision does not fit the question, which stays open.
        """
        if row.status != "waiting" or row.waiting_for is None:
            raise NotWaiting(f"The run {row.run_id!r} does not wait for anybody; it is {row.status}.")
        await self.start()
        caller = resumed_as(row, decision["decision"], by)
        made = {"by": by.user_id or ANONYMOUS, "decided_at": self._host.clock.now()}
        advanced = await decide(self.store, row, {**decision, **made})
        if caller is not None:
            self._remember(row.run_id, caller)
            self._begin(advanced.run_id, advanced.segment)
        await self._send(advanced)
        return advanced

    def _remember(self, run_id: str, caller: CallerContext) -> None:
        """Keeps a caller, with its token, until a segment of the run begins here."""
        self._callers[run_id] = caller
        while len(self._callers) > _MOST_CALLERS:  # of runs that others have claimed
            del self._callers[next(iter(self._callers))]

    def _begin(self, run_id: str, segment: int) -> None:
        """Works on a run here, unless somebody was faster."""
        beginning = asyncio.create_task(self.work(run_id, segment))
        self._beginning.add(beginning)
        beginning.add_done_callback(self._begun)

    def _begun(self, ended: asyncio.Task[None]) -> None:
        self._beginning.discard(ended)
        while self._has_room and (due := self._next.pop()) is not None:
            self._begin(*due)

    @property
    def _has_room(self) -> bool:
        return len(self._beginning) < self.at_once and not self._draining

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Holds on to a task until it ends, or this process leaves."""
        task = asyncio.create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    # -- working -------------------------------------------------------------------------------------------

    async def work(self, run_id: str, segment: int) -> None:
        """Works off a segment if it is due; a segment goes on when its dispatcher stops waiting for it.

        Then the run that may begin now: nobody else knows that it is its turn.
        """
        row = await self._claim(run_id, segment)
        while row is not None:
            await self._work_off(row)
            row = await self._claim_next(row)

    async def _claim(self, run_id: str, segment: int) -> RunRow | None:
        """A run that is this process's from now on; None where it is not due, or somebody was faster."""
        if run_id in self._mine or self._draining:  # a second dispatch; what is not begun stays queued
            return None
        self._mine.add(run_id)
        row: RunRow | None = None
        try:
            limits = self._host.most_running
            row = await surely(partial(self.store.claim, run_id, segment, self.worker, limits))
        finally:
            if row is None:
                self._mine.discard(run_id)
        return row

    async def _work_off(self, row: RunRow) -> None:
        task = asyncio.create_task(self._work(row))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait([task])
        finally:
            self._mine.discard(row.run_id)

    async def _claim_next(self, row: RunRow) -> RunRow | None:
        """The next run of the session; of an agent with a bound the one that may have the slot."""
        following = await surely(partial(self.store.following, row)) if row.ordered else None
        if row.agent not in self._host.most_running:
            return await self._claim(*following) if following is not None else None
        found = await self._claim_slot(row.agent)
        if following is not None and (found is None or following[0] != found.run_id):
            self._keep(self.work(*following))  # beside it, where there is another slot
        return found

    async def _claim_slot(self, agent: str) -> RunRow | None:
        """The first run of an agent that is due. Whoever is late for one takes the one behind it."""
        late_for = None
        async with self._choosing[agent]:  # two that have ended together choose one after the other
            while (due := await surely(partial(self.store.next_of, agent))) not in (None, late_for):
                if (row := await self._claim(*due)) is not None:
                    return row
                late_for = due
        return None

    async def _work(self, row: RunRow) -> None:
        caller = self._callers.pop(row.run_id, None) or caller_of(row.caller)
        try:
            agent = await self._host.agent_of(row)
            segment = Segment(self._host, self.store, row, agent, caller, self._news.tell)
            self._segments[row.run_id] = segment
            await segment.work(self._handle)
            if segment.too_new:
                log.warning("run_of_a_newer_astromesh", run_id=row.run_id)
                await asyncio.sleep(_TOO_NEW)
            elif segment.handed_back is not None:
                await asyncio.sleep(_POSTPONED)
                self._keep(self._send(segment.handed_back))
        except asyncio.CancelledError:
            pass  # somebody else has the run, or will have it
        except AstromeshError as error:  # it could not begin: its agent cannot be opened any more
            await self._fail(row, error)
        except Exception as error:  # border of a background run: whatever breaks ends this run alone
            log.exception("segment_crashed", run_id=row.run_id)
            await self._fail(
                row, AstromeshError(f"The run failed for an internal reason: {type(error).__name__}.")
            )
        finally:
            self._segments.pop(row.run_id, None)
            self._news.tell(row.run_id)

    async def _fail(self, row: RunRow, error: AstromeshError) -> None:
        said = {"code": error.code, "detail": str(error)}
        past = await surely(partial(self.store.events, row.run_id, 0, 1_000_000))
        seq, now = (past[-1].seq if past else 0) + 1, self._host.clock.now()
        last = Event(row.run_id, seq, now, "run.failed", {**said, "response": "", "agent": row.agent})
        change = Change(status="failed", error=said, finished_at=now, request=ended_request(row.request, ""))
        claim = Claim(row.run_id, row.segment, row.worker)
        with suppress(LeaseLost):
            await surely(partial(self.store.commit, claim, events=[last], change=change))

    def stop(self, run_id: str) -> bool:
        """Begins to cancel a run that this process works on; False where it does not."""
        segment = self._segments.get(run_id)
        if segment is None:
            return False
        segment.stop()
        return True

    # -- news ----------------------------------------------------------------------------------------------

    def listen(self, run_id: str, news: asyncio.Event) -> Callable[[], None]:
        """Sets `news` whenever something of a run was written here. Answers what ends that."""
        return self._news.listen(run_id, news)

    # -- tending -------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Signs of life, cancels from elsewhere, runs that nobody works on."""
        due = dict.fromkeys((self._beat, self._cancel_asked, self._sweep), 0.0)
        every = {self._beat: BEAT, self._cancel_asked: _CANCELS, self._sweep: _SWEEP}
        while True:
            for work, at in due.items():
                if monotonic() >= at:
                    due[work] = monotonic() + every[work]
                    try:
                        await work()
                    except (AstromeshError, OSError) as error:  # the next time may find it
                        outages.away(str(error))
            await asyncio.sleep(_CANCELS)

    async def _beat(self) -> None:
        await self.store.beat(self.worker)
        outages.back()

    async def _cancel_asked(self) -> None:
        if self._segments:
            for run_id in await self.store.cancelling(self.worker):
                self.stop(run_id)

    async def _sweep(self) -> None:
        if self._draining:
            return
        # who has no room leaves what is queued to others; it is looked for again in a moment
        queued = self._queued if self._has_room else _NEVER
        due = await self.store.overdue(LEASE, queued=queued, limits=self._host.most_running)
        self._queued = QUEUED
        for run_id, _ in due:
            if run_id not in self._mine and run_id not in self._next:
                await self._dispatch(run_id)
        for worker in self._presence.dead():
            for run_id, _ in await self.store.leave(worker):
                await self._dispatch(run_id)
            self._presence.forget(worker)

    async def _dispatch(self, run_id: str) -> None:
        row = await self.store.get(run_id)
        if row is not None and row.status == "queued":
            await self._send(row)

    async def _send(self, row: RunRow) -> None:
        """Here where there is room or soon will be, else to the queue.

        Its row is on disk: where this process dies or is slow, the sweeper of another one does it again.
        """
        if self._backend is None:  # this process leaves
            return
        if self._has_room:
            self._begin(row.run_id, row.segment)
            return
        if not self._draining and self._next.add(row):
            return
        try:
            await self._backend.dispatch(row)
        except AstromeshError as error:
            log.warning("run_not_dispatched", run_id=row.run_id, error=str(error))


def accepted(
    agent: Agent, request: RunRequest, caller: CallerContext, who: tuple[str, str], now: float, trace_id: str
) -> RunRow:
    """A run as it is accepted."""
    spec, (tenant, owner) = agent.manifest.spec, who
    merges = spec.sessions.concurrency == "merge"
    return RunRow(
        run_id=ids.run_id(),
        tenant=tenant,
        owner=owner,
        agent=agent.name,
        session_id=request.session_id,
        trace_id=trace_id or request.caused_by.trace_id or ids.trace_id(),
        status="queued",
        created_at=now,
        durable=True,
        request=asked_to_json(request),
        manifest=agent.snapshot,
        caller=caller_to_json(caller),
        priority=spec.queue.priority,
        ordered=True,
        wake_at=now + spec.sessions.merge_window_ms / 1000 if merges else 0.0,
    )
