"""Session leases in Redis. Every script is in `lua/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from astromesh.abc.clock import Clock
from astromesh.abc.leases import Held
from astromesh.storage.redis import Redis, Script
from astromesh.types import SessionKey

#: seconds after its end at which the server drops a lease that nobody gave back
_GRACE = 60.0
#: what the script `renew` says of a lease
_STATES: dict[int, bool | None] = {0: False, 1: True, -1: None}


class RedisLeases:
    """SessionLeases on the server of the turns.

    Args:
        scripts: source of a script by its name.
        name: the key of a session's lease.
    """

    shared = True

    def __init__(
        self,
        server: Redis,
        clock: Clock,
        prefix: str,
        scripts: Callable[[str], Script],
        name: Callable[[SessionKey], str],
    ) -> None:
        self._server, self._clock, self._prefix, self._name = server, clock, prefix, name
        self._take, self._renew = scripts("take"), scripts("renew")
        self._release, self._interrupt = scripts("release"), scripts("interrupt")

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing: the store is always shared."""

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()
        times = (now, now + seconds, int((seconds + _GRACE) * 1000))
        token = await self._server.write(self._take, (self._name(key),), self._prefix, holder, *times)
        return int(token) or None

    async def renew(self, held: Sequence[Held], seconds: float) -> tuple[bool | None, ...]:
        names = tuple(self._name(one.key) for one in held)
        times = (self._clock.now() + seconds, int((seconds + _GRACE) * 1000))
        tokens = (one.token for one in held)
        states = await self._server.write(self._renew, names, self._prefix, *times, *tokens)
        return tuple(_STATES[state] for state in states)

    async def release(self, held: Held) -> None:
        await self._server.write(self._release, (self._name(held.key),), self._prefix, held.token)

    async def interrupt(self, key: SessionKey) -> None:
        await self._server.write(self._interrupt, (self._name(key),))
