"""What proves to a service who calls, where one key for all calls is not enough: signatures and tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, Self, TypeVar

from yarl import URL

from astromesh.errors import ProviderError
from astromesh.telemetry.clock import Clock

T = TypeVar("T")
#: a token is fetched anew so many seconds before it expires, beside the calls that still use it
EARLY_SECONDS = 300.0
#: seconds between two tries to replace a token that still holds
_RETRY_SECONDS = 10.0


class Authorizer(Protocol):
    """Headers that prove who calls, for each call."""

    async def headers(self, method: str, url: URL, body: bytes) -> Mapping[str, str]:
        """Returns the headers of one call.

        Raises:
            ProviderError: there are no credentials at the moment.
        """

    def reject(self) -> None:
        """Notes that the service has answered 401 to the newest headers."""


class Worker:
    """A thread for libraries that block: an async context manager."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class AccessToken(NamedTuple):
    """A token, and when it expires, in seconds of the clock."""

    text: str
    expires_at: float


class AccessTokens:
    """An access token that all calls share: an async context manager and an `Authorizer`.

    Calls that need a token wait for the same one. A token that expires soon is replaced while calls use it.

    Args:
        fetch: returns a new token; raises ProviderError.
        clock: of `AccessToken.expires_at`.
    """

    def __init__(self, fetch: Callable[[], Awaitable[AccessToken]], clock: Clock) -> None:
        self._fetch, self._clock = fetch, clock
        self._token: AccessToken | None = None
        self._fetching: asyncio.Task[AccessToken] | None = None
        self._next_try = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fetching is not None:
            self._fetching.cancel()

    async def headers(self, method: str, url: URL, body: bytes) -> Mapping[str, str]:
        return {"authorization": f"Bearer {await self._current()}"}

    def reject(self) -> None:
        self._token = None

    async def _current(self) -> str:
        now, token = self._clock.now(), self._token
        if token is None or token.expires_at <= now:
            # the next caller may still need what this one, if cancelled, has begun
            return (await asyncio.shield(self._begin())).text
        if token.expires_at - EARLY_SECONDS <= now and self._next_try <= now:
            self._next_try = now + _RETRY_SECONDS
            self._begin()
        return token.text

    def _begin(self) -> asyncio.Task[AccessToken]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._renew())
            self._fetching.add_done_callback(_take_note)
        return self._fetching

    async def _renew(self) -> AccessToken:
        token = await self._fetch()
        self._token = token
        return token


def _take_note(task: asyncio.Task[AccessToken]) -> None:
    """Reads the error of a task that nobody may wait for; callers have the token that still holds."""
    if not task.cancelled() and isinstance(task.exception(), ProviderError):
        return
