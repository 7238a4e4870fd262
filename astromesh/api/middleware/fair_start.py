"""Starts concurrent requests in arrival order, at most 8 per event-loop turn.

An event loop that starts all of them at once moves them on in step: all call their models, all responses
arrive together, and the processor idles in between. In order, the first ones wait for their models while the
next ones start, and the work spreads out. For requests of similar size, first come, first served has a
smaller mean time than equal shares (Kleinrock, Queueing Systems, volume 2, 1976, chapter 4).
"""

from __future__ import annotations

import asyncio
from collections import deque

#: requests that start in one turn of the event loop
MAX_STARTS = 8


class FairStart:
    """The queue of one event loop. A request that arrives alone never waits."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._started = 0

    def enter(self) -> asyncio.Future[None] | None:
        """Returns None where the request may start now, else a future to await before it starts."""
        loop = asyncio.get_running_loop()
        if self._started < MAX_STARTS and not self._waiting:
            if not self._started:
                loop.call_soon(self._start_next)
            self._started += 1
            return None
        turn = loop.create_future()
        self._waiting.append(turn)
        return turn

    async def wait_for_earlier(self) -> None:
        """Returns when all requests that wait now have started."""
        if (turn := self.enter()) is not None:
            await turn

    def _start_next(self) -> None:
        self._started = 0
        while self._waiting and self._started < MAX_STARTS:
            turn = self._waiting.popleft()
            if not turn.done():  # a cancelled request leaves its future behind
                turn.set_result(None)
                self._started += 1
        if self._started:
            asyncio.get_running_loop().call_soon(self._start_next)
