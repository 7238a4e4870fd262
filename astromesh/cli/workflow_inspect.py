"""`astromesh workflow inspect`: a kept Task stage by stage, or a new one that waits before each (E54)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astromesh.cli.lines import Lines
from astromesh.cli.output import note, print_json
from astromesh.cli.workflow import parsed
from astromesh.cli.workflow_session import OPERATOR
from astromesh.cli.workflow_tape import done
from astromesh.runtime.loaded_workflows import Workflow
from astromesh.runtime.task_asked import Asked
from astromesh.runtime.tasks import Workflows
from astromesh.types import JsonObject

HELP = "Enter or `step` runs the stage, `resume` all that follow, `cancel` ends the Task."


def look(places: tuple[Path, Path], name: str, task_id: str, stage: str, path: str) -> None:
    """Prints the trace of a kept Task, or one stage of it beside a further run of it.

    Raises:
        typer.Exit: with the code of the error: there is no such Task or stage, or it has not ended.
    """

    async def work(workflows: Workflows, workflow: Workflow) -> JsonObject:
        if stage:
            return await workflows.replays.replay(task_id, OPERATOR, stage, path)
        return await workflows.tasks.trace(task_id, OPERATOR)

    print_json(done(places, name, work))


def step_through(places: tuple[Path, Path], name: str, input: str, start: str, before: list[str]) -> None:
    """Runs a Task that waits before its stages, for what is typed.

    Args:
        before: only these stages; empty: every one.

    Raises:
        typer.Exit: with the code of the error.
    """

    async def work(workflows: Workflows, workflow: Workflow) -> JsonObject:
        assert workflow.engine is not None
        workflow.engine.project.require_stages(before)
        row = await workflows.accept(workflow.name, Asked(parsed(input), start or None))
        workflow.inspector.pause(row.task_id, before)  # at once: its first stage begins with the next await
        return await _stepped(workflows, workflow, row.task_id)

    print_json(done(places, name, work))


async def _stepped(workflows: Workflows, workflow: Workflow, task_id: str) -> JsonObject:
    lines = Lines("step> ")
    if lines.interactive:
        note(HELP)
    ended = asyncio.ensure_future(workflows.tasks.ended(task_id, OPERATOR))
    while True:
        paused = asyncio.ensure_future(workflow.inspector.paused(task_id))
        await asyncio.wait([ended, paused], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            paused.cancel()
            return await ended
        print_json({"waiting": workflow.inspector.waiting(task_id)})
        match await lines.next():
            case "" | "step":
                workflow.inspector.step(task_id)
            case "resume" | None:
                workflow.inspector.resume(task_id)
            case "cancel":
                await workflows.tasks.cancel(task_id, OPERATOR)
            case _:
                note(HELP)
