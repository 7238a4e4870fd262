"""The runs of this process: one record each, kept while it goes on and for a while afterwards.

The same record serves the list of runs, the event log that a reader resumes, and the traces. A run costs it
one list append per event. Everything is bounded: the events of one run by their size, the finished runs by
number and size (reliability.md R13).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol

from astromesh.errors import EventsGone
from astromesh.telemetry.packed import PackedDeltas, pack
from astromesh.telemetry.stream import DELTA, MODEL_CONTENT, PRIVATE, TOOL_CONTENT, Stream
from astromesh.types import Event, JsonObject, Usage

#: what an event counts for, in bytes, beside its text
OVERHEAD = 500
#: events at the start of a run that are never dropped, so that its trace keeps its shape
_HEAD = 16
#: deltas that are kept one by one; beyond it they are packed
_LOOSE = 256
_STATUS = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.waiting": "waiting",
}


class Meter(Protocol):
    """What a run has used so far."""

    @property
    def usage(self) -> Usage: ...


class RunLog:
    """One run.

    Args:
        parent: where it was started from, `RUN.CALL` of a nested run, else empty.
        meter, attempts: usage and failed tries of model calls, as they grow.

    Attributes:
        events: those that are kept, in order, but for deltas that are packed: `after` has them all.
        most: bytes of events that are kept; the oldest go first, deltas before others.
        stream: while it runs: where listeners are added.
        task: while it runs: what a cancel cancels.
        stopped: somebody asked for its end.
        durable: it is part of a run that is kept on disk, and listed there.
        remote_span: the caller's own span, which the run belongs under: 16 hex digits, or empty.
        sampled: whether who began the trace keeps it; None: nobody has decided.
        gone: `seq` of the last event that is no longer kept.
        ended_at: `clock.monotonic()` of its end.
    """

    # class attributes, so that a plain run sets only what it needs
    most: int = 1 << 19
    stream: Stream | None = None
    task: asyncio.Task[Any] | None = None
    stopped: bool = False
    durable: bool = False
    remote_span: str = ""
    sampled: bool | None = None
    ended_at: float | None = None
    gone: int = 0
    _text: int = 0
    _loose: int = 0
    _packs: deque[PackedDeltas] | None = None
    _packed: int = 0
    _waiting: list[asyncio.Future[None]] | None = None

    def __init__(  # noqa: PLR0913 (what a run is known by)
        self,
        run_id: str,
        trace_id: str,
        tenant: str,
        owner: str,
        agent: str,
        session_id: str,
        parent: str,
        meter: Meter,
        attempts: list[JsonObject],
    ) -> None:
        self.run_id, self.trace_id, self.tenant, self.owner = run_id, trace_id, tenant, owner
        self.agent, self.session_id, self.parent = agent, session_id, parent
        self.meter, self.attempts = meter, attempts
        self.events: list[Event] = []

    def weigh(self, event: Event) -> None:
        """Counts an event just added; drops the oldest where there are too many."""
        self._text += text_of(event)
        if event.type == DELTA:
            self._loose += 1
            if self._loose >= _LOOSE:
                self._pack()
        if self.size > self.most:
            self._trim()

    @property
    def size(self) -> int:
        """Bytes, estimated."""
        return self._text + OVERHEAD * len(self.events) + self._packed

    @property
    def status(self) -> str:
        status = _STATUS.get(self.events[-1].type) if self.events else None
        return status or ("running" if self.ended_at is None else "failed")

    def after(self, seq: int) -> list[Event]:
        """The events behind one.

        Raises:
            EventsGone: some of them are no longer kept.
        """
        if seq < self.gone:
            raise EventsGone(f"Events up to {self.gone} of this run are no longer kept.")
        kept = [event for event in self.events if event.seq > seq]
        packs = [one for one in self._packs or () if one.last > seq]
        if not packs:
            return kept
        unpacked = (event for one in packs for event in one.events() if event.seq > seq)
        return sorted(chain(unpacked, kept), key=attrgetter("seq"))

    def visible(self, tenant: str, owner: str | None) -> bool:
        """Whether this principal may see it. `owner` None sees the tenant's."""
        return self.tenant == tenant and owner in (None, self.owner)

    async def ended(self) -> None:
        """Waits for the end of the run."""
        if self.ended_at is not None:
            return
        self._waiting = self._waiting or []
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    def close(self, now: float) -> None:
        self.ended_at, self.stream, self.task = now, None, None  # what belongs to the run may go
        if self._packs is not None:
            self._pack()
        for waiting in self._waiting or ():
            if not waiting.done():
                waiting.set_result(None)

    def _pack(self) -> None:
        """Packs the deltas among the events."""
        packs = self._packs = self._packs or deque()
        for one in pack(event for event in self.events if event.type == DELTA):
            packs.append(one)
            self._packed += one.size
        self.events[:] = [event for event in self.events if event.type != DELTA]
        self._text = sum(text_of(event) for event in self.events)
        self._loose = 0

    def _drop_private(self) -> None:
        """The older half of what was captured goes first."""
        private = [event.seq for event in self.events if event.type in PRIVATE]
        if private:
            upto = private[len(private) // 2]
            self.events[:] = [e for e in self.events if e.seq > upto or e.type not in PRIVATE]
            self._text = sum(text_of(event) for event in self.events)

    def _trim(self) -> None:
        """Drops what readers are not shown, then the oldest packs, then the older half, in place.

        Readers hold no positions, only a `seq`.
        """
        self._drop_private()
        while self._packs and self.size > self.most:
            dropped = self._packs.popleft()
            self._packed -= dropped.size
            self.gone = dropped.last
        if self.size <= self.most or len(self.events) <= 2 * _HEAD:
            return
        end = _HEAD + (len(self.events) - _HEAD) // 2
        self.gone = max(self.gone, self.events[end - 1].seq)
        del self.events[_HEAD:end]
        self._text = sum(text_of(event) for event in self.events)


def text_of(event: Event) -> int:
    """Characters of an event that may be long."""
    measure = _LENGTH.get(event.type)
    return measure(event.data) if measure else 0


_LENGTH: dict[str, Callable[[JsonObject], int]] = {
    DELTA: lambda data: len(data["content"]),
    "tool.started": lambda data: len(str(data["arguments"])),
    "run.completed": lambda data: len(data["response"]),
    "run.failed": lambda data: len(data.get("response", "")),
    "run.cancelled": lambda data: len(data.get("response", "")),
    MODEL_CONTENT: lambda data: sum(len(str(m)) for m in (*data["input"], *data.get("output", ()))),
    TOOL_CONTENT: lambda data: len(str(data["arguments"])) + len(data["result"]),
}


class RunLogs:
    """The runs that go on, and the newest of those that ended.

    Args:
        most_runs, most_bytes: of ended runs that are kept; the size is estimated.
        most_gone: ids of dropped runs that are remembered, to say that they are gone.
    """

    def __init__(self, *, most_runs: int = 1000, most_bytes: int = 32 << 20, most_gone: int = 10_000) -> None:
        self._most_runs, self._most_bytes, self._most_gone = most_runs, most_bytes, most_gone
        self._runs: dict[str, RunLog] = {}
        self._ended: deque[tuple[RunLog, int]] = deque()
        self._traces: dict[str, list[RunLog]] = {}
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, log: RunLog) -> None:
        if log.run_id in self._runs:  # a durable run is taken up again where it began
            self._replace(log.run_id)
        self._runs[log.run_id] = log
        self._traces.setdefault(log.trace_id, []).append(log)

    def close(self, log: RunLog, now: float) -> None:
        """The run has ended, or rests: one that is on disk with its events is not kept here, too."""
        log.close(now)
        if log.durable and not log.parent:
            self._forget(log)
            return
        size = log.size
        self._ended.append((log, size))
        self._bytes += size
        while len(self._ended) > self._most_runs or self._bytes > self._most_bytes:
            self._drop()

    def find(self, run_id: str) -> RunLog | None:
        return self._runs.get(run_id)

    def is_gone(self, run_id: str, tenant: str, owner: str | None) -> bool:
        """Whether there was such a run of this principal, and it is no longer kept."""
        was = self._gone.get(run_id)
        return was is not None and was[0] == tenant and owner in (None, was[1])

    def of_trace(self, trace_id: str) -> Iterable[RunLog]:
        return self._traces.get(trace_id, ())

    def erase_owner(self, tenant: str, owner: str) -> int:
        """Drops the ended runs of one principal; answers how many."""
        theirs = [one for one in self._ended if (one[0].tenant, one[0].owner) == (tenant, owner)]
        others = [one for one in self._ended if (one[0].tenant, one[0].owner) != (tenant, owner)]
        self._ended = deque((*theirs, *others))
        for _ in theirs:
            self._drop()
        for run_id in [run_id for run_id, whose in self._gone.items() if whose == (tenant, owner)]:
            del self._gone[run_id]
        return len(theirs)

    def newest(self) -> Iterator[RunLog]:
        return reversed(self._runs.values())

    def _replace(self, run_id: str) -> None:
        """Forgets an earlier part of a run."""
        earlier = next((one for one in self._ended if one[0].run_id == run_id), None)
        if earlier is not None:
            self._ended.remove(earlier)
            self._ended.appendleft(earlier)
            self._drop()
            self._gone.pop(run_id, None)

    def _forget(self, log: RunLog) -> None:
        del self._runs[log.run_id]
        rest = self._traces[log.trace_id]
        if len(rest) == 1:
            del self._traces[log.trace_id]
        else:
            rest.remove(log)

    def _drop(self) -> None:
        old, size = self._ended.popleft()
        self._bytes -= size
        self._forget(old)
        self._gone[old.run_id] = (old.tenant, old.owner)
        if len(self._gone) > self._most_gone:
            self._gone.popitem(last=False)
