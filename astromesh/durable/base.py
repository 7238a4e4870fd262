"""The protocols of stored runs, with their callbacks and schedules, and of the durable backends.

A run is a row. A durable run is accepted when its row is on disk, and is executed in segments: a segment
starts when the run is dispatched, and ends when the run has ended or waits for a person or a timer. Its
record has steps, keyed by their place in the run, and events, in order. A resumed run takes finished steps
from its record. A claim of (run, segment) by a live worker is a fencing token, and every commit names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from msgspec import Struct
from msgspec import field as struct_field

from astromesh.types import Event, JsonObject, SessionKey, Usage

#: what happens to a run that arrives while another of its session is open (`sessions.concurrency`)
ConcurrencyPolicy = Literal["enqueue", "reject", "interrupt", "merge"]
RunStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
#: `value`: what the run receives from outside: its memory, its admitted query
StepKind = Literal["model", "tool", "node", "value", "wait"]
#: `intent`: it may have happened. `done`: its output is known. `unknown`: a person must decide.
StepState = Literal["intent", "done", "unknown"]
#: processes in a row that may die while they execute a run, before it fails as `crashed`
MAX_DEATHS = 3
#: no agent has a limit of active runs
NO_AGENT_LIMITS: Mapping[str, int] = {}
ENDED_STATUSES: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


class RunRow(Struct, frozen=True):
    """One run as it is stored. Times in seconds since the epoch, 0 for never.

    The store alone writes the column `queued_at`: when the run was last queued or dispatched by a sweep. Some
    seconds later the next sweep (`RunStore.overdue`) dispatches a run that is still queued.

    Args:
        created_at: when the run was accepted; the prompts of all its segments show this time.
        parent: `RUN.CALL` that started a nested run, else empty.
        durable: the run survives its process; otherwise the row is the archive of a plain run.
        request: the request. After step 3 it has no text that an input rule redacts.
        manifest: the agent's manifest when the run was accepted; the run ends under it.
        caller: user, tenant, roles, scopes, metadata; never a token.
        deadline_at: when the run fails, even if its worker is dead.
        wake_at: of a waiting run: when it times out; the next sweep queues it in the next segment. Of a
            queued run: the earliest time at which a worker may claim it, 0 for at once. Until then, whatever
            the time is for, `accept` under the policy `merge` adds messages of the owner to the run; a run
            of that policy is accepted with the end of its merge window. A claim sets it to 0, and so does the
            return to the queue: a later segment begins at once.
        segment: number of the active or next segment, from 1; it grows by 1 each time the run is queued
            again. With `worker` it is the fencing token: commits of another segment or worker write nothing.
        worker: the worker that executes it; of a run nested in a durable one, the run at the top of its tree.
        priority: lower comes first.
        waiting_for: the approval that a waiting run needs.
        metadata, tags: what the caller says about the run.
        ordered: a worker claims the run only while no older ordered run of its session is queued or running.
            An older run before its `wake_at` is queued, so it holds the session; one that waits for a person
            does not. False for plain and nested runs.
        forked_from: of a fork: `{"run_id", "step", "edit"}`, `accepted_at`: its prompts show this time, and
            `inherited`: the number of the last step that it has of that run.
        deaths: processes in a row that died while they executed the run, without a step that ended between.
    """

    run_id: str
    tenant: str
    owner: str
    agent: str
    session_id: str
    trace_id: str
    status: RunStatus
    created_at: float
    parent: str = ""
    durable: bool = False
    request: JsonObject = struct_field(default_factory=dict)
    manifest: JsonObject | None = None
    caller: JsonObject = struct_field(default_factory=dict)
    finished_at: float = 0.0
    deadline_at: float = 0.0
    wake_at: float = 0.0
    segment: int = 1
    worker: str = ""
    priority: int = 0
    cancelling: bool = False
    result: JsonObject | None = None
    error: JsonObject | None = None
    usage: Usage = Usage()
    attempts: tuple[JsonObject, ...] = ()
    waiting_for: JsonObject | None = None
    ordered: bool = False
    metadata: JsonObject = struct_field(default_factory=dict)
    tags: tuple[str, ...] = ()
    forked_from: JsonObject | None = None
    deaths: int = 0

    @property
    def nested(self) -> bool:
        """Whether the run is part of a durable run, whose claim covers it."""
        return bool(self.parent and self.worker)


class JournalStep(NamedTuple):
    """One started or finished step of a durable run.

    Args:
        path: the branch of the run's tree that made it, e.g. `react/tool:call_1`.
        n: its number in the path, from 1.
        request_hash: SHA-256 hex digits of the request; another request under the same key is a divergence.
        output: JSON value; of an intent what is known so far, or None.
        ordinal: of a step that is done: its number in the run, in the order in which steps end, from 1. 0: it
            is not done, or an earlier version recorded it.
        started_at, duration_ms: of a step that is done, in seconds since the epoch.
        about: of a step that others see: `{"name", "in"?, "out"?}`, as the rules of its agent leave it.
    """

    path: str
    n: int
    kind: StepKind
    request_hash: str
    state: StepState
    output: JsonObject | None = None
    ordinal: int = 0
    started_at: float = 0.0
    duration_ms: float = 0.0
    about: JsonObject | None = None


class GraphRunRow(Struct, frozen=True):
    """A run of a graph that a program has started, as it is stored. Times in seconds since the epoch.

    Args:
        status: `running` while a process executes it, and after that process has died.
        segment: grows by 1 each time the run is continued; the fencing token of its writes.
        forked_from, forked_at: the run that it was forked from, and the last step that it has of it.
        request: messages and context at the start, config and caller.
    """

    run_id: str
    graph: str
    status: RunStatus
    segment: int
    created_at: float
    finished_at: float = 0.0
    forked_from: str = ""
    forked_at: int = 0
    request: JsonObject = struct_field(default_factory=dict)


class RunChange(NamedTuple):
    """The changes of a row in one commit; None leaves a field unchanged.

    Args:
        raw: whether the record of the ended run has texts that the rules of its agents have not passed.
    """

    status: RunStatus | None = None
    request: JsonObject | None = None
    result: JsonObject | None = None
    error: JsonObject | None = None
    usage: Usage | None = None
    attempts: tuple[JsonObject, ...] | None = None
    waiting_for: JsonObject | None = None
    wake_at: float | None = None
    deadline_at: float | None = None
    finished_at: float | None = None
    deaths: int | None = None
    raw: bool | None = None


class SegmentClaim(NamedTuple):
    """The right to execute a segment; the store checks it at every commit."""

    run_id: str
    segment: int
    worker: str


class IdempotencyKey(NamedTuple):
    """A caller's `Idempotency-Key` with its scope: the same key of another caller is a different key.

    Args:
        key: the text that the caller sent; a store has its SHA-256 hex digits only.
        body_hash: SHA-256 hex digits of the request; the body itself is not stored.
    """

    tenant: str
    owner: str
    route: str
    key: str
    body_hash: str
    expires_at: float


class WaitingRun(NamedTuple):
    """A run that waits for a person. `waiting_for` as in `RunRow`."""

    agent: str
    session_id: str
    waiting_for: JsonObject | None


class CancelRequest(NamedTuple):
    """A request to cancel a run of another process.

    Args:
        id: The id of the run, `/`, and what no other request has. Earlier versions name the run alone.
        owner: None: the caller may cancel the runs of everybody.
    """

    id: str
    tenant: str
    owner: str | None

    @property
    def run_id(self) -> str:
        return self.id.partition("/")[0]


class EventRequest(NamedTuple):
    """A request for the events of a plain run of another process. `owner` empty: the viewer sees all runs."""

    run_id: str
    tenant: str
    owner: str


class RunQuery(NamedTuple):
    """The filter of a list; empty fields match everything of the tenant. `owner` None: everybody's runs.

    Args:
        tags: the run has all of them.
        metadata: keys and values that the run's metadata has; a number or boolean as JSON writes it.
        after: the id of the last run of the page before; ids begin with the time.
        since, until: the least id of a match, and the one that all matches are below.
        min_cost_usd: US dollars that a match has cost at least.
        min_seconds: seconds that a match took at least; it has ended.
    """

    tenant: str
    owner: str | None = None
    agent: str = ""
    session: str = ""
    status: str = ""
    limit: int = 50
    tags: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    after: str = ""
    since: str = ""
    until: str = ""
    min_cost_usd: float = 0.0
    min_seconds: float = 0.0

    def matches_outcome(self, run_id: str, cost_usd: float, seconds: float | None) -> bool:
        """Whether the time, the cost and the duration of a run match; no duration: it has not ended."""
        in_time = run_id >= self.since and (not self.until or run_id < self.until)
        is_long = not self.min_seconds or (seconds is not None and seconds >= self.min_seconds)
        return in_time and is_long and cost_usd >= self.min_cost_usd

    def matches(self, metadata: Mapping[str, Any], tags: Collection[str]) -> bool:
        """Whether what a caller says about a run matches."""
        return all(tag in tags for tag in self.tags) and all(
            key in metadata and value in (metadata[key], json.dumps(metadata[key]))
            for key, value in self.metadata
        )


class RunSample(NamedTuple):
    """What statistics need of a run; times in seconds since the epoch, `finished_at` 0 for an active one."""

    created_at: float
    finished_at: float
    status: RunStatus
    tokens: int
    cost_usd: float


class RunTotals(NamedTuple):
    """Sums over runs."""

    runs: int = 0
    failed: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


class RunRecording(Protocol):
    """What is stored of a recorded plain run beside its row (`astromesh.durable.recording.Recording`)."""

    @property
    def steps(self) -> Sequence[JournalStep]: ...

    @property
    def request(self) -> JsonObject: ...

    @property
    def manifest(self) -> JsonObject: ...

    @property
    def caller(self) -> JsonObject: ...

    @property
    def attachments(self) -> Mapping[str, bytes]: ...


#: no contents of attachments by hash
NO_CONTENTS: Mapping[str, bytes] = {}
NO_RECORDINGS: Mapping[str, RunRecording] = {}


#: the statuses of a run that a callback may tell about
CALLBACK_EVENTS = ("completed", "failed", "cancelled", "waiting")


class Callback(Struct, frozen=True):
    """Whom to tell when a run ends or waits.

    Args:
        events: statuses of `CALLBACK_EVENTS`.
        headers: of every delivery, as they are sent.
        publisher: the `publishers` plugin in whose words it is told. Empty: those of our own API.
        name: of the callback, among those of its run and publisher.
    """

    url: str
    events: tuple[str, ...] = CALLBACK_EVENTS
    headers: Mapping[str, str] = {}
    publisher: str = ""
    name: str = ""


class StoredCallback(NamedTuple):
    """A callback as it is stored. `headers` is encrypted JSON, empty without any."""

    url: str
    events: tuple[str, ...]
    headers: bytes
    publisher: str = ""
    name: str = ""


class TakenDelivery(NamedTuple):
    """A delivery that this process makes now.

    Args:
        callback: number of its callback.
        run_id: of the run or Task.
        event: what it tells about it, one of `CALLBACK_EVENTS`.
        attempts: this one included.
        began_at: the time of the first attempt, in seconds since the epoch.
    """

    id: int
    callback: int
    run_id: str
    event: str
    attempts: int
    began_at: float


class Delivery(NamedTuple):
    """A delivery as callers see it.

    Args:
        run_id, agent: of a Task its id and its workflow.
        state: `pending`, `delivered` or `dead`.
        began_at, due_at: seconds since the epoch; 0 before the first attempt.
        http_status: of the last attempt; 0: there was no response.
    """

    id: int
    run_id: str
    agent: str
    event: str
    url: str
    state: str
    attempts: int
    began_at: float
    due_at: float
    http_status: int
    error: str


class DeliveryQuery(NamedTuple):
    """Which deliveries a caller asks for. Empty and 0: all.

    Args:
        before: only deliveries with a smaller id.
    """

    tenant: str
    owner: str | None
    state: str = ""
    run_id: str = ""
    before: int = 0
    limit: int = 50


class QueueDepth(NamedTuple):
    """How many durable runs of an agent are open, those within others aside.

    Args:
        queued: wait for room, their session or a process.
        later: wait for their `not_before`.
        waiting: wait for a person, their client or a timer.
        oldest_at: since when the oldest queued one could begin, in seconds since the epoch.
    """

    agent: str
    queued: int
    later: int
    running: int
    waiting: int
    oldest_at: float | None


class QueuedRun(NamedTuple):
    """The next run of a tenant. `number`: an older run has a lower one."""

    run_id: str
    segment: int
    tenant: str
    priority: int
    number: int


class LiveWorker(NamedTuple):
    """A process that executes durable runs. `seen_at`: its last heartbeat, in seconds since the epoch."""

    worker: str
    seen_at: float
    running: int


class DeliveryStore(Protocol):
    """The deliveries of callbacks. What ends or waits makes them due in the same transaction.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def take_callbacks(self, now: float, until: float, limit: int) -> tuple[TakenDelivery, ...]:
        """Takes deliveries that are due. They are due again at `until` if nothing ends the attempt."""

    async def callback(self, number: int) -> StoredCallback | None: ...

    async def end_callback_attempt(
        self, id: int, state: str, due_at: float, http_status: int, error: str
    ) -> None: ...

    async def callbacks_expected(self) -> bool:
        """Returns whether a delivery is pending, or a run or Task that goes on has a callback."""

    async def callbacks(self, filter: DeliveryQuery) -> tuple[Delivery, ...]:
        """Returns the newest deliveries first."""

    async def retry_callback(self, id: int, tenant: str, owner: str | None) -> bool:
        """Makes a dead delivery due again. Returns False if there is none."""


