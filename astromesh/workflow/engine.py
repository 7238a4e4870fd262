"""The engine of one workflow: `Engine.load(folder)`, `await engine.run(input)`, `engine.submit(input)`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from msgspec import convert, structs

from astromesh.config.workflow import ADAPTER_PLUGINS
from astromesh.errors import InvalidInput, QueueFull
from astromesh.graph.scope import Journal, Scope
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins
from astromesh.providers.base import ModelPort
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.telemetry.events import Emitter, EventSink, EventStream
from astromesh.telemetry.ids import in_trace
from astromesh.tools.base import RunAgent
from astromesh.tools.process_pool import Port
from astromesh.types import CallerContext, JsonObject, SessionKey, calling_as
from astromesh.workflow.agents import WorkflowModels, adapter_origins, open_agents
from astromesh.workflow.base import (
    Entry,
    Gate,
    NotJson,
    OpenJournal,
    StageAttempts,
    Task,
    TaskLog,
    TaskResult,
    canonical,
    result_metadata,
)
from astromesh.workflow.concurrency import StageSlots, TaskSlot
from astromesh.workflow.credentials import masked_secrets
from astromesh.workflow.execution import Execution, ExecutionSetup, rerun_stage
from astromesh.workflow.isolation import AgentProcess
from astromesh.workflow.journal import (
    JournaledModel,
    JournaledTool,
    StageCalls,
    StageJournal,
    begin_stage,
    journaled_agents,
)
from astromesh.workflow.memory import LayerStore, RunMemory, open_layers, package_from_json
from astromesh.workflow.observers import Observers
from astromesh.workflow.plan import Plan, Stage
from astromesh.workflow.project import Project, load_project, restore_project, with_settings
from astromesh.workflow.questions import People, Question
from astromesh.workflow.stages import StageCall, StageExecution, StageResources, agent_call, compile_stage
from astromesh.workflow.state_machine import StateMachine
from astromesh.workflow.tools import open_tools
from astromesh.workflow.validation import NO_CONTEXT, KnownNames

#: limit of concurrent Tasks without a queue
_UNLIMITED = 2**31


class TaskHandle:
    """A Task that was submitted with `Engine.submit`."""

    def __init__(self, task_id: str, work: asyncio.Task[TaskResult], cancel: Callable[[], bool]) -> None:
        self.task_id = task_id
        self._work, self._cancel = work, cancel

    @property
    def done(self) -> bool:
        return self._work.done()

    async def result(self) -> TaskResult:
        """Waits for the Task to end and returns its result."""
        return await asyncio.shield(self._work)

    def cancel(self) -> None:
        """Cancels the Task, which ends with status failure and reason `cancelled`."""
        self._cancel()


class Engine:
    """One workflow and its runs, which share only what was compiled and opened.

    Args:
        project: a valid one.
        run_agent: runs agents of the runtime for nodes that name one.
        models: models in Python, by the names that agents.yaml uses; they take precedence over
            providers.yaml.
        log: stores the records of Tasks, which makes them durable.
        observe: receives each record of a Task, by its id, once it counts.
        gate: awaited before each stage that it applies to.
        people: asks people; None: no stage can wait for one.
        journal: records the calls of stages, or answers them from a recording.
        journals: opens the journal of a Task with a log: its interrupted stages repeat no finished call.
        layers: stores that replace those of memory.yaml, by layer.
        agent_process: runs the agents of suspects in processes of their own. None: there are none.
        stages_at_once: replaces `max_stage_concurrency` of scheduler.yaml; 0: as the file says.
        new_id: creates ids of runs; random ones by default.
    """

    def __init__(  # noqa: PLR0913 (the parts of an engine)
        self,
        project: Project,
        *,
        run_agent: RunAgent | None = None,
        models: Mapping[str, ModelPort] | None = None,
        plugins: Plugins | None = None,
        deps: Deps | None = None,
        env: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        log: TaskLog | None = None,
        observe: Callable[[str, JsonObject], None] | None = None,
        gate: Gate | None = None,
        people: People | None = None,
        journal: StageJournal | None = None,
        journals: OpenJournal | None = None,
        layers: Mapping[str, LayerStore] | None = None,
        agent_process: AgentProcess | None = None,
        stages_at_once: int = 0,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self.project = project
        self._run_agent, self._models = run_agent, dict(models or {})
        self._plugins, self._deps = plugins or Plugins(), deps
        self._owns_deps = deps is None
        self._env = os.environ if env is None else env
        self._clock: Clock = clock or SystemClock()
        self._log, self._gate, self._journal, self._new_id = log, gate, journal, new_id
        self._observe, self._people, self._journals = observe, people, journals
        self._agent_process = agent_process
        scheduler = project.scheduler
        self._stage_slots = StageSlots(stages_at_once or scheduler.max_stage_concurrency)
        self._task_slots = asyncio.Semaphore(scheduler.max_concurrency if scheduler.enabled else _UNLIMITED)
        self._queued = 0
        self._resources: StageResources | None = None
        self._providers = WorkflowModels(project)
        self._replacement_layers = layers
        self._layers: dict[str, LayerStore] = {}
        self._opening = asyncio.Lock()
        self._compiled_calls: dict[str, dict[str, StageCall]] = {}
        self._active: dict[str, Execution] = {}
        self._background: set[asyncio.Task[TaskResult]] = set()
        self._observers: Observers | None = None

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        agents: Collection[str] | None = None,
        overrides: Mapping[str, object] | None = None,
        snapshot: JsonObject | None = None,
        observed: bool = True,
        **options: Any,
    ) -> Engine:
        """Reads and checks a folder.

        Args:
            folder: of the workflow's manifests.
            agents: names of the runtime's agents; absent: any with `run_agent`, else none.
            overrides: settings that replace those of the files, as `project.parse_settings` returns them.
            snapshot: manifests of an earlier time, which replace those of the folder and the settings.
            observed: whether the observers of plugins.yaml receive the events of its Tasks.
            options: as for `Engine`.

        Raises:
            ManifestLoadError, SchemaValidationError, DAGValidationError: all faults at once.
        """
        plugins = options.setdefault("plugins", None) or Plugins()
        options["plugins"] = plugins
        env = options.get("env")
        if snapshot is not None:
            project = restore_project(Path(folder), snapshot, env)
        else:
            models, runs_agents = options.get("models") or {}, bool(options.get("run_agent"))
            known = known_names(plugins, agents, models, runs_agents=runs_agents)
            project = with_settings(load_project(folder, known, env), overrides or {})
        engine = cls(replace(project, adapters=adapter_origins(project, plugins)), **options)
        if observed and (observers := Observers(project.files)):
            engine._observers = observers
            engine._observe = partial(observers.notify, project.name)
        return engine

    # -- runs ------------------------------------------------------------------------------------------------

    async def run(
        self,
        input: Any = None,
        start: str | None = None,
        *,
        task_id: str = "",
        caller: CallerContext | None = None,
        sinks: Iterable[EventSink] = (),
        events: Emitter | None = None,
    ) -> TaskResult:
        """Runs a Task to its end. A failed Task returns a result, too.

        Args:
            input: a JSON value.
            start: id of a start node; absent: the default one.
            sinks: listeners to the run's events.
            events: the event stream of a surrounding run, instead of sinks.

        Raises:
            InvalidInput: the input is not a JSON value or `start` is not a start node. No Task exists then.
            QueueFull: the queue holds `scheduler.max_queue_size` Tasks.
        """
        plan, value = self.project.plan(start), _canonical_input(input)
        scope = self._scope(task_id or self._new_id(), caller, sinks, events)
        async with self._task_slot() as slot:
            return await self._execute(plan, scope, slot, lambda execution: execution.begin(value))

    def submit(
        self, input: Any = None, start: str | None = None, *, task_id: str = "", **options: Any
    ) -> TaskHandle:
        """Begins a Task in the background; takes the same arguments as `run`."""
        self.project.plan(start)
        value = _canonical_input(input)
        self.require_capacity()
        task_id = task_id or self._new_id()
        work = asyncio.create_task(self.run(value, start, task_id=task_id, **options))
        self._background.add(work)
        work.add_done_callback(self._background.discard)
        return TaskHandle(task_id, work, lambda: self.cancel(task_id) or work.cancel())

    async def resume(self, records: Iterable[Mapping[str, Any]], **options: Any) -> TaskResult:
        """Continues a run from its records; only stages without a record run again.

        Args:
            records: as committed to the TaskLog, the `begin` record first.
            options: as for `run`; `records_starts`: whether the log holds the starts of stages, too.
        """
        recorded = list(records)
        first = recorded[0]
        scope = self._scope(
            first["task_id"], options.get("caller"), options.get("sinks", ()), options.get("events")
        )
        scope.trace_id, scope.sampled = options.get("trace_id", ""), options.get("sampled")
        plan, starts = self.project.plan(first["start"]), options.get("records_starts", True)
        async with self._task_slot() as slot:
            return await self._execute(
                plan, scope, slot, lambda execution: execution.resume(recorded), records_starts=starts
            )

    async def rerun_stage(
        self, start: str, entry: Mapping[str, Any], context: JsonObject | None = None
    ) -> JsonObject:
        """Runs one recorded stage once more, into a scratch record."""
        await self.open()
        plan = self.project.plan(start)
        scope = self._scope("scratch", None, (), None)
        return await rerun_stage(
            plan, self._stage_calls(plan)(plan.stages[entry["stage_id"]]), scope, entry, context
        )

    async def run_agent(self, request: JsonObject, journal: Journal | None) -> JsonObject:
        """Runs the agent of a stage for the process that asked for it. See `AgentProcess`.

        Args:
            journal: of the Task.
        """
        await self.open()
        resources, plan = self._resources, self.project.plan(request["start"])
        assert resources is not None
        caller = convert(request["caller"], CallerContext | None)
        scope = self._scope(request["task_id"], caller, (), None)
        scope.trace_id, scope.sampled = request["trace_id"], request["sampled"]
        with calling_as(caller), in_trace(scope.trace_id, scope.run_id, scope.sampled):
            return await run_agent(plan, resources, scope, request, journal)

    def cancel(self, task_id: str) -> bool:
        """Cancels a running Task, which ends with status failure. Returns False where there is none."""
        execution = self._active.get(task_id)
        if execution is None:
            return False
        execution.cancel()
        return True

    def stop_starting(self, task_id: str) -> bool:
        """Begins no further stage of a Task, because this process ends. Returns False where none runs."""
        if (execution := self._active.get(task_id)) is None:
            return False
        execution.stop_starting()
        return True

    def is_resting(self, task_id: str) -> bool:
        """Returns whether a Task goes on, and could stop here without the loss of a stage that runs."""
        return task_id in self._active and self._active[task_id].is_resting

    def suspend(self, task_id: str) -> None:
        """Prepares the end of this process: another one continues a Task that is cancelled next."""
        if (execution := self._active.get(task_id)) is not None:
            execution.suspend()

    def providers(self) -> list[JsonObject]:
        """Returns the models of providers.yaml: adapter, version, credential, health."""
        return self._providers.describe()

    def is_running(self, task_id: str) -> bool:
        """Returns whether a Task has left the queue and has not ended."""
        return task_id in self._active

    def is_idle(self, task_id: str) -> bool:
        """Returns whether all of a Task waits for a person or the inspector."""
        return task_id in self._active and self._active[task_id].is_idle

    @property
    def stages_in_progress(self) -> int:
        """Stages that run now, over all Tasks."""
        return self._stage_slots.in_use

    # -- lifecycle -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens models, tools and memory. Otherwise the first run opens them."""
        async with self._opening:
            if self._resources is None:
                self._resources = await self._open_resources()

    async def close(self) -> None:
        """Cancels active runs and closes observers, models, tools and memory."""
        for work in list(self._background):
            work.cancel()
        if self._background:
            await asyncio.wait(self._background)
        if self._observers is not None:
            await self._observers.close()
        if self._owns_deps and self._deps is not None:
            await self._deps.resources.close()
        self._resources = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- parts -----------------------------------------------------------------------------------------------

    async def _open_resources(self) -> StageResources:
        if self._owns_deps:
            self._deps = Deps(clock=self._clock, config_dir=self.project.folder)
        deps = self._deps
        assert deps is not None
        deps = replace(deps, run_agent=deps.run_agent or self._run_agent)
        if deps.http is None and (self.project.providers.providers or self.project.tools.tools):
            deps = replace(deps, http=await deps.resources.shared(Http, Http))
        await self._providers.open(self._plugins, deps, self._env)
        models = {**self._providers.ports, **self._models}
        tools, run_agent = await open_tools(self.project, self._plugins, deps), self._run_agent
        if (journal := self._journal) is not None:
            models = {name: JournaledModel(model, name, journal) for name, model in models.items()}
            tools = {name: JournaledTool(tool, journal) for name, tool in tools.items()}
            run_agent = journaled_agents(run_agent, journal) if run_agent else None
        agents = await open_agents(self.project.agents, models, self._plugins, deps)
        self._layers = dict(self._replacement_layers or open_layers(self.project.folder, self.project.memory))
        credentials = self.project.credentials.provider_credentials
        secrets = masked_secrets(credentials, self.project.folder, self._env)
        return StageResources(
            self.project, tools, agents, run_agent, self._gate, journal, secrets, self._people,
            self._agent_process,
        )  # fmt: skip

    async def _execute(
        self,
        plan: Plan,
        scope: Scope,
        slot: TaskSlot,
        work: Callable[[Execution], Any],
        *,
        records_starts: bool = True,
    ) -> TaskResult:
        await self.open()
        setup = ExecutionSetup(
            self.project.name,
            plan,
            self._stage_calls(plan),
            self._stage_slots,
            self._clock,
            self._log,
            self.project.scheduler.task_timeout_s,
            records_calls=self._journal is not None,
            journals=self._journals,
            observe=self._observe,
        )
        execution = Execution(setup, scope, self._memory(), slot, records_starts=records_starts)
        self._active[scope.run_id] = execution
        try:
            with calling_as(scope.caller), in_trace(scope.trace_id, scope.run_id, scope.sampled):
                begun = self._clock.monotonic()
                result: TaskResult = await work(execution)
                metadata = result_metadata(result, (self._clock.monotonic() - begun) * 1000, scope.trace_id)
                return replace(result, metadata={**metadata, **self.project.fingerprint.stamp})
        except BaseExceptionGroup as group:
            raise _first_error(group) from group
        finally:
            self._active.pop(scope.run_id, None)

    def _stage_calls(self, plan: Plan) -> Callable[[Stage], StageCall]:
        calls = self._compiled_calls.setdefault(plan.start, {})
        resources = self._resources
        assert resources is not None

        def call_of(stage: Stage) -> StageCall:
            call = calls.get(stage.id)
            if call is None:
                call = calls[stage.id] = compile_stage(stage, resources)
            return call

        return call_of

    def _memory(self) -> RunMemory | None:
        """Returns the memory of a run, or None where no stage reads it and no store persists it."""
        project, stores = self.project, self.project.memory.stores()
        write = project.workflow.task.memory.write
        persistent = frozenset(layer for layer, spec in stores.items() if spec.type != "in_memory")
        read = any(node.context != NO_CONTEXT for node in project.workflow.nodes)
        if not read and not persistent.intersection(write):
            return None
        tags = {n.id: tuple(map(str, n.metadata.get("tags", ()))) for n in project.workflow.nodes}
        sources = [source for profile in project.profiles.values() for source in profile.sources]
        read_tags = frozenset(tag for source in sources for tag in source.tags)
        return RunMemory(self._layers, write, tags, persistent, read_tags)

    def _scope(
        self, task_id: str, caller: CallerContext | None, sinks: Iterable[EventSink], events: Emitter | None
    ) -> Scope:
        tenant = (caller.tenant_id if caller else "") or "default"
        return Scope(
            task_id,
            agent=self.project.name,
            session=SessionKey(tenant, self.project.name, task_id),
            caller=caller,
            events=events or EventStream(task_id, sinks),
            clock=self._clock,
        )

    def require_capacity(self) -> None:
        """Checks the queue.

        Raises:
            QueueFull: the queue holds `scheduler.max_queue_size` Tasks.
        """
        limit = self.project.scheduler.max_queue_size
        if self._task_slots.locked() and self._queued >= limit:
            raise QueueFull(
                f"The queue of {self.project.name!r} is full: {limit} Tasks wait (scheduler.max_queue_size)."
            )

    @asynccontextmanager
    async def _task_slot(self) -> AsyncGenerator[TaskSlot, None]:
        """Waits for a place among the Tasks that run at once; first come, first served."""
        self.require_capacity()
        self._queued += 1
        slot = TaskSlot(self._task_slots)
        try:
            await slot.take()
        finally:
            self._queued -= 1
        try:
            yield slot
        finally:
            slot.give_back()


