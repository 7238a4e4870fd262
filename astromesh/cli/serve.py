"""`astromesh serve`: the configuration checked, a port taken, then uvicorn until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import structlog
import uvicorn
import uvloop
from uvicorn.supervisors import Multiprocess

from astromesh.api.app import Server, create_app
from astromesh.api.border import Room
from astromesh.cli import lean
from astromesh.cli.called import called
from astromesh.cli.configuration import sound
from astromesh.cli.draining import drain_first
from astromesh.cli.folders import CONFIG, DATA
from astromesh.cli.listening import BACKLOG, is_everywhere, listen, url_of
from astromesh.cli.output import note
from astromesh.cli.protocol import BoundedHttp
from astromesh.config.configuration import Configuration
from astromesh.config.runtime import RuntimeSpec
from astromesh.errors import ConfigError
from astromesh.runtime.engine import AgentRuntime
from astromesh.storage.folder import trouble_with
from astromesh.telemetry.logs import configure_logging
from astromesh.telemetry.worker_tallies import WorkerTallies

log = structlog.get_logger("astromesh.server")

#: names the folder in which the processes of one server add up what they count
TALLIES = "ASTROMESH_TALLIES"
#: seconds that runs get after SIGTERM, and requests that are still answered then
GRACE, _GRACE_OF_ANSWERS = 30, 5
#: a search by vectors takes one core: threads of OpenBLAS that wait for a busy core made it five times slower
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")
QUESTION = "How do I get started?"
#: the agent that the README begins with; where it is not there, the first is proposed
WELCOMING = "support-agent"


def serve(places: tuple[Path, Path], host: str, port: int | None, workers: int, *, strict: bool) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        places: folders of the configuration and of the data.
        host, port: instead of those of runtime.yaml, where given.

    Raises:
        ConfigError: faults of the configuration, or an address that cannot or must not be used.
    """
    os.environ.setdefault(*_ONE_THREAD)
    configuration = sound(places[0], strict=strict)
    spec = configuration.runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    listener = listen(
        host or spec.api.host,
        spec.api.port if port is None else port,
        authenticated=spec.auth.mode != "none",
    )
    if workers > 1:
        _share(places, listener, configuration, workers)
    else:
        _serve_alone(places, listener, configuration)


def application(places: tuple[Path, Path], spec: RuntimeSpec, tallies: Path | None = None) -> Server:
    """The app as runtime.yaml wants it.

    Args:
        tallies: where the processes of one server add up what they count; None for a server of one process.
    """
    runtime = AgentRuntime(places[0], data_dir=places[1])
    api = spec.api
    room = Room(api.max_requests, api.max_sockets)
    app = create_app(
        runtime,
        max_body_bytes=api.max_body_bytes,
        cors_origins=api.cors_origins,
        room=room,
        tallies=WorkerTallies(tallies) if tallies is not None else None,
    )
    drain_first(app, GRACE)
    return app


def settings(app: Server | str, spec: RuntimeSpec, workers: int = 1) -> uvicorn.Config:
    """How uvicorn runs: fast parsers, no compression of tokens, no log of its own.

    Frames are bounded as bodies are. Peers' forwarding headers are not believed.
    """
    return uvicorn.Config(
        app, factory=isinstance(app, str), workers=workers, backlog=BACKLOG,
        loop="uvloop", http=BoundedHttp, ws=_socket,  # type: ignore[arg-type]
        lifespan="on", interface="asgi3",
        ws_max_size=spec.api.max_body_bytes, ws_per_message_deflate=False,
        access_log=False, log_config=None, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_OF_ANSWERS,
    )  # fmt: skip


def _socket(**given: Any) -> asyncio.Protocol:
    """A WebSocket; what speaks with it is loaded with the first one."""
    from astromesh.cli.sockets import TextSockets

    return TextSockets(**given)


# -- one process ---------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """Says when it takes requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def _serve_alone(places: tuple[Path, Path], listener: socket.socket, configuration: Configuration) -> None:
    signal.signal(signal.SIGTERM, _end)
    with suppress(KeyboardInterrupt):
        uvloop.run(_run(places, listener, configuration))


async def _run(places: tuple[Path, Path], listener: socket.socket, configuration: Configuration) -> None:
    spec = configuration.runtime.spec
    app = application(places, spec)
    runtime: AgentRuntime = app.state.runtime
    # here rather than in the app's lifespan, so that a fault is told, not logged
    await runtime.bootstrap(configuration)

    def ready() -> None:
        announce(listener, places, configuration, list(runtime.agents))
        lean.settle()

    server = _Server(settings(app, spec), ready)
    await server.serve([listener])


def _end(_signal: int, _frame: object) -> None:
    """SIGTERM before uvicorn takes it, and after it has shut down in order: the end, and no failure."""
    sys.exit(0)


# -- several -------------------------------------------------------------------------------------------------


class _Workers(Multiprocess):
    """Says which worker died, and how; uvicorn puts another in its place, and tells a logger that is off."""

    def keep_subprocess_alive(self) -> None:
        before = list(self.processes)
        super().keep_subprocess_alive()
        for worker in before:
            if worker not in self.processes:
                log.error("worker_died", pid=worker.pid, exit_code=worker.exitcode)


def _share(
    places: tuple[Path, Path], listener: socket.socket, configuration: Configuration, workers: int
) -> None:
    """Each worker makes its own runtime; connections wait in the shared socket until one takes them."""
    config = settings("astromesh.cli.worker:app", configuration.runtime.spec, workers)
    announce(listener, places, configuration, list(configuration.agents))
    with TemporaryDirectory(prefix="astromesh-") as tallies:
        os.environ[TALLIES] = tallies
        supervisor = _Workers(config, [listener])
        supervisor.run()
    if any(process.exitcode == uvicorn.config.STARTUP_FAILURE for process in supervisor.processes):
        raise ConfigError("A worker could not start; its log above says why.")


# -- saying so -----------------------------------------------------------------------------------------------


def announce(
    listener: socket.socket, places: tuple[Path, Path], configuration: Configuration, agents: list[str]
) -> None:
    """Where the server listens, and lines to paste into another terminal."""
    url, keyed = url_of(listener), configuration.runtime.spec.auth.mode == "api_key"
    everywhere = "and every other address of this machine; " if is_everywhere(listener) else ""
    print(f"astromesh listens on {url}  ({everywhere}Ctrl-C stops it)")
    if trouble := trouble_with(places[1]):
        note(f"The data folder {places[1]} {trouble}; 'astromesh doctor' says more.", "yellow")
    agents, command = sorted(agents, key=lambda name: name != WELCOMING), called()
    if agents and keyed:
        print(f"  export ASTROMESH_KEY=$({command} keys create me{_where('--data', places[1], DATA)})")
    if agents:
        print(f"  {_curl(url, agents[0], keyed=keyed)}")
        where = _where("--config", places[0], CONFIG) + _where("--data", places[1], DATA)
        print(f"  {command} chat {agents[0]}{where}")
    else:
        note("No agent can run yet; 'astromesh doctor' says why.", "yellow")
    sys.stdout.flush()


def _curl(url: str, agent: str, *, keyed: bool) -> str:
    body = orjson.dumps({"query": QUESTION, "session_id": "demo"}).decode()
    key = ' -H "Authorization: Bearer $ASTROMESH_KEY"' if keyed else ""
    return (
        f"curl -s {url}/v1/agents/{agent}/run{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _where(option: str, folder: Path, default: Path) -> str:
    return "" if folder == default else f" {option} {shlex.quote(str(folder))}"
