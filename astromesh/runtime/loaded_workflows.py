"""The workflows of a runtime as they are loaded: an engine each, with what watches and inspects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from astromesh.abc.tasks import TaskRow
from astromesh.errors import InvalidConfiguration, InvalidManifest, InvalidWorkflow, WorkflowUnavailable
from astromesh.runtime.task_log import LiveTask
from astromesh.runtime.workflow_folders import not_found, workflow_folder, workflow_names
from astromesh.runtime.workflows import Host, open_workflow
from astromesh.types import JsonObject
from astromesh.workflow.engine import Engine
from astromesh.workflow.inspector import Inspector
from astromesh.workflow.observers import Observers
from astromesh.workflow.profiling import wanted
from astromesh.workflow.seams import TaskLog
from astromesh.workflow.tape import Recorder, equip

#: records as observers of plugins.yaml see them
_OBSERVED = {
    "begin": "task.started",
    "stage": "stage.finished",
    "cancel": "task.cancelled",
    "end": "task.finished",
}

log = structlog.get_logger("astromesh.workflows")


@dataclass(slots=True)
class Workflow:
    """One folder in `workflows/`: an engine, or what is wrong with it."""

    name: str
    engine: Engine | None = None
    faults: tuple[InvalidManifest, ...] = ()
    inspector: Inspector = field(default_factory=Inspector)
    observers: Observers | None = None
    metrics: frozenset[str] = frozenset()

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


class LoadedWorkflows:
    """The folders in `workflows/`, by name.

    Args:
        log: makes the Tasks of all engines durable.
        recorder: writes down the calls of each stage.
    """

    def __init__(self, host: Host, log: TaskLog, recorder: Recorder) -> None:
        self._host, self._log, self._recorder = host, log, recorder
        self._loaded: dict[str, Workflow] = {}

    def __bool__(self) -> bool:
        return bool(self._loaded)

    # -- life ----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads every folder; a broken one harms nobody else."""
        for name in workflow_names(self._host.config_dir):
            self._loaded[name] = await self._load(name, name)

    async def opened(self, name: str, overrides: Mapping[str, object] | None = None) -> Workflow:
        """A workflow by its name, or by the path of its folder.

        Args:
            overrides: other settings than the files'; before any Task runs.

        Raises:
            WorkflowNotFound: there is none. InvalidWorkflow: all its faults at once.
        """
        folder = workflow_folder(self._host.config_dir, name)
        if overrides or folder.name not in self._loaded:
            replaced = self._loaded.get(folder.name)
            if replaced is not None and replaced.observers is not None:
                await replaced.observers.close()
            self._loaded[folder.name] = await self._load(name, folder.name, overrides)
        workflow = self._loaded[folder.name]
        if workflow.engine is None:
            raise InvalidWorkflow(workflow.faults)
        return workflow

    async def _load(self, place: str, name: str, overrides: Mapping[str, object] | None = None) -> Workflow:
        workflow = Workflow(name)
        try:
            workflow.engine = await open_workflow(
                self._host,
                place,
                log=self._log,
                gate=partial(self._gate, workflow),
                equip=partial(equip, tape=self._recorder),
                overrides=overrides,
            )
            project = workflow.engine.project
            workflow.inspector = Inspector(project.workflow.task.pause_before)
            workflow.observers, workflow.metrics = Observers(project.files), wanted(project.files)
        except InvalidConfiguration as error:
            workflow.faults = error.faults
            log.error("workflow_unavailable", workflow=name, error=str(error))
        return workflow

    async def close(self) -> None:
        for workflow in self._loaded.values():
            if workflow.observers is not None:
                await workflow.observers.close()
            if workflow.engine is not None:
                await workflow.engine.close()

    # -- asking --------------------------------------------------------------------------------------------

    def get(self, name: str) -> Workflow:
        """Raises: WorkflowNotFound."""
        if name not in self._loaded:
            raise not_found(name, list(self._loaded))
        return self._loaded[name]

    def ready(self, name: str) -> Engine:
        """Raises: WorkflowNotFound, WorkflowUnavailable."""
        workflow = self.get(name)
        if workflow.engine is None:
            raise WorkflowUnavailable(
                f"The workflow {name!r} has {len(workflow.faults)} fault(s): {workflow.faults[0]}"
            )
        return workflow.engine

    def engine(self, name: str) -> Engine | None:
        """None where there is no such workflow, or a broken one."""
        workflow = self._loaded.get(name)
        return workflow.engine if workflow is not None else None

    def listed(self) -> list[JsonObject]:
        """Every workflow, those with faults too."""
        return [workflow.to_json() for workflow in self._loaded.values()]

    def metrics_of(self, name: str) -> frozenset[str]:
        """The metrics that a workflow keeps."""
        return self._loaded[name].metrics

    def stages_in_progress(self) -> Mapping[tuple[str, ...], float]:
        """Stages that run now, by workflow."""
        return {
            (workflow.name,): workflow.engine.stages_in_progress
            for workflow in self._loaded.values()
            if workflow.engine is not None and "stage_concurrency" in workflow.metrics
        }

    def waiting(self, row: TaskRow) -> list[Any]:
        """The stages of a Task that wait for the inspector."""
        workflow = self._loaded.get(row.workflow)
        return workflow.inspector.waiting(row.task_id) if workflow is not None else []

    # -- what its Tasks do ---------------------------------------------------------------------------------

    def observed(self, live: LiveTask, record: JsonObject) -> None:
        """Tells the workflow's observers of a record that counts."""
        observers = self._loaded[live.row.workflow].observers
        if observers is not None:
            about = {"task_id": live.id, "workflow": live.row.workflow}
            observers.tell({**record, **about, "type": _OBSERVED[record["type"]]})

    def forget(self, live: LiveTask) -> None:
        """A Task that is worked on here no more."""
        self._recorder.forget(live.id)
        workflow = self._loaded.get(live.row.workflow)
        if workflow is not None:
            workflow.inspector.forget(live.id)

    async def _gate(
        self, workflow: Workflow, task: str, stage: str, input: Any, context: JsonObject | None
    ) -> None:
        self._recorder.begin(task, stage, context)
        await workflow.inspector(task, stage, input, context)
