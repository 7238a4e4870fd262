"""Many callers of a store of runs at once: each has its own answer, whatever the others ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from astromesh.durable.base import JournalStep, RunChange, RunQuery, RunRow, RunStore, SegmentClaim
from astromesh.errors import LeaseLost
from astromesh.plugins import Plugins
from astromesh.testing import ManualClock
from astromesh.types import Event, Usage
from tests.platform.stores import deps_of

NOW, RUNS = 1_700_000_000.0, 40


@pytest.fixture(params=("sqlite", "postgres"))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RunStore]:
    deps = deps_of(request, ManualClock(NOW), tmp_path)
    opened = await Plugins().open("run_stores", request.param, {}, deps)
    yield opened
    await opened.close()
    await deps.resources.close()


def run(n: int, session: str = "") -> RunRow:
    return RunRow(
        f"run_{n:02}", "acme", "ann", "support", session or f"s-{n}", "t" * 32, "queued", NOW,
        durable=True, ordered=True, request={"query": f"λ \x00 {n}"},
    )  # fmt: skip


def name(n: int) -> str:
    return f"run_{n:02}"


def step(n: int) -> JournalStep:
    return JournalStep("react", 1, "model", "h", "done", {"n": n, "text": "λ \x00"})


async def running(store: RunStore) -> list[SegmentClaim]:
    await asyncio.gather(*(store.accept(run(n)) for n in range(RUNS)))
    rows = await asyncio.gather(*(store.claim(name(n), 1, "w1") for n in range(RUNS)))
    assert [row.run_id for row in rows if row] == [name(n) for n in range(RUNS)]
    return [SegmentClaim(name(n), 1, "w1") for n in range(RUNS)]


async def test_runs_that_are_accepted_at_once_begin_in_that_order(store):
    """One session: the first alone may begin, and each one that ends names the next."""
    await asyncio.gather(*(store.accept(run(n, "s")) for n in range(RUNS)))
    assert [row.run_id for row in (await store.list(RunQuery("acme")))[0]] == [name(n) for n in range(RUNS)][
        ::-1
    ]
    for n in range(3):
        claims = await asyncio.gather(*(store.claim(name(m), 1, "w1") for m in range(n, RUNS)))
        assert [row.run_id for row in claims if row] == [name(n)]
        await store.commit(
            SegmentClaim(name(n), 1, "w1"), change=RunChange(status="completed", finished_at=NOW)
        )
        assert await store.next_in_session(claims[0]) == (name(n + 1), 1)


async def test_each_commit_writes_its_own_steps_events_and_changes(store):
    """Some change the row, some do not, some say nothing at all."""
    claims = await running(store)
    changes = [RunChange(deadline_at=NOW + n, usage=Usage(n, 1)) if n % 3 == 0 else None for n in range(RUNS)]
    await asyncio.gather(
        *(
            store.commit(
                claim,
                steps=[step(n)] if n % 4 else [],
                events=[
                    Event(claim.run_id, seq + 1, NOW + n, "node.started", {"n": n}) for seq in range(n % 5)
                ],
                change=changes[n],
            )
            for n, claim in enumerate(claims)
        )
    )
    for n, claim in enumerate(claims):
        assert await store.steps(claim.run_id) == ((step(n),) if n % 4 else ())
        events = await store.events(claim.run_id)
        assert [(e.seq, e.ts, e.data) for e in events] == [(s + 1, NOW + n, {"n": n}) for s in range(n % 5)]
    rows = await asyncio.gather(*(store.get(name(n)) for n in range(RUNS + 1)))
    assert rows.pop() is None
    assert [(row.deadline_at, row.usage.input_tokens) for row in rows] == [
        (NOW + n, n) if n % 3 == 0 else (0.0, 0) for n in range(RUNS)
    ]


async def test_only_who_has_lost_a_run_is_refused(store):
    """Every third claim is of a worker that never had it; nothing of those is written."""
    claims = await running(store)
    asked = [claim._replace(worker="w2") if n % 3 == 0 else claim for n, claim in enumerate(claims)]
    change = RunChange(status="completed", finished_at=NOW)
    answers = await asyncio.gather(
        *(store.commit(claim, steps=[step(1)], change=change) for claim in asked), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [
        LeaseLost if n % 3 == 0 else type(None) for n in range(RUNS)
    ]
    rows = await asyncio.gather(*(store.get(name(n)) for n in range(RUNS)))
    assert [row.status for row in rows] == ["running" if n % 3 == 0 else "completed" for n in range(RUNS)]
    assert [bool(await store.steps(name(n))) for n in range(RUNS)] == [bool(n % 3) for n in range(RUNS)]


async def test_two_commits_of_one_run_at_once_are_both_written_in_order(store):
    """The same step twice, and two changes: the later ones count."""
    (claim, *_) = await running(store)
    later = step(1)._replace(output={"later": True})
    await asyncio.gather(
        store.commit(claim, steps=[step(1)], change=RunChange(deadline_at=NOW + 1)),
        store.commit(claim, steps=[later], change=RunChange(wake_at=NOW + 2)),
        store.commit(claim, steps=[step(2)._replace(n=2)]),
    )
    row = await store.get(claim.run_id)
    assert (row.deadline_at, row.wake_at) == (NOW + 1, NOW + 2)
    assert await store.steps(claim.run_id) == (later, step(2)._replace(n=2))


async def test_one_run_that_many_want_is_had_by_one(store):
    await store.accept(run(0))
    rows = await asyncio.gather(*(store.claim(name(0), 1, f"w{n}") for n in range(RUNS)))
    assert len([row for row in rows if row is not None]) == 1


async def test_a_bound_of_one_agent_holds_among_many_that_begin(store):
    """Five runs of the agent with the bound, of which two may begin; the others all do."""
    runs = [replace(run(n), agent="tight" if n < 5 else "support") for n in range(20)]
    await asyncio.gather(*map(store.accept, runs))
    claims = await asyncio.gather(*(store.claim(name(n), 1, "w1", {"tight": 2}) for n in range(20)))
    assert [row is not None for row in claims].count(True) == 17
    assert all(claims[5:])
    again = await asyncio.gather(*(store.claim(name(n), 1, "w1", {"tight": 2}) for n in range(20)))
    assert [row is not None for row in again] == [row is not None for row in claims]
