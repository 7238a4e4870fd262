"""Where a run's events go (api.md section 3)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from astromesh.types import Event


class EventSink(Protocol):
    """A listener. `send` must not block; a slow listener buffers or drops by itself.

    One that raises stands in the log (`listener_failed`) and is told nothing more: the run goes on.
    """

    #: whether this listener wants every `model.delta`; if nobody does, models are not asked to stream
    wants_deltas: bool

    def send(self, event: Event) -> None: ...


class Emitter(Protocol):
    """What a run's code emits to. `astromesh.telemetry.stream.EventStream` is the implementation."""

    @property
    def streaming(self) -> bool:
        """Whether a listener wants deltas."""

    def emit(self, type: str, /, **data: Any) -> None:
        """Sends one event to every listener; makes no object when there is none."""


@runtime_checkable
class Withholding(Protocol):
    """An emitter that may hold text back before it lets it out."""

    def withdraw(self, step: int) -> bool:
        """Forgets what was said in a step, if none of it has left; whether that is so."""
