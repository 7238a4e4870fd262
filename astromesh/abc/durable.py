"""The seams of durable runs: where runs are kept, and what dispatches their segments.

A run is a row. A durable one is accepted when its row is on disk, and is then worked off in *segments*: a
segment starts when the run is dispatched and ends when the run has ended or waits for a person or a timer;
the decision dispatches the next one. What happened inside is the run's own log: steps, keyed by where in the
run they were made and never by when, and events, in order. Whoever takes a run up again answers the steps
that are finished from that log.

`RunStore` keeps both. `DurableBackend` only says, at least once and anywhere, "segment N of run R, now".
The store decides who really works: a claim of (run, segment) by a live worker is a fencing token, and every
commit names it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from astromesh.quick import quick
from astromesh.types import Event, JsonObject, Usage

#: what happens to a run that comes while another of its session is queued or running (`sessions.concurrency`)
Policy = Literal["enqueue", "reject", "interrupt", "merge"]
Status = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
#: `value`: what the run was told from outside: its memory, its admitted query
StepKind = Literal["model", "tool", "value", "wait"]
#: `intent`: about to happen, may have happened. `done`: its output is known. `unknown`: a person must look.
StepState = Literal["intent", "done", "unknown"]

#: no agent has a bound of its runs
NO_LIMITS: Mapping[str, int] = {}
ENDED: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


@quick
@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as it is kept. Times in seconds since the epoch, 0 for never.

    Args:
        parent: `RUN.CALL` that a nested run was started by, else empty.
        durable: it was accepted for good; otherwise the row is a note of a run that lived in one process.
        request: what was asked, without what an input rule redacts once step 3 is done (S10).
        manifest: the agent's manifest as it was when the run was accepted (R16).
        caller: user, tenant, roles, scopes, metadata; never a token.
        deadline_at: when it must have ended; enforced also where its worker is dead.
        wake_at: of a waiting run: when its time is over; of a queued one: before this it does not begin, and
            what merges with it may come.
        segment: number of the segment that runs or is due, from 1; the fencing token.
        worker: who works on it now; of a run nested in a durable one, the run at the top of its tree.
        priority: lower comes first.
        waiting_for: of a waiting run: the approval that it waits for.
        ordered: it begins when no older ordered run of its session is queued or running.
    """

    run_id: str
    tenant: str
    owner: str
    agent: str
    session_id: str
    trace_id: str
    status: Status
    created_at: float
    parent: str = ""
    durable: bool = False
    request: JsonObject = field(default_factory=dict)
    manifest: JsonObject | None = None
    caller: JsonObject = field(default_factory=dict)
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

    @property
    def nested(self) -> bool:
        """Whether it is part of a durable run, whose claim covers it."""
        return bool(self.parent and self.worker)


class Step(NamedTuple):
    """One finished or begun step of a durable run.

    Args:
        path: the branch of the run's tree that made it, e.g. `react/tool:call_1` (R17).
        n: which one of its path, from 1.
        request_hash: SHA-256 hex digits of what was asked; another one under the same key is a divergence.
        output: JSON value; of an intent what is known so far, or None.
    """

    path: str
    n: int
    kind: StepKind
    request_hash: str
    state: StepState
    output: JsonObject | None = None


class Change(NamedTuple):
    """What a commit changes in the row; None leaves a field as it is."""

    status: Status | None = None
    request: JsonObject | None = None
    result: JsonObject | None = None
    error: JsonObject | None = None
    usage: Usage | None = None
    attempts: tuple[JsonObject, ...] | None = None
    waiting_for: JsonObject | None = None
    wake_at: float | None = None
    deadline_at: float | None = None
    finished_at: float | None = None


class Claim(NamedTuple):
    """The right to work on a segment; the store checks it at every commit."""

    run_id: str
    segment: int
    worker: str


class IdempotencyKey(NamedTuple):
    """A caller's `Idempotency-Key`, kept as it was scoped: the same key of somebody else is another one.

    Args:
        body_hash: SHA-256 hex digits of the request; the body itself is not kept (S10).
    """

    tenant: str
    owner: str
    route: str
    key: str
    body_hash: str
    expires_at: float


class EndAsked(NamedTuple):
    """Somebody wants a run of another process to end. `owner` None: they may end everybody's."""

    run_id: str
    tenant: str
    owner: str | None


class Wanted(NamedTuple):
    """Which runs are listed; empty: all of the tenant. `owner` None: everybody's."""

    tenant: str
    owner: str | None = None
    agent: str = ""
    session: str = ""
    status: str = ""
    limit: int = 50


