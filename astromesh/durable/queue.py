"""Queues of this process: accepted runs that wait for room, and runs that wait for a slot of their agent.

Queues are fair: each tenant with waiting runs has its turn. A tenant fills its own share of a queue,
and delays itself alone.

The rows of accepted runs are in the database, so nothing is lost with a queue in memory: any process with
room takes a run that has waited for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from astromesh.durable.base import RunRow
from astromesh.errors import Overloaded
from astromesh.telemetry.clock import Clock

T = TypeVar("T")
#: tenants without waiting items whose last turn is known
_MAX_TURNS = 10_000


class Turns:
    """Which tenant is next: the one whose last turn is longest ago. One without a turn comes first."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count = count(1)

    def last(self, tenant: str) -> int:
        """Returns the number of the last turn of a tenant, 0 for none."""
        return self._last.get(tenant, 0)

    def take(self, tenant: str) -> None:
        self._last.pop(tenant, None)  # the oldest turns stand first
        self._last[tenant] = next(self._count)
        if len(self._last) > _MAX_TURNS:
            del self._last[next(iter(self._last))]


class FairQueue(Generic[T]):
    """A queue in memory: by priority, then the tenants in turn, then by age.

    A tenant with many waiting items delays an item of another tenant by one item at most.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[int, int, T]]] = {}
        self.turns, self._order = Turns(), count()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def of_tenant(self, tenant: str) -> int:
        """Returns how many items of a tenant wait."""
        return len(self._heaps.get(tenant, ()))

    def longest(self) -> str:
        """Returns the tenant with the most waiting items."""
        return max(self._heaps, key=self.of_tenant)

    def add(self, item: T, tenant: str, priority: int = 0) -> None:
        heappush(self._heaps.setdefault(tenant, []), (priority, next(self._order), item))
        self._size += 1

    def pop(self) -> T | None:
        """Removes and returns the next item; None if there is none."""
        if not self._heaps:
            return None
        tenant = min(self._heaps, key=self._rank)
        self.turns.take(tenant)
        _, _, item = heappop(self._heaps[tenant])
        self._removed(tenant)
        return item

    def drop_last(self, tenant: str) -> T:
        """Removes and returns the item of a tenant that would be its last."""
        heap = self._heaps[tenant]
        heap.remove(last := max(heap))
        heapify(heap)
        self._removed(tenant)
        return last[2]

    def remove(self, item: T, tenant: str) -> None:
        """Removes an item that waits."""
        heap = self._heaps[tenant]
        del heap[next(n for n, (_, _, waiting) in enumerate(heap) if waiting is item)]
        heapify(heap)
        self._removed(tenant)

    def _rank(self, tenant: str) -> tuple[int, int, int]:
        priority, order, _ = self._heaps[tenant][0]
        return priority, self.turns.last(tenant), order

    def _removed(self, tenant: str) -> None:
        self._size -= 1
        if not self._heaps[tenant]:
            del self._heaps[tenant]


class LocalQueue:
    """A bounded fair queue of accepted runs.

    If it is full, a run takes the place of one of the tenant with the most runs in it. A run without a place
    stays in the database, and any process with room finds it there.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._queue = FairQueue[RunSegmentId]()
        self._run_ids: set[str] = set()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._run_ids

    def add(self, row: RunRow) -> bool:
        """Adds a run once. Returns False if the queue has no place for it."""
        if row.run_id in self._run_ids:
            return True
        if len(self._queue) >= self._max_size and not self._make_room(row.tenant):
            return False
        self._run_ids.add(row.run_id)
        self._queue.add(RunSegmentId(row.run_id, row.segment), row.tenant, row.priority)
        return True

    def pop(self) -> RunSegmentId | None:
        """Removes and returns the next run."""
        found = self._queue.pop()
        if found is not None:
            self._run_ids.discard(found.run_id)
        return found

    def _make_room(self, tenant: str) -> bool:
        longest = self._queue.longest()
        if self._queue.of_tenant(longest) <= self._queue.of_tenant(tenant) + 1:
            return False
        self._run_ids.discard(self._queue.drop_last(longest).run_id)
        return True


class RunSegmentId(NamedTuple):
    """A segment of a run that waits for room."""

    run_id: str
    segment: int


# -- shedding ----------------------------------------------------------------------------------------------

#: longest pause that a refused caller is asked for, in seconds
MAX_RETRY_SECONDS = 60.0


class Load(NamedTuple):
    """What waits, or is active, at one place.

    Args:
        size: how many.
        waited: seconds that the oldest one waits.
    """

    size: int
    waited: float = 0.0


class LoadLimit(NamedTuple):
    """Args: waited: maximum seconds that the oldest one may wait; None: any number."""

    size: int
    waited: float | None = None


