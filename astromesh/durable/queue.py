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
    """A bounded queue in memory, by priority and age."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._heap: list[tuple[int, int, str, int]] = []
        self._run_ids: set[str] = set()
        self._order = count()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._run_ids

    def add(self, row: RunRow) -> bool:
        """Adds a run once. Returns False if the queue is full."""
        if row.run_id in self._run_ids:
            return True
        if len(self._heap) >= self._max_size:
            return False
        self._run_ids.add(row.run_id)
        heappush(self._heap, (row.priority, next(self._order), row.run_id, row.segment))
        return True

    def pop(self) -> tuple[str, int] | None:
        """Removes and returns the next run and its segment."""
        if not self._heap:
            return None
        _, _, run_id, segment = heappop(self._heap)
        self._run_ids.discard(run_id)
        return run_id, segment


#: a count of the queue of an agent is valid for so many seconds, and for this part of the room that it found
_COUNT_SECONDS, _COUNT_SHARE = 1.0, 8


@dataclass(slots=True)
class _AgentQueue:
    """The runs of one agent."""

    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class AgentSlots:
    """The slots of agents with a limit, in this process.

    A run that ends passes its slot to the first waiting run, so that no later run takes it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[str, _AgentQueue] = {}

    async def enter(self, agent: str, slots: int, max_waiting: int, timeout: float | None) -> None:
        """Waits for a slot, first come first served; `leave` releases it.

        Args:
            slots: maximum number of active runs.
            max_waiting: maximum number of waiting runs.
            timeout: seconds to wait; None for ever.

        Raises:
            Overloaded: too many runs wait, or the wait times out.
        """
        queue = self._queues.setdefault(agent, _AgentQueue())
        if queue.running < slots:
            queue.running += 1
            return
        if len(queue.waiting) >= max_waiting:
            raise queue_full_error(agent, max_waiting)
        await self._wait(agent, queue, timeout)

    def leave(self, agent: str) -> None:
        queue = self._queues[agent]
        if queue.waiting:
            queue.waiting.popleft().set_result(None)
            return
        queue.running -= 1
        if not queue.running:
            del self._queues[agent]

    async def _wait(self, agent: str, queue: _AgentQueue, timeout: float | None) -> None:
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiting.append(slot)
        timer = None if timeout is None else asyncio.create_task(self._clock.sleep(timeout))
        try:
            await asyncio.wait([slot, *([timer] if timer else ())], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if slot.done():  # passed on at the moment of the cancel
                self.leave(agent)
            else:
                queue.waiting.remove(slot)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if not slot.done():
            queue.waiting.remove(slot)
            raise Overloaded(f"{agent!r} had no free slot for {timeout:g} s; send the request again later.")


class QueueCapacity:
    """How many more runs of one agent this process may accept before it counts again.

    The store does not count for every run. A count is valid for a second, and for a part of the room that it
    found, so that several processes together exceed the limit by a few runs at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left, self._until = 0, 0.0
        self._counting = asyncio.Lock()

    async def enter(
        self,
        count: Callable[[], Awaitable[int]],
        agent: str,
        max_queued: int,
        accept: Callable[[], Awaitable[RunRow]],
    ) -> RunRow:
        """Raises: Overloaded: there is no room."""
        if not self._take_place():
            async with self._counting:
                if not self._take_place():  # no other call has counted meanwhile
                    free = max_queued - await count()
                    if free <= 0:
                        raise queue_full_error(agent, max_queued)
                    self._left, self._until = free // _COUNT_SHARE, self._clock.monotonic() + _COUNT_SECONDS
                    return await accept()
        return await accept()

    def _take_place(self) -> bool:
        """Takes a place that the last count found."""
        if self._left <= 0 or self._clock.monotonic() >= self._until:
            return False
        self._left -= 1
        return True


def queue_full_error(agent: str, waiting: int) -> Overloaded:
    return Overloaded(
        f"{waiting} runs of {agent!r} wait to begin (spec.queue.max_queued); send this one again later."
    )
