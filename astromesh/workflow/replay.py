"""Replays a recording offline and reports the first divergence (E53); reruns one recorded stage (E54)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from astromesh.config.workflow.manifest import ContextProfile
from astromesh.graph.scope import Scope
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, ToolContext
from astromesh.types import JsonObject
from astromesh.workflow.agents import FolderAgent
from astromesh.workflow.base import Entry, StageFault, TaskResult, task_path
from astromesh.workflow.memory import (
    ContextPackage,
    InMemoryLayer,
    LayerStore,
    RunMemory,
    item_from_json,
    package_from_json,
)
from astromesh.workflow.plan import Plan
from astromesh.workflow.recording import (
    Recorder,
    Recording,
    StageCalls,
    comparable_fields,
    intercept_calls,
    recorded_error,
)
from astromesh.workflow.stages import StageCall, StageExecution, StageResources, complete_entry
from astromesh.workflow.state_machine import StateMachine
from astromesh.workflow.task import Task


class _RecordedMemory(RunMemory):
    """Memory that returns one recorded package."""

    def __init__(self, package: ContextPackage) -> None:
        super().__init__({}, (), {})
        self._package = package

    async def package(self, task: Task, profile: ContextProfile, query: str) -> ContextPackage:
        return self._package


async def rerun_stage(
    plan: Plan, call: StageCall, scope: Scope, entry: Mapping[str, Any], context: JsonObject | None
) -> JsonObject:
    """Runs a recorded stage once more and returns the new entry.

    Args:
        call: the stage, compiled with a replay in front of models and tools.
        entry: as recorded.
        context: the recorded context package, or None.
    """
    path, now = entry["task"], scope.clock.now
    machine = StateMachine(plan, scope.run_id)
    task = Task(scope.run_id + path, path, "root", None, ())
    again = Entry(path, entry["stage_id"], entry["input"], now())
    execution = StageExecution(task, again, machine, _RecordedMemory(package_from_json(context)), scope)
    outcome = await call(execution, None)
    complete_entry(execution, outcome, now(), outcome.output)
    return again.to_json()


_MAX_ITEMS = 1_000_000
#: seconds that a stage waits for those that were recorded before it
_STALL_TIMEOUT = 30.0


def recorded_layers(memory: Iterable[JsonObject]) -> dict[str, LayerStore]:
    """Returns private in-memory stores with the recorded items."""
    layers: dict[str, LayerStore] = {}
    for layer in ("task", "project", "global"):
        items = [item_from_json(one) for one in memory if one["layer"] == layer]
        layers[layer] = InMemoryLayer(_MAX_ITEMS, items)
    return layers


class Replay:
    """A gate, a Task log and a call interceptor that respond from a recording and call nothing else.

    Stages begin one after the other, in the order in which they ended when they were recorded.
    `divergence` is the first divergence, as `{task, stage, what, message}`, or None.

    Args:
        timing_dependent: whether one stage may cancel another; a stage that is not in the recording then
            waits instead of diverging.
    """

    def __init__(self, recording: Recording, *, timing_dependent: bool = False) -> None:
        self._stages = {(s["task"], s["stage"]): s for s in recording.stages}
        self._order = [(s["task"], s["stage"]) for s in recording.stages]
        self._timing_dependent = timing_dependent
        self._done: set[tuple[str, str]] = set()
        self._next = 0
        self._changed = asyncio.Condition()
        self._recorder = Recorder()
        self.divergence: JsonObject | None = None

    # -- calls -----------------------------------------------------------------------------------------------

    def intercept_calls(self, resources: StageResources) -> StageResources:
        """Returns the resources with every call answered from the recording."""
        agents = {
            n: FolderAgent(a.spec, _ModelNotRecorded(), a.pattern) if isinstance(a, FolderAgent) else a  # type: ignore[arg-type]
            for n, a in resources.agents.items()
        }
        return intercept_calls(
            StageResources(resources.project, resources.tools, agents, _agent_not_recorded, resources.gate),
            self,
        )

    async def intercept(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        number = len(calls.calls)
        calls.calls.append(call)
        recorded = self._stages.get((calls.task, calls.stage), {}).get("calls", ())
        if number >= len(recorded):
            raise self._diverged(
                calls.task,
                calls.stage,
                "call",
                f"call {number + 1} to {call['name']!r} is not in the recording",
            )
        known = recorded[number]
        for key in ("kind", "name", "request_hash"):
            if known[key] != call[key]:
                message = f"call {number + 1} has another {key}: {call[key]!r} instead of {known[key]!r}"
                raise self._diverged(calls.task, calls.stage, "call", message)
        if "error" in known:
            raise recorded_error(known)
        return known["answer"]

    # -- gate and log ----------------------------------------------------------------------------------------

    async def gate(self, task: str, stage: str, input: Any, context: JsonObject | None) -> None:
        self._recorder.begin(task, stage, context)
        key = (task_path(task), stage)
        async with self._changed:
            if key not in self._stages and not self._timing_dependent:
                self._diverged(*key, "path", "the stage did not run in the recorded run")
                self._changed.notify_all()
            try:
                async with asyncio.timeout(_STALL_TIMEOUT):
                    await self._changed.wait_for(lambda: self._may_begin(key))
            except TimeoutError:
                self._diverged(*key, "order", "the recorded order cannot be reproduced")
                self._changed.notify_all()
        known = self._stages.get(key, {})
        if not known.get("begun", True) and known["code"]:
            raise StageFault(known["code"], "The stage did not begin in the recorded run.")

    def _may_begin(self, key: tuple[str, str]) -> bool:
        """Returns whether it is the stage's turn. Once the runs have diverged, every stage may begin."""
        due = self._order[self._next] if self._next < len(self._order) else None
        return self.divergence is not None or due == key

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        for record in records:
            if record["type"] == "stage":
                self._compare(comparable_fields(record["entry"]))
        async with self._changed:
            while self._next < len(self._order) and self._order[self._next] in self._done:
                self._next += 1
            self._changed.notify_all()

    def _compare(self, now: JsonObject) -> None:
        key = (now["task"], now["stage"])
        self._done.add(key)
        known = self._stages.get(key)
        if known is None:
            return
        for what in ("status", "code", "edge", "output_hash"):
            if known[what] != now[what]:
                message = f"{what} is {now[what]!r}, but {known[what]!r} in the recording"
                self._diverged(*key, what, message)
                return

    def report(self, result: TaskResult) -> JsonObject:
        """Returns `{same, divergence, status, output, path}`."""
        missing = next((key for key in self._order if key not in self._done), None)
        if missing is not None:
            self._diverged(*missing, "path", "the stage was not reached")
        return {
            "same": self.divergence is None,
            "divergence": self.divergence,
            "status": result.status,
            "output": result.output,
            "path": list(result.path),
        }

    def _diverged(self, task: str, stage: str, what: str, message: str) -> StageFault:
        found = {"task": task, "stage": stage, "what": what, "message": f"{stage}: {message}."}
        self.divergence = self.divergence or found
        return StageFault("replay_divergence", found["message"])


def is_timing_dependent(plan: Plan) -> bool:
    """Returns whether timing can decide: the first clone to end (E21), or the first subtask to fail."""
    return any(
        (stage.role == "branch" and not stage.recombined)
        or (stage.node.split is not None and stage.node.split.on_failure == "fail_fast")
        for stage in plan.stages.values()
    )


class _ModelNotRecorded:
    """The model of a replay, which is never called."""


async def _agent_not_recorded(
    agent: str,
    query: str,
    context: Mapping[str, Any],
    parent: ToolContext,
    terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
) -> Mapping[str, Any]:
    raise StageFault("replay_divergence", f"The agent {agent!r} is not in the recording.")
