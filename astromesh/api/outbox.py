"""Between a run and a socket: events wait here when the reader is slow (reliability.md R11)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from astromesh.telemetry.stream import DELTA
from astromesh.types import Event

#: events that wait one by one; beyond it deltas of one step are joined
MOST_SINGLE = 512
#: characters of text that wait; beyond it deltas are dropped: the run's last event has the whole answer
MOST_TEXT = 1 << 20


class Outbox:
    """A listener with a bounded queue for one reader. The run never waits for it.

    Args:
        single: how many events may wait before deltas are joined.
        text: how many characters of deltas may wait before they are dropped.
    """

    wants_deltas = True

    def __init__(self, single: int = MOST_SINGLE, text: int = MOST_TEXT) -> None:
        self._pending: list[Event] = []
        self._single, self._text = single, text
        self._waiting_text = 0
        self._ready = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def send(self, event: Event) -> None:
        if event.type == DELTA and not self._room_for(event):
            return
        self._pending.append(event)
        self._ready.set()

    def close(self) -> None:
        """No event comes any more."""
        self._closed = True
        self._ready.set()

    async def take(self) -> Sequence[Event]:
        """Everything that waits, at least one event; empty once closed and drained."""
        while not self._pending and not self._closed:
            self._ready.clear()
            await self._ready.wait()
        taken, self._pending = self._pending, []
        self._waiting_text = 0
        return taken

    def _room_for(self, delta: Event) -> bool:
        """Whether a delta is to be queued as an event of its own; otherwise it was joined or dropped."""
        size = len(delta.data["content"])
        if self._waiting_text + size > self._text:
            self.dropped += 1
            return False
        self._waiting_text += size
        if len(self._pending) < self._single or not _same_voice(self._pending[-1], delta):
            return True
        self._pending[-1] = _joined(self._pending[-1], delta)
        return False


def _same_voice(last: Event, delta: Event) -> bool:
    return last.type == DELTA and all(last.data[k] == delta.data[k] for k in ("step", "role"))


def _joined(last: Event, delta: Event) -> Event:
    # events are shared with other listeners: a new one, never a changed one
    data = {**delta.data, "content": last.data["content"] + delta.data["content"]}
    return Event(delta.run_id, delta.seq, delta.ts, DELTA, data)
