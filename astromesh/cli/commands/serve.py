"""`astromesh serve`: checks the configuration, opens the port and.

Runs uvicorn until a signal ends it (reliability.md S2).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import shlex
import shutil
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
from astromesh.api.auth import is_loopback
from astromesh.api.middleware.limits import ConcurrencyLimits
from astromesh.cli import startup
from astromesh.cli.commands.validate import load_valid
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER
from astromesh.cli.shutdown import drain_before_shutdown
from astromesh.cli.terminal import note
from astromesh.cli.uvicorn_protocols import BoundedHttp
from astromesh.config.folder import Configuration
from astromesh.config.runtime import RuntimeSpec
from astromesh.errors import ConfigError
from astromesh.runtime.engine import AgentRuntime
from astromesh.storage.private_files import write_problem
from astromesh.telemetry.logs import configure_logging
from astromesh.telemetry.metrics import WorkerMetrics

PROGRAM = "astromesh"


def command_line() -> str:
    """`astromesh` where the shell finds this very command, else its path, such as `.venv/bin/astromesh`."""
    own = Path(sys.argv[0])
    if own.name != PROGRAM:
        return PROGRAM
    found = shutil.which(PROGRAM)
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        return PROGRAM
    path = os.path.relpath(own)
    return shlex.quote(str(own.absolute()) if path.startswith("..") else path)


BACKLOG = 2048


#: what the operating system says → what to do
_REASONS = {
    errno.EADDRINUSE: "the port is in use by another process; stop that, or take another --port (0: any)",
    errno.EACCES: "this user may not listen on that port; ports below 1024 are the system's",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


_OPEN = """\
{host} can be reached from other machines, and without authentication anybody could run the agents.
Do one of these:
  - listen on this machine only: --host 127.0.0.1
  - ask for API keys: under spec in runtime.yaml 'auth: {{mode: api_key}}', then 'astromesh keys create me'"""


def listen(host: str, port: int, *, authenticated: bool) -> socket.socket:
    """A socket that takes connections from now on, so that nobody is refused while the server starts.

    Args:
        host: address or name.
        port: 0 for any free one.
        authenticated: whether callers must prove who they are; without it only loopback will do.

    Raises:
        ConfigError: the address cannot be used, or must not be.
    """
    family, address = _resolved(host, port)
    if not authenticated and not is_loopback(address[0]):
        raise ConfigError(_OPEN.format(host=host))
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise ConfigError(f"Cannot listen on {host}:{port}: {reason}.") from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """`http://127.0.0.1:8000`; every address of the machine becomes its loopback, which works from here."""
    host, port = listener.getsockname()[:2]
    if is_any_address(listener):
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_any_address(listener: socket.socket) -> bool:
    """Whether other machines reach it, at every address of this one."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_unspecified


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The address that is bound is the one that is judged: a name is looked up once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"Cannot listen on {host}:{port}: there is no such host.") from error
    family, _, _, _, address = found[0]
    return family, address  # type: ignore[return-value]  # of the families that AI_PASSIVE finds here


# `astromesh serve`: the configuration checked, a port taken, then uvicorn until a signal ends it.

log = structlog.get_logger("astromesh.server")


#: names the folder in which the processes of one server add up what they count
TALLIES_VARIABLE = "ASTROMESH_TALLIES"


#: seconds that runs get after SIGTERM, and requests that are still answered then
GRACE, _GRACE_OF_ANSWERS = 30, 5


#: a search by vectors takes one core: threads of OpenBLAS that wait for a busy core made it five times slower
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")


QUESTION = "How do I get started?"


#: the agent that the README begins with; where it is not there, the first is proposed
FIRST_AGENT = "support-agent"


