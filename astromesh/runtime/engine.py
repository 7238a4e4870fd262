"""AgentRuntime: the agents of one configuration, and the entry point by which every transport runs them."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import structlog
from msgspec.structs import replace

from astromesh.access.scopes import ANY_SESSION, principal_of
from astromesh.config.folder import Configuration
from astromesh.durable.base import BudgetStore, DurableBackend, IdempotencyKey, RunRow, RunStore, TaskStore
from astromesh.durable.budgets import Budgets
from astromesh.durable.journal import RunJournal
from astromesh.durable.leases import RetentionPolicy, WorkerHeartbeat
from astromesh.durable.queue import AgentSlots
from astromesh.durable.remote_cancel import RemoteCancel
from astromesh.durable.run_archive import RunArchive
from astromesh.durable.run_registry import RunRegistry
from astromesh.durable.run_worker import RunWorker
from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import (
    AgentNotFoundError,
    InvalidInput,
    InvalidManifest,
    ShuttingDown,
)
from astromesh.graph.graph import PromptGraph
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import Scope
from astromesh.plugins import Deps, Plugins
from astromesh.runtime import nested_runs
from astromesh.runtime.agent import Agent, unavailable_error
from astromesh.runtime.bootstrap import RuntimeState, open_runtime
from astromesh.runtime.budgets import charged_model
from astromesh.runtime.config_loader import (
    add_human_nodes,
    agents_with_approval,
    load_configuration,
    workflow_names,
)
from astromesh.runtime.content_capture import ContentCapture
from astromesh.runtime.idempotency import IdempotentRuns
from astromesh.runtime.nested_runs import forward_events
from astromesh.runtime.pipeline import answer
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import GatedEvents, Run, interrupted_error
from astromesh.runtime.run_wrappers import (
    Handler,
    as_caller,
    charging_time,
    compose,
    keeping_partial,
    reported,
    within_agent_limit,
    within_deadline,
)
from astromesh.runtime.segment import (
    Segment,
    accepted_row,
    admission_of,
    under_journal,
    waiting_for_session,
)
from astromesh.runtime.sessions import SessionLeaseHolder, Sessions, busy_error, within_session
from astromesh.runtime.snapshots import Snapshots
from astromesh.runtime.stored_runs import StoredRuns, StoredTraces, wait_for_run
from astromesh.storage.sqlite import default_file
from astromesh.telemetry import ids
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.telemetry.events import TERMINAL_EVENTS, EventSink, EventStream
from astromesh.telemetry.metrics import Metrics
from astromesh.telemetry.run_log import RunLog, RunLogs
from astromesh.telemetry.traces import TracedRun, TraceExporter, TraceStore
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, RunAgent, ToolContext
from astromesh.types import CallerContext, JsonObject, SessionKey

if TYPE_CHECKING:  # by name alone: it is loaded with the first workflow
    from astromesh.runtime.tasks import WorkflowTasks


log = structlog.get_logger("astromesh.runtime")


#: what is loaded with the first workflow
_TASKS_MODULE = "astromesh.runtime.tasks"


#: how deep agents may call agents, and how many such calls the whole tree of one run may make
MAX_DEPTH, MAX_NESTED_RUNS = 8, 256


#: seconds between two looks whether what goes on has ended
_POLL_SECONDS = 0.05


class AgentRuntime:
    """The agents of one configuration folder.

    Args:
        config_dir: folder of `agents/*.agent.yaml` and the other files of api.md section 4.
        data_dir: folder for what is kept; None for `.astromesh`.
        plugins: what YAML names may refer to; None for everything installed.
        graphs: graphs made in Python, for `orchestration: {pattern: graph, graph: NAME}`.
        env: where `${VAR}` and key names are looked up; None for the process's environment.
    """

    def __init__(
        self,
        config_dir: str | Path = "config",
        *,
        data_dir: str | Path | None = None,
        plugins: Plugins | None = None,
        env: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        graphs: Mapping[str, PromptGraph] | None = None,
    ) -> None:
        self.config_dir = Path(config_dir)
        self.data_dir = Path(data_dir or ".astromesh")
        self.plugins = plugins or Plugins()
        self.clock: Clock = clock or SystemClock()
        self.metrics = Metrics()
        self._logs = RunLogs()
        self.registry = RunRegistry(self._logs, self.clock)
        self.sessions = Sessions(self.clock)
        self._leases = SessionLeaseHolder()
        self._slots = AgentSlots(self.clock)
        self._max_running: dict[str, int] = {}
        self._snapshots = Snapshots()
        self._resuming: asyncio.Task[None] | None = None
        #: agents whose runs may have to wait for a person: all of these are durable
        self._approval_agents: frozenset[str] = frozenset()
        self._env = env
        self._graphs = graphs or {}
        self._state: RuntimeState | None = None
        self._draining = False
        self._deadline = float("inf")
        self._active = self._started = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._handle = compose(
            answer,
            (
                reported,
                as_caller,
                within_session(self.sessions, self._leases),
                within_agent_limit(self._slots),
                keeping_partial,
                charging_time,
                within_deadline,
            ),
        )

        self.durable = RunWorker(self, WorkerHeartbeat(self.data_dir))
        self._durable_handle = self._durable_handler()
        self._workflows: WorkflowTasks | None = None
        self._archive = RunArchive(self.durable.open)
        self._budgets = Budgets(self._open_budgets, self.clock)
        self._idempotent_runs = IdempotentRuns(self.durable, self.registry, self.clock)
        self._exporter: TraceExporter | None = None
        self._captures_content = False
        self._remote_cancel = RemoteCancel(
            self.durable, self.registry, self.clock, lambda: bool(self._active), self._archive.flush
        )
        self.runs = StoredRuns(self.registry, self.durable, self._archive, self._remote_cancel)
        self.traces = StoredTraces(TraceStore(self._logs), self.durable, self._archive)

    # -- life ----------------------------------------------------------------------------------------------

    async def bootstrap(self, configuration: Configuration | None = None) -> None:
        """Loads the configuration and opens everything that its agents need.

        Args:
            configuration: what was read from the folder just now; None: it is read.

        Raises:
            InvalidConfiguration: faults that concern more than one agent, all at once.
            CircularAgentReference: agents that call each other in a circle.
        """
        if configuration is None:
            configuration = load_configuration(self.config_dir, self.plugins, self._env, self._graphs)
        self._state = await open_runtime(
            configuration,
            self.data_dir,
            self.plugins,
            self._env,
            self.clock,
            self._run_nested,
            self._graphs,
        )
        try:
            await self._open_services(self._state)
        except BaseException:
            opened, self._state = self._state, None
            await opened.resources.close()
            raise

    async def _open_services(self, opened: RuntimeState) -> None:
        """What a runtime has beside its agents."""
        opened.erasers.append(self._erase_runs)
        if any(agent.limits for agent in opened.agents.values()):
            opened.erasers.append(self._budgets.erase_owner)
        known, graphs = opened.configuration, opened.deps.graphs
        self._approval_agents = add_human_nodes(agents_with_approval(known), known, graphs)
        self._exporter = await self._open_exporter(opened)
        self._captures_content = known.runtime.spec.telemetry.capture_content
        bounds = {name: agent.spec.queue.max_running for name, agent in known.agents.items()}
        self._max_running = {name: most for name, most in bounds.items() if most}
        if workflow_names(self.config_dir):
            await self.workflows.load()

    async def _open_exporter(self, opened: RuntimeState) -> TraceExporter | None:
        told = opened.configuration.runtime.spec.telemetry
        if not told.otlp_endpoint:
            return None
        options = {"endpoint": told.otlp_endpoint, "sample_ratio": told.sample_ratio}
        exporter: TraceExporter = await self.plugins.open("exporters", "otlp", options, opened.deps)
        opened.resources.on_close(exporter.close)
        return exporter

    def resume_pending(self) -> None:
        """Begins to work on what earlier processes have left, in the background.

        A data folder that nothing was ever accepted in stays as it is: there the first run begins it.
        """
        if self.may_hold_runs:
            self._resuming = asyncio.create_task(retry_while_unavailable(self.durable.start))
            self._resuming.add_done_callback(_log_resume_error)
            if self._workflows is not None:
                self._workflows.resume_left()

    @property
    def may_hold_runs(self) -> bool:
        """Whether the place of runs is one that somebody may have written to."""
        deps = self.state.deps
        return not _uses_sqlite(deps) or default_file(deps).exists()

    @property
    def retention(self) -> RetentionPolicy:
        """How many ended runs are kept, and how long."""
        storage = self.state.configuration.runtime.spec.storage
        return RetentionPolicy(storage.keep_days, storage.keep_runs)

    @property
    def traces_dropped(self) -> int:
        """Runs whose traces were not exported because the collector was too slow."""
        return self._exporter.dropped if self._exporter is not None else 0

    @property
    def draining(self) -> bool:
        """Whether it takes no new runs any more."""
        return self._draining

    @property
    def activity(self) -> tuple[int, int]:
        """Runs that go on, and how many have begun since the start."""
        return self._active, self._started

    async def drain(self, grace: float) -> None:
        """Takes no new runs from here on, and waits at most `grace` seconds for those that go on.

        `close` waits no longer than this has left.
        """
        self._draining, self._deadline = True, self.clock.monotonic() + grace
        if self._workflows is not None:
            self._workflows.drain()
        await self.durable.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
                while self._workflows is not None and self._workflows.has_callers:  # noqa: ASYNC110 (at the end alone)
                    await asyncio.sleep(_POLL_SECONDS)

    async def close(self, grace: float = 30.0) -> None:
        """Takes no new runs, waits at most `grace` seconds for those that run, closes what was opened."""
        self._draining = True
        ends = min(self.clock.monotonic() + grace, self._deadline)
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.wait([self._resuming])
        if self._workflows is not None:
            await self._workflows.close()
        await self.durable.drain()
        try:
            async with asyncio.timeout(max(ends - self.clock.monotonic(), 0.0)):
                await self._idle.wait()
        except TimeoutError:
            pass  # what still runs is cut off with its resources; durable runs are taken up again
        await self.durable.close(max(ends - self.clock.monotonic(), 0.0))
        await self._remote_cancel.close()
        await self._leases.close()
        await self._archive.close()
        await self._budgets.close()
        if self._state is not None:
            opened, self._state = self._state, None
            await opened.resources.close()

    async def __aenter__(self) -> Self:
        await self.bootstrap()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _erase_runs(self, tenant: str, owner: str) -> int:
        await self._archive.flush()
        gone = self._logs.erase_owner(tenant, owner)
        if not self.may_hold_runs:
            return gone
        return max(gone, await (await self.durable.open()).erase_owner(tenant, owner))

    # -- what is loaded ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether `bootstrap()` was done and `close()` was not."""
        return self._state is not None

    @property
    def env(self) -> Mapping[str, str]:
        """Where `${VAR}` and the names of secrets are looked up."""
        return os.environ if self._env is None else self._env

    @property
    def state(self) -> RuntimeState:
        if self._state is None:
            raise ShuttingDown("The runtime is not open: call bootstrap() first, or it is shutting down.")
        return self._state

    @property
    def run_agent(self) -> RunAgent:
        """Runs an agent inside another run, for workflows."""
        return self._run_nested

    async def load_workflows(self) -> None:
        """Loads what workflows are made of beside the event loop, unless somebody has needed it before."""
        if self._workflows is None:
            await asyncio.to_thread(importlib.import_module, _TASKS_MODULE)

    @property
    def has_workflows(self) -> bool:
        """Whether there are any, or somebody has asked for them."""
        return self._workflows is not None

    @property
    def workflows(self) -> WorkflowTasks:
        """The workflows and their Tasks: loaded with the first one, as most runtimes have none."""
        if self._workflows is None:
            tasks = importlib.import_module(_TASKS_MODULE)
            made: WorkflowTasks = tasks.WorkflowTasks(self, WorkerHeartbeat(self.data_dir / "tasks"))
            if self._draining:
                made.drain()
            self._workflows = made
        return self._workflows

    @property
    def agents(self) -> Mapping[str, Agent]:
        return self.state.agents

    @property
    def broken(self) -> Mapping[str, tuple[InvalidManifest, ...]]:
        """Agents whose manifest has faults, or whose stores could not be opened: `agent_unavailable`."""
        return self.state.broken

    def agent(self, name: str) -> Agent:
        """Raises: AgentNotFoundError, AgentUnavailable."""
        agent = self.state.agents.get(name)
        if agent is not None:
            return agent
        if faults := self.state.broken.get(name):
            raise unavailable_error(name, faults, passing=name in self.state.recovering)
        near = difflib.get_close_matches(name, self.state.agents, 1)
        raise AgentNotFoundError(name, f"Did you mean {near[0]!r}?" if near else "GET /v1/agents lists them.")

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
        """One run of one agent (document 001, step 2).

        Args:
            query, session_id: the message and its conversation, neither empty.
            context: variables for the prompt template.
            caller: who asks; None is the local anonymous principal.
            sinks: listeners to the run's events; a run without one that wants deltas does not stream.
            trace_id: 32 hex digits of the trace that this run belongs to; empty starts one.

        Raises:
            RequestError, UpstreamError, LimitReached, Unavailable: see `astromesh.errors`.
        """
        if not query or not session_id:
            raise InvalidInput("A run needs a query and a session_id that are not empty.")
        request = RunRequest(query, session_id, context or {}, metadata or {})
        return await self.start(
            self.agent(agent_name), request, caller=caller, sinks=sinks, trace_id=trace_id
        )

    async def start(  # noqa: PLR0913 (a run has these parts)
        self,
        agent: Agent,
        request: RunRequest,
        *,
        caller: CallerContext | None = None,
        sinks: Iterable[EventSink] = (),
        trace_id: str = "",
        parent: ToolContext | None = None,
        key: IdempotencyKey | None = None,
    ) -> RunAnswer:
        """`run` for a request record, for nested runs with their parent, for runs that callers name."""
        if self._draining and parent is None:
            raise ShuttingDown("The server is shutting down; send the request again.")
        if parent is None and agent.name in self._approval_agents:
            row = await self.accept(agent, request, caller=caller, trace_id=trace_id, key=key)
            return await wait_for_run(self.runs, self.durable.store, row, tuple(sinks))
        if key is not None:
            return await self._start_idempotent(key, agent, request, caller, tuple(sinks), trace_id)
        self._active += 1
        self._started += 1
        self._idle.clear()
        try:
            if agent.merges_messages and parent is None:
                return await self._start_merged(agent, request, caller, tuple(sinks), trace_id)
            run = self._new_run(agent, request, caller, tuple(sinks), trace_id, parent)
            if run.journal is not None:
                await nested_runs.begin_nested_run(run, agent, (self.metrics,), tuple(sinks))
            return await self._execute(agent, request, run)
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def run_segment(self, agent: Agent, request: RunRequest, run: Run, handle: Handler) -> RunAnswer:
        """One segment of a durable run, counted among what a shutdown waits for."""
        self._active += 1
        self._started += 1
        self._idle.clear()
        try:
            return await self._execute(agent, request, run, handle)
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def accept(
        self,
        agent: Agent,
        request: RunRequest,
        *,
        caller: CallerContext | None = None,
        trace_id: str = "",
        key: IdempotencyKey | None = None,
    ) -> RunRow:
        """A durable run: accepted for good when this returns, and worked on from then (api.md section 1).

        Args:
            key: the caller's own name of this request; the run that has it already is answered.

        Raises:
            StoreUnavailable, ShuttingDown: it was not accepted.
            IdempotencyConflict: the key was used with another body.
        """
        tenant, owner = principal_of(caller)
        rejects = agent.manifest.spec.sessions.concurrency == "reject" and key is None
        if rejects and SessionKey(tenant, agent.name, request.session_id) in self.sessions.active:
            raise busy_error()  # by a run that is not durable; of others the store knows
        caller = caller or CallerContext()
        row = accepted_row(agent, request, caller, (tenant, owner), self.clock.now(), trace_id)
        return await self.durable.accept(row, caller, admission_of(agent), key)

    async def _start_idempotent(
        self,
        key: IdempotencyKey,
        agent: Agent,
        request: RunRequest,
        caller: CallerContext | None,
        sinks: tuple[EventSink, ...],
        trace_id: str,
    ) -> RunAnswer:
        run = self._new_run(agent, request, caller, sinks, trace_id, None)
        work = partial(self.run_segment, agent, request, run, self._handle)
        leaves = agent.manifest.spec.on_disconnect == "cancel"
        return await self._idempotent_runs.answer(key, run.log, work, sinks, abandoned=leaves)

    def new_run(self, agent: Agent, request: RunRequest, caller: CallerContext, row: RunRow) -> Run:
        """A durable run as this process begins a segment of it."""
        run = self._new_run(agent, request, caller, (), row.trace_id, None, row.run_id)
        run.key, run.owner = SessionKey(row.tenant, row.agent, row.session_id), row.owner
        newest = row.segment == 1 and agent.manifest.spec.sessions.concurrency == "interrupt"
        run.policy = "interrupt" if newest else "enqueue"
        run.log.durable = True
        return run

    @property
    def max_running(self) -> Mapping[str, int]:
        """Of agents with a bound: how many of their durable runs may go on over all workers."""
        return self._max_running

    async def run_durable(self, agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        """Executes one segment of a durable run."""
        return await self.run_segment(agent, request, run, self._durable_handle)

    async def load_segment(
        self, store: RunStore, row: RunRow, caller: CallerContext, notify: Callable[[str], None]
    ) -> Segment:
        """Loads a claimed segment with the agent of the run's own manifest, most often the present one.

        Raises:
            AgentNotFoundError, InvalidManifest: there is none any more.
        """
        agent = await self._agent_of_snapshot(row.agent, row.manifest or {})
        return Segment(self, store, row, agent, caller, notify)

    async def _agent_of_snapshot(self, name: str, kept: JsonObject) -> Agent:
        present = self.state.agents.get(name)
        if present is not None and kept in ({}, present.snapshot):
            return present
        if not kept.get("source") or self.state.reopen is None:
            return self.agent(name)
        return await self._snapshots.get(name, kept, self.state.reopen)

    async def _nested_agent(self, name: str, record: RunJournal | None) -> Agent:
        """An agent that a run starts: for an accepted run as it was when that was accepted."""
        kept = record.step_log.manifest if record is not None else {}
        if name not in kept.get("agents", {}) or record is None:
            return self.agent(name)
        above = self.state.agents.get(record.step_log.agent)
        if above is not None and kept == above.snapshot:
            return self.agent(name)
        return await self._agent_of_snapshot(name, {**kept, "source": kept["agents"][name]})

    async def open_runs(self) -> RunStore:
        """The store of runs in `storage.url`."""
        deps, plugins = self.state.deps, self.plugins
        kind = "sqlite" if _uses_sqlite(deps) else "postgres"
        store: RunStore = await plugins.open("run_stores", kind, {}, deps)
        self.state.checks[f"store:runs:{kind}"] = store.ping
        self.state.resources.on_close(store.close)
        return store

    async def open_backend(self) -> DurableBackend:
        """Opens what dispatches segments to this process; the claim of a segment decides who executes it."""
        opened: DurableBackend = await self.plugins.open(
            "durable_backends", "in_process", {}, self.state.deps
        )
        return opened

    async def register_key(self, key: IdempotencyKey, candidate_id: str) -> str:
        """Under which id what a caller has named is kept: the one given, where nobody was first."""
        return await (await self.durable.open()).reserve_key(key, candidate_id)

    async def open_tasks(self) -> TaskStore:
        """The store of Tasks in `storage.url`."""
        deps = self.state.deps
        kind = "sqlite" if _uses_sqlite(deps) else "postgres"
        store: TaskStore = await self.plugins.open("task_stores", kind, {}, deps)
        self.state.checks[f"store:tasks:{kind}"] = store.ping
        self.state.resources.on_close(store.close)
        self.state.erasers.append(store.erase_owner)
        return store

    async def _open_budgets(self) -> BudgetStore:
        """The store of budgets in `storage.url`."""
        deps = self.state.deps
        kind = "sqlite" if _uses_sqlite(deps) else "postgres"
        store: BudgetStore = await self.plugins.open("budget_stores", kind, {}, deps)
        return store

    def _durable_handler(self) -> Handler:
        """The pipeline in what wraps a durable run: that of every run, and its record."""
        around = (
            reported, as_caller, waiting_for_session, within_session(self.sessions, self._leases),
            within_agent_limit(self._slots), keeping_partial, charging_time, within_deadline, under_journal,
        )  # fmt: skip
        return compose(answer, around)

    async def _execute(
        self, agent: Agent, request: RunRequest, run: Run, handle: Handler | None = None
    ) -> RunAnswer:
        """One run from its first event to its last, known to `runs` meanwhile."""
        log = run.log
        log.task = task = asyncio.current_task()
        self._logs.open(log)
        self._remote_cancel.watch()
        try:
            return await (handle or self._handle)(agent, request, run)
        except asyncio.CancelledError as cancelled:
            if log.cancel_requested and task is not None and task.uncancel() == 0:
                raise interrupted_error(run) from cancelled
            raise
        finally:
            self._logs.close(log, self.clock.monotonic())
            if run.parent and run.journal is not None:
                nested_runs.end_nested_run(run)
            self._archive_run(log)

    def _archive_run(self, log: RunLog) -> None:
        """What happens to a run's log off its path."""
        if not log.durable:
            self._archive.add(log)
        if log.events and log.events[-1].type in TERMINAL_EVENTS:
            self.export(log)

    def export(self, run: TracedRun) -> None:
        """Hands on what has ended, where traces are exported."""
        if self._exporter is not None:
            self._exporter.offer(run)

    async def _start_merged(
        self,
        agent: Agent,
        request: RunRequest,
        caller: CallerContext | None,
        sinks: tuple[EventSink, ...],
        trace_id: str,
    ) -> RunAnswer:
        """The messages of a window as one run; every caller hears its events and gets its answer."""

        async def work(messages: Sequence[tuple[RunRequest, tuple[EventSink, ...]]]) -> RunAnswer:
            everybody = tuple(sink for _, heard in messages for sink in heard)
            run = self._new_run(agent, request, caller, everybody, trace_id, None)
            return await self._execute(agent, _merge_requests([asked for asked, _ in messages]), run)

        tenant, owner = principal_of(caller)
        group = (SessionKey(tenant, agent.name, request.session_id), owner)
        window = agent.manifest.spec.sessions.merge_window_ms / 1000
        return await self.sessions.merging.join(group, (request, sinks), window, work)

    def _new_run(  # noqa: PLR0913 (what a run is made of)
        self,
        agent: Agent,
        request: RunRequest,
        caller: CallerContext | None,
        sinks: tuple[EventSink, ...],
        trace_id: str,
        parent: ToolContext | None,
        run_id: str = "",
    ) -> Run:
        caused = request.caused_by
        run_id, trace_id = run_id or ids.new_id("run_"), trace_id or caused.trace_id or ids.trace_id()
        tenant, owner = principal_of(caller)
        session = SessionKey(tenant, agent.name, request.session_id)
        above = f"{parent.run_id}.{parent.call_id}" if parent else ""
        outer: Scope | None = parent.run if parent else None
        record: RunJournal | None = outer.journal if outer else None  # type: ignore[assignment]
        place = ""
        if record is not None and parent is not None:
            place, run_id = record.nested(parent.path, parent.call_id, agent.name)
        ledger = RunLedger(agent.budget, outer.ledger if outer else None)
        scope = Scope(
            run_id,
            agent=agent.name,
            session=session,
            caller=caller,
            trace_id=trace_id,
            ledger=ledger,
            clock=self.clock,
            deadline=parent.deadline if parent else None,
            depth=outer.depth + 1 if outer else 0,
        )
        if outer:
            scope.retries, scope.uncancelled, scope.untrusted = (
                outer.retries,
                outer.uncancelled,
                outer.untrusted,
            )
        if agent.memory.episodic is not None:
            scope.tool_records = []
        model = charged_model(agent, scope, owner, outer, self._budgets)
        log = RunLog(
            run_id, trace_id, tenant, owner, agent.name, request.session_id, above, ledger, model.attempts
        )
        if caused.span_id:
            log.remote_span = caused.span_id
        sampled = caused.sampled if outer is None else outer.sampled
        if sampled is not None:
            log.sampled = scope.sampled = sampled
        log.stream = stream = EventStream(run_id, (self.metrics, *sinks), log)
        scope.events = events = GatedEvents(stream, agent, ledger, model)
        any_owner = bool(caller and caller.scopes & ANY_SESSION)
        run = Run(scope, stream, log, events, model, session, owner, any_owner, caller, above)
        if agent.guardrails.output_rules:
            scope.visible_name = agent.guardrails.filter_text
        if self._captures_content:
            run.content_recorder = scope.capture = ContentCapture(scope, agent.guardrails)
        if record is not None:
            run.accepted_at, log.durable = record.step_log.accepted_at, True
            run.journal = scope.journal = RunJournal(record.step_log, place, run_id, model)
        return run

    async def _run_nested(
        self,
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        """A run inside another one: steps 2 to 12 of the target in the parent's trace, budget, deadline."""
        outer: Scope = parent.run
        if outer.depth + 1 > MAX_DEPTH:
            raise InvalidInput(f"Agents may call agents {MAX_DEPTH} deep; this call would go deeper.")
        if outer.ledger.spent_in_tree("nested_runs") >= MAX_NESTED_RUNS:
            raise InvalidInput(f"One run and all below it may call agents {MAX_NESTED_RUNS} times, no more.")
        outer.ledger.spend("nested_runs")
        session = f"{parent.session.session_id}/{parent.tool or agent}"
        request = RunRequest(
            query,
            session,
            context,
            images=terms.images,
            history=terms.history,
            persist=terms.history is None,
            terms=terms,
        )
        record: RunJournal | None = outer.journal  # type: ignore[assignment]
        counting = (
            record.step_log.waiting.suspended_call() if record is not None and parent.step else nullcontext()
        )
        with counting:
            done = await self.start(
                await self._nested_agent(agent, record),
                request,
                caller=parent.caller,
                sinks=forward_events(outer, terms),
                trace_id=parent.trace_id,
                parent=parent,
            )
        return done.to_json()


def _log_resume_error(taking_up: asyncio.Task[None]) -> None:
    """What keeps a process from working on what was accepted before, e.g. a database of a newer astromesh."""
    if not taking_up.cancelled() and (error := taking_up.exception()) is not None:
        log.error("runs_not_taken_up", error=str(error))


def _uses_sqlite(deps: Deps) -> bool:
    return not deps.storage_url or deps.storage_url.startswith("sqlite:")


def _merge_requests(requests: Sequence[RunRequest]) -> RunRequest:
    """Several messages as one: texts by newline, pictures in order, the rest of the first."""
    return replace(
        requests[0],
        query="\n".join(request.query for request in requests),
        images=tuple(image for request in requests for image in request.images),
    )
