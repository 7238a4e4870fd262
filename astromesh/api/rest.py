"""The FastAPI application: every route, as its description shows it."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import State

from astromesh import __version__
from astromesh.api import handlers
from astromesh.api.routes import (
    agents,
    audit,
    channels,
    described,
    durable,
    feedback,
    health,
    mcp,
    observe,
    openai,
    principals,
    rag,
    results,
    runs,
    sessions,
    tools,
    workflows,
)
from astromesh.api.ws import router as ws_router

#: a run has spans and figures of its own; FastAPI would look for its own providers at every request
_NO_SECOND_TELEMETRY = TelemetryConfig(tracing=False, metrics=False, logs=False)

ROUTERS = (
    agents.router,
    channels.router,
    runs.router,
    feedback.router,
    durable.router,
    results.router,
    sessions.router,
    principals.router,
    tools.router,
    rag.router,
    workflows.router,
    observe.router,
    audit.router,
    openai.router,
    health.router,
    mcp.router,
    described.router,
    ws_router,
)


def rest_app(state: State) -> FastAPI:
    """Args: state: of the server, where its handlers find the runtime."""
    app = FastAPI(
        title="astromesh",
        version=__version__,
        openapi_url=None,  # described.router has it, with a scope
        telemetry=_NO_SECOND_TELEMETRY,
        redirect_slashes=False,  # a key would be sent, and a run asked for, twice
    )
    app.state = state
    handlers.register(app)
    for router in ROUTERS:
        # as they are: `include_router` would make every route a second time, at the first request
        app.router.routes.extend(router.routes)
    return app
