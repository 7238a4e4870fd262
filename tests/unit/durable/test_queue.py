"""Runs that wait for room in their process."""

from __future__ import annotations

from astromesh.durable.base import RunRow
from astromesh.durable.queue import LocalQueue


def row(name: str, priority: int = 0, segment: int = 1) -> RunRow:
    return RunRow(name, "acme", "ann", "support", "s", "t", "queued", 0.0, priority=priority, segment=segment)


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
