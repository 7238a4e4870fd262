"""Tasks of this process and of the store as callers see them, and workflows as targets of evaluations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from astromesh.access.scopes import Viewer
from astromesh.config.workflow import Assertion
from astromesh.durable.comparison import ComparedTask, compare
from astromesh.durable.run_registry import event_not_reached
from astromesh.durable.tasks import ENDED_TASK_STATUSES, Artifact, ArtifactFilter, TaskRow, TaskStore
from astromesh.errors import Conflict, InvalidInput, NotWaiting, StoreError, TaskNotFound
from astromesh.evaluation.base import CalledTool, Case, Kind, Outcome
from astromesh.graph.call_record import arguments_of
from astromesh.plugins import Resources
from astromesh.runtime.agent_directory import AgentDirectory
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.runs import Decision
from astromesh.runtime.task_journal import (
    ReplayedRuns,
    TaskStep,
    redacted_waits,
    step_at,
    steps_of_runs,
    task_steps,
    visible,
)
from astromesh.runtime.task_log import LiveTask
from astromesh.runtime.task_waits import PAUSE, TaskWaits, paused_json, question_json
from astromesh.runtime.workflows import WorkflowRegistry, open_workflow
from astromesh.telemetry.events import EventSink, send_stored, send_what_fits
from astromesh.types import CallerContext, Event, JsonObject, ToolCall
from astromesh.workflow.base import Entry, TaskResult
from astromesh.workflow.engine import Engine
from astromesh.workflow.execution import TaskProjection
from astromesh.workflow.history import History, Recording, history_of
from astromesh.workflow.inspector import Inspector
from astromesh.workflow.operations import load_operation
from astromesh.workflow.project import Project
from astromesh.workflow.replay import Replay

#: seconds between two polls for the events of a Task that another process executes, and for its end
_EVENTS_POLL_SECONDS, _POLL_SECONDS = 0.2, 0.25
#: polls for events after which it is looked whether the Task was erased
_ERASED_POLLS = 10
#: seconds between two looks for paused stages
_PAUSE_POLL_SECONDS = 0.05
#: seconds that a cancel waits for the end of a Task
_CANCEL_SECONDS = 10.0


class TaskView:
    """Queries and actions on Tasks.

    Args:
        live: The Tasks that this process executes.
        store: Returns the open store.
        stop: Starts to cancel a Task of this process.
        waits: What stages wait for.
    """

    def __init__(
        self,
        workflows: WorkflowRegistry,
        live: Mapping[str, LiveTask],
        store: Callable[[], Awaitable[TaskStore]],
        stop: Callable[[str], bool],
        waits: TaskWaits,
    ) -> None:
        self._workflows, self._live, self._store, self._stop = workflows, live, store, stop
        self._waits = waits

    def in_progress(self) -> Mapping[tuple[str, ...], float]:
        """Counts queued and running Tasks by workflow and state."""
        found: dict[tuple[str, ...], float] = {}
        for live in self._live.values():
            if "task_concurrency" in self._workflows.metrics_of(live.row.workflow):
                state = "running" if live.is_running else "queued"
                found[live.row.workflow, state] = found.get((live.row.workflow, state), 0.0) + 1
        return found

    async def task(self, task_id: str, viewer: Viewer) -> TaskRow:
        """Returns a Task. Raises: TaskNotFound: there is no such Task, or not for this viewer."""
        live = self._live.get(task_id)
        row = (
            live.row
            if live is not None and not live.row.durable
            else await (await self._store()).get(task_id)
        )
        if row is None or row.tenant != viewer.tenant or viewer.owner not in (None, row.owner):
            raise TaskNotFound(f"There is no Task {task_id!r}.")
        return row

    async def state(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Returns a Task as callers see it: with its current stages and those that are paused."""
        row = await self.task(task_id, viewer)
        waits = await self._waits.of_task(task_id) if row.durable else ()
        active = row.status not in ENDED_TASK_STATUSES
        paused = (
            [paused_json(one) for one in waits if active and one.kind == PAUSE and one.answer is None]
            if row.durable
            else self._workflows.paused_stages(row)
        )
        decided = [one for one in waits if one.answer is not None]
        if decided and active:  # the end of the Task stores them so
            redactors = await self._workflows.redactors(await self.records(row))
            hidden = {one.key: one for one in redacted_waits(decided, redactors)}
            waits = tuple(hidden.get(one.key, one) for one in waits)
        questions = [question_json(one) for one in waits if one.kind != PAUSE]
        waiting_for = [one for one in questions if active and "decision" not in one]
        states = {(one["task"], one["stage"]): "waiting" for one in waiting_for}
        states |= {(one["task"].removeprefix(task_id), one["stage"]): "paused" for one in paused}
        shown = self._row_json(row)
        return {
            **shown,
            **await self._progress(row, shown["status"], states),
            "paused": paused,
            "waiting_for": waiting_for,
            "decisions": [one for one in questions if "decision" in one],
        }

    async def message(self, row: TaskRow) -> JsonObject:
        """Returns what a callback tells about a Task: the Task, and the questions that it waits for."""
        waits = () if row.finished_at else await self._waits.of_task(row.task_id)
        questions = [question_json(one) for one in waits if one.kind != PAUSE and one.answer is None]
        return {**task_json(row), "waiting_for": questions}

    def _row_json(self, row: TaskRow) -> JsonObject:
        live = self._live.get(row.task_id)
        begun = row.status == "queued" and live is not None and live.is_running
        return task_json(row) | ({"status": "running"} if begun else {})

    async def _progress(self, row: TaskRow, status: str, states: Mapping[tuple[str, str], str]) -> JsonObject:
        """Returns the current stages of a Task, and how many have ended and how many its start reaches.

        Args:
            status: As callers see it. A queued Task has begun no stage.
            states: Of stages that wait for somebody, by path and stage.
        """
        if row.status in ENDED_TASK_STATUSES:
            return {"stages": [], "progress": None}
        history = await self.history(row)
        history.apply(await self.records(row))
        stages = [
            {
                "task": task["path"],
                "stage": task["stage"],
                "state": states.get((task["path"], task["stage"]), task["state"]),
            }
            for task in history.tasks
            if task["state"] in ("running", "waiting") and status != "queued"
        ]
        return {"stages": stages, "progress": {"ended": len(history.trace), "reachable": history.reachable}}

    async def list(
        self, viewer: Viewer, workflow: str = "", status: str = "", limit: int = 50, after: str = ""
    ) -> list[JsonObject]:
        """Returns stored Tasks, the newest first. Args: after: the id of the last one before them."""
        rows = await (await self._store()).list(*viewer, workflow, status, limit, after)
        return [self._row_json(row) for row in rows]

    async def trace(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Returns every entry by `seq` and every descendant, from the records so far."""
        row = await self.task(task_id, viewer)
        history = await self.history(row)
        history.apply(await self.records(row))
        return {**self._row_json(row), "tasks": history.tasks, "trace": history.trace}

    async def manifest(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Returns the manifests that a Task was accepted with, and the versions around them.

        `files` is null for a Task of a version that did not store them.
        """
        row = await self.task(task_id, viewer)
        known = await self.snapshot(row) or {"workflow": row.workflow, "files": None}
        return {"task_id": task_id, "run_fingerprint": row.fingerprint, **known}

    async def diagram(self, task_id: str, viewer: Viewer) -> str:
        """Returns the workflow that a Task was accepted with as a Mermaid flowchart."""
        row = await self.task(task_id, viewer)
        return self._workflows.diagram_of(row, await self.snapshot(row))

    async def artifacts(self, task_id: str, viewer: Viewer, filter: ArtifactFilter) -> tuple[Artifact, ...]:
        await self.task(task_id, viewer)
        return await (await self._store()).artifacts(*viewer, filter._replace(task_id=task_id))

    async def follow(
        self, task_id: str, viewer: Viewer, after: int, sink: EventSink, end: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Sends the events after `after`, then new ones.

        Returns a function that ends it, or None if the Task has ended and no event will come.

        Args:
            end: Called after the last event.

        Raises:
            InvalidInput: the Task has no event `after`.
        """
        row = await self.task(task_id, viewer)
        history = await self.history(row)
        records = await self._records_if_available(task_id, self._live.get(task_id), 0)
        events = history.apply(records)
        has_ended = _is_ended(records)
        if events and after > events[-1].seq:
            raise event_not_reached(task_id, after, has_ended=has_ended)
        left = send_what_fits(_after(after, events), sink)
        if has_ended and not left:
            end()
            return None
        if has_ended:
            following = _send_rest(left, sink, end)
        else:
            behind = 0 if events else after
            following = self._follow(task_id, history, len(records), sink, end, behind, left)
        return asyncio.create_task(following).cancel  # type: ignore[return-value]

    async def _follow(  # noqa: PLR0913 (where a reader stands in the history)
        self,
        task_id: str,
        history: History,
        seen: int,
        sink: EventSink,
        end: Callable[[], None],
        after: int,
        left: Sequence[Event],
    ) -> None:
        """Sends the events that are left, and those of the records after the first `seen` ones."""
        live, polls = self._live.get(task_id), 0
        try:
            await send_stored(left, sink)
            while True:
                is_over = live is not None and _is_ended(live.records)  # its end may not be stored
                live = live if is_over else self._live.get(task_id)
                changed = live.changed if live is not None else None
                records = await self._records_if_available(task_id, live, seen)
                seen += len(records)
                await send_stored(_after(after, history.apply(records)), sink)
                if _is_ended(records):
                    return
                if changed is not None:
                    await changed.wait()
                    continue
                polls += 1
                if polls % _ERASED_POLLS == 0 and await self._is_erased(task_id):
                    return
                await asyncio.sleep(_EVENTS_POLL_SECONDS)
        finally:
            end()

    async def _is_erased(self, task_id: str) -> bool:
        """Whether a Task is gone, so that no event comes. Returns False while the store does not answer."""
        try:
            return await (await self._store()).get(task_id) is None
        except StoreError:
            return False

    async def _records_if_available(
        self, task_id: str, live: LiveTask | None, seen: int
    ) -> Sequence[JsonObject]:
        """Returns the records after the first `seen` ones; none while the store does not answer."""
        if live is not None:
            return live.records[seen:]
        try:
            return await (await self._store()).records(task_id, seen)
        except StoreError:
            return ()

    async def recording(self, task_id: str, viewer: Viewer) -> Recording:
        """Returns a Task that has ended as a recording."""
        row = await self.task(task_id, viewer)
        if row.status not in ENDED_TASK_STATUSES:
            raise Conflict(f"The Task {task_id!r} has not ended; it can be replayed when it has.")
        history, records = await self.history(row), await self.records(row)
        return Recording.from_records(history, records, row.status, row.fingerprint)

    async def records(self, row: TaskRow) -> Sequence[JsonObject]:
        live = self._live.get(row.task_id)
        return tuple(live.records) if live else await (await self._store()).records(row.task_id)

    async def snapshot(self, row: TaskRow) -> JsonObject | None:
        """Returns the manifests that a Task was accepted with; None for Tasks of earlier versions."""
        engine = self._workflows.engine(row.workflow)
        if engine is not None and engine.project.snapshot.id == row.snapshot:
            return engine.project.snapshot.content
        return await (await self._store()).snapshot(row.snapshot) if row.snapshot else None

    async def history(self, row: TaskRow) -> History:
        """Returns the empty history of a Task, whatever became of its workflow."""
        plan = self._workflows.plan_of(row, await self.snapshot(row))
        engine = self._workflows.engine(row.workflow)
        if plan is not None and engine is not None and engine.project.snapshot.id == row.snapshot:
            return TaskProjection(plan, row.task_id)
        return history_of(plan, row.task_id, await self.records(row))

    # -- their steps -----------------------------------------------------------------------------------------

    async def steps(self, row: TaskRow) -> Sequence[TaskStep]:
        """Returns the steps of a Task, as far as its stages have ended."""
        history = await self.history(row)
        records = await self.records(row)
        history.apply(records)
        redactors = await self._workflows.redactors(records)
        return task_steps(history.records, steps_of_runs(records), redactors)

    async def listed_steps(self, task_id: str, viewer: Viewer) -> Sequence[JsonObject]:
        """Returns the calls of the stages of a Task, and the stages, in order."""
        return [one.to_json() for one in visible(await self.steps(await self.task(task_id, viewer)))]

    async def step_content(self, task_id: str, step: int, viewer: Viewer) -> JsonObject:
        """Returns one step with its input and output. Raises: TaskNotFound: there is none."""
        return step_at(await self.steps(await self.task(task_id, viewer)), step, task_id).content()

    async def compare(self, task_ids: Sequence[str], viewer: Viewer) -> JsonObject:
        """Returns two or three Tasks side by side; the others are compared with the first."""
        rows = [await self.task(task_id, viewer) for task_id in task_ids]
        found = [ComparedTask(row, [one.step for one in visible(await self.steps(row))]) for row in rows]
        return await asyncio.to_thread(compare, dict(zip("abc", found, strict=False)))

    # -- acting on them -------------------------------------------------------------------------------------

    async def cancel(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Cancels a Task and its descendants: status `failure`, reason `cancelled`."""
        row = await self.task(task_id, viewer)
        if row.status not in ENDED_TASK_STATUSES:
            if row.durable:
                await (await self._store()).cancel(task_id)
            live = self._live.get(task_id)
            self._stop(task_id)
            await self._ended(task_id, live)
        return await self.state(task_id, viewer)

    async def ended(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Waits for the end of a Task and returns it."""
        row = await self.task(task_id, viewer)
        if row.status not in ENDED_TASK_STATUSES:
            await self._ended(task_id, self._live.get(task_id), None)
        return await self.state(task_id, viewer)

    async def _ended(
        self, task_id: str, live: LiveTask | None, patience: float | None = _CANCEL_SECONDS
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while live is not None and self._live.get(task_id) is live:
                    await live.changed.wait()
                while live is None:
                    row = await (await self._store()).get(task_id)
                    if row is None or row.status in ENDED_TASK_STATUSES:
                        return
                    await asyncio.sleep(_POLL_SECONDS)

    async def pause(self, task_id: str, viewer: Viewer, before: Iterable[str] = ()) -> JsonObject:
        """Pauses a Task before its next stages, wherever it runs: on disk when this returns.

        Raises:
            InvalidInput: its workflow has no such stage.
        """
        stages = tuple(before)
        if stages:
            row = await self.task(task_id, viewer)
            plan = self._workflows.plan_of(row, await self.snapshot(row))
            if plan is not None and (unknown := [stage for stage in stages if stage not in plan.stages]):
                known = ", ".join(plan.stages)
                raise InvalidInput(
                    f"before: {row.workflow!r} has no stage {unknown[0]!r}. Its stages: {known}."
                )
        if (inspector := await self._inspector(task_id, viewer)) is not None:
            inspector.pause(task_id, stages)
        elif not await self._waits.act(task_id, lambda store: store.pause(task_id, stages)):
            raise Conflict(f"The Task {task_id!r} has ended.")
        return await self.state(task_id, viewer)

    async def step(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Raises: NotWaiting: no stage of the Task waits."""
        inspector = await self._inspector(task_id, viewer)
        if not (
            inspector.step(task_id)
            if inspector is not None
            else await self._waits.act(task_id, lambda store: store.step(task_id))
        ):
            raise NotWaiting(f"No stage of the Task {task_id!r} waits; pause it first.")
        return await self.state(task_id, viewer)

    async def resume(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Raises: NotWaiting: the Task is not paused."""
        inspector = await self._inspector(task_id, viewer)
        if not (
            inspector.resume(task_id)
            if inspector is not None
            else await self._waits.act(task_id, lambda store: store.release(task_id))
        ):
            raise NotWaiting(f"The Task {task_id!r} is not paused.")
        return await self.state(task_id, viewer)

    async def _inspector(self, task_id: str, viewer: Viewer) -> Inspector | None:
        """Returns the inspector of a Task without a row; None for a durable Task."""
        row = await self.task(task_id, viewer)
        if row.status in ENDED_TASK_STATUSES:
            raise Conflict(f"The Task {task_id!r} has ended.")
        return None if row.durable else self._workflows.get(row.workflow).inspector

    async def until_paused(self, task_id: str, viewer: Viewer) -> Sequence[JsonObject]:
        """Waits until stages of a Task are paused, and returns them."""
        while True:
            paused: Sequence[JsonObject] = (await self.state(task_id, viewer))["paused"]
            if paused:
                return paused
            await asyncio.sleep(_PAUSE_POLL_SECONDS)

    async def decide(
        self, task_id: str, viewer: Viewer, caller: CallerContext, question: str, decision: Decision
    ) -> JsonObject:
        """Answers what a stage of a Task asks. See `TaskWaits.decide`."""
        await self._waits.decide(task_id, viewer, caller, question, decision)
        row = await (await self._store()).get(task_id)
        assert row is not None
        return await self.state(task_id, Viewer(row.tenant, None))


def _after(after: int, events: Iterable[Event]) -> Sequence[Event]:
    return [event for event in events if event.seq > after]


async def _send_rest(events: Sequence[Event], sink: EventSink, end: Callable[[], None]) -> None:
    try:
        await send_stored(events, sink)
    finally:
        end()


def _is_ended(records: Sequence[JsonObject]) -> bool:
    return bool(records) and records[-1]["type"] == "end"


def task_json(row: TaskRow) -> JsonObject:
    """Returns a Task as the API shows it (api.md)."""
    result = row.result or {}
    stamp = {"run_fingerprint": row.fingerprint, "trace_id": row.trace_id}
    return {
        "task_id": row.task_id,
        "workflow": row.workflow,
        "status": row.status,
        "output": result.get("output"),
        "error": result.get("error"),
        "metadata": {**stamp, **result.get("metadata", {})},
        "durable": row.durable,
        "created_at": row.created_at,
        "finished_at": row.finished_at or None,
        **({"forked_from": row.forked_from} if row.forked_from else {}),
    }


# -- replays: ended Tasks run again from their records, without calls and without stored results -------------

#: stages at once beyond those that were recorded
_EXTRA_STAGES = 50


class TaskReplays:
    """Replays of the Tasks of a runtime."""

    def __init__(self, directory: AgentDirectory, workflows: WorkflowRegistry, tasks: TaskView) -> None:
        self._directory, self._workflows, self._tasks = directory, workflows, tasks

    async def replay(self, task_id: str, viewer: Viewer, stage: str = "", path: str = "") -> JsonObject:
        """Executes an ended Task again from its records, without calls and without storing results.

        Args:
            stage: Only this stage, of the Task at `path` of its lineage.

        Raises:
            Conflict: the Task has not ended.
            WorkflowNotFound, InvalidWorkflow: the code of the workflow is gone.
        """
        row = await self._tasks.task(task_id, viewer)
        recording = await self._tasks.recording(task_id, viewer)
        if stage:
            return await self._replay_stage(row, recording, stage, path)
        snapshot = await self._tasks.snapshot(row)
        live = any(agent.tools.live for agent in self._directory.state.agents.values())
        runs = ReplayedRuns(await self._tasks.records(row), lists_tools=not live)
        report, _ = await self._run(row.workflow, recording, recording.input, recording.start, snapshot, runs)
        return report

    async def replay_recording(self, name: str, recording: Recording) -> JsonObject:
        """Replays a recording; see `Replay.report`."""
        report, _ = await self.run_recording(name, recording, recording.input, recording.start)
        return report

    async def run_recording(
        self, name: str, recording: Recording, input: Any, start: str | None
    ) -> tuple[JsonObject, TaskResult]:
        """Replays a recording with its own input and start node, or with others, in the present workflow."""
        return await self._run(name, recording, input, start, None)

    async def _run(
        self,
        name: str,
        recording: Recording,
        input: Any,
        start: str | None,
        snapshot: JsonObject | None,
        runs: ReplayedRuns | None = None,
    ) -> tuple[JsonObject, TaskResult]:
        replay, resources = Replay(recording.stages, runs.check if runs else None), Resources()
        engine = await self._replay_engine(name, replay, recording, resources, snapshot, runs)
        try:
            replay.timing_dependent = engine.project.plan(recording.start).is_timing_dependent
            result = await engine.run(input, start, task_id=recording.task_id or "replay")
        finally:
            await engine.close()
            await resources.close()
        present = engine.project.fingerprint.value
        same = present == recording.run_fingerprint
        prints = {"recorded": recording.run_fingerprint, "present": present, "same": same}
        return {**replay.report(result), "run_fingerprint": prints}, result

    async def _replay_engine(
        self,
        name: str,
        replay: Replay,
        recording: Recording,
        resources: Resources,
        snapshot: JsonObject | None,
        runs: ReplayedRuns | None = None,
    ) -> Engine:
        """Returns an engine without model calls and without a log.

        Args:
            snapshot: The manifests; None: the present ones.
        """
        return await open_workflow(
            self._directory.state,
            name,
            resources=resources,
            log=replay,
            journal=replay,
            journals=runs.open_journal if runs else None,
            people=replay,
            layers=recording.memory_layers(),
            stages_at_once=max(len(recording.stages), 1) + _EXTRA_STAGES,
            snapshot=snapshot,
        )

    async def _replay_stage(self, row: TaskRow, recording: Recording, stage: str, path: str) -> JsonObject:
        history = await self._tasks.history(row)
        history.apply(await self._tasks.records(row))
        entry = next((e for e in history.trace if e["stage_id"] == stage and e["task"] == path), None)
        if entry is None:
            raise InvalidInput(f"The Task {row.task_id!r} has no stage {stage!r} at {path!r}.")
        record = next(
            r for r in history.records if r["entry"]["task"] == path and r["entry"]["stage_id"] == stage
        )
        replay = Replay(tuple(s for s in recording.stages if (s["task"], s["stage"]) == (path, stage)))
        resources = Resources()
        snapshot = await self._tasks.snapshot(row)
        engine = await self._replay_engine(row.workflow, replay, recording, resources, snapshot)
        try:
            outcome = await engine.rerun_stage(row.start, entry, record.get("context"))
        finally:
            await engine.close()
            await resources.close()
        return {"recorded": entry, "scratch": outcome, "divergence": replay.divergence}


class WorkflowTarget:
    """Runs the cases of a workflow as Tasks.

    Args:
        run: runs a Task of a workflow by its name.
    """

    kind: Kind = "workflow"
    implied: tuple[Assertion, ...] = ()

    def __init__(
        self,
        project: Project,
        run: Callable[[str, TaskRequest], Awaitable[TaskResult]],
        replays: TaskReplays,
    ) -> None:
        self.name = project.name
        self._project, self._run, self._replays = project, run, replays

    async def run(self, case: Case, *, live: bool) -> Outcome:
        """Raises: InvalidInput: its recording cannot be read."""
        request = TaskRequest(case.spec.input, case.spec.start)
        if live or case.recording is None:
            return outcome_of(await self._run(self.name, request))
        recording = Recording.read(case.recording)
        report, result = await self._replays.run_recording(self.name, recording, request.input, request.start)
        return outcome_of(result, report["divergence"], is_live=False)

    def schema(self, schema_id: str) -> JsonObject | None:
        return self._project.files.schemas.get(schema_id)

    def function(self, name: str) -> Callable[..., Any]:
        return load_operation(self._project.folder, name)


def outcome_of(result: TaskResult, divergence: JsonObject | None = None, *, is_live: bool = True) -> Outcome:
    """Returns what a Task has led to."""
    calls = [call for entry in result.trace for call in _calls(entry)]
    usage = [entry.usage or {} for entry in result.trace]
    started = min((entry.started_at for entry in result.trace), default=0.0)
    finished = max((entry.finished_at for entry in result.trace), default=0.0)
    return Outcome(
        ids={"task_id": result.task_id, "workflow": result.workflow},
        status=result.status,
        output=result.output,
        path=result.path,
        tool_calls=tuple(calls),
        error=result.error,
        cost_usd=sum(one.get("cost_usd", 0.0) for one in usage),
        duration_ms=round((finished - started) * 1000, 3),
        divergence=divergence,
        is_live=is_live,
    )


def _calls(entry: Entry) -> list[CalledTool]:
    return [
        CalledTool(call["tool"], arguments_of(ToolCall("", call["tool"], call["arguments"])))
        for call in entry.tool_calls
    ]
