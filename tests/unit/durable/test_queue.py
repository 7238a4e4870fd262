"""Runs that wait for room in their process, and for a slot of their agent."""

from __future__ import annotations

import asyncio

import pytest

from astromesh.durable.base import RunRow
from astromesh.durable.queue import (
    AgentSlots,
    FairQueue,
    Load,
    LoadLimit,
    LocalQueue,
    QueueCapacity,
    SlotRequest,
    Turns,
    shed_for,
)
from astromesh.errors import Overloaded
from astromesh.testing import ManualClock


def row(name: str, priority: int = 0, segment: int = 1, tenant: str = "acme") -> RunRow:
    return RunRow(name, tenant, "ann", "support", "s", "t", "queued", 0.0, priority=priority, segment=segment)


def test_the_first_by_priority_then_by_age_begins_next() -> None:
    backlog = LocalQueue(10)
    for one in (row("a"), row("b", 5), row("c", -1, 3), row("d")):
        assert backlog.add(one)
    assert [backlog.pop() for _ in range(5)] == [("c", 3), ("a", 1), ("d", 1), ("b", 1), None]


def test_a_run_is_in_it_once_and_there_are_no_more_than_may() -> None:
    backlog = LocalQueue(2)
    assert all(backlog.add(row(name)) for name in ("a", "a", "b"))
    assert "a" in backlog
    assert not backlog.add(row("c"))
    assert backlog.add(row("b"))  # it is there
    assert backlog.pop() == ("a", 1)
    assert "a" not in backlog
    assert backlog.add(row("c"))
    assert [backlog.pop(), backlog.pop(), backlog.pop()] == [("b", 1), ("c", 1), None]


def test_tenants_take_turns_within_a_priority() -> None:
    queue = FairQueue[str]()
    for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        queue.add(name, name[0])
    queue.add("urgent", "a", -1)
    assert [queue.pop() for _ in range(5)] == ["urgent", "b1", "c1", "a1", "b2"]
    queue.add("c2", "c")  # who comes back does not begin a new round
    assert [queue.pop() for _ in range(4)] == ["c2", "a2", "a3", "a4"]
    queue.add("c3", "c")
    queue.add("a5", "a")
    assert [queue.pop(), queue.pop(), queue.pop()] == ["c3", "a5", None]
    assert len(queue) == 0


def test_a_full_queue_takes_the_place_of_whom_most_wait() -> None:
    queue = LocalQueue(4)
    assert all(queue.add(row(f"noisy_{n}")) for n in range(4))
    assert not queue.add(row("noisy_4"))
    assert queue.add(row("quiet_0", tenant="quiet"))
    assert queue.add(row("quiet_1", tenant="quiet"))
    assert not queue.add(row("quiet_2", tenant="quiet"))  # both have two
    assert "noisy_3" not in queue
    assert [queue.pop() for _ in range(5)] == [
        ("noisy_0", 1), ("quiet_0", 1), ("noisy_1", 1), ("quiet_1", 1), None
    ]  # fmt: skip


def test_a_tenant_that_would_have_as_many_as_the_longest_gets_no_place() -> None:
    queue = LocalQueue(3)
    assert all(queue.add(row(f"noisy_{n}")) for n in range(3))
    assert queue.add(row("quiet_0", tenant="quiet"))
    assert not queue.add(row("quiet_1", tenant="quiet"))
    assert [queue.pop() for _ in range(3)] == [("noisy_0", 1), ("quiet_0", 1), ("noisy_1", 1)]


def test_the_oldest_of_too_many_turns_is_forgotten() -> None:
    turns = Turns()
    for tenant in ("first", "second", *map(str, range(9_998)), "first", "one too many"):
        turns.take(tenant)
    assert turns.last("second") == 0
    assert 0 < turns.last("0") < turns.last("first") < turns.last("one too many")


def test_what_gives_up_waiting_leaves_the_queue() -> None:
    queue = FairQueue[object]()
    first, second, third = object(), object(), object()
    for one in (first, second, third):
        queue.add(one, "acme")
    queue.remove(second, "acme")
    assert queue.of_tenant("acme") == len(queue) == 2
    assert [queue.pop(), queue.pop(), queue.pop()] == [first, third, None]