class CallbackStore(DeliveryStore, Protocol):
    """The callbacks of runs."""

    async def callbacks_of(self, run_id: str, publisher: str) -> tuple[StoredCallback, ...]:
        """Returns the callbacks of a run in the words of a publisher, oldest first."""

    async def set_callback(self, run_id: str, callback: StoredCallback) -> bool:
        """Adds a callback to a run, in place of the one of the same publisher and name.

        Returns False if another one of the run has its URL.
        """

    async def delete_callback(self, run_id: str, publisher: str, name: str) -> bool:
        """Deletes a callback with its deliveries. Returns False if there is none."""


class Schedule(NamedTuple):
    """What begins at the times of a cron expression.

    Args:
        caller: who it runs as, as JSON.
        kind: `agent` or `workflow`.
        target: name of the agent or workflow.
        request: `{"query", "session"}` or `{"input"}`.
        jitter: seconds that a firing may be later.
        on_missed: `skip`, `once` or `all`.
        from_file: 1: a file of the configuration has it, 0: a request made it.
        paused: 1 or 0.
        instant: the next time of the expression, in seconds since the epoch.
        due_at: when it is looked at next.
        last_at, last_id: time of the last firing, and its run or Task; 0 and empty: there was none.
        error: why the last firing did not begin.
    """

    id: str
    tenant: str
    owner: str
    caller: str
    kind: str
    target: str
    request: str
    cron: str
    timezone: str
    jitter: float
    on_missed: str
    from_file: int
    paused: int
    created_at: float
    instant: float
    due_at: float
    last_at: float = 0.0
    last_id: str = ""
    error: str = ""


