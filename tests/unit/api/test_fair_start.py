"""Requests that come together begin in turn."""

from __future__ import annotations

import asyncio

from astromesh.api.middleware.limits import MAX_STARTS, FairStart


async def comes(turns: FairStart, number: int, begun: list[int]) -> None:
    turn = turns.enter()
    if turn is not None:
        await turn
    begun.append(number)


async def test_a_request_alone_never_waits() -> None:
    turns = FairStart()
    for _ in range(3 * MAX_STARTS):
        assert turns.enter() is None
        await asyncio.sleep(0)  # a look at the sockets


async def test_many_begin_in_the_order_they_came_and_a_few_at_a_time() -> None:
    turns, begun = FairStart(), list[int]()
    tasks = [asyncio.create_task(comes(turns, n, begun)) for n in range(5 * MAX_STARTS)]
    most = 0
    while len(begun) < len(tasks):
        before = len(begun)
        await asyncio.sleep(0)
        most = max(most, len(begun) - before)
    assert begun == list(range(5 * MAX_STARTS))
    assert most == MAX_STARTS


async def test_those_that_come_later_begin_behind_those_that_wait() -> None:
    turns, begun = FairStart(), list[int]()
    first = [asyncio.create_task(comes(turns, n, begun)) for n in range(3 * MAX_STARTS)]
    await asyncio.sleep(0)
    later = [asyncio.create_task(comes(turns, 1_000 + n, begun)) for n in range(3)]
    await asyncio.gather(*first, *later)
    assert begun == [*range(3 * MAX_STARTS), 1_000, 1_001, 1_002]


async def test_who_is_cancelled_while_it_waits_holds_nobody_up() -> None:
    turns, begun = FairStart(), list[int]()
    tasks = [asyncio.create_task(comes(turns, n, begun)) for n in range(4 * MAX_STARTS)]
    await asyncio.sleep(0)
    for task in tasks[MAX_STARTS : 3 * MAX_STARTS]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [*range(MAX_STARTS), *range(3 * MAX_STARTS, 4 * MAX_STARTS)]


async def test_after_a_rush_requests_begin_at_once_again() -> None:
    turns, begun = FairStart(), list[int]()
    await asyncio.gather(*(comes(turns, n, begun) for n in range(3 * MAX_STARTS)))
    for _ in range(2):
        await asyncio.sleep(0)
    assert turns.enter() is None
