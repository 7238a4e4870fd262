"""A server of mcp.yaml: one supervised session for all, and one per caller where identity is forwarded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, Literal

import structlog
from mcp.client.stdio import StdioServerParameters
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh import __version__
from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.tool import Tool, ToolContext
from astromesh.errors import ToolError, ToolFailed
from astromesh.mcp.connection import OPEN_SECONDS, Connection, NotRun, Refused, Transport
from astromesh.mcp.definitions import Definitions, Pins, changed
from astromesh.mcp.said import hear_the_sdk
from astromesh.mcp.sse import over_sse
from astromesh.mcp.tools import MCPTools
from astromesh.mcp.transport import over_http, over_pipes
from astromesh.types import get_current_caller

log = structlog.get_logger("astromesh.mcp")

#: seconds between tries to reach a server: doubled each time, with jitter, until the last
FIRST_DELAY, LAST_DELAY = 0.5, 30.0
_chance = Random()  # noqa: S311 (spreads tries, protects nothing)
#: seconds that a call, or a start, waits for a server that is just coming
PATIENCE = 5.0
#: sessions of callers that are open at once, and seconds until one that nobody uses is closed
MOST_CALLERS, IDLE_SECONDS = 256, 300.0
#: seconds that a session must have lasted for the next one to come at once
SHORT_LIFE = 5.0


class MCPServer:
    """The server's tools, and the way to call them."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        name: str = Field(min_length=1, description="The server's name.")
        transport: Literal["http", "sse", "stdio"] = Field(description="How to reach it.")
        url: str = Field("", description="Address of a server over http or sse.")
        headers: dict[str, SecretStr] = Field(default_factory=dict, description="Headers of every request.")
        command: str = Field("", description="Program of a server over stdio.")
        args: tuple[str, ...] = Field((), description="The program's arguments.")
        env: dict[str, SecretStr] = Field(
            default_factory=dict, description="Its environment, beside PATH and HOME."
        )
        cwd: str = Field("", description="Folder that it starts in.")
        forward_identity: bool = Field(False, description="Send the caller's token with each call.")
        timeout_seconds: float = Field(30.0, gt=0, description="Seconds one call may take.")

    def __init__(self, options: Options, deps: Deps) -> None:
        self.name, self.forwards = options.name, options.forward_identity
        self._options, self._deps, self._clock = options, deps, deps.clock
        self._pins = Pins(options.name, deps.data_dir / "mcp" / f"{options.name}.pins.json")
        self._shared = _Supervised(options.name, partial(self._connection, ""), deps.clock, self._pins)
        self._callers = _Callers(options.name, deps.clock)

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> MCPServer:
        """Starts to connect and does not wait for it; `settled` does."""
        hear_the_sdk()
        server = cls(options, deps)
        server._shared.start()
        return server

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"

    @property
    def over_http(self) -> bool:
        return self._options.transport != "stdio"

    async def close(self) -> None:
        await asyncio.gather(self._shared.close(), self._callers.close())

    async def settled(self) -> None:
        """Waits, at most `PATIENCE` seconds, for the end of the first try to connect."""
        await self._shared.settled()

    async def ping(self) -> None:
        """Raises: ToolFailed: the server is not connected; says why."""
        if fault := self.fault(self.forwards):
            raise ToolFailed(fault)

    # -- tools ---------------------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        """All of its tools, for who needs them now and cannot wait for them to come.

        Raises:
            ToolFailed: the server is not connected.
        """
        await self._shared.settled(OPEN_SECONDS)
        await self.prepare(self.forwards)
        if fault := self.fault(self.forwards):
            raise ToolFailed(fault)
        if self._shared.refused and not self.definitions(self.forwards).tools:
            raise ToolFailed(f"MCP server {self.name!r} shows its tools to callers whose token it accepts.")
        return MCPTools(MCPTools.Options(server=self.name), self).current()

    def definitions(self, forwards: bool) -> Definitions:
        """What the current caller is offered: the list of all, else the one of its own session."""
        if forwards and self._shared.refused and (token := _token()):
            return self._callers.definitions(token) or self._shared.definitions
        return self._shared.definitions

    async def prepare(self, forwards: bool) -> None:
        """Connects for the current caller where the server lists its tools to no one else."""
        token = _token()
        if not (forwards and self._shared.refused and token) or self._callers.knows(token):
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._callers.refresh(token, partial(self._connection, token))
        except (ToolError, TimeoutError) as error:
            log.warning("mcp_server_unavailable", server=self.name, error=str(error))

    def for_callers_only(self, forwards: bool) -> bool:
        """Whether it lists its tools to callers only."""
        return forwards and self._shared.refused

    def fault(self, forwards: bool) -> str:
        """Why its tools are missing, or nothing."""
        if forwards and self._shared.refused:
            return ""  # it only talks to callers, and to each for itself
        return f"MCP server {self.name!r}: {self._shared.fault}" if self._shared.fault else ""

    # -- calls ---------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], context: ToolContext, forwards: bool) -> Any:
        """One call, repeated only where it certainly did not run.

        Raises:
            ToolError: the server cannot be reached, refused or failed the call, or was too slow.
        """
        token = ""
        if forwards:
            token = context.caller.bearer_token if context.caller else ""
            if not token:
                raise ToolFailed(
                    f"{tool!r} acts in the caller's name, and the caller has no token to show to {self.name}."
                )
        connection = await self._of(token)
        try:
            return await connection.call(tool, arguments, context)
        except NotRun:
            connection.end()
        return await (await self._of(token)).call(tool, arguments, context)

    async def _of(self, token: str) -> Connection:
        if not token:
            return await self._shared.connection()
        return await self._callers.connection(token, partial(self._connection, token))

    def _connection(self, token: str) -> Connection:
        seconds = self._options.timeout_seconds
        follows = not token or self._shared.refused  # else the list of all is the caller's, too
        return Connection(self.name, self._transport(token), seconds, __version__, follows=follows)

    def _transport(self, token: str) -> Transport:
        options = self._options
        if options.transport == "stdio":
            parameters = StdioServerParameters(
                command=options.command, args=list(options.args), env=_plain(options.env),
                cwd=self._deps.config_dir / options.cwd if options.cwd else None,
            )  # fmt: skip
            return partial(over_pipes, self.name, parameters)
        headers = {name.lower(): value for name, value in _plain(options.headers).items()}
        if token:
            headers["authorization"] = f"Bearer {token}"
        over = over_sse if options.transport == "sse" else over_http
        return partial(over, self._deps.http, options.url, headers)


def _plain(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in secrets.items()}


def _token() -> str:
    caller = get_current_caller()
    return caller.bearer_token if caller else ""


# -- the session of all --------------------------------------------------------------------------------------


class _Supervised:
    """Connects, and connects again whenever the session is over. Keeps the last good list of tools."""

    def __init__(self, name: str, make: Any, clock: Clock, pins: Pins) -> None:
        self._name, self._make, self._clock, self._pins = name, make, clock, pins
        self._current: Connection | None = None
        self._up, self._tried, self._wanted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.definitions = Definitions()
        self.fault = "is being connected to."
        self.refused = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise(), name=f"mcp supervisor {self._name}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def settled(self, seconds: float = PATIENCE) -> None:
        await _within(seconds, self._tried)

    async def connection(self) -> Connection:
        """The open session; waits a little for one that is coming.

        Raises:
            ToolFailed: there is none.
        """
        if self._current is not None and not self._current.lost:
            return self._current
        self._up.clear()
        self._wanted.set()
        await _within(PATIENCE, self._up)
        if self._current is None or self._current.lost:
            raise ToolFailed(f"MCP server {self._name!r}: {self.fault}")
        return self._current

    async def _supervise(self) -> None:
        tries = 0
        while True:
            connection: Connection = self._make()
            try:
                await connection.open()
                opened = self._clock.monotonic()
                self._adopt(connection)
                await self._attend(connection)
                log.warning("mcp_server_lost", server=self._name)
                tries = tries + 1 if self._clock.monotonic() - opened < SHORT_LIFE else 0
            except ToolError as error:
                tries += 1
                self._failed(error, tries)
            finally:
                self._current = None
                await connection.close()
            if tries:
                await self._pause(_delay(tries, self.refused))

    def _adopt(self, connection: Connection) -> None:
        self._current, self.fault, self.refused = connection, "", False
        self._learn(connection)
        self._up.set()
        self._tried.set()
        log.info("mcp_server_connected", server=self._name, tools=len(self.definitions.tools))

    def _failed(self, error: ToolError, tries: int) -> None:
        self.fault, self.refused = str(error), isinstance(error, Refused)
        self._tried.set()
        if tries == 1:
            log.warning("mcp_server_unavailable", server=self._name, error=str(error))

    async def _attend(self, connection: Connection) -> None:
        """Follows the list of tools until the session is over."""
        while await connection.stirred():
            try:
                await connection.refresh()
            except Refused as error:  # a new session would be refused as well
                log.warning("mcp_server_refuses", server=self._name, error=str(error))
                continue
            except ToolError as error:
                self.fault = str(error)
                return
            self._learn(connection)
        self.fault = "closed the session; it is being connected to again."

    def _learn(self, connection: Connection) -> None:
        if connection.definitions.tools != self.definitions.tools:
            self._pins.check(connection.definitions)
            self.definitions = connection.definitions

    async def _pause(self, seconds: float) -> None:
        """Waits, unless a call wants the server, and then at least the shortest delay."""
        self._wanted.clear()
        await self._clock.sleep(min(seconds, FIRST_DELAY))
        if seconds > FIRST_DELAY:
            sleeping = asyncio.create_task(_slept(self._clock, seconds - FIRST_DELAY))
            wanted = asyncio.create_task(self._wanted.wait())
            try:
                await asyncio.wait({sleeping, wanted}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                wanted.cancel()


async def _slept(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


def _delay(tries: int, refused: bool) -> float:
    """Seconds until the next try. Who is refused gains nothing by asking often."""
    longest = LAST_DELAY if refused else min(LAST_DELAY, FIRST_DELAY * 2.0 ** min(tries - 1, 16))
    return longest * _chance.uniform(0.5, 1.0)


async def _within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


# -- the sessions of callers ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """One caller's session. `lock`: two calls at once open one session. `definitions`: the last good list."""

    lock: asyncio.Lock
    connection: Connection | None = None
    definitions: Definitions | None = None
    used: float = 0.0

    @property
    def knows(self) -> bool:
        """Whether its list is what the server offers this caller now, as far as anybody has said."""
        connection = self.connection
        return connection is not None and not connection.lost and not connection.stale


