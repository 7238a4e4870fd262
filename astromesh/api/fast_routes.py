"""Answers a run of an agent, the health checks and `/metrics` without FastAPI.

FastAPI's routing and dependencies cost about as much as a whole run, and loading it takes a third of a
server's start. The OpenAPI description lists these routes all the same, with the handlers and scopes of this
module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh import __version__
from astromesh.api import errors
from astromesh.api.auth import RemoteScope, RequiredScope
from astromesh.api.event_streams import RunStreamResponse
from astromesh.api.requests import (
    caller_of,
    cancel_on_disconnect,
    headers_of,
    idempotency_key,
    read_run_request,
    runtime_of,
    wants_stream,
)
from astromesh.errors import ApprovalRequired, AstromeshError, NotFound
from astromesh.runtime.monitoring import check_readiness
from astromesh.telemetry.metrics import exposition
from astromesh.types import JsonObject

RUN_PATH, LIVE_PATH, READY_PATH = "/v1/agents/{name}/run", "/health/live", "/health/ready"
#: a second name of LIVE_PATH, and the path of what Prometheus reads
HEALTH_PATH, METRICS_PATH = "/health", "/metrics"
RUN_SCOPE, METRICS_SCOPE = RequiredScope("agents:run", "name"), RemoteScope("metrics:read")
_HEAD, _TAIL = RUN_PATH.split("{name}")


async def run(name: str, request: Request) -> Response:
    """Runs an agent and returns its answer; with `Accept: text/event-stream` as server-sent events."""
    runtime = runtime_of(request)
    opened = runtime.directory.current
    agent = opened.agents.get(name) if opened is not None else None
    if agent is None:  # the directory knows why
        agent = runtime.directory.get(name)
    run_request = await read_run_request(request)
    start = partial(
        runtime.runner.start,
        agent,
        run_request,
        caller=caller_of(request),
        key=await idempotency_key(request),
    )
    accept = headers_of(request.scope).get("accept")
    if accept and wants_stream(accept):
        return RunStreamResponse(start, keep_running=agent.continues_on_disconnect)
    try:
        answer = await (start() if agent.continues_on_disconnect else cancel_on_disconnect(request, start()))
    except ApprovalRequired as waiting:  # the run continues without this caller
        body = {"run_id": waiting.run_id, "status": "waiting", "waiting_for": waiting.waiting_for}
        return json_response({**body, "links": links_of(f"/v1/runs/{waiting.run_id}")}, 202)
    return json_response(answer.to_json())


def json_response(content: JsonObject, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def links_of(path: str) -> JsonObject:
    return {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"}


async def live(request: Request) -> Response:
    """Answers 200 as long as the process answers at all."""
    return json_response({"status": "ok", "version": __version__})


async def ready(request: Request) -> Response:
    """Answers 200 where every declared store and provider answers; else, and while it shuts down, 503."""
    runtime = runtime_of(request)
    if runtime.runner.active.draining:
        body = {"status": "shutting_down", "checks": {}, "agents_without_model": [], "agents_unavailable": []}
        return json_response(body, 503)
    readiness = await check_readiness(runtime)
    body = {
        "status": "ready" if readiness.ready else "not_ready",
        "checks": {name: answer.code for name, answer in readiness.results.items()},
        "agents_without_model": list(readiness.agents_without_model),
        "agents_unavailable": list(readiness.agents_unavailable),
    }
    return json_response(body, 200 if readiness.ready else 503)


async def metrics(request: Request) -> Response:
    """Returns the metrics in the text exposition format of Prometheus."""
    return Response(exposition(runtime_of(request).metrics), media_type="text/plain; version=0.0.4")


async def authorised_metrics(request: Request) -> Response:
    await METRICS_SCOPE(request)
    return await metrics(request)


#: what an operator's tools read
_MONITORING: dict[str, Callable[[Request], Awaitable[Response]]] = {
    HEALTH_PATH: live,
    LIVE_PATH: live,
    READY_PATH: ready,
    METRICS_PATH: authorised_metrics,
}


class HealthOnly:
    """The innermost routes of a process that only works: health and metrics. Everything else is 404."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] in _MONITORING:
            await self._app(scope, receive, send)
        else:
            missing = NotFound(
                "This process serves health and metrics only (--role worker). Send requests to a server."
            )
            await errors.error_response(missing, scope)(scope, receive, send)


class FastRoutes:
    """The innermost ASGI middleware, so that the other middlewares apply to these requests too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        agent = agent_to_run(scope)
        monitor = None if agent else monitoring_endpoint(scope)
        if not agent and monitor is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if monitor is not None:
                response = await monitor(request)
            else:
                scope["path_params"] = {"name": agent}
                await RUN_SCOPE(request)
                response = await run(agent, request)
        except AstromeshError as error:
            response = await errors.handle_error(request, error)
        except ClientDisconnect as error:
            response = await errors.handle_disconnect(request, error)
        await response(scope, receive, send)


def agent_to_run(scope: Scope) -> str:
    """Returns the agent that a request runs, empty where it is another request."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
        return ""
    path: str = scope["path"]
    name = path[len(_HEAD) : -len(_TAIL)]
    return name if path == f"{_HEAD}{name}{_TAIL}" and "/" not in name else ""


def monitoring_endpoint(scope: Scope) -> Callable[[Request], Awaitable[Response]] | None:
    """Returns the handler of a health check or of `/metrics`, None where it is another request."""
    if scope["type"] != "http" or scope["method"] != "GET" or scope.get("root_path"):
        return None
    return _MONITORING.get(scope["path"])
