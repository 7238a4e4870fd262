"""Sessions that a version stored whose ids had no principal: they are found again, each by its own."""

from __future__ import annotations

from typing import Any

import orjson
import redis.asyncio as client

from astromesh.memory.backends.redis import RedisConversations, RedisOptions
from astromesh.plugins import Deps, Resources
from astromesh.testing import ManualClock
from astromesh.types import SessionKey, Turn

US = "\x1f"


async def stored_by_the_version_before(url: str, sessions: int, ends: float = 0.0) -> None:
    """Sessions s0, s1 … of ann, each with a turn, as that version wrote them."""
    async with client.from_url(url) as server:
        for n in range(sessions):
            name, index = f"acme{US}support{US}s{n}", f"astromesh:o:acme{US}ann"
            about: Any = {
                "owner": "ann",
                "index": index,
                "created": "1",
                "updated": "1",
                "expires": str(ends),
            }
            await server.hset(f"astromesh:s:{name}", mapping=about)
            turn = orjson.dumps(("user", f"turn {n}", 1.0, "run_1", "complete", 0))
            await server.rpush(f"astromesh:t:{name}", turn)
            await server.zadd(f"astromesh:a:acme{US}support", {f"s{n}": 0})
            await server.zadd(index, {f"support{US}s{n}": 0})
            if ends:
                await server.zadd("astromesh:x", {name: ends})


async def opened(url: str, clock: ManualClock) -> tuple[RedisConversations, Resources]:
    resources = Resources()
    deps = Deps(clock=clock, resources=resources, redis_url=url)
    return await RedisConversations.open(RedisOptions(), deps), resources


async def test_sessions_of_the_version_before_are_found_and_go_on(redis_url: str) -> None:
    """More of them than one step of the migration takes; a second start finds nothing to do."""
    await stored_by_the_version_before(redis_url, 1200)
    for start in (1, 2):
        store, resources = await opened(redis_url, ManualClock())
        key = SessionKey("acme", "support", "s7", "ann")
        recalled = await store.recall(key, 10)
        assert (recalled.owner, recalled.turns[0].content) == ("ann", "turn 7")
        assert await store.append(key, "ann", [Turn("user", "more")]) == start + 1
        assert await store.info(key._replace(owner="bob")) is None
        assert len(await store.sessions("acme", "support", limit=2000)) == 1200
        assert len(await store.owned("acme", "ann", limit=2000)) == 1200
        await resources.close()


async def test_what_was_to_expire_expires(redis_url: str) -> None:
    clock = ManualClock()
    await stored_by_the_version_before(redis_url, 3, ends=clock.now() + 10)
    store, resources = await opened(redis_url, clock)
    assert await store.info(SessionKey("acme", "support", "s0", "ann")) is not None
    clock.advance(11)
    assert await store.expire(clock.now()) == 3
    async with client.from_url(redis_url) as server:
        assert [key async for key in server.scan_iter("astromesh:[stxo]:*")] == []
    await resources.close()
