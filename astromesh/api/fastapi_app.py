"""The FastAPI application: every route, as its description shows it."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import State

from astromesh import __version__
from astromesh.api import exception_handlers
from astromesh.api.routes import (
    agents,
    channels,
    docs,
    mcp,
    observability,
    openai,
    principals,
    rag,
    runs,
    sessions,
    workflows,
)
from astromesh.api.ws import router as ws_router

#: a run has spans and figures of its own; FastAPI would look for its own providers at every request
_NO_TELEMETRY = TelemetryConfig(tracing=False, metrics=False, logs=False)

ROUTERS = (
    agents.router,
    channels.router,
    runs.router,
    sessions.router,
    principals.router,
    agents.tools_router,
    rag.router,
    workflows.router,
    observability.router,
    openai.router,
    observability.health_router,
    mcp.router,
    docs.router,
    ws_router,
)


def create_fastapi_app(state: State) -> FastAPI:
    """Args: state: of the server, where its handlers find the runtime."""
    app = FastAPI(
        title="astromesh",
        version=__version__,
        openapi_url=None,  # described.router has it, with a scope
        telemetry=_NO_TELEMETRY,
        redirect_slashes=False,  # a key would be sent, and a run asked for, twice
    )
    app.state = state
    exception_handlers.add_exception_handlers(app)
    for router in ROUTERS:
        # as they are: `include_router` would make every route a second time, at the first request
        app.router.routes.extend(router.routes)
    return app