@pytest.mark.parametrize(
    ("load", "limit", "seconds"),
    [
        (Load(9), LoadLimit(10), None),
        (Load(10), LoadLimit(10), 1.0),
        (Load(10, 7.5), LoadLimit(10), 7.5),
        (Load(10, 7_500.0), LoadLimit(10), 60.0),
        (Load(1, 4.0), LoadLimit(10, 5.0), None),
        (Load(1, 5.0), LoadLimit(10, 5.0), None),
        (Load(1, 5.5), LoadLimit(10, 5.0), 5.5),
        (Load(0), LoadLimit(10, 5.0), None),
    ],
)
def test_more_is_refused_than_may_wait_or_than_may_wait_so_long(
    load: Load, limit: LoadLimit, seconds: float | None
) -> None:
    assert shed_for(load, limit) == seconds


# -- slots of an agent -------------------------------------------------------------------------------------


class Runs:
    """Runs of one agent with `count` slots.

    Attributes:
        entered: the names of the runs that have had a slot, in order.
    """

    def __init__(self, count: int, clock: ManualClock) -> None:
        self.slots, self.entered = AgentSlots(clock), list[str]()
        self._count = count

    async def begin(
        self,
        name: str,
        tenant: str = "acme",
        priority: int = 0,
        max_waiting: int = 10,
        timeout: float | None = None,
    ) -> asyncio.Task[None]:
        """Starts to enter, and returns when the run has its slot, waits for one, or has failed."""

        async def enter() -> None:
            request = SlotRequest(tenant, priority, max_waiting, timeout)
            await self.slots.enter("support", self._count, request)
            self.entered.append(name)

        task = asyncio.create_task(enter())
        await self.settle()
        return task

    async def end(self, count: int = 1) -> None:
        """Ends so many active runs, one after the other."""
        for _ in range(count):
            self.slots.leave("support")
            await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_run_that_ends_passes_its_slot_by_priority_then_to_the_tenants_in_turn() -> None:
    runs = Runs(2, ManualClock())
    for name in ("a1", "a2", "a3", "a4", "b1"):
        await runs.begin(name, name[0])
    await runs.begin("urgent", "a", -1)
    assert runs.entered == ["a1", "a2"]
    await runs.end(3)
    assert runs.entered[2:] == ["urgent", "b1", "a3"]
    await runs.begin("late", "c")  # a slot that was passed on is not free
    assert runs.entered[5:] == []
    await runs.end(2)
    assert runs.entered[5:] == ["late", "a4"]
    await runs.end()  # nobody waits, and one run is left
    await runs.begin("next")
    assert runs.entered[7:] == ["next"]
    await runs.begin("last")
    assert runs.entered[8:] == []
    await runs.end(3)
    await runs.begin("again")
    assert runs.entered[8:] == ["last", "again"]


async def test_the_tenant_whose_run_got_a_free_slot_has_had_its_turn() -> None:
    runs = Runs(1, ManualClock())
    for name in ("a1", "a2", "b1"):
        await runs.begin(name, name[0])
    await runs.end(2)
    assert runs.entered == ["a1", "b1", "a2"]


async def test_agents_do_not_share_slots() -> None:
    runs, request = Runs(1, ManualClock()), SlotRequest("acme", 0, 0, None)
    await runs.slots.enter("other", 1, request)
    await runs.begin("a")
    assert runs.entered == ["a"]
    await runs.end()
    with pytest.raises(Overloaded):
        await runs.slots.enter("other", 1, request)


async def test_a_tenant_has_no_more_runs_that_wait_than_it_may() -> None:
    runs = Runs(1, ManualClock())
    for name in ("a1", "a2", "a3"):
        await runs.begin(name, max_waiting=2)
    refused = await runs.begin("a4", max_waiting=2)
    await runs.begin("b1", "b", max_waiting=1)  # another tenant's do not count
    with pytest.raises(Overloaded) as raised:
        await refused
    assert raised.value.retry_after == 1.0
    assert str(raised.value) == (
        "2 runs of your tenant wait to begin in 'support' (spec.queue.max_queued); send this one again later."
    )
    await runs.end(3)
    assert runs.entered == ["a1", "b1", "a2", "a3"]


async def test_a_run_that_waits_too_long_leaves_the_queue() -> None:
    clock = ManualClock()
    runs = Runs(1, clock)
    await runs.begin("active", timeout=5.0)
    waiting = await runs.begin("waiting", timeout=5.0)
    patient = await runs.begin("patient")
    clock.advance(4.9)
    await runs.settle()
    assert not waiting.done()
    clock.advance(0.2)
    with pytest.raises(Overloaded, match="'support' had no free slot for 5 s; send the request again later"):
        await waiting
    assert not patient.done()
    await runs.end()
    assert runs.entered == ["active", "patient"]


