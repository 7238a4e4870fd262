"""A listener to the events of a run, for tests."""

from __future__ import annotations

import asyncio

from astromesh.telemetry.events import TERMINAL_EVENTS
from astromesh.types import Event


class Heard:
    """A listener that keeps what it receives."""

    wants_deltas = True

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = asyncio.Event()

    def send(self, event: Event) -> None:
        self.events.append(event)
        if event.type in TERMINAL_EVENTS:
            self.ended.set()
