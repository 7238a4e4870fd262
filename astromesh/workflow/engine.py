"""A workflow that runs: `Engine.load(dir)`, `await engine.run(input)`, `engine.submit(input)`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.deps import Deps
from astromesh.abc.events import Emitter, EventSink
from astromesh.abc.provider import ModelPort
from astromesh.abc.run import RunAgent
from astromesh.errors import InvalidInput, QueueFull
from astromesh.net.http import Http
from astromesh.node.scope import Scope
from astromesh.plugins import Plugins
from astromesh.telemetry.stream import EventStream
from astromesh.types import CallerContext, JsonObject, SessionKey, calling_as
from astromesh.workflow.agents import open_agents
from astromesh.workflow.layers import LayerStore, open_layers
from astromesh.workflow.memory import RunMemory
from astromesh.workflow.models import ADAPTERS, Models, adapters_of
from astromesh.workflow.overrides import overridden
from astromesh.workflow.plan import Plan, Stage
from astromesh.workflow.project import Project, load_project
from astromesh.workflow.references import NO_CONTEXT, Known
from astromesh.workflow.result import TaskResult, metadata_of
from astromesh.workflow.run import Execution, Setup
from astromesh.workflow.scratch import run_again
from astromesh.workflow.seams import Gate, TaskLog
from astromesh.workflow.slots import Slots
from astromesh.workflow.stages import Kit, StageCall, compile_stage
from astromesh.workflow.tools import open_tools
from astromesh.workflow.values import NotJson, canonical

#: Tasks at once where there is no queue
_ANY = 2**31


class Running:
    """A Task that was submitted."""

    def __init__(self, task_id: str, work: asyncio.Task[TaskResult], cancel: Callable[[], bool]) -> None:
        self.task_id = task_id
        self._work, self._cancel = work, cancel

    @property
    def done(self) -> bool:
        return self._work.done()

    async def result(self) -> TaskResult:
        """How it ended; waits for it."""
        return await asyncio.shield(self._work)

    def cancel(self) -> None:
        """Ends it with status failure and reason `cancelled`."""
        self._cancel()


class Engine:
    """One workflow and its runs, which share nothing but what was compiled and opened.

    Args:
        project: a sound one.
        run_agent: runs agents of the runtime for nodes that name one.
        models: models in Python, by the names that agents.yaml uses; before those of providers.yaml.
        log: makes Tasks durable.
        gate: is asked before each stage.
        equip: changes what stages are compiled from, e.g. records or replays the calls of models and tools.
        layers: stores of memory instead of those of memory.yaml, by layer.
        stages_at_once: instead of what scheduler.yaml says; 0: as it says.
        new_id: ids of runs; by default random ones.
    """

    def __init__(  # noqa: PLR0913 (what an engine is made of)
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
        gate: Gate | None = None,
        equip: Callable[[Kit], Kit] = lambda kit: kit,
        layers: Mapping[str, LayerStore] | None = None,
        stages_at_once: int = 0,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self.project = project
        self._run_agent, self._models = run_agent, dict(models or {})
        self._plugins, self._deps = plugins or Plugins(), deps
        self._own_deps = deps is None
        self._env = os.environ if env is None else env
        self._clock: Clock = clock or SystemClock()
        self._log, self._gate, self._equip, self._new_id = log, gate, equip, new_id
        scheduler = project.scheduler
        self._slots = Slots(stages_at_once or scheduler.max_stage_concurrency)
        self._turns = asyncio.Semaphore(scheduler.max_concurrency if scheduler.enabled else _ANY)
        self._queued = 0
        self._kit: Kit | None = None
        self._providers = Models(project)
        self._given_layers = layers
        self._layers: dict[str, LayerStore] = {}
        self._opening = asyncio.Lock()
        self._calls: dict[str, dict[str, StageCall]] = {}
        self._active: dict[str, Execution] = {}
        self._background: set[asyncio.Task[TaskResult]] = set()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        agents: Collection[str] | None = None,
        overrides: Mapping[str, object] | None = None,
        **options: Any,
    ) -> Engine:
        """Reads and checks a folder.

        Args:
            folder: of the workflow's manifests.
            agents: names of the runtime's agents; absent: none where there is no `run_agent`, else any.
            overrides: other settings than the files', as `overrides.settings_of` reads them.
            options: as for `Engine`.

        Raises:
            ManifestLoadError, SchemaValidationError, DAGValidationError: all faults at once.
        """
        plugins = options.setdefault("plugins", None) or Plugins()
        options["plugins"] = plugins
        known = known_to(
            plugins, agents, options.get("models") or {}, runs_agents=bool(options.get("run_agent"))
        )
        project = overridden(load_project(folder, known, options.get("env")), overrides or {})
        return cls(replace(project, adapters=adapters_of(project, plugins)), **options)

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
        """Runs a Task to its end. A failed Task is a result, too.

        Args:
            input: a JSON value.
            start: id of a start node; absent: the default one.
            sinks: listeners to the run's events.
            events: the stream of a surrounding run, instead of sinks.

        Raises:
            InvalidInput: the input is no JSON value, or `start` no start (E11, E61): there is no Task then.
            QueueFull: as many Tasks wait as may.
        """
        plan, value = self.project.plan(start), _json(input)
        scope = self._scope(task_id or self._new_id(), caller, sinks, events)
        async with self._turn():
            return await self._execute(plan, scope, lambda execution: execution.begin(value))

    def submit(
        self, input: Any = None, start: str | None = None, *, task_id: str = "", **options: Any
    ) -> Running:
        """Begins a Task in the background; as `run`."""
        self.project.plan(start)
        value = _json(input)
        self.require_room()
        task_id = task_id or self._new_id()
        work = asyncio.create_task(self.run(value, start, task_id=task_id, **options))
        self._background.add(work)
        work.add_done_callback(self._background.discard)
        return Running(task_id, work, lambda: self.cancel(task_id) or work.cancel())

    async def resume(self, records: Iterable[Mapping[str, Any]], **options: Any) -> TaskResult:
        """Goes on with a run from its records; only stages that are not among them run again (E56).

        Args:
            records: as committed to the TaskLog, the `begin` record first.
        """
        told = list(records)
        first = told[0]
        scope = self._scope(
            first["task_id"], options.get("caller"), options.get("sinks", ()), options.get("events")
        )
        scope.trace_id, scope.sampled = options.get("trace_id", ""), options.get("sampled")
        async with self._turn():
            return await self._execute(self.project.plan(first["start"]), scope, lambda e: e.resume(told))

    async def run_again(
        self, start: str, entry: Mapping[str, Any], context: JsonObject | None = None
    ) -> JsonObject:
        """One recorded stage once more, into a scratch record (E54)."""
        await self.open()
        plan = self.project.plan(start)
        scope = self._scope("scratch", None, (), None)
        return await run_again(
            plan, self._calls_of(plan)(plan.stages[entry["stage_id"]]), scope, entry, context
        )

    def cancel(self, task_id: str) -> bool:
        """Ends a running Task with status failure and reason `cancelled`; False where there is none."""
        execution = self._active.get(task_id)
        if execution is None:
            return False
        execution.cancel()
        return True

    def providers(self) -> list[JsonObject]:
        """The models of providers.yaml: adapter, version, credential, health."""
        return self._providers.told()

    def is_running(self, task_id: str) -> bool:
        """Whether a Task has had its turn and has not ended."""
        return task_id in self._active

    @property
    def stages_in_progress(self) -> int:
        """Stages that run now, over all Tasks."""
        return self._slots.taken

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens models, tools and memory; the first run does it otherwise."""
        async with self._opening:
            if self._kit is None:
                self._kit = await self._opened()

    async def close(self) -> None:
        """Cancels what runs and closes what was opened."""
        for work in list(self._background):
            work.cancel()
        if self._background:
            await asyncio.wait(self._background)
        if self._own_deps and self._deps is not None:
            await self._deps.resources.close()
        self._kit = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- parts -----------------------------------------------------------------------------------------------

    async def _opened(self) -> Kit:
        if self._own_deps:
            self._deps = Deps(clock=self._clock, config_dir=self.project.folder)
        deps = self._deps
        assert deps is not None
        deps = replace(deps, run_agent=deps.run_agent or self._run_agent)
        if deps.http is None and (self.project.providers.providers or self.project.tools.tools):
            deps = replace(deps, http=await deps.resources.shared(Http, Http))
        await self._providers.open(self._plugins, deps, self._env)
        models = {**self._providers.ports, **self._models}
        self._layers = dict(self._given_layers or open_layers(self.project.folder, self.project.memory))
        return self._equip(
            Kit(
                self.project,
                await open_tools(self.project, self._plugins, deps),
                await open_agents(self.project.agents, models, self._plugins, deps),
                self._run_agent,
                self._gate,
            )
        )

    async def _execute(self, plan: Plan, scope: Scope, work: Callable[[Execution], Any]) -> TaskResult:
        await self.open()
        setup = Setup(
            self.project.name,
            plan,
            self._calls_of(plan),
            self._slots,
            self._clock,
            self._log,
            self.project.scheduler.task_timeout_s,
        )
        execution = Execution(setup, scope, self._memory())
        self._active[scope.run_id] = execution
        try:
            with calling_as(scope.caller):
                begun = self._clock.monotonic()
                result: TaskResult = await work(execution)
                told = metadata_of(result, (self._clock.monotonic() - begun) * 1000, scope.trace_id)
                return replace(result, metadata={**told, **self.project.fingerprint.stamp})
        except BaseExceptionGroup as group:
            raise _single(group) from group
        finally:
            self._active.pop(scope.run_id, None)

    def _calls_of(self, plan: Plan) -> Callable[[Stage], StageCall]:
        calls = self._calls.setdefault(plan.start, {})
        kit = self._kit
        assert kit is not None

        def call_of(stage: Stage) -> StageCall:
            call = calls.get(stage.id)
            if call is None:
                call = calls[stage.id] = compile_stage(stage, kit)
            return call

        return call_of

    def _memory(self) -> RunMemory | None:
        """None where nobody would ever read what is remembered."""
        project, memory = self.project, self.project.memory
        write = project.workflow.task.memory.write
        specs = {"task": memory.task_store, "project": memory.project_store, "global": memory.global_store}
        kept = frozenset(layer for layer, spec in specs.items() if spec.type != "in_memory")
        read = any(node.context != NO_CONTEXT for node in project.workflow.nodes)
        if not read and not kept.intersection(write):
            return None
        tags = {n.id: tuple(map(str, n.metadata.get("tags", ()))) for n in project.workflow.nodes}
        return RunMemory(self._layers, write, tags, kept)

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

    def require_room(self) -> None:
        """Raises: QueueFull: as many Tasks wait as may."""
        most = self.project.scheduler.max_queue_size
        if self._turns.locked() and self._queued >= most:
            raise QueueFull(f"{most} Tasks of {self.project.name!r} wait already (scheduler.max_queue_size).")

    def _turn(self) -> _Turn:
        self.require_room()
        return _Turn(self)

    async def _enter_turn(self) -> None:
        self._queued += 1
        try:
            await self._turns.acquire()
        finally:
            self._queued -= 1

    def _leave_turn(self) -> None:
        self._turns.release()


class _Turn:
    """A place among the Tasks that run at once; first come, first served (E55)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __aenter__(self) -> None:
        await self._engine._enter_turn()  # noqa: SLF001 (part of the engine)

    async def __aexit__(self, *exc: object) -> None:
        self._engine._leave_turn()  # noqa: SLF001


def known_to(
    plugins: Plugins,
    agents: Collection[str] | None = None,
    models: Collection[str] = (),
    *,
    runs_agents: bool = False,
) -> Known:
    """What the names in a folder may refer to outside of it.

    Args:
        agents: of the runtime; absent: none, or any where `runs_agents`.
    """
    outside = agents if agents is not None else (None if runs_agents else ())
    adapters = (*plugins.names("providers"), *ADAPTERS)
    return Known(outside, models, adapters, plugins.names("patterns"))


def _json(value: Any) -> Any:
    try:
        return canonical(value)
    except NotJson as error:
        raise InvalidInput(f"The input of a Task {error}") from error


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended the run; of several the first."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
