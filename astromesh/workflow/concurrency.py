"""Which stages and Tasks may run at once, and the clock of a Task, which stands while it waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from astromesh.telemetry.clock import Clock


class StageSlots:
    """The stages that may run at once, over all Tasks of an engine; first come, first served.

    One request is for one stage. A waiting Task holds no slot.

    Args:
        limit: stages that run at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    @property
    def in_use(self) -> int:
        """Stages that run now."""
        return self._limit - self._free

    @property
    def has_waiters(self) -> bool:
        """Whether a run waits for a slot."""
        return bool(self._waiting)

    def request(self, owner: object, begin: Callable[[], None]) -> None:
        """Calls `begin` as soon as a slot is free."""
        if self._free:
            self._free -= 1
            begin()
        else:
            self._waiting.append((owner, begin))

    async def acquire(self, owner: object) -> None:
        """Waits for a slot. A caller that is cancelled has none."""
        granted = asyncio.Event()
        self.request(owner, granted.set)
        try:
            await granted.wait()
        except asyncio.CancelledError:
            if granted.is_set():
                self.release()
            else:
                self._waiting = deque(one for one in self._waiting if one[1] != granted.set)
            raise

    def release(self) -> None:
        """Passes the slot of a stage that has ended, or waits, to the run that waits longest."""
        if self._waiting:
            self._waiting.popleft()[1]()
        else:
            self._free += 1

    def take_turn(self, owner: object, begin: Callable[[], None]) -> bool:
        """Returns whether this request waits longest; the caller's slot then serves it, without `begin`."""
        if self._waiting and self._waiting[0] == (owner, begin):
            self._waiting.popleft()
            return True
        return False

    def withdraw(self, owner: object) -> None:
        """Removes every request of a run that has ended."""
        self._waiting = deque(one for one in self._waiting if one[0] is not owner)


class TaskSlot:
    """The place of one Task among those that run at once. It gives the place back while it waits."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots, self._held, self._taking = slots, False, asyncio.Lock()

    async def take(self) -> None:
        """Waits for a place, unless the Task has one; first come, first served."""
        async with self._taking:
            if not self._held:
                await self._slots.acquire()
                self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()


class Stopwatch:
    """The time that a Task has run, without the time for which all of it waited."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._since, self._earlier = clock, clock.monotonic(), 0.0
        self._running = asyncio.Event()
        self._running.set()

    def stop(self) -> None:
        if self._running.is_set():
            self._running.clear()
            self._earlier += self._clock.monotonic() - self._since

    def start(self) -> None:
        if not self._running.is_set():
            self._since = self._clock.monotonic()
            self._running.set()

    async def reach(self, seconds: float) -> None:
        """Returns when the Task has run for so many seconds."""
        while True:
            await self._running.wait()
            left = seconds - self._earlier - (self._clock.monotonic() - self._since)
            if left <= 0:
                return
            await self._clock.sleep(left)
