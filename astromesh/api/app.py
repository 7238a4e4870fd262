"""The FastAPI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from weakref import WeakSet

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.middleware.cors import CORSMiddleware

from astromesh import __version__
from astromesh.api import errors
from astromesh.api.auth import Auth, configured
from astromesh.api.body import BodyLimit
from astromesh.api.border import ROOM, Border, Room
from astromesh.api.direct import DirectRuns
from astromesh.api.outbox import Outbox
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
from astromesh.api.ws import ConnectionManager
from astromesh.api.ws import router as ws_router
from astromesh.runtime.audit import AuditLog
from astromesh.runtime.desk import open_desk
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.observed import add_readings
from astromesh.telemetry.metrics import Reading
from astromesh.telemetry.watchdog import Watchdog
from astromesh.telemetry.worker_tallies import WorkerTallies

_EVENTS_DROPPED = Reading(
    "events_dropped",
    "Events that clients did not get because they read too slowly.",
    (),
    lambda: {(): Outbox.dropped_by_all},
    counts=True,
)

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


def create_app(
    runtime: AgentRuntime,
    auth: Auth | None = None,
    *,
    max_body_bytes: int = 1 << 20,
    cors_origins: Sequence[str] = (),
    room: Room = ROOM,
    tallies: WorkerTallies | None = None,
) -> FastAPI:
    """The server around a runtime, which it closes at the end; it bootstraps one that is not open yet.

    Args:
        auth: who may do what; None: what `spec.auth` of runtime.yaml says.
        max_body_bytes: larger request bodies are refused with 413.
        cors_origins: browser origins whose pages may call, e.g. `https://app.example.com`, or `*`.
        tallies: where the processes of one server add up what they count; None for a server of one process.
        room: how many requests and sockets are taken at once; more are 503 at once.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if not runtime.is_open:
            await runtime.bootstrap()
        watchdog = Watchdog()
        add_readings(runtime, watchdog)
        runtime.metrics.add(_EVENTS_DROPPED)
        watchdog.start()
        if tallies is not None:
            tallies.start(runtime.metrics)
        try:
            app.state.auth = auth or await configured(runtime)
            app.state.desk = await open_desk(runtime)
            runtime.take_up()
            yield
        finally:
            await app.state.connections.close_all()
            await runtime.close()
            watchdog.stop()
            if tallies is not None:
                await tallies.stop()

    app = FastAPI(
        title="astromesh",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # described.router has it, with a scope
        telemetry=_NO_SECOND_TELEMETRY,
    )
    app.state.runtime = runtime
    app.state.connections = ConnectionManager()
    app.state.followers = WeakSet()
    app.state.audit = AuditLog(runtime.data_dir, runtime.clock)
    errors.register(app)
    for router in ROUTERS:
        # as they are: `include_router` would make every route a second time, at the first request
        app.router.routes.extend(router.routes)
    app.add_middleware(DirectRuns)
    app.add_middleware(BodyLimit, most=max_body_bytes)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Border, room=room, leaving=lambda: runtime.draining)
    return app
