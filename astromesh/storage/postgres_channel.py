"""A channel of PostgreSQL (LISTEN and NOTIFY): one process tells all others that something has a new number.

A notification has a name and a number, never data. It may be lost with its connection. So who waits for one
looks at the tables when the connection is made or lost, and polls while there is none.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg

from astromesh.errors import AstromeshError
from astromesh.logs import OutageLog, get_logger
from astromesh.storage.postgres import DRIVER_ERRORS, Address, Postgres

#: seconds between two notifications of one process: each has the newest number of every name
_PAUSE_SECONDS = 0.025
#: seconds until a lost connection is made again: at first, at most
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 30.0
#: seconds for an answer of the server; seconds between two checks of a silent connection
_ANSWER_SECONDS, _CHECK_SECONDS = 5.0, 20.0
_NOTIFY = "SELECT pg_notify($1, told) FROM unnest($2::text[]) AS told"
_DEAF = "it passes no notifications on: set storage.listen_url to a URL that does not lead over a pooler"

log = get_logger("astromesh.storage")


class PostgresChannel:
    """The channel in one process.

    Args:
        name: of the channel.
        address: where it listens. A pooler in transaction mode passes no notifications on.
        received: called with each name and number that any process has published, this one included.
        changed: called when the connection was made or lost.
    """

    def __init__(
        self,
        database: Postgres,
        name: str,
        address: Address,
        received: Callable[[str, int], None],
        changed: Callable[[], None],
    ) -> None:
        self._database, self._name, self._address = database, name, address
        self._received, self._changed = received, changed
        self._outages = OutageLog(log, "notifications_away", "notifications_back")
        self._connected = False
        self._probe, self._probe_heard = "", asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._due: dict[str, int] = {}
        self._sending: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether notifications arrive."""
        return self._connected

    def start(self) -> None:
        """Starts to listen. A channel that listens continues."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    def publish(self, name: str, number: int) -> None:
        """Tells every process, soon: of several numbers within a pause, the largest one."""
        self._due[name] = max(number, self._due.get(name, 0))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def close(self) -> None:
        """Sends what is due, and ends."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _send(self) -> None:
        while self._due:
            due, self._due = self._due, {}
            with suppress(AstromeshError):  # who waits polls, more slowly
                messages = [f"{name} {number}" for name, number in due.items()]
                await self._database.write(_NOTIFY, self._name, messages)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _listen(self) -> None:
        """Listens until it is cancelled, with a new connection after each that is lost."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                reason = "the connection was lost"
                if await self._listen_once():
                    pause = _FIRST_RETRY_SECONDS
                else:
                    reason = _DEAF
            except (AstromeshError, *DRIVER_ERRORS) as error:
                reason = str(error) or type(error).__name__
            self._outages.failed(reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)

    async def _listen_once(self) -> bool:
        """Listens until the connection is lost. Returns False if no notification arrives over it."""
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._address.dsn, timeout=_ANSWER_SECONDS, statement_cache_size=0
        )
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.add_listener(self._name, self._hear)
            if not await self._is_heard():
                return False
            self._set_connected(True)
            self._outages.succeeded()
            while not lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await lost.wait()
                if not lost.is_set():
                    await connection.execute("SELECT 1", timeout=_ANSWER_SECONDS)
            return True
        finally:
            self._set_connected(False)
            connection.terminate()

    async def _is_heard(self) -> bool:
        """Whether a notification of this process arrives over the new connection."""
        self._probe = secrets.token_hex(8)
        self._probe_heard.clear()
        await self._database.write(_NOTIFY, self._name, [f"{self._probe} 0"])
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._probe_heard.wait()
        return self._probe_heard.is_set()

    def _set_connected(self, connected: bool) -> None:
        if connected != self._connected:
            self._connected = connected
            self._changed()

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        name, _, number = str(payload).rpartition(" ")
        if name == self._probe:
            self._probe_heard.set()
        elif name and number.isdecimal():
            self._received(name, int(number))
