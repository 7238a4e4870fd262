"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

#: turns of the event loop that woken tasks get before time goes on; more than any chain of awaits in a step
_TURNS = 50


class ManualClock:
    """A `Clock` that the test moves.

    Args:
        start: seconds since the epoch that `now()` answers first.
        jump: a sleep moves the time by itself and returns at once; for code that only waits between tries.

    `slept` holds what was asked of `sleep`, in order, in seconds.
    """

    def __init__(self, start: float = 1_700_000_000.0, *, jump: bool = False) -> None:
        self.slept: list[float] = []
        self._start, self._passed, self._jump = start, 0.0, jump
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._start + self._passed

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self._jump:
            self.advance(max(seconds, 0.0))
        if self._jump or seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._passed + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many tasks sleep now."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Moves the time at once; who was due in between wakes when the event loop runs next.

        Raises:
            ValueError: time does not go back.
        """
        if seconds < 0:
            raise ValueError("Time does not go back.")
        self._passed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._passed:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    async def run_for(self, seconds: float) -> None:
        """Moves the time from one sleeper to the next, each of them running at its own moment."""
        await _let_run()
        end = self._passed + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self.advance(max(self._sleepers[0][0] - self._passed, 0.0))
            await _let_run()
        self.advance(max(end - self._passed, 0.0))
        await _let_run()


async def _let_run() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
