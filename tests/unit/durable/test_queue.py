"""Runs that wait for room in their process."""

from __future__ import annotations

import pytest

from astromesh.durable.base import RunRow
from astromesh.durable.queue import FairQueue, Load, LoadLimit, LocalQueue, Turns, shed_for


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
