"""The durable runs of one process: accepted, dispatched, executed and taken over, segment by segment.

The row of a run is the truth. It is stored before a caller receives 202. Dispatching comes later and may
happen any number of times; the claim of a segment decides which process executes it. A sweep dispatches again
what waits too long and what a dead worker held.

This module does not know what a run does. It asks its `Host` to load one segment, executes it, and reports
its failure.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from astromesh.durable import failpoints
from astromesh.durable.approvals import caller_after_decision, decide, open_question
from astromesh.durable.base import (
    ENDED_STATUSES,
    NO_CONTENTS,
    ConcurrencyPolicy,
    DurableBackend,
    IdempotencyKey,
    JournalStep,
    QueuedRun,
    RunChange,
    RunChannel,
    RunRow,
    RunStore,
    SegmentClaim,
    StoredCallback,
)
from astromesh.durable.leases import (
    DAY_SECONDS,
    LEASE_SECONDS,
    SWEEP_SECONDS,
    PeriodicJob,
    RetentionPolicy,
    Worker,
    WorkerHeartbeat,
    cancel_and_wait,
    expiry_job,
)
from astromesh.durable.queue import Load, LoadLimit, LocalQueue, QueueCapacity, Turns
from astromesh.durable.recording import redacted_events
from astromesh.durable.serialization import PLACE, caller_of, ended_request
from astromesh.durable.writer import outages, retry_while_unavailable
from astromesh.errors import (
    AstromeshError,
    LeaseLost,
    NotWaiting,
    Overloaded,
    ShuttingDown,
    StoreError,
    Unavailable,
    is_failure,
    stored_details,
)
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import WAITING
from astromesh.types import ANONYMOUS_USER, CallerContext, Event, JsonObject, SessionKey


class Notifications:
    """Wakes the listeners of a run."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[asyncio.Event]] = {}

    def listen(self, run_id: str, changed: asyncio.Event) -> Callable[[], None]:
        """Sets `changed` at every notification of the run. Returns a function that ends this."""
        self._listeners.setdefault(run_id, set()).add(changed)

        def leave() -> None:
            listeners = self._listeners.get(run_id)
            if listeners is not None:
                listeners.discard(changed)
                if not listeners:
                    del self._listeners[run_id]

        return leave

    def notify(self, run_id: str) -> None:
        for changed in self._listeners.get(run_id, ()):
            changed.set()

    def notify_all(self) -> None:
        for run_id in self._listeners:
            self.notify(run_id)


#: seconds after which a queued run is dispatched again
QUEUED_SECONDS = 2.0
#: of a backend with timers: seconds between two sweeps, and until a queued run is sent to it again
_PLACED_SWEEP_SECONDS, _PLACED_QUEUED_SECONDS = 5.0, 10.0
_EVERY_QUEUED = 1e-6
#: runs that are sent again before the next look
_PAGE = 100
#: runs that this process starts at the same time, and those that wait here for room; the backend dispatches
#: more, to any process with room
_MAX_STARTING, _MAX_LOCAL_QUEUE = 128, 1000
#: more seconds than a run can be queued
_NEVER_SECONDS = 1e12
#: seconds until a run is resumed that found a store unavailable
_POSTPONE_SECONDS = 0.5
#: seconds in which another process may claim a run whose record this version cannot read
_NEWER_VERSION_SECONDS = 5.0
#: callers that are stored for runs of which no segment has started here
_MAX_CALLERS = 10_000
#: seconds after which a listener to a plain run of another process is gone
_LISTENER_SECONDS = 60.0
#: for which a decision waits for a run that works on another one
_PATIENCE_SECONDS = 10.0
log = get_logger("astromesh.durable")


class Segment(Protocol):
    """A segment that this process executes."""

    @property
    def handed_back(self) -> RunRow | None:
        """Returns the row if the segment has ended so that another one begins."""

    @property
    def newer_version(self) -> bool:
        """Whether a newer astromesh wrote the record, which this one cannot read."""

    async def work(self) -> None:
        """Executes the segment to its end, to a pause, or until another worker claims the run."""

    def stop(self) -> None:
        """Starts to cancel the run."""

    def suspend(self) -> None:
        """Ends the segment without ending the run."""


