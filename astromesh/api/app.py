"""The server as an ASGI application: what every request passes, and what is answered by whom."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import structlog
from starlette.datastructures import State
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from astromesh.api import errors
from astromesh.api.auth import Auth, configured
from astromesh.api.body import BodyLimit
from astromesh.api.border import ROOM, Border, Room
from astromesh.api.connections import ConnectionManager
from astromesh.api.direct import Direct
from astromesh.api.outbox import Outbox
from astromesh.api.turns import Turns
from astromesh.runtime.audit import AuditLog
from astromesh.runtime.desk import open_desk
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.observed import add_readings
from astromesh.telemetry.metrics import Reading
from astromesh.telemetry.watchdog import Watchdog
from astromesh.telemetry.worker_tallies import WorkerTallies

log = structlog.get_logger("astromesh.api")

_EVENTS_DROPPED = Reading(
    "events_dropped",
    "Events that clients did not get because they read too slowly.",
    (),
    lambda: {(): Outbox.dropped_by_all},
    counts=True,
)
#: seconds without a run after which a server loads what no run has needed, and how often it waits for that
_MOMENT, _MOMENTS = 1.0, 60


class Rest:
    """The FastAPI application with every route, loaded when a server has nothing else to do.

    Loading it takes a third of a server's start, and no run needs it. A request that does waits for it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._app: ASGIApp | None = None
        self._loading: asyncio.Task[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self.loaded()
        await app(scope, receive, send)

    @property
    def is_loaded(self) -> bool:
        return self._app is not None

    async def loaded(self) -> ASGIApp:
        """Loads it in a thread, once for all who wait, whoever of them leaves; what failed is tried again."""
        if self._app is None:
            if self._loading is None or self._loading.done():
                self._loading = asyncio.create_task(asyncio.to_thread(self._load))
            self._app = await asyncio.shield(self._loading)
        return self._app

    def _load(self) -> ASGIApp:
        from astromesh.api.rest import rest_app

        return rest_app(self._state)


class Server:
    """The ASGI application. What it answers outside of `rest` is there from the start.

    Args:
        state: where handlers find the runtime and what belongs to it.
        rest: the routes of FastAPI.
        passed: what requests and sockets pass before they come to it.
        lifespan: what happens before the first request and after the last.
    """

    def __init__(self, state: State, rest: Rest, passed: ASGIApp, lifespan: Lifespan[Any]) -> None:
        self.state, self.rest, self._passed = state, rest, passed
        self.router = Router(lifespan=lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "lifespan":
            await self.router.lifespan(scope, receive, send)
            return
        try:
            await self._passed(scope, receive, send)
        except Exception as error:  # the border of the server: whoever asked is told, whoever runs it too
            if scope["type"] == "http" and not scope["state"].get("answering"):
                response = await errors.crashed(Request(scope), error)
                await response(scope, receive, send)
            raise


def create_app(
    runtime: AgentRuntime,
    auth: Auth | None = None,
    *,
    max_body_bytes: int = 1 << 20,
    cors_origins: Sequence[str] = (),
    room: Room = ROOM,
    tallies: WorkerTallies | None = None,
) -> Server:
    """The server around a runtime, which it closes at the end; it bootstraps one that is not open yet.

    Args:
        auth: who may do what; None: what `spec.auth` of runtime.yaml says.
        max_body_bytes: larger request bodies are refused with 413.
        cors_origins: browser origins whose pages may call, e.g. `https://app.example.com`, or `*`.
        tallies: where the processes of one server add up what they count; None for a server of one process.
        room: how many requests and sockets are taken at once; more are 503 at once.
    """
    state = State(
        {
            "runtime": runtime,
            "connections": ConnectionManager(),
            "followers": WeakSet(),
            "turns": Turns(),
            "audit": AuditLog(runtime.data_dir, runtime.clock),
        }
    )
    rest = Rest(state)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        if not runtime.is_open:
            await runtime.bootstrap()
        watchdog = Watchdog()
        add_readings(runtime, watchdog)
        runtime.metrics.add(_EVENTS_DROPPED)
        watchdog.start()
        if tallies is not None:
            tallies.start(runtime.metrics)
        try:
            state.auth = auth or await configured(runtime)
            state.desk = await open_desk(runtime)
            runtime.take_up()
            loading = asyncio.create_task(_load_in_peace(rest, runtime))
            try:
                yield
            finally:
                loading.cancel()
        finally:
            await state.connections.close_all()
            await runtime.close()
            watchdog.stop()
            if tallies is not None:
                await tallies.stop()

    passed: ASGIApp = BodyLimit(Direct(rest), most=max_body_bytes)
    if cors_origins:
        passed = CORSMiddleware(
            passed, allow_origins=list(cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    return Server(state, rest, Border(passed, room, lambda: runtime.draining, state.turns), lifespan)


async def _load_in_peace(rest: Rest, runtime: AgentRuntime) -> None:
    """Loads the routes once no run has gone on for a moment: it takes half a second of a processor."""
    seen = runtime.activity
    for _ in range(_MOMENTS):
        await asyncio.sleep(_MOMENT)
        before, seen = seen, runtime.activity
        if seen == before and seen[0] == 0:
            break
    try:
        await rest.loaded()
    except Exception:
        log.exception("routes_not_loaded")
    if gc.get_freeze_count():  # whoever serves does not look again at what stays
        gc.freeze()