def shed_for(load: Load, limit: LoadLimit) -> float | None:
    """Returns the seconds after which a refused caller may try again; None: nobody is refused.

    What is accepted beyond a limit would wait until its caller has given up, and take the place of work that
    somebody still waits for. The oldest one's wait is the best guess of how long the excess lasts.
    """
    is_late = limit.waited is not None and load.waited > limit.waited
    if load.size < limit.size and not is_late:
        return None
    return min(max(1.0, load.waited), MAX_RETRY_SECONDS)


#: a count of the queue of an agent is valid for so many seconds, and for this part of the room that it found
_COUNT_SECONDS, _COUNT_SHARE = 1.0, 8


@dataclass(slots=True)
class _AgentQueue:
    """The runs of one agent."""

    running: int = 0
    waiting: FairQueue[asyncio.Future[None]] = field(default_factory=FairQueue)


class SlotRequest(NamedTuple):
    """How a run waits for a slot of its agent.

    Args:
        priority: lower comes first.
        max_waiting: maximum number of waiting runs of its tenant.
        timeout: seconds to wait; None for ever.
    """

    tenant: str
    priority: int
    max_waiting: int
    timeout: float | None


class AgentSlots:
    """The slots of agents with a limit, in this process.

    A run that ends passes its slot to the first waiting run, so that no later run takes it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[str, _AgentQueue] = {}

    async def enter(self, agent: str, slots: int, request: SlotRequest) -> None:
        """Waits for a slot, by priority, then the tenants in turn; `leave` releases it.

        Args:
            slots: maximum number of active runs.

        Raises:
            Overloaded: too many runs of the tenant wait, or the wait times out.
        """
        queue = self._queues.setdefault(agent, _AgentQueue())
        if queue.running < slots:
            queue.running += 1
            queue.waiting.turns.take(request.tenant)
            return
        if queue.waiting.of_tenant(request.tenant) >= request.max_waiting:
            raise queue_full_error(agent, request.max_waiting)
        await self._wait(agent, queue, request)

    def leave(self, agent: str) -> None:
        queue = self._queues[agent]
        if (slot := queue.waiting.pop()) is not None:
            slot.set_result(None)
            return
        queue.running -= 1
        if not queue.running:
            del self._queues[agent]

    async def _wait(self, agent: str, queue: _AgentQueue, request: SlotRequest) -> None:
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tenant, _, _, timeout = request
        queue.waiting.add(slot, tenant, request.priority)
        timer = None if timeout is None else asyncio.create_task(self._clock.sleep(timeout))
        try:
            await asyncio.wait([slot, *([timer] if timer else ())], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if slot.done():  # passed on at the moment of the cancel
                self.leave(agent)
            else:
                queue.waiting.remove(slot, tenant)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if not slot.done():
            queue.waiting.remove(slot, tenant)
            raise Overloaded(f"{agent!r} had no free slot for {timeout:g} s; send the request again later.")


class QueueCapacity:
    """How many more runs of one agent this process may accept of one tenant before it counts again.

    The store does not count for every run. A count is valid for a second, and for a part of the room that it
    found, so that several processes together exceed the limit by a few runs at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left, self._until = 0, 0.0
        self._counting = asyncio.Lock()

    async def enter(
        self,
        measure: Callable[[], Awaitable[Load]],
        agent: str,
        limit: LoadLimit,
        accept: Callable[[], Awaitable[RunRow]],
    ) -> RunRow:
        """Raises: Overloaded: there is no room, or the oldest waits too long."""
        if not self._take_place():
            async with self._counting:
                if not self._take_place():  # no other call has counted meanwhile
                    load = await measure()
                    if (seconds := shed_for(load, limit)) is not None:
                        raise _queue_error(agent, load, limit, seconds)
                    self._left = (limit.size - load.size) // _COUNT_SHARE
                    self._until = self._clock.monotonic() + _COUNT_SECONDS
                    return await accept()
        return await accept()

    def _take_place(self) -> bool:
        """Takes a place that the last count found."""
        if self._left <= 0 or self._clock.monotonic() >= self._until:
            return False
        self._left -= 1
        return True


def _queue_error(agent: str, load: Load, limit: LoadLimit, seconds: float) -> Overloaded:
    if load.size >= limit.size:
        return queue_full_error(agent, limit.size, seconds)
    return Overloaded(
        f"The oldest run of your tenant waits {load.waited:.0f} s to begin in {agent!r} "
        "(spec.queue.max_wait_seconds); send this one again later.",
        seconds,
    )


def queue_full_error(agent: str, waiting: int, seconds: float = 1.0) -> Overloaded:
    return Overloaded(
        f"{waiting} runs of your tenant wait to begin in {agent!r} (spec.queue.max_queued); "
        "send this one again later.",
        seconds,
    )
