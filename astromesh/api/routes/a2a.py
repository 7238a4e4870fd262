"""A2A: an agent as a remote agent of other systems (docs/protocols.md).

The first request loads the SDK, in a thread. Without a request, the server does not load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, TypeAdapter
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astromesh.api.dependencies import scope
from astromesh.api.errors import error_response
from astromesh.api.event_streams import DelegatedResponse, json_bytes
from astromesh.api.middleware.response import BODY_STATE
from astromesh.api.requests import read_body, runtime_of
from astromesh.errors import AstromeshError, MissingExtra, NotFound
from astromesh.plugins import Deps
from astromesh.runtime.engine import AgentRuntime
from astromesh.types import JsonObject

router = APIRouter(tags=["a2a"])
_PREFIX = "/v1/agents/{name}/a2a"
_CARD = "/.well-known/agent-card.json"
#: where the state of a request has its parameters, as JSON
_PARAMS = "a2a_params"
#: methods of JSON-RPC, and of HTTP+JSON below it; the SDK answers them
_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "": ("POST",),
    "/message:send": ("POST",),
    "/message:stream": ("POST",),
    "/tasks": ("GET",),
    "/tasks/{run_id:name}": ("GET",),
    "/tasks/{run_id:name}:cancel": ("POST",),
    "/tasks/{run_id:name}:subscribe": ("GET", "POST"),
    "/tasks/{run_id:name}/pushNotificationConfigs": ("GET", "POST"),
    "/tasks/{run_id:name}/pushNotificationConfigs/{config}": ("DELETE", "GET"),
    "/extendedAgentCard": ("GET",),
}


class _A2ABody(BaseModel):
    """What every body is: an object; that of JSON-RPC has an object as `params`."""

    model_config = ConfigDict(extra="allow")

    params: JsonObject = {}


_BODY: TypeAdapter[_A2ABody] = TypeAdapter(_A2ABody)


class _Name(StringConvertor):
    """What stands before a verb, as in `tasks/ID:cancel`."""

    regex = "[^/:]+"


register_url_convertor("name", _Name())


class _A2AServer:
    """The A2A server of a runtime, opened once."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime

    async def __aenter__(self) -> Any:
        try:
            plugin = await asyncio.to_thread(self._runtime.plugins.load, "publishers", "a2a")
        except MissingExtra as error:
            raise NotFound(f"This server does not speak A2A: {error}") from error
        deps = Deps(resources=self._runtime.state.resources)
        return await plugin.open(plugin.Options(runtime=self._runtime), deps)

    async def __aexit__(self, *_: object) -> None:
        """Does nothing: the server holds nothing open."""


async def _server(runtime: AgentRuntime) -> Any:
    return await runtime.state.resources.shared(_A2AServer, lambda: _A2AServer(runtime))


@router.get(
    _PREFIX + _CARD, summary="The agent card of A2A", include_in_schema=False,
    dependencies=[scope("agents:read")],
)  # fmt: skip
async def card(name: str, request: Request) -> Response:
    """Describes an agent for A2A clients."""
    runtime = runtime_of(request)
    agent, server = runtime.agent(name), await _server(runtime)
    url = str(request.url.replace(query="")).removesuffix(_CARD)
    found = server.card(agent, url, guarded=request.app.state.auth.needs_credentials)
    return Response(json_bytes(found), media_type="application/json")


async def a2a(name: str, request: Request) -> Response:
    """Serves A2A: JSON-RPC at the path itself, HTTP+JSON below it."""
    runtime = runtime_of(request)
    runtime.agent(name)
    if request.scope.get("state", {}).get(BODY_STATE):  # a body that is not read is for the SDK
        setattr(request.state, _PARAMS, (await read_body(request, _BODY)).params)
    else:
        setattr(request.state, _PARAMS, dict(request.query_params))
    server = await _server(runtime)
    return _A2AResponse(server.router(name, _PREFIX.replace("{name}", name)), server.refused_in)


for _path, _methods in _OPERATIONS.items():
    router.add_api_route(
        _PREFIX + _path, a2a, methods=[*_methods], include_in_schema=False,
        dependencies=[scope("agents:run", "name")],
    )  # fmt: skip


class _A2AResponse(DelegatedResponse):
    """What the SDK answers; for an error that belongs to HTTP, its status and headers with A2A's body."""

    def __init__(self, app: ASGIApp, refused_in: Callable[[Scope], AstromeshError | None]) -> None:
        super().__init__(app)
        self._refused_in = refused_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def checked(message: Message) -> None:
            refused = self._refused_in(scope)
            if refused is None:
                await send(message)
            elif message["type"] == "http.response.start":
                await error_response(refused, scope)(scope, receive, send)

        await super().__call__(scope, receive, checked)
