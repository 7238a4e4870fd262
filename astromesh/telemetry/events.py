"""The one stream of events of a run, and its listeners (docs/api.md, Events).

REST, SSE, WebSocket, traces and metrics are encodings of this stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from time import perf_counter, time
from typing import Any, Protocol, runtime_checkable

from astromesh.errors import is_failure
from astromesh.logs import get_logger
from astromesh.types import Event


class EventSink(Protocol):
    """A listener. `send` must not block; a slow listener buffers or drops events itself.

    A listener that raises is logged (`listener_failed`) and removed; the run continues.
    """

    #: whether this listener receives every `model.delta`; if no listener does, models do not stream
    wants_deltas: bool

    def send(self, event: Event) -> None: ...


@runtime_checkable
class SinkWithRoom(EventSink, Protocol):
    """A listener that drops events when it is full, and says when it is not: stored events wait for it."""

    @property
    def has_room(self) -> bool: ...

    async def room(self) -> None:
        """Returns once it has room."""


def send_what_fits(events: Sequence[Event], sink: EventSink) -> Sequence[Event]:
    """Sends stored events while the listener has room. Returns those that are left."""
    bounded = sink if isinstance(sink, SinkWithRoom) else None
    for sent, event in enumerate(events):
        if bounded is not None and not bounded.has_room:
            return events[sent:]
        sink.send(event)
    return ()


async def send_stored(events: Sequence[Event], sink: EventSink) -> None:
    """Sends stored events, and waits for a listener that has no room."""
    while events := send_what_fits(events, sink):
        if isinstance(sink, SinkWithRoom):
            await sink.room()


class Emitter(Protocol):
    """The interface that a run emits events to; `EventStream` implements it."""

    @property
    def streaming(self) -> bool:
        """Whether a listener receives deltas."""

    def emit(self, type: str, /, **data: Any) -> None:
        """Sends one event to every listener; creates no event if there is none."""


@runtime_checkable
class RetractableEmitter(Protocol):
    """An emitter that can hold text back before it sends it."""

    def retract(self, step: int) -> bool:
        """Discards the text of a step if none of it was sent; returns whether it did."""


MODEL_DELTA = "model.delta"
#: the text of a step of role `assistant` is not part of the answer
COMMENTARY = "model.commentary"
#: the last event of a run is one of these
#: the run asks a person; the event shows the question
WAITING = "run.waiting"
TERMINAL_EVENTS = frozenset({"run.completed", "run.failed", "run.cancelled"})
#: requests and answers of models and tools, if `telemetry.capture_content` is set
MODEL_CONTENT, TOOL_CONTENT = "model.content", "tool.content"
#: events for traces only; clients that listen over the network do not receive them
PRIVATE_EVENTS = frozenset({MODEL_CONTENT, TOOL_CONTENT})
#: events whose data may be long -> the keys of the long values
LONG_EVENTS: Mapping[str, tuple[str, ...]] = {
    MODEL_DELTA: ("content",),
    "tool.started": ("arguments",),
    **dict.fromkeys(TERMINAL_EVENTS, ("response",)),
    MODEL_CONTENT: ("input", "output"),
    TOOL_CONTENT: ("arguments", "result"),
}
_wants_deltas = attrgetter("wants_deltas")
log = get_logger("astromesh.runs")


class EventLog(Protocol):
    """Stores the events of a run. `measure` is called after long events, and after every 256th one."""

    @property
    def events(self) -> list[Event]: ...

    def measure(self, event: Event) -> None: ...


class ListenableStream(Protocol):
    """An emitter with listeners that come and go: `EventStream`, and the stream of a durable run."""

    @property
    def streaming(self) -> bool: ...

    def add(self, sink: EventSink) -> None: ...

    def remove(self, sink: EventSink) -> None: ...

    def emit(self, type: str, /, **data: Any) -> None: ...


class EventStream:
    """Numbers events and sends them to the listeners, in order and immediately.

    Args:
        run_id: of every event.
        sinks: initial listeners; more can be added during the run.
        log: stores the events, and deltas if a listener receives them.
    """

    __slots__ = ("_delta_sinks", "_log", "_sinks", "run_id", "seq", "streaming")

    def __init__(self, run_id: str, sinks: Iterable[EventSink] = (), log: EventLog | None = None) -> None:
        self.run_id = run_id
        self.seq = 0
        self._log = log
        self._set_sinks(tuple(sinks))

    def add(self, sink: EventSink) -> None:
        self._set_sinks((*self._sinks, sink))

    def remove(self, sink: EventSink) -> None:
        self._set_sinks(tuple(s for s in self._sinks if s is not sink))

    def emit(self, type: str, /, **data: Any) -> None:
        sinks, log = (self._delta_sinks if type == MODEL_DELTA else self._sinks), self._log
        if not sinks and (log is None or type == MODEL_DELTA):
            return
        self.seq = seq = self.seq + 1
        event = Event(self.run_id, seq, time(), type, data)
        if log is not None:
            log.events.append(event)
            if type in LONG_EVENTS or not seq & 255:
                log.measure(event)
        for sink in sinks:
            try:
                sink.send(event)
            except BaseException as error:  # a listener must not harm the run or another listener
                if not is_failure(error):
                    raise
                self.remove(sink)
                _log_sink_error(sink, event, error)

    def _set_sinks(self, sinks: tuple[EventSink, ...]) -> None:
        self._sinks = sinks
        self._delta_sinks = tuple(filter(_wants_deltas, sinks))
        self.streaming = bool(self._delta_sinks)


def send_to_sinks(sinks: Iterable[EventSink], event: Event) -> list[EventSink]:
    """Sends an event to the listeners that receive it; returns the listeners that raised."""
    broken = []
    for sink in sinks:
        if sink.wants_deltas or event.type != MODEL_DELTA:
            try:
                sink.send(event)
            except BaseException as error:  # a listener must not harm the run or another listener
                if not is_failure(error):
                    raise
                _log_sink_error(sink, event, error)
                broken.append(sink)
    return broken


def _log_sink_error(sink: EventSink, event: Event, error: BaseException) -> None:
    log.error(
        "listener_failed",
        listener=type(sink).__name__,
        heard=event.type,
        run_id=event.run_id,
        exc_info=error,
    )


def ms_since(started: float) -> float:
    """Returns the `duration_ms` of an event: milliseconds since a `time.perf_counter`, to the microsecond.

    Rounding to an integer costs a third of `round(…, 3)`, and a run measures ten times.
    """
    return round((perf_counter() - started) * 1e6) / 1000


class NullEmitter:
    """An emitter without listeners."""

    __slots__ = ()
    streaming = False

    def emit(self, type: str, /, **data: Any) -> None:
        pass
