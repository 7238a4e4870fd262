"""Computes the events, history and state of a Task from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from astromesh.types import Event, JsonObject
from astromesh.workflow.base import Entry
from astromesh.workflow.plan import Plan
from astromesh.workflow.stages import route
from astromesh.workflow.state_machine import Command, EmitEvent, Outcome, StartStage, StateMachine


class TaskProjection:
    """Applies the records of one Task in order. The same records lead to the same, equally numbered events.

    Args:
        plan: of the manifests that the Task began with.

    `trace` contains the entries that counted, not those of a Task after its cancellation.
    """

    def __init__(self, plan: Plan, task_id: str) -> None:
        self._machine = StateMachine(plan, task_id)
        self._plan, self._task_id, self._seq = plan, task_id, 0
        self._is_finished = False
        self.trace: list[JsonObject] = []
        self.records: list[Mapping[str, Any]] = []

    @property
    def tasks(self) -> list[JsonObject]:
        """Returns the current state of the Task and its descendants."""
        return [task.to_json() for task in self._machine.tasks.values()]

    def apply(self, records: Iterable[Mapping[str, Any]]) -> list[Event]:
        """Applies further records and returns their events."""
        return [event for record in records for event in self._events(record)]

    def _events(self, record: Mapping[str, Any]) -> list[Event]:
        match record["type"]:
            case "begin":
                started = self._event("task.started", {"task": self._task_id, "start": record["start"]})
                return [started, *self._command_events(self._machine.begin(record["input"]))]
            case "stage":
                return self._stage(record)
            case "cancel":
                return self._command_events(self._machine.cancel(record["reason"]))
            case "end" if not self._is_finished:
                data = {"task": self._task_id, "status": record["status"], "state": "ended"}
                if record.get("error"):
                    data["error"] = record["error"]["code"]
                return [self._event("task.finished", data, record.get("at", 0.0))]
        return []

    def _stage(self, record: Mapping[str, Any]) -> list[Event]:
        entry = Entry.from_json(record["entry"])
        task = self._machine.tasks.get(entry.task)
        if task is None or task.state != "running":
            return []
        self._machine.seq += 1
        self.trace.append({**record["entry"], "seq": self._machine.seq})
        self.records.append(record)
        stage = self._plan.stages[entry.stage]
        outcome = Outcome(entry.output, entry.error) if entry.error else route(stage, entry.output)
        data: JsonObject = {
            "task": task.id,
            "stage": entry.stage,
            "status": entry.status,
            "duration_ms": round((entry.finished_at - entry.started_at) * 1000, 3),
        }
        if entry.error:
            data["error"] = entry.error["code"]
        finished = self._event("stage.finished", data, entry.finished_at)
        return [finished, *self._command_events(self._machine.finish_stage(task, outcome), entry.finished_at)]

    def _command_events(self, commands: Iterable[Command], at: float = 0.0) -> list[Event]:
        found = []
        for command in commands:
            if isinstance(command, StartStage):
                data = {"task": command.task.id, "stage": command.task.stage}
                found.append(self._event("stage.started", data, at))
            elif isinstance(command, EmitEvent):
                root = command.type == "task.finished" and command.data["task"] == self._task_id
                self._is_finished = self._is_finished or root
                found.append(self._event(command.type, command.data, at))
        return found

    def _event(self, type: str, data: JsonObject, at: float = 0.0) -> Event:
        self._seq += 1
        return Event(self._task_id, self._seq, at, type, data)
