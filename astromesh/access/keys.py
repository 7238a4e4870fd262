"""API keys: created, stored as hashes, revoked, and checked from memory (issue 2; reliability.md S2, S7)."""

from __future__ import annotations

import asyncio
import re
import secrets
import sqlite3
import string
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NamedTuple, Self

import structlog

from astromesh.errors import Conflict, InvalidInput, NotFound, StoreError
from astromesh.storage.migrations import Schema, queries
from astromesh.storage.sqlite import Database
from astromesh.telemetry.clock import Clock
from astromesh.text import CONTROL_CHARACTERS
from astromesh.types import CallerContext

_PACKAGE = "astromesh.access"


SCHEMA = Schema("keys", _PACKAGE, "sql/keys")


SQL = queries(_PACKAGE, "sql/keys.sql")


_CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")


TOKEN_PREFIX = "am"  # noqa: S105 (how every key begins, no secret)


DEFAULT_TENANT = "default"


DAY_SECONDS = 86_400.0


#: a hundred years; beyond the year 9999 there are no dates
MAX_DAYS = 36_500


_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"


_SECRET_LETTERS = string.ascii_letters + string.digits


_ID_LENGTH, _SECRET_LENGTH = 12, 43


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key, without its secret.

    Args:
        created_at, expires_at, revoked_at, last_used_at: seconds since the epoch, 0 for never; the last
            one is kept to the minute.
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
        """Who calls with this key."""
        return CallerContext(
            self.user_id, self.tenant_id, scopes=self.scopes, metadata={"key_id": self.id, "key": self.name}
        )

    def state(self, now: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= now else "active"


class ApiKeyRequest(NamedTuple):
    """What a key is to be.

    Args:
        user_id: the principal that calls with it and owns its sessions; empty: the key itself. Keys with the
            same one are the same principal, so that a key can be replaced.
        days: until it expires; 0 for never.
    """

    name: str
    scopes: frozenset[str]
    user_id: str = ""
    tenant_id: str = DEFAULT_TENANT
    days: float = 0.0


class ApiKeyStore:
    """The keys in a database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @classmethod
    async def open(cls, database: Database, clock: Clock) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        await database.migrate(SCHEMA)
        return cls(database, clock)

    async def create(self, request: ApiKeyRequest) -> tuple[ApiKey, str]:
        """A new key and its token, which is kept nowhere.

        Raises:
            InvalidInput: control characters, no name or scope, or expiring in the past or beyond `MAX_DAYS`.
        """
        if any(map(_CONTROL.search, (request.name, request.user_id, request.tenant_id))):
            raise InvalidInput("The name of a key, user or tenant holds no control characters.")
        if not request.name.strip() or not request.scopes or not 0 <= request.days <= MAX_DAYS:
            raise InvalidInput(
                "A key needs a name, at least one scope, and to expire after now, "
                f"in {MAX_DAYS} days at most (0: never)."
            )
        now = self._clock.now()
        key_id, secret = _random_text(_ID_LETTERS, _ID_LENGTH), _random_text(_SECRET_LETTERS, _SECRET_LENGTH)
        token = f"{TOKEN_PREFIX}_{key_id}_{secret}"
        key = ApiKey(
            key_id, request.name, token_digest(token), request.scopes, request.user_id or f"key:{key_id}",
            request.tenant_id or DEFAULT_TENANT, now,
            now + request.days * DAY_SECONDS if request.days else 0.0,
        )  # fmt: skip
        await self._database.write(_add, key)
        return key, token

    async def list(self) -> tuple[ApiKey, ...]:
        """Every key, the oldest first, revoked ones too."""
        return await self._database.read(_select, ("all", ()))

    async def changed_since(self, change: int) -> tuple[ApiKey, ...]:
        """Keys created or revoked after a `Key.change`, in that order."""
        return await self._database.read(_select, ("changed", (change,)))

    async def revoke(self, id: str) -> None:
        """Raises: NotFound: there is no such key. Conflict: it is revoked already."""
        await self._database.write(_revoke, (id, self._clock.now()))

    async def record_use(self, uses: Iterable[tuple[str, float]]) -> None:
        """Args: used: ids with seconds since the epoch."""
        await self._database.write(_record_use, tuple(uses))


def token_digest(token: str) -> bytes:
    """SHA-256 of the whole token."""
    return sha256(token.encode(errors="replace")).digest()


def _random_text(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


# -- in the database's threads -------------------------------------------------------------------------------
def _add(connection: sqlite3.Connection, keys: Sequence[ApiKey]) -> Sequence[None]:
    for key in keys:
        connection.execute(
            SQL["add"],
            (key.id, key.name, key.digest, " ".join(sorted(key.scopes)), key.user_id, key.tenant_id,
             key.created_at, key.expires_at),
        )  # fmt: skip
    return [None] * len(keys)


def _select(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[tuple[ApiKey, ...]]:
    return [tuple(map(_from_row, connection.execute(SQL[name], bound))) for name, bound in items]


def _from_row(row: Sequence[Any]) -> ApiKey:
    key_id, name, digest, scopes, *rest = row
    return ApiKey(key_id, name, digest, frozenset(scopes.split()), *rest)


def _revoke(
    connection: sqlite3.Connection, items: Sequence[tuple[str, float]]
) -> Sequence[BaseException | None]:
    return [_revoke_one(connection, *item) for item in items]


def _revoke_one(connection: sqlite3.Connection, id: str, now: float) -> BaseException | None:
    if connection.execute(SQL["revoke"], (id, now)).rowcount:
        return None
    if connection.execute(SQL["exists"], (id,)).fetchone():
        return Conflict(f"The key {id!r} is revoked already.")
    return NotFound(f"There is no key {id!r}; 'astromesh keys list' shows them.")


def _record_use(
    connection: sqlite3.Connection, items: Sequence[tuple[tuple[str, float], ...]]
) -> Sequence[None]:
    for used in items:
        connection.executemany(SQL["used"], used)
    return [None] * len(items)


# API keys as a server checks them: in memory, never more than a second behind the store.
#
# Once a second one small query asks for the keys that were created or revoked since, by whatever process; a
# request costs a hash and no query. Only a key that is not known makes a look at once, ten a second at
# most, so
# that a new key works the moment it was made. Where the store does not answer, what was known goes on to
# hold.

#: seconds between two looks into the store
REFRESH_SECONDS = 1.0


#: least seconds between two looks because of a key that is not known
MIN_REFRESH_SECONDS = 0.1


#: seconds within which the uses of a key count as one
USE_INTERVAL_SECONDS = 60.0


log = structlog.get_logger("astromesh.keys")


@dataclass(slots=True)
class _CachedKey:
    digest: bytes
    expires_at: float
    caller: CallerContext
    used_at: float


class ApiKeyAuthenticator:
    """Tells who calls with a key (an `astromesh.api.auth.Authenticator`)."""

    def __init__(self, store: ApiKeyStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: dict[str, _CachedKey] = {}
        self._change = 0
        self._uses: dict[str, float] = {}
        self._refresh_lock = asyncio.Lock()
        self._refreshed_at = -MIN_REFRESH_SECONDS

    async def authenticate(self, token: str) -> CallerContext | None:
        """The caller of a key that is neither unknown, expired nor revoked, else None. In constant time."""
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
        """Takes in what was created or revoked since, and notes which keys were used.

        Raises:
            StoreError: the store does not answer.
        """
        for key in await self._store.changed_since(self._change):
            self._apply_change(key)
        if self._uses:
            used, self._uses = self._uses, {}
            await self._store.record_use(used.items())

    async def _refresh_for_unknown_key(self) -> None:
        """Refreshes, unless that was just done; who comes meanwhile waits for the same look."""
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
    """The keys of a store, kept up to date for as long as the block lasts."""
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
        except StoreError as error:  # the next look may find the store again
            if not silent:
                log.warning("keys_not_refreshed", error=str(error))
            silent = True