async def test_a_run_that_got_its_slot_waits_for_nothing_more() -> None:
    clock = ManualClock()
    runs = Runs(1, clock)
    await runs.begin("active")
    waiting = await runs.begin("waiting", timeout=5.0)
    assert clock.slept == [5.0]
    await runs.end()
    await waiting
    clock.advance(10.0)
    await runs.settle()
    assert clock.sleepers == 0
    assert runs.entered == ["active", "waiting"]


async def test_a_cancelled_run_leaves_the_queue() -> None:
    clock = ManualClock()
    runs = Runs(1, clock)
    await runs.begin("active")
    cancelled = await runs.begin("cancelled", timeout=5.0)
    await runs.begin("waiting")
    cancelled.cancel()
    await runs.settle()
    assert cancelled.cancelled()
    await runs.end()
    assert runs.entered == ["active", "waiting"]


async def test_a_slot_that_is_passed_to_a_cancelled_run_is_passed_on() -> None:
    runs = Runs(1, ManualClock())
    await runs.begin("active")
    cancelled = await runs.begin("cancelled")
    await runs.begin("waiting")
    runs.slots.leave("support")
    cancelled.cancel()
    await runs.settle()
    assert runs.entered == ["active", "waiting"]
    await runs.end()
    await runs.begin("next")
    assert runs.entered[2:] == ["next"]


# -- how many more runs of an agent may be accepted --------------------------------------------------------


class Counted:
    """A store that counts what waits.

    Attributes:
        load: what it finds.
        counts: how often it was asked.
    """

    def __init__(self, load: Load) -> None:
        self.load, self.counts, self.accepted = load, 0, 0

    async def measure(self) -> Load:
        self.counts += 1
        await asyncio.sleep(0)
        return self.load

    async def accept(self) -> RunRow:
        self.accepted += 1
        return row(f"run_{self.accepted}")


async def test_one_count_is_valid_for_a_part_of_the_room_that_it_found() -> None:
    store, capacity = Counted(Load(20)), QueueCapacity(ManualClock())
    limit = LoadLimit(43)  # room for 23: the count is valid for two more
    seen = []
    for n in range(1, 5):
        accepted = await capacity.enter(store.measure, "support", limit, store.accept)
        assert accepted.run_id == f"run_{n}"
        seen.append(store.counts)
    assert seen == [1, 1, 1, 2]


@pytest.mark.parametrize(("seconds", "counts"), [(0.9, 1), (1.0, 2), (1.5, 2)])
async def test_a_count_is_valid_for_a_second(seconds: float, counts: int) -> None:
    store, clock = Counted(Load(0)), ManualClock()
    clock.advance(100.0)
    capacity = QueueCapacity(clock)
    await capacity.enter(store.measure, "support", LoadLimit(100), store.accept)
    clock.advance(seconds)
    await capacity.enter(store.measure, "support", LoadLimit(100), store.accept)
    assert store.counts == counts


async def test_runs_that_come_together_are_counted_once() -> None:
    store, capacity = Counted(Load(0)), QueueCapacity(ManualClock())

    async def enter() -> None:
        await capacity.enter(store.measure, "support", LoadLimit(100), store.accept)

    await asyncio.gather(*(enter() for _ in range(5)))
    assert (store.counts, store.accepted) == (1, 5)


@pytest.mark.parametrize(
    ("load", "seconds", "text"),
    [
        (
            Load(10, 7.5),
            7.5,
            "10 runs of your tenant wait to begin in 'support' (spec.queue.max_queued)",
        ),
        (
            Load(3, 31.4),
            31.4,
            "The oldest run of your tenant waits 31 s to begin in 'support' (spec.queue.max_wait_seconds)",
        ),
    ],
)
async def test_a_run_beyond_the_limit_is_refused_and_the_reason_is_named(
    load: Load, seconds: float, text: str
) -> None:
    store, capacity = Counted(load), QueueCapacity(ManualClock())
    with pytest.raises(Overloaded) as raised:
        await capacity.enter(store.measure, "support", LoadLimit(10, 30.0), store.accept)
    assert str(raised.value) == f"{text}; send this one again later."
    assert (raised.value.retry_after, store.accepted) == (seconds, 0)