def serve(folders: tuple[Path, Path], host: str, port: int | None, workers: int, *, strict: bool) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        places: folders of the configuration and of the data.
        host, port: instead of those of runtime.yaml, where given.

    Raises:
        ConfigError: faults of the configuration, or an address that cannot or must not be used.
    """
    os.environ.setdefault(*_ONE_THREAD)
    configuration = load_valid(folders[0], strict=strict)
    spec = configuration.runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    listener = listen(
        host or spec.api.host,
        spec.api.port if port is None else port,
        authenticated=spec.auth.mode != "none",
    )
    if workers > 1:
        _serve_with_workers(folders, listener, configuration, workers)
    else:
        _serve_alone(folders, listener, configuration)


def application(folders: tuple[Path, Path], spec: RuntimeSpec, tallies: Path | None = None) -> Server:
    """The app as runtime.yaml wants it.

    Args:
        tallies: where the processes of one server add up what they count; None for a server of one process.
    """
    runtime = AgentRuntime(folders[0], data_dir=folders[1])
    api = spec.api
    room = ConcurrencyLimits(api.max_requests, api.max_sockets)
    app = create_app(
        runtime,
        max_body_bytes=api.max_body_bytes,
        cors_origins=api.cors_origins,
        limits=room,
        tallies=WorkerMetrics(tallies) if tallies is not None else None,
    )
    drain_before_shutdown(app, GRACE)
    return app


def uvicorn_config(app: Server | str, spec: RuntimeSpec, workers: int = 1) -> uvicorn.Config:
    """How uvicorn runs: fast parsers, no compression of tokens, no log of its own.

    Frames are bounded as bodies are. Peers' forwarding headers are not believed.
    """
    return uvicorn.Config(
        app, factory=isinstance(app, str), workers=workers, backlog=BACKLOG,
        loop="uvloop", http=BoundedHttp, ws=_websocket_protocol,  # type: ignore[arg-type]
        lifespan="on", interface="asgi3",
        ws_max_size=spec.api.max_body_bytes, ws_per_message_deflate=False,
        access_log=False, log_config=None, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_OF_ANSWERS,
    )  # fmt: skip


def _websocket_protocol(**options: Any) -> asyncio.Protocol:
    """Returns a new WebSocket protocol. The first one loads the library."""
    from astromesh.cli.uvicorn_websocket import TextSockets

    return TextSockets(**options)


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


def _serve_alone(folders: tuple[Path, Path], listener: socket.socket, configuration: Configuration) -> None:
    signal.signal(signal.SIGTERM, _exit)
    with suppress(KeyboardInterrupt):
        uvloop.run(_run(folders, listener, configuration))


async def _run(folders: tuple[Path, Path], listener: socket.socket, configuration: Configuration) -> None:
    spec = configuration.runtime.spec
    app = application(folders, spec)
    runtime: AgentRuntime = app.state.runtime
    # here rather than in the app's lifespan, so that a fault is told, not logged
    await runtime.bootstrap(configuration)

    def ready() -> None:
        announce(listener, folders, configuration, list(runtime.agents))
        startup.freeze_memory()

    server = _Server(uvicorn_config(app, spec), ready)
    await server.serve([listener])


def _exit(_signal: int, _frame: object) -> None:
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


def _serve_with_workers(
    folders: tuple[Path, Path], listener: socket.socket, configuration: Configuration, workers: int
) -> None:
    """Each worker makes its own runtime; connections wait in the shared socket until one takes them."""
    config = uvicorn_config("astromesh.cli.worker_process:app", configuration.runtime.spec, workers)
    announce(listener, folders, configuration, list(configuration.agents))
    with TemporaryDirectory(prefix="astromesh-") as tallies:
        os.environ[TALLIES_VARIABLE] = tallies
        supervisor = _Workers(config, [listener])
        supervisor.run()
    if any(process.exitcode == uvicorn.config.STARTUP_FAILURE for process in supervisor.processes):
        raise ConfigError("A worker could not start; its log above says why.")


# -- saying so -----------------------------------------------------------------------------------------------
def announce(
    listener: socket.socket, folders: tuple[Path, Path], configuration: Configuration, agents: list[str]
) -> None:
    """Where the server listens, and lines to paste into another terminal."""
    url, keyed = url_of(listener), configuration.runtime.spec.auth.mode == "api_key"
    everywhere = "and every other address of this machine; " if is_any_address(listener) else ""
    print(f"astromesh listens on {url}  ({everywhere}Ctrl-C stops it)")
    if trouble := write_problem(folders[1]):
        note(f"The data folder {folders[1]} {trouble}; 'astromesh doctor' says more.", "yellow")
    agents, command = sorted(agents, key=lambda name: name != FIRST_AGENT), command_line()
    if agents and keyed:
        data = _folder_option("--data", folders[1], DATA_FOLDER)
        print(f"  export ASTROMESH_KEY=$({command} keys create me{data})")
    if agents:
        print(f"  {_curl(url, agents[0], keyed=keyed)}")
        where = _folder_option("--config", folders[0], CONFIG_FOLDER) + _folder_option(
            "--data", folders[1], DATA_FOLDER
        )
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


def _folder_option(option: str, folder: Path, default: Path) -> str:
    return "" if folder == default else f" {option} {shlex.quote(str(folder))}"
