"""A server of mcp.yaml: one supervised session, and one per caller if it forwards identity."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import inf
from random import Random
from typing import Any, Literal

from mcp.client.stdio import StdioServerParameters
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh import __version__
from astromesh.errors import ToolError, ToolFailed
from astromesh.logs import get_logger
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock
from astromesh.tools.base import Tool, ToolContext
from astromesh.tools.mcp.connection import OPEN_SECONDS, CallerRefused, CallNotSent, Connection, Transport
from astromesh.tools.mcp.oauth import OAuthOptions, OAuthSession
from astromesh.tools.mcp.toolset import DefinitionPins, MCPToolset, ToolDefinitions, changed_tools
from astromesh.tools.mcp.transports import (
    LastWords,
    http_transport,
    redirect_sdk_logs,
    sse_transport,
    stdio_transport,
)
from astromesh.types import get_current_caller

log = get_logger("astromesh.mcp")

#: seconds between attempts to connect: doubled each time up to the second number, with jitter
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.5, 30.0
_random = Random()  # noqa: S311 (spreads attempts, no secret)
#: seconds that a call or the start waits for a server that is connecting, and that a run waits
WAIT_SECONDS, RUN_WAIT_SECONDS = 5.0, 1.0
#: most open sessions of callers, and seconds until an idle one is closed
MAX_CALLER_SESSIONS, IDLE_SECONDS = 256, 300.0
#: a session that lasted longer is reopened immediately
SHORT_SESSION_SECONDS = 5.0


class MCPServer:
    """One MCP server: its tools and their calls."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        name: str = Field(min_length=1, description="The server's name.")
        transport: Literal["http", "sse", "stdio"] = Field(description="How to reach it.")
        url: str = Field("", description="Address of a server over http or sse.")
        headers: dict[str, SecretStr] = Field(default_factory=dict, description="Headers of every request.")
        command: str = Field("", description="Program of a server over stdio.")
        args: tuple[str, ...] = Field((), description="The program's arguments.")
        env: dict[str, SecretStr] = Field(
            default_factory=dict, description="Environment variables of the program, beside PATH and HOME."
        )
        cwd: str = Field("", description="Working folder of the program.")
        forward_identity: bool = Field(False, description="Send the caller's token with each call.")
        timeout_seconds: float = Field(30.0, gt=0, description="Timeout of a call in seconds.")
        oauth: OAuthOptions | None = Field(None, description="How to get tokens for the server.")

    def __init__(self, options: Options, deps: Deps) -> None:
        self.name, self.forwards_identity = options.name, options.forward_identity
        self._options, self._deps, self._clock = options, deps, deps.clock
        self._pins = DefinitionPins(options.name, deps.data_dir / "mcp" / f"{options.name}.pins.json")
        self._words = LastWords()
        connect = partial(self._connection, "")
        self._shared = _SharedSession(options.name, connect, deps.clock, self._pins, self._words)
        self._callers = _CallerSessions(options.name, deps.clock)

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> MCPServer:
        """Starts to connect; `wait_first_attempt` waits for it."""
        redirect_sdk_logs()
        server = cls(options, deps)
        server._shared.start()
        return server

    @staticmethod
    def login_of(options: Options, deps: Deps) -> OAuthSession:
        """Returns the `OAuthSession` of a server with `oauth`."""
        oauth, folder = options.oauth or OAuthOptions(), deps.data_dir / "mcp"
        return OAuthSession(options.name, options.url, oauth, deps.http, folder, deps.clock)

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"

    @property
    def over_http(self) -> bool:
        return self._options.transport != "stdio"

    async def close(self) -> None:
        await asyncio.gather(self._shared.close(), self._callers.close())

    async def wait_first_attempt(self) -> None:
        """Waits for the first attempt to connect, at most `WAIT_SECONDS`."""
        await self._shared.wait_first_attempt()

    async def ping(self) -> None:
        """Raises: ToolFailed: the server is not connected; the message says why."""
        if fault := self.fault(self.forwards_identity):
            raise ToolFailed(fault)

    # -- tools ---------------------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        """Returns all of its tools, for callers that need them now.

        Raises:
            ToolFailed: the server is not connected.
        """
        await self._shared.wait_first_attempt(OPEN_SECONDS)
        await self.prepare(self.forwards_identity)
        if fault := self.fault(self.forwards_identity):
            raise ToolFailed(fault)
        if self._shared.refused and not self.definitions(self.forwards_identity).tools:
            raise ToolFailed(f"MCP server {self.name!r} lists its tools only to callers with a valid token.")
        return MCPToolset(MCPToolset.Options(server=self.name), self).current()

    def definitions(self, forwards: bool) -> ToolDefinitions:
        """Returns the tools of the current caller: the shared list, or that of its own session."""
        if forwards and self._shared.refused and (token := _token()):
            return self._callers.definitions(token) or self._shared.definitions
        return self._shared.definitions

    async def prepare(self, forwards: bool) -> None:
        """Connects for a run that wants the tools: after a loss, or for a caller with a list of its own."""
        token = _token()
        if not self.for_callers_only(forwards):
            await self._shared.reconnect()
        if not (forwards and self._shared.refused and token) or self._callers.is_current(token):
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._callers.refresh(token, partial(self._connection, token))
        except (ToolError, TimeoutError) as error:
            log.warning("mcp_server_unavailable", server=self.name, error=str(error))

    def for_callers_only(self, forwards: bool) -> bool:
        """Whether it lists its tools to callers only."""
        return forwards and self._shared.refused

    def fault(self, forwards: bool) -> str:
        """Returns why its tools are missing, or an empty string."""
        if forwards and self._shared.refused:
            return ""  # each caller has a session of its own
        return self._shared.fault

    # -- calls ---------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], context: ToolContext, forwards: bool) -> Any:
        """Makes one call; repeats it only if it certainly did not run.

        Raises:
            ToolError: the server cannot be reached, refused or failed the call, or was too slow.
        """
        token = ""
        if forwards:
            token = context.caller.bearer_token if context.caller else ""
            if not token:
                raise ToolFailed(
                    f"{tool!r} acts on behalf of the caller, but the caller has no token for {self.name}."
                )
        connection = await self._connection_of(token)
        try:
            return await connection.call(tool, arguments, context)
        except CallNotSent:
            connection.end()
        return await (await self._connection_of(token)).call(tool, arguments, context)

    async def _connection_of(self, token: str) -> Connection:
        if not token:
            return await self._shared.connection()
        return await self._callers.connection(token, partial(self._connection, token))

    def _connection(self, token: str) -> Connection:
        seconds = self._options.timeout_seconds
        follows = not token or self._shared.refused  # else the shared list applies to the caller, too
        return Connection(self.name, self._transport(token), seconds, __version__, follows=follows)

    def _transport(self, token: str) -> Transport:
        options = self._options
        if options.transport == "stdio":
            parameters = StdioServerParameters(
                command=options.command, args=list(options.args), env=_plain(options.env),
                cwd=self._deps.config_dir / options.cwd if options.cwd else None,
            )  # fmt: skip
            return partial(stdio_transport, self.name, parameters, self._words)
        headers = {name.lower(): value for name, value in _plain(options.headers).items()}
        if token:
            headers["authorization"] = f"Bearer {token}"
        over = sse_transport if options.transport == "sse" else http_transport
        if options.oauth is not None and not token:
            login = self.login_of(options, self._deps)
            return partial(http_transport, self._deps.http, options.url, headers, login=login)
        return partial(over, self._deps.http, options.url, headers)


def _plain(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in secrets.items()}


def _token() -> str:
    caller = get_current_caller()
    return caller.bearer_token if caller else ""


# -- the shared session --------------------------------------------------------------------------------------


class _SharedSession:
    """Connects, and reconnects when the session ends. Keeps the last valid list of tools.

    Args:
        words: what the server's program says; logged with each failure, and not shown to callers.
    """

    def __init__(self, name: str, make: Any, clock: Clock, pins: DefinitionPins, words: LastWords) -> None:
        self._name, self._make, self._clock, self._pins = name, make, clock, pins
        self._words = words
        self._current: Connection | None = None
        self._connected, self._attempted, self._reconnect_requested = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._task: asyncio.Task[None] | None = None
        self.definitions = ToolDefinitions()
        self._is_prompt = True
        self.fault, self._failed_at = f"MCP server {name!r} is connecting.", -inf
        self.refused = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise(), name=f"mcp supervisor {self._name}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def wait_first_attempt(self, seconds: float = WAIT_SECONDS) -> None:
        await _wait_for_event(seconds, self._attempted)

    async def reconnect(self) -> None:
        """Tries to connect now if there is no session, and waits a moment; but not right after a failure."""
        if self._is_open or self._clock.monotonic() - self._failed_at < FIRST_RETRY_SECONDS:
            return
        self._attempted.clear()
        self._reconnect_requested.set()
        if self._is_prompt:  # a server that does not answer holds up one run, not each
            await _wait_for_event(RUN_WAIT_SECONDS, self._attempted)
            self._is_prompt = self._attempted.is_set()

    @property
    def _is_open(self) -> bool:
        return self._current is not None and not self._current.lost

    async def connection(self) -> Connection:
        """Returns the open session; waits a moment for one that is connecting.

        Raises:
            ToolFailed: no session opened in time.
        """
        if self._current is not None and self._is_open:
            return self._current
        self._connected.clear()
        self._reconnect_requested.set()
        await _wait_for_event(WAIT_SECONDS, self._connected)
        if self._current is None or self._current.lost:
            raise ToolFailed(self.fault)
        return self._current

    async def _supervise(self) -> None:
        tries = 0
        while True:
            connection: Connection = self._make()
            try:
                await connection.open()
                opened = self._clock.monotonic()
                self._set_connection(connection)
                await self._follow(connection)
                await connection.close()  # its program says its last words until then
                log.warning("mcp_server_lost", server=self._name, **self._last_words())
                tries = tries + 1 if self._clock.monotonic() - opened < SHORT_SESSION_SECONDS else 0
            except ToolError as error:
                tries += 1
                self._failed(error, tries)
            finally:
                self._current = None
                await connection.close()
            if tries:
                await self._pause(_retry_delay(tries, self.refused))

    def _set_connection(self, connection: Connection) -> None:
        self._current, self.fault, self.refused, self._is_prompt = connection, "", False, True
        self._update_definitions(connection)
        self._connected.set()
        self._attempted.set()
        log.info("mcp_server_connected", server=self._name, tools=len(self.definitions.tools))

    def _failed(self, error: ToolError, tries: int) -> None:
        self.fault, self.refused = str(error), isinstance(error, CallerRefused)
        self._failed_at = self._clock.monotonic()
        self._attempted.set()
        if tries == 1:
            log.warning("mcp_server_unavailable", server=self._name, error=str(error), **self._last_words())

    def _last_words(self) -> dict[str, str]:
        words = str(self._words)
        return {"said": words} if words else {}

    async def _follow(self, connection: Connection) -> None:
        """Updates the list of tools until the session ends."""
        while await connection.wait_for_change():
            try:
                await connection.refresh()
            except CallerRefused as error:  # a new session would be refused, too
                log.warning("mcp_server_refuses", server=self._name, error=str(error))
                continue
            except ToolError as error:
                self.fault = str(error)
                return
            self._update_definitions(connection)
        self.fault = f"MCP server {self._name!r} closed the session; reconnecting."

    def _update_definitions(self, connection: Connection) -> None:
        if connection.definitions.tools != self.definitions.tools:
            self._pins.check(connection.definitions)
            self.definitions = connection.definitions

    async def _pause(self, seconds: float) -> None:
        """Waits until a call needs the server, but at least the shortest delay."""
        self._reconnect_requested.clear()
        await self._clock.sleep(min(seconds, FIRST_RETRY_SECONDS))
        if seconds > FIRST_RETRY_SECONDS:
            sleeping = asyncio.ensure_future(self._clock.sleep(seconds - FIRST_RETRY_SECONDS))
            requested = asyncio.create_task(self._reconnect_requested.wait())
            try:
                await asyncio.wait({sleeping, requested}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                requested.cancel()


def _retry_delay(tries: int, refused: bool) -> float:
    """Returns the seconds until the next attempt: the longest delay after a refusal."""
    doubled = FIRST_RETRY_SECONDS * 2.0 ** min(tries - 1, 16)
    return (MAX_RETRY_SECONDS if refused else min(MAX_RETRY_SECONDS, doubled)) * _random.uniform(0.5, 1.0)


async def _wait_for_event(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


# -- the sessions of callers ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _CallerSession:
    """The session of one caller.

    `lock`: concurrent calls open one session. `definitions`: the last valid list.
    """

    lock: asyncio.Lock
    connection: Connection | None = None
    definitions: ToolDefinitions | None = None
    last_used: float = 0.0

    @property
    def is_current(self) -> bool:
        """Whether the server has not announced a change of this caller's list."""
        connection = self.connection
        return connection is not None and not connection.lost and not connection.stale


