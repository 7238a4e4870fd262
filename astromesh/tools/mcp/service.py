"""Serves tools, resources and prompts: over HTTP without sessions, and over the standard streams."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self, cast, get_args

import anyio
import orjson
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PARSE_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ElicitRequest,
    ElicitRequestFormParams,
    ErrorData,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    JSONRPCError,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as WireTool
from mcp_types.version import is_version_at_least
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from astromesh.errors import ApprovalRequired, AstromeshError, is_failure
from astromesh.logs import get_logger
from astromesh.tools.results import to_text
from astromesh.types import JsonObject, ToolSpec

_BLOCKS = get_args(ContentBlock)
log = get_logger("astromesh.tools.mcp.server")
#: reports what a call does; it never blocks
ReportProgress = Callable[[str], None]
#: returns the tools that a request may see; over stdio there is no request
ListTools = Callable[[Request | None], Iterable[ToolSpec]]
#: makes one call of a request: tool, arguments, progress; the caller receives the text of an AstromeshError
CallTool = Callable[[Request | None, str, JsonObject, ReportProgress], Awaitable[Any]]
#: returns what a run asks, by the question's id, as text and JSON Schema; empty for who may not decide
Questions = Callable[[Request | None, ApprovalRequired], Mapping[str, tuple[str, JsonObject]]]
#: continues the run of a call: request, tool, run, answers as MCP has them by the question's id, progress
ContinueCall = Callable[[Request | None, str, str, Mapping[str, JsonObject], ReportProgress], Awaitable[Any]]
#: answers a method of resources or prompts: its parameters and result are as MCP has them
AnswerContent = Callable[[Request | None, JsonObject], Awaitable[JsonObject]]


@dataclass(frozen=True, slots=True)
class Approvals:
    """How the user of a client decides for a run that waits.

    Args:
        key: encrypts the state that a client brings back with the answers.
    """

    questions: Questions
    proceed: ContinueCall
    key: bytes = field(repr=False)


class MCPService:
    """Serves MCP. Requests over HTTP are independent, so any worker can answer them.

    Args:
        name, version: of the server, for its clients.
        hosts: `Host` headers that are answered; None for all.
        streams: answers calls that ask for progress with an event stream, which has it; otherwise every
            answer is JSON.
        content: what answers the methods of resources and prompts; the others do not exist.
        approvals: how the user of a client decides for a run that waits; None: such a call fails.
    """

    def __init__(  # noqa: PLR0913 (what a server consists of)
        self,
        name: str,
        version: str,
        tools: ListTools,
        call: CallTool,
        hosts: Iterable[str] | None = None,
        *,
        streams: bool = False,
        content: Mapping[str, AnswerContent] = MappingProxyType({}),
        approvals: Approvals | None = None,
    ) -> None:
        self._tools, self._call, self._streams = tools, call, streams
        self._approvals = approvals
        self._server: Server[Any] = Server(
            name, version=version, on_list_tools=self._on_list, on_call_tool=self._on_call
        )
        if approvals is not None:  # the owner of the run is compared where it continues
            security = RequestStateSecurity(keys=[approvals.key], bind_principal=None)
            self._server.middleware.append(RequestStateBoundary(security, default_audience=name))
        for method, answer in content.items():
            params, result = _CONTENT[method]
            self._server.add_request_handler(method, params, _handler(answer, result))
        transport = TransportSecuritySettings(
            enable_dns_rebinding_protection=hosts is not None, allowed_hosts=list(hosts or ()),
            allowed_origins=[f"{scheme}://{host}" for host in hosts or () for scheme in ("http", "https")],
        )  # fmt: skip
        self._json, self._stream = (
            StreamableHTTPSessionManager(
                self._server, stateless=True, json_response=json, security_settings=transport
            )
            for json in (True, False)
        )
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request as an ASGI app."""
        # whitespace around a value is not part of it (RFC 9110, 5.5); not every server strips it
        headers = [(name, value.strip()) for name, value in scope["headers"]]
        scope, manager = {**scope, "headers": headers}, self._json
        if self._streams and b"text/event-stream" in dict(headers).get(b"accept", b""):
            body = await Request(scope, receive).body()
            receive = _replay(body, receive)
            if b'"progressToken"' in body:
                manager = self._stream
        await manager.handle_request(scope, receive, send)

    async def open(self) -> None:
        """Starts the server in its own task, since the SDK must leave its scopes in one task."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._hold(ready), name="mcp serving")
        await ready.wait()

    async def close(self) -> None:
        self._leave.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def serve_stdio(self) -> None:
        """Serves the client at stdin and stdout until it closes stdin. Other output goes to stderr."""
        async with stdio_server() as (reader, writer):
            answering = _AnsweringReader(reader, writer)
            await self._server.run(answering, writer, self._server.create_initialization_options())

    async def _hold(self, ready: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._json.run())
                await stack.enter_async_context(self._stream.run())
                ready.set()
                await self._leave.wait()
        finally:
            ready.set()

    async def _on_list(
        self, context: ServerRequestContext[Any, Request], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        if params is not None and params.cursor:
            raise MCPError(INVALID_PARAMS, "cursor: the list of tools has one page. Begin without `cursor`.")
        return ListToolsResult(tools=[_wire_tool(spec) for spec in self._tools(context.request)])

    async def _on_call(
        self, context: ServerRequestContext[Any, Request], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        try:
            async with _progress_of(context) as report:
                value = await self._outcome(context, params, report)
        except AstromeshError as error:
            return _wire_result(str(error), failed=True)
        except BaseException as error:  # a handler's error ends the call and is not revealed
            if not is_failure(error):
                raise
            log.exception("mcp_tool_crashed", tool=params.name)
            return _wire_result(f"The tool {params.name!r} failed for an internal reason.", failed=True)
        return value if isinstance(value, InputRequiredResult) else _wire_result(value)

    async def _outcome(
        self,
        context: ServerRequestContext[Any, Request],
        params: CallToolRequestParams,
        report: ReportProgress,
    ) -> Any:
        """Makes or continues a call. A client that can ask its user answers what the run waits for."""
        request, tool, approvals = context.request, params.name, self._approvals
        if params.request_state is not None and approvals is not None:
            answers = _answers(params.input_responses or {})
            work = approvals.proceed(request, tool, params.request_state, answers, report)
        else:
            work = self._call(request, tool, dict(params.arguments or {}), report)
        while True:
            try:
                return await work
            except ApprovalRequired as waiting:
                if approvals is None or not _can_ask(context):
                    raise
                forms = {
                    which: ElicitRequestFormParams(message=message, requested_schema=schema)
                    for which, (message, schema) in approvals.questions(request, waiting).items()
                }
                if not forms:
                    raise
                if is_version_at_least(context.protocol_version, _INPUT_REQUIRED):
                    requests = {which: ElicitRequest(params=form) for which, form in forms.items()}
                    return InputRequiredResult(input_requests=requests, request_state=waiting.run_id)
                responses = {
                    which: await context.session.elicit_form(
                        form.message, form.requested_schema, context.request_id
                    )
                    for which, form in forms.items()
                }
                work = approvals.proceed(request, tool, waiting.run_id, _answers(responses), report)


#: since when a result asks the client's user; before, the server sends requests
_INPUT_REQUIRED = "2026-07-28"


def _can_ask(context: ServerRequestContext[Any, Request]) -> bool:
    """Whether the client has forms, and its transport reaches it. A client that names no mode has forms."""
    session = context.session
    elicitation = session.client_capabilities.elicitation if session.client_capabilities is not None else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return is_version_at_least(context.protocol_version, _INPUT_REQUIRED) or session.can_send_request


def _answers(responses: Mapping[str, Any]) -> dict[str, JsonObject]:
    return {which: response.model_dump(mode="json", by_alias=True) for which, response in responses.items()}


#: methods of resources and prompts, with what they take and return
_CONTENT: Mapping[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "resources/list": (PaginatedRequestParams, ListResourcesResult),
    "resources/templates/list": (PaginatedRequestParams, ListResourceTemplatesResult),
    "resources/read": (ReadResourceRequestParams, ReadResourceResult),
    "prompts/list": (PaginatedRequestParams, ListPromptsResult),
    "prompts/get": (GetPromptRequestParams, GetPromptResult),
}


def _handler(answer: AnswerContent, result: type[BaseModel]) -> Callable[..., Awaitable[Any]]:
    async def handle(context: ServerRequestContext[Any, Request], params: BaseModel) -> BaseModel:
        arguments = params.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            return result.model_validate(await answer(context.request, arguments))
        except AstromeshError as error:
            if not error.public:  # the SDK logs it and does not reveal it
                raise
            code = INVALID_PARAMS if error.status < 500 else INTERNAL_ERROR
            raise MCPError(code, str(error), {"code": error.public_code or error.code}) from error

    return handle


class _AnsweringReader:
    """A reader of the SDK that answers lines which are no messages; the SDK leaves their senders waiting."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader, self._writer = reader, writer

    @property
    def last_context(self) -> Any:
        return self._reader.last_context

    async def receive(self) -> SessionMessage | Exception:
        while isinstance(item := await self._reader.receive(), Exception):
            await self._writer.send(SessionMessage(_parse_error(item)))
        return cast("SessionMessage", item)

    async def aclose(self) -> None:
        await self._reader.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def _parse_error(error: Exception) -> JSONRPCError:
    """Returns the answer to a line that is not a message, with its id where it has one."""
    line = error.errors(include_url=False)[0]["input"] if isinstance(error, ValidationError) else None
    with suppress(ValueError, RecursionError):
        line = json.loads(line) if isinstance(line, str) else line  # it accepts half of a surrogate pair
    request_id = line.get("id") if isinstance(line, dict) else None
    fault = ErrorData(code=PARSE_ERROR, message="This line is not a JSON-RPC message in UTF-8.")
    return JSONRPCError(
        jsonrpc="2.0", id=request_id if isinstance(request_id, int | str) else None, error=fault
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives a body, then whatever comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


@asynccontextmanager
async def _progress_of(context: ServerRequestContext[Any, Request]) -> AsyncIterator[ReportProgress]:
    """Sends what a call reports to a client that asked for progress, in order, before its result."""
    if "progress_token" not in (context.meta or {}):
        yield lambda message: None
        return
    messages: asyncio.Queue[str | None] = asyncio.Queue()
    sending = asyncio.create_task(_send_progress(context, messages))
    try:
        yield messages.put_nowait
        messages.put_nowait(None)
        await sending
    finally:
        sending.cancel()


async def _send_progress(
    context: ServerRequestContext[Any, Request], messages: asyncio.Queue[str | None]
) -> None:
    step = 0
    while (message := await messages.get()) is not None:
        step += 1
        await context.session.report_progress(step, message=message)


def _wire_tool(spec: ToolSpec) -> WireTool:
    hints = ToolAnnotations(read_only_hint=spec.effect == "read")
    return WireTool(
        name=spec.name, description=spec.description, input_schema=dict(spec.parameters), annotations=hints,
        output_schema=None if spec.output_schema is None else dict(spec.output_schema),
    )  # fmt: skip


def _wire_result(value: Any, *, failed: bool = False) -> CallToolResult:
    """Returns a result: text unchanged, objects also as structured content, content blocks unchanged."""
    blocks = [value] if isinstance(value, _BLOCKS) else value
    if isinstance(blocks, list) and blocks and all(isinstance(block, _BLOCKS) for block in blocks):
        return CallToolResult(content=blocks, is_error=failed)
    text = to_text(value, sys.maxsize)
    structured = None
    if isinstance(value, dict):
        with suppress(orjson.JSONDecodeError):
            structured = orjson.loads(text)
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured, is_error=failed
    )
