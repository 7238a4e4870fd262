"""The workflows of a runtime: one engine for each folder in `workflows/`, with the runtime's agents.

The agents of a suspected stage run in a process of its own, which opens the runtime anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from msgspec import convert

from astromesh.config.schedules import WorkflowSchedule
from astromesh.config.workflow_folder import WORKFLOW
from astromesh.durable.base import JournalStep
from astromesh.durable.journal import RunJournal
from astromesh.durable.recording import Redactor
from astromesh.durable.tasks import TaskRow
from astromesh.errors import (
    Conflict,
    InvalidConfiguration,
    InvalidInput,
    InvalidManifest,
    InvalidWorkflow,
    WorkflowUnavailable,
)
from astromesh.graph.scope import Journal
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.plugins import Deps, Resources
from astromesh.runtime.agent_directory import AgentDirectory
from astromesh.runtime.bootstrap import RuntimeState
from astromesh.runtime.config_loader import workflow_folder, workflow_names, workflow_not_found
from astromesh.runtime.task_journal import open_task_journal, steps_of_runs
from astromesh.runtime.task_log import LiveTask
from astromesh.runtime.task_waits import TaskGate, TaskWaits
from astromesh.tools.process_pool import Port, call_in_process
from astromesh.types import JsonObject, ManifestSnapshot
from astromesh.workflow.agents import running_with_model
from astromesh.workflow.base import Gate, OpenJournal, TaskLog
from astromesh.workflow.engine import Engine, PeopleOfParent
from astromesh.workflow.inspector import Inspector
from astromesh.workflow.isolation import AgentProcess
from astromesh.workflow.journal import Recorder, StageJournal
from astromesh.workflow.memory import LayerStore
from astromesh.workflow.observers import Observers
from astromesh.workflow.plan import Plan, to_mermaid
from astromesh.workflow.project import Project, enabled_metrics, restore_project
from astromesh.workflow.questions import Ask, People, Question
from astromesh.workflow.snapshot import AGENT_MODEL, with_model


async def open_workflow(  # noqa: PLR0913 (what an engine is opened with)
    state: RuntimeState,
    name: str,
    *,
    log: TaskLog | None = None,
    observe: Callable[[str, JsonObject], None] | None = None,
    gate: Gate | None = None,
    people: People | None = None,
    journal: StageJournal | None = None,
    journals: OpenJournal | None = None,
    layers: Mapping[str, LayerStore] | None = None,
    resources: Resources | None = None,
    agent_process: AgentProcess | None = None,
    stages_at_once: int = 0,
    overrides: Mapping[str, object] | None = None,
    snapshot: JsonObject | None = None,
) -> Engine:
    """Opens a workflow whose agent nodes may name agents of the runtime. `engine.close()` closes it.

    Args:
        layers: Stores that replace those of its memory.
        resources: Where models are opened; the caller closes them. None: those of the runtime.
        agent_process: Runs the agents of suspects.
        snapshot: Manifests that replace those of the folder.

    Raises:
        WorkflowNotFound: there is no such workflow.
        InvalidWorkflow: its faults, all at once.
    """
    folder = workflow_folder(state.configuration.folder, name)
    run_agent, clock = state.deps.run_agent, state.deps.clock
    if run_agent is not None and snapshot is not None and AGENT_MODEL in snapshot:
        run_agent = running_with_model(run_agent, snapshot[AGENT_MODEL])
    deps = Deps(
        http=await state.resources.shared(Http, Http),
        clock=clock,
        data_dir=state.deps.data_dir,
        config_dir=folder,
        sqlite_synchronous=state.deps.sqlite_synchronous,
        resources=resources or state.resources,
        knowledge=state.knowledge,
        agents={name: agent.manifest.spec.identity.description for name, agent in state.agents.items()},
        run_agent=run_agent,
    )
    return Engine.load(
        folder,
        agents=(*state.agents, *state.broken),
        run_agent=run_agent,
        plugins=state.plugins,
        deps=deps,
        env=state.env,
        clock=clock,
        log=log,
        observe=observe,
        gate=gate,
        people=people,
        journal=journal,
        journals=journals,
        layers=layers,
        stages_at_once=stages_at_once,
        agent_process=agent_process,
        overrides=overrides,
        snapshot=snapshot,
        observed=False,
    )


#: records that an execution reports to observers when they count
_EXECUTION_RECORDS = ("stage", "cancel")
#: earlier manifests whose plans stay in memory
_MAX_RESTORED = 16

log = get_logger("astromesh.workflows")


@dataclass(slots=True)
class Workflow:
    """One folder in `workflows/`: its engine, or its faults.

    Args:
        place: Name or path of the folder.
        earlier: Engines of earlier manifests, for the Tasks that were accepted with them, by snapshot.
    """

    name: str
    place: str = ""
    engine: Engine | None = None
    faults: tuple[InvalidManifest, ...] = ()
    inspector: Inspector = field(default_factory=Inspector)
    observers: Observers | None = None
    metrics: frozenset[str] = frozenset()
    earlier: dict[str, Engine] = field(default_factory=dict)

    def observe(self, task_id: str, record: JsonObject) -> None:
        """Notifies the observers of a record that counts and that its execution reports."""
        if self.observers is not None and record["type"] in _EXECUTION_RECORDS:
            self.observers.notify(self.name, task_id, record)

    def to_json(self) -> JsonObject:
        if self.engine is None:
            return {"name": self.name, "status": "broken", "errors": [str(f) for f in self.faults]}
        spec = self.engine.project.workflow
        starts = [node.id for node in spec.nodes if node.role == "start"]
        return {
            "name": self.name, "status": "ready", "description": spec.description, "starts": starts,
            "default_start": self.engine.project.default_start, "nodes": len(spec.nodes),
            "run_fingerprint": self.engine.project.fingerprint.value,
            "warnings": [str(w) for w in self.engine.project.warnings],
            "providers": self.engine.providers(),
        }  # fmt: skip


class WorkflowRegistry:
    """The folders in `workflows/`, by name.

    Args:
        log: Stores the Tasks of all engines.
        waits: What their stages wait for.
        agent_process: Returns what runs the agents of suspects of a workflow, by its name.
    """

    def __init__(
        self,
        directory: AgentDirectory,
        log: TaskLog,
        waits: TaskWaits,
        agent_process: Callable[[RuntimeState, str], AgentProcess | None],
    ) -> None:
        self._directory, self._log, self._waits = directory, log, waits
        self._agent_process = agent_process
        self._loaded: dict[str, Workflow] = {}
        self._opening = asyncio.Lock()
        self._restored: OrderedDict[str, Project] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._loaded)

    async def redactors(self, records: Iterable[JsonObject]) -> Mapping[str, Redactor | None]:
        """Returns what the steps of runs of agents in the records of a Task pass before others see them."""
        runs = steps_of_runs(records).values()
        return await self._directory.redactors([step for steps in runs for step in steps])

    # -- life ----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads every folder. A broken folder does not affect the others."""
        for name in workflow_names(self._directory.state.configuration.folder):
            self._loaded[name] = await self._load(name, name)

    async def open(self, name: str, overrides: Mapping[str, object] | None = None) -> Workflow:
        """Returns a workflow by its name, or by the path of its folder.

        Args:
            overrides: Settings that replace those of the files; before any Task runs.

        Raises:
            WorkflowNotFound: there is no such workflow. InvalidWorkflow: its faults, all at once.
        """
        folder = workflow_folder(self._directory.state.configuration.folder, name)
        if overrides or folder.name not in self._loaded:
            replaced = self._loaded.get(folder.name)
            if replaced is not None and replaced.observers is not None:
                await replaced.observers.close()
            self._loaded[folder.name] = await self._load(name, folder.name, overrides)
        workflow = self._loaded[folder.name]
        if workflow.engine is None:
            raise InvalidWorkflow(workflow.faults)
        return workflow

    async def reload(self, name: str) -> tuple[InvalidManifest, ...]:
        """Reads the folder of a workflow again.

        A Task goes on with the engine that it has. If the folder has faults, the present engine stays.

        Returns:
            The faults because of which the present engine stays.
        """
        workflow = self._loaded.get(name)
        if workflow is None or workflow.engine is None:
            self._loaded[name] = await self._load(name, name)
            return ()
        try:
            engine = await self._open(workflow)
        except InvalidConfiguration as error:
            return error.faults
        before, observers = workflow.engine, workflow.observers
        key = before.project.snapshot.id
        workflow.earlier[key if key not in workflow.earlier else f"{key} {len(workflow.earlier)}"] = before
        workflow.engine = engine
        workflow.observers = Observers(engine.project.files)
        workflow.metrics = enabled_metrics(engine.project.files)
        workflow.inspector.pause_before = frozenset(engine.project.workflow.task.pause_before)
        if observers is not None:
            await observers.close()
        return ()

    async def _load(self, place: str, name: str, overrides: Mapping[str, object] | None = None) -> Workflow:
        workflow = Workflow(name, place)
        try:
            workflow.engine = await self._open(workflow, overrides=overrides)
            project = workflow.engine.project
            workflow.inspector.pause_before = frozenset(project.workflow.task.pause_before)
            workflow.observers, workflow.metrics = Observers(project.files), enabled_metrics(project.files)
        except InvalidConfiguration as error:
            workflow.faults = error.faults
            log.error("workflow_unavailable", workflow=name, error=str(error))
        return workflow

    async def _open(
        self,
        workflow: Workflow,
        *,
        overrides: Mapping[str, object] | None = None,
        snapshot: JsonObject | None = None,
    ) -> Engine:
        state = self._directory.state
        return await open_workflow(
            state,
            workflow.place,
            agent_process=self._agent_process(state, workflow.place),
            log=self._log,
            observe=workflow.observe,
            gate=TaskGate(workflow.inspector, self._waits),
            people=self._waits,
            journal=Recorder(),
            journals=open_task_journal,
            overrides=overrides,
            snapshot=snapshot,
        )

    async def close(self) -> None:
        for workflow in self._loaded.values():
            if workflow.observers is not None:
                await workflow.observers.close()
            for engine in (workflow.engine, *workflow.earlier.values()):
                if engine is not None:
                    await engine.close()

    # -- queries -------------------------------------------------------------------------------------------

    def get(self, name: str) -> Workflow:
        """Returns a workflow by its name. Raises: WorkflowNotFound."""
        if name not in self._loaded:
            raise workflow_not_found(name, list(self._loaded))
        return self._loaded[name]

    def require_engine(self, name: str) -> Engine:
        """Returns the engine of a workflow. Raises: WorkflowNotFound, WorkflowUnavailable."""
        workflow = self.get(name)
        if workflow.engine is None:
            raise WorkflowUnavailable(
                f"The workflow {name!r} has {len(workflow.faults)} fault(s): {workflow.faults[0]}"
            )
        return workflow.engine

    def schedules(self) -> Iterator[tuple[str, WorkflowSchedule]]:
        """Yields the schedules of workflows without faults, with their names."""
        for name, workflow in self._loaded.items():
            if workflow.engine is not None:
                yield from ((name, one) for one in workflow.engine.project.workflow.schedules)

    def broken(self) -> Iterator[str]:
        """Yields the names of workflows with faults."""
        return (name for name, workflow in self._loaded.items() if workflow.engine is None)

    def engine(self, name: str) -> Engine | None:
        """Returns the engine of a workflow; None if there is no such workflow, or it is broken."""
        workflow = self._loaded.get(name)
        return workflow.engine if workflow is not None else None

    # -- earlier manifests -----------------------------------------------------------------------------------

    async def engine_of(self, row: TaskRow, snapshot: JsonObject | None) -> Engine:
        """Returns the engine that a Task goes on with: under the manifests that it was accepted with.

        Args:
            snapshot: These manifests; None: they were not stored, so the present ones count.

        Raises:
            WorkflowUnavailable, InvalidWorkflow: this process cannot read them.
            UnreadableModule: it cannot import their code.
        """
        workflow = self.get(row.workflow)
        present = workflow.engine
        if snapshot is None:
            return self.require_engine(row.workflow)
        if present is not None and present.project.has_manifests(snapshot):
            present.project.check_modules()
            return present
        async with self._opening:
            if row.snapshot not in workflow.earlier:
                opened = await self._open(workflow, snapshot=snapshot)
                opened.project.check_modules()
                workflow.earlier[row.snapshot] = opened
        return workflow.earlier[row.snapshot]

    def with_model(self, snapshot: JsonObject, model: str) -> ManifestSnapshot:
        """Returns manifests whose models are all this one: a name, or `adapter:name`."""
        return with_model(snapshot, model, self._directory.state.plugins.names("providers"))

    def may_execute(self, row: TaskRow) -> bool:
        """Returns whether this process has the workflow of a Task: its manifests or its code."""
        workflow = self._loaded.get(row.workflow)
        return workflow is not None and (workflow.engine is not None or bool(row.snapshot))

    def plan_of(self, row: TaskRow, snapshot: JsonObject | None) -> Plan | None:
        """Returns the plan of a Task's manifests; None if this version cannot read them.

        Args:
            snapshot: As in `engine_of`.
        """
        try:
            project = self._project_of(row, snapshot)
            return project.plan(row.start) if project is not None else None
        except (InvalidInput, InvalidConfiguration):
            return None

    def diagram_of(self, row: TaskRow, snapshot: JsonObject | None) -> str:
        """Returns the workflow of a Task's manifests as a Mermaid flowchart.

        Raises:
            Conflict: This version cannot read the manifests.
        """
        try:
            project = self._project_of(row, snapshot)
        except InvalidConfiguration:
            project = None
        if project is None:
            raise Conflict(f"This version cannot read the workflow of the Task {row.task_id!r}.")
        return to_mermaid(project.workflow)

    def _project_of(self, row: TaskRow, snapshot: JsonObject | None) -> Project | None:
        engine = self.engine(row.workflow)
        if engine is not None and (snapshot is None or engine.project.has_manifests(snapshot)):
            return engine.project
        return self._restore(row, snapshot) if snapshot is not None else None

    def _restore(self, row: TaskRow, snapshot: JsonObject) -> Project:
        """Restores what a plan needs: workflow.yaml and the settings."""
        project = self._restored.pop(row.snapshot, None)
        if project is None:
            state = self._directory.state
            files = {WORKFLOW: snapshot["files"][WORKFLOW]}
            folder = state.configuration.folder / "workflows" / row.workflow
            project = restore_project(folder, {**snapshot, "files": files}, state.env)
        self._restored[row.snapshot] = project
        if len(self._restored) > _MAX_RESTORED:
            self._restored.popitem(last=False)
        return project

    def to_json(self) -> list[JsonObject]:
        """Returns every workflow, broken ones included."""
        return [workflow.to_json() for workflow in self._loaded.values()]

    def metrics_of(self, name: str) -> frozenset[str]:
        """Returns the metrics that a workflow enables."""
        return self._loaded[name].metrics

    def stages_in_progress(self) -> Mapping[tuple[str, ...], float]:
        """Counts active stages by workflow."""
        return {
            (workflow.name,): workflow.engine.stages_in_progress
            for workflow in self._loaded.values()
            if workflow.engine is not None and "stage_concurrency" in workflow.metrics
        }

    def paused_stages(self, row: TaskRow) -> list[Any]:
        """Returns the stages of a Task that wait for the inspector."""
        workflow = self._loaded.get(row.workflow)
        return workflow.inspector.waiting(row.task_id) if workflow is not None else []

    # -- events of Tasks -----------------------------------------------------------------------------------

    def notify_observers(self, live: LiveTask, record: JsonObject) -> None:
        """Notifies the observers of a record that the Task's execution does not report itself."""
        observers = self._loaded[live.row.workflow].observers
        if observers is not None and record["type"] not in _EXECUTION_RECORDS:
            observers.notify(live.row.workflow, live.id, record)

    def forget(self, live: LiveTask) -> None:
        """Drops the state of a Task that this process does not execute any more."""
        workflow = self._loaded.get(live.row.workflow)
        if workflow is not None:
            workflow.inspector.forget(live.id)


