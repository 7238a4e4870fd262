"""The node runner: one unit through wrappers; what it raises, how long it took, who is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from astromesh.graph.ledger import RunLedger
from astromesh.graph.runner import bounded, together, unit, wrapped
from astromesh.graph.scope import Scope
from astromesh.types import Usage


def settle(value, subject, context, duration_ms):
    return "ok", value, subject, context, duration_ms >= 0


def fail(error, subject, context, duration_ms):
    return "failed", type(error).__name__, subject, context, duration_ms >= 0


async def test_a_unit_becomes_a_record_whether_it_answers_or_raises() -> None:
    """A unit's call never raises; value and exception become what the traverser makes of them."""

    async def body(subject, context):
        if subject == "bad":
            raise ValueError
        return subject * 2

    call = unit(body, settle, fail)
    assert await call("x", 1) == ("ok", "xx", "x", 1, True)
    assert await call("bad", 1) == ("failed", "ValueError", "bad", 1, True)


async def test_a_body_may_take_the_subject_alone() -> None:
    """For bodies that need no context."""

    async def body(subject):
        return subject

    assert (await unit(body, settle, fail, subject_only=True)("x", 1))[:2] == ("ok", "x")


async def test_cancelling_the_task_passes_through_a_unit() -> None:
    """A cancelled run is no failed unit."""

    async def body(subject, context):
        await asyncio.sleep(60)

    async def run():
        await unit(body, settle, fail)("x", 1)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_wrappers_lie_around_a_call_the_first_outermost() -> None:
    """The order in which a traverser names them is the order in which they begin."""
    order: list[str] = []

    def wrapper(name):
        def wrap(call):
            async def run(subject, context):
                order.append(name)
                return await call(subject, context)

            return run

        return wrap

    async def body(subject, context):
        order.append("body")

    await wrapped(body, [wrapper("a"), wrapper("b")])(None, None)
    assert order == ["a", "b", "body"]


async def test_a_bounded_body_is_cancelled_when_its_time_is_over() -> None:
    """It ends, it is not only measured; its own TimeoutError keeps its words."""
    ended: list[str] = []

    async def slow(subject):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        await bounded(slow, 0.01, "slow")(None)
    assert ended == ["cancelled"]

    async def own(subject):
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await bounded(own, 60, "own")(None)


async def test_works_together_answer_in_their_order_and_fail_as_one() -> None:
    """The first failure cancels the others and is raised itself, in no group."""
    done: list[int] = []

    async def work(n: int) -> int:
        for _ in range(3 - n):
            await asyncio.sleep(0)
        if n == 1:
            raise KeyError("one")
        await asyncio.sleep(0.01)
        done.append(n)
        return n

    with pytest.raises(KeyError, match="one"):
        await together([work(0), work(1), work(2)])
    assert done == []
    assert await together([work(0), work(2)]) == [0, 2]
    assert await together([]) == []


async def test_a_child_scope_is_one_level_down_and_shares_everything_else() -> None:
    """Path, and nothing but the path, is its own; `charging` changes the ledger alone."""
    scope = Scope("r", agent="a", retries=2, depth=3, trace_id="t", deadline=9.0).child("react")
    nested = scope.child("lookup")
    assert (scope.path, nested.path) == ("react", "react/lookup")
    assert nested.ledger is scope.ledger
    for name in ("run_id", "agent", "session", "caller", "trace_id", "events", "clock", "deadline", "depth"):
        assert getattr(nested, name) is getattr(scope, name), name
    nested.next_step()
    nested.take_retry()
    assert (scope.next_step(), scope.retries) == (2, [1])
    ledger = RunLedger(None, scope.ledger)
    other = scope.child(ledger=ledger)
    assert (other.path, other.ledger) == ("react", ledger)
    ledger.add_usage(Usage(1, 2))
    assert scope.ledger.usage == Usage(1, 2)


async def test_failures_at_once_leave_nobody_marked_as_cancelled() -> None:
    """Two works that fail in one turn: one failure is raised, the caller is not marked as being cancelled."""

    async def bad(n: int) -> None:
        raise KeyError(n)

    with pytest.raises(KeyError):
        await together([bad(0), bad(1), bad(2)])
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancelling_works_together_waits_until_they_have_ended() -> None:
    """No work goes on behind a cancelled caller."""
    at_work = [0]

    async def work() -> None:
        at_work[0] += 1
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            at_work[0] -= 1

    async def run() -> None:
        await together([work(), work()])

    task = asyncio.create_task(run())
    while at_work[0] < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert at_work == [0]
