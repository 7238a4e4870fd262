"""Time limits that stand still while the work in them waits for a person."""

from __future__ import annotations

import asyncio

import pytest

from astromesh.telemetry.clock import TimeLimit, standing_still


async def wait(seconds: float) -> None:
    with standing_still():
        await asyncio.sleep(seconds)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def limited(seconds: float | None, *works: object) -> None:
    """Waits within a limit, then works for ever."""
    async with TimeLimit(seconds):
        for work in works:
            await work  # type: ignore[misc]
        await for_ever()


async def test_work_that_takes_too_long_is_cancelled() -> None:
    with pytest.raises(TimeoutError):
        await limited(0.01)


async def test_every_limit_around_a_wait_stands_until_the_last_wait_has_ended() -> None:
    moved: list[float] = []
    async with TimeLimit(0.1, moved.append) as outer, TimeLimit(0.1) as inner:
        await asyncio.gather(wait(0.15), wait(0.3))
    assert len(moved) == 1 and not (outer.expired() or inner.expired())


async def test_a_limit_goes_on_with_what_was_left() -> None:
    with pytest.raises(TimeoutError):
        await limited(0.1, wait(0.2))


async def test_a_limit_without_seconds_never_ends_the_work() -> None:
    async with TimeLimit(None) as limit:
        await wait(0)
    assert not limit.expired()


async def test_a_wait_that_is_cancelled_starts_the_limit_again() -> None:
    async def cut_off() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(60), 0.05)

    with pytest.raises(TimeoutError):
        await limited(0.2, cut_off())


async def test_what_was_begun_within_a_limit_may_stand_when_the_limit_is_over() -> None:
    go = asyncio.Event()

    async def later() -> None:
        await go.wait()
        await wait(0)

    async with TimeLimit(60):
        begun = asyncio.create_task(later())
    go.set()
    await begun
