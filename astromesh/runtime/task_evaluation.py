"""A workflow as the target of an evaluation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from astromesh.config.workflow.manifest import Assertion
from astromesh.evaluation.base import CalledTool, Case, Kind, Outcome
from astromesh.graph.call_record import arguments_of
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.task_view import TaskReplays
from astromesh.types import JsonObject, ToolCall
from astromesh.workflow.base import Entry, TaskResult
from astromesh.workflow.history import Recording
from astromesh.workflow.operations import load_operation
from astromesh.workflow.project import Project


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
