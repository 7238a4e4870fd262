"""R4: a run ends once, its state only moves forward, and none is `running` whose worker is dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

from astromesh.durable.base import (
    ENDED_STATUSES,
    ConcurrencyPolicy,
    IdempotencyKey,
    JournalStep,
    RunChange,
    RunQuery,
    RunRow,
    RunStatus,
    RunStore,
    SegmentClaim,
)
from astromesh.errors import IdempotencyConflict, LeaseLost, SessionBusy
from astromesh.plugins import Deps, Plugins
from astromesh.telemetry.events import TERMINAL_EVENTS
from astromesh.testing import ManualClock
from astromesh.types import Event

NOW, LEASE, MOST = 1_700_000_000.0, 10.0, 3
#: where a run may be one step later, its segment being the same one; in a later segment it may be anywhere
FORWARD = {
    "queued": {"queued", "running", *ENDED_STATUSES},
    "running": {"running", "waiting", *ENDED_STATUSES},
    "waiting": {"waiting", *ENDED_STATUSES},
}
POLICIES: tuple[ConcurrencyPolicy, ...] = get_args(ConcurrencyPolicy)
WORKERS = ("w1", "w2", "w3")
STEPS, NEWEST = 350, 24


class Walk:
    """Callers, workers and sweepers of one store, in an order that a seed makes; what was is remembered."""

    def __init__(self, store: RunStore, clock: ManualClock, chance: Random) -> None:
        self.store, self.clock, self.chance = store, clock, chance
        self.was: dict[str, tuple[str, int]] = {}
        self.claims: list[SegmentClaim] = []
        self.seen: dict[str, float] = {}
        self.reached: Counter[str] = Counter()

    async def step(self) -> None:
        does = (
            *[self.accept] * 6, *[self.claim] * 14, *[self.commit] * 8, *[self.decide] * 3, self.cancel,
            self.live, self.live, self.leave, self.sweep, self.die, self.die,
        )  # fmt: skip
        await self.chance.choice(does)()
        await self.look()

    def any_run(self) -> str:
        tops = [name for name in self.was if "." not in name]
        going = [name for name in tops if self.was[name][0] not in ENDED_STATUSES]
        return self.chance.choice((going if self.chance.random() < 0.8 else tops[-6:]) or tops or ["run_0"])

    # -- what may happen -------------------------------------------------------------------------------------

    async def accept(self) -> None:
        policy: ConcurrencyPolicy = self.chance.choice([*POLICIES, *POLICIES[:1] * 8])
        now, number = self.clock.now(), len(self.was) + self.reached["refused"]
        row = RunRow(
            f"run_{number}", "acme", "ann", "support", f"s-{number % 9}", "t" * 32, "queued", now,
            durable=True, request={"query": "Hello"}, ordered=True,
            deadline_at=self.chance.choice([0.0, 0.0, now + 20]),
            wake_at=now + 0.5 if policy == "merge" else 0.0,
        )  # fmt: skip
        key = IdempotencyKey("acme", "ann", "runs", f"k-{number % 7}", policy, NOW + 1e6)
        try:
            kept = await self.store.accept(row, self.chance.choice([None, None, key]), policy)
            self.was.setdefault(kept.run_id, ("queued", 1))
        except (SessionBusy, IdempotencyConflict):
            self.reached["refused"] += 1

    async def claim(self) -> None:
        name, worker = self.any_run(), self.chance.choice(WORKERS)
        segment = self.was.get(name, ("", 1))[1]
        row = await self.store.claim(name, segment, worker, {"support": MOST})
        if row is not None:
            self.claims.append(SegmentClaim(name, segment, worker))
            self.seen[worker] = self.clock.now()

    async def commit(self) -> None:
        """Somebody writes who has, or once had, the run; it counts where the claim is the present one."""
        if not self.claims:
            return
        present = [claim for claim in self.claims if self.was[claim.run_id] == ("running", claim.segment)]
        claim = self.chance.choice((present if self.chance.random() < 0.8 else []) or self.claims[-5:])
        end: RunStatus | None = self.chance.choice(
            [None, None, None, None, "waiting", "waiting", "completed", "completed", "failed", "cancelled"]
        )
        row = await self.store.get(claim.run_id)
        assert row is not None
        holds = (row.status, row.segment, row.worker) == ("running", claim.segment, claim.worker)
        past = await self.store.events(claim.run_id)
        seq, now = (past[-1].seq if past else 0) + 1, self.clock.now()
        change = RunChange(end, finished_at=now) if end in ENDED_STATUSES else None
        if end == "waiting":
            change = RunChange("waiting", waiting_for={"kind": "approval"}, wake_at=now + 30)
        event = Event(claim.run_id, seq, now, f"run.{end}" if end else "node.started", {})
        step = JournalStep("react", seq, "model", "h", "done", {})
        try:
            await self.store.commit(
                claim, steps=[step], events=[event], change=change, nested=[self.below(claim.run_id)]
            )
            assert holds
        except LeaseLost:
            assert not holds

    def below(self, top: str) -> RunRow:
        return RunRow(
            f"{top}.n", "acme", "ann", "clerk", "s", "t" * 32, "running", NOW, f"{top}.c", worker=top
        )  # fmt: skip

    async def decide(self) -> None:
        """Also on a question that is no longer asked."""
        name = self.any_run()
        await self.store.advance(name, self.was.get(name, ("", 1))[1] - self.chance.choice([0, 0, 1]))

    async def cancel(self) -> None:
        await self.store.cancel(self.any_run())

    async def live(self) -> None:
        """Time passes; some workers say so."""
        self.clock.advance(self.chance.choice([0.6, 0.6, 3.0]))
        for worker in self.chance.sample(WORKERS, 2):
            await self.store.heartbeat(worker)
            self.seen[worker] = self.clock.now()

    async def die(self) -> None:
        """One worker is not heard of any more; the others look for what it had."""
        dead = self.chance.choice(WORKERS)
        for _ in range(3):
            self.clock.advance(LEASE / 2)
            for worker in WORKERS:
                if worker != dead:
                    await self.store.heartbeat(worker)
                    self.seen[worker] = self.clock.now()
        await self.sweep()

    async def leave(self) -> None:
        worker = self.chance.choice(WORKERS)
        await self.store.release_worker(worker)
        self.seen.pop(worker, None)

    async def sweep(self) -> None:
        await self.store.overdue(LEASE, queued=2.0, limits={"support": MOST})
        for row in await self.rows():
            if row.status == "running" and row.durable:
                assert self.clock.now() - self.seen[row.worker] < LEASE, row

    # -- what always holds -----------------------------------------------------------------------------------

    async def rows(self) -> Sequence[RunRow]:
        return (await self.store.list(RunQuery("acme", limit=NEWEST)))[0]

    async def look(self) -> None:
        rows = {row.run_id: row for row in await self.rows()}
        assert sum(row.status == "running" and row.durable for row in rows.values()) <= MOST
        for row in rows.values():
            before, segment = self.was.get(row.run_id, ("running", 1))
            assert (
                row.status == before
                if before in ENDED_STATUSES
                else row.segment > segment or row.status in FORWARD[before]
            )
            assert row.segment >= segment
            if (row.status, row.segment) != (before, segment):
                await self.check_ends([row])
                self.reached[row.status] += 1
            self.was[row.run_id] = row.status, row.segment
            top = rows.get(row.worker)
            if top is not None and row.parent and top.status in ENDED_STATUSES and top.segment > 1:
                assert row.status in ENDED_STATUSES

    async def check_ends(self, rows: Sequence[RunRow]) -> None:
        for row in rows:
            said = [e.type for e in await self.store.events(row.run_id) if e.type in TERMINAL_EVENTS]
            assert said == ([f"run.{row.status}"] if row.status in ENDED_STATUSES else [])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
async def store(clock: ManualClock, tmp_path: Path) -> AsyncIterator[RunStore]:
    deps = Deps(clock=clock, data_dir=tmp_path)
    yield await Plugins().open("run_stores", "sqlite", {}, deps)
    await deps.resources.close()


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_a_run_ends_once_and_moves_forward(
    store: RunStore, clock: ManualClock, seed: int
) -> None:
    walk: Any = Walk(store, clock, Random(seed))
    for _ in range(STEPS):
        await walk.step()
    await walk.check_ends((await store.list(RunQuery("acme", limit=1000)))[0])
    assert all(walk.reached[state] > 1 for state in ("queued", "running", "waiting", *ENDED_STATUSES)), (
        walk.reached
    )
