"""Calls that go together: in order, each with its own answer, and no fault of one is another's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from astromesh.errors import StoreError, StoreUnavailable
from astromesh.storage.postgres import GroupCommit


class Store:
    """Answers the double of each number when it may; what it was asked stands in `batches`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may = asyncio.Event()
        self.may.set()
        self.away = False

    async def double(self, numbers: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(numbers))
        await self.may.wait()
        if self.away:
            raise StoreUnavailable("away")
        if 13 in numbers:
            raise StoreError("13 is refused")
        return [2 * n for n in numbers]


async def test_what_comes_while_one_is_under_way_goes_together_in_order_and_bounded() -> None:
    store = Store()
    store.may.clear()
    double = GroupCommit(store.double, max_batch=3)
    first = asyncio.create_task(double(1))
    while not store.batches:
        await asyncio.sleep(0)
    others = [asyncio.create_task(double(n)) for n in range(2, 7)]
    await asyncio.sleep(0)
    store.may.set()
    assert [await first, *(await asyncio.gather(*others))] == [2, 4, 6, 8, 10, 12]
    assert store.batches == [[1], [2, 3, 4], [5, 6]]
    assert await double(7) == 14  # and again behind a pause


async def test_only_the_call_that_is_refused_fails() -> None:
    store = Store()
    double = GroupCommit(store.double)
    answers = await asyncio.gather(*map(double, (1, 13, 3)), return_exceptions=True)
    assert (answers[0], str(answers[1]), answers[2]) == (2, "13 is refused", 6)
    assert store.batches == [[1, 13, 3], [1], [13], [3]]


async def test_all_learn_at_once_that_the_store_is_away() -> None:
    store = Store()
    store.away = True
    double = GroupCommit(store.double)
    answers = await asyncio.gather(*map(double, (1, 2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    assert store.batches == [[1, 2]]
    store.away = False
    assert await double(1) == 2


async def test_a_caller_that_leaves_stops_nobody() -> None:
    """Neither what it asked for, which is done all the same, nor those that came with it."""
    store = Store()
    store.may.clear()
    double = GroupCommit(store.double)
    leaving, staying = asyncio.create_task(double(1)), asyncio.create_task(double(2))
    while not store.batches:
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    store.may.set()
    assert await staying == 4
    assert store.batches == [[1, 2]]


async def test_a_mistake_in_the_work_reaches_its_callers() -> None:
    async def broken(numbers: Sequence[int]) -> Sequence[int]:
        raise KeyError(numbers[0])

    double: GroupCommit[int, int] = GroupCommit(broken)
    answers = await asyncio.gather(*map(double, (1, 2)), return_exceptions=True)
    assert [repr(answer) for answer in answers] == ["KeyError(1)", "KeyError(2)"]
