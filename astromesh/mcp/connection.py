"""One open session with a server, held by a task of its own: the SDK's scopes end where they began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import orjson
import structlog
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    Implementation,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from astromesh.abc.tool import ToolContext
from astromesh.errors import ToolError, ToolFailed, ToolTimeout
from astromesh.mcp.definitions import Definition, Definitions
from astromesh.mcp.results import read
from astromesh.mcp.sifted import sifted
from astromesh.mcp.transport import BROKEN, NOT_SENT, REFUSED, SESSION_GONE

log = structlog.get_logger("astromesh.mcp")

#: opens the streams; is given what to call when the other side may have ended
Transport = Callable[[Callable[[], None]], AbstractAsyncContextManager[Any]]

#: seconds that a server gets to start, shake hands and list its tools
OPEN_SECONDS = 30.0
CLOSE_SECONDS = 8.0
#: tools and pages of a list; a server that offers more is broken or hostile
MOST_TOOLS, MOST_PAGES = 1000, 100
#: bytes of one tool's schema, and characters of its description; the first is left out, the second cut
MOST_SCHEMA, MOST_WORDS = 64 * 1024, 16 * 1024


class NotRun(ToolFailed):
    """The call certainly did not run: it may be made again, on a new session."""


class Refused(ToolFailed):
    """The server does not accept who is calling. Another session would not help."""


class Connection:
    """One session.

    Args:
        server: name in mcp.yaml, for messages.
        transport: how to reach it.
        seconds: that one call may take.
        version: of this client, for the server.
        follows: whether it asks to be told when the list of tools changes.
    """

    def __init__(
        self, server: str, transport: Transport, seconds: float, version: str, *, follows: bool = True
    ) -> None:
        self._server, self._follows = server, follows
        self._client = Client(
            sifted(server, transport(self.doubt)), cache=None, read_timeout_seconds=seconds,
            message_handler=self._hear, client_info=Implementation(name="astromesh", version=version),
        )  # fmt: skip
        self._task: asyncio.Task[None] | None = None
        self._leave, self._stirred = asyncio.Event(), asyncio.Event()
        self._opened = self.lost = False
        self.busy = 0
        self.definitions = Definitions()

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects and asks for the tools.

        Raises:
            ToolError: it cannot be reached, refuses us, or does not speak MCP.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready), name=f"mcp {self._server}")
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await ready
        except TimeoutError as error:
            await self.close()
            raise ToolTimeout(f"{self._server} did not open within {OPEN_SECONDS:g} s.") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the session and the server's process, if it has one."""
        self.end()
        if self._task is None or self._task.done():
            return
        if self._opened:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    def end(self) -> None:
        """Says that the session is no more; its task closes it."""
        self.lost = True
        self._leave.set()
        self._stirred.set()

    def doubt(self) -> None:
        """Something ended that may mean the end of the server."""
        self._stirred.set()

    @property
    def stale(self) -> bool:
        """Whether the list may have changed since it was asked for, where nobody awaits `stirred`."""
        return self._stirred.is_set()

    async def stirred(self) -> bool:
        """Waits until the list may have changed or the session may be over; False where it is over."""
        await self._stirred.wait()
        self._stirred.clear()
        return not self.lost

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._client as client, asyncio.TaskGroup() as group:
                self.definitions = await self._list(client)
                follower = group.create_task(self._follow(client))
                if not ready.done():
                    ready.set_result(None)
                self._opened = True
                await self._leave.wait()
                follower.cancel()
        except Exception as error:  # noqa: BLE001 (a task of its own: the SDK raises anything, in groups)
            if not ready.done():
                ready.set_exception(_opening_failed(self._server, error))
        finally:
            if not ready.done():
                ready.set_exception(ToolFailed(f"{self._server} closed the session while it was opened."))
            self.end()

    # -- the list of tools ---------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Asks for the tools again. Raises: ToolError: as a call does."""
        self._stirred.clear()  # before it is asked: what changes meanwhile is asked for once more
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                self.definitions = await self._list(self._client)
        except TimeoutError as error:
            raise ToolTimeout(f"{self._server} did not list its tools in time.") from error
        except _FOREIGN as error:
            raise translated(self._server, error) from error

    async def _list(self, client: Client) -> Definitions:
        if not _offers_tools(client):
            return Definitions()
        found: list[Definition] = []
        asked: set[str | None] = set()
        cursor = None
        while cursor not in asked and len(asked) < MOST_PAGES and len(found) <= MOST_TOOLS:
            asked.add(cursor)
            page = await client.list_tools(cursor=cursor)
            found += [_definition(tool) for tool in page.tools if self._bearable(tool)]
            cursor = page.next_cursor
            if cursor is None:
                break
        return Definitions(tuple(found[:MOST_TOOLS]))

    def _bearable(self, tool: Tool) -> bool:
        """Whether a model can be shown it: schemas stand in every prompt."""
        size = len(orjson.dumps(tool.input_schema))
        if size > MOST_SCHEMA:
            log.warning(
                "tool_left_out", server=self._server, tool=tool.name, reason=f"a schema of {size} bytes"
            )
        return size <= MOST_SCHEMA

    async def _hear(self, message: Any) -> None:
        """Servers of the handshake protocols tell on their own stream that the list changed."""
        if isinstance(message, ToolListChangedNotification):
            self._stirred.set()

    async def _follow(self, client: Client) -> None:
        """Servers of protocol 2026-07-28 tell those who listen."""
        tools = client.server_capabilities.tools
        if (
            not self._follows
            or client.protocol_version not in MODERN_PROTOCOL_VERSIONS
            or not (tools and tools.list_changed)
        ):
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                self._stirred.set()  # the list was asked for before anybody listened
                async for _ in changes:
                    self._stirred.set()
        except SubscriptionLost:
            self.end()
        except (MCPError, TimeoutError):  # it does not serve them after all
            return

    # -- calls ---------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """One call.

        Raises:
            NotRun: it certainly did not run. Refused: the server does not accept the caller.
            ToolTimeout, ToolFailed: everything else; what it began may have happened.
        """
        if self.lost:
            raise NotRun(f"The session with {self._server} is over.")
        self.busy += 1
        try:
            result = await self._client.call_tool(tool, arguments, progress_callback=_progress(context))
        except _FOREIGN as error:
            raise translated(self._server, error) from error
        finally:
            self.busy -= 1
        return read(tool, result)


def _definition(tool: Tool) -> Definition:
    return Definition(tool.name, (tool.description or tool.title or "")[:MOST_WORDS], tool.input_schema)


#: what the SDK raises for a request; a RuntimeError where a result does not fit the tool's own schema
_FOREIGN = (MCPError, ValidationError, RuntimeError, TimeoutError, OSError)

#: by the code of an error: what it is here, and what is added to the server's words
_ERRORS: dict[int, tuple[type[ToolError], str]] = {
    NOT_SENT: (NotRun, ""),
    SESSION_GONE: (NotRun, ""),
    REFUSED: (Refused, ""),
    BROKEN: (ToolFailed, " What the call began may have happened."),
    CONNECTION_CLOSED: (ToolFailed, " What the call began may have happened."),
    PARSE_ERROR: (ToolFailed, " What the call began may have happened."),
    REQUEST_TIMEOUT: (ToolTimeout, " What the call began may have happened."),
}


def translated(server: str, error: BaseException) -> ToolError:
    """A foreign error as ours."""
    if isinstance(error, MCPError):
        kind, more = _ERRORS.get(error.code, (ToolFailed, ""))
        return kind(f"{server}: {_said(error).rstrip('.')}.{more}")
    if isinstance(error, ValidationError):
        return ToolFailed(f"{server} answered something that is not MCP.")
    return ToolFailed(f"{server}: {error}")


def _said(error: MCPError) -> str:
    """A server's words; of an answer that cannot be read, why, without the SDK's listing of it."""
    if error.code != PARSE_ERROR:
        return error.message
    reason = error.message.partition(": ")[2]
    return "answered something that is not MCP" if "validation error" in reason else reason


def _opening_failed(server: str, error: BaseException) -> ToolError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ToolError):
        return error
    if isinstance(error, OSError):
        return ToolFailed(f"{server} cannot be started: {error.strerror or error}")
    return translated(server, error)


def _offers_tools(client: Client) -> bool:
    with suppress(RuntimeError):
        return client.server_capabilities.tools is not None
    return False


def _progress(context: ToolContext) -> ProgressFnT | None:
    """Progress becomes events of the run, where somebody listens."""
    events = context.events
    if events is None:
        return None

    async def report(progress: float, total: float | None, message: str | None) -> None:
        events.emit(
            "tool.progress", id=context.call_id, name=context.tool, progress=progress, total=total,
            message=message or "",
        )  # fmt: skip

    return report
