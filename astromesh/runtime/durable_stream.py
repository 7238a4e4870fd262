"""The events of a durable run: on disk first, then to who listens (api.md section 3).

A run that is taken up again does once more what its record answers. What it says on the way has been said:
an event whose type and data, times left out, are on disk already is dropped, each as often as it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from time import time
from typing import Any, Protocol

import orjson

from astromesh.abc.events import EventSink
from astromesh.node.calls import ASSISTANT
from astromesh.telemetry.runs import RunLog
from astromesh.telemetry.stream import DELTA, LONG, TERMINAL, tell
from astromesh.types import Event, JsonObject

RESTARTED = "model.restarted"
#: the last event of a segment is one of these
_ENDS = TERMINAL | {"run.waiting"}
#: what differs whenever the same thing is done again
_TIMES = frozenset({"duration_ms", "latency_ms"})
_KEYED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


class EventWriter(Protocol):
    """Takes events to disk."""

    @property
    def closed(self) -> bool: ...

    def event(self, event: Event, *, last: bool = False) -> None: ...


class DurableStream:
    """An `EventStream` whose listeners hear what is on disk. Deltas are always made: anybody may come later.

    Args:
        past: the events that are on disk, in order.
        log: the run's record in this process, for traces.
        own: listeners that count and want every event at once, e.g. the metrics.
        again: listeners that want every event at once, also where it was said before: they start anew.
    """

    streaming = True

    def __init__(
        self,
        run_id: str,
        writer: EventWriter,
        log: RunLog,
        own: Iterable[EventSink],
        past: Sequence[Event] = (),
        again: Iterable[EventSink] = (),
    ) -> None:
        self.run_id = run_id
        self.seq = self.written = past[-1].seq if past else 0
        self._writer, self._log = writer, log
        self._own, self._anew = tuple(own), tuple(again)
        self._sinks: tuple[EventSink, ...] = ()
        self._past = past
        self._again = Counter(_key(event.type, event.data) for event in past)
        self._answered: set[int] = set()
        log.events.extend(past)

    def add(self, sink: EventSink) -> None:
        self._sinks = (*self._sinks, sink)

    def remove(self, sink: EventSink) -> None:
        self._sinks = tuple(s for s in self._sinks if s is not sink)

    def emit(self, type: str, /, **data: Any) -> None:
        if self._writer.closed:
            return
        if self._past and (self._was_said(type, data) or self._past[-1].type in TERMINAL):
            self._tell_ours(self._anew, Event(self.run_id, self.seq, time(), type, data))
            return
        self.seq = seq = self.seq + 1
        event = Event(self.run_id, seq, time(), type, data)
        self._log.events.append(event)
        if type in LONG or not seq & 255:
            self._log.weigh(event)
        self._tell_ours((*self._own, *self._anew), event)
        self._writer.event(event, last=type in _ENDS)

    def deliver(self, events: Sequence[Event]) -> None:
        """Hands events on that are on disk now."""
        if not events:
            return
        self.written = events[-1].seq
        for event in events:
            for broken in tell(self._sinks, event):
                self.remove(broken)

    def _tell_ours(self, sinks: Iterable[EventSink], event: Event) -> None:
        for broken in tell(sinks, event):
            self._own = tuple(s for s in self._own if s is not broken)
            self._anew = tuple(s for s in self._anew if s is not broken)

    # -- a run that is taken up again ----------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        """Number of the newest model call that was begun."""
        steps = (event.data["step"] for event in self._past if event.type in ("model.started", DELTA))
        return max(steps, default=0)

    def answered(self, step: int) -> None:
        """A model call that the record answers: what it says now was said."""
        self._answered.add(step)

    def restarted(self, step: int) -> None:
        """A model call that is made again: the deltas of its first try are void."""
        self._again -= Counter(
            _key(e.type, e.data) for e in self._past if e.type == DELTA and e.data["step"] == step
        )
        self.emit(RESTARTED, step=step)

    @property
    def said(self) -> str:
        """The text of the newest step of the run's own voice, as far as it was heard."""
        text, step = "", 0
        for event in self._past:
            data = event.data
            if event.type == RESTARTED and data["step"] == step:
                text = ""
            elif event.type == DELTA and data["role"] == ASSISTANT:
                text, step = (text if data["step"] == step else "") + data["content"], data["step"]
        return text

    def _was_said(self, type: str, data: JsonObject) -> bool:
        if data.get("step") in self._answered and type.startswith("model."):
            return True
        key = _key(type, data)
        if self._again[key] <= 0:
            return False
        self._again[key] -= 1
        return True


def _key(type: str, data: JsonObject) -> bytes:
    kept = {name: value for name, value in data.items() if name not in _TIMES}
    return type.encode() + orjson.dumps(kept, default=str, option=_KEYED)
