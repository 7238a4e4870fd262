"""API keys: created, stored as hashes, revoked, and checked in memory."""

from __future__ import annotations

import asyncio
import re
import secrets
import string
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NamedTuple, Self

from astromesh.errors import Conflict, InvalidInput, NotFound, StoreError
from astromesh.logs import get_logger
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.queries import Transaction
from astromesh.storage.sqlite import Database, SqliteQueries
from astromesh.telemetry.clock import Clock
from astromesh.text import CONTROL_CHARACTERS
from astromesh.types import DEFAULT_TENANT, CallerContext, JsonObject

_PACKAGE = "astromesh.access"
SCHEMA = Schema("keys", _PACKAGE, "sql/keys")
_STATEMENTS = queries(_PACKAGE, "sql/keys.sql")
_CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")
TOKEN_PREFIX = "am"  # noqa: S105 (the first letters of every key, no secret)
DAY_SECONDS = 86_400.0
#: a hundred years; beyond the year 9999 there are no dates
MAX_DAYS = 36_500
#: the last second of a datetime; older files may hold keys that live longer
_LAST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()
_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
_SECRET_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH, _SECRET_LENGTH = 12, 43


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key, without its secret.

    Args:
        created_at, expires_at, revoked_at, last_used_at: seconds since the epoch, 0 for never; the last
            one is exact to the minute.
        change: position among all creations and revocations.
    """

    id: str
    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[str]
    user_id: str
    tenant_id: str
    created_at: float
    expires_at: float = 0.0
    revoked_at: float = 0.0
    last_used_at: float = 0.0
    change: int = 0

    @property
    def caller(self) -> CallerContext:
        """Returns the caller that this key identifies."""
        return CallerContext(
            self.user_id, self.tenant_id, scopes=self.scopes, metadata={"key_id": self.id, "key": self.name}
        )

    def state(self, now: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= now else "active"


def key_json(key: ApiKey, now: float) -> JsonObject:
    """Returns a key as the API and the commands show it."""
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(now),
        "user": key.user_id,
        "tenant": key.tenant_id,
        "scopes": sorted(key.scopes),
        "created_at": _iso(key.created_at),
        "expires_at": _iso(key.expires_at),
        "revoked_at": _iso(key.revoked_at),
        "last_used_at": _iso(key.last_used_at),
    }


def _iso(seconds: float) -> str | None:
    return datetime.fromtimestamp(min(seconds, _LAST), UTC).isoformat(timespec="seconds") if seconds else None


class ApiKeyRequest(NamedTuple):
    """A key to create.

    Args:
        user_id: the principal that calls with it and owns its sessions; empty: that of earlier keys of this
            name and tenant, else `key:NAME`. Keys with the same `user_id` are one principal, so that a key
            can be replaced.
        days: until it expires; 0 for never.
    """

    name: str
    scopes: frozenset[str]
    user_id: str = ""
    tenant_id: str = DEFAULT_TENANT
    days: float = 0.0


class ApiKeyStore:
    """The keys in a SQLite file."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._queries = SqliteQueries(database, _STATEMENTS)
        self._clock = clock

    @classmethod
    async def open(cls, database: Database, clock: Clock) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: a newer astromesh wrote it."""
        await database.migrate(SCHEMA)
        return cls(database, clock)

    async def create(self, request: ApiKeyRequest) -> tuple[ApiKey, str]:
        """Returns a new key and its token, which is stored nowhere.

        Raises:
            InvalidInput: there are control characters, no name or no scope, or the key would expire in the
                past or after more than `MAX_DAYS`.
        """
        if any(map(_CONTROL.search, (request.name, request.user_id, request.tenant_id))):
            raise InvalidInput("The name of a key, user or tenant must contain no control characters.")
        if not request.name.strip() or not request.scopes or not 0 <= request.days <= MAX_DAYS:
            raise InvalidInput(
                "A key needs a name, at least one scope, and a lifetime of more than 0 "
                f"and at most {MAX_DAYS} days (0: it never expires)."
            )
        now = self._clock.now()
        key_id, secret = _random_text(_ID_LETTERS, _ID_LENGTH), _random_text(_SECRET_LETTERS, _SECRET_LENGTH)
        token = f"{TOKEN_PREFIX}_{key_id}_{secret}"
        tenant = request.tenant_id or DEFAULT_TENANT
        user = request.user_id or await self._subject(request.name, tenant)
        key = ApiKey(
            key_id, request.name, token_digest(token), request.scopes, user, tenant, now,
            now + request.days * DAY_SECONDS if request.days else 0.0,
        )  # fmt: skip
        await self._queries.write(
            "add", key.id, key.name, key.digest, " ".join(sorted(key.scopes)), key.user_id, key.tenant_id,
            key.created_at, key.expires_at, synced=True,
        )  # fmt: skip
        return key, token

    async def _subject(self, name: str, tenant: str) -> str:
        """Returns the principal of a key that names none: a key that replaces another finds its sessions.

        Keys of earlier versions have the principal `key:ID`, which the next key of their name inherits.
        """
        rows = await self._queries.read("subject", name, tenant)
        return str(rows[0][0]) if rows else f"key:{name}"

    async def list(self) -> tuple[ApiKey, ...]:
        """Returns every key, the oldest first, revoked ones too."""
        return tuple(map(_from_row, await self._queries.read("all")))

    async def changed_since(self, change: int) -> tuple[ApiKey, ...]:
        """Returns the keys that were created or revoked after an `ApiKey.change`, in that order."""
        return tuple(map(_from_row, await self._queries.read("changed", change)))

    async def revoke(self, id: str) -> None:
        """Raises: NotFound: there is no such key. Conflict: it is already revoked."""
        now = self._clock.now()

        async def revoke(tx: Transaction) -> None:
            if await tx.execute("revoke", id, now):
                return
            if await tx.fetch("exists", id):
                raise Conflict(f"The key {id!r} is already revoked.")
            raise NotFound(f"There is no key {id!r}. List the keys with `astromesh keys list`.")

        await self._queries.transact(revoke, synced=True)

    async def record_use(self, uses: Iterable[tuple[str, float]]) -> None:
        """Args: uses: ids with seconds since the epoch."""

        async def record(tx: Transaction) -> None:
            for key_id, used_at in uses:
                await tx.execute("used", key_id, used_at)

        await self._queries.transact(record)


def token_digest(token: str) -> bytes:
    """SHA-256 of the whole token."""
    return sha256(token.encode(errors="replace")).digest()


def _random_text(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


def _from_row(row: Iterable[Any]) -> ApiKey:
    key_id, name, digest, scopes, *rest = row
    return ApiKey(key_id, name, digest, frozenset(scopes.split()), *rest)


# -- checking keys -------------------------------------------------------------------------------------------

#: seconds between two refreshes
REFRESH_SECONDS = 1.0
#: least seconds between two refreshes for unknown keys
MIN_REFRESH_SECONDS = 0.1
#: seconds within which the uses of a key count as one
USE_INTERVAL_SECONDS = 60.0
log = get_logger("astromesh.keys")


@dataclass(slots=True)
class _CachedKey:
    digest: bytes
    expires_at: float
    caller: CallerContext
    used_at: float


class ApiKeyAuthenticator:
    """Authenticates callers by their keys (an `astromesh.api.auth.Authenticator`).

    The keys are in memory. A request costs a hash and no query: once per second, one query reads the keys
    that any process has created or revoked since. Only an unknown key causes a refresh at once, at most ten
    per second, so that a new key works immediately. While the store does not answer, known keys stay valid.
    """

    def __init__(self, store: ApiKeyStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._entries: dict[str, _CachedKey] = {}
        self._change = 0
        self._uses: dict[str, float] = {}
        self._refresh_lock = asyncio.Lock()
        self._refreshed_at = -MIN_REFRESH_SECONDS

    async def authenticate(self, token: str) -> CallerContext | None:
        """Returns the caller of a valid key; None if it is unknown, expired or revoked.

        The comparison takes constant time.
        """
        prefix, _, rest = token.partition("_")
        if prefix != TOKEN_PREFIX:
            return None
        key_id = rest.partition("_")[0]
        entry = self._entries.get(key_id)
        if entry is None:
            await self._refresh_for_unknown_key()
            entry = self._entries.get(key_id)
        if entry is None or not compare_digest(entry.digest, token_digest(token)):
            return None
        now = self._clock.now()
        if 0 < entry.expires_at <= now:
            return None
        if now - entry.used_at >= USE_INTERVAL_SECONDS:
            entry.used_at = self._uses[key_id] = now
        return entry.caller

    async def refresh(self) -> None:
        """Reads the keys that were created or revoked since the last refresh, and stores which were used.

        Raises:
            StoreError: the store does not answer.
        """
        for key in await self.store.changed_since(self._change):
            self._apply_change(key)
        if self._uses:
            used, self._uses = self._uses, {}
            await self.store.record_use(used.items())

    async def _refresh_for_unknown_key(self) -> None:
        """Refreshes, unless that has just happened. Concurrent callers wait for the same refresh."""
        async with self._refresh_lock:
            if self._clock.monotonic() - self._refreshed_at >= MIN_REFRESH_SECONDS:
                self._refreshed_at = self._clock.monotonic()
                with suppress(StoreError):
                    await self.refresh()

    def _apply_change(self, key: ApiKey) -> None:
        self._change = key.change
        if key.revoked_at:
            self._entries.pop(key.id, None)
        else:
            self._entries[key.id] = _CachedKey(key.digest, key.expires_at, key.caller, key.last_used_at)


@asynccontextmanager
async def open_authenticator(store: ApiKeyStore, clock: Clock) -> AsyncIterator[ApiKeyAuthenticator]:
    """The keys of a store, refreshed every second until the block ends."""
    keys = ApiKeyAuthenticator(store, clock)
    await keys.refresh()
    task = asyncio.create_task(_refresh_forever(keys, clock))
    try:
        yield keys
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _refresh_forever(keys: ApiKeyAuthenticator, clock: Clock) -> None:
    silent = False
    while True:
        await clock.sleep(REFRESH_SECONDS)
        try:
            await keys.refresh()
            silent = False
        except StoreError as error:  # the next refresh tries again
            if not silent:
                log.warning("keys_not_refreshed", error=str(error))
            silent = True
