"""One stage run again on its recorded input and context, into a scratch record, never into a Task (E54)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astromesh.config.workflow.memory import ContextProfile
from astromesh.node.scope import Scope
from astromesh.types import JsonObject
from astromesh.workflow.context import Item, Package
from astromesh.workflow.flow import Flow
from astromesh.workflow.memory import RunMemory
from astromesh.workflow.plan import Plan
from astromesh.workflow.result import Entry
from astromesh.workflow.stages import Job, StageCall, complete
from astromesh.workflow.task import Task


class _Recorded(RunMemory):
    """Memory that answers with one recorded package."""

    def __init__(self, package: Package) -> None:
        super().__init__({}, (), {})
        self._package = package

    async def package(self, task: Task, profile: ContextProfile, query: str) -> Package:
        return self._package


async def run_again(
    plan: Plan, call: StageCall, scope: Scope, entry: Mapping[str, Any], context: JsonObject | None
) -> JsonObject:
    """The entry of a further execution.

    Args:
        call: the stage, compiled with a tape in front of models and tools.
        entry: as recorded.
        context: the recorded package, None where there was none.
    """
    path, now = entry["task"], scope.clock.now
    flow = Flow(plan, scope.run_id)
    task = Task(scope.run_id + path, path, "root", None, ())
    again = Entry(path, entry["stage_id"], entry["input"], now())
    job = Job(task, again, flow, _Recorded(package_of(context)), scope)
    outcome = await call(job, None)
    complete(job, outcome, now(), outcome.output)
    return again.to_json()


def package_of(context: JsonObject | None) -> Package:
    """A package as it was recorded."""
    return (
        Package("", ())
        if context is None
        else Package(context["profile"], tuple(map(item_of, context["items"])))
    )


def item_of(data: JsonObject) -> Item:
    return Item(data["id"], data["layer"], data["node"], tuple(data["tags"]), data["value"])
