"""One suite for every store of graph runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from astromesh.durable.base import GraphRunRow, JournalStep, SegmentClaim
from astromesh.durable.graph_runs import MAX_CACHED, GraphStore
from astromesh.errors import Conflict, InvalidInput, LeaseLost
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ManualClock
from tests.platform.stores import deps_of

NOW = 1_700_000_000.0
RUN = GraphRunRow(
    "run_1", "letter", "running", 1, NOW, 0.0, "run_0", 3, {"messages": [], "context": {"λ": 1}}
)
STEPS = (
    JournalStep("node:b", 1, "node", "", "done", {"result": {}}, 1, NOW + 1, 2.5),
    JournalStep("a", 1, "model", "hash", "done", {"text": "λ \x00"}, 2, NOW + 2, 3.5, {"name": "m"}),
    JournalStep("node:a", 2, "node", "", "intent", None),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=("memory", "sqlite", "postgres"))
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[GraphStore]:
    deps = Deps(clock=clock) if request.param == "memory" else deps_of(request, clock, tmp_path)
    runs = await Plugins().open("graph_stores", request.param, {}, deps)
    yield runs.store
    await runs.close()
    await deps.resources.close()


async def test_a_run_is_there_as_it_was_given_and_once(store: GraphStore) -> None:
    await store.add(RUN, STEPS)
    assert await store.get("run_1") == RUN
    assert await store.get("run_2") is None
    with pytest.raises(Conflict, match="already a run 'run_1'"):
        await store.add(RUN)
    assert await store.steps("run_1") == (STEPS[2], STEPS[0], STEPS[1])


def refused(steps: Sequence[JournalStep]) -> Sequence[JournalStep]:
    raise InvalidInput(f"not with {len(steps)} steps")


async def test_whoever_claims_a_run_takes_it_from_others(store: GraphStore) -> None:
    """An earlier segment writes nothing any more, and an ended run is nobody's."""
    await store.add(RUN)
    first = SegmentClaim("run_1", 1, "")
    await store.commit(first, steps=STEPS)
    with pytest.raises(InvalidInput):
        await store.claim("run_1", refused)
    await store.commit(first, steps=STEPS[:1])  # a refused claim takes the run from nobody
    claimed = await store.claim("run_1", lambda steps: [steps[0]._replace(state="done", ordinal=len(steps))])
    assert claimed is not None
    assert (claimed[0].segment, claimed[0].status) == (2, "running")
    assert [step.ordinal for step in claimed[1]] == [1, 2, 3]
    with pytest.raises(LeaseLost):
        await store.commit(first, steps=[JournalStep("late", 1, "model", "", "done", {}, 9)])
    with pytest.raises(LeaseLost):
        await store.end(first, "completed", NOW)
    assert [step.ordinal for step in await store.steps("run_1")] == [1, 2, 3]
    await store.end(SegmentClaim("run_1", 2, ""), "waiting", 0.0)
    waiting, again = await store.get("run_1"), await store.claim("run_1")
    assert waiting is not None
    assert again is not None
    assert (waiting.status, again[0].segment) == ("waiting", 3)
    await store.end(SegmentClaim("run_1", 3, ""), "completed", NOW + 9)
    ended = await store.get("run_1")
    assert ended is not None
    assert (ended.status, ended.finished_at) == ("completed", NOW + 9)
    assert await store.claim("run_1") is None
    assert await store.claim("run_2") is None


async def test_a_deleted_run_leaves_nothing(store: GraphStore) -> None:
    await store.add(RUN, STEPS)
    assert await store.delete("run_1")
    assert (await store.get("run_1"), await store.steps("run_1")) == (None, ())
    assert not await store.delete("run_1")


async def test_cached_results_last_as_long_as_they_say(store: GraphStore, clock: ManualClock) -> None:
    await store.store_cached("k", '{"a": 1}', 60)
    await store.store_cached("l", "2", 10)
    assert (await store.cached("k"), await store.cached("l"), await store.cached("m")) == (
        '{"a": 1}',
        "2",
        None,
    )
    clock.advance(11)
    assert (await store.cached("k"), await store.cached("l")) == ('{"a": 1}', None)
    await store.store_cached("k", "3", 60)
    clock.advance(50)
    assert await store.cached("k") == "3"


async def test_the_cache_in_memory_is_bounded(clock: ManualClock) -> None:
    runs = await Plugins().open("graph_stores", "memory", {}, Deps(clock=clock))
    for n in range(MAX_CACHED + 1):
        await runs.store_cached(str(n), "v", 60)
    assert (await runs.cached("0"), await runs.cached("1")) == (None, "v")
