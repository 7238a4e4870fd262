"""Between a run and a socket: events wait here when the reader is slow (reliability.md R11)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from astromesh.telemetry.runs import OVERHEAD, text_of
from astromesh.telemetry.stream import DELTA, PRIVATE, TERMINAL
from astromesh.types import Event

#: events that wait one by one; beyond it deltas of one step are joined
MOST_SINGLE = 512
#: characters of a joined delta that takes another one: each time it is copied as a whole
_MOST_JOINED = 16 * 1024
#: bytes that wait, estimated; beyond it events are dropped, which the gap in `seq` shows. As much again may
#: be on its way: what a writer took before its socket stood still
MOST_BYTES = 1 << 20


class Outbox:
    """A listener with a bounded queue for one reader. The run never waits for it.

    The last event of a run is never dropped: it has the whole answer.

    Args:
        single: how many events may wait before deltas are joined.
        most: how many bytes may wait before events are dropped.
        ends: closes behind the last event of a run.

    `waiting` counts the bytes that wait, `dropped` the events that were lost, `dropped_by_all` those of every
    outbox of this process.
    """

    wants_deltas = True
    dropped_by_all: ClassVar[int] = 0

    def __init__(self, single: int = MOST_SINGLE, most: int = MOST_BYTES, *, ends: bool = False) -> None:
        self._pending: list[Event] = []
        self._single, self._most, self._ends = max(single, 1), most, ends
        # A future only while somebody waits: idle sockets are many.
        self._ready: asyncio.Future[None] | None = None
        self._closed = False
        self.waiting = 0
        self.dropped = 0

    def send(self, event: Event) -> None:
        last = event.type in TERMINAL
        if self._closed or event.type in PRIVATE or not self._has_room(event, last):
            return
        if not self._join(event):
            self._pending.append(event)
        if last and self._ends:
            self._closed = True
        self._wake()

    def close(self) -> None:
        """No event comes any more; what waits may still be taken."""
        self._closed = True
        self._wake()

    def abandon(self) -> None:
        """Nobody reads any more."""
        self._pending = []
        self.close()

    async def take(self) -> Sequence[Event]:
        """Everything that waits, at least one event; empty once closed and drained."""
        while not self._pending and not self._closed:
            self._ready = asyncio.get_running_loop().create_future()
            await self._ready
        taken, self._pending = self._pending, []
        self.waiting = 0
        return taken

    def _wake(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def _has_room(self, event: Event, last: bool) -> bool:
        size = OVERHEAD + text_of(event)
        if self.waiting + size > self._most and not last:
            self.dropped += 1
            Outbox.dropped_by_all += 1
            return False
        self.waiting += size
        return True

    def _join(self, event: Event) -> bool:
        """Joins a delta to the one before where many wait."""
        if len(self._pending) < self._single or event.type != DELTA:
            return False
        before = self._pending[-1]
        if not _same_voice(before, event) or len(before.data["content"]) > _MOST_JOINED:
            return False
        # events are shared with other listeners: a new one, never a changed one
        data = {**event.data, "content": before.data["content"] + event.data["content"]}
        self._pending[-1] = Event(event.run_id, event.seq, event.ts, DELTA, data)
        self.waiting -= OVERHEAD
        return True


def _same_voice(before: Event, delta: Event) -> bool:
    return (
        before.type == DELTA
        and before.run_id == delta.run_id
        and all(before.data[k] == delta.data[k] for k in ("step", "role"))
    )
