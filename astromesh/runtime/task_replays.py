"""Tasks that have ended, run again from their records: nobody is asked, nothing is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from astromesh.abc.deps import Resources
from astromesh.abc.tasks import TaskRow
from astromesh.errors import InvalidInput
from astromesh.runtime.kept_tasks import KeptTasks
from astromesh.runtime.loaded_workflows import LoadedWorkflows
from astromesh.runtime.registry import Viewer
from astromesh.runtime.workflows import Host, open_workflow
from astromesh.types import JsonObject
from astromesh.workflow.cassette import Cassette, Replay, is_racing, layers_of
from astromesh.workflow.engine import Engine
from astromesh.workflow.result import TaskResult

#: stages at once beyond those that were recorded
_MORE = 50


class Replays:
    """Replays of the Tasks of a runtime."""

    def __init__(self, host: Host, workflows: LoadedWorkflows, tasks: KeptTasks) -> None:
        self._host, self._workflows, self._tasks = host, workflows, tasks

    async def replay(self, task_id: str, viewer: Viewer, stage: str = "", path: str = "") -> JsonObject:
        """Runs an ended Task, or one stage of it, again from its records: offline, into a scratch record.

        Args:
            stage: only this one, of the Task at `path` of its lineage.

        Raises:
            Conflict: the Task has not ended, or the workflow has changed since.
        """
        row = await self._tasks.task(task_id, viewer)
        cassette = await self._tasks.cassette(task_id, viewer)
        if stage:
            return await self._replay_stage(row, cassette, stage, path)
        return await self.play(row.workflow, cassette)

    async def play(self, name: str, cassette: Cassette) -> JsonObject:
        """Replays a cassette; see `Replay.report`."""
        report, _ = await self.played(name, cassette, cassette.input, cassette.start)
        return report

    async def played(
        self, name: str, cassette: Cassette, input: Any, start: str | None
    ) -> tuple[JsonObject, TaskResult]:
        """Args: input, start: the recorded ones, or others."""
        plan = self._workflows.ready(name).project.plan(cassette.start)
        replay = Replay(cassette, racing=is_racing(plan))
        resources = Resources()
        engine = await self._player(name, replay, cassette, resources)
        try:
            result = await engine.run(input, start, task_id="replay")
        finally:
            await engine.close()
            await resources.close()
        return replay.report(result), result

    async def _player(self, name: str, replay: Replay, cassette: Cassette, resources: Resources) -> Engine:
        """An engine that asks nobody and writes nowhere."""
        return await open_workflow(
            self._host,
            name,
            resources=resources,
            log=replay,
            gate=replay.gate,
            equip=replay.equip,
            layers=layers_of(cassette.memory),
            stages_at_once=max(len(cassette.stages), 1) + _MORE,
        )

    async def _replay_stage(self, row: TaskRow, cassette: Cassette, stage: str, path: str) -> JsonObject:
        retold = self._tasks.retold(row)
        retold.tell(await self._tasks.records(row))
        entry = next((e for e in retold.trace if e["stage_id"] == stage and e["task"] == path), None)
        if entry is None:
            raise InvalidInput(f"The Task {row.task_id!r} has no stage {stage!r} at {path!r}.")
        record = next(
            r for r in retold.records if r["entry"]["task"] == path and r["entry"]["stage_id"] == stage
        )
        alone = tuple(s for s in cassette.stages if (s["task"], s["stage"]) == (path, stage))
        replay = Replay(replace(cassette, stages=alone))
        resources = Resources()
        engine = await self._player(row.workflow, replay, cassette, resources)
        try:
            outcome = await engine.run_again(row.start, entry, record.get("context"))
        finally:
            await engine.close()
            await resources.close()
        return {"recorded": entry, "scratch": outcome, "divergence": replay.divergence}