class Host(Protocol):
    """What executes the runs of a worker."""

    clock: Clock

    async def load_segment(
        self, store: RunStore, row: RunRow, caller: CallerContext, notify: Callable[[str, int], None]
    ) -> Segment:
        """Loads what a claimed row describes.

        Args:
            notify: called after every transaction, with the id of each run that it changed and the number of
                its last new event, or 0.

        Raises:
            AstromeshError: the run can no longer be executed; it fails with this error.
        """

    async def redacted(self, row: RunRow, steps: Sequence[JournalStep]) -> Sequence[JournalStep]:
        """Returns steps of a run as they are stored when it has ended."""

    @property
    def max_running(self) -> Mapping[str, int]: ...


class StoreOpener(Protocol):
    """Opens the store of a worker's runs, and what dispatches them."""

    @property
    def may_hold_runs(self) -> bool: ...

    @property
    def retention(self) -> RetentionPolicy: ...

    async def open_runs(self) -> RunStore: ...

    async def open_backend(self) -> DurableBackend: ...


class Admission(NamedTuple):
    """How a run is admitted.

    Args:
        policy: against other runs of its session.
        queue: maximum number of waiting runs of the agent, those of one tenant, and of their wait.
        keeps_token: the run acts with the token of its caller, so it starts in this process.
        take_place: with `interrupt`, makes the run the newest message; returns the token of its place.
        callback: whom to tell when the run ends or waits.
        attachments: the contents that its request refers to, by hash.
    """

    policy: ConcurrencyPolicy
    queue: LoadLimit
    keeps_token: bool = False
    take_place: Callable[[], Awaitable[int]] | None = None
    callback: StoredCallback | None = None
    attachments: Mapping[str, bytes] = NO_CONTENTS


