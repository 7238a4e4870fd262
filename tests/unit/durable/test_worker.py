"""A worker of a queue: what it asks the queue for, when, and what it does with the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from structlog.testing import capture_logs

from astromesh.durable.leases import (
    DAY_SECONDS,
    EXPIRY_SECONDS,
    FOLDER,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    REQUEST_SECONDS,
    SWEEP_SECONDS,
    PeriodicJob,
    Worker,
    WorkerHeartbeat,
    expiry_job,
)
from astromesh.errors import StoreUnavailable
from astromesh.logs import OutageLog, get_logger
from astromesh.testing import ManualClock


class Queue:
    """A `LeaseQueue` that records its calls.

    Attributes:
        lost, unwanted: what the next renewal and the next poll answer.
        pause: seconds until the next sweep.
        away: the next calls fail.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.times: dict[str, list[float]] = {}
        self.stopped: list[str] = []
        self.lost: Collection[str] = ()
        self.unwanted: Collection[str] = ()
        self.pause, self.away, self.works = 4 * SWEEP_SECONDS, False, False
        self._clock = clock

    def _called(self, name: str, *arguments: str) -> None:
        self.calls.append((name, *arguments))
        self.times.setdefault(name, []).append(self._clock.monotonic())
        if self.away:
            raise StoreUnavailable("The disk is full.")

    async def renew_leases(self, worker: str) -> Collection[str]:
        self._called("renew", worker)
        return self.lost

    def has_work(self) -> bool:
        return self.works

    async def cancel_requested(self, worker: str) -> Collection[str]:
        self._called("requests", worker)
        return self.unwanted

    async def sweep(self, worker: str) -> float:
        self._called("sweep", worker)
        return self.pause

    async def take_over(self, worker: str, dead: str) -> None:
        self._called("take_over", worker, dead)

    async def release_leases(self, worker: str) -> None:
        self._called("release", worker)

    def stop(self, id: str) -> None:
        self.stopped.append(id)

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


class Bench:
    """A worker with its queue, on a clock that the test moves."""

    def __init__(self, folder: Path, lease_seconds: float = LEASE_SECONDS) -> None:
        self.clock, self.files = ManualClock(), folder / FOLDER
        self.queue, self.heartbeat = Queue(self.clock), WorkerHeartbeat(folder)
        self.worker = Worker(
            self.queue,
            self.heartbeat,
            OutageLog(get_logger("test"), "queue_away", "queue_back", self.clock.monotonic),
            lease_seconds=lease_seconds,
            sleep=self.clock.sleep,
        )


@asynccontextmanager
async def bench(folder: Path, lease_seconds: float = LEASE_SECONDS) -> AsyncIterator[Bench]:
    made = Bench(folder, lease_seconds)
    yield made
    made.queue.away = False
    await made.worker.close()


