"""Queues of this process: accepted runs that wait for room, and runs that wait for a slot of their agent.

The rows of accepted runs are in the database, so nothing is lost with a queue in memory: any process with
room takes a run that has waited for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from astromesh.durable.base import RunRow
from astromesh.errors import Overloaded
from astromesh.telemetry.clock import Clock


class LocalQueue:
    """A bounded queue in memory.

    Args:
        most: runs that it holds.
    """

    def __init__(self, most: int) -> None:
        self._max_size = most
        self._heap: list[tuple[int, int, str, int]] = []
        self._run_ids: set[str] = set()
        self._order = count()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._run_ids

    def add(self, row: RunRow) -> bool:
        """False where there are too many; one that is here already is here once."""
        if row.run_id in self._run_ids:
            return True
        if len(self._heap) >= self._max_size:
            return False
        self._run_ids.add(row.run_id)
        heappush(self._heap, (row.priority, next(self._order), row.run_id, row.segment))
        return True

    def pop(self) -> tuple[str, int] | None:
        """The run that is to begin next, and its segment."""
        if not self._heap:
            return None
        _, _, run_id, segment = heappop(self._heap)
        self._run_ids.discard(run_id)
        return run_id, segment


#: for how many seconds, and for what part of the room there was, a count of an agent's queue is trusted
_COUNT_SECONDS, _COUNT_SHARE = 1.0, 8


@dataclass(slots=True)
class _AgentQueue:
    """The runs of one agent."""

    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class AgentSlots:
    """The lines of the agents of which runs go on here.

    A run that ends hands its slot to the first that waits, so that nobody who comes later takes it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[str, _AgentQueue] = {}

    async def enter(self, agent: str, most: int, waiting: int, timeout: float | None) -> None:
        """Waits for a slot, first come first served; `leave` releases it.

        Args:
            most: slots there are.
            waiting: how many may wait.
            timeout: seconds to wait; None as long as it takes.

        Raises:
            Overloaded: as many wait as may, or `timeout` is over.
        """
        line = self._queues.setdefault(agent, _AgentQueue())
        if line.running < most:
            line.running += 1
            return
        if len(line.waiting) >= waiting:
            raise queue_full_error(agent, waiting)
        await self._wait(agent, line, timeout)

    def leave(self, agent: str) -> None:
        line = self._queues[agent]
        if line.waiting:
            line.waiting.popleft().set_result(None)
            return
        line.running -= 1
        if not line.running:
            del self._queues[agent]

    async def _wait(self, agent: str, line: _AgentQueue, timeout: float | None) -> None:
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(given)
        timer = None if timeout is None else asyncio.create_task(self._clock.sleep(timeout))
        try:
            await asyncio.wait([given, *([timer] if timer else ())], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if given.done():  # given in this very moment
                self.leave(agent)
            else:
                line.waiting.remove(given)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if not given.done():
            line.waiting.remove(given)
            raise Overloaded(
                f"{agent!r} has had too much to do for {timeout:g} s; send the request again later."
            )


class QueueCapacity:
    """How many more runs of one agent this process may accept until it must count again.

    The store counts, and not at every run: a count is trusted for a part of the room that it found, and for a
    second, so that several processes together are a few runs beyond the bound at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left, self._until = 0, 0.0
        self._counting = asyncio.Lock()

    async def enter(
        self,
        count: Callable[[], Awaitable[int]],
        agent: str,
        most: int,
        accept: Callable[[], Awaitable[RunRow]],
    ) -> RunRow:
        """Raises: Overloaded: there is no room."""
        if not self._take_place():
            async with self._counting:
                if not self._take_place():  # nobody has counted meanwhile
                    free = most - await count()
                    if free <= 0:
                        raise queue_full_error(agent, most)
                    self._left, self._until = free // _COUNT_SHARE, self._clock.monotonic() + _COUNT_SECONDS
                    return await accept()
        return await accept()

    def _take_place(self) -> bool:
        """Takes a place that the last count has found."""
        if self._left <= 0 or self._clock.monotonic() >= self._until:
            return False
        self._left -= 1
        return True


def queue_full_error(agent: str, most: int) -> Overloaded:
    return Overloaded(
        f"{most} runs of {agent!r} wait to begin (spec.queue.max_queued); send this one again later."
    )