class RunWorker:
    """Executes the durable runs of one process. The first run that needs it opens it, or `start`.

    Args:
        heartbeat: the live workers of this data folder.

    Attributes:
        executes: Whether this process executes durable runs, or only accepts them for others.
        requested: Called with a run that another process wants something of.
        wakers: What looks for due work when the backend says so, by name.
    """

    def __init__(self, host: Host, stores: StoreOpener, heartbeat: WorkerHeartbeat) -> None:
        self.executes = True
        self.requested: Callable[[str], None] = lambda run_id: None
        self._worker = Worker(self, heartbeat, outages)
        self.worker = self._worker.name
        self.wakers: dict[str, Callable[[], None]] = {
            "runs": self._worker.wake,
            "queued": self._sweep_queued,
        }
        self._host, self._stores = host, stores
        self._store: RunStore | None = None
        self._backend: DurableBackend | None = None
        self._opening = asyncio.Lock()
        self._draining = False
        #: the first sweep dispatches every queued run: a dead process may have had it
        self._queued = _EVERY_QUEUED
        #: when the leases were renewed last, in seconds since the epoch; infinity: never
        self._renewed_at = inf
        #: whether the last sweep left queued runs in the database
        self._left_some = False
        #: the time until which all queued runs are to be sent again to a backend that places them, or 0
        self._resend_before = 0.0
        self._segments: dict[str, Segment] = {}
        #: runs that are claimed now, or are active
        self._run_ids: set[str] = set()
        self._expiry: PeriodicJob | None = None
        self._callers: dict[str, CallerContext] = {}
        self._starting: set[asyncio.Task[bool]] = set()
        #: maximum number of runs that start here at the same time
        self.max_starting = _MAX_STARTING
        self._local_queue = LocalQueue(_MAX_LOCAL_QUEUE)
        self._background: set[asyncio.Task[Any]] = set()
        self._notifications = Notifications()
        self._channel: RunChannel | None = None
        self._capacity: dict[tuple[str, str], QueueCapacity] = {}
        self._turns: defaultdict[str, Turns] = defaultdict(Turns)
        self._slot_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

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
        """Opens the store for queries. No run is executed."""
        async with self._opening:
            if self._store is None:
                self._store, keep = await self._stores.open_runs(), self._stores.retention
                self._channel = self._store.channel(self._received, self._notifications.notify_all)
                self._expiry = expiry_job(partial(self._expire, keep), self._host.clock, keep.days)
                if not self._draining:  # the archive of a process that ends may open it last
                    self._expiry.start()
            return self._store

    async def _expire(self, keep: RetentionPolicy, before: float) -> None:
        """Deletes runs that ended before a time, and the steps of those that are stored longer than these."""
        await self.store.expire(before, keep.runs)
        await self.store.expire_listeners(self._host.clock.now() - _LISTENER_SECONDS)
        await self.store.expire_recordings(self._host.clock.now() - keep.recording_days * DAY_SECONDS)

    async def erase_attachments(self, key: SessionKey) -> bool:
        """Deletes the attachments of the runs of a session. Returns whether there were any."""
        store = await self.open_if_used()
        return store is not None and await store.erase_attachments(key) > 0

    async def open_if_used(self) -> RunStore | None:
        """Returns the store if it may hold runs of other or earlier processes, else None."""
        if self._store is None and self._stores.may_hold_runs:
            await self.open()
        return self._store

    async def start(self) -> None:
        """Starts to execute runs, those of dead processes included.

        A process that only accepts runs renews its leases, which it has for plain runs with a key.
        """
        store = await self.open()
        async with self._opening:
            if self._worker.started or self._draining:
                return
            await store.heartbeat(self.worker)
            if self.executes:
                self._backend = await self._started()
            self._worker.start(sweeps=self.executes)
            if self._channel is not None:
                self._channel.start()

    async def require_started(self) -> None:
        """Raises: Unavailable: this process takes up no runs."""
        if not self._worker.started:
            raise Unavailable("This process takes up no runs; `runs_not_taken_up` in its log says why.")

    async def _started(self) -> DurableBackend:
        """Returns a started backend. If it cannot start, it is closed."""
        backend = await self._stores.open_backend()
        try:
            await backend.start(self._work_dispatched, self._wake)
        except BaseException:
            await backend.close()
            raise
        return backend

    async def drain(self) -> None:
        """Accepts no new segments; active ones continue."""
        self._draining = True
        await self._worker.drain()
        if self._backend is not None:
            await self._backend.drain()

    async def close(self, grace: float) -> None:
        """Accepts no new segments, waits at most `grace` seconds for active ones, and hands over the rest.

        Others take a worker that has left for dead, so runs with its name must have ended before.
        """
        await self.drain()
        async with self._opening:  # a start that is active completes first
            pass
        if self._expiry is not None:
            await self._expiry.close()
        if not self._worker.started:
            await self._close_channel()
            return
        active = self._worker.active.values()
        if active:
            await asyncio.wait(active, timeout=grace)
        for segment in tuple(self._segments.values()):
            segment.suspend()
        if active:
            await asyncio.wait(active)
        for task in (*self._background, *self._starting):
            await cancel_and_wait(task)
        try:
            await self._worker.close()
        except StoreError as error:  # they are taken over when the lease has expired
            log.warning("runs_not_handed_over", error=str(error))
        if self._backend is not None:
            await self._backend.close()
        await self._close_channel()

    async def _close_channel(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    # -- accepting -----------------------------------------------------------------------------------------

    async def accept(
        self,
        row: RunRow,
        caller: CallerContext,
        admission: Admission,
        key: IdempotencyKey | None = None,
        steps: Sequence[JournalStep] = (),
    ) -> RunRow:
        """Stores a run. When this returns, the run survives any crash.

        Args:
            key: the caller's `Idempotency-Key`. If a run has it, that run is returned.
            steps: that the run begins with.

        Raises:
            StoreUnavailable: the run was not accepted.
            Unavailable: it needs the token of its caller, and this process executes no runs.
            SessionBusy: the policy of the agent is `reject`, and the session answers another message.
            Overloaded: too many runs of the agent and the tenant wait to begin, or they wait too long.
            IdempotencyConflict: the key was used with another body.
        """
        if self._draining:
            raise ShuttingDown("The server is shutting down; send the request again.")
        needs_token = bool(caller.bearer_token) and admission.keeps_token
        if needs_token:
            self._require_executes()
        await self.start()
        stored = await self._accept_row(row, admission, key, steps)
        failpoints.reach(failpoints.ACCEPTED)
        if stored.run_id != row.run_id:  # it has the key, or the new run was merged into it
            return stored
        self._remember(row.run_id, caller)
        if admission.policy == "interrupt":
            with suppress(StoreError):  # the worker polls for them again in a moment
                await self._worker.stop_requested()
        if stored.wake_at > self._host.clock.now() and not self._is_placed:
            if admission.policy == "merge":
                self._hold_task(self._send_later(stored))
            elif not self.executes:  # the backend of a worker may have timers
                self.publish(stored.run_id, 0)
            return stored  # the sweep after that time sends it
        if needs_token:
            self._start_segment(stored.run_id, stored.segment)
        await self._send(stored)
        return stored

    def _require_executes(self) -> None:
        """Raises: Unavailable: this process executes no runs, and no other one has the caller's token."""
        if not self.executes:
            raise Unavailable(
                "This run acts with the token of its caller, and this server only accepts runs (--role api). "
                "Send it to a server with --role all."
            )

    async def _accept_row(
        self,
        row: RunRow,
        admission: Admission,
        key: IdempotencyKey | None,
        steps: Sequence[JournalStep],
    ) -> RunRow:
        """Returns the run, or the one that it was merged into, or the one that has its key."""
        queue = row.agent, row.tenant
        capacity = self._capacity.setdefault(queue, QueueCapacity(self._host.clock))
        load = partial(self._load_of, *queue)
        accept = partial(self._store_row, row, admission, key, steps)
        try:
            return await capacity.enter(load, row.agent, admission.queue, accept)
        except Overloaded:
            earlier = await self._earlier(key, row)
            if earlier is None:
                raise
            return earlier

    async def _load_of(self, agent: str, tenant: str) -> Load:
        count, since = await self.store.queued(agent, tenant)
        return Load(count, self._host.clock.now() - since if count else 0.0)

    async def _store_row(
        self,
        row: RunRow,
        admission: Admission,
        key: IdempotencyKey | None,
        steps: Sequence[JournalStep],
    ) -> RunRow:
        if admission.take_place is not None:
            if (earlier := await self._earlier(key, row)) is not None:  # a repeated request is no new message
                return earlier
            row = replace(row, request={**row.request, PLACE: await admission.take_place()})
        return await self.store.accept(
            row, key, admission.policy, steps, admission.callback, admission.attachments
        )

    async def _earlier(self, key: IdempotencyKey | None, row: RunRow) -> RunRow | None:
        """Returns the run that already has a key. An unused key is stored without duration."""
        if key is None:
            return None
        run_id = await self.store.reserve_key(key._replace(expires_at=row.created_at), row.run_id)
        return await self.store.get(run_id)

    async def _send_later(self, row: RunRow) -> None:
        """Sends a run when its merge window closes.

        If this process dies before, the sweep of another one does.
        """
        while (left := row.wake_at - self._host.clock.now()) > 0:
            await self._host.clock.sleep(left)
        await self._send(row)

    async def decide(self, row: RunRow, decisions: Mapping[str, JsonObject], by: CallerContext) -> RunRow:
        """Stores decisions about a run that waits, and continues the run.

        Args:
            decisions: by the id of the question, `{"decision", "arguments"?, "answer"?}`. The empty id is
                that of the oldest question. With another id, a run that is working on the answer to another
                question is waited for, ten seconds at most.
            by: the person who decides, which is stored. If it is the caller of the run, the run continues
                with this token.

        Raises:
            NotWaiting: the run does not wait, or no longer.
            ApprovalNotFound: it does not wait for one of these questions.
            Forbidden, InvalidInput: it waits for the token of its caller, and receives another one or none.
            Unavailable: it waits for that token, and this process executes no runs.
            InvalidInput: a decision does not fit its question. All questions stay open.
        """
        await self.start()
        sign = {"by": by.user_id or ANONYMOUS_USER, "decided_at": self._host.clock.now()}
        signed = {which: {**decision, **sign} for which, decision in decisions.items()}
        until = monotonic() + _PATIENCE_SECONDS if all(decisions) else 0.0
        while True:
            row = await self._at_rest(row, until)
            caller: CallerContext | None = None
            for which, decision in decisions.items():
                caller = self._caller_of_decision(row, which, decision, by)
            try:
                advanced = await decide(self.store, row, signed)
                break
            except NotWaiting:  # another question was decided at the same moment
                if monotonic() >= until:
                    raise
                row = await self.store.get(row.run_id) or row
        if caller is not None:
            self._remember(row.run_id, caller)
            self._start_segment(advanced.run_id, advanced.segment)
        await self._send(advanced)
        return advanced

    def _caller_of_decision(
        self, row: RunRow, which: str, decision: JsonObject, by: CallerContext
    ) -> CallerContext | None:
        """Returns the caller that a run continues with here, as `caller_after_decision`.

        A process that executes no runs has no use for a token. The run asks for it if a tool needs it.
        """
        question = open_question(row, which)
        caller = caller_after_decision(row, question, decision["decision"], by)
        if caller is None or self.executes:
            return caller
        if question.get("kind") == "identity" and decision["decision"] != "deny":
            self._require_executes()
        return None

    async def _at_rest(self, row: RunRow, until: float) -> RunRow:
        """Returns a run when it does not work, or as it is at a time of `monotonic`."""
        while row.status in ("queued", "running") and monotonic() < until:
            await asyncio.sleep(0.02)
            row = await self.store.get(row.run_id) or row
        return row

    def _remember(self, run_id: str, caller: CallerContext) -> None:
        """Stores a caller with its token until a segment of the run starts here."""
        self._callers[run_id] = caller
        while len(self._callers) > _MAX_CALLERS:  # other processes have claimed the oldest runs
            del self._callers[next(iter(self._callers))]

    def _start_segment(self, run_id: str, segment: int) -> asyncio.Task[bool]:
        """Executes a run here, unless another process claims it first."""
        task = asyncio.create_task(self.work(run_id, segment))
        self._starting.add(task)
        task.add_done_callback(self._segment_started)
        return task

    async def _work_dispatched(self, run_id: str, segment: int) -> bool:
        """Executes a segment that the backend dispatches, if there is room.

        Returns False if the backend must call again. If it does not, a sweep finds the segment later.
        """
        if not self._has_room:
            return False
        started = self._start_segment(run_id, segment)
        await asyncio.wait([started])
        return not started.cancelled() and started.result()

    def _segment_started(self, task: asyncio.Task[bool]) -> None:
        self._starting.discard(task)
        while self._has_room and (due := self._local_queue.pop()) is not None:
            self._start_segment(*due)
        if self._left_some and self._has_room:
            self._left_some = False
            self._worker.wake()

    @property
    def _has_room(self) -> bool:
        return len(self._starting) < self.max_starting and not self._draining

    def _hold_task(self, work: Coroutine[Any, Any, object]) -> None:
        """Keeps a reference to a task until it ends or this process closes."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- working -------------------------------------------------------------------------------------------

    async def work(self, run_id: str, segment: int) -> bool:
        """Executes a segment if it is due, then the runs that may begin after it.

        The segment continues when its dispatcher stops waiting for it. Returns False if a backend that places
        segments must call again.
        """
        row = await self._claim(run_id, segment)
        if row is None:
            return not self._is_placed or await self._is_settled(run_id, segment)
        while row is not None:
            await self._run_segment(row)
            row = await (self._dispatch_next(row) if self._is_placed else self._claim_next(row))
        return True

    @property
    def _is_placed(self) -> bool:
        """Whether the backend decides where and when segments begin."""
        return self._backend is not None and self._backend.places

    async def _is_settled(self, run_id: str, segment: int) -> bool:
        """Returns whether the backend may forget a segment that was not due.

        A run that is behind another one of its session, or of an agent with a limit, is sent again at the end
        of that one.
        """
        row = await retry_while_unavailable(partial(self.store.get, run_id))
        if row is None or row.segment != segment:
            return True
        if row.status == "running":  # another process has it, or died with it: then a sweep finds it
            self._worker.wake()
            return False
        return row.status != "queued" or not (self._draining or row.wake_at > self._host.clock.now())

    async def _dispatch_next(self, row: RunRow) -> None:
        """Sends what the end of a segment lets begin, and the time at which a wait of the run ends."""
        now = await retry_while_unavailable(partial(self.store.get, row.run_id))
        if now is not None and now.status == "waiting" and now.wake_at:
            await self.wake_at("runs", now.wake_at)
        following = set()
        if row.ordered and (due := await retry_while_unavailable(partial(self.store.next_in_session, row))):
            following.add(due[0])
        if row.agent in self._host.max_running and (first := await self._first_of_agent(row.agent)):
            following.add(first.run_id)
        for run_id in following:
            await self._dispatch(run_id)

    async def _claim(self, run_id: str, segment: int) -> RunRow | None:
        """Claims a run for this process. Returns None if it is not due, or another process was faster."""
        if run_id in self._run_ids or self._draining:  # a second dispatch; or the run stays queued
            return None
        self._run_ids.add(run_id)
        row: RunRow | None = None
        try:
            limits = self._host.max_running
            row = await retry_while_unavailable(
                partial(self.store.claim, run_id, segment, self.worker, limits)
            )
        finally:
            if row is None:
                self._run_ids.discard(run_id)
            elif row.agent in self._host.max_running:
                self._turns[row.agent].take(row.tenant)
        return row

    async def _run_segment(self, row: RunRow) -> None:
        try:
            await asyncio.wait([self._worker.execute(row.run_id, self._work(row))])
        finally:
            self._run_ids.discard(row.run_id)

    async def _claim_next(self, row: RunRow) -> RunRow | None:
        """Claims the next run of the session, or the run that receives the slot of a bounded agent."""
        following = (
            await retry_while_unavailable(partial(self.store.next_in_session, row)) if row.ordered else None
        )
        if row.agent not in self._host.max_running:
            return await self._claim(*following) if following is not None else None
        found = await self._claim_slot(row.agent)
        if following is None or (found is not None and following[0] == found.run_id):
            return found
        if found is None:
            return await self._claim(*following)
        if self._has_room:  # and perhaps another slot
            self._start_segment(*following)
        return found

    async def _claim_slot(self, agent: str) -> RunRow | None:
        """Claims a run of an agent that is due, by priority, then the tenants in turn.

        If another process claims it first, the next one.
        """
        missed = None
        async with self._slot_locks[agent]:  # two runs that end together choose one after the other
            while (first := await self._first_of_agent(agent)) not in (None, missed):
                if (row := await self._claim(first.run_id, first.segment)) is not None:
                    return row
                missed = first
        return None

    async def _first_of_agent(self, agent: str) -> QueuedRun | None:
        """Returns the run of an agent that is next."""
        due = await retry_while_unavailable(partial(self.store.next_of_agent, agent))
        turns = self._turns[agent]
        return min(due, key=lambda run: (run.priority, turns.last(run.tenant), run.number), default=None)

    async def _work(self, row: RunRow) -> None:
        caller = self._callers.pop(row.run_id, None) or caller_of(row.caller)
        try:
            segment = await self._host.load_segment(self.store, row, caller, self._changed)
            self._segments[row.run_id] = segment
            self._worker.watch_requests()
            await segment.work()
            if segment.newer_version:
                log.warning("run_of_a_newer_astromesh", run_id=row.run_id)
                await asyncio.sleep(_NEWER_VERSION_SECONDS)
            elif segment.handed_back is not None:
                await asyncio.sleep(_POSTPONE_SECONDS)
                self._hold_task(self._dispatch_quietly(row.run_id))
        except asyncio.CancelledError:
            pass  # another worker has the run, or will have it
        except AstromeshError as error:  # it cannot be executed, e.g. because its agent cannot be opened
            await self._fail(row, error)
        except BaseException as error:  # a fault in a background run ends this run alone
            if not is_failure(error):
                raise
            log.exception("segment_crashed", run_id=row.run_id)
            await self._fail(
                row, AstromeshError(f"The run failed for an internal reason: {type(error).__name__}.")
            )
        finally:
            self._segments.pop(row.run_id, None)
            self._notifications.notify(row.run_id)

    async def _fail(self, row: RunRow, error: AstromeshError) -> None:
        failure = {"code": error.code, "detail": str(error)}
        past = await retry_while_unavailable(partial(self.store.events, row.run_id, 0, 1_000_000))
        seq, now = (past[-1].seq if past else 0) + 1, self._host.clock.now()
        data = {**failure, "response": "", "agent": row.agent, "usage": row.usage.to_json()}
        last = Event(row.run_id, seq, now, "run.failed", data)
        change = RunChange(
            status="failed",
            error={**failure, "more": stored_details(error)},
            finished_at=now,
            request=ended_request(row.request, ""),
            raw=True,
        )
        claim = SegmentClaim(row.run_id, row.segment, row.worker)
        with suppress(LeaseLost):
            await retry_while_unavailable(partial(self.store.commit, claim, events=[last], change=change))
            self._changed(row.run_id, seq)

    async def cancel(self, row: RunRow) -> None:
        """Requests the end of a run. One that waits ends at once, and keeps what its output rules leave."""
        ended = await self.store.cancel(row.run_id)
        self.stop(row.run_id)
        if ended is not None and ended.status in ENDED_STATUSES:
            await self._redact_ended(await self.store.raw())

    async def redacted(self, row: RunRow, steps: Sequence[JournalStep]) -> Sequence[JournalStep]:
        """Returns steps of a run as the rules of their agents leave them."""
        return await self._host.redacted(row, steps)

    async def _redact_ended(self, raw: Collection[RunRow]) -> None:
        """Redacts the records of runs that have ended where the rules of their agents are not known.

        Args:
            raw: Whoever ends a run without its rules marks its row so: a database, a command, a process that
                took it over.
        """
        for row in raw:
            stored, events = await self.store.steps(row.run_id), await self._questions(row.run_id)
            steps = await self.redacted(row, stored)
            changed = [step for step, before in zip(steps, stored, strict=True) if step is not before]
            await self.store.redact(row.run_id, changed, [*redacted_events(events, steps)])

    async def _questions(self, run_id: str) -> list[Event]:
        """Returns the events of a run that show a question."""
        found: list[Event] = []
        after = 0
        while page := await self.store.events(run_id, after):
            found += [event for event in page if event.type == WAITING]
            after = page[-1].seq
        return found

    def stop(self, run_id: str) -> bool:
        """Starts to cancel a run. Returns False if this process does not execute it."""
        segment = self._segments.get(run_id)
        if segment is None:
            return False
        segment.stop()
        return True

    # -- telling and hearing what changes ------------------------------------------------------------------

    def listen(self, run_id: str, changed: asyncio.Event) -> Callable[[], None]:
        """Sets `changed` at every transaction of a run that this process makes or hears of.

        Returns a function that ends this.
        """
        if self._channel is not None and not self._draining:
            self._channel.start()
        return self._notifications.listen(run_id, changed)

    @property
    def hears_others(self) -> bool:
        """Whether this process hears of the transactions of others. A change wakes all listeners."""
        return self._channel is not None and self._channel.connected

    def publish(self, run_id: str, seq: int) -> None:
        """Tells other processes that a run has this event; 0: that something waits for its process."""
        if self._channel is not None:
            self._channel.publish(run_id, seq)

    def _changed(self, run_id: str, seq: int) -> None:
        self._notifications.notify(run_id)
        if seq:
            self.publish(run_id, seq)

    def _received(self, run_id: str, seq: int) -> None:
        """Wakes the listeners of a run, or executes one that was accepted by a process that does not."""
        if run_id in self._run_ids:  # it has woken them itself
            return
        if seq:
            self._notifications.notify(run_id)
            return
        self.requested(run_id)
        if self._is_placed or (self._backend is not None and self._has_room):
            self._hold_task(self._dispatch_quietly(run_id))

    async def _dispatch_quietly(self, run_id: str) -> None:
        with suppress(StoreError):  # the sweep finds it
            await self._dispatch(run_id)

    # -- the queue that the worker leases from -------------------------------------------------------------

    async def renew_leases(self, worker: str) -> Collection[str]:
        """Renews the lease of all runs. A lost one is noticed by the commit that its segment makes next."""
        renewed_at = self._host.clock.now()
        await self.store.heartbeat(worker)
        self._renewed_at = renewed_at
        return ()

    def has_work(self) -> bool:
        return bool(self._segments)

    async def cancel_requested(self, worker: str) -> Collection[str]:
        return await self.store.cancelling(worker) if self._segments else ()

    async def sweep(self, worker: str) -> float:
        """Dispatches runs that are due. Without room, it leaves queued runs to other processes.

        Its own leases lapse where its clock jumps, or its store was away. It renews them before it looks.
        """
        if self._host.clock.now() - self._renewed_at > LEASE_SECONDS / 2:
            await self.renew_leases(worker)
        if self._is_placed:
            await self._redact_ended(await self.store.raw())
            return await self._sweep_placed()
        queued = self._queued if self._has_room else _NEVER_SECONDS
        due, raw = await asyncio.gather(
            self.store.overdue(LEASE_SECONDS, _PAGE, queued=queued, limits=self._host.max_running),
            self.store.raw(),
        )
        self._queued, self._left_some = QUEUED_SECONDS, len(due) >= _PAGE
        for run_id, _ in due:
            if run_id not in self._run_ids and run_id not in self._local_queue:
                await self._dispatch(run_id)
        await self._redact_ended(raw)
        return SWEEP_SECONDS

    async def _sweep_placed(self) -> float:
        """Sends to the backend what it may not know.

        That is what is queued for long; and page by page, everything that was queued before it was away.
        """
        queued = _PLACED_QUEUED_SECONDS
        if self._resend_before:
            queued = max(self._host.clock.now() - self._resend_before, _EVERY_QUEUED)
        due = await self.store.overdue(LEASE_SECONDS, _PAGE, queued=queued, limits=self._host.max_running)
        for run_id, _ in due:
            if run_id not in self._run_ids and not await self._dispatch(run_id):
                return SWEEP_SECONDS  # and then this page again
        if len(due) >= _PAGE:
            return 0.0
        self._resend_before = 0.0
        return _PLACED_SWEEP_SECONDS

    async def take_over(self, worker: str, dead: str) -> None:
        for run_id, _ in await self.store.release_worker(dead, died=True):
            await self._dispatch(run_id)

    async def release_leases(self, worker: str) -> None:
        """Queues unfinished runs for other processes. Nothing is executed here any more."""
        for run_id, _ in await self.store.release_worker(worker):
            if self._is_placed:
                await self._dispatch(run_id)

    def _sweep_queued(self) -> None:
        """Dispatches every queued run again: the server of the backend has lost them, or is new."""
        self._resend_before = self._host.clock.now()
        self._worker.wake()

    def _wake(self, name: str) -> None:
        if name in self.wakers:
            self.wakers[name]()

    async def wake_at(self, name: str, at: float) -> bool:
        """Asks a backend with timers to wake one of the processes at a time.

        Returns False if none will: a process looks by itself.
        """
        if not self._is_placed or self._backend is None:
            return False
        try:
            await self._backend.wake_at(name, at)
        except AstromeshError:  # the server is away
            return False
        return True

    async def _dispatch(self, run_id: str) -> bool:
        row = await self.store.get(run_id)
        return row is None or row.status != "queued" or await self._send(row)

    async def _send(self, row: RunRow) -> bool:
        """Executes a run here if there is room now or soon; otherwise queues it at the backend.

        A backend that places segments receives every run. Returns False if it did not.

        Its row is on disk. If this process dies or is slow, the sweep of another one dispatches it again.
        """
        if self._backend is None:  # this process is closing, or executes no runs
            if not self.executes:
                self.publish(row.run_id, 0)
            return True
        if not self._backend.places:
            if self._has_room:
                self._start_segment(row.run_id, row.segment)
                return True
            if not self._draining and self._local_queue.add(row):
                return True
        try:
            await self._backend.dispatch(row)
        except AstromeshError as error:
            log.debug("run_not_dispatched", run_id=row.run_id, error=str(error))
            self._resend_before = self._host.clock.now()
            return False
        return True
