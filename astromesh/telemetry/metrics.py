"""Metrics, counted from the event stream.

Runs touch plain numbers; `exposition` makes metric families of them only when somebody scrapes.
`COUNTERS`, `HISTOGRAMS` and the readings that the server adds are all there is: docs/operations.md explains
each of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from astromesh.telemetry.tally import BUCKETS, Labels, Tally
from astromesh.types import Event, JsonObject

__all__ = ["BUCKETS", "COUNTERS", "HISTOGRAMS", "Metrics"]

#: name without the prefix: what it counts, its labels
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "runs": ("Finished runs.", ("status",)),
    "run_failures": ("Failed runs by error code.", ("code",)),
    "agent_tokens": ("Tokens of runs, with nested ones.", ("agent",)),
    "agent_cost_usd": ("Cost of runs in US dollars, with nested ones.", ("agent",)),
    "tool_calls": ("Tool calls.", ("tool", "ok")),
    "guardrail_actions": ("What guardrails did.", ("stage", "type", "action")),
    "tokens": ("Tokens by direction.", ("provider", "model", "direction")),
    "cost_usd": ("Cost in US dollars.", ("provider", "model")),
    "workflow_stages": ("Executions of stages.", ("workflow", "node", "status")),
}
HISTOGRAMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "run_duration_seconds": ("Time of a run.", ("agent",)),
    "step_duration_seconds": ("Time of a step of the pipeline.", ("step",)),
    "model_call_duration_seconds": ("Time of a model call.", ("provider", "model")),
    "time_to_first_token_seconds": ("From a model call's start to its first delta.", ("provider", "model")),
    "tool_call_duration_seconds": ("Time of a tool call.", ("tool",)),
    "workflow_stage_duration_seconds": ("Time of a stage.", ("workflow", "node")),
    "workflow_tool_duration_seconds": ("Time of a stage's tool call.", ("workflow", "node", "tool")),
    "workflow_task_duration_seconds": ("Time of a Task, its queue included.", ("workflow", "status")),
    "workflow_queue_seconds": ("From a Task's acceptance to its first stage.", ("workflow",)),
}
#: events that say how long a step took, and its name
_STEPS = {
    "memory.loaded": "memory_build",
    "prompt.rendered": "prompt_render",
    "memory.persisted": "memory_persist",
}


class Reading(NamedTuple):
    """A number that is asked for when somebody scrapes.

    Args:
        join: how the numbers of two processes of one server become one.
        counts: it never goes down: a counter, else a gauge.
    """

    name: str
    about: str
    labels: tuple[str, ...]
    read: Callable[[], Mapping[Labels, float]]
    join: Callable[[float, float], float] = operator.add
    counts: bool = False


class Metrics:
    """The runtime's metrics; it listens to every run."""

    wants_deltas = False

    def __init__(self) -> None:
        #: runs in progress, and which run each is nested in
        self._running: dict[str, str] = {}
        self.tally = tally = Tally()
        self._runs, self._failures = tally.counter("runs"), tally.counter("run_failures")
        self._tools, self._guardrails = tally.counter("tool_calls"), tally.counter("guardrail_actions")
        self._tokens, self._cost = tally.counter("tokens"), tally.counter("cost_usd")
        self._agent_tokens, self._agent_cost = tally.counter("agent_tokens"), tally.counter("agent_cost_usd")
        self._durations = tally.histogram("run_duration_seconds")
        self._steps = tally.histogram("step_duration_seconds")
        self._models = tally.histogram("model_call_duration_seconds")
        self._first = tally.histogram("time_to_first_token_seconds")
        self._calls = tally.histogram("tool_call_duration_seconds")
        self._on: dict[str, Callable[[Event], None]] = {
            "run.started": self._started,
            "run.completed": self._completed,
            "run.failed": self._failed,
            "run.cancelled": self._cancelled,
            "run.waiting": self._waiting,
            "run.resumed": self._resumed,
            "model.finished": self._model_finished,
            "model.failed": self._model_failed,
            "tool.finished": self._tool_finished,
            "guardrail.action": self._guardrail,
            "guardrails.checked": self._checked,
            "tools.listed": self._listed,
            **dict.fromkeys(_STEPS, self._step),
        }
        self._readings: list[Reading] = [
            Reading("runs_in_progress", "Runs in progress.", (), lambda: {(): len(self._running)})
        ]
        #: runs whose pattern is at work, and since when
        self._orchestrating: dict[str, float] = {}
        #: what the other processes of this server tell by `to_json`; asked for when somebody scrapes
        self.others: Callable[[], Sequence[JsonObject]] = tuple

    def add(self, reading: Reading) -> None:
        """Adds a number that is asked for when somebody scrapes."""
        self._readings.append(reading)

    def to_json(self, *, ended: bool = False) -> JsonObject:
        """Everything, for another process of the server.

        Args:
            ended: this process is at its end: what stays of it is what it has counted.
        """
        readings = (one for one in self._readings if one.counts or not ended)
        told = {one.name: [[list(key), n] for key, n in one.read().items()] for one in readings}
        return {**self.tally.to_json(), "readings": told}

    @property
    def counting(self) -> frozenset[str]:
        """The readings that never go down."""
        return frozenset(one.name for one in self._readings if one.counts)

    def send(self, event: Event) -> None:
        handle = self._on.get(event.type)
        if handle is not None:
            handle(event)

    def read(self) -> tuple[list[tuple[Reading, Mapping[Labels, float]]], Tally]:
        """The readings and what was counted, of every process of the server."""
        others = self.others()
        readings = [(reading, _joined(reading, others)) for reading in self._readings]
        if not others:
            return readings, self.tally
        everybody = Tally().add(self.tally.to_json())
        for other in others:
            everybody.add(other)
        return readings, everybody

    # -- events --------------------------------------------------------------------------------------------

    def _started(self, event: Event) -> None:
        self._running[event.run_id] = event.data.get("parent", "").partition(".")[0]

    def _resumed(self, event: Event) -> None:
        self._running[event.run_id] = ""

    def _completed(self, event: Event) -> None:
        self._running.pop(event.run_id, None)
        self._orchestrating.pop(event.run_id, None)
        self._runs["completed",] += 1
        agent, metadata = event.data["agent"], event.data["metadata"]
        self._durations[agent,].observe(metadata["latency_ms"] / 1000)
        self._spent(agent, metadata["usage"])

    def _failed(self, event: Event) -> None:
        self._failures[event.data["code"],] += 1
        self._cut_short("failed", event)

    def _cancelled(self, event: Event) -> None:
        self._cut_short("cancelled", event)

    def _cut_short(self, status: str, event: Event) -> None:
        self._running.pop(event.run_id, None)
        self._orchestrating.pop(event.run_id, None)
        self._runs[status,] += 1
        self._spent(event.data["agent"], event.data["usage"])

    def _waiting(self, event: Event) -> None:
        self._rests(event.run_id)

    def _rests(self, run_id: str) -> None:
        """A run that waits is gone from here, with the runs nested in it."""
        self._running.pop(run_id, None)
        self._orchestrating.pop(run_id, None)
        for nested in [one for one, parent in self._running.items() if parent == run_id]:
            self._rests(nested)

    def _spent(self, agent: str, usage: JsonObject) -> None:
        self._agent_tokens[agent,] += usage["input_tokens"] + usage["output_tokens"]
        self._agent_cost[agent,] += usage["cost_usd"]

    def _model_finished(self, event: Event) -> None:
        data = event.data
        provider, model, usage = data["provider"], data["model"], data["usage"]
        self._models[provider, model].observe(data["duration_ms"] / 1000)
        if data.get("first_token_ms") is not None:
            self._first[provider, model].observe(data["first_token_ms"] / 1000)
        self._used((provider, model), usage, data.get("attempts", ()))

    def _model_failed(self, event: Event) -> None:
        data = event.data
        if any(data["usage"].values()):
            self._used((data["provider"], data["model"]), data["usage"], data["attempts"])

    def _used(self, by: tuple[str, str], usage: JsonObject, attempts: Sequence[JsonObject]) -> None:
        """Books what a call has used on its model, but for what its failed tries have on theirs."""
        for attempt in attempts:
            if "usage" in attempt:
                self._book(_named(attempt["provider"]), attempt["usage"], 1)
                self._book(by, attempt["usage"], -1)
        self._book(by, usage, 1)

    def _book(self, by: tuple[str, str], usage: JsonObject, sign: int) -> None:
        (provider, model), tokens = by, self._tokens
        tokens[provider, model, "input"] += sign * usage["input_tokens"]
        tokens[provider, model, "output"] += sign * usage["output_tokens"]
        tokens[provider, model, "cached"] += sign * usage["cached_tokens"]
        self._cost[by] += sign * usage["cost_usd"]

    def _tool_finished(self, event: Event) -> None:
        name = event.data["name"]
        self._tools[name, "true" if event.data["ok"] else "false"] += 1
        self._calls[name,].observe(event.data["duration_ms"] / 1000)

    def _guardrail(self, event: Event) -> None:
        data = event.data
        self._guardrails[data["stage"], data["type"], data["action"]] += data["count"]

    def _step(self, event: Event) -> None:
        self._steps[_STEPS[event.type],].observe(event.data["duration_ms"] / 1000)

    def _listed(self, event: Event) -> None:
        self._orchestrating[event.run_id] = event.ts

    def _checked(self, event: Event) -> None:
        since = self._orchestrating.pop(event.run_id, None)
        if since is not None:  # the output rules come right behind the pattern
            self._steps["orchestration",].observe(event.ts - since - event.data["duration_ms"] / 1000)
        self._steps[f"guardrails.{event.data['stage']}",].observe(event.data["duration_ms"] / 1000)


def _joined(reading: Reading, others: Sequence[JsonObject]) -> Mapping[Labels, float]:
    """A reading of this process and of the others."""
    found = dict(reading.read())
    for other in others:
        for labels, value in other["readings"].get(reading.name, ()):
            key = tuple(labels)
            found[key] = reading.join(found[key], value) if key in found else value
    return found


def _named(provider: str) -> tuple[str, str]:
    """Provider and model of a name as it stands in attempts, `PROVIDER/MODEL`."""
    name, _, model = provider.partition("/")
    return name, model
