"""Prometheus metrics, counted from the event stream.

Runs touch plain numbers, a tenth of a microsecond each; the client library makes metric families of them only
when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from astromesh.types import Event, JsonObject

#: upper bounds in seconds
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BOUNDS = (*(str(b) for b in BUCKETS), "+Inf")


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
        """Cumulative, as the exposition format wants them."""
        seen, found = 0, []
        for bound, count in zip(_BOUNDS, self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found


class Calls:
    """What one model was asked and what it cost."""

    __slots__ = ("cached", "cost", "durations", "input", "output")

    def __init__(self) -> None:
        self.durations = Durations()
        self.input = self.output = self.cached = 0
        self.cost = 0.0


class Spent:
    """What the runs of one agent have used, with those that they started."""

    __slots__ = ("cost", "tokens")

    def __init__(self) -> None:
        self.tokens, self.cost = 0, 0.0


class Metrics(Collector):
    """The runtime's metrics; it listens to every run. One registry each, so that two runtimes do not mix."""

    wants_deltas = False

    def __init__(self) -> None:
        self.running = 0
        self.finished: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.tools: Counter[tuple[str, bool]] = Counter()
        self.guardrails: Counter[tuple[str, str, str]] = Counter()
        self.runs: dict[str, Durations] = {}
        self.models: dict[tuple[str, str], Calls] = {}
        self.agents: dict[str, Spent] = {}
        self._on: dict[str, Callable[[Event], None]] = {
            "run.started": self._started,
            "run.completed": self._completed,
            "run.failed": self._failed,
            "run.cancelled": self._cancelled,
            "model.finished": self._model_finished,
            "tool.finished": self._tool_finished,
            "guardrail.action": self._guardrail,
        }
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def send(self, event: Event) -> None:
        handle = self._on.get(event.type)
        if handle is not None:
            handle(event)

    def render(self) -> bytes:
        """The text exposition format of Prometheus."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Metric families of the present numbers."""
        yield GaugeMetricFamily("astromesh_runs_in_progress", "Runs in progress.", self.running)
        yield _counter(
            "astromesh_runs", "Finished runs.", ["status"], {(k,): v for k, v in self.finished.items()}
        )
        failures = {(code,): count for code, count in self.failures.items()}
        yield _counter("astromesh_run_failures", "Failed runs by error code.", ["code"], failures)
        latencies = {(agent,): durations for agent, durations in self.runs.items()}
        yield _histogram("astromesh_run_duration_seconds", "Time of a run.", ["agent"], latencies)
        yield from self._collect_models()
        tokens = {(agent,): spent.tokens for agent, spent in self.agents.items()}
        yield _counter("astromesh_agent_tokens", "Tokens of runs, with nested ones.", ["agent"], tokens)
        costs = {(agent,): spent.cost for agent, spent in self.agents.items()}
        about = "Cost of runs in US dollars, with nested ones."
        yield _counter("astromesh_agent_cost_usd", about, ["agent"], costs)
        calls = {(tool, str(ok).lower()): count for (tool, ok), count in self.tools.items()}
        yield _counter("astromesh_tool_calls", "Tool calls.", ["tool", "ok"], calls)
        labels = ["stage", "type", "action"]
        yield _counter("astromesh_guardrail_actions", "What guardrails did.", labels, self.guardrails)

    def _collect_models(self) -> Iterable[Metric]:
        labels = ["provider", "model"]
        durations = {key: calls.durations for key, calls in self.models.items()}
        yield _histogram("astromesh_model_call_duration_seconds", "Time of a model call.", labels, durations)
        tokens = {
            (*key, direction): getattr(calls, direction)
            for key, calls in self.models.items()
            for direction in ("input", "output", "cached")
        }
        yield _counter("astromesh_tokens", "Tokens by direction.", [*labels, "direction"], tokens)
        costs = {key: calls.cost for key, calls in self.models.items()}
        yield _counter("astromesh_cost_usd", "Cost in US dollars.", labels, costs)

    # -- events --------------------------------------------------------------------------------------------

    def _started(self, event: Event) -> None:
        self.running += 1

    def _completed(self, event: Event) -> None:
        self.running -= 1
        self.finished["completed"] += 1
        agent = event.data["agent"]
        durations = self.runs.get(agent)
        if durations is None:
            durations = self.runs[agent] = Durations()
        durations.observe(event.data["metadata"]["latency_ms"] / 1000)
        self._spent(agent, event.data["metadata"]["usage"])

    def _failed(self, event: Event) -> None:
        self.running -= 1
        self.finished["failed"] += 1
        self.failures[event.data["code"]] += 1
        self._spent(event.data["agent"], event.data["usage"])

    def _cancelled(self, event: Event) -> None:
        self.running -= 1
        self.finished["cancelled"] += 1
        self._spent(event.data["agent"], event.data["usage"])

    def _spent(self, agent: str, usage: JsonObject) -> None:
        spent = self.agents.get(agent)
        if spent is None:
            spent = self.agents[agent] = Spent()
        spent.tokens += usage["input_tokens"] + usage["output_tokens"]
        spent.cost += usage["cost_usd"]

    def _model_finished(self, event: Event) -> None:
        data = event.data
        key = (data["provider"], data["model"])
        calls = self.models.get(key)
        if calls is None:
            calls = self.models[key] = Calls()
        usage = data["usage"]
        calls.durations.observe(data["duration_ms"] / 1000)
        calls.input += usage["input_tokens"]
        calls.output += usage["output_tokens"]
        calls.cached += usage["cached_tokens"]
        calls.cost += usage["cost_usd"]

    def _tool_finished(self, event: Event) -> None:
        self.tools[event.data["name"], event.data["ok"]] += 1

    def _guardrail(self, event: Event) -> None:
        data = event.data
        self.guardrails[data["stage"], data["type"], data["action"]] += data["count"]


def _counter(name: str, about: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _histogram(name: str, about: str, labels: list[str], values: Mapping[Any, Durations]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    for key, durations in values.items():
        family.add_metric(list(key), durations.buckets(), durations.total)
    return family
