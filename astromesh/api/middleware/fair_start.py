"""Requests that come together begin in the order they came, a few at a time.

An event loop that begins all of them at once takes them on in step: each asks its model when all are about
to, all answers come together, and meanwhile there is nothing to do. In turn, the first ones wait for their
models while the next ones begin, and the work for answers is spread. Where pieces of work are alike, first
come, first served has the smaller mean time than an equal share for everybody (Kleinrock, Queueing Systems,
volume 2, 1976, chapter 4).
"""

from __future__ import annotations

import asyncio
from collections import deque

#: requests that begin between two looks at the sockets
MAX_STARTS = 8


class FairStart:
    """Who begins when, in one event loop. A request that comes alone never waits."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._started = 0

    def enter(self) -> asyncio.Future[None] | None:
        """None: begin now; otherwise what to await before."""
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
        """Returns when all who wait now have begun."""
        if (turn := self.enter()) is not None:
            await turn

    def _start_next(self) -> None:
        self._started = 0
        while self._waiting and self._started < MAX_STARTS:
            turn = self._waiting.popleft()
            if not turn.done():  # whoever waited for it may have been cancelled
                turn.set_result(None)
                self._started += 1
        if self._started:
            asyncio.get_running_loop().call_soon(self._start_next)
