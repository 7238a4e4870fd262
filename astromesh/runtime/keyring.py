"""API keys as a server checks them: in memory, never more than a second behind the store.

Once a second one small query asks for the keys that were created or revoked since, by whatever process; a
request costs a hash and no query. Only a key that is not known makes a look at once, ten a second at most, so
that a new key works the moment it was made. Where the store does not answer, what was known goes on to hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hmac import compare_digest

import structlog

from astromesh.abc.clock import Clock
from astromesh.errors import StoreError
from astromesh.runtime.keys import PREFIX, Key, KeyStore, digest_of
from astromesh.types import CallerContext

#: seconds between two looks into the store
PERIOD = 1.0
#: least seconds between two looks because of a key that is not known
EAGER = 0.1
#: seconds within which the uses of a key count as one
COARSE = 60.0

log = structlog.get_logger("astromesh.keys")


@dataclass(slots=True)
class _Entry:
    digest: bytes
    expires_at: float
    caller: CallerContext
    used_at: float


class ApiKeys:
    """Tells who calls with a key (an `astromesh.api.auth.Authenticator`)."""

    def __init__(self, store: KeyStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._change = 0
        self._used: dict[str, float] = {}
        self._looking = asyncio.Lock()
        self._looked = -EAGER

    async def authenticate(self, token: str) -> CallerContext | None:
        """The caller of a key that is neither unknown, expired nor revoked, else None. In constant time."""
        prefix, _, rest = token.partition("_")
        if prefix != PREFIX:
            return None
        key_id = rest.partition("_")[0]
        entry = self._entries.get(key_id)
        if entry is None:
            await self._look()
            entry = self._entries.get(key_id)
        if entry is None or not compare_digest(entry.digest, digest_of(token)):
            return None
        now = self._clock.now()
        if 0 < entry.expires_at <= now:
            return None
        if now - entry.used_at >= COARSE:
            entry.used_at = self._used[key_id] = now
        return entry.caller

    async def refresh(self) -> None:
        """Takes in what was created or revoked since, and notes which keys were used.

        Raises:
            StoreError: the store does not answer.
        """
        for key in await self._store.changed_since(self._change):
            self._take(key)
        if self._used:
            used, self._used = self._used, {}
            await self._store.note_use(used.items())

    async def _look(self) -> None:
        """Refreshes, unless that was just done; who comes meanwhile waits for the same look."""
        async with self._looking:
            if self._clock.monotonic() - self._looked >= EAGER:
                self._looked = self._clock.monotonic()
                with suppress(StoreError):
                    await self.refresh()

    def _take(self, key: Key) -> None:
        self._change = key.change
        if key.revoked_at:
            self._entries.pop(key.id, None)
        else:
            self._entries[key.id] = _Entry(key.digest, key.expires_at, key.caller, key.last_used_at)


@asynccontextmanager
async def watching(store: KeyStore, clock: Clock) -> AsyncIterator[ApiKeys]:
    """The keys of a store, kept up to date for as long as the block lasts."""
    keys = ApiKeys(store, clock)
    await keys.refresh()
    task = asyncio.create_task(_keep_refreshing(keys, clock))
    try:
        yield keys
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_refreshing(keys: ApiKeys, clock: Clock) -> None:
    silent = False
    while True:
        await clock.sleep(PERIOD)
        try:
            await keys.refresh()
            silent = False
        except StoreError as error:  # the next look may find the store again
            if not silent:
                log.warning("keys_not_refreshed", error=str(error))
            silent = True
