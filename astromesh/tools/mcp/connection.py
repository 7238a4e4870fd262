"""One open session with an MCP server: lists its tools, calls them and translates their results and errors.

A task of its own holds the session, because the SDK must leave its scopes in the task that entered them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Self

import orjson
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    Implementation,
    JSONRPCResponse,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from astromesh.errors import ToolError, ToolFailed, ToolTimeout
from astromesh.logs import get_logger
from astromesh.telemetry.ids import outgoing_traceparent
from astromesh.tools.base import ToolContext
from astromesh.tools.mcp.toolset import ToolDefinition, ToolDefinitions
from astromesh.tools.mcp.transports import BROKEN, NOT_SENT, REFUSED, SESSION_GONE
from astromesh.types import JsonObject


def read_result(tool: str, result: CallToolResult) -> Any:
    """Returns the text of a result, else its structured content.

    Servers repeat structured content as text for those that cannot read it, so that text is enough.

    Raises:
        ToolFailed: the server says that the call failed.
    """
    text = "\n".join(part for block in result.content if (part := _block_text(block)))
    if result.is_error:
        raise ToolFailed(text or f"The tool {tool!r} failed without a message.")
    return result.structured_content if not text and result.structured_content is not None else text


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            size = len(block.data) * 3 // 4 - block.data[-2:].count("=")
            return f"[{block.type}: {block.mime_type}, {size} bytes, not shown]"
        case ResourceLink():
            return f"[resource: {block.name} <{block.uri}>]"
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case EmbeddedResource(resource=other):
            return f"[resource: <{other.uri}>, {other.mime_type or 'binary'}, not shown]"


# -- the stream of messages ----------------------------------------------------------------------------------

log = get_logger("astromesh.mcp")


class _IncomingMessages:
    """A stream of messages without invalid tools, which reports its end.

    The SDK rejects a whole list for one invalid tool, and reports the end only to pending requests.
    """

    def __init__(self, server: str, inner: Any, on_end: Callable[[], None]) -> None:
        self._server, self._inner, self._on_end = server, inner, on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # `last_context`, which the SDK reads

    def __aiter__(self) -> _IncomingMessages:
        return self

    async def __anext__(self) -> Any:
        try:
            return self._filter(await self._inner.__anext__())
        except StopAsyncIteration:
            self._on_end()
            raise

    async def receive(self) -> Any:
        return self._filter(await self._inner.receive())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._inner.__aexit__(*error)

    def _filter(self, item: Any) -> Any:
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse) and isinstance(listed := message.result.get("tools"), list):
            message.result["tools"] = [tool for tool in listed if self._is_sound(tool)]
        return item

    def _is_sound(self, tool: Any) -> bool:
        if not (reason := tool_fault(tool)):
            return True
        name = str(tool.get("name", ""))[:64] if isinstance(tool, dict) else ""
        log.warning("tool_left_out", server=self._server, tool=name, reason=reason)
        return False


def tool_fault(tool: Any) -> str:
    """Returns why a listed tool is invalid, or an empty string; an invalid output schema is removed."""
    if not isinstance(tool, dict):
        return "it is not an object"
    if not _is_object_schema(tool.get("inputSchema")):
        return "its inputSchema does not describe an object"
    if not _is_object_schema(tool.get("outputSchema", _OBJECT_SCHEMA)):
        del tool["outputSchema"]
    try:
        Tool.model_validate(tool)
    except ValidationError as error:
        places = sorted({str(found["loc"][0]) for found in error.errors() if found["loc"]})
        return f"{', '.join(places)} is not valid in MCP"
    return ""


_OBJECT_SCHEMA: JsonObject = {"type": "object"}


def _is_object_schema(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"


#: opens the streams; calls its argument when the server may have ended
Transport = Callable[[Callable[[], None]], AbstractAsyncContextManager[Any]]
#: seconds of a server to start, initialize and list its tools
OPEN_SECONDS = 30.0
CLOSE_SECONDS = 8.0
#: most tools and pages of a list; a server with more is broken or hostile
MAX_TOOLS, MAX_PAGES = 1000, 100
#: most bytes of a tool's schema, else the tool is omitted; most characters of its description, else it is cut
MAX_SCHEMA_BYTES, MAX_DESCRIPTION = 64 * 1024, 16 * 1024


class CallNotSent(ToolFailed):
    """The call certainly did not run, so it may be repeated on a new session."""


class CallerRefused(ToolFailed):
    """The server rejects the caller. A new session would not help."""


class Connection:
    """One session.

    Args:
        server: name in mcp.yaml, for messages.
        transport: how to reach it.
        seconds: that one call may take.
        version: of this client, for the server.
        follows: whether it subscribes to changes of the list of tools.
    """

    def __init__(
        self, server: str, transport: Transport, seconds: float, version: str, *, follows: bool = True
    ) -> None:
        self._server, self._follows = server, follows
        self._label = f"MCP server {server!r}"
        self._client = Client(
            self._streams(transport(self.request_refresh)), cache=None,
            read_timeout_seconds=seconds, message_handler=self._on_notification,
            client_info=Implementation(name="astromesh", version=version),
        )  # fmt: skip
        self._task: asyncio.Task[None] | None = None
        self._closing, self._changed = asyncio.Event(), asyncio.Event()
        self._opened = self.lost = False
        self.busy = 0
        self.definitions = ToolDefinitions()

    @asynccontextmanager
    async def _streams(self, opening: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        async with opening as (read, write):
            yield _IncomingMessages(self._server, read, self.request_refresh), write

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects and requests the tools.

        Raises:
            ToolError: it cannot be reached, rejects the caller, or does not speak MCP.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready), name=f"mcp {self._server}")
        is_open = False
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await ready
            is_open = True
        except TimeoutError as error:
            raise ToolTimeout(f"{self._label} did not open within {OPEN_SECONDS:g} s.") from error
        finally:
            if not is_open:
                await self.close()

    async def close(self) -> None:
        """Ends the session, and the server's process if there is one."""
        self.end()
        if self._task is None or self._task.done():
            return
        if self._opened:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    def end(self) -> None:
        """Marks the session as ended; its task closes it."""
        self.lost = True
        self._closing.set()
        self._changed.set()

    def request_refresh(self) -> None:
        """Wakes `wait_for_change`: a stream ended, so the server may have ended."""
        self._changed.set()

    @property
    def stale(self) -> bool:
        """Whether the list may have changed since it was requested, if nothing awaits `wait_for_change`."""
        return self._changed.is_set()

    async def wait_for_change(self) -> bool:
        """Waits until the list may have changed or the session may have ended; returns False if it has."""
        await self._changed.wait()
        self._changed.clear()
        return not self.lost

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._client as client, asyncio.TaskGroup() as group:
                self.definitions = await self._list(client)
                follower = group.create_task(self._follow(client))
                if not ready.done():
                    ready.set_result(None)
                self._opened = True
                await self._closing.wait()
                follower.cancel()
        except Exception as error:  # noqa: BLE001 (boundary of a task: the SDK raises anything)
            if not ready.done():
                ready.set_exception(_open_error(self._label, error))
        finally:
            if not ready.done():
                ready.set_exception(ToolFailed(f"{self._label} closed the session during initialization."))
            self.end()

    # -- the list of tools ---------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Requests the tools again. Raises: ToolError: as a call does."""
        self._changed.clear()  # cleared before the request, so that a change meanwhile causes another one
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                self.definitions = await self._list(self._client)
        except TimeoutError as error:
            raise ToolTimeout(f"{self._label} did not list its tools in time.") from error
        except _SDK_ERRORS as error:
            raise _translate_error(self._label, error) from error

    async def _list(self, client: Client) -> ToolDefinitions:
        if not _offers_tools(client):
            return ToolDefinitions()
        found: list[ToolDefinition] = []
        requested: set[str | None] = set()
        cursor = None
        while cursor not in requested and len(requested) < MAX_PAGES and len(found) <= MAX_TOOLS:
            requested.add(cursor)
            page = await client.list_tools(cursor=cursor)
            found += [_definition(tool) for tool in page.tools if self._is_usable(tool)]
            cursor = page.next_cursor
            if cursor is None:
                break
        return ToolDefinitions(tuple(found[:MAX_TOOLS]))

    def _is_usable(self, tool: Tool) -> bool:
        """Whether a plain call can run the tool, and its schema is small enough: every prompt contains it."""
        if tool.execution is not None and tool.execution.task_support == "required":
            log.warning("tool_left_out", server=self._server, tool=tool.name, reason="it runs as a task only")
            return False
        size = len(orjson.dumps(tool.input_schema))
        if size > MAX_SCHEMA_BYTES:
            log.warning(
                "tool_left_out", server=self._server, tool=tool.name, reason=f"a schema of {size} bytes"
            )
        return size <= MAX_SCHEMA_BYTES

    async def _on_notification(self, message: Any) -> None:
        """Servers of earlier protocols notify on their own stream that the list changed."""
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def _follow(self, client: Client) -> None:
        """Servers of protocol 2026-07-28 notify subscribers."""
        tools = client.server_capabilities.tools
        if (
            not self._follows
            or client.protocol_version not in MODERN_PROTOCOL_VERSIONS
            or not (tools and tools.list_changed)
        ):
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                self._changed.set()  # the list was requested before the subscription
                async for _ in changes:
                    self._changed.set()
        except SubscriptionLost:
            self.end()
        except (MCPError, TimeoutError):  # the server does not support subscriptions
            return

    # -- calls ---------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Makes one call.

        Raises:
            CallNotSent: it certainly did not run. CallerRefused: the server rejects the caller.
            ToolTimeout, ToolFailed: all other errors; the effects of the call may have happened.
        """
        if self.lost:
            raise CallNotSent(f"The session with {self._label} has ended.")
        self.busy += 1
        try:
            header = outgoing_traceparent(context.call_id)
            meta: Any = {"traceparent": header} if header else None
            result = await self._client.call_tool(
                tool,
                arguments,
                progress_callback=_progress(context),
                meta=meta,
            )
        except _SDK_ERRORS as error:
            raise _translate_error(self._label, error, _MAY_HAVE_RUN) from error
        finally:
            self.busy -= 1
        return read_result(tool, result)


def _definition(tool: Tool) -> ToolDefinition:
    return ToolDefinition(
        tool.name, (tool.description or tool.title or "")[:MAX_DESCRIPTION], tool.input_schema
    )


#: errors of SDK requests; RuntimeError for a result that does not match the tool's output schema
_SDK_ERRORS = (MCPError, ValidationError, RuntimeError, TimeoutError, OSError)
_MAY_HAVE_RUN = " The effects of the call may have happened."
#: error code -> error class, whether the request may have been executed
_ERRORS: dict[int, tuple[type[ToolError], bool]] = {
    NOT_SENT: (CallNotSent, False),
    SESSION_GONE: (CallNotSent, False),
    REFUSED: (CallerRefused, False),
    BROKEN: (ToolFailed, True),
    CONNECTION_CLOSED: (ToolFailed, True),
    PARSE_ERROR: (ToolFailed, True),
    REQUEST_TIMEOUT: (ToolTimeout, True),
}


def _translate_error(server: str, error: BaseException, if_executed: str = "") -> ToolError:
    """Translates an error of the SDK.

    Args:
        server: begins the message.
        if_executed: ends it where the request may have been executed.
    """
    if isinstance(error, MCPError):
        kind, may_have_run = _ERRORS.get(error.code, (ToolFailed, False))
        return kind(f"{server}: {_server_message(error).rstrip('.')}.{if_executed * may_have_run}")
    if isinstance(error, ValidationError):
        return ToolFailed(f"{server} sent a response that is not MCP.")
    return ToolFailed(f"{server}: {error}")


def _server_message(error: MCPError) -> str:
    """Returns the server's message; for an unreadable response the reason, without the SDK's details."""
    if error.code != PARSE_ERROR:
        return error.message
    reason = error.message.partition(": ")[2]
    return "sent a response that is not MCP" if "validation error" in reason else reason


def _open_error(server: str, error: BaseException) -> ToolError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ToolError):
        return error
    if isinstance(error, OSError):
        return ToolFailed(f"{server} cannot be started: {error.strerror or error}")
    return _translate_error(server, error)


def _offers_tools(client: Client) -> bool:
    with suppress(RuntimeError):
        return client.server_capabilities.tools is not None
    return False


def _progress(context: ToolContext) -> ProgressFnT | None:
    """Returns a callback that emits progress as events of the run, if there are listeners."""
    events = context.events
    if events is None:
        return None

    async def report(progress: float, total: float | None, message: str | None) -> None:
        events.emit(
            "tool.progress", id=context.call_id, name=context.tool, progress=progress, total=total,
            message=message or "",
        )  # fmt: skip

    return report