# -- in this process -----------------------------------------------------------------------------------------


def agent_process(state: RuntimeState, workflow: str) -> AgentProcess | None:
    """Returns what runs agents of a workflow in processes of their own.

    Returns:
        None if the runtime has parts in Python: another process cannot make it again.
    """
    if not state.factory:
        return None
    opened = {
        "factory": state.factory,
        "folders": [str(state.configuration.folder), str(state.deps.data_dir)],
        "workflow": workflow,
    }

    async def run(request: JsonObject, journal: Journal | None, ask: Ask) -> JsonObject:
        log = journal.step_log if isinstance(journal, RunJournal) else None

        async def answer(message: JsonObject) -> Any:
            if "question" in message:
                return await ask(message["ticket"], convert(message["question"], Question))
            assert log is not None
            if "step" in message:
                log.add(JournalStep(**message["step"]))
            else:
                await log.flush()
            return None

        steps = None if log is None else [one._asdict() for one in log.below(request["place"])]
        is_fork = log is not None and log.is_fork
        accepted_at = 0.0 if log is None else log.accepted_at
        payload = {**opened, "request": request, "steps": steps, "is_fork": is_fork, "at": accepted_at}
        handler = f"{__name__}:{run_agent.__name__}"
        found: JsonObject = await call_in_process(handler, payload, answer=answer, alone=True)
        return found

    return run


