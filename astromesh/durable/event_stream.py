"""The events of a durable run: written to disk first, then sent to listeners (docs/api.md, Events).

A resumed run repeats the events of its recorded steps. An event whose type and data (without times) are on
disk is dropped, as often as it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from time import time
from typing import Any, Protocol

import orjson

from astromesh.graph.calls import ASSISTANT
from astromesh.telemetry.events import (
    COMMENTARY,
    LONG_EVENTS,
    MODEL_DELTA,
    TERMINAL_EVENTS,
    WAITING,
    EventSink,
    send_to_sinks,
)
from astromesh.telemetry.run_log import RunLog
from astromesh.types import Event, JsonObject

RESTARTED = "model.restarted"
#: the last event of a segment is one of these
_LAST_EVENTS = TERMINAL_EVENTS | {WAITING}
#: data that differs each time a step is repeated
_TIMES = frozenset({"duration_ms", "latency_ms", "recorded"})
_KEY_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


class EventWriter(Protocol):
    """Writes events to disk."""

    @property
    def closed(self) -> bool: ...

    def event(self, event: Event, *, last: bool = False) -> None: ...


class DurableStream:
    """An `EventStream` whose listeners receive what is on disk. Deltas are always made, for later listeners.

    Args:
        log: the record of the run in this process, for traces.
        own: listeners that receive each new event before it is on disk, e.g. the metrics.
        past: the events on disk, in order.
        again: listeners that receive each event before it is on disk, repeated ones included.
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
        self._live_sinks, self._replay_sinks = tuple(own), tuple(again)
        self._sinks: tuple[EventSink, ...] = ()
        self._past = past
        self._repeats = Counter(_key(event.type, event.data) for event in past)
        self._replayed_steps: set[int] = set()
        log.events.extend(past)

    def add(self, sink: EventSink) -> None:
        self._sinks = (*self._sinks, sink)

    def remove(self, sink: EventSink) -> None:
        self._sinks = tuple(s for s in self._sinks if s is not sink)

    def emit(self, type: str, /, **data: Any) -> None:
        if self._writer.closed:
            return
        if self._past and (self._is_repeated(type, data) or self._past[-1].type in TERMINAL_EVENTS):
            self._send_now(self._replay_sinks, Event(self.run_id, self.seq, time(), type, data))
            return
        self.seq = seq = self.seq + 1
        event = Event(self.run_id, seq, time(), type, data)
        self._log.events.append(event)
        if type in LONG_EVENTS or not seq & 255:
            self._log.measure(event)
        self._send_now(self._live_sinks, event)
        if self._replay_sinks:
            self._send_now(self._replay_sinks, event)
        self._writer.event(event, last=type in _LAST_EVENTS)

    def deliver(self, events: Sequence[Event]) -> None:
        """Sends events to the listeners that are on disk now."""
        if not events:
            return
        self.written = events[-1].seq
        for event in events if self._sinks else ():
            for broken in send_to_sinks(self._sinks, event):
                self.remove(broken)

    def _send_now(self, sinks: Iterable[EventSink], event: Event) -> None:
        for broken in send_to_sinks(sinks, event):
            self._live_sinks = tuple(s for s in self._live_sinks if s is not broken)
            self._replay_sinks = tuple(s for s in self._replay_sinks if s is not broken)

    # -- a run that is resumed ----------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        """Returns the number of the newest model call that has begun."""
        steps = (event.data["step"] for event in self._past if event.type in ("model.started", MODEL_DELTA))
        return max(steps, default=0)

    def replay_step(self, step: int) -> None:
        """Drops the events of a model call that the record answers."""
        self._replayed_steps.add(step)

    def restart_step(self, step: int) -> None:
        """Declares the deltas of a model call void that is made again."""
        self._repeats -= Counter(
            _key(e.type, e.data) for e in self._past if e.type == MODEL_DELTA and e.data["step"] == step
        )
        self.emit(RESTARTED, step=step)

    def sent_text(self) -> dict[int, str]:
        """Returns by step the text on disk that may still be the answer."""
        texts: dict[int, list[str]] = {}
        for event in self._past:
            if event.type in (RESTARTED, COMMENTARY):
                texts.pop(event.data["step"], None)
            elif event.type == MODEL_DELTA and event.data["role"] == ASSISTANT:
                texts.setdefault(event.data["step"], []).append(event.data["content"])
        return {step: "".join(pieces) for step, pieces in texts.items()}

    def _is_repeated(self, type: str, data: JsonObject) -> bool:
        if data.get("step") in self._replayed_steps and type.startswith("model.") and type != COMMENTARY:
            return True
        key = _key(type, data)
        if self._repeats[key] <= 0:
            return False
        self._repeats[key] -= 1
        return True


def _key(type: str, data: JsonObject) -> bytes:
    repeatable = {name: value for name, value in data.items() if name not in _TIMES}
    return type.encode() + orjson.dumps(repeatable, default=str, option=_KEY_OPTIONS)
