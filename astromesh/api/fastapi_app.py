"""The FastAPI application: every route, and every error as a problem document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from astromesh import __version__
from astromesh.api.errors import (
    error_response,
    handle_crash,
    handle_disconnect,
    handle_error,
    problem_body,
    response_of,
    validation_detail,
)
from astromesh.api.openapi import TAGS, DescribedFastAPI
from astromesh.api.routes import (
    a2a,
    agents,
    agui,
    evaluations,
    mcp,
    observability,
    open_responses,
    openai,
    operations,
    pages,
    principals,
    rag,
    runs,
    schedules,
    time_travel,
    workflows,
)
from astromesh.api.ws import ConnectionManager
from astromesh.api.ws import router as ws_router
from astromesh.errors import AstromeshError, InvalidInput, MethodNotAllowed, NotFound, RequestError

#: a run has its own spans and metrics; FastAPI would look for its own providers at every request
_NO_TELEMETRY = TelemetryConfig(tracing=False, metrics=False, logs=False)

ROUTERS = (
    a2a.router,
    agents.router,
    agui.router,
    operations.channels_router,
    time_travel.router,
    runs.router,
    operations.callbacks_router,
    schedules.router,
    agents.sessions_router,
    principals.router,
    principals.keys_router,
    agents.tools_router,
    rag.router,
    workflows.router,
    evaluations.router,
    operations.router,
    observability.router,
    openai.router,
    open_responses.router,
    observability.health_router,
    mcp.router,
    pages.router,
    ws_router,
)


def create_fastapi_app(state: State) -> FastAPI:
    """Returns the application. Args: state: the server's, where handlers find the runtime."""
    app = DescribedFastAPI(
        title="astromesh",
        version=__version__,
        description="Runs agents and workflows, and shows what they did.",
        contact={"name": "The astromesh authors"},
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The server of this description."}],
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        openapi_url=None,  # pages.router serves it, with a scope
        telemetry=_NO_TELEMETRY,
        redirect_slashes=False,  # a client would send its key, and start its run, twice
    )
    app.state = state
    state.connections = ConnectionManager()
    add_exception_handlers(app)
    for router in ROUTERS:
        # `include_router` would make every route a second time, at the first request
        app.router.routes.extend(router.routes)
    return app


def add_exception_handlers(app: FastAPI) -> None:
    """Encodes every error as a problem document, those of the framework too."""
    app.add_exception_handler(AstromeshError, handle_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(ClientDisconnect, handle_disconnect)
    app.add_exception_handler(Exception, handle_crash)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    place, *names = faults[0]["loc"] if faults else ("",)
    param = str(names[0]) if names and place != "header" else ""
    return error_response(InvalidInput(validation_detail(faults), param=param), request.scope)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(
            NotFound(f"There is no route {request.url.path}. GET /openapi.json lists the routes."),
            request.scope,
        )
    if error.status_code == 405:
        return _handle_method(request)
    body = problem_body(error.status_code, RequestError.code, str(error.detail))
    response = response_of(error.status_code, body, request.scope)
    response.headers.update(error.headers or {})
    return response


def _handle_method(request: Request) -> Response:
    """Answers OPTIONS, and refuses methods that a path does not accept. Both name all that it accepts."""
    routes: Iterable[Any] = request.app.router.routes
    matching = [route for route in routes if route.matches(request.scope)[0] != Match.NONE]
    found = {method for route in matching for method in route.methods}
    allowed = ", ".join(sorted({*found, "OPTIONS", *(("HEAD",) if "GET" in found else ())}))
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"allow": allowed})
    error = MethodNotAllowed(f"{request.url.path} accepts {allowed}, not {request.method}.")
    response = error_response(error, request.scope)
    response.headers["allow"] = allowed
    return response
