"""AgentRuntime: the agents of one configuration, and the entry point by which every transport runs them."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from astromesh.config.folder import Configuration
from astromesh.durable.leases import SWEEP_SECONDS, WorkerHeartbeat
from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import InvalidInput, InvalidManifest
from astromesh.graph.graph import PromptGraph
from astromesh.logs import get_logger
from astromesh.plugins import Plugins
from astromesh.runtime.agent import Agent, Declarations, DeclaredAgent
from astromesh.runtime.agent_directory import AgentDirectory
from astromesh.runtime.bootstrap import RuntimeState, RuntimeStores, open_runtime
from astromesh.runtime.config_loader import load_configuration, workflow_names
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.runner import AgentRunner
from astromesh.runtime.schedules import Schedules
from astromesh.runtime.time_travel import TimeTravel
from astromesh.telemetry.clock import Clock, SystemClock, sleep_to_tick
from astromesh.telemetry.events import EventSink
from astromesh.telemetry.metrics import Metrics
from astromesh.telemetry.traces import TraceExporter
from astromesh.types import CallerContext

if TYPE_CHECKING:  # by name alone: it is loaded with the first workflow
    from astromesh.runtime.tasks import WorkflowTasks

log = get_logger("astromesh.runtime")

#: what is loaded with the first workflow
_TASKS_MODULE = "astromesh.runtime.tasks"
#: seconds between two checks whether Tasks with a waiting caller, and stages, have ended
_POLL_SECONDS = 0.05


class AgentRuntime:
    """The agents of one configuration folder, and agents that are declared in Python.

    Args:
        config_dir: The folder of `agents/*.agent.yaml` and the other files (docs/configuration.md). None: if
            there are `agents`, the folder that they were read from, without its other agents; else `config`.
        data_dir: The folder for all stored data. None: `.astromesh`.
        plugins: What names in YAML may refer to. None: everything installed.
        graphs: Graphs made in Python, for `orchestration: {pattern: graph, graph: NAME}`.
        env: Where `${VAR}` and the names of secrets are looked up. None: the environment of the process.
        agents: Agents that are declared in Python (`astromesh.Agent`). They replace agents of the folder that
            have their name.
        storage_url: Replaces `storage.url` of the folder. Then every run is durable.
        keeps_runs: Whether plain runs are stored when they have ended, for lists and traces.

    Raises:
        ConfigError: Two of `agents` have one name, or belong to different folders.

    Attributes:
        directory: The agents by name.
        runner: Starts and accepts runs.
        stores: Opens the stores of `storage.url`.
        runs: Every run and trace that callers may ask about.
        durable: The worker of durable runs.
        schedules: Runs and Tasks that begin at times.
        time_travel: The steps of recorded runs, and their forks.
        metrics: The metrics of this runtime.
        factory: See `RuntimeState`.
    """

    def __init__(  # noqa: PLR0913 (what a runtime is made of)
        self,
        config_dir: str | Path | None = None,
        *,
        data_dir: str | Path | None = None,
        plugins: Plugins | None = None,
        env: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        graphs: Mapping[str, PromptGraph] | None = None,
        agents: Iterable[DeclaredAgent] = (),
        storage_url: str = "",
        keeps_runs: bool = True,
    ) -> None:
        has_parts_in_python = any((plugins, env, clock, graphs)) or config_dir is None
        self.factory = "" if has_parts_in_python else f"{__name__}:{runtime_of.__name__}"
        self._declared = declared = Declarations(agents)
        folder = config_dir if config_dir is not None else declared.folder
        #: whether there are no other agents, and whether there is no configuration folder at all
        self._has_only_declared = config_dir is None and bool(declared)
        self._is_python_only = self._has_only_declared and folder is None
        self.config_dir = Path(folder or ("." if declared else "config"))
        self.data_dir = Path(data_dir or ".astromesh")
        self.plugins = declared.extend(plugins or Plugins())
        self.clock: Clock = clock or SystemClock()
        self.metrics = Metrics()
        self.directory = AgentDirectory()
        self.stores = RuntimeStores(self.plugins, lambda: self.state)
        self._heartbeat = WorkerHeartbeat(self.data_dir)
        self._heartbeat_of_tasks = WorkerHeartbeat(self.data_dir / "tasks")
        self.runner = AgentRunner(self.directory, self.stores, self.clock, self.metrics, self._heartbeat)
        self.runner.keeps_runs, self.runner.is_durable = keeps_runs, bool(storage_url)
        self.runs, self.durable = self.runner.runs, self.runner.durable
        self.time_travel = TimeTravel(
            self.runner.runs,
            self.runner.durable,
            self.directory,
            self.runner.replays,
            self.plugins,
            self.clock,
        )
        self.schedules = Schedules(self.runner, lambda: self._workflows)
        self._storage_url = storage_url
        self._env: Mapping[str, str] = os.environ if env is None else env
        self._graphs = {**(graphs or {}), **declared.graphs}
        self._resuming: asyncio.Task[None] | None = None
        self._deadline = float("inf")
        self._workflows: WorkflowTasks | None = None

    # -- life ----------------------------------------------------------------------------------------------

    def load_configuration(self) -> Configuration:
        """Reads the folder and the declared agents. Faults are part of the result."""
        python = self._declared.manifests(only=self._is_python_only)
        found = load_configuration(self.config_dir, self.plugins, self._env, self._graphs, python=python)
        if self._storage_url:
            found = found.with_storage(self._storage_url)
        return found.of_agents(self._declared.live) if self._has_only_declared else found

    async def bootstrap(self, configuration: Configuration | None = None) -> None:
        """Loads the configuration and opens everything that its agents need.

        Args:
            configuration: The folder as it was read just now. None: it is read here.

        Raises:
            InvalidConfiguration: faults that concern more than one agent, all at once.
            CircularAgentReference: agents that call each other in a circle.
        """
        if configuration is None:
            configuration = self.load_configuration()
        live = self._declared.live
        state = RuntimeState(configuration, plugins=self.plugins, env=self._env, live=live)
        state.factory = self.factory
        await open_runtime(state, self.data_dir, self.clock, self.runner.run_nested, self._graphs)
        self.directory.current = state
        try:
            self.runner.open(state, await self._open_exporter(state))
            if not self._has_only_declared and workflow_names(self.config_dir):
                await self.workflows.load()
        except BaseException:
            self.directory.current = None
            await state.resources.close()
            raise

    async def _open_exporter(self, state: RuntimeState) -> TraceExporter | None:
        telemetry = state.configuration.runtime.spec.telemetry
        if not telemetry.otlp_endpoint:
            return None
        options = {
            "endpoint": telemetry.otlp_endpoint,
            "sample_ratio": telemetry.sample_ratio,
            "addresses": state.health.addresses(),
        }
        exporter: TraceExporter = await self.plugins.open("exporters", "otlp", options, state.deps)
        state.resources.on_close(exporter.close)
        return exporter

    def resume_pending(self, *, shared: bool = False) -> None:
        """Starts to execute what earlier processes have left and what is scheduled, in the background.

        If nobody has ever accepted a durable run, the store of runs opens with the first one, of this process
        or of another one with the same data folder.

        Args:
            shared: Whether other processes of the same server accept runs, which this one takes over.

        A process that only accepts runs (`durable.executes` is False) leaves all of that to others.
        """
        if not self.durable.executes:
            return
        is_used = shared or self.stores.may_hold_runs
        self._resuming = asyncio.create_task(self._resume() if is_used else self._resume_when_used())
        self._resuming.add_done_callback(self._resumed)
        self.schedules.start()

    async def _resume(self) -> None:
        if self._workflows is not None:
            self._workflows.resume_left()
        await retry_while_unavailable(self.durable.start)

    async def _resume_when_used(self) -> None:
        """Waits for another process of the data folder that accepts runs or Tasks, which may die."""
        while not (self._heartbeat.has_others() or self._heartbeat_of_tasks.has_others()):
            await sleep_to_tick(SWEEP_SECONDS)
        await self._resume()

    async def drain(self, grace: float) -> None:
        """Refuses new runs, and waits at most `grace` seconds for active runs and stages.

        `close` waits no longer than what is left of that time.
        """
        self.runner.active.draining, self._deadline = True, self.clock.monotonic() + grace
        if self._workflows is not None:
            await self._workflows.drain()
        await self.durable.drain()
        await self.schedules.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self.runner.active.wait()
                while self._workflows is not None and self._workflows.is_busy:  # noqa: ASYNC110 (at the end alone)
                    await asyncio.sleep(_POLL_SECONDS)

    @property
    def active_work(self) -> int:
        """How many runs, and Tasks that cannot move to another process, this process works on."""
        tasks = 0 if self._workflows is None else self._workflows.busy
        return self.runner.active.count + tasks

    async def close(self, grace: float = 30.0) -> None:
        """Refuses new runs, waits at most `grace` seconds for active ones, and closes what was opened."""
        self.runner.active.draining = True
        ends = min(self.clock.monotonic() + grace, self._deadline)
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.wait([self._resuming])
        await self.schedules.close()
        if self._workflows is not None:
            await self._workflows.close()
        await self.runner.close(ends)
        state, self.directory.current = self.directory.current, None
        if state is not None:
            await state.resources.close()

    async def __aenter__(self) -> Self:
        await self.bootstrap()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- what is loaded ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether `bootstrap()` was called and `close()` was not."""
        return self.directory.current is not None

    @property
    def state(self) -> RuntimeState:
        """The open resources of the runtime. Raises: ShuttingDown: the runtime is not open."""
        return self.directory.state

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The agents that can run."""
        return self.directory.agents

    @property
    def broken(self) -> Mapping[str, tuple[InvalidManifest, ...]]:
        """Agents whose manifest has faults, or whose stores could not be opened: `agent_unavailable`."""
        return self.directory.broken

    def agent(self, name: str) -> Agent:
        """Returns an agent by its name. Raises: AgentNotFoundError, AgentUnavailable."""
        return self.directory.get(name)

    @property
    def has_workflows(self) -> bool:
        """Whether there are workflows, or somebody has asked for them."""
        return self._workflows is not None

    @property
    def workflows(self) -> WorkflowTasks:
        """The workflows and their Tasks: loaded with the first one, as most runtimes have none."""
        if self._workflows is None:
            tasks = importlib.import_module(_TASKS_MODULE)
            workflows: WorkflowTasks = tasks.WorkflowTasks(self.runner, self._heartbeat_of_tasks)
            if self.runner.active.draining:
                workflows.refuse()
            self._workflows = workflows
        return self._workflows

    async def load_workflows(self) -> None:
        """Imports the modules of workflows in a thread: that takes longer than the event loop may block."""
        if self._workflows is None:
            await asyncio.to_thread(importlib.import_module, _TASKS_MODULE)

    def _resumed(self, resuming: asyncio.Task[None]) -> None:
        """Logs why this process cannot take up runs, e.g. a port is taken. Until it can, it is not ready."""
        if not resuming.cancelled() and (error := resuming.exception()) is not None:
            log.error("runs_not_taken_up", error=str(error))
            self.state.checks["durable:runs"] = self.durable.require_started

    # -- runs ----------------------------------------------------------------------------------------------

    async def run(  # noqa: PLR0913 (a run has these parts)
        self,
        agent_name: str,
        query: str,
        session_id: str,
        *,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
        sinks: Iterable[EventSink] = (),
        trace_id: str = "",
    ) -> RunAnswer:
        """Executes one run of one agent (document 001, step 2).

        Args:
            query, session_id: The message and its conversation, neither empty.
            context: Variables for the prompt template.
            caller, sinks, trace_id: As in `AgentRunner.start`, which takes a whole `RunRequest`.

        Raises:
            RequestError, UpstreamError, LimitReached, Unavailable: see `astromesh.errors`.
        """
        if not query or not session_id:
            raise InvalidInput("A run needs a query and a session_id that are not empty.")
        request = RunRequest(query, session_id, context or {}, metadata or {})
        return await self.runner.start(
            self.agent(agent_name), request, caller=caller, sinks=sinks, trace_id=trace_id
        )


def runtime_of(folders: tuple[str | Path, str | Path]) -> AgentRuntime:
    """Returns a runtime of a folder of configuration and a folder of data, which is not open yet."""
    return AgentRuntime(folders[0], data_dir=folders[1])
