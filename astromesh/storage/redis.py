"""A Redis (or Valkey) server: one pool per URL and process, used through Lua scripts only.

A script is atomic, takes one round trip, and is sent once per server. A call waits for an unavailable server
until its deadline. Reads are retried, because repeating them is harmless. Writes are not retried.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import TimeoutError as Silent
from redis.maint_notifications import MaintNotificationsConfig

from astromesh.errors import AstromeshError, ConfigError, InvalidInput, StoreError, StoreUnavailable
from astromesh.plugins import Deps
from astromesh.storage.retry import NOT_TEXT, NotSent, ShieldedTasks, retry_until_deadline

SCHEMES = ("redis", "rediss", "unix")
POOL_SIZE = 32
#: a log filter takes `://USER:` for the start of a password
_NO_URL = "Redis needs a URL redis://HOST (with :PORT and /NUMBER), e.g. as redis.url of runtime.yaml."
#: seconds after which an idle connection is checked
_CHECK_SECONDS = 30

DriverErrors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]

#: work with one connection
Session: TypeAlias = Callable[[AbstractConnection], Awaitable[Any]]

#: first match wins
_MESSAGES: tuple[tuple[DriverErrors, type[AstromeshError], str], ...] = (
    (AuthenticationError, StoreError, "rejects the login: check the user and the password in redis.url"),
    ((AuthorizationError, NoPermissionError), StoreError, "denies a permission that astromesh needs"),
    (BusyLoadingError, StoreUnavailable, "is loading its data; try again"),
    (OutOfMemoryError, StoreUnavailable, "is full: raise its maxmemory"),
    (ReadOnlyError, StoreUnavailable, "is read-only at present; try again"),
    ((TimeoutError, Silent), StoreUnavailable, "did not answer in time; try again"),
    ((Broken, OSError), StoreUnavailable, "cannot be reached; try again"),
)
_DRIVER_ERRORS = (RedisError, OSError, UnicodeEncodeError)
_LOGIN_ERRORS = (AuthenticationError, AuthorizationError)


class Script:
    """A Lua script. The server runs one at a time. A script that fails keeps its changes up to the error.

    Args:
        text: its source, sent once to a server that does not know it.
    """

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Redis:
    """An async context manager; used by one event loop.

    Args:
        url: redis://…, rediss://… or unix://…
        deadline: seconds of a call, including the waits for the server and for a free connection.
    """

    def __init__(self, url: str, *, deadline: float = 5.0) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or 6379
        except ValueError:  # its message repeats parts of the URL
            raise ConfigError(_NO_URL) from None
        if parts.scheme not in SCHEMES:
            raise ConfigError(_NO_URL)
        self.name = f"{parts.hostname or 'localhost'}:{port}"
        self._url, self._deadline = url, deadline
        self._pool: BlockingConnectionPool | None = None
        self._writes = ShieldedTasks()

    async def __aenter__(self) -> Self:
        # the pool connects at the first call, so that the server may start later
        self._pool = BlockingConnectionPool.from_url(
            self._url,
            max_connections=POOL_SIZE,
            timeout=self._deadline,
            socket_timeout=self._deadline,
            socket_connect_timeout=self._deadline,
            health_check_interval=_CHECK_SECONDS,
            retry=Retry(NoBackoff(), 0),  # the library would also repeat writes
            client_name="astromesh",
            # with these, a pool returns connections that the server has closed
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._writes.settle()
        pool, self._pool = self._opened, None
        await pool.aclose()

    async def read(self, script: Script, keys: Sequence[str], *args: str | bytes | float) -> Any:
        """Returns the result of a script. Repeats it if the connection breaks.

        Raises:
            StoreUnavailable: the server did not answer before the deadline.
            StoreError: it rejected the command.
        """
        return await self._do(_evaluation(script, keys, args), _is_away)

    async def write(self, script: Script, keys: Sequence[str], *args: str | bytes | float) -> Any:
        """Executes a script that writes and returns its result. Cancelling the caller does not stop it.

        Raises:
            StoreUnavailable: the server is unavailable. If the connection broke during the write, it is
                unknown whether the script was executed.
        """
        return await self._writes.run(self._do(_evaluation(script, keys, args), _was_not_done))

    async def decide(self, script: Script, keys: Sequence[str], *args: str | bytes | float) -> Any:
        """Does what `write` does. A cancelled caller still receives the result."""
        return await self._writes.finish(self._do(_evaluation(script, keys, args), _was_not_done))

    async def ping(self) -> None:
        """Raises StoreUnavailable if the server does not answer."""
        await self._do(_ping, _is_away)

    @property
    def _opened(self) -> BlockingConnectionPool:
        if self._pool is None:
            raise StoreUnavailable(f"The connection to {self.name} is closed.")
        return self._pool

    async def _do(self, work: Session, may_retry: Callable[[BaseException], bool]) -> Any:
        try:
            return await retry_until_deadline(
                partial(self._once, work), _DRIVER_ERRORS, may_retry, self._deadline
            )
        except _DRIVER_ERRORS as error:
            raise translate_redis_error(error, self.name) from error

    async def _once(self, work: Session) -> Any:
        pool = self._opened
        try:
            connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        except _DRIVER_ERRORS as error:
            raise NotSent(error) from error
        try:
            return await work(connection)
        except (RedisError, OSError, asyncio.CancelledError) as error:
            if not isinstance(error, ResponseError):  # it may still receive the answer of this call
                await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)


def _evaluation(script: Script, keys: Sequence[str], args: Sequence[str | bytes | float]) -> Session:
    async def evaluate(connection: AbstractConnection) -> Any:
        try:
            return await _send_command(connection, "EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await _send_command(connection, "EVAL", script.text, len(keys), *keys, *args)

    return evaluate


async def _send_command(connection: AbstractConnection, *words: str | bytes | float) -> Any:
    await connection.send_command(*words)
    return await connection.read_response()


async def _ping(connection: AbstractConnection) -> Any:
    return await _send_command(connection, "PING")


def _is_away(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later."""
    cause = error.cause if isinstance(error, NotSent) else error
    return isinstance(cause, Broken | Silent | OSError) and not isinstance(cause, _LOGIN_ERRORS)


def _was_not_done(error: BaseException) -> bool:
    """Whether a write may be sent again: it was not sent, or the server is loading its data."""
    return isinstance(error, BusyLoadingError) or (isinstance(error, NotSent) and _is_away(error))


def translate_redis_error(error: BaseException, name: str) -> AstromeshError:
    """Args: name: host and port, without the password."""
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput(NOT_TEXT)
    for foreign, kind, reason in _MESSAGES:
        if isinstance(error, foreign):
            return kind(f"The Redis server {name} {reason}.")
    reason = str(error).splitlines()[0][:200] if isinstance(error, ResponseError) else type(error).__name__
    return StoreError(f"The Redis server {name} rejected a command: {reason}")


async def shared_redis(deps: Deps, url: str = "") -> Redis:
    """Returns the server of a URL, with one pool per runtime.

    Args:
        url: redis://…; empty for `redis.url` of runtime.yaml.

    Raises:
        ConfigError: no URL is set, or it is not one of Redis.
    """
    found = url or deps.redis_url
    opened: Redis = await deps.resources.shared(("redis", found), lambda: Redis(found))
    return opened
