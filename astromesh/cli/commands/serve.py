"""`astromesh serve` and `dev`: check the configuration, open the port, run uvicorn until a signal ends it."""

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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any, Literal, NamedTuple

import orjson
import typer
import uvicorn
import uvloop
from uvicorn.supervisors import Multiprocess

from astromesh.api.app import Server, create_app
from astromesh.api.auth import is_loopback
from astromesh.api.middleware.limits import MAX_STARTS, ConcurrencyLimits
from astromesh.cli import startup
from astromesh.cli.commands.validate import checked
from astromesh.cli.errors import require_data_folder
from astromesh.cli.event_loop import EventLoop
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, DevEnvFile, EnvFile, folders_of
from astromesh.cli.shutdown import drain_before_shutdown
from astromesh.cli.terminal import note
from astromesh.cli.uvicorn_protocols import BoundedHttp
from astromesh.config.folder import Configuration
from astromesh.config.runtime import RuntimeSpec
from astromesh.errors import ConfigError, InvalidInput
from astromesh.logs import PRETTY, configure_logging, get_logger
from astromesh.runtime.config_loader import workflow_names
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.clock import seconds_to_tick
from astromesh.telemetry.metrics import WorkerMetrics

log = get_logger("astromesh.server")
PROGRAM = "astromesh"
BACKLOG = 2048
#: names the folder in which the processes of one server add up their metrics
TALLIES_VARIABLE = "ASTROMESH_TALLIES"
#: what stands before the id of a run in its link to the console, for worker processes
LINKS_VARIABLE = "ASTROMESH_RUN_LINKS"
#: names the agents made in Python, for worker processes
AGENTS_VARIABLE = "ASTROMESH_AGENTS"
#: the role of a server, for worker processes
ROLE_VARIABLE = "ASTROMESH_ROLE"
#: set in the processes of a development server
DEV_VARIABLE = "ASTROMESH_DEV"
#: seconds that runs get after SIGTERM, and that their responses get after that
GRACE, _RESPONSE_GRACE = 30, 5
#: seconds without an answer after which a worker is killed: on a busy machine one starts in more than five
_WORKER_SILENCE = 30
#: a vector search uses one core: threads of OpenBLAS that wait for a busy core make it five times slower
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")
QUESTION = "How do I get started?"
#: the agent of the README; without it, the first agent stands in the example
FIRST_AGENT = "support-agent"
#: variables of a desktop session
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
#: error of the operating system -> what to do
_REASONS = {
    errno.EADDRINUSE: "another process uses the port; stop it, or use another --port (0: any)",
    errno.EACCES: "this user may not listen on that port; ports below 1024 belong to the system",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}
_NO_CONFIGURATION = """\
There is no configuration folder {folder}. Do one of these:
  - write a project that runs at once: astromesh new my-agent && cd my-agent && astromesh dev
  - add a configuration to the project in this folder: astromesh init
  - name another folder: --config DIR, or the variable ASTROMESH_CONFIG_DIR"""
_OPEN = """\
Other machines can reach {host}, and without authentication anybody could run the agents.
Do one of these:
  - listen on this machine only: --host 127.0.0.1
  - require API keys: under spec in runtime.yaml 'auth: {{mode: api_key}}', then 'astromesh keys create me'"""


Role = Literal["all", "api", "worker"]


class Settings(NamedTuple):
    """How a server is started.

    Args:
        agents: Agents made in Python, as `module:name`.
        host, port: Those of the command line; empty and None: those of runtime.yaml.
        workers: Processes that share the port.
        strict: Whether a broken agent is a fault.
        records: Whether plain runs are recorded, too.
        reloads: Whether changed files reach the next run.
        role: What the server does: `all`, `api` or `worker`.
        log_format: Replaces that of runtime.yaml, unless it is empty.
        ready: Called with the URL when the server accepts requests.
    """

    agents: Sequence[str] = ()
    host: str = ""
    port: int | None = None
    workers: int = 1
    strict: bool = False
    records: bool = False
    reloads: bool = False
    role: Role = "all"
    log_format: str = ""
    ready: Callable[[str], None] = lambda url: None


