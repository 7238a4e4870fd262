"""Conversations in Redis or Valkey. Every script is in `lua/`; `common.lua` describes the keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, ClassVar, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.errors import InvalidInput
from astromesh.memory.base import (
    NO_SESSION,
    RecalledTurns,
    SessionInfo,
    SessionLease,
    Summary,
    lease_lost,
    no_session,
    session_info,
)
from astromesh.plugins import Deps
from astromesh.storage.migrations import expire_periodically
from astromesh.storage.redis import Redis, Script, shared_redis
from astromesh.telemetry.clock import Clock
from astromesh.types import SessionKey, Turn

# -- session leases ------------------------------------------------------------------------------------------

#: seconds after its end until the server deletes a lease that was not released
_LEASE_GRACE_SECONDS = 60.0
#: results of the script `renew`
_LEASE_STATES: dict[int, bool | None] = {0: False, 1: True, -1: None}


class RedisLeases:
    """SessionLeases on the server of the turns.

    Args:
        scripts: returns a script by its name.
        name: returns the key of a session's lease.
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
        """Does nothing: the store is always shared."""

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        now = self._clock.now()
        times = (now, now + seconds, int((seconds + _LEASE_GRACE_SECONDS) * 1000))
        token = await self._server.write(self._take, (self._name(key),), self._prefix, holder, *times)
        return int(token) or None

    async def renew(self, held: Sequence[SessionLease], seconds: float) -> tuple[bool | None, ...]:
        names = tuple(self._name(one.key) for one in held)
        times = (self._clock.now() + seconds, int((seconds + _LEASE_GRACE_SECONDS) * 1000))
        tokens = (one.token for one in held)
        states = await self._server.write(self._renew, names, self._prefix, *times, *tokens)
        return tuple(_LEASE_STATES[state] for state in states)

    async def release(self, held: SessionLease) -> None:
        await self._server.write(self._release, (self._name(held.key),), self._prefix, held.token)

    async def interrupt(self, key: SessionKey) -> None:
        await self._server.write(self._interrupt, (self._name(key),))


_SEPARATOR = "\x1f"
#: turns read in one round trip
_TURNS_AT_ONCE = 500
#: sessions deleted by one script; the server runs nothing else meanwhile
_CHUNK = 200
#: seconds after its end until the server deletes a session that no sweep has deleted
_GRACE = 86_400.0
#: result of `append` without the session's lease
_LEASE_LOST = -2


def _script(name: str) -> Script:
    folder = files("astromesh.memory.backends").joinpath("lua")
    return Script("\n".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("common", name)))


_APPEND, _RECALL, _PAGE, _SUMMARISE = map(_script, ("append", "recall", "page", "summarise"))
_LIST, _INFO, _OWNED = map(_script, ("list", "info", "owned"))
_ERASE, _ERASE_OWNER, _EXPIRE = map(_script, ("erase", "erase_owner", "expire"))
_VERSION, _MIGRATE = map(_script, ("version", "migrate"))
#: of the keys; "2": a session's id holds its principal
_CURRENT_VERSION = b"2"


class RedisOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: SecretStr = Field(
        SecretStr(""), description="redis://…, may hold a password; empty: redis.url of runtime.yaml."
    )
    prefix: str = Field(
        "astromesh", min_length=1, pattern=r"^[^\x00-\x1f:]+$", description="Begins every key."
    )


