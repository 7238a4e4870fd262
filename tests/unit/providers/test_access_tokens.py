"""Access tokens: calls share one, it is replaced before it expires, and a failure is not kept."""

from __future__ import annotations

import asyncio

import pytest
from yarl import URL

from astromesh.errors import ProviderUnavailable
from astromesh.providers.authorization import EARLY_SECONDS, AccessToken, AccessTokens
from astromesh.testing import ManualClock

LIFE = 3600.0


class Issuer:
    """Gives numbered tokens when it may."""

    def __init__(self) -> None:
        self.clock, self.given, self.fails = ManualClock(), 0, False
        self.may = asyncio.Event()
        self.may.set()
        self.tokens = AccessTokens(self.fetch, self.clock)

    async def fetch(self) -> AccessToken:
        await self.may.wait()
        if self.fails:
            raise ProviderUnavailable("no token")
        self.given += 1
        return AccessToken(f"t{self.given}", self.clock.now() + LIFE)

    async def used(self) -> str:
        headers = await self.tokens.headers("POST", URL("http://x/"), b"")
        return headers["authorization"].removeprefix("Bearer ")

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_calls_share_a_token_until_it_expires() -> None:
    issuer = Issuer()
    assert await asyncio.gather(*(issuer.used() for _ in range(5))) == ["t1"] * 5
    issuer.clock.advance(LIFE)
    assert (await issuer.used(), issuer.given) == ("t2", 2)


async def test_a_token_that_expires_soon_is_replaced_while_calls_use_it() -> None:
    issuer = Issuer()
    await issuer.used()
    issuer.clock.advance(LIFE - EARLY_SECONDS)
    issuer.may.clear()
    assert await issuer.used() == "t1"
    issuer.may.set()
    await issuer.settle()
    assert (await issuer.used(), issuer.given) == ("t2", 2)


async def test_a_failure_to_replace_a_token_is_no_failure_of_the_calls_and_is_tried_again() -> None:
    issuer = Issuer()
    await issuer.used()
    issuer.clock.advance(LIFE - EARLY_SECONDS)
    issuer.fails = True
    assert await issuer.used() == "t1"
    await issuer.settle()
    issuer.fails = False
    assert (await issuer.used(), issuer.given) == ("t1", 1)  # not at once
    issuer.clock.advance(30)
    await issuer.used()
    await issuer.settle()
    assert await issuer.used() == "t2"


async def test_the_first_token_may_fail_and_come_later() -> None:
    issuer = Issuer()
    issuer.fails = True
    with pytest.raises(ProviderUnavailable):
        await issuer.used()
    issuer.fails = False
    assert await issuer.used() == "t1"


async def test_who_is_cancelled_does_not_take_the_token_from_the_others() -> None:
    issuer = Issuer()
    issuer.may.clear()
    first, second = asyncio.create_task(issuer.used()), asyncio.create_task(issuer.used())
    await issuer.settle()
    first.cancel()
    issuer.may.set()
    assert (await second, issuer.given) == ("t1", 1)


async def test_a_token_that_the_service_refuses_is_not_used_again() -> None:
    issuer = Issuer()
    await issuer.used()
    issuer.tokens.reject()
    assert await issuer.used() == "t2"
