"""`/mcp`: each agent as an MCP tool, with the authorisation of the HTTP routes.

The first request loads the SDK, in a thread. Without a request, the server does not load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh.access.scopes import RUN, permits
from astromesh.api.dependencies import scope
from astromesh.api.requests import RunBody, caller_of, runtime_of
from astromesh.errors import AgentNotFoundError, Forbidden, InvalidInput, MissingExtra, NotFound
from astromesh.plugins import Deps
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import JsonObject, ToolSpec

router = APIRouter(tags=["mcp"])

_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "minLength": 1,
            "description": "The question with all its context.",
        },
        "session_id": {
            "type": "string",
            "minLength": 1,
            "description": "Names a conversation to continue; without it, each call is a new one.",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}


class _DelegatedResponse(Response):
    """A response that another ASGI application sends."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


@router.post(
    "/mcp",
    summary="The agents as MCP tools",
    include_in_schema=False,
    dependencies=[scope(RUN, any_resource=True)],
)
async def mcp(request: Request) -> Response:
    """Serves MCP over streamable HTTP. POST is the only method: there are no sessions and no streams."""
    return _DelegatedResponse(await _mcp_server(runtime_of(request)))


async def _mcp_server(runtime: AgentRuntime) -> Any:
    return await runtime.state.resources.shared(_DelegatedResponse, lambda: _McpServer(runtime))


class _McpServer:
    """The MCP server of a runtime, opened once."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime

    async def __aenter__(self) -> Any:
        try:
            plugin = await asyncio.to_thread(self._runtime.plugins.load, "publishers", "mcp")
        except MissingExtra as error:
            raise NotFound(f"This server publishes no MCP tools: {error}") from error
        options = plugin.Options(tools=_tools, call=_call)
        return await plugin.open(options, Deps(resources=self._runtime.state.resources))

    async def __aexit__(self, *_: object) -> None:
        """Does nothing: the server is one of the runtime's resources and closes with them."""


def _tools(request: Request) -> Iterator[ToolSpec]:
    """The agents that this caller may run."""
    caller = caller_of(request)
    for name, agent in runtime_of(request).agents.items():
        if permits(caller.scopes, RUN, name):
            description = agent.manifest.spec.identity.description or f"Asks the agent {name}."
            yield ToolSpec(name, description, _PARAMETERS, "external")


def _run_arguments(arguments: JsonObject) -> JsonObject:
    """Returns the arguments that have a value. Raises: InvalidInput: one is unknown."""
    if unknown := sorted(arguments.keys() - _PARAMETERS["properties"].keys()):
        raise InvalidInput(f"Unknown argument {unknown[0][:64]!r}: an agent takes query and session_id.")
    return {key: value for key, value in arguments.items() if value not in (None, "")}


async def _call(request: Request, name: str, arguments: JsonObject) -> str:
    """Raises: Forbidden, AgentNotFoundError, InvalidInput, and what a run raises."""
    caller = caller_of(request)
    runtime = runtime_of(request)
    if not permits(caller.scopes, RUN, name):
        raise Forbidden(f"This call needs the scope '{RUN}:{name}'.")
    if name not in runtime.agents and name not in runtime.broken:
        raise AgentNotFoundError(name, "tools/list names those that you may run.")
    try:
        body = RunBody.model_validate({"session_id": f"mcp-{uuid4().hex}", **_run_arguments(arguments)})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInput(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}.") from error
    caused_by = read_traceparent(request.headers.get("traceparent"))
    run_request = RunRequest(body.query, body.session_id, caused_by=caused_by)
    return (await runtime.runner.start(runtime.agent(name), run_request, caller=caller)).response
