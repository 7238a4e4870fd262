"""The server as an ASGI application: its middleware, its lifespan, and its response to a crash."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

from starlette.datastructures import State
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from astromesh.access.audit import AuditLog
from astromesh.api import errors
from astromesh.api.auth import Auth, auth_from_config
from astromesh.api.event_streams import EventBuffer
from astromesh.api.fast_routes import FastRoutes, HealthOnly
from astromesh.api.middleware.limits import (
    DEFAULT_LIMITS,
    BodyLimit,
    ConcurrencyLimits,
    FairStart,
    RequestLimits,
)
from astromesh.api.middleware.response import RESPONSE_STARTED, as_get, wrap_send
from astromesh.api.middleware.server_span import RequestTrace, is_traced
from astromesh.errors import ShuttingDown
from astromesh.logs import get_logger
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.inbox import open_inbox_worker
from astromesh.runtime.monitoring import add_gauges
from astromesh.telemetry.metrics import MetricReading, WorkerMetrics
from astromesh.telemetry.watchdog import Watchdog

log = get_logger("astromesh.api")

_EVENTS_DROPPED = MetricReading(
    "events_dropped",
    "Events that clients did not get because they read too slowly.",
    (),
    lambda: {(): EventBuffer.dropped_by_all},
    is_counter=True,
)
#: what pages of other origins may read besides what browsers always show
EXPOSED_HEADERS = ("retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
_STOPPED = "The server stopped before it finished this request. Send the request again."


class LazyFastAPI:
    """The FastAPI application with every route, loaded with the first request that needs one.

    Loading it takes half a second and 20 MiB. Runs, health checks and `/metrics` need none.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._app: ASGIApp | None = None
        self._load_task: asyncio.Task[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self.load()
        await app(scope, receive, send)

    @property
    def is_loaded(self) -> bool:
        return self._app is not None

    async def load(self) -> ASGIApp:
        """Loads the application in a thread, once for all callers. The next call retries a failed load."""
        if self._app is None:
            if self._load_task is None or self._load_task.done():
                self._load_task = asyncio.create_task(asyncio.to_thread(self._load))
            self._app = await asyncio.shield(self._load_task)
        return self._app

    def _load(self) -> ASGIApp:
        from astromesh.api.fastapi_app import create_fastapi_app

        app = create_fastapi_app(self._state)
        if gc.get_freeze_count():  # a serving process keeps it: no collection looks at it again
            gc.freeze()
        return app


class Server:
    """The ASGI application.

    Args:
        state: where handlers find the runtime and what belongs to it.
        rest: the routes of FastAPI.
        middleware: what requests and sockets pass before they reach a route.
        lifespan: what happens before the first request and after the last.
        watchdog: measures the event loop while there are requests or runs.
    """

    def __init__(
        self,
        state: State,
        rest: LazyFastAPI,
        middleware: ASGIApp,
        lifespan: Lifespan[Any],
        watchdog: Watchdog,
    ) -> None:
        self.state, self.rest, self._middleware, self._watchdog = state, rest, middleware, watchdog
        self.router = Router(lifespan=lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "lifespan":
            await self.router.lifespan(scope, receive, send)
            return
        self._watchdog.touch()
        is_http = scope["type"] == "http"
        if is_http and scope["method"] == "HEAD":
            scope, receive, send = as_get(scope, receive, send)
        send = wrap_send(scope, send)
        exporter, trace = self.state.runtime.runner.exporter, None
        if exporter is not None and is_http and is_traced(scope):
            trace = RequestTrace(scope, exporter)
            send = trace.watch(send)
        try:
            await self._middleware(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_shutdown_cancel():
                raise
            if is_http and not scope["state"].get(RESPONSE_STARTED):
                await errors.error_response(ShuttingDown(_STOPPED), scope)(scope, receive, send)
        except Exception as error:  # a crash of a route: the client gets a 500, and uvicorn logs it
            if is_http and not scope["state"].get(RESPONSE_STARTED):
                response = await errors.handle_crash(Request(scope), error)
                await response(scope, receive, send)
            raise
        finally:
            if trace is not None:
                trace.end()

    def _is_shutdown_cancel(self) -> bool:
        """Whether the server itself ends the request, because it shuts down and the request's time is up."""
        task = asyncio.current_task()
        return bool(self.state.runtime.runner.active.draining) and task is not None and task.uncancel() == 0


def create_app(  # noqa: PLR0913 (what a server is made of)
    runtime: AgentRuntime,
    auth: Auth | None = None,
    *,
    max_body_bytes: int = 1 << 20,
    cors_origins: Sequence[str] = (),
    limits: ConcurrencyLimits = DEFAULT_LIMITS,
    tallies: WorkerMetrics | None = None,
    takes_requests: bool = True,
) -> Server:
    """Returns the server around a runtime.

    The server bootstraps a runtime that is not open yet, and closes the runtime at its end.

    Args:
        auth: who may do what; None: what `spec.auth` of runtime.yaml says.
        max_body_bytes: the server refuses larger request bodies with 413.
        cors_origins: browser origins whose pages may call, e.g. `https://app.example.com`, or `*`.
        limits: how many requests and sockets the server accepts at once; it answers more with 503.
        tallies: where the processes of one server add up their metrics; None for a server of one process.
        takes_requests: False: the server answers health checks and `/metrics` only.
    """
    state = State(
        {
            "runtime": runtime,
            "followers": WeakSet(),
            "fair_start": FairStart(),
            "audit": AuditLog(runtime.data_dir, runtime.clock),
        }
    )
    rest = LazyFastAPI(state)
    watchdog = Watchdog(lambda: runtime.active_work > 0)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        if not runtime.is_open:
            await runtime.bootstrap()
        add_gauges(runtime, watchdog)
        runtime.metrics.add(_EVENTS_DROPPED)
        watchdog.start()
        if tallies is not None:
            tallies.start(runtime.metrics)
        try:
            state.auth = auth or await auth_from_config(runtime)
            state.inbox_worker = await open_inbox_worker(runtime)
            runtime.resume_pending(shared=tallies is not None or not takes_requests)
            yield
        finally:
            if (connections := getattr(state, "connections", None)) is not None:  # FastAPI is loaded
                await connections.close_all()
            await runtime.close()
            watchdog.stop()
            if tallies is not None:
                await tallies.stop()

    routes: ASGIApp = FastRoutes(rest)
    middleware: ASGIApp = BodyLimit(
        routes if takes_requests else HealthOnly(routes), max_bytes=max_body_bytes
    )
    if cors_origins:
        middleware = CORSMiddleware(
            middleware,
            allow_origins=list(cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    return Server(state, rest, RequestLimits(middleware, limits, state.fair_start), lifespan, watchdog)
