"""Starts, accepts and executes runs, around whose pipeline `runtime.wrappers` stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from astromesh.access.scopes import Viewer, principal_of
from astromesh.config.agent import CallbackSpec
from astromesh.config.runtime import Recording as RecordingKeys
from astromesh.durable.base import Callback, IdempotencyKey, JournalStep, RunRow, RunStore, StoredCallback
from astromesh.durable.budgets import Budgets
from astromesh.durable.callbacks import CallbackSender
from astromesh.durable.journal import RunJournal
from astromesh.durable.leases import DAY_SECONDS, WorkerHeartbeat
from astromesh.durable.queue import AgentSlots
from astromesh.durable.run_worker import RunWorker
from astromesh.durable.serialization import contents_of
from astromesh.durable.step_view import as_shown
from astromesh.errors import (
    AstromeshError,
    ConfigError,
    InvalidInput,
    RunFailed,
    ShuttingDown,
)
from astromesh.graph.scope import NO_EVENTS, Scope
from astromesh.memory.base import SessionLease, SessionLeases
from astromesh.plugins import Plugins
from astromesh.runtime.agent import Agent
from astromesh.runtime.agent_directory import AgentDirectory
from astromesh.runtime.attachments import AttachmentReader
from astromesh.runtime.bootstrap import RuntimeState, RuntimeStores
from astromesh.runtime.client_tools import screened_answer
from astromesh.runtime.config_loader import agents_with_approval
from astromesh.runtime.idempotency import IdempotentRuns
from astromesh.runtime.pipeline import answer
from astromesh.runtime.records import RunAnswer, RunRequest, attachments_of, request_of, require_valid
from astromesh.runtime.request_checks import changed_agent, require_allowed, require_priority
from astromesh.runtime.run import (
    MAX_DEPTH,
    MAX_NESTED_RUNS,
    Handler,
    PlainRecorder,
    Run,
    RunFactory,
    begin_nested_run,
    end_nested_run,
    forward_events,
)
from astromesh.runtime.runs import Decision, Runs
from astromesh.runtime.segment import (
    Segment,
    accepted_row,
    admission_of,
    stored_request,
    under_journal,
    waiting_for_session,
)
from astromesh.runtime.sessions import (
    SessionLeaseHolder,
    Sessions,
    become_newest,
    busy_error,
)
from astromesh.runtime.time_travel import Replays
from astromesh.runtime.wrappers import (
    compose,
    for_writers,
    keeping_partial,
    reported,
    within_agent_limit,
    within_deadline,
    within_session,
)
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import TERMINAL_EVENTS, EventSink
from astromesh.telemetry.ids import in_trace
from astromesh.telemetry.metrics import Metrics
from astromesh.telemetry.traces import TracedRun, TraceExporter
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, ToolContext
from astromesh.types import CallerContext, JsonObject, SessionKey, calling_as

#: days after which a run may begin at the latest
MAX_DAYS_AHEAD = 30


class ActiveRuns:
    """Counts active runs, so that a shutdown can wait for them. Each run is a `with` block.

    Attributes:
        count: The active runs of this process.
        draining: Whether new runs are refused.
    """

    def __init__(self) -> None:
        self.count = 0
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self._idle.set()

    async def wait(self) -> None:
        """Waits until no run is active."""
        await self._idle.wait()


class AgentRunner:
    """The runs of one runtime.

    Args:
        directory: The agents.
        heartbeat: The live workers of this machine.

    Attributes:
        active: The runs of this process that a shutdown waits for.
        durable: The worker of durable runs.
        runs: Every run that callers may ask about.
        replays: Makes recorded runs again.
        callbacks: Delivers callbacks; None: the server has no secret for them.
        sessions: The sessions in which a run of this process is active.
        max_running: How many durable runs of a limited agent may be active, over all workers.
        keeps_runs: Whether plain runs are stored when they have ended.
        is_durable: Whether every run is durable, and not only those that may wait for a person.
    """

    def __init__(
        self,
        directory: AgentDirectory,
        stores: RuntimeStores,
        clock: Clock,
        metrics: Metrics,
        heartbeat: WorkerHeartbeat,
    ) -> None:
        self.directory, self.stores, self.clock, self.metrics = directory, stores, clock, metrics
        self.active = ActiveRuns()
        self.keeps_runs, self.is_durable, self.records_runs = True, False, False
        self.sessions = Sessions(clock)
        self._leases = SessionLeaseHolder()
        self.max_running: Mapping[str, int] = {}
        #: agents whose runs are all durable: those that may have to wait for a person
        self._durable_agents: frozenset[str] = frozenset()
        self._programs: dict[str, _Program] = {}
        self.exporter: TraceExporter | None = None
        self.callbacks: CallbackSender | None = None
        self.budgets = Budgets(stores.open_budgets, clock)
        self._factory = RunFactory(clock, metrics, self.budgets)
        self._recorder = PlainRecorder(RecordingKeys())
        self.durable = RunWorker(self, stores, heartbeat)
        self.runs = Runs(self.durable, clock, lambda: bool(self.active.count))
        self.replays = Replays(directory, self.budgets)
        self._idempotent_runs = IdempotentRuns(self.durable, self.runs, clock)
        # what wraps every run; the first is the outermost
        session = for_writers(within_session(self.sessions, self._leases))
        slots = within_agent_limit(AgentSlots(clock))
        self._handle = compose(
            answer,
            reported,
            session,
            slots,
            keeping_partial,
            within_deadline,
        )
        self._durable_handle = compose(
            answer, reported, waiting_for_session, session, slots, keeping_partial,
            within_deadline, under_journal,
        )  # fmt: skip

    @property
    def run_links(self) -> str:
        """What stands before the id of a run in its link to the console; empty without a console."""
        return self._factory.run_links

    @run_links.setter
    def run_links(self, links: str) -> None:
        self._factory.run_links = links

    # -- life ----------------------------------------------------------------------------------------------

    def open(self, state: RuntimeState, exporter: TraceExporter | None) -> None:
        """Prepares for the agents of an opened configuration."""
        state.erasers.append(self.runs.erase_owner)
        if any(agent.limits for agent in state.agents.values()):
            state.erasers.append(self.budgets.erase_owner)
        configuration = state.configuration
        self._open_callbacks(state)
        max_bytes = state.configuration.runtime.spec.limits.max_attachment_bytes
        self._attachments = AttachmentReader(state.deps, state.plugins, max_bytes)
        self.read_agents(state)
        self.exporter = exporter
        self._recorder = PlainRecorder(configuration.runtime.spec.recording, by_default=self.records_runs)
        self._factory.captures_content = configuration.runtime.spec.telemetry.capture_content
        self.durable.max_starting = configuration.runtime.spec.limits.max_concurrent_runs
        self._factory.max_answer_bytes = configuration.runtime.spec.limits.max_answer_bytes

    def read_agents(self, state: RuntimeState) -> None:
        """Reads from the manifests which agents run durably, and how many runs of each may be active."""
        agents = state.configuration.agents
        with_callback = {name for name, agent in agents.items() if agent.spec.callback is not None}
        self._durable_agents = agents_with_approval(state.configuration, state.deps.graphs) | with_callback
        if self.is_durable:
            self._durable_agents = frozenset(agents)
        limits = {name: agent.spec.queue.max_running for name, agent in agents.items()}
        self.max_running = {name: limit for name, limit in limits.items() if limit}

    def _open_callbacks(self, state: RuntimeState) -> None:
        """Raises: ConfigError: the secret is missing or wrong."""
        variable = state.configuration.runtime.spec.callbacks.secret_env
        if not variable:
            for name, agent in state.configuration.agents.items():
                if agent.spec.callback is not None:
                    raise ConfigError(
                        f"callback of the agent {name!r}: set `callbacks.secret_env` in runtime.yaml, whose "
                        "secret signs it."
                    )
            return
        if not (secret := state.env.get(variable, "")):
            raise ConfigError(f"callbacks.secret_env: the environment variable {variable} is not set.")
        open_store = self.durable.open_if_used
        encode = partial(_callback_body, state.plugins)
        self.callbacks = CallbackSender(
            open_store, state.deps.http, secret, self.clock, encode, self.durable.wake_at
        )
        self.durable.wakers["callbacks"] = self.callbacks.wake
        if self.durable.executes:
            self.callbacks.start()

    async def close(self, ends: float) -> None:
        """Waits for active runs until `clock.monotonic()` is `ends`, then hands over durable ones."""
        await self.durable.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(ends - self.clock.monotonic(), 0.0)):
                await self.active.wait()
        if self.callbacks is not None:
            await self.callbacks.close()
        # what is still active ends with its resources; durable runs are resumed
        await self.durable.close(max(ends - self.clock.monotonic(), 0.0))
        await self.runs.close()
        await self._leases.close()
        await self.budgets.close()

    # -- runs ----------------------------------------------------------------------------------------------

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
        watch: Callable[[Run], None] | None = None,
    ) -> RunAnswer:
        """Executes one run and returns its answer.

        Args:
            caller: None is the local anonymous principal.
            sinks: Listeners to its events. Models stream if one of them wants deltas.
            trace_id: 32 hex digits of the trace that the run belongs to. Empty starts one.
            parent: The tool call that the run is nested in.
            key: The caller's `Idempotency-Key`. The run that has the key already is answered.
            watch: Receives the run before it starts, a durable one with each of its segments. Merged runs
                have none that could be watched.

        Raises:
            RequestError, UpstreamError, LimitReached, Unavailable: see `astromesh.errors`.
        """
        sinks = tuple(sinks)
        if parent is None:
            self._require_startable(request)
            if request.attachments or request.history:
                request = await self._attachments.read(agent, request)
            if self.may_wait(agent, request):
                row = await self.accept(
                    agent, request, caller=caller, trace_id=trace_id, key=key, watch=watch
                )
                return await self._wait(row, sinks)
            if request.priority is not None:
                require_priority(agent, request, caller)
            if request.has_options:
                require_allowed(agent, request)
                agent = changed_agent(agent, request)
            if key is not None:
                return await self._start_idempotent(key, agent, request, caller, sinks, trace_id)
            if agent.merges_messages:
                return await self._start_merged(agent, request, caller, sinks, trace_id)
        run = self._factory.new_run(agent, request, caller, sinks, trace_id, parent)
        if run.parent and run.is_in_durable_run:
            await begin_nested_run(run, agent, (self.metrics,), sinks)
        if watch is not None:
            watch(run)
        return await self._execute(agent, request, run, self._handle)

    def _require_startable(self, request: RunRequest) -> None:
        if request.metadata or request.tags:
            require_valid(request)
        if self.active.draining:
            raise ShuttingDown("The server is shutting down; send the request again.")

    def may_wait(self, agent: Agent, request: RunRequest) -> bool:
        """Whether a run is durable: it may wait for a person or its client, or has a callback."""
        return agent.name in self._durable_agents or bool(request.client_tools.specs or request.callback)

    async def _execute(self, agent: Agent, request: RunRequest, run: Run, handle: Handler) -> RunAnswer:
        """Executes one run from its first event to its last; `runs` knows it meanwhile."""
        log = run.log
        log.task = task = asyncio.current_task()
        runs = self.runs
        recorded = self._recorder.begin(agent, run) if self.keeps_runs else None
        runs.logs.open(log)
        if not runs.remote_cancel.polling.is_running:
            runs.remote_cancel.watch()
        with self.active, calling_as(run.caller), in_trace(run.trace_id, run.id, run.scope.sampled):
            try:
                return await handle(agent, request, run)
            except asyncio.CancelledError as cancelled:
                if log.cancel_requested and task is not None and task.uncancel() == 0:
                    raise run.interrupted_error() from cancelled
                raise
            finally:
                if recorded is not None:
                    log.recording = self._recorder.end(agent, request, run, recorded)
                runs.logs.close(log, self.clock.monotonic())
                # breaks the circle of events, model and scope, which keeps texts
                run.scope.common.events = NO_EVENTS
                is_suspended = run.journal is not None and run.is_suspended
                if self.keeps_runs and not log.durable and not is_suspended:
                    runs.archive.add(log)
                if run.parent and run.is_in_durable_run:
                    end_nested_run(run)
                if self.exporter is not None and log.events and log.events[-1].type in TERMINAL_EVENTS:
                    self.exporter.offer(log)

    async def _start_idempotent(
        self,
        key: IdempotencyKey,
        agent: Agent,
        request: RunRequest,
        caller: CallerContext | None,
        sinks: tuple[EventSink, ...],
        trace_id: str,
    ) -> RunAnswer:
        run = self._factory.new_run(agent, request, caller, sinks, trace_id)
        work = partial(self._execute, agent, request, run, self._handle)
        abandoned = agent.manifest.spec.on_disconnect == "cancel"
        return await self._idempotent_runs.answer(key, run.log, work, sinks, abandoned=abandoned)

    async def _start_merged(
        self,
        agent: Agent,
        request: RunRequest,
        caller: CallerContext | None,
        sinks: tuple[EventSink, ...],
        trace_id: str,
    ) -> RunAnswer:
        """Executes the messages of a window as one run. Every caller receives its events and its answer."""

        async def work(messages: Sequence[tuple[RunRequest, tuple[EventSink, ...]]]) -> RunAnswer:
            everybody = tuple(sink for _, listening in messages for sink in listening)
            run = self._factory.new_run(agent, request, caller, everybody, trace_id)
            merged = _merge_requests([message for message, _ in messages])
            return await self._execute(agent, merged, run, self._handle)

        tenant, owner = principal_of(caller)
        group = SessionKey(tenant, agent.name, request.session_id, owner)
        window = agent.manifest.spec.sessions.merge_window_ms / 1000
        with self.active:
            return await self.sessions.merging.join(group, (request, sinks), window, work)

    async def run_nested(
        self,
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        """Executes a run (steps 2 to 12) inside another one, in its trace, budget and deadline."""
        outer: Scope = parent.run
        if outer.depth + 1 > MAX_DEPTH:
            raise InvalidInput(f"Agents may call agents at most {MAX_DEPTH} levels deep.")
        if outer.ledger.spent_in_tree("nested_runs") >= MAX_NESTED_RUNS:
            raise InvalidInput(f"A run and its nested runs may call agents at most {MAX_NESTED_RUNS} times.")
        outer.ledger.spend("nested_runs")
        session = f"{parent.session.session_id}/{parent.tool or agent}"
        record: RunJournal | None = outer.journal  # type: ignore[assignment]
        request = RunRequest(
            query,
            session,
            context,
            attachments=terms.attachments,
            history=terms.history,
            persist=terms.history is None and (record is None or record.step_log.writes_sessions),
            terms=terms,
        )
        above = ("", {}) if record is None else (record.step_log.agent, record.step_log.manifest)
        nested = await self.directory.nested(agent, *above)
        if terms.model:
            nested = await self.directory.with_model(nested, terms.model)
        if record is not None and record.step_log.is_replay:
            return _with_citations(await self.replays.nested(nested, request, parent), outer)
        suspended = (
            record.step_log.waiting.suspended_call() if record is not None and parent.step else nullcontext()
        )
        with suspended:
            done = await self.start(
                nested,
                request,
                caller=parent.caller,
                sinks=forward_events(outer, terms),
                trace_id=parent.trace_id,
                parent=parent,
            )
        return _with_citations(done, outer)

    def export(self, run: TracedRun) -> None:
        """Exports the trace of an ended run, if `telemetry.otlp_endpoint` is set."""
        if self.exporter is not None:
            self.exporter.offer(run)

    @property
    def traces_dropped(self) -> int:
        """The runs whose traces were not exported because the collector was too slow."""
        return self.exporter.dropped if self.exporter is not None else 0

    # -- durable runs --------------------------------------------------------------------------------------

    async def accept(
        self,
        agent: Agent,
        request: RunRequest,
        *,
        caller: CallerContext | None = None,
        trace_id: str = "",
        key: IdempotencyKey | None = None,
        watch: Callable[[Run], None] | None = None,
    ) -> RunRow:
        """Accepts a durable run (docs/api.md, Durability): it is on disk when this returns.

        Args:
            watch: As in `start`, until `resume` or `start` returns.
            key: The caller's `Idempotency-Key`. The run that has the key already is returned.

        Raises:
            StoreUnavailable, ShuttingDown: it was not accepted.
            IdempotencyConflict: the key was used with another body.
        """
        require_valid(request)
        require_allowed(agent, request)
        require_priority(agent, request, caller)
        request = await self._attachments.read(agent, self._timed(request))
        tenant, owner = principal_of(caller)
        concurrency = agent.manifest.spec.sessions.concurrency
        rejects = concurrency == "reject" and key is None and not request.not_before
        if rejects and SessionKey(tenant, agent.name, request.session_id, owner) in self.sessions.active:
            raise busy_error()  # by a run that is not durable; of others the store knows
        callback = self.stored_callback(request.callback or callback_of(agent.manifest.spec.callback))
        caller = caller or CallerContext()
        row = accepted_row(agent, request, caller, (tenant, owner), self.clock.now(), trace_id)
        if watch is not None:
            self._programs[row.run_id] = _Program(request.deps, watch)
        accepted: RunRow | None = None
        try:
            accepted = await self._admit(agent, row, caller, key, request, callback)
        finally:
            if accepted is None or accepted.run_id != row.run_id:
                self._programs.pop(row.run_id, None)
        if callback is not None and self.callbacks is not None:
            self.callbacks.wake()
        return accepted

    def stored_callback(self, callback: Callback | None) -> StoredCallback | None:
        """Returns a callback as it is stored. Raises: InvalidInput: the server has no secret for it."""
        if callback is None:
            return None
        if self.callbacks is None:
            detail = "callback: the operator has set no `callbacks.secret_env` in runtime.yaml."
            raise InvalidInput(detail, param="callback")
        return self.callbacks.stored(callback)

    def _timed(self, request: RunRequest) -> RunRequest:
        """Returns the request, without a `not_before` that has passed. Raises: InvalidInput."""
        ahead = request.not_before - self.clock.now()
        if ahead > MAX_DAYS_AHEAD * DAY_SECONDS:
            detail = f"not_before: it may be at most {MAX_DAYS_AHEAD} days ahead."
            raise InvalidInput(detail, param="not_before")
        return request if ahead > 0 or not request.not_before else replace(request, not_before=0.0)

    async def _admit(
        self,
        agent: Agent,
        row: RunRow,
        caller: CallerContext,
        key: IdempotencyKey | None,
        request: RunRequest,
        callback: StoredCallback | None,
    ) -> RunRow:
        contents = contents_of(attachments_of(request))
        admission = admission_of(agent)._replace(callback=callback, attachments=contents)
        if not row.ordered:  # it meets its session when it begins
            admission = admission._replace(policy="enqueue")
        if admission.policy != "interrupt":
            return await self.durable.accept(row, caller, admission, key)
        session = SessionKey(row.tenant, row.agent, row.session_id, row.owner)
        take_place = partial(self._take_place, agent.memory.leases, session, row.run_id)
        async with self._leases.arrival_lock(session):
            return await self.durable.accept(row, caller, admission._replace(take_place=take_place), key)

    async def _take_place(self, store: SessionLeases | None, session: SessionKey, run_id: str) -> int:
        """Makes an accepted run the newest message of its session; returns the token of its place."""
        self.sessions.order.arrive(session, run_id)
        if store is None or not store.shared:
            return 0
        return (await become_newest(store, session)).token

    async def resume(
        self,
        run_id: str,
        decision: Decision,
        *,
        caller: CallerContext | None = None,
        deps: Any = None,
        sinks: Iterable[EventSink] = (),
        watch: Callable[[Run], None],
    ) -> tuple[RunRequest, RunAnswer]:
        """Continues a durable run that waits for a person, and returns its request and answer.

        Args:
            caller: Who decides.
            deps: What its tools find as `ToolContext.deps`. None: that of the agent.
            sinks, watch: As in `start`.

        Raises:
            ApprovalRequired: It waits for another decision. Else as `start` and `Runs.decide`.
        """
        viewer = Viewer(*principal_of(caller))
        await self.runs.get(run_id, viewer)
        last = await self.runs.last_event(run_id)
        self._programs[run_id] = _Program(deps, watch)
        row: RunRow | None = None
        try:
            row = await self.runs.decide(run_id, viewer, caller or CallerContext(), decision)
        finally:
            if row is None:
                self._programs.pop(run_id, None)
        return request_of(row.request), await self._wait(row, tuple(sinks), last)

    async def send_results(
        self,
        agent: Agent,
        row: RunRow,
        results: Mapping[str, Any],
        *,
        choice: str = "auto",
        caller: CallerContext | None = None,
        sinks: Iterable[EventSink] = (),
    ) -> RunAnswer:
        """Continues a run that waits for its client, and returns its answer.

        Args:
            row, results: As `find_waiting` returns them.
            choice: As in `ClientTools`, for the next model call.
            sinks: Listeners to the events that follow.

        Raises:
            ApprovalRequired: It waits for its client again, or for a person. Else as `start`.
            GuardrailBlocked: An input rule refuses a result. The run still waits.
        """
        row, last = await self.accept_results(agent, row, results, choice=choice, caller=caller)
        return await self._wait(row, tuple(sinks), last)

    async def accept_results(
        self,
        agent: Agent,
        row: RunRow,
        results: Mapping[str, Any],
        *,
        choice: str = "auto",
        caller: CallerContext | None = None,
        protocol: JsonObject | None = None,
    ) -> tuple[RunRow, int]:
        """Continues a run as `send_results`, and returns it with its last event so far.

        Args:
            protocol: As of `RunRequest`, of the request that brings the results. It is stored with the
                number of that event as `after`.
        """
        last = await self.runs.last_event(row.run_id)
        more = {} if protocol is None else {"protocol": {**protocol, "after": last}}
        decisions: dict[str, JsonObject] = {
            question: {
                "decision": "answer",
                "answer": screened_answer(agent, result),
                "tool_choice": choice,
                **more,
            }
            for question, result in results.items()
        }
        return await self.durable.decide(row, decisions, caller or CallerContext()), last

    async def wait(self, row: RunRow, after: int = 0, sinks: Sequence[EventSink] = ()) -> RunAnswer:
        """Waits for an accepted run, from an event on. A client that leaves cancels it.

        Raises:
            As `start`.
        """
        return await self._wait(row, sinks, after, leaves=True)

    async def _wait(
        self, row: RunRow, sinks: Sequence[EventSink], after: int = 0, *, leaves: bool = False
    ) -> RunAnswer:
        """Waits for a durable run.

        A program receives its own error. If it leaves before the run waits, or a client that is to receive
        the answer, the run is cancelled.
        """
        program, agent = self._programs.get(row.run_id), self.directory.agents.get(row.agent)
        stops = leaves or program is not None or "client_tools" in row.request
        stops = stops and (agent is None or not agent.continues_on_disconnect)
        try:
            return await self.runs.wait(row, sinks, after, stops=stops)
        except RunFailed:
            if program is not None and program.failure is not None:
                raise program.failure  # noqa: B904 (it has its own cause)
            raise
        finally:
            self._programs.pop(row.run_id, None)

    async def erase_session(self, agent: Agent, key: SessionKey) -> bool:
        """Ends what runs in a session, in any process, and deletes the session.

        Returns:
            False if there was neither.
        """
        was_active = key in self.sessions.active
        lock = self.sessions.enter(key, "interrupt")
        store = agent.memory.leases
        async with lock:
            if store is None or not store.shared:
                return await self._erase(agent, key) or was_active
            locks = self._leases.sessions_under(store)
            locks.add(lock)
            try:
                was_active = not await self._leases.try_once(store, lock) or was_active
                if not lock.token:
                    await self._leases.take(store, lock)
                return await self._erase(agent, key) or was_active
            finally:
                locks.discard(lock)
                if lock.token:
                    await self._leases.release(store, SessionLease(key, lock.token))

    async def _erase(self, agent: Agent, key: SessionKey) -> bool:
        """Deletes a session with the attachments of its runs. Returns False if there was neither."""
        attached = await self.durable.erase_attachments(key)
        return await agent.memory.erase(key) or attached

    async def load_segment(
        self, store: RunStore, row: RunRow, caller: CallerContext, notify: Callable[[str, int], None]
    ) -> Segment:
        """Loads a claimed segment with the agent of the run's own manifest, most often the present one.

        Raises:
            AgentNotFoundError, InvalidManifest: the agent cannot be opened any more.
        """
        agent = await self.directory.of_snapshot(row.agent, row.manifest or {})
        request = await stored_request(store, row)
        agent = changed_agent(agent, request)
        return Segment(self, store, row, request, agent, caller, notify)

    async def redacted(self, row: RunRow, steps: Sequence[JournalStep]) -> Sequence[JournalStep]:
        """Returns steps of a run as they are stored when it has ended."""
        return as_shown(steps, await self.directory.redactors(steps, row.agent, row.manifest))

    def resumed_run(self, agent: Agent, request: RunRequest, caller: CallerContext, row: RunRow) -> Run:
        """Returns a durable run as this process begins a segment of it."""
        program = self._programs.get(row.run_id)
        if program is None:
            return self._factory.resumed_run(agent, request, caller, row)
        run = self._factory.resumed_run(agent, replace(request, deps=program.deps), caller, row)
        program.watch(run)
        return run

    async def run_durable(self, agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        """Executes one segment of a durable run."""
        try:
            return await self._execute(agent, request, run, self._durable_handle)
        except AstromeshError as error:
            if (program := self._programs.get(run.id)) is not None:
                program.failure = error
            raise
        finally:
            if self.callbacks is not None:
                self.callbacks.run_ended()


async def _callback_body(plugins: Plugins, publisher: str, run: RunRow) -> JsonObject:
    """Returns the body of a callback in the words of a publisher.

    Raises:
        MissingExtra: it is not installed.
    """
    plugin: Any = await asyncio.to_thread(plugins.load, "publishers", publisher)
    body: JsonObject = plugin.notification(run)
    return body


class _Program:
    """A program of this process that waits for a durable run, and what the run has raised."""

    __slots__ = ("deps", "failure", "watch")

    def __init__(self, deps: Any, watch: Callable[[Run], None]) -> None:
        self.deps, self.watch = deps, watch
        self.failure: AstromeshError | None = None


def callback_of(spec: CallbackSpec | None) -> Callback | None:
    """Returns the callback of an agent or workflow, for requests without one."""
    if spec is None:
        return None
    headers = {name: value.get_secret_value() for name, value in spec.headers.items()}
    return Callback(spec.url, spec.events, headers)


def _merge_requests(requests: Sequence[RunRequest]) -> RunRequest:
    """Returns several messages as one: texts joined by newlines, all pictures, the rest of the first."""
    return replace(
        requests[0],
        query="\n".join(request.query for request in requests),
        attachments=tuple(image for request in requests for image in request.attachments),
    )


def _with_citations(answer: RunAnswer, outer: Scope) -> JsonObject:
    """Returns the answer of a nested run. The answer of the outer run may draw on what it cites."""
    if answer.citations is not UNSET:
        outer.nested_citations.extend(answer.citations)
    return answer.to_json()
