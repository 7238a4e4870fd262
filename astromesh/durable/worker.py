"""The worker: the loop that leases, renews, sweeps and releases, for runs, Tasks and the queues of the inbox.

A worker has a name, under which the database keeps its leases. It renews them, polls for requests to end its
work, and sweeps: it starts what is due. It also takes over what dead workers held. A `LeaseQueue` says in
SQL what each of these means for one kind of work; leases.py has the intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Protocol

from astromesh.durable.leases import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    REQUEST_SECONDS,
    SWEEP_SECONDS,
    PeriodicJob,
    WorkerHeartbeat,
    worker_name,
)
from astromesh.telemetry.logs import OutageLog


class LeaseQueue(Protocol):
    """One kind of work in a database. Every method names the worker by its name.

    Raises (all of them):
        AstromeshError: the database does not answer; the worker reports it and calls again.
    """

    async def renew_leases(self, worker: str) -> Collection[str]:
        """Renews the leases of a worker. Returns the ids of active work whose lease is lost."""

    async def cancel_requested(self, worker: str) -> Collection[str]:
        """Returns the ids of this worker's work whose end was requested."""

    async def sweep(self, worker: str) -> float:
        """Starts the work that is due. Returns the seconds until the next sweep."""

    async def take_over(self, worker: str, dead: str) -> None:
        """Takes over everything that a dead worker held."""

    async def release_leases(self, worker: str) -> None:
        """Releases the leases of a worker that ends."""

    def stop(self, id: str) -> object:
        """Starts to end active work."""


class Worker:
    """Works off one queue.

    Args:
        heartbeat: the live workers of this data folder.
        outages: reports that the database does not answer.
        lease_seconds: duration of a lease.
        sleep: waits for so many seconds, e.g. `Clock.sleep`.

    Attributes:
        name: a name that no other worker has.
        active: the work that `execute` has started and that has not ended, by id.
    """

    def __init__(
        self,
        queue: LeaseQueue,
        heartbeat: WorkerHeartbeat,
        outages: OutageLog,
        *,
        lease_seconds: float = LEASE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = worker_name()
        self.active: dict[str, asyncio.Task[None]] = {}
        self._queue, self._heartbeat, self._outages = queue, heartbeat, outages

        def job(work: Callable[[], Awaitable[object]], seconds: float) -> PeriodicJob:
            return PeriodicJob(
                work, seconds, lambda error: outages.failed(str(error)), sleep=sleep, at_once=True
            )

        renewal_seconds = HEARTBEAT_SECONDS * lease_seconds / LEASE_SECONDS
        self._renewing = (job(self._renew, renewal_seconds), job(self.stop_requested, REQUEST_SECONDS))
        self._sweeping = job(self._sweep, SWEEP_SECONDS)
        self._taking_over = job(self._take_over, SWEEP_SECONDS)

    @property
    def started(self) -> bool:
        return self._sweeping.started

    def start(self) -> None:
        """Starts to work. Does nothing if the worker has started."""
        if not self.started:
            self._heartbeat.enter(self.name)
            for job in (*self._renewing, self._sweeping, self._taking_over):
                job.start()

    def wake(self) -> None:
        """Sweeps now."""
        self._sweeping.wake()

    def execute(self, id: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Executes work in a task of its own."""
        task = self.active[id] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self.active.pop(id, None))
        return task

    async def drain(self) -> None:
        """Starts no more work. Leases are still renewed."""
        await self._sweeping.close()
        await self._taking_over.close()

    async def close(self) -> None:
        """Releases the leases. If the database does not answer, they expire.

        Others take a worker that has left for dead, so nothing of it may be active any more.

        Raises:
            StoreError: the leases were not released.
        """
        await self.abandon()
        if self.started:
            await self._queue.release_leases(self.name)
            self._heartbeat.leave(self.name)

    async def abandon(self) -> None:
        """Ends without a release: the leases expire, as after a crash."""
        await self.drain()
        for job in self._renewing:
            await job.close()

    async def stop_requested(self) -> None:
        """Ends the work whose end was requested, without the wait for the next poll."""
        for work in await self._queue.cancel_requested(self.name):
            self._queue.stop(work)

    async def _renew(self) -> None:
        for work in await self._queue.renew_leases(self.name):
            self._queue.stop(work)

    async def _sweep(self) -> None:
        self._sweeping.seconds = SWEEP_SECONDS  # if the queue does not answer
        self._sweeping.seconds = await self._queue.sweep(self.name)
        self._outages.succeeded()

    async def _take_over(self) -> None:
        for dead in self._heartbeat.dead():
            await self._queue.take_over(self.name, dead)
            self._heartbeat.forget(dead)