Agents = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODULE:AGENT", help="Agents made in Python, served beside those of the configuration."
    ),
]
Host = Annotated[str, typer.Option(metavar="HOST", help="Address to listen on; default: runtime.yaml's.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, metavar="PORT", help="0: any free port; default: runtime.yaml's."),
]


def serve(
    agents: Agents = None,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    host: Host = "",
    port: Port = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Processes that share the port.")
    ] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse to start with a broken agent.")] = False,
    dev: Annotated[bool, typer.Option("--dev", help="For development: record plain runs, too.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Apply changed files to the next runs; one process only.")
    ] = False,
    role: Annotated[
        Role,
        typer.Option(help="api: takes requests, executes no durable runs; worker: only executes them."),
    ] = "all",
    env_file: EnvFile = None,
) -> None:
    """Serve the agents over HTTP and WebSocket. SIGTERM or Ctrl-C ends it."""
    if reload and workers > 1:
        raise InvalidInput("--reload needs one process. Leave out --workers.")
    start(folders_of(config, data), Settings(agents or (), host, port, workers, strict, dev, reload, role))


def dev(
    agents: Agents = None,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    host: Host = "",
    port: Port = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the console.")] = False,
    env_file: DevEnvFile = None,
) -> None:
    """Serve the agents for development.

    Saved files reach the next run, plain runs are recorded, the file .env is read, and each run is one line
    with its cost. The console opens where there is a display.
    """
    opens = not no_open and has_display(os.environ, sys.platform)
    settings = Settings(
        agents or (), host, port, records=True, reloads=True, log_format=PRETTY,
        ready=_open_console if opens else lambda url: None,
    )  # fmt: skip
    start(folders_of(config, data), settings)


