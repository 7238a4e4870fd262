"""ToolServer: Python functions as MCP tools, each behind its guards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh import __version__
from astromesh.abc.functions import FunctionTool
from astromesh.errors import ConfigError, Forbidden, InvalidToolCall
from astromesh.mcp.server.auth import CLIENT, AuthMiddleware
from astromesh.mcp.server.client_context import NOBODY, ClientContext, RequestContext
from astromesh.mcp.server.guards import Guard
from astromesh.mcp.server.serving import Serving
from astromesh.types import JsonObject, ToolSpec

log = structlog.get_logger("astromesh.mcp.server")

#: hosts of a server that lets anybody in: pages of other sites reach it under other names only
LOCAL_HOSTS = ("127.0.0.1:*", "localhost:*", "[::1]:*", "127.0.0.1", "localhost")

Function = TypeVar("Function", bound=Callable[..., Any])


class _Guarded(NamedTuple):
    tool: FunctionTool
    guards: tuple[Guard, ...]


class _Endpoint:
    """An ASGI app that starlette takes for one: it wraps plain functions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class ToolServer:
    """A server of tools.

    Args:
        name: of the server, for its clients.
        auth: checks tokens; None lets everybody in, for servers on loopback.
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
        self._tools: dict[str, _Guarded] = {}

    def tool(
        self, *, name: str = "", description: str = "", guards: Iterable[Guard] = ()
    ) -> Callable[[Function], Function]:
        """Offers a function: schema from its type hints, description from its docstring.

        A parameter annotated `RequestContext` gets the call's context, its `client` above all.

        Args:
            guards: that a client must pass, all of them, in this order.

        Raises:
            ConfigError: the function cannot be offered, or the name is taken.
        """

        def offer(function: Function) -> Function:
            tool = FunctionTool(function, name=name, description=description)
            if tool.spec.name in self._tools:
                raise ConfigError(f"The server {self.name!r} has two tools named {tool.spec.name!r}.")
            self._tools[tool.spec.name] = _Guarded(tool, (*self._guards, *guards))
            return function

        return offer

    def app(self, path: str = "/mcp") -> Starlette:
        """The server as an ASGI app."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            serving = Serving(self.name, __version__, self._specs, self._call, self._hosts)
            async with AsyncExitStack() as stack:
                if self._auth is not None:
                    await stack.enter_async_context(self._auth.opened())
                await serving.open()
                stack.push_async_callback(serving.close)
                inner = self._auth.around(serving.asgi) if self._auth is not None else serving.asgi
                app.router.routes.append(Route(path, _Endpoint(inner), methods=["POST"]))
                yield

        return Starlette(lifespan=lifespan)

    def run(self, host: str = "127.0.0.1", port: int = 8001, path: str = "/mcp") -> None:
        """Serves until it is interrupted."""
        uvicorn.run(self.app(path), host=host, port=port, log_level="warning")

    def _specs(self, _: Request) -> Sequence[ToolSpec]:
        return [guarded.tool.spec for guarded in self._tools.values()]

    async def _call(self, request: Request, name: str, arguments: JsonObject) -> Any:
        guarded = self._tools.get(name)
        if guarded is None:
            raise InvalidToolCall(f"There is no tool {name[:64]!r}.")
        client: ClientContext = request.scope.get(CLIENT, NOBODY)
        for guard in guarded.guards:
            if refusal := guard.refusal(client):
                log.info("mcp_call_refused", tool=name, client=client.subject, guard=type(guard).__name__)
                raise Forbidden(f"Forbidden: {refusal}")
        return await guarded.tool.call(arguments, RequestContext(tool=name, client=client))
