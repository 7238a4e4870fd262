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
TOGETHER = 8


class Turns:
    """Who begins when, in one event loop. A request that comes alone never waits."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._begun = 0

    def take(self) -> asyncio.Future[None] | None:
        """None: begin now; otherwise what to await before."""
        loop = asyncio.get_running_loop()
        if self._begun < TOGETHER and not self._waiting:
            if not self._begun:
                loop.call_soon(self._next)
            self._begun += 1
            return None
        turn = loop.create_future()
        self._waiting.append(turn)
        return turn

    async def pass_by(self) -> None:
        """Returns when all who wait now have begun."""
        if (turn := self.take()) is not None:
            await turn

    def _next(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < TOGETHER:
            turn = self._waiting.popleft()
            if not turn.done():  # whoever waited for it may have been cancelled
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next)
