"""Slots of stages and the clock of a Task."""

from __future__ import annotations

import asyncio
from functools import partial

from astromesh.testing import ManualClock
from astromesh.workflow.concurrency import StageSlots, Stopwatch


def test_slots_pass_to_those_who_wait_longest() -> None:
    slots, begun, last = StageSlots(2), list[str](), object()
    for name in "abc":
        slots.request(object(), partial(begun.append, name))
    slots.request(last, partial(begun.append, "d"))
    assert (begun, slots.in_use, slots.has_waiters) == (["a", "b"], 2, True)
    slots.release()
    assert begun == ["a", "b", "c"]
    slots.withdraw(last)
    slots.release()
    assert (begun, slots.in_use, slots.has_waiters) == (["a", "b", "c"], 1, False)


def test_a_slot_serves_the_next_request_of_its_run_if_that_waits_longest() -> None:
    slots, begun = StageSlots(1), list[str]()
    own, others = partial(begun.append, "own"), partial(begun.append, "others")
    for owner, begin in (("own", own), ("own", own), ("others", others), ("own", own)):
        slots.request(owner, begin)
    assert slots.take_turn("own", own)
    assert not slots.take_turn("own", own)  # another run waits longer
    slots.release()
    assert begun == ["own", "others"]
    assert slots.take_turn("own", own)
    assert not slots.take_turn("own", own)  # nobody waits


async def test_who_is_cancelled_while_it_waits_for_a_slot_takes_none() -> None:
    slots, begun = StageSlots(1), list[str]()
    await slots.acquire("first")
    cancelled, next_one = (asyncio.create_task(slots.acquire(name)) for name in ("cancelled", "next"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    slots.release()
    await next_one
    assert (slots.in_use, slots.has_waiters) == (1, False)
    late = asyncio.create_task(slots.acquire("granted and cancelled"))
    await asyncio.sleep(0)
    slots.release()
    late.cancel()
    await asyncio.wait([late])
    assert late.cancelled()
    assert slots.in_use == 0
    slots.request("last", partial(begun.append, "last"))
    assert begun == ["last"]


async def test_the_clock_of_a_task_counts_what_it_has_run() -> None:
    clock = ManualClock()
    watch = Stopwatch(clock)
    reached = asyncio.create_task(watch.reach(10.0))
    for runs, stands in ((3.0, 100.0), (4.0, 100.0)):
        await clock.run_for(runs)
        watch.stop()
        await clock.run_for(stands)
        watch.stop()
        watch.start()
        watch.start()
    await clock.run_for(2.5)
    assert not reached.done()
    await clock.run_for(1.0)
    await reached
