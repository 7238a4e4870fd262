"""MCP servers: `ToolServer` for your own functions behind guards, `MCPPublisher` for agents.

server = ToolServer("reports", auth=AuthMiddleware(secret=os.environ["JWT_SECRET"], audience="reports"))

@server.tool(guards=[HasRole("analyst")])
async def revenue(quarter: str, ctx: RequestContext) -> dict[str, float]:
"Revenue of a quarter, e.g. 2026Q1."
return await figures(quarter, ctx.client.subject)

app = server.app()  # ASGI, at /mcp; or server.run(port=8001)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh import __version__
from astromesh.access.jwt import JwtOptions, JwtVerifier, open_verifier
from astromesh.errors import AstromeshError, ConfigError, Forbidden, InvalidToolCall, Overloaded, Unauthorized
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.storage.private_files import shared_key
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tools.base import ToolContext
from astromesh.tools.functions import FunctionTool
from astromesh.tools.mcp.service import Approvals, MCPService, ReportProgress
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
