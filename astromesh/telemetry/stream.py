"""The one stream of events of a run (api.md section 3). Everything else is an encoding of it."""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Any, Protocol

import structlog

from astromesh.abc.events import EventSink
from astromesh.types import Event

DELTA = "model.delta"
#: the last event of a run is one of these
TERMINAL = frozenset({"run.completed", "run.failed", "run.cancelled"})


#: what models and tools were told and answered, where `telemetry.capture_content` is set
MODEL_CONTENT, TOOL_CONTENT = "model.content", "tool.content"
#: events for traces alone: whoever listens to a run over the network is not shown them
PRIVATE = frozenset({MODEL_CONTENT, TOOL_CONTENT})
#: events whose payload may be long
LONG = frozenset({DELTA, "tool.started", "run.completed", "run.failed", "run.cancelled", *PRIVATE})

log = structlog.get_logger("astromesh.runs")


class EventLog(Protocol):
    """What keeps a run's events. `weigh` is called behind long events, and now and then behind others."""

    @property
    def events(self) -> list[Event]: ...

    def weigh(self, event: Event) -> None: ...


class Stream(Protocol):
    """Where the events of a run go, and who hears them."""

    @property
    def streaming(self) -> bool: ...

    def add(self, sink: EventSink) -> None: ...

    def remove(self, sink: EventSink) -> None: ...

    def emit(self, type: str, /, **data: Any) -> None: ...


class EventStream:
    """Numbers events and hands them to the listeners, in order, at once.

    Args:
        run_id: stands in every event.
        sinks: listeners from the start; more may be added while the run goes on.
        log: keeps what is sent, deltas too where a listener wants them.
    """

    __slots__ = ("_delta_sinks", "_log", "_sinks", "run_id", "seq", "streaming")

    def __init__(self, run_id: str, sinks: Iterable[EventSink] = (), log: EventLog | None = None) -> None:
        self.run_id = run_id
        self.seq = 0
        self._log = log
        self._listen(tuple(sinks))

    def add(self, sink: EventSink) -> None:
        self._listen((*self._sinks, sink))

    def remove(self, sink: EventSink) -> None:
        self._listen(tuple(s for s in self._sinks if s is not sink))

    def emit(self, type: str, /, **data: Any) -> None:
        sinks, log = (self._delta_sinks if type == DELTA else self._sinks), self._log
        if not sinks and (log is None or type == DELTA):
            return
        self.seq = seq = self.seq + 1
        event = Event(self.run_id, seq, time(), type, data)
        if log is not None:
            log.events.append(event)
            if type in LONG or not seq & 255:
                log.weigh(event)
        for sink in sinks:
            try:
                sink.send(event)
            except Exception as error:  # noqa: BLE001 (the border of a listener: it harms no run, and no other)
                self.remove(sink)
                _log_broken(sink, event, error)

    def _listen(self, sinks: tuple[EventSink, ...]) -> None:
        self._sinks = sinks
        self._delta_sinks = tuple(s for s in sinks if s.wants_deltas)
        self.streaming = bool(self._delta_sinks)


def tell(sinks: Iterable[EventSink], event: Event) -> list[EventSink]:
    """Hands an event to those who want it; answers the listeners that broke, which are told nothing more."""
    broken = []
    for sink in sinks:
        if sink.wants_deltas or event.type != DELTA:
            try:
                sink.send(event)
            except Exception as error:  # noqa: BLE001 (the border of a listener: it harms no run, and no other)
                _log_broken(sink, event, error)
                broken.append(sink)
    return broken


def _log_broken(sink: EventSink, event: Event, error: Exception) -> None:
    log.error(
        "listener_failed",
        listener=type(sink).__name__,
        heard=event.type,
        run_id=event.run_id,
        exc_info=error,
    )


class NoEvents:
    """An emitter nobody listens to."""

    __slots__ = ()
    streaming = False

    def emit(self, type: str, /, **data: Any) -> None:
        pass
