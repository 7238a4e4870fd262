"""The one stream of events of a run (api.md section 3). Everything else is an encoding of it."""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Any

from astromesh.abc.events import EventSink
from astromesh.types import Event


class EventStream:
    """Numbers events and hands them to the listeners, in order, at once.

    Args:
        run_id: stands in every event.
        sinks: listeners from the start; more may be added while the run goes on.
    """

    __slots__ = ("run_id", "seq", "sinks", "streaming")

    def __init__(self, run_id: str, sinks: Iterable[EventSink] = ()) -> None:
        self.run_id = run_id
        self.seq = 0
        self.sinks: tuple[EventSink, ...] = tuple(sinks)
        self.streaming = any(s.wants_deltas for s in self.sinks)

    def add(self, sink: EventSink) -> None:
        self.sinks = (*self.sinks, sink)
        self.streaming = self.streaming or sink.wants_deltas

    def remove(self, sink: EventSink) -> None:
        self.sinks = tuple(s for s in self.sinks if s is not sink)
        self.streaming = any(s.wants_deltas for s in self.sinks)

    def emit(self, type: str, /, **data: Any) -> None:
        if not self.sinks:
            return
        self.seq = seq = self.seq + 1
        event = Event(self.run_id, seq, time(), type, data)
        for sink in self.sinks:
            sink.send(event)


class NoEvents:
    """An emitter nobody listens to."""

    __slots__ = ()
    streaming = False

    def emit(self, type: str, /, **data: Any) -> None:
        pass
