"""API keys: made, kept as hashes, revoked (issue 2, safe by default; reliability.md S2, S7).

A token is `am_ID_SECRET`. The secret has 256 random bits: nobody can search through them, so that a plain
SHA-256 is enough; slow hashes are for passwords, which people choose. The token is shown once, when made.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, Self

from astromesh.abc.clock import Clock
from astromesh.errors import Conflict, InvalidInput, NotFound
from astromesh.storage.database import Database
from astromesh.storage.migrations import Schema, queries
from astromesh.types import CallerContext
from astromesh.unseen import CONTROL

_PACKAGE = "astromesh.runtime"
SCHEMA = Schema("keys", _PACKAGE, "sql/keys")
SQL = queries(_PACKAGE, "sql/keys.sql")

_CONTROL = re.compile(f"[{CONTROL}]")
PREFIX = "am"
TENANT = "default"
DAY = 86_400.0
#: a hundred years; beyond the year 9999 there are no dates
MOST_DAYS = 36_500
_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
_SECRET_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH, _SECRET_LENGTH = 12, 43


@dataclass(frozen=True, slots=True)
class Key:
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


class NewKey(NamedTuple):
    """What a key is to be.

    Args:
        user_id: the principal that calls with it and owns its sessions; empty: the key itself. Keys with the
            same one are the same principal, so that a key can be replaced.
        days: until it expires; 0 for never.
    """

    name: str
    scopes: frozenset[str]
    user_id: str = ""
    tenant_id: str = TENANT
    days: float = 0.0


class KeyStore:
    """The keys in a database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @classmethod
    async def open(cls, database: Database, clock: Clock) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        await database.migrate(SCHEMA)
        return cls(database, clock)

    async def create(self, wanted: NewKey) -> tuple[Key, str]:
        """A new key and its token, which is kept nowhere.

        Raises:
            InvalidInput: control characters, no name or scope, or expiring in the past or beyond `MOST_DAYS`.
        """
        if any(map(_CONTROL.search, (wanted.name, wanted.user_id, wanted.tenant_id))):
            raise InvalidInput("The name of a key, user or tenant holds no control characters.")
        if not wanted.name.strip() or not wanted.scopes or not 0 <= wanted.days <= MOST_DAYS:
            raise InvalidInput(
                "A key needs a name, at least one scope, and to expire after now, "
                f"in {MOST_DAYS} days at most (0: never)."
            )
        now = self._clock.now()
        key_id, secret = _random(_ID_LETTERS, _ID_LENGTH), _random(_SECRET_LETTERS, _SECRET_LENGTH)
        token = f"{PREFIX}_{key_id}_{secret}"
        key = Key(
            key_id, wanted.name, digest_of(token), wanted.scopes, wanted.user_id or f"key:{key_id}",
            wanted.tenant_id or TENANT, now, now + wanted.days * DAY if wanted.days else 0.0,
        )  # fmt: skip
        await self._database.write(_add, key)
        return key, token

    async def list(self) -> tuple[Key, ...]:
        """Every key, the oldest first, revoked ones too."""
        return await self._database.read(_select, ("all", ()))

    async def changed_since(self, change: int) -> tuple[Key, ...]:
        """Keys created or revoked after a `Key.change`, in that order."""
        return await self._database.read(_select, ("changed", (change,)))

    async def revoke(self, id: str) -> None:
        """Raises: NotFound: there is no such key. Conflict: it is revoked already."""
        await self._database.write(_revoke, (id, self._clock.now()))

    async def note_use(self, used: Iterable[tuple[str, float]]) -> None:
        """Args: used: ids with seconds since the epoch."""
        await self._database.write(_note_use, tuple(used))


def digest_of(token: str) -> bytes:
    """SHA-256 of the whole token."""
    return sha256(token.encode(errors="replace")).digest()


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


# -- in the database's threads -------------------------------------------------------------------------------


def _add(connection: sqlite3.Connection, keys: Sequence[Key]) -> Sequence[None]:
    for key in keys:
        connection.execute(
            SQL["add"],
            (key.id, key.name, key.digest, " ".join(sorted(key.scopes)), key.user_id, key.tenant_id,
             key.created_at, key.expires_at),
        )  # fmt: skip
    return [None] * len(keys)


def _select(
    connection: sqlite3.Connection, items: Sequence[tuple[str, tuple[object, ...]]]
) -> Sequence[tuple[Key, ...]]:
    return [tuple(map(_key, connection.execute(SQL[name], bound))) for name, bound in items]


def _key(row: Sequence[Any]) -> Key:
    key_id, name, digest, scopes, *rest = row
    return Key(key_id, name, digest, frozenset(scopes.split()), *rest)


def _revoke(
    connection: sqlite3.Connection, items: Sequence[tuple[str, float]]
) -> Sequence[BaseException | None]:
    return [_revoked(connection, *item) for item in items]


def _revoked(connection: sqlite3.Connection, id: str, now: float) -> BaseException | None:
    if connection.execute(SQL["revoke"], (id, now)).rowcount:
        return None
    if connection.execute(SQL["exists"], (id,)).fetchone():
        return Conflict(f"The key {id!r} is revoked already.")
    return NotFound(f"There is no key {id!r}; 'astromesh keys list' shows them.")


def _note_use(
    connection: sqlite3.Connection, items: Sequence[tuple[tuple[str, float], ...]]
) -> Sequence[None]:
    for used in items:
        connection.executemany(SQL["used"], used)
    return [None] * len(items)
