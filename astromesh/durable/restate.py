"""Dispatches segments through a Restate server, which decides when and in which process each one begins.

Restate holds what it must do and nothing of a run: the id of the run and the number of its segment, in a
virtual object for each session, and the times at which a process looks for due work. The row of the run
stays the truth, and its claim decides who executes it. So Restate may call twice, and may lose everything:
the sweep of a worker sends again what stays queued.

The workers serve the handlers in a thread with an event loop of its own, because the SDK and its server set
signal handlers where they can. The segments run in the loop of the worker.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from datetime import timedelta
from hashlib import sha256
from threading import Thread
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlsplit

import orjson
import restate
import uvicorn
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from astromesh.durable.base import RunRow, RunSegment, Wake, partition_of
from astromesh.errors import AstromeshError, ConfigError, Unavailable
from astromesh.logs import OutageLog, get_logger
from astromesh.net.http import Http, HttpResponse
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock

#: names at the Restate server
SESSION, TIMER = "AstromeshSession", "AstromeshTimer"
#: of the admin API, beside an ingress without a URL of its own
_ADMIN_PORT = 9070
#: seconds for which a start waits for the server
_START_SECONDS = 2.0
#: seconds of one call; seconds between two attempts to register, the first and at most
_TIMEOUT_SECONDS, _FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 0.2, 5.0
_NOT_FOUND = 404
_URL = r"^(https?://[^\s/]+.*)?$"
#: Restate calls again as long as the run is another process's, about five minutes. Then it forgets the call,
#: and a sweep sends the run again if it is still queued: no call to a lost deployment holds a session
_RETRIES = restate.InvocationRetryPolicy(
    initial_interval=timedelta(milliseconds=50),
    exponentiation_factor=2.0,
    max_interval=timedelta(seconds=2),
    max_attempts=150,
    on_max_attempts="kill",
)
#: a segment may take so long; Restate would interrupt what is silent for longer
_LONGEST_SEGMENT = timedelta(days=30)
_NOTHING = timedelta(0)

T = TypeVar("T")
log = get_logger("astromesh.durable")


def _is_address(text: str) -> str:
    Listener.parse(text)
    return text


class RestateOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    listen: Annotated[str, AfterValidator(_is_address)] = Field(
        "127.0.0.1:9080",
        pattern=r"^(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):\d{1,5}$",
        description="HOST:PORT where this process serves what Restate calls; workers of a machine share it.",
    )
    deployment_url: str = Field(
        "",
        pattern=_URL,
        description="Where Restate reaches the workers, e.g. their load balancer; empty: at listen.",
    )
    admin_url: str = Field(
        "", pattern=_URL, description="Admin API of Restate; empty: port 9070 of the host in url."
    )
    identity_keys: list[Annotated[str, Field(pattern=r"^publickeyv1_[1-9A-HJ-NP-Za-km-z]+$")]] = Field(
        [], description="Public keys (publickeyv1_…) with which Restate signs its calls; none: not checked."
    )


class Listener(NamedTuple):
    """An address to listen on."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: ValueError: there is no such port."""
        parts = urlsplit(f"//{text}")
        return cls(parts.hostname or "127.0.0.1", parts.port or 0)

    def bound(self) -> socket.socket:
        """Returns a socket that shares its port with the other workers of this machine.

        Raises:
            ConfigError: the address is taken, or is none of this machine.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            opened.bind((self.host, self.port))
        except OSError as error:
            opened.close()
            raise ConfigError(
                f"durable.restate.listen: {self.host}:{self.port} cannot be opened: {error.strerror}."
            ) from error
        return opened


class RestateBackend:
    """A DurableBackend over a Restate server.

    Args:
        http: makes the calls to the ingress and the admin API.
    """

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        url: str = Field(
            pattern=_URL, min_length=1, description="Ingress of Restate, e.g. http://localhost:8080."
        )
        restate: RestateOptions = Field(
            RestateOptions(), description="How Restate and the workers reach each other."
        )

    name: ClassVar[str] = "restate"
    places: ClassVar[bool] = True

    def __init__(self, options: Options, http: Http, clock: Clock) -> None:
        more = options.restate
        self._url, self._http, self._clock = options.url.rstrip("/"), http, clock
        self._admin_url = (more.admin_url or _admin_beside(options.url)).rstrip("/")
        self._listener, self._deployment_url = Listener.parse(more.listen), more.deployment_url
        self._identity_keys = more.identity_keys
        self._handlers: _Handlers | None = None
        self._wake: Wake | None = None
        self._registering: asyncio.Task[None] | None = None
        self._outages = OutageLog(log, "restate_away", "restate_back", address=self._url)

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Self:
        return cls(options, deps.http, deps.clock)

    async def ping(self) -> None:
        """Raises: NetError, Unavailable: the server does not answer."""
        _require(await self._http.request("GET", f"{self._url}/restate/health", timeout=_TIMEOUT_SECONDS))

    async def start(self, work: RunSegment, wake: Wake) -> None:
        """Serves the handlers, and registers them as soon as the Restate server answers.

        Raises:
            ConfigError: the address to listen on cannot be opened.
        """
        opened = self._listener.bound()
        if not self._deployment_url:
            host = f"[{self._listener.host}]" if ":" in self._listener.host else self._listener.host
            self._deployment_url = f"http://{host}:{opened.getsockname()[1]}"
        self._wake, self._handlers = wake, _Handlers(work, wake, self._identity_keys)
        await self._handlers.start(opened)
        await asyncio.wait([self._register_soon()], timeout=_START_SECONDS)

    async def dispatch(self, run: RunRow) -> None:
        """Sends a segment to its session, to begin at its `wake_at`, unless Restate has it already.

        Raises:
            NetError, Unavailable: the server did not accept it.
        """
        target = f"{SESSION}/{quote(_session_of(run), safe='')}/run"
        body = {"run_id": run.run_id, "segment": run.segment}
        await self._send(target, body, f"{run.run_id}/{run.segment}", run.wake_at)

    async def wake_at(self, name: str, at: float) -> None:
        """Asks for a call of `wake` in one of the workers. Times within a second are one call."""
        second = int(at) + 1
        await self._send(f"{TIMER}/wake", {"name": name, "at": second}, f"{name}/{second}", second)

    async def drain(self) -> None:
        """Listens no more: Restate calls other workers. Active segments continue."""
        await self._stop_registering()
        if self._handlers is not None:
            self._handlers.drain()

    async def close(self) -> None:
        await self.drain()
        if self._handlers is not None:
            await self._handlers.close()

    async def _send(self, target: str, body: dict[str, Any], key: str, at: float) -> None:
        """Sends one call, once for each key as long as Restate has not answered it."""
        delay = at - self._clock.now() if at else 0.0
        url = f"{self._url}/{target}/send"
        if delay > 0:
            url, key = f"{url}?delay={int(delay * 1000) + 1}ms", f"{key}/{at:g}"
        try:
            response = await self._http.request(
                "POST", url, body=orjson.dumps(body), timeout=_TIMEOUT_SECONDS,
                headers={"content-type": "application/json", "idempotency-key": key},
            )  # fmt: skip
            if response.status == _NOT_FOUND and self._handlers is not None:  # it has lost the registration
                self._register_soon()
            _require(response)
        except AstromeshError as error:
            self._outages.failed(str(error))
            raise
        self._outages.succeeded()

    def _register_soon(self) -> asyncio.Task[None]:
        if self._registering is None or self._registering.done():
            self._registering = asyncio.create_task(self._register())
        return self._registering

    async def _stop_registering(self) -> None:
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait([self._registering])

    async def _register(self) -> None:
        """Registers the handlers until the server accepts them; to repeat that has no effect."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._register_once()
            except AstromeshError as error:
                self._outages.failed(str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                log.info("restate_registered", deployment=self._deployment_url)
                if self._wake is not None:
                    self._wake("queued")
                return

    async def _register_once(self) -> None:
        body = {"uri": self._deployment_url, "use_http_11": True, "force": False}
        _require(
            await self._http.request(
                "POST",
                f"{self._admin_url}/deployments",
                body=orjson.dumps(body),
                headers={"content-type": "application/json"},
                timeout=4 * _TIMEOUT_SECONDS,
            )
        )


class _Handlers:
    """What Restate calls: the handlers of one process, served in a thread."""

    def __init__(self, work: RunSegment, wake: Wake, identity_keys: list[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._work, self._wake = work, wake
        app = restate.app(self._objects(), protocol="request_response", identity_keys=identity_keys or None)
        self._server = uvicorn.Server(
            uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
        )
        self._thread: Thread | None = None

    def _objects(self) -> list[restate.VirtualObject | restate.Service]:
        options: dict[str, Any] = {
            "idempotency_retention": _NOTHING,
            "journal_retention": _NOTHING,
            "inactivity_timeout": _LONGEST_SEGMENT,
            "abort_timeout": _LONGEST_SEGMENT,
            "invocation_retry_policy": _RETRIES,
        }
        session = restate.VirtualObject(SESSION, **options)
        timer = restate.Service(TIMER, **options)

        @session.handler()
        async def run(_context: restate.ObjectContext, call: dict[str, Any]) -> dict[str, Any]:
            """Executes one segment of one run."""
            drains = self._server.should_exit  # which its thread notices a moment later
            if drains or not await self._in_worker(self._work(call["run_id"], call["segment"])):
                raise restate.exceptions.RetryableError(
                    "Another process executes the run, or this one is full."
                )
            return call

        @timer.handler()
        async def wake(_context: restate.Context, call: dict[str, Any]) -> None:
            """Looks for what is due at this time."""
            self._loop.call_soon_threadsafe(self._wake, call["name"])

        return [session, timer]

    async def _in_worker(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def start(self, opened: socket.socket) -> None:
        self._thread = Thread(
            target=self._server.run, args=([opened],), name="astromesh-restate", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():  # noqa: ASYNC110 (another thread sets it)
            await asyncio.sleep(0.01)

    def drain(self) -> None:
        self._server.should_exit = True

    async def close(self) -> None:
        """Ends calls that are active; Restate repeats them elsewhere."""
        self._server.should_exit = self._server.force_exit = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)


def _session_of(run: RunRow) -> str:
    """Returns the key of the virtual object: the agent and a hash, so that Restate has no name of a person.

    Runs without an order have one each.
    """
    whole = partition_of(run) if run.ordered else f"{partition_of(run)}/{run.run_id}"
    return f"{run.agent}-{sha256(whole.encode()).hexdigest()[:24]}"


def _admin_beside(url: str) -> str:
    """Returns the URL of the admin API at its usual port of the same host."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{_ADMIN_PORT}"


def _require(response: HttpResponse) -> None:
    """Raises: Unavailable: Restate did not accept the call."""
    if not 200 <= response.status < 300:
        detail = response.body[:300].decode(errors="replace")
        raise Unavailable(f"The Restate server answered {response.status}: {detail}")