def known_names(
    plugins: Plugins,
    agents: Collection[str] | None = None,
    models: Collection[str] = (),
    *,
    runs_agents: bool = False,
) -> KnownNames:
    """Returns the names outside a folder that its files may refer to.

    Args:
        agents: of the runtime; absent: none, or any where `runs_agents`.
    """
    outside = agents if agents is not None else (None if runs_agents else ())
    adapters = (*plugins.names("providers"), *ADAPTER_PLUGINS)
    return KnownNames(outside, models, adapters, plugins.names("patterns"))


def _canonical_input(value: Any) -> Any:
    try:
        return canonical(value)
    except NotJson as error:
        raise InvalidInput(f"The input of a Task {error}") from error


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first error of a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# -- the agent of a stage in a process of its own: what runs there. `stages` has the other side. ------------
#
# Everything that the agent needs is opened there anew: its tools, models, hooks and guards, and the runtime
# of an agent that the node names. The Task, its journal and its questions to people remain in the parent.


class PeopleOfParent:
    """`People` that the parent of this process asks."""

    def __init__(self, port: Port, *, can_wait: bool) -> None:
        self._port, self._can_wait = port, can_wait

    def can_wait(self, task: str) -> bool:
        return self._can_wait

    async def ask(self, task: str, stage: str, ticket: str, question: Question) -> JsonObject:
        decision: JsonObject = await self._port.ask({"ticket": ticket, "question": structs.asdict(question)})
        return decision