def has_display(env: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can open a window for the person at this terminal."""
    if platform == "darwin":
        return "SSH_CONNECTION" not in env
    return any(env.get(name) for name in _DISPLAYS)


def _open_console(url: str) -> None:
    """Opens the console in a thread: some browsers block until their window is closed."""
    import webbrowser  # servers do not need it

    threading.Thread(target=webbrowser.open, args=(f"{url}/console/",), daemon=True).start()


def start(folders: tuple[Path, Path], settings: Settings) -> None:
    """Serves until a signal ends it.

    Raises:
        ConfigError: there is nothing to serve, or the data folder or the port cannot be used.
        InvalidConfiguration: nothing can run with the faults of the configuration.
    """
    if not settings.agents and not folders[0].exists():
        raise ConfigError(_NO_CONFIGURATION.format(folder=folders[0]))
    if settings.records:
        os.environ[DEV_VARIABLE] = "1"
    if settings.reloads:  # a cached module may be older than its source of the same second
        sys.dont_write_bytecode = True
    os.environ.setdefault(*_ONE_THREAD)
    os.environ[AGENTS_VARIABLE] = " ".join(settings.agents)
    os.environ[ROLE_VARIABLE] = settings.role
    configuration = checked(runtime_of(folders).load_configuration(), strict=settings.strict)
    spec = configuration.runtime.spec
    configure_logging(spec.telemetry.log_level, settings.log_format or spec.telemetry.log_format)
    require_data_folder(folders[1])
    listener = listen(
        settings.host or spec.api.host,
        spec.api.port if settings.port is None else settings.port,
        authenticated=spec.auth.mode != "none",
    )
    if settings.workers > 1:
        _serve_with_workers(folders, listener, configuration, settings.workers)
    else:
        _serve_alone(folders, listener, configuration, settings)


# -- the port ----------------------------------------------------------------------------------------------


def command_line() -> str:
    """Returns `astromesh` where the shell finds this command, else its path, e.g. `.venv/bin/astromesh`."""
    own = Path(sys.argv[0])
    if own.name != PROGRAM:
        return PROGRAM
    found = shutil.which(PROGRAM)
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        return PROGRAM
    path = os.path.relpath(own)
    return shlex.quote(str(own.absolute()) if path.startswith("..") else path)


def listen(host: str, port: int, *, authenticated: bool) -> socket.socket:
    """Returns a socket that accepts connections at once, so that nobody is refused while the server starts.

    Args:
        host: address or name.
        port: 0 for any free one.
        authenticated: whether callers need a credential; without it, only loopback is allowed.

    Raises:
        ConfigError: the address cannot be used, or is not allowed.
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


def listeners_of(listener: socket.socket) -> list[socket.socket]:
    """Returns a socket and duplicates of it, so that a turn of the event loop accepts several connections.

    The loop accepts one connection per socket and turn. Behind a hundred connections, a health check would
    wait a hundred turns. More than `MAX_STARTS` requests do not start in one turn.
    """
    return [listener, *(listener.dup() for _ in range(MAX_STARTS - 1))]


def url_of(listener: socket.socket) -> str:
    """Returns e.g. `http://127.0.0.1:8000`; loopback stands for every address of the machine."""
    host, port = listener.getsockname()[:2]
    if is_any_address(listener):
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_any_address(listener: socket.socket) -> bool:
    """Whether it listens on every address of this machine."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_unspecified


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Resolves a name once, so that the address that is checked is the one that is bound."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # no such host, or an empty or too long part of its name
        raise ConfigError(f"Cannot listen on {host}:{port}: the host does not resolve.") from error
    family, _, _, _, address = found[0]
    return family, address  # type: ignore[return-value]  # of the families that AI_PASSIVE finds here


# -- the application ---------------------------------------------------------------------------------------


def runtime_of(folders: tuple[Path, Path]) -> AgentRuntime:
    """Returns the runtime of the two folders and of the agents made in Python. It is not open yet.

    Raises:
        ConfigError: such an agent cannot be imported.
    """
    runtime = _runtime_of(folders, os.environ.get(AGENTS_VARIABLE, "").split())
    runtime.runner.records_runs = bool(os.environ.get(DEV_VARIABLE))
    runtime.durable.executes = _role() != "api"
    return runtime


def _role() -> str:
    return os.environ.get(ROLE_VARIABLE, "all")


def _runtime_of(folders: tuple[Path, Path], references: list[str]) -> AgentRuntime:
    if not references:
        return AgentRuntime(folders[0], data_dir=folders[1])
    from astromesh.agents.agent import load_agents  # servers of a folder alone do not need it

    agents, config = load_agents(references), Path(folders[0])
    runtime = AgentRuntime(config if config.is_dir() else None, data_dir=folders[1], agents=agents)
    runtime.factory = f"{__name__}:{runtime_of.__name__}"
    return runtime


def application(folders: tuple[Path, Path], spec: RuntimeSpec, tallies: Path | None = None) -> Server:
    """Returns the app that runtime.yaml configures.

    Args:
        tallies: where the processes of one server add up their metrics; None for a server of one process.
    """
    runtime = runtime_of(folders)
    api = spec.api
    app = create_app(
        runtime,
        max_body_bytes=api.max_body_bytes,
        cors_origins=api.cors_origins,
        limits=ConcurrencyLimits(api.max_requests, api.max_sockets),
        tallies=WorkerMetrics(tallies) if tallies is not None else None,
        takes_requests=_role() != "worker",
    )
    drain_before_shutdown(app, GRACE)
    return app


def uvicorn_config(app: Server | str, spec: RuntimeSpec, workers: int = 1) -> uvicorn.Config:
    """Configures uvicorn: fast parsers, no compression of tokens, no log of its own.

    Frames have the limit of bodies. Forwarding headers of peers have no effect.
    """
    return uvicorn.Config(
        app, factory=isinstance(app, str), workers=workers, backlog=BACKLOG,
        loop="astromesh.cli.event_loop:EventLoop", http=BoundedHttp, ws=_websocket_protocol,  # type: ignore[arg-type]
        lifespan="on", interface="asgi3",
        ws_max_size=spec.api.max_body_bytes, ws_per_message_deflate=False,
        access_log=False, log_config=None, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=_RESPONSE_GRACE, timeout_worker_healthcheck=_WORKER_SILENCE,
    )  # fmt: skip


def _websocket_protocol(**options: Any) -> asyncio.Protocol:
    """Returns a new WebSocket protocol. The first one loads the library."""
    from astromesh.cli.uvicorn_websocket import TextSockets

    return TextSockets(**options)


# -- one process -------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """Calls `ready` when it accepts requests. It sleeps between them: uvicorn wakes ten times a second."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._loop, self._signalled = asyncio.get_running_loop(), asyncio.Event()

    async def main_loop(self) -> None:
        tick = 0
        while not await self.on_tick(tick):
            tick += 10  # uvicorn's tenths of a second: each tenth renews the header Date
            with suppress(TimeoutError):
                pause = seconds_to_tick(1.0, time.monotonic())
                await asyncio.wait_for(self._signalled.wait(), pause)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._signalled.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def _serve_alone(
    folders: tuple[Path, Path], listener: socket.socket, configuration: Configuration, settings: Settings
) -> None:
    signal.signal(signal.SIGTERM, _exit)
    with suppress(KeyboardInterrupt):
        uvloop.run(_run(folders, listener, configuration, settings), loop_factory=EventLoop)


async def _run(
    folders: tuple[Path, Path], listener: socket.socket, configuration: Configuration, settings: Settings
) -> None:
    spec = configuration.runtime.spec
    app = application(folders, spec)
    runtime: AgentRuntime = app.state.runtime
    # not in the lifespan of the app, whose errors uvicorn only logs
    await runtime.bootstrap(configuration)

    def ready() -> None:
        runtime.runner.run_links = run_links(listener, spec)
        announce(listener, folders, configuration, list(runtime.agents))
        startup.freeze_memory()
        settings.ready(url_of(listener))

    server = _Server(uvicorn_config(app, spec), ready)
    async with _watching(runtime) if settings.reloads else nullcontext():
        await server.serve(listeners_of(listener))


def _watching(runtime: AgentRuntime) -> AbstractAsyncContextManager[None]:
    from astromesh.runtime.reload import Reloader  # other servers do not need it

    return Reloader(runtime).watching()


def _exit(_signal: int, _frame: object) -> None:
    """Ends with 0 at a SIGTERM before uvicorn handles signals, or after its orderly shutdown."""
    sys.exit(0)


# -- several processes -------------------------------------------------------------------------------------


class _Workers(Multiprocess):
    """Logs which worker died, and how. Uvicorn replaces it, and logs to a logger that is off."""

    def keep_subprocess_alive(self) -> None:
        before = list(self.processes)
        super().keep_subprocess_alive()
        for worker in before:
            if worker not in self.processes:
                log.error("worker_died", pid=worker.pid, exit_code=worker.exitcode)


def _serve_with_workers(
    folders: tuple[Path, Path], listener: socket.socket, configuration: Configuration, workers: int
) -> None:
    """Starts workers with a runtime each. Connections wait in the shared socket until one accepts them."""
    config = uvicorn_config("astromesh.cli.main:worker_app", configuration.runtime.spec, workers)
    announce(listener, folders, configuration, list(configuration.agents))
    with TemporaryDirectory(prefix="astromesh-") as tallies:
        os.environ[TALLIES_VARIABLE] = tallies
        os.environ[LINKS_VARIABLE] = run_links(listener, configuration.runtime.spec)
        supervisor = _Workers(config, [listener])
        supervisor.run()
    if any(process.exitcode == uvicorn.config.STARTUP_FAILURE for process in supervisor.processes):
        raise ConfigError("A worker could not start. Its log above says why.")


# -- what it prints ----------------------------------------------------------------------------------------


def run_links(listener: socket.socket, spec: RuntimeSpec) -> str:
    """Returns what stands before the id of a run in its link to the console, empty without a console."""
    has_console = spec.console.enabled and _role() != "worker"
    return f"{url_of(listener)}/console/#/runs/" if has_console else ""


def announce(
    listener: socket.socket, folders: tuple[Path, Path], configuration: Configuration, agents: list[str]
) -> None:
    """Prints where the server listens, and lines to paste into another terminal."""
    url, keyed = url_of(listener), configuration.runtime.spec.auth.mode == "api_key"
    if _role() == "worker":
        print(f"astromesh executes durable runs, and serves health and metrics on {url}  (Ctrl-C stops it)")
        sys.stdout.flush()
        return
    everywhere = "and every other address of this machine; " if is_any_address(listener) else ""
    print(f"astromesh listens on {url}  ({everywhere}Ctrl-C stops it)")
    agents, command = sorted(agents, key=lambda name: name != FIRST_AGENT), command_line()
    workflows = () if agents or configuration.broken else workflow_names(folders[0])
    if agents and keyed:
        data = _folder_option("--data", folders[1], DATA_FOLDER)
        print(f"  export ASTROMESH_KEY=$({command} keys create me{data})")
    if agents:
        print(f"  {_curl(url, agents[0], keyed=keyed)}")
        where = _folder_option("--config", folders[0], CONFIG_FOLDER) + _folder_option(
            "--data", folders[1], DATA_FOLDER
        )
        if folders[0].is_dir():  # other commands know only the agents of a folder
            print(f"  {command} chat {agents[0]}{where}")
    elif workflows:
        print(f"  workflows: {', '.join(workflows)}")
    else:
        note("No agent can run yet. 'astromesh doctor' says why.", "yellow")
    if (agents or workflows) and configuration.runtime.spec.console.enabled:
        print(f"  {url}/console/")
    sys.stdout.flush()


def _curl(url: str, agent: str, *, keyed: bool) -> str:
    body = orjson.dumps({"query": QUESTION, "session_id": "demo"}).decode()
    key = ' -H "Authorization: Bearer $ASTROMESH_KEY"' if keyed else ""
    return (
        f"curl -s {url}/v1/agents/{agent}/run{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _folder_option(option: str, folder: Path, default: Path) -> str:
    return "" if folder == default else f" {option} {shlex.quote(str(folder))}"
