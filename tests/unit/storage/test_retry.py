"""Calls that are repeated until a deadline end when their caller is cancelled, whatever the library does."""

import asyncio

import pytest

from astromesh.storage.retry import ShieldedTasks, retry_until_deadline


class Unavailable(Exception):
    pass


def swallowing(end):
    """Work of a library that takes a cancellation for its own, as asyncio.wait_for of Python 3.11 does."""

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return end()

    return work


def fail():
    raise Unavailable


@pytest.mark.parametrize("end", [lambda: "done", fail])
@pytest.mark.parametrize("may_retry", [True, False])
async def test_a_cancellation_that_the_library_swallows_is_not_lost(end, may_retry):
    call = asyncio.create_task(
        retry_until_deadline(swallowing(end), (Unavailable,), lambda error: may_retry, 60)
    )
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.gather(call), 5)


async def test_a_deadline_that_the_library_swallows_is_not_lost():
    with pytest.raises(TimeoutError):
        await retry_until_deadline(swallowing(lambda: "late"), (Unavailable,), lambda error: True, 0.01)


async def test_tasks_are_settled_in_the_very_turn_in_which_the_last_one_ends():
    """The loop has not called those who wait for it."""
    tasks, may_end = ShieldedTasks(), asyncio.Event()
    caller = asyncio.create_task(tasks.run(may_end.wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.sleep(0)
    await tasks.settle()
    await caller