async def test_a_worker_renews_and_sweeps_at_once_and_at_its_intervals(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        started = [b.worker.started]
        b.worker.start()
        b.worker.start()
        assert [*started, b.worker.started] == [False, True]
        await b.clock.run_for(3 * HEARTBEAT_SECONDS)
        assert b.queue.times["renew"] == [n * HEARTBEAT_SECONDS for n in range(4)]
        assert b.queue.times["sweep"] == [0.0, 4 * SWEEP_SECONDS]
        assert set(b.queue.calls) == {("renew", b.worker.name), ("sweep", b.worker.name)}
        assert [file.name for file in b.files.iterdir()] == [b.worker.name]


async def test_a_lease_of_another_length_is_renewed_five_times_in_it(tmp_path: Path) -> None:
    async with bench(tmp_path, 3 * LEASE_SECONDS) as b:
        b.worker.start()
        await b.clock.run_for(3 * LEASE_SECONDS)
        assert b.queue.times["renew"] == [n * 3 * HEARTBEAT_SECONDS for n in range(6)]


async def test_work_whose_lease_is_lost_is_stopped(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.queue.lost = ["run_1", "run_2"]
        b.worker.start()
        await b.clock.run_for(0.0)
        assert b.queue.stopped == ["run_1", "run_2"]


async def test_work_whose_end_is_requested_is_stopped_while_some_is_active(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.queue.unwanted, b.queue.works = ["run_1"], True
        b.worker.start()
        await b.clock.run_for(4 * REQUEST_SECONDS)
        assert "requests" not in b.queue.names()
        b.worker.watch_requests()
        await b.clock.run_for(2 * REQUEST_SECONDS)
        assert b.queue.times["requests"] == [5 * REQUEST_SECONDS, 6 * REQUEST_SECONDS]
        assert b.queue.stopped == ["run_1", "run_1"]
        b.queue.works = False
        await b.clock.run_for(4 * REQUEST_SECONDS)
        assert len(b.queue.stopped) == 2
        await b.worker.stop_requested()
        assert b.queue.calls[-1] == ("requests", b.worker.name)
        assert len(b.queue.stopped) == 3


async def test_what_a_dead_worker_held_is_taken_over_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.worker.start()
        await b.clock.run_for(0.0)
        assert not b.heartbeat.has_others()
        (b.files / "dead").touch()  # as a process that has ended leaves it: nobody locks it
        assert b.heartbeat.has_others()
        await b.clock.run_for(3 * SWEEP_SECONDS)
        taken = [call for call in b.queue.calls if call[0] == "take_over"]
        assert taken == [("take_over", b.worker.name, "dead")]
        assert b.queue.times["take_over"] == [SWEEP_SECONDS]
        assert [file.name for file in b.files.iterdir()] == [b.worker.name]


async def test_a_worker_that_does_not_sweep_leaves_the_dead_to_others(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.worker.start(sweeps=False)
        (b.files / "dead").touch()
        await b.clock.run_for(3 * HEARTBEAT_SECONDS)
        assert set(b.queue.names()) == {"renew"}
        assert len(b.queue.calls) == 4


async def test_a_worker_that_is_woken_sweeps_now(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.worker.start()
        await b.clock.run_for(SWEEP_SECONDS / 2)
        b.worker.wake()
        await b.clock.run_for(0.0)
        assert b.queue.times["sweep"] == [0.0, SWEEP_SECONDS / 2]


async def test_a_drained_worker_keeps_its_leases_and_starts_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.worker.start()
        await b.clock.run_for(0.0)
        await b.worker.drain()
        b.queue.calls.clear()
        (b.files / "dead").touch()
        await b.clock.run_for(2 * HEARTBEAT_SECONDS)
        assert b.queue.names() == ["renew", "renew"]


async def test_a_worker_that_closes_releases_its_leases_and_is_not_taken_for_dead(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    await b.worker.close()
    assert b.queue.calls == []
    b.worker.start()
    b.queue.works = True
    b.worker.watch_requests()
    await b.worker.close()
    assert b.queue.calls[-1] == ("release", b.worker.name)
    assert list(b.files.iterdir()) == []
    b.queue.calls.clear()
    await b.clock.run_for(5 * HEARTBEAT_SECONDS)
    assert b.queue.calls == []


async def test_a_worker_that_is_abandoned_keeps_its_leases(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    b.worker.start()
    await b.clock.run_for(0.0)
    await b.worker.abandon()
    b.queue.calls.clear()
    await b.clock.run_for(5 * HEARTBEAT_SECONDS)
    assert b.queue.calls == []
    assert [file.name for file in b.files.iterdir()] == [b.worker.name]
    b.heartbeat.leave(b.worker.name)


async def test_a_queue_that_does_not_answer_is_reported_and_asked_again(tmp_path: Path) -> None:
    """A sweep that has failed is repeated soon, whatever pause the last one asked for."""
    with capture_logs() as logged:
        async with bench(tmp_path) as b:
            b.queue.works = True
            b.worker.start()
            b.worker.watch_requests()
            await b.clock.run_for(0.0)
            b.queue.away = True
            await b.clock.run_for(4 * SWEEP_SECONDS)
            b.queue.away, b.queue.pause = False, 8 * SWEEP_SECONDS
            await b.clock.run_for(10 * SWEEP_SECONDS)
            assert b.queue.times["sweep"] == [n * SWEEP_SECONDS for n in (0, 4, 5, 13)]
            assert b.queue.times["renew"] == [n * HEARTBEAT_SECONDS for n in range(8)]
            assert b.queue.times["requests"] == [n * REQUEST_SECONDS for n in range(1, 29)]
    assert [(line["event"], line.get("error")) for line in logged] == [
        ("queue_away", "The disk is full."),
        ("queue_back", None),
    ]


async def test_work_is_active_until_it_has_ended(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        ended = asyncio.Event()

        async def work() -> None:
            await ended.wait()

        task = b.worker.execute("run_1", work())
        assert b.worker.active == {"run_1": task}
        ended.set()
        await task
        await b.clock.run_for(0.0)
        assert b.worker.active == {}


async def test_a_job_says_whether_it_runs() -> None:
    clock, needed = ManualClock(), [True]
    job = PeriodicJob(
        lambda: asyncio.sleep(0), 1.0, lambda _: None, needed=lambda: needed[0], sleep=clock.sleep
    )
    assert (job.started, job.is_running) == (False, False)
    job.start()
    assert (job.started, job.is_running) == (True, True)
    needed[0] = False
    await clock.run_for(1.0)
    assert (job.started, job.is_running) == (True, False)
    needed[0] = True
    job.start()
    await clock.run_for(1.0)
    assert job.is_running is True
    await job.close()
    await clock.run_for(0.0)
    assert job.is_running is False


async def test_what_is_older_than_the_retention_is_deleted_each_minute() -> None:
    clock, before = ManualClock(), list[float]()

    async def delete(time: float) -> None:
        before.append(time)
        if len(before) == 1:
            raise StoreUnavailable("away")

    job = expiry_job(delete, clock, 2.0)
    start = clock.now()
    job.start()
    with capture_logs() as logged:
        await clock.run_for(2 * EXPIRY_SECONDS)
    await job.close()
    assert [(line["event"], line["error"]) for line in logged] == [("runs_not_expired", "away")]
    assert before == [start + n * EXPIRY_SECONDS - 2.0 * DAY_SECONDS for n in (1, 2)]