class RunStore(Protocol):
    """Runs, steps, events and workers in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def accept(
        self, run: RunRow, key: IdempotencyKey | None = None, policy: Policy = "enqueue"
    ) -> RunRow:
        """Keeps a new run; answers it, or the run that has the same key and body.

        Args:
            policy: against the ordered runs of its session that are queued or running: it comes behind them
                (enqueue), is refused (reject), they end or are asked to (interrupt). With `merge` it becomes
                part of one of the same owner that is queued and has not reached its `wake_at`: that one is
                answered.

        Raises:
            IdempotencyConflict: the key was used with another body.
            SessionBusy: by `reject`.
        """

    async def name(self, key: IdempotencyKey, kept_as: str) -> str:
        """Keeps a key for what is no run of this store; answers under which id it was kept first.

        Raises:
            IdempotencyConflict: the key was used with another body.
        """

    async def note(self, runs: Sequence[tuple[RunRow, Sequence[Event]]]) -> None:
        """Keeps rows of runs that were not durable, and what traces are made of.

        A run that there is already only gets its trace.
        """

    async def trace(self, trace_id: str) -> tuple[tuple[RunRow, tuple[Event, ...]], ...]:
        """The runs of a trace, in the order in which they came, each with the events that were noted."""

    async def get(self, run_id: str) -> RunRow | None: ...

    async def list(self, wanted: Wanted) -> tuple[tuple[RunRow, ...], Usage]:
        """The newest first; and what all that fit have used, each tree of runs counted once."""

    async def claim(
        self, run_id: str, segment: int, worker: str, limits: Mapping[str, int] = NO_LIMITS
    ) -> RunRow | None:
        """Makes the worker the one that runs this segment; None where it is not due.

        It is not due where the run has ended, is worked on by another worker, is at another segment, was
        cancelled before it began (then the row has become `cancelled`), is ordered and not the first of
        its session, or has not reached its `wake_at`. A worker that has it already, and asks because the
        answer was lost, gets it again.

        Args:
            limits: of agents, how many of their runs may be running over all workers.
        """

    async def following(self, run: RunRow) -> tuple[str, int] | None:
        """The oldest ordered run of the same session that is queued, and its segment."""

    async def next_of(self, agent: str) -> tuple[str, int] | None:
        """The run of an agent that is to begin next, by priority and age, and its segment."""

    async def queued(self, agent: str) -> int:
        """How many runs of an agent are queued."""

    async def commit(
        self, claim: Claim, *, steps: Sequence[Step] = (), events: Sequence[Event] = (),
        change: Change | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        """Steps, events and row in one transaction. A step of a key that is there replaces it.

        An event whose number is there is the same one, from a commit whose answer was lost. With the end of
        a run end those nested in it.

        Args:
            events: of the run, and of those nested in it.
            nested: runs nested in this one that have begun, or have ended.

        Raises:
            LeaseLost: somebody else works on the run, or it has ended; nothing is written.
        """

    async def steps(self, run_id: str) -> tuple[Step, ...]: ...

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Events behind `after`, in order."""

    async def advance(self, run_id: str, segment: int, steps: Sequence[Step] = ()) -> RunRow | None:
        """From `waiting` in this segment to `queued` in the next one, once; None where it was not waiting.

        Args:
            steps: the decision, kept in the same transaction.
        """

    async def hand_back(self, claim: Claim) -> RunRow | None:
        """From `running` by this claim to `queued` in the next segment; None where it is another's."""

    async def cancel(self, run_id: str) -> RunRow | None:
        """Asks for a run's end. One that nobody works on has ended with that; None where there is no run."""

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        """Runs of this worker whose end was asked for."""

    async def ask_end(self, run_id: str, tenant: str, owner: str | None) -> None:
        """Asks whatever process has a run that is not durable to end it; `owner` None may end everybody's."""

    async def ends_asked(self, since: float) -> tuple[EndAsked, ...]:
        """What nobody has answered yet, of requests behind that time."""

    async def answer_end(self, run_id: str, line: JsonObject | None) -> None:
        """The process that has the run says so (None), and later what became of it."""

    async def end_answered(self, run_id: str) -> tuple[bool, JsonObject | None]:
        """Whether a process has the run, and what became of it."""

    async def forget_end(self, run_id: str, before: float) -> None:
        """Deletes a request, and those of before that time."""

    async def beat(self, worker: str) -> None:
        """The worker lives."""

    async def leave(self, worker: str) -> tuple[tuple[str, int], ...]:
        """The worker ends. Its runs are `queued` again, in a new segment, and answered for dispatch."""

    async def overdue(
        self, lease: float, limit: int = 100, *, queued: float = 0.0, limits: Mapping[str, int] = NO_LIMITS
    ) -> tuple[tuple[str, int], ...]:
        """Runs that somebody must dispatch, as (run_id, segment).

        Those of workers not heard of for `lease` seconds (queued again in a new segment), queued longer than
        `queued` seconds (0: than `lease`) and claimable, and waiting beyond `wake_at`. Those beyond
        `deadline_at` without a live worker have failed. So have runs of dead processes that are not durable,
        and their keys are free.
        """

    async def waiting(self, tenant: str, owner: str | None, limit: int = 100) -> tuple[RunRow, ...]:
        """Runs that wait for a person, the oldest first."""

    async def expire(self, before: float, most: int) -> int:
        """Deletes ended runs of before that time, and the oldest beyond `most`; answers how many."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the ended runs of one principal, with steps, events and keys; asks the others to end."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


#: works off one segment; a second call for the same one finds it claimed and does nothing
RunSegment = Callable[[str, int], Awaitable[None]]


class DurableBackend(Protocol):
    """Dispatches segments to the processes of a database: at least once, one per session at a time."""

    async def start(self, work: RunSegment) -> None:
        """Begins to dispatch to this process. `work` runs in the event loop that called."""

    async def dispatch(self, run: RunRow) -> None:
        """Queues the row's segment; twice is once. Other processes may get it."""

    async def drain(self) -> None:
        """Takes no new segments; those that run go on."""

    async def close(self) -> None: ...