class _Callers:
    """One session per token, the least recently used closed first. Tokens stand here as hashes only."""

    def __init__(self, server: str, clock: Clock) -> None:
        self._server, self._clock = server, clock
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def definitions(self, token: str) -> Definitions | None:
        place = self._places.get(_hash(token))
        return place.definitions if place else None

    def knows(self, token: str) -> bool:
        """Whether the caller's list is there and nobody has said that it changed."""
        place = self._places.get(_hash(token))
        return place is not None and place.knows

    async def refresh(self, token: str, make: Any) -> None:
        """Asks for the caller's list where it may have changed.

        Raises:
            ToolError: the server cannot be reached or refuses the token; the list stays as it was.
        """
        connection = await self.connection(token, make)
        place = self._places.get(_hash(token))
        if place is None:  # closed meanwhile to make room; the next run asks again
            return
        async with place.lock:
            if connection.stale:
                await connection.refresh()
            self._learn(place, connection)

    async def connection(self, token: str, make: Any) -> Connection:
        """Raises: ToolError: the server cannot be reached or refuses the token."""
        key = _hash(token)
        place = self._places.setdefault(key, _Place(asyncio.Lock()))
        self._places.move_to_end(key)
        place.used = self._clock.monotonic()
        self._make_room(place)
        async with place.lock:
            if place.connection is None or place.connection.lost:
                place.connection = None
                connection: Connection = make()
                await connection.open()
                place.connection = connection
                self._learn(place, connection)
        return place.connection

    def _learn(self, place: _Place, connection: Connection) -> None:
        """Lists differ by caller, so that a change is one against what this caller was offered before."""
        before, place.definitions = place.definitions, connection.definitions
        for name in changed(before, connection.definitions) if before else ():
            log.warning("mcp_tool_changed", server=self._server, tool=name)

    def _make_room(self, newest: _Place) -> None:
        oldest = self._clock.monotonic() - IDLE_SECONDS
        for key, place in list(self._places.items()):
            if place is newest or place.lock.locked() or (place.connection and place.connection.busy):
                continue
            if place.used >= oldest and len(self._places) <= MOST_CALLERS:
                return
            del self._places[key]
            self._let_go(place)
        if len(self._places) > MOST_CALLERS:
            self._places.popitem()
            raise ToolFailed("Too many callers use the server at once; try again later.")

    def _let_go(self, place: _Place) -> None:
        if place.connection is not None:
            task = asyncio.create_task(place.connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for place in self._places.values():
            self._let_go(place)
        self._places.clear()
        if self._closing:
            await asyncio.wait(self._closing)


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
