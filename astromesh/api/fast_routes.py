"""Routes that are answered before FastAPI is loaded: a run of an agent, liveness and readiness.

FastAPI's routing and dependencies cost about as much as a whole run, and loading FastAPI takes a third of
a start. The
OpenAPI description lists these routes all the same; it declares the handlers and scopes of this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh.api import errors, health
from astromesh.api.auth import RequiredScope, caller_of, runtime_of
from astromesh.api.idempotency import idempotency_key
from astromesh.api.requests import (
    ClientDisconnected,
    cancel_on_disconnect,
    headers_of,
    read_run_request,
    wants_stream,
)
from astromesh.api.responses import EventBuffer, RunStreamResponse
from astromesh.errors import ApprovalRequired, AstromeshError
from astromesh.types import JsonObject

RUN_PATH = "/v1/agents/{name}/run"


RUN_SCOPE = RequiredScope("agents:run", "name")


async def run(name: str, request: Request) -> Response:
    """One run, answered when it is done; with `Accept: text/event-stream` as server-sent events."""
    runtime = runtime_of(request)
    agent = runtime.agent(name)
    asked = await read_run_request(request)
    start = partial(
        runtime.start, agent, asked, caller=caller_of(request), key=await idempotency_key(request)
    )
    if wants_stream(headers_of(request.scope).get("accept", "")):
        outbox = EventBuffer()
        return RunStreamResponse(
            outbox, partial(start, sinks=(outbox,)), keep_running=agent.continues_on_disconnect
        )
    try:
        answer = await (start() if agent.continues_on_disconnect else cancel_on_disconnect(request, start()))
    except ClientDisconnected:
        return Response(status_code=499)
    except ApprovalRequired as waits:
        return _waiting_response(waits)
    return Response(orjson.dumps(answer.to_json()), media_type="application/json")


def run_links(run_id: str) -> JsonObject:
    """Where to ask about a run."""
    path = f"/v1/runs/{run_id}"
    return {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"}


def _waiting_response(error: ApprovalRequired) -> Response:
    """The run has paused for a person; it goes on without this caller."""
    body = {
        "run_id": error.run_id,
        "status": "waiting",
        "waiting_for": error.waiting_for,
        "links": run_links(error.run_id),
    }
    return Response(orjson.dumps(body), 202, media_type="application/json")


# Runs of agents and looks at the server's health, answered before the routes of FastAPI are looked at.
#
# What FastAPI does for a request, its dependencies and its routing, costs about as much as a whole run, and
# loading it takes a third of a start. The routes themselves stay what they are, for the OpenAPI description;
# their guards and handlers are the ones used here.

_HEAD, _TAIL = RUN_PATH.split("{name}")


_HEALTH: dict[str, Callable[[Request], Awaitable[Response]]] = {
    health.LIVE: health.live,
    health.READY: health.ready,
}


class FastRoutes:
    """ASGI middleware; the innermost one, so that everything around it holds for these requests too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = agent_to_run(scope)
        look = None if name else health_endpoint(scope)
        if not name and look is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await (look(request) if look else _run(request, name))
        except AstromeshError as error:
            response = await errors.handle_error(request, error)
        except ClientDisconnect as error:
            response = await errors.handle_disconnect(request, error)
        await response(scope, receive, send)


async def _run(request: Request, name: str) -> Response:
    request.scope["path_params"] = {"name": name}
    await RUN_SCOPE(request)
    return await run(name, request)


def agent_to_run(scope: Scope) -> str:
    """The agent that a request asks to run; empty where it is another request."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
        return ""
    path: str = scope["path"]
    name = path[len(_HEAD) : -len(_TAIL)]
    return name if path == f"{_HEAD}{name}{_TAIL}" and "/" not in name else ""


def health_endpoint(scope: Scope) -> Callable[[Request], Awaitable[Response]] | None:
    """What answers a request for the server's health; None where it is another request."""
    if scope["type"] != "http" or scope["method"] != "GET" or scope.get("root_path"):
        return None
    return _HEALTH.get(scope["path"])
