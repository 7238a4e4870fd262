"""The runs of this process: one record each, stored while the run is active and for a while afterwards.

The same record serves the list of runs, the event log that a reader resumes, and the traces. A run costs it
one list append per event. Everything is bounded: the events of one run by size, the ended runs by number and
size.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Protocol

from msgspec import Struct, field

from astromesh.errors import EventsGone
from astromesh.telemetry.events import LONG_EVENTS, MODEL_DELTA, PRIVATE_EVENTS, ListenableStream
from astromesh.types import Event, JsonObject, Usage

#: bytes of a packed delta without its text: seq, length, time
PACKED_DELTA_OVERHEAD = 16
#: most deltas and characters of a pack; packs are dropped as a whole
_PACK_DELTAS, _PACK_CHARACTERS = 512, 16 * 1024


class PackedDeltas:
    """Consecutive deltas of one source in compact form, without loss.

    Args:
        common_data: the payload that they share, all but `content`.
    """

    __slots__ = ("_common_data", "_lengths", "_run_id", "_seqs", "_stamps", "_text", "_type")

    def __init__(self, common_data: Mapping[str, Any], events: list[Event]) -> None:
        self._common_data = common_data
        self._run_id, self._type = events[0].run_id, events[0].type
        self._seqs = array("Q", [event.seq for event in events])
        self._stamps = array("d", [event.ts for event in events])
        texts = [event.data["content"] for event in events]
        self._lengths = array("I", map(len, texts))
        self._text = "".join(texts)

    @property
    def last(self) -> int:
        """`seq` of the last delta."""
        return self._seqs[-1]

    @property
    def size(self) -> int:
        """Estimated bytes."""
        return len(self._text) + PACKED_DELTA_OVERHEAD * len(self._seqs)

    def events(self) -> Iterator[Event]:
        at = 0
        for seq, ts, length in zip(self._seqs, self._stamps, self._lengths, strict=True):
            content = self._text[at : (at := at + length)]
            yield Event(self._run_id, seq, ts, self._type, {**self._common_data, "content": content})


def pack_deltas(deltas: Iterable[Event]) -> Iterator[PackedDeltas]:
    """Packs deltas in order: one pack for each stretch of one source, of limited size."""
    for _, same in groupby(deltas, key=_delta_source):
        part: list[Event] = []
        text = 0
        for event in same:
            part.append(event)
            text += len(event.data["content"])
            if len(part) == _PACK_DELTAS or text >= _PACK_CHARACTERS:
                yield _pack_of(part)
                part, text = [], 0
        if part:
            yield _pack_of(part)


def _pack_of(part: list[Event]) -> PackedDeltas:
    return PackedDeltas({key: value for key, value in part[0].data.items() if key != "content"}, part)


def _delta_source(event: Event) -> tuple[Any, ...]:
    return event.data.get("step"), event.data.get("role"), len(event.data)


#: estimated bytes of an event, without its text
EVENT_OVERHEAD = 500
#: first events of a run that are never dropped, so that its trace keeps its shape
_HEAD_EVENTS = 16
#: deltas that are stored one by one; more are packed
_MAX_UNPACKED_DELTAS = 256
_STATUS = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.waiting": "waiting",
}


class UsageMeter(Protocol):
    """Reports the usage of a run so far."""

    @property
    def usage(self) -> Usage: ...


class RunLog(Struct, eq=False):
    """One run.

    Args:
        parent: `RUN.CALL` that started a nested run, else empty.
        meter, attempts: usage and failed attempts of model calls so far.
        events: the stored events in order, without packed deltas; `after` returns all.
        max_bytes: of stored events; drops the oldest first, deltas before others.
        stream: accepts listeners while the run is active.
        task: that a cancel request cancels while the run is active.
        cancel_requested: a caller cancelled the run.
        durable: part of a run that is stored and listed on disk.
        metadata, tags: what the caller says about the run.
        remote_span: the caller's span above the run: 16 hex digits, or empty.
        sampled: whether the caller samples the trace; None: not decided.
        ended_at: `clock.monotonic()` of its end.
        dropped_through: `seq` of the last dropped event.
        recording: its steps until they are stored (`durable.recording.Recording`). None: it is not recorded.
    """

    run_id: str
    trace_id: str
    tenant: str
    owner: str
    agent: str
    session_id: str
    parent: str
    meter: UsageMeter
    attempts: list[JsonObject]
    events: list[Event] = field(default_factory=list)
    max_bytes: int = 1 << 19
    stream: ListenableStream | None = None
    task: asyncio.Task[Any] | None = None
    cancel_requested: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    durable: bool = False
    remote_span: str = ""
    sampled: bool | None = None
    ended_at: float | None = None
    dropped_through: int = 0
    recording: Any = None
    _text_length: int = 0
    _unpacked_deltas: int = 0
    _packs: deque[PackedDeltas] | None = None
    _packed_bytes: int = 0
    _waiters: list[asyncio.Future[None]] | None = None

    def __repr__(self) -> str:
        return f"RunLog({self.run_id!r})"  # without the texts of its events

    def measure(self, event: Event) -> None:
        """Adds the size of a new event; drops the oldest events beyond the limit."""
        if event.type == MODEL_DELTA:
            self._text_length += len(event.data["content"])
            self._unpacked_deltas += 1
            if self._unpacked_deltas >= _MAX_UNPACKED_DELTAS:
                self._pack()
        else:
            self._text_length += text_length(event)
        # `size` costs a call per token
        if self._text_length + EVENT_OVERHEAD * len(self.events) + self._packed_bytes > self.max_bytes:
            self._trim()

    @property
    def size(self) -> int:
        """Estimated bytes."""
        return self._text_length + EVENT_OVERHEAD * len(self.events) + self._packed_bytes

    @property
    def status(self) -> str:
        status = _STATUS.get(self.events[-1].type) if self.events else None
        return status or ("running" if self.ended_at is None else "failed")

    def after(self, seq: int) -> list[Event]:
        """Returns the events after a sequence number.

        Raises:
            EventsGone: some of them were dropped.
        """
        if seq < self.dropped_through:
            raise EventsGone(
                f"Events up to {self.dropped_through} of this run are no longer stored. Read those after it."
            )
        stored = [event for event in self.events if event.seq > seq]
        packs = [one for one in self._packs or () if one.last > seq]
        if not packs:
            return stored
        unpacked = (event for one in packs for event in one.events() if event.seq > seq)
        return sorted(chain(unpacked, stored), key=attrgetter("seq"))

    def visible(self, tenant: str, owner: str | None) -> bool:
        """Whether this principal may see the run. `owner` None: any principal of the tenant."""
        return self.tenant == tenant and owner in (None, self.owner)

    async def wait(self) -> None:
        """Waits for the end of the run."""
        if self.ended_at is not None:
            return
        self._waiters = self._waiters or []
        self._waiters.append(asyncio.get_running_loop().create_future())
        await self._waiters[-1]

    def close(self, now: float) -> None:
        self.ended_at, self.stream, self.task = now, None, None  # releases the objects of the run
        if self._packs is not None:
            self._pack()
        for waiting in self._waiters or ():
            if not waiting.done():
                waiting.set_result(None)

    def pack(self) -> None:
        """Packs the deltas among the events: packed ones take a twentieth of the memory."""
        if self._unpacked_deltas:
            self._pack()

    def _pack(self) -> None:
        packs = self._packs = self._packs or deque()
        for one in pack_deltas(event for event in self.events if event.type == MODEL_DELTA):
            packs.append(one)
            self._packed_bytes += one.size
        self.events[:] = [event for event in self.events if event.type != MODEL_DELTA]
        self._text_length = sum(text_length(event) for event in self.events)
        self._unpacked_deltas = 0

    def _drop_private(self) -> None:
        """Drops the older half of the captured content."""
        private = [event.seq for event in self.events if event.type in PRIVATE_EVENTS]
        if private:
            upto = private[len(private) // 2]
            self.events[:] = [e for e in self.events if e.seq > upto or e.type not in PRIVATE_EVENTS]
            self._text_length = sum(text_length(event) for event in self.events)

    def _trim(self) -> None:
        """Drops private events, then the oldest packs, then the older half of the others, in place.

        Readers hold a `seq`, not a position.
        """
        self._drop_private()
        while self._packs and self.size > self.max_bytes:
            dropped = self._packs.popleft()
            self._packed_bytes -= dropped.size
            self.dropped_through = dropped.last
        if self.size <= self.max_bytes or len(self.events) <= 2 * _HEAD_EVENTS:
            return
        end = _HEAD_EVENTS + (len(self.events) - _HEAD_EVENTS) // 2
        self.dropped_through = max(self.dropped_through, self.events[end - 1].seq)
        del self.events[_HEAD_EVENTS:end]
        self._text_length = sum(text_length(event) for event in self.events)


def text_length(event: Event) -> int:
    """Returns the characters of the long values of an event."""
    length = 0
    for key in LONG_EVENTS.get(event.type, ()):
        length += len(str(event.data.get(key, "")))
    return length


class RunLogs:
    """The active runs, and the newest ended ones.

    Args:
        max_runs, max_bytes: limits of the stored ended runs; the size is estimated.
        max_dropped_ids: remembered ids of dropped runs, to answer that they are gone.
    """

    def __init__(
        self, *, max_runs: int = 1000, max_bytes: int = 32 << 20, max_dropped_ids: int = 10_000
    ) -> None:
        self._max_runs, self._max_bytes, self._max_dropped_ids = max_runs, max_bytes, max_dropped_ids
        self._runs: dict[str, RunLog] = {}
        self._ended: deque[tuple[RunLog, int]] = deque()
        self._traces: dict[str, list[RunLog]] = {}
        self._dropped: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, log: RunLog) -> None:
        if log.run_id in self._runs:  # a durable run resumes in the process where it started
            self._replace(log.run_id)
        self._runs[log.run_id] = log
        self._traces.setdefault(log.trace_id, []).append(log)

    def close(self, log: RunLog, now: float) -> None:
        """Closes a run that ended or waits; a durable run is on disk with its events and not stored here."""
        log.close(now)
        if log.durable and not log.parent:
            self._forget(log)
            return
        size = log.size
        self._ended.append((log, size))
        self._bytes += size
        while len(self._ended) > self._max_runs or self._bytes > self._max_bytes:
            self._drop()

    def find(self, run_id: str) -> RunLog | None:
        return self._runs.get(run_id)

    def was_dropped(self, run_id: str, tenant: str, owner: str | None) -> bool:
        """Whether this principal had such a run and it was dropped."""
        dropped = self._dropped.get(run_id)
        return dropped is not None and dropped[0] == tenant and owner in (None, dropped[1])

    def of_trace(self, trace_id: str, tenant: str, owner: str | None) -> list[RunLog]:
        """Returns the runs of a trace that this principal may see. `owner` None: all of the tenant."""
        return [run for run in self._traces.get(trace_id, ()) if run.visible(tenant, owner)]

    def erase_owner(self, tenant: str, owner: str) -> int:
        """Drops the ended runs of one principal; returns their number."""
        erased = [one for one in self._ended if (one[0].tenant, one[0].owner) == (tenant, owner)]
        others = [one for one in self._ended if (one[0].tenant, one[0].owner) != (tenant, owner)]
        self._ended = deque((*erased, *others))
        for _ in erased:
            self._drop()
        for run_id in [run_id for run_id, of in self._dropped.items() if of == (tenant, owner)]:
            del self._dropped[run_id]
        return len(erased)

    def newest(self) -> Iterator[RunLog]:
        return reversed(self._runs.values())

    def _replace(self, run_id: str) -> None:
        """Drops the earlier part of a run."""
        earlier = next((one for one in self._ended if one[0].run_id == run_id), None)
        if earlier is not None:
            self._ended.remove(earlier)
            self._ended.appendleft(earlier)
            self._drop()
            self._dropped.pop(run_id, None)

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
        self._dropped[old.run_id] = (old.tenant, old.owner)
        if len(self._dropped) > self._max_dropped_ids:
            self._dropped.popitem(last=False)