async def run_agent(
    plan: Plan, resources: StageResources, scope: Scope, request: JsonObject, journal: Journal | None
) -> JsonObject:
    """Runs the agent of a stage as its parent has asked, and returns what the parent needs of it.

    Args:
        scope: of the Task.
        request: See `AgentProcess`.
        journal: of the Task.
    """
    stage, path, context = plan.stages[request["stage"]], request["task"], request["context"]
    task = Task(scope.run_id + path, path, "root", None, ())
    entry = Entry(path, stage.id, request["input"], scope.clock.now())
    machine, memory = StateMachine(plan, scope.run_id), RunMemory({}, (), {})
    job = StageExecution(task, entry, machine, memory, scope, StageAttempts())
    job.journal = job.run_journal = journal
    people = resources.people
    assert resources.journal is not None
    calls = StageCalls(path, stage.id, context, journal)
    if people is not None and people.can_wait(task.id):
        calls.ask = partial(job.ask_about_call, people)
    await begin_stage(resources.journal, calls)
    job.calls = calls
    package = package_from_json(context) if context is not None else None
    outcome = await agent_call(stage, resources)(job, package)
    return {
        "output": outcome.output,
        "error": outcome.error,
        "usage": entry.usage,
        "tool_calls": job.port.calls if job.port is not None else [],
        "calls": calls.calls,
        "spent": scope.ledger.to_json(),
    }