class _CallerSessions:
    """One session per token; closes the least recently used first. Stores tokens as hashes only."""

    def __init__(self, server: str, clock: Clock) -> None:
        self._server, self._clock = server, clock
        self._sessions: OrderedDict[str, _CallerSession] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def definitions(self, token: str) -> ToolDefinitions | None:
        session = self._sessions.get(_hash(token))
        return session.definitions if session else None

    def is_current(self, token: str) -> bool:
        """Whether the caller's list is known and current."""
        session = self._sessions.get(_hash(token))
        return session is not None and session.is_current

    async def refresh(self, token: str, make: Any) -> None:
        """Requests the caller's list if it may have changed.

        Raises:
            ToolError: the server cannot be reached or refuses the token; the list stays as it was.
        """
        connection = await self.connection(token, make)
        session = self._sessions.get(_hash(token))
        if session is None:  # closed meanwhile to make room; the next run requests it
            return
        async with session.lock:
            if connection.stale:
                await connection.refresh()
            self._update_definitions(session, connection)

    async def connection(self, token: str, make: Any) -> Connection:
        """Raises: ToolError: the server cannot be reached or refuses the token."""
        key = _hash(token)
        session = self._sessions.setdefault(key, _CallerSession(asyncio.Lock()))
        self._sessions.move_to_end(key)
        session.last_used = self._clock.monotonic()
        self._evict_idle(session)
        async with session.lock:
            if session.connection is None or session.connection.lost:
                session.connection = None
                connection: Connection = make()
                await connection.open()
                session.connection = connection
                self._update_definitions(session, connection)
        return session.connection

    def _update_definitions(self, session: _CallerSession, connection: Connection) -> None:
        """Stores a caller's list and logs changes against its previous list; lists differ by caller."""
        before, session.definitions = session.definitions, connection.definitions
        for name in changed_tools(before, connection.definitions) if before else ():
            log.warning("mcp_tool_changed", server=self._server, tool=name)

    def _evict_idle(self, newest: _CallerSession) -> None:
        oldest = self._clock.monotonic() - IDLE_SECONDS
        for key, session in list(self._sessions.items()):
            if session is newest or session.lock.locked() or (session.connection and session.connection.busy):
                continue
            if session.last_used >= oldest and len(self._sessions) <= MAX_CALLER_SESSIONS:
                return
            del self._sessions[key]
            self._close_session(session)
        if len(self._sessions) > MAX_CALLER_SESSIONS:
            self._sessions.popitem()
            raise ToolFailed(
                f"Too many callers use the MCP server {self._server!r} at the same time. Try again later."
            )

    def _close_session(self, session: _CallerSession) -> None:
        if session.connection is not None:
            task = asyncio.create_task(session.connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for session in self._sessions.values():
            self._close_session(session)
        self._sessions.clear()
        if self._closing:
            await asyncio.wait(self._closing)


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