class RedisConversations:
    """A ConversationStore over one server.

    Args:
        prefix: begins every key, so that several installations may share a server.
    """

    Options: ClassVar[type[BaseModel]] = RedisOptions

    def __init__(self, server: Redis, clock: Clock, prefix: str = "astromesh") -> None:
        self._server = server
        self._clock = clock
        self._prefix = prefix
        self._is_current = False
        self._migrating = asyncio.Lock()
        self.leases = RedisLeases(server, clock, prefix, _script, self._lease)

    @classmethod
    async def open(cls, options: RedisOptions, deps: Deps) -> Self:
        """Raises: ConfigError: there is no URL."""
        server = await shared_redis(deps, options.url.get_secret_value())
        store: Self = await deps.resources.shared(
            (cls, id(server), options.prefix), lambda: cls._open_shared(server, deps.clock, options.prefix)
        )
        return store

    @classmethod
    @asynccontextmanager
    async def _open_shared(cls, server: Redis, clock: Clock, prefix: str) -> AsyncIterator[Self]:
        store = cls(server, clock, prefix)
        async with expire_periodically(store.expire, clock):
            yield store

    async def _migrate(self) -> None:
        """Renames the sessions of earlier versions, before the first use of the server.

        Raises:
            StoreError: the server does not answer; the next use tries again.
        """
        async with self._migrating:
            if self._is_current:
                return
            if await self._server.read(_VERSION, (), self._prefix) != _CURRENT_VERSION:
                cursor = b"0"
                while (cursor := await self._server.write(_MIGRATE, (), self._prefix, cursor)) != b"0":
                    pass
            self._is_current = True

    async def _read(self, script: Script, keys: Sequence[str], *bound: str | bytes | float) -> Any:
        if not self._is_current:
            await self._migrate()
        return await self._server.read(script, keys, *bound)

    async def _write(self, script: Script, keys: Sequence[str], *bound: str | bytes | float) -> Any:
        if not self._is_current:
            await self._migrate()
        return await self._server.write(script, keys, *bound)

    async def recall(self, key: SessionKey, limit: int) -> RecalledTurns:
        found = await self._read(_RECALL, self._keys(key), max(limit, 0), self._clock.now())
        if found is None:
            return NO_SESSION
        owner, last_seq, text, upto, turns = found
        summary = Summary(text.decode(), int(upto)) if text is not None else None
        return RecalledTurns(
            _decode_turns(turns, last_seq - len(turns) + 1), summary, owner.decode(), last_seq
        )

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        now = self._clock.now()
        left = int((expires_at - now + _GRACE) * 1000) if expires_at else 0
        names: tuple[str | float, ...] = (self._prefix, *_names(*key.columns, owner), token)
        times = (now, expires_at, max(left, 0))
        keys = (*self._keys(key), self._lease(key))
        if not self._is_current:
            await self._migrate()
        last: int = await self._server.decide(_APPEND, keys, *names, *times, *_encode_turns(turns, now))
        if last == _LEASE_LOST:
            raise lease_lost(key)
        if last < 0:
            raise no_session(key)
        return last

    async def written(self, key: SessionKey, run_id: str) -> bool:
        after = 0
        while turns := await self.page(key, after=after, limit=_TURNS_AT_ONCE):
            if any(turn.run_id == run_id for turn in turns):
                return True
            after = turns[-1].seq
        return False

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        bound = (summary.text, summary.upto, self._clock.now())
        await self._write(_SUMMARISE, self._keys(key), *bound)

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        found = await self._read(_PAGE, self._keys(key), after, limit, self._clock.now())
        return _decode_turns(found, after + 1)

    async def info(self, key: SessionKey) -> SessionInfo | None:
        found = await self._read(_INFO, self._keys(key), self._clock.now())
        return _session_info(key.columns[2].encode(), *found) if found else None

    async def sessions(
        self, tenant: str, agent: str, *, owner: str | None = None, after: str = "", limit: int = 50
    ) -> tuple[SessionInfo, ...]:
        names = _names(tenant, agent, owner or "", after)
        limits = (limit, self._clock.now(), int(owner is not None))
        found = await self._read(_LIST, (), self._prefix, *names, *limits)
        return tuple(_session_info(*row) for row in found)

    async def owned(
        self, tenant: str, owner: str, *, after: SessionKey | None = None, limit: int = 50
    ) -> tuple[SessionKey, ...]:
        last = _SEPARATOR.join(after.columns[1:]) if after else ""
        names = _names(tenant, owner)
        found = await self._read(_OWNED, (), self._prefix, *names, last, limit, self._clock.now())
        return tuple(SessionKey.of_columns(tenant, *member.decode().split(_SEPARATOR)) for member in found)

    async def erase(self, key: SessionKey) -> bool:
        return bool(await self._write(_ERASE, (), self._prefix, *_names(*key.columns)))

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._delete_in_chunks(_ERASE_OWNER, *_names(tenant, owner))

    async def expire(self, now: float) -> int:
        return await self._delete_in_chunks(_EXPIRE, now)

    async def ping(self) -> None:
        await self._server.ping()

    async def close(self) -> None:
        """Does nothing: the pool closes with the runtime's resources."""

    async def _delete_in_chunks(self, script: Script, *bound: str | float) -> int:
        total = 0
        while count := await self._write(script, (), self._prefix, *bound, _CHUNK):
            total += count
        return total

    def _keys(self, key: SessionKey) -> tuple[str, str]:
        name = _SEPARATOR.join(_names(*key.columns))
        return f"{self._prefix}:s:{name}", f"{self._prefix}:t:{name}"

    def _lease(self, key: SessionKey) -> str:
        return f"{self._prefix}:l:{_SEPARATOR.join(_names(*key.columns))}"


def _names(*names: str) -> tuple[str, ...]:
    if any(_SEPARATOR in name for name in names):
        raise InvalidInput("The name of a session, tenant or principal contains a control character.")
    return names


def _encode_turns(turns: Sequence[Turn], now: float) -> list[bytes]:
    try:
        return [orjson.dumps(_turn_fields(turn, now)) for turn in turns]
    except orjson.JSONEncodeError as error:
        raise InvalidInput("The text contains half of a surrogate pair, which is not a character.") from error


def _turn_fields(turn: Turn, now: float) -> tuple[Any, ...]:
    """A turn in the order of its fields, without its number. Older versions read turns without an author."""
    created = round(turn.created_at or now, 3)
    fields = (turn.role, turn.content, created, turn.run_id, turn.status, turn.tokens)
    return (*fields, turn.author) if turn.author else fields


def _decode_turns(packed: Sequence[bytes], first: int) -> tuple[Turn, ...]:
    rows = map(orjson.loads, packed)
    return tuple(Turn(role, text, seq, *rest) for seq, (role, text, *rest) in enumerate(rows, first))


def _session_info(stored_id: bytes, owner: bytes, turns: int, created: bytes, updated: bytes) -> SessionInfo:
    return session_info(stored_id.decode(), owner.decode(), turns, float(created), float(updated))