class ScheduleQuery(NamedTuple):
    """Which schedules a caller asks for. Empty: all. `after`: only greater ids."""

    tenant: str
    owner: str | None
    kind: str = ""
    target: str = ""
    after: str = ""
    limit: int = 50


class ScheduleStore(Protocol):
    """Schedules. A firing is settled only as long as its schedule still waits for that instant.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def add_schedule(self, schedule: Schedule, limit: int) -> bool:
        """Stores a schedule. Returns False if its owner has so many already."""

    async def replace_file_schedules(self, schedules: Sequence[Schedule], current: Collection[str]) -> None:
        """Stores the schedules of files. Those that are there stay, but for jitter and `on_missed`.

        Args:
            kept: `KIND TARGET` of those whose other schedules are not deleted.
        """

    async def take_schedules(self, now: float, until: float, limit: int) -> tuple[Schedule, ...]:
        """Takes schedules that are due. They are due again at `until` if nothing settles them."""

    async def next_schedule(self) -> float | None:
        """Returns when the next one is due, or None."""

    async def settle_schedule(self, settled: Schedule, instant: float, run_expires_at: float) -> None:
        """Moves a schedule from an instant to the one of `settled`, with the outcome of the firing.

        Args:
            run_expires_at: when the idempotency key of the firing expires from now on.
        """

    async def postpone_schedule(self, id: str, instant: float, due_at: float, error: str) -> None:
        """Looks at a schedule again later that still waits for an instant."""

    async def schedule(self, id: str, tenant: str, owner: str | None) -> Schedule | None: ...

    async def schedules(self, filter: ScheduleQuery) -> tuple[Schedule, ...]:
        """Returns schedules by their ids."""

    async def pause_schedule(self, id: str, paused: bool, instant: float, due_at: float) -> None:
        """Pauses a schedule, or lets it go on from an instant."""

    async def delete_schedule(self, id: str) -> None: ...


class RunChannel(Protocol):
    """Tells every process of a database which runs have new events, and which were accepted for others."""

    @property
    def connected(self) -> bool:
        """Whether notifications arrive."""

    def start(self) -> None:
        """Starts to listen."""

    def publish(self, run_id: str, seq: int, /) -> None:
        """Tells every process that the run has this event, or, with 0, that it waits for a process."""

    async def close(self) -> None:
        """Sends what is due, and ends."""


class RunStore(CallbackStore, ScheduleStore, Protocol):
    """Runs, steps, events and workers in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def accept(
        self,
        run: RunRow,
        key: IdempotencyKey | None = None,
        policy: ConcurrencyPolicy = "enqueue",
        steps: Sequence[JournalStep] = (),
        callback: StoredCallback | None = None,
        attachments: Mapping[str, bytes] = NO_CONTENTS,
    ) -> RunRow:
        """Stores a new run and returns it, or returns the run that has the same key and body.

        Args:
            callback: of the new run, also if it becomes part of another one.
            attachments: contents that its request refers to, by hash; those that are stored may be missing.
            steps: that the run begins with, stored in the same transaction; those of a fork.
            policy: what happens if ordered runs of the session are queued or running. `enqueue`: the new run
                comes after them. `reject`: it is rejected. `interrupt`: they end, or are requested to.
                `merge`: the new run becomes part of a queued run of the same owner that has not reached its
                `wake_at`, and that run is returned.

        Raises:
            IdempotencyConflict: the key was used with another body.
            SessionBusy: the policy is `reject`.
        """

    async def reserve_key(self, key: IdempotencyKey, candidate_id: str) -> str:
        """Stores a key for something that is not a run of this store.

        Returns the id that the key was first stored with.

        Raises:
            IdempotencyConflict: the key was used with another body.
        """

    async def archive(
        self,
        runs: Sequence[tuple[RunRow, Sequence[Event]]],
        recordings: Mapping[str, RunRecording] = NO_RECORDINGS,
    ) -> None:
        """Stores the rows of plain runs that have ended, with the events of their traces.

        Of a run that has a row, only the trace is stored, and its recording.

        Args:
            recordings: by the id of the run.
        """

    async def trace(self, trace_id: str) -> tuple[tuple[RunRow, tuple[Event, ...]], ...]:
        """Returns the runs of a trace in order of creation, each with its archived events."""

    async def get(self, run_id: str) -> RunRow | None: ...

    async def list(self, filter: RunQuery) -> tuple[tuple[RunRow, ...], Usage]:
        """Returns the newest runs first, and the usage of all that match; each tree of runs counts once."""

    async def count(self, filter: RunQuery) -> int:
        """Returns how many runs match, whatever the page."""

    async def samples(self, tenant: str, owner: str | None, since: str, limit: int) -> tuple[RunSample, ...]:
        """Returns the newest runs since a run id (`ids.first_id`), without nested ones, the newest first."""

    async def totals(self, tenant: str, owner: str | None, since: str) -> RunTotals:
        """Returns the sums over all runs since a run id, without nested ones."""

    async def claim(
        self, run_id: str, segment: int, worker: str, limits: Mapping[str, int] = NO_AGENT_LIMITS
    ) -> RunRow | None:
        """Claims a segment for a worker. Returns None if the segment is not due.

        It is not due if the run has ended, is executed by another worker, is at another segment, is ordered
        and not the first of its session, or has not reached its `wake_at`. A worker that has the segment and
        claims it again, because the answer was lost, gets it again.

        Args:
            limits: by agent, the maximum number of active runs of all workers.
        """

    async def next_in_session(self, run: RunRow) -> tuple[str, int] | None:
        """Returns the oldest queued ordered run of the same session, and its segment."""

    async def next_of_agent(self, agent: str) -> tuple[QueuedRun, ...]:
        """Returns the next run of each tenant by priority and age, those of an agent that are due."""

    async def queued(self, agent: str, tenant: str) -> tuple[int, float]:
        """Returns the number of queued runs of an agent and a tenant, and since when the oldest could begin.

        The time is in seconds since the epoch, 0 if none is queued.
        """

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        """Writes steps, events and the row in one transaction. A step replaces an earlier one with its key.

        An event whose number is stored is the same one, from a commit whose answer was lost. When a run
        ends, the runs nested in it end.

        Args:
            events: events of the run, and of the runs nested in it.
            nested: runs nested in this one that have begun, or have ended.

        Raises:
            LeaseLost: another worker has the run, or it has ended; nothing is written.
        """

    def scrub_soon(self) -> None:
        """Removes overwritten text from the log of the database within seconds, if it has one."""

    async def steps(self, run_id: str) -> tuple[JournalStep, ...]: ...

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Returns the events after `after`, in order."""

    async def advance(self, run_id: str, segment: int, steps: Sequence[JournalStep] = ()) -> RunRow | None:
        """Moves a run from `waiting` to `queued` in the next segment. Returns None if it was not waiting.

        Args:
            steps: the decision, stored in the same transaction.
        """

    async def requeue(self, claim: SegmentClaim) -> RunRow | None:
        """Moves a claimed run from `running` to `queued` in the next segment.

        Returns None if the claim is lost.
        """

    async def cancel(self, run_id: str) -> RunRow | None:
        """Requests the end of a run. A run that no worker executes ends at once, and its record is raw.

        Returns None if there is no run.
        """

    async def raw(self, limit: int = 100) -> tuple[RunRow, ...]:
        """Returns ended runs whose record is raw: they ended where nobody has its rules."""

    async def redact(self, run_id: str, steps: Sequence[JournalStep], events: Sequence[Event]) -> None:
        """Replaces steps and events of a run whose record is raw. It is raw no longer."""

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        """Returns the runs of this worker whose end was requested."""

    async def request_cancel(self, request: CancelRequest) -> None:
        """Requests that the process of a plain run ends it."""

    async def cancel_requests(self, since: float) -> tuple[CancelRequest, ...]:
        """Returns the unanswered requests after that time."""

    async def answer_cancel(self, id: str, line: JsonObject | None) -> None:
        """Acknowledges a request (None), and later stores the result of the run."""

    async def cancel_answer(self, id: str) -> tuple[bool, JsonObject | None]:
        """Returns whether a process has acknowledged the request, and the result of the run."""

    async def request_events(self, request: EventRequest, now: float) -> None:
        """Requests, or goes on to request, that the process of a plain run writes its events."""

    async def event_requests(self, since: float) -> tuple[EventRequest, ...]:
        """Returns the requests that were made after that time."""

    async def accept_events(self, request: EventRequest, now: float, since: int) -> None:
        """Says that this process writes the events after `since` of the run."""

    async def events_accepted(self, request: EventRequest) -> tuple[float, int]:
        """Returns when a process has last said so, or 0, and its `since`."""

    async def write_heard(self, events: Sequence[Event]) -> None:
        """Writes events of a plain run that somebody listens to. Those that are there stay."""

    async def heard(self, run_id: str, after: int, limit: int) -> tuple[Event, ...]:
        """Returns such events after a number."""

    async def request_state(self, id: str, request: EventRequest, now: float) -> None:
        """Asks the process that has a plain run for its state. Args: id: of the question."""

    async def state_requests(self, since: float) -> tuple[tuple[str, EventRequest], ...]:
        """Returns the questions after a time that nobody has answered, by id."""

    async def answer_state(self, id: str, state: JsonObject) -> None: ...

    async def state_answer(self, id: str) -> JsonObject | None:
        """Returns the answer to a question, or None."""

    async def delete_lookup(self, id: str, before: float) -> None:
        """Deletes a question, and those that are older than a time."""

    async def expire_listeners(self, before: float) -> None:
        """Deletes requests that were not made again since, and the events that nobody requests."""

    def channel(self, received: Callable[[str, int], None], changed: Callable[[], None]) -> RunChannel | None:
        """Returns the channel of the processes of this database; None if it has none.

        Args:
            received: called with each run and number that any process has published, this one included.
            changed: called when notifications begin to arrive, or arrive no more.
        """

    async def queues(self) -> tuple[QueueDepth, ...]:
        """Returns the queues of agents with open runs, by their names."""

    async def workers(self, since: float) -> tuple[LiveWorker, ...]:
        """Returns the workers with a heartbeat after a time."""

    async def delete_cancel(self, id: str, before: float) -> None:
        """Deletes a request, and all requests before that time."""

    async def heartbeat(self, worker: str) -> None:
        """Renews the lease of a worker."""

    async def release_worker(self, worker: str, *, died: bool = False) -> tuple[tuple[str, int], ...]:
        """Ends a worker. Its runs are queued again in a new segment and returned for dispatch.

        Args:
            died: its process died, perhaps because of one of the runs. Those that have seen `MAX_DEATHS`
                in a row fail.
        """

    async def overdue(
        self,
        lease: float,
        limit: int = 100,
        *,
        queued: float = 0.0,
        limits: Mapping[str, int] = NO_AGENT_LIMITS,
    ) -> tuple[tuple[str, int], ...]:
        """Returns the runs that must be dispatched, as (run_id, segment).

        These are runs whose worker has sent no heartbeat for `lease` seconds (queued again in a new segment),
        claimable runs that are queued for more than `queued` seconds (0: `lease`), and waiting runs after
        their `wake_at`. A waiting run whose end was requested is cancelled. A run without a live worker fails
        after its `deadline_at`, and at the third death of its process in a row. A plain run of a dead process
        fails, and its idempotency key becomes free.
        """

    async def waiting(self, tenant: str, owner: str | None, limit: int = 100) -> tuple[WaitingRun, ...]:
        """Returns the runs that wait for a person, the oldest first."""

    async def withdraw(self, claim: SegmentClaim) -> None:
        """Deletes a plain run that has not begun, and frees its key. Does nothing if it is not stored."""

    async def delete(self, run_id: str) -> None:
        """Deletes a run that has ended with what is nested in it, its steps and events."""

    async def attachments(self, run_id: str) -> Mapping[str, bytes]:
        """Returns the contents of the attachments of a run, by hash."""

    async def erase_attachments(self, key: SessionKey) -> int:
        """Deletes the attachments of the runs of a session. Returns their number."""

    async def delete_recording(self, run_id: str) -> None:
        """Deletes the steps of a run that has ended, with its request."""

    async def expire_recordings(self, before: float) -> int:
        """Deletes the steps of runs that ended before that time. Returns how many steps."""

    async def expire(self, before: float, max_runs: int) -> int:
        """Deletes runs that ended before that time, and the oldest beyond `max_runs`. Returns how many."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the ended runs of one principal with steps, events and keys.

        Requests the end of the others.
        """

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


#: executes one segment; a second call for the same one finds it claimed and does nothing. Returns False if
#: it must be dispatched again: another process executes it, or this one has no room
RunSegment = Callable[[str, int], Coroutine[Any, Any, bool]]
#: looks for what is due now: `runs`, `schedules` or `callbacks`; or dispatches again what is `queued`
Wake = Callable[[str], None]


class DurableBackend(Protocol):
    """Dispatches segments to the processes of a database: at least once, one per session at a time.

    Attributes:
        places: Whether it decides where and when every segment begins, and has timers. Otherwise a process
            starts by itself what it has accepted, and looks once a second for what is due.
    """

    places: ClassVar[bool]

    async def start(self, work: RunSegment, wake: Wake) -> None:
        """Starts to dispatch to this process. `work` and `wake` run in the event loop that called."""

    async def dispatch(self, run: RunRow) -> None:
        """Queues the segment of a row.

        A repeated call has no effect. Another process may receive the segment.

        Raises:
            AstromeshError: it was not queued; the sweep of a worker dispatches it again.
        """

    async def wake_at(self, name: str, at: float) -> None:
        """Asks for a call of `wake` in any process at a time, if the backend places segments.

        Raises:
            AstromeshError: the server of the backend does not answer.
        """

    async def ping(self) -> None:
        """Checks the server of the backend, if it has one. Raises: AstromeshError: it does not answer."""

    async def drain(self) -> None:
        """Accepts no new segments; active ones continue."""

    async def close(self) -> None: ...


def partition_of(run: RunRow) -> str:
    """Returns the partition of a run. Its segments are executed one after the other."""
    return f"{run.tenant}/{run.agent}/{run.session_id}"
