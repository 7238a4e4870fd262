"""What is opened once and shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astromesh.errors import StoreUnavailable
from astromesh.plugins import Resources


class Away:
    """A store that does not answer until it is told to go on, and then only from the second try on."""

    def __init__(self) -> None:
        self.tries = 0
        self.go_on = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        self.tries += 1
        await self.go_on.wait()
        if self.tries == 1:
            raise StoreUnavailable("It is locked.")
        yield "open"


async def test_who_waits_for_what_fails_does_not_wait_for_it_again():
    """All get the first one's failure; whoever asks afterwards tries anew."""
    resources, away = Resources(), Away()
    asking = [asyncio.create_task(resources.shared("file", away.opened)) for _ in range(3)]
    while not away.tries:
        await asyncio.sleep(0)
    away.go_on.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert away.tries == 1
    assert await resources.shared("file", away.opened) == "open"
    assert await resources.shared("file", away.opened) == "open"
    assert away.tries == 2
    await resources.close()


async def test_what_is_no_failure_of_the_store_is_nobody_elses():
    """A cancelled first try leaves the others their own."""
    resources, away = Resources(), Away()
    first = asyncio.create_task(resources.shared("file", away.opened))
    second = asyncio.create_task(resources.shared("file", away.opened))
    while not away.tries:
        await asyncio.sleep(0)
    first.cancel()
    away.go_on.set()
    assert await second == "open"
    with pytest.raises(asyncio.CancelledError):
        await first
    await resources.close()
