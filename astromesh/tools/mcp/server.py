"""MCP servers: `ToolServer` for your own functions behind guards, `MCPPublisher` for agents.

`MCPService` speaks the protocol for both.

server = ToolServer("reports", auth=AuthMiddleware(secret=os.environ["JWT_SECRET"], audience="reports"))

@server.tool(guards=[HasRole("analyst")])
async def revenue(quarter: str, ctx: RequestContext) -> dict[str, float]:
"Revenue of a quarter, e.g. 2026Q1."
return await figures(quarter, ctx.client.subject)

app = server.app()  # ASGI, at /mcp; or server.run(port=8001)
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, TypeVar, cast, get_args

import anyio
import orjson
import uvicorn
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
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astromesh import __version__
from astromesh.access.jwt import JwtOptions, JwtVerifier, open_verifier
from astromesh.errors import (
    ApprovalRequired,
    AstromeshError,
    ConfigError,
    Forbidden,
    InvalidToolCall,
    Overloaded,
    Unauthorized,
    is_failure,
)
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.storage.private_files import shared_key
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tools.base import ToolContext
from astromesh.tools.functions import FunctionTool
from astromesh.tools.results import to_text
from astromesh.types import CallerContext, JsonObject, ToolSpec

log = get_logger("astromesh.tools.mcp.server")


# -- the plugin `publishers: mcp` ----------------------------------------------------------------------------


class MCPPublisher:
    """Opens a `MCPService`, which closes with the runtime."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        tools: Callable[..., Any] = Field(description="The tools that a request may see.")
        call: Callable[..., Any] = Field(description="Makes one call: request, tool, arguments, progress.")
        content: dict[str, Callable[..., Any]] = Field(
            default_factory=dict, description="What answers the methods of resources and prompts, by name."
        )
        questions: Callable[..., Any] = Field(description="What a waiting run asks of a client's user.")
        proceed: Callable[..., Any] = Field(description="Continues the run of a call with the answers.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> MCPService:
        key = await asyncio.to_thread(shared_key, deps.data_dir / "mcp" / "state.key")
        serving = MCPService(
            "astromesh", __version__, options.tools, options.call, streams=True, content=options.content,
            approvals=Approvals(options.questions, options.proceed, key),
        )  # fmt: skip
        await serving.open()
        deps.resources.on_close(serving.close)
        return serving


# -- callers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The caller by its token; `subject` is empty without a token.

    Args:
        claims: all of the token's.
    """

    subject: str = ""
    tenant: str = ""
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict)

    @property
    def authenticated(self) -> bool:
        return bool(self.subject)


ANONYMOUS = ClientContext()


@dataclass(frozen=True, slots=True)
class RequestContext(ToolContext):
    """The context that a handler receives in a parameter of this type; hidden from models."""

    client: ClientContext = ANONYMOUS


def client_from_caller(caller: CallerContext) -> ClientContext:
    """Returns the client of a verified token."""
    return ClientContext(
        caller.user_id, caller.tenant_id, caller.roles, caller.scopes, caller.metadata.get("claims", {})
    )


# -- authentication ------------------------------------------------------------------------------------------

#: key of the client in a request's ASGI scope
CLIENT_SCOPE_KEY = "astromesh.client"


class AuthMiddleware:
    """Verifies tokens as the runtime does (`astromesh.access.jwt`).

    Args:
        secret: shared with the issuer, for HS256, 32 bytes or more.
        jwks_url: of the issuer's keys, for RS256 and ES256.
        issuer, audience: required `iss` and `aud`; the audience should be this server.
        required: whether a request without a token is rejected; otherwise it is anonymous and guards decide.

    Raises:
        ConfigError: no key to verify tokens with, or a weak secret.
    """

    def __init__(  # noqa: PLR0913 (the requirements of a token)
        self,
        *,
        secret: str = "",
        jwks_url: str = "",
        issuer: str = "",
        audience: str = "",
        roles_claim: str = "roles",
        required: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._options = JwtOptions(
            secret=SecretStr(secret), jwks_url=jwks_url, issuer=issuer, audience=audience,
            roles_claim=roles_claim,
        )  # fmt: skip
        self._clock, self._required = clock or SystemClock(), required
        self._verifier: JwtVerifier | None = None
        if secret or not jwks_url:  # rejects a weak secret here, not at the first request
            JwtVerifier(self._options.model_copy(update={"jwks_url": ""}), None, self._clock)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Opens the verifier for the duration of the context."""
        async with Http() as http:
            self._verifier = open_verifier(self._options, Deps(http=http, clock=self._clock))
            yield

    def around(self, app: ASGIApp) -> ASGIApp:
        """Wraps an app in this check."""
        return _AuthenticatedApp(self, app)

    async def client(self, headers: Headers) -> ClientContext:
        """Returns the client of a request.

        Raises:
            Unauthorized: a required token is missing, or a token is invalid.
            Overloaded: its issuer's keys cannot be fetched.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not scheme and not self._required:
            return ANONYMOUS
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthorized("Send a token as 'Authorization: Bearer TOKEN'.")
        if self._verifier is None:
            raise Overloaded("The server is not open yet.")
        return client_from_caller(await self._verifier.caller(token.strip()))


class _AuthenticatedApp:
    # an object, because starlette does not accept a function as an ASGI endpoint
    def __init__(self, auth: AuthMiddleware, app: ASGIApp) -> None:
        self._auth, self._app = auth, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope[CLIENT_SCOPE_KEY] = await self._auth.client(Headers(scope=scope))
            except (Unauthorized, Overloaded) as error:
                await _auth_error(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _auth_error(error: AstromeshError) -> JSONResponse:
    """Returns the response of RFC 6750, section 3."""
    if isinstance(error, Overloaded):
        return JSONResponse({"error": "temporarily_unavailable"}, 503, {"retry-after": "1"})
    body = {"error": "invalid_token", "error_description": str(error)}
    return JSONResponse(body, 401, {"www-authenticate": 'Bearer error="invalid_token"'})


# -- guards: rules that a client must pass before a tool is called -------------------------------------------


class Guard(Protocol):
    """One rule."""

    def refusal(self, client: ClientContext) -> str:
        """Returns why the client is rejected, or an empty string if it passes."""


class RequireAuth:
    """Passes clients with a token."""

    def refusal(self, client: ClientContext) -> str:
        return "" if client.authenticated else "This tool needs a token."


class _NamesGuard:
    def __init__(self, *names: str) -> None:
        if not names or not all(names):
            raise ConfigError(f"{type(self).__name__} needs one or more names.")
        self.names = names


class HasRole(_NamesGuard):
    """Passes clients with one of these roles."""

    def refusal(self, client: ClientContext) -> str:
        if client.roles.intersection(self.names):
            return ""
        return f"This tool needs the role {' or '.join(self.names)}."


class HasAllRoles(_NamesGuard):
    """Passes clients with every one of these roles."""

    def refusal(self, client: ClientContext) -> str:
        missing = [name for name in self.names if name not in client.roles]
        return f"This tool needs the roles {', '.join(self.names)}." if missing else ""


class HasScope(_NamesGuard):
    """Passes clients with every one of these scopes."""

    def refusal(self, client: ClientContext) -> str:
        missing = [name for name in self.names if name not in client.scopes]
        return f"This tool needs the scope {' and '.join(self.names)}." if missing else ""


#: hosts of a server without authentication; pages of other sites reach it under other names only
LOCAL_HOSTS = ("127.0.0.1:*", "localhost:*", "[::1]:*", "127.0.0.1", "localhost")
Function = TypeVar("Function", bound=Callable[..., Any])


class _GuardedTool(NamedTuple):
    tool: FunctionTool
    guards: tuple[Guard, ...]


class ToolServer:
    """A server of tools.

    Args:
        name: of the server, for its clients.
        auth: verifies tokens; None accepts every client, for servers on loopback.
        guards: of every tool, before its own.
        allowed_hosts: `Host` headers that are answered, `host:*` for any port; absent: those of this machine
            without `auth`, all with it.
    """

    def __init__(
        self,
        name: str,
        *,
        auth: AuthMiddleware | None = None,
        guards: Iterable[Guard] = (),
        allowed_hosts: Iterable[str] | None = None,
    ) -> None:
        self.name, self._auth, self._guards = name, auth, tuple(guards)
        self._hosts = LOCAL_HOSTS if allowed_hosts is None and auth is None else allowed_hosts
        self._tools: dict[str, _GuardedTool] = {}

    def tool(
        self, *, name: str = "", description: str = "", guards: Iterable[Guard] = ()
    ) -> Callable[[Function], Function]:
        """Registers a function as a tool: schema from its type hints, description from its docstring.

        A parameter annotated `RequestContext` gets the call's context, its `client` above all.

        Args:
            guards: that a client must pass, all of them, in this order.

        Raises:
            ConfigError: the function cannot be a tool, or the name is taken.
        """

        def offer(function: Function) -> Function:
            tool = FunctionTool(function, name=name, description=description)
            if tool.spec.name in self._tools:
                raise ConfigError(
                    f"The server {self.name!r} has two tools named {tool.spec.name!r}. Rename one."
                )
            self._tools[tool.spec.name] = _GuardedTool(tool, (*self._guards, *guards))
            return function

        return offer

    def app(self, path: str = "/mcp") -> Starlette:
        """Returns the server as an ASGI app."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            serving = MCPService(self.name, __version__, self._specs, self._call, self._hosts)
            async with AsyncExitStack() as stack:
                if self._auth is not None:
                    await stack.enter_async_context(self._auth.opened())
                await serving.open()
                stack.push_async_callback(serving.close)
                inner = self._auth.around(serving) if self._auth is not None else serving
                app.router.routes.append(Route(path, inner, methods=["POST"]))
                yield

        return Starlette(lifespan=lifespan)

    def run(self, host: str = "127.0.0.1", port: int = 8001, path: str = "/mcp") -> None:
        """Serves until interrupted."""
        uvicorn.run(self.app(path), host=host, port=port, log_level="warning")

    def _specs(self, _: Request | None) -> Sequence[ToolSpec]:
        return [guarded.tool.spec for guarded in self._tools.values()]

    async def _call(
        self, request: Request | None, name: str, arguments: JsonObject, report: ReportProgress
    ) -> Any:
        assert request is not None, "this server serves HTTP alone"
        guarded = self._tools.get(name)
        if guarded is None:
            raise InvalidToolCall(f"There is no tool {name[:64]!r}.")
        client: ClientContext = request.scope.get(CLIENT_SCOPE_KEY, ANONYMOUS)
        for guard in guarded.guards:
            if refusal := guard.refusal(client):
                log.info("mcp_call_refused", tool=name, client=client.subject, guard=type(guard).__name__)
                raise Forbidden(f"Forbidden: {refusal}")
        return await guarded.tool.call(arguments, RequestContext(tool=name, client=client))


# -- the protocol: over HTTP without sessions, and over the standard streams ---------------------------------

_BLOCKS = get_args(ContentBlock)
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
