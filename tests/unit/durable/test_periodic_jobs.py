"""Jobs at intervals: an error of a store ends none, and a job that is not needed ends by itself."""

from __future__ import annotations

import asyncio

from astromesh.durable.leases import PeriodicJob
from astromesh.errors import StoreUnavailable


class Ticks:
    """A sleep that ends when it is told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(0)
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self.gate.acquire()

    async def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.gate.release()
            for _ in range(10):
                await asyncio.sleep(0)


async def test_a_job_goes_on_after_an_error() -> None:
    ticks, calls, errors = Ticks(), list[int](), list[Exception]()

    async def work() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StoreUnavailable("away")

    job = PeriodicJob(work, 3.0, errors.append, sleep=ticks.sleep, at_once=True)
    job.start()
    await asyncio.sleep(0)
    await ticks.tick(2)
    await job.close()
    assert (len(calls), [str(error) for error in errors], set(ticks.asked)) == (3, ["away"], {3.0})


async def test_a_job_ends_when_it_is_not_needed_and_starts_again() -> None:
    ticks, calls, needed = Ticks(), list[int](), [True]

    async def work() -> None:
        calls.append(1)

    job = PeriodicJob(work, 1.0, lambda _: None, needed=lambda: needed[0], sleep=ticks.sleep)
    job.start()
    await ticks.tick()
    needed[0] = False
    await ticks.tick()
    assert len(calls) == 1
    needed[0] = True
    job.start()
    await asyncio.sleep(0)
    await ticks.tick()
    await job.close()
    assert len(calls) == 2


async def test_a_job_that_is_woken_calls_at_once_and_once_more_where_it_was_calling() -> None:
    begun, go = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def work() -> None:
        begun.release()
        await go.acquire()

    job = PeriodicJob(work, 3600.0, lambda _: None)
    job.start()
    async with asyncio.timeout(10):
        job.wake()
        await begun.acquire()
        job.wake()
        go.release()
        await begun.acquire()
    await job.close()


async def test_a_job_that_was_never_started_closes() -> None:
    job = PeriodicJob(lambda: asyncio.sleep(0), 1.0, lambda _: None)
    await job.close()
    assert not job.started
