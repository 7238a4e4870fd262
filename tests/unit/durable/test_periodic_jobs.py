"""Jobs at intervals: an error of a store ends none, and a job that is not needed ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from astromesh.durable.leases import REQUEST_SECONDS, SWEEP_SECONDS, PeriodicJob, Worker, WorkerHeartbeat
from astromesh.errors import StoreUnavailable
from astromesh.logs import OutageLog, get_logger
from astromesh.telemetry.clock import SystemClock, interval_sleep, seconds_to_tick, sleep_to_tick
from astromesh.testing import ManualClock


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


async def test_a_job_goes_on_after_what_nobody_expected() -> None:
    """Else a row that cannot be read would end the renewal of all leases."""
    ticks, calls, errors = Ticks(), list[int](), list[Exception]()

    async def work() -> None:
        calls.append(1)
        raise ValueError("a row that nobody can read")

    job = PeriodicJob(work, 3.0, errors.append, sleep=ticks.sleep, at_once=True)
    with capture_logs() as lines:
        job.start()
        await asyncio.sleep(0)
        await ticks.tick(2)
        await job.close()
    assert (len(calls), errors) == (3, [])
    assert [line["event"] for line in lines] == ["job_crashed"] * 3
    assert lines[0]["job"].endswith(".work")


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


@pytest.mark.parametrize("began", [100.0, 100.4, 100.8137])
@pytest.mark.parametrize("seconds", [1.0, 2.0, 30.0])
def test_jobs_that_began_at_different_times_wake_together(began: float, seconds: float) -> None:
    wait = seconds_to_tick(seconds, began)
    assert seconds - 1.0 < wait <= seconds + 0.002
    assert abs((began + wait + 0.5 - seconds_to_tick(1.0, 0.0)) % 1.0 - 0.5) < 0.002, "not on a tick"


def test_a_short_wait_and_a_clock_of_a_test_stay_exact() -> None:
    clock = ManualClock()
    assert seconds_to_tick(0.3, 100.8) == 0.3
    assert interval_sleep(clock) == clock.sleep
    assert interval_sleep(SystemClock()) is sleep_to_tick


class Queue:
    """A `LeaseQueue` that counts the polls for requests."""

    def __init__(self) -> None:
        self.work, self.polls, self.sweeps = 0, 0, 0

    async def renew_leases(self, worker: str) -> Collection[str]:
        return ()

    def has_work(self) -> bool:
        return self.work > 0

    async def cancel_requested(self, worker: str) -> Collection[str]:
        self.polls += 1
        return ()

    async def sweep(self, worker: str) -> float:
        self.sweeps += 1
        return SWEEP_SECONDS

    async def take_over(self, worker: str, dead: str) -> None: ...

    async def release_leases(self, worker: str) -> None: ...

    def stop(self, id: str) -> None: ...


async def test_a_worker_without_work_polls_for_no_request_to_end_some(tmp_path: Path) -> None:
    queue, clock = Queue(), ManualClock()
    worker = Worker(
        queue, WorkerHeartbeat(tmp_path), OutageLog(get_logger("test"), "away", "back"), sleep=clock.sleep
    )

    async def pass_time(times: int) -> None:
        for _ in range(times):
            clock.advance(REQUEST_SECONDS)
            for _ in range(20):
                await asyncio.sleep(0)

    worker.start()
    await pass_time(10)
    assert queue.polls == 0 and queue.sweeps > 2
    queue.work = 1
    worker.watch_requests()
    await pass_time(10)
    assert queue.polls >= 9
    queue.work, seen = 0, queue.polls
    await pass_time(10)
    assert queue.polls <= seen + 1
    await worker.close()
