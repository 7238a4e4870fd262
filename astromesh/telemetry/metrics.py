"""Metrics, counted from the event stream and merged over the worker processes of a server.

`COUNTERS`, `HISTOGRAMS` and the readings that the server adds are all metrics; docs/operations.md explains
each.
"""

from __future__ import annotations

import asyncio
import operator
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import orjson

from astromesh.logs import get_logger
from astromesh.telemetry.events import TERMINAL_EVENTS
from astromesh.types import Event, JsonObject

# -- values that can be added up ---------------------------------------------------------------------------

#: upper bounds in seconds
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BOUNDS = (*(str(b) for b in BUCKETS), "+Inf")
#: separates the labels of a key in JSON; no label contains it
_SEPARATOR = "\x1f"


class Durations:
    """A histogram of seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Returns cumulative counts, as the exposition format requires."""
        seen, found = 0, []
        for bound, count in zip(_BOUNDS, self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found

    def add(self, counts: list[int], total: float) -> None:
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.total += total


#: label values, in the order of the metric's label names
Labels = tuple[str, ...]
#: missing keys start at zero; half the cost of `Counter`, whose `+=` runs Python code
Counts = defaultdict[Labels, float]
Histogram = defaultdict[Labels, Durations]


class MetricValues:
    """Counters and histograms by name and labels."""

    __slots__ = ("counts", "durations")

    def __init__(self) -> None:
        self.counts: dict[str, Counts] = {}
        self.durations: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counts:
        """Returns the counter of a name. Callers keep it, so that counting costs one addition."""
        return self.counts.setdefault(name, Counts(int))

    def histogram(self, name: str) -> Histogram:
        return self.durations.setdefault(name, Histogram(Durations))

    def to_json(self) -> JsonObject:
        return {
            "counts": {
                name: {_SEPARATOR.join(labels): n for labels, n in counter.items()}
                for name, counter in self.counts.items()
            },
            "durations": {
                name: {_SEPARATOR.join(labels): [d.counts, d.total] for labels, d in found.items()}
                for name, found in self.durations.items()
            },
        }

    def add(self, values: JsonObject) -> Self:
        """Adds the values that another process returned from `to_json`."""
        for name, counts in values["counts"].items():
            counter = self.counter(name)
            for key, count in counts.items():
                counter[_split_labels(key)] += count
        for name, durations in values["durations"].items():
            histogram = self.histogram(name)
            for key, (counts, total) in durations.items():
                histogram[_split_labels(key)].add(counts, total)
        return self


def _split_labels(key: str) -> Labels:
    return tuple(key.split(_SEPARATOR))


__all__ = ["BUCKETS", "COUNTERS", "HISTOGRAMS", "Metrics"]
#: name without the prefix -> description, label names
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "runs": ("Finished runs.", ("status",)),
    "run_failures": ("Failed runs by error code.", ("code",)),
    "agent_tokens": ("Tokens of runs, with nested ones.", ("agent",)),
    "agent_cost_usd": ("Cost of runs in US dollars, with nested ones.", ("agent",)),
    "tool_calls": ("Tool calls.", ("tool", "ok")),
    "guardrail_actions": ("Actions of guardrails.", ("stage", "type", "action")),
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
#: events with the duration of a step -> name of the step
_STEPS = {
    "memory.loaded": "memory_build",
    "prompt.rendered": "prompt_render",
    "memory.persisted": "memory_persist",
}


class MetricReading(NamedTuple):
    """A number that is read at every scrape.

    Args:
        join: how the numbers of two processes of one server become one.
        is_counter: whether it never decreases; otherwise it is a gauge.
    """

    name: str
    description: str
    labels: tuple[str, ...]
    read: Callable[[], Mapping[Labels, float]]
    merge: Callable[[float, float], float] = operator.add
    is_counter: bool = False


class Metrics:
    """The metrics of a runtime; listens to every run."""

    wants_deltas = False

    def __init__(self) -> None:
        #: run in progress -> the run that it is nested in
        self._running: dict[str, str] = {}
        self.tally = tally = MetricValues()
        self._runs, self._failures = tally.counter("runs"), tally.counter("run_failures")
        self._tools, self._guardrails = tally.counter("tool_calls"), tally.counter("guardrail_actions")
        self._tokens, self._cost = tally.counter("tokens"), tally.counter("cost_usd")
        self._agent_tokens, self._agent_cost = tally.counter("agent_tokens"), tally.counter("agent_cost_usd")
        self._durations = tally.histogram("run_duration_seconds")
        self._steps = tally.histogram("step_duration_seconds")
        self._models = tally.histogram("model_call_duration_seconds")
        self._first = tally.histogram("time_to_first_token_seconds")
        self._calls = tally.histogram("tool_call_duration_seconds")
        self._handlers: dict[str, Callable[[Event], None]] = {
            **dict.fromkeys(("run.started", "run.resumed"), self._run_started),
            **dict.fromkeys(TERMINAL_EVENTS, self._run_ended),
            **dict.fromkeys(("model.finished", "model.failed"), self._model_ended),
            "tool.finished": self._tool_finished,
            "guardrail.action": self._guardrail_acted,
            "tools.listed": self._pattern_started,
            "guardrails.checked": self._guardrails_checked,
            **dict.fromkeys(_STEPS, self._step_finished),
        }
        self._readings: list[MetricReading] = [
            MetricReading("runs_in_progress", "Runs in progress.", (), lambda: {(): len(self._running)})
        ]
        #: run whose pattern is running -> start time
        self._orchestrating: dict[str, float] = {}
        #: returns the `to_json` of the other processes of this server, at every scrape
        self.other_workers: Callable[[], Sequence[JsonObject]] = tuple

    def add(self, reading: MetricReading) -> None:
        """Adds a number that is read at every scrape."""
        self._readings.append(reading)

    def to_json(self, *, ended: bool = False) -> JsonObject:
        """Returns all values, for another process of the server.

        Args:
            ended: this process ends, so only its counters remain.
        """
        readings = (one for one in self._readings if one.is_counter or not ended)
        values = {one.name: [[list(key), n] for key, n in one.read().items()] for one in readings}
        return {**self.tally.to_json(), "readings": values}

    @property
    def counter_names(self) -> frozenset[str]:
        """Names of the readings that never decrease."""
        return frozenset(one.name for one in self._readings if one.is_counter)

    def send(self, event: Event) -> None:
        handle = self._handlers.get(event.type)
        if handle is not None:
            handle(event)

    def read(self) -> tuple[list[tuple[MetricReading, Mapping[Labels, float]]], MetricValues]:
        """Returns the readings and the values of all processes of the server."""
        others = self.other_workers()
        readings = [(reading, _merge_reading(reading, others)) for reading in self._readings]
        if not others:
            return readings, self.tally
        everybody = MetricValues().add(self.tally.to_json())
        for other in others:
            everybody.add(other)
        return readings, everybody

    def leave(self, run_id: str) -> None:
        """Removes a run that waits, or that another process has, with the runs nested in it."""
        self._running.pop(run_id, None)
        self._orchestrating.pop(run_id, None)
        for nested in [one for one, parent in self._running.items() if parent == run_id]:
            self.leave(nested)

    # -- events --------------------------------------------------------------------------------------------

    def _run_started(self, event: Event) -> None:
        self._running[event.run_id] = event.data.get("parent", "").partition(".")[0]

    def _run_ended(self, event: Event) -> None:
        self._running.pop(event.run_id, None)
        self._orchestrating.pop(event.run_id, None)
        status, data = event.type.removeprefix("run."), event.data
        agent, report = data["agent"], data
        self._runs[status,] += 1
        if status == "completed":
            report = data["metadata"]
            self._durations[agent,].observe(report["latency_ms"] / 1000)
        elif status == "failed":
            self._failures[data["code"],] += 1
        usage = report["usage"]
        self._agent_tokens[agent,] += usage["input_tokens"] + usage["output_tokens"]
        self._agent_cost[agent,] += usage["cost_usd"]

    def _model_ended(self, event: Event) -> None:
        """Counts a call and its usage; the usage of failed attempts counts for their models."""
        data = event.data
        if "recorded" in data:
            return
        model, usage = (data["provider"], data["model"]), data["usage"]
        if event.type == "model.finished":
            self._models[model].observe(data["duration_ms"] / 1000)
            if data.get("first_token_ms") is not None:
                self._first[model].observe(data["first_token_ms"] / 1000)
        elif not any(usage.values()):
            return
        for attempt in data.get("attempts", ()):
            if "usage" in attempt:
                name, _, tried = attempt["provider"].partition("/")
                self._add_usage((name, tried), attempt["usage"], 1)
                self._add_usage(model, attempt["usage"], -1)
        self._add_usage(model, usage, 1)

    def _add_usage(self, by: tuple[str, str], usage: JsonObject, sign: int) -> None:
        (provider, model), tokens = by, self._tokens
        tokens[provider, model, "input"] += sign * usage["input_tokens"]
        tokens[provider, model, "output"] += sign * usage["output_tokens"]
        tokens[provider, model, "cached"] += sign * usage["cached_tokens"]
        for kind in ("reasoning", "cache_write"):
            if count := usage.get(f"{kind}_tokens"):
                tokens[provider, model, kind] += sign * count
        self._cost[by] += sign * usage["cost_usd"]

    def _tool_finished(self, event: Event) -> None:
        if "recorded" in event.data:
            return
        name = event.data["name"]
        self._tools[name, "true" if event.data["ok"] else "false"] += 1
        self._calls[name,].observe(event.data["duration_ms"] / 1000)

    def _guardrail_acted(self, event: Event) -> None:
        data = event.data
        self._guardrails[data["stage"], data["type"], data["action"]] += data["count"]

    def _step_finished(self, event: Event) -> None:
        self._steps[_STEPS[event.type],].observe(event.data["duration_ms"] / 1000)

    def _pattern_started(self, event: Event) -> None:
        self._orchestrating[event.run_id] = event.ts

    def _guardrails_checked(self, event: Event) -> None:
        since = self._orchestrating.pop(event.run_id, None)
        if since is not None:  # the output rules run directly after the pattern
            seconds = event.ts - since - event.data["duration_ms"] / 1000
            self._steps["orchestration",].observe(max(seconds, 0.0))  # the clock may have been set back
        self._steps[f"guardrails.{event.data['stage']}",].observe(event.data["duration_ms"] / 1000)


def _merge_reading(reading: MetricReading, others: Sequence[JsonObject]) -> Mapping[Labels, float]:
    """Returns a reading of this process merged with those of the others."""
    found = dict(reading.read())
    for other in others:
        for labels, value in other["readings"].get(reading.name, ()):
            key = tuple(labels)
            found[key] = reading.merge(found[key], value) if key in found else value
    return found


# -- the worker processes of one server --------------------------------------------------------------------
#
# Each worker writes its values to a file, and the one that is scraped adds the files of the others. A worker
# that ends leaves its file, so that counters never decrease; the parent empties the folder at the start.

#: seconds between two writes
WRITE_SECONDS = 1.0
log = get_logger("astromesh.telemetry")


class WorkerMetrics:
    """Shares the metrics of one process; started in its event loop.

    Args:
        folder: that all processes of the server write to.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.json"
        self._metrics = Metrics()
        self._last_written = b""
        self._writing: asyncio.Task[None] | None = None

    def start(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._metrics.other_workers = self._others
        self._writing = asyncio.create_task(self._write())

    async def stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        await asyncio.to_thread(self._write_file, orjson.dumps(self._metrics.to_json(ended=True)))

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            values = orjson.dumps(self._metrics.to_json())
            if values != self._last_written:
                self._last_written = values
                await asyncio.to_thread(self._write_file, values)

    def _write_file(self, data: bytes) -> None:
        part = self._file.with_suffix(".part")
        try:
            part.write_bytes(data)
            part.replace(self._file)
        except OSError as error:  # the next write may succeed
            log.warning("metrics_not_shared", error=str(error))

    def _others(self) -> list[JsonObject]:
        """Reads the last values of the others: small files of a folder in memory or on the local disk."""
        found = []
        for file in self._file.parent.glob("*.json"):
            if file != self._file:
                try:
                    found.append(self._read(file))
                except (OSError, orjson.JSONDecodeError) as error:
                    log.warning("metrics_not_read", file=file.name, error=str(error))
        return found

    def _read(self, file: Path) -> JsonObject:
        """Reads one file; only its counters if the process has ended."""
        values: JsonObject = orjson.loads(file.read_bytes())
        if not _process_exists(int(file.stem)):
            counting, readings = self._metrics.counter_names, values["readings"]
            values["readings"] = {name: value for name, value in readings.items() if name in counting}
        return values


def _process_exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the id belongs to another user's process by now
        return False
    return True


# -- the text exposition format of Prometheus --------------------------------------------------------------

_PREFIX = "astromesh_"


def exposition(metrics: Metrics) -> bytes:
    """Returns all metrics in the text exposition format of Prometheus."""
    from prometheus_client import generate_latest

    return generate_latest(_Families(metrics))


class _Families:
    """Metric families of the current values, a collector of Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        readings, tally = self._metrics.read()
        for reading, numbers in readings:
            kind = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
            read = kind(_PREFIX + reading.name, reading.description, labels=reading.labels)
            for key, value in numbers.items():
                read.add_metric(key, value)
            yield read
        for name, (about, labels) in COUNTERS.items():
            counter = CounterMetricFamily(_PREFIX + name, about, labels=labels)
            for key, count in tally.counter(name).items():
                counter.add_metric(key, count)
            yield counter
        for name, (about, labels) in HISTOGRAMS.items():
            family = HistogramMetricFamily(_PREFIX + name, about, labels=labels)
            for key, durations in tally.histogram(name).items():
                family.add_metric(key, durations.buckets(), durations.total)
            yield family