# -- in the process of the agent -----------------------------------------------------------------------------


async def run_agent(payload: JsonObject, port: Port) -> JsonObject:
    """Opens the runtime and the workflow, and runs the agent of one stage; see `tools.process_pool`."""
    request, steps = payload["request"], payload["steps"]
    runtime: Any = resolve_name(payload["factory"])(tuple(payload["folders"]))
    async with runtime:
        writer = _WriterOfParent(port)
        journal = (
            None
            if steps is None
            else open_task_journal(
                request["task_id"], steps, writer, is_fork=payload["is_fork"], accepted_at=payload["at"]
            )
        )
        engine = await open_workflow(
            runtime.state,
            payload["workflow"],
            people=PeopleOfParent(port, can_wait=request["can_wait"]),
            journal=Recorder(),
            snapshot=request["manifests"],
        )
        try:
            return await engine.run_agent(request, journal)
        finally:
            await engine.close()
            if steps is not None:
                await writer.flush()


class _WriterOfParent:
    """A `RecordWriter`: the parent of this process writes the steps, in order."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._last: asyncio.Future[Any] | None = None

    def commit(self, record: JsonObject) -> None:
        step = {key: value for key, value in record.items() if key != "type"}
        self._last = asyncio.ensure_future(self._port.ask({"step": step}))

    async def flush(self) -> None:
        if self._last is not None:
            await self._last
        await self._port.ask({"flush": True})
