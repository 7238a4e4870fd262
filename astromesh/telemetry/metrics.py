"""Prometheus metrics, counted from the event stream."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from astromesh.types import Event

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The runtime's metrics; it listens to every run. One registry each, so that two runtimes do not mix."""

    wants_deltas = False

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._running = Gauge("astromesh_runs_in_progress", "Runs in progress.", registry=registry)
        self._runs = Counter("astromesh_runs", "Finished runs.", ["status"], registry=registry)
        self._failures = Counter(
            "astromesh_run_failures", "Failed runs by error code.", ["code"], registry=registry
        )
        self._latency = Histogram(
            "astromesh_run_duration_seconds", "Time of a run.", ["agent"], buckets=_SECONDS, registry=registry
        )
        self._model = Histogram(
            "astromesh_model_call_duration_seconds",
            "Time of a model call.",
            ["provider", "model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "astromesh_tokens", "Tokens by direction.", ["provider", "model", "direction"], registry=registry
        )
        self._cost = Counter(
            "astromesh_cost_usd", "Cost in US dollars.", ["provider", "model"], registry=registry
        )
        self._tools = Counter("astromesh_tool_calls", "Tool calls.", ["tool", "ok"], registry=registry)
        self._guardrails = Counter(
            "astromesh_guardrail_actions",
            "What guardrails did.",
            ["stage", "type", "action"],
            registry=registry,
        )
        self._on: dict[str, Callable[[Event], None]] = {
            "run.started": self._started,
            "run.completed": self._completed,
            "run.failed": self._failed,
            "run.cancelled": self._cancelled,
            "model.finished": self._model_finished,
            "tool.finished": self._tool_finished,
            "guardrail.action": self._guardrail,
        }
        # the client library looks labels up under a lock; what runs touch is kept here
        self._models: dict[tuple[str, str], tuple[Histogram, Counter, Counter, Counter]] = {}
        self._agents: dict[str, Histogram] = {}
        self._finished = {
            status: self._runs.labels(status) for status in ("completed", "failed", "cancelled")
        }

    def send(self, event: Event) -> None:
        handle = self._on.get(event.type)
        if handle is not None:
            handle(event)

    def render(self) -> bytes:
        """The text exposition format of Prometheus."""
        return generate_latest(self.registry)

    def _started(self, event: Event) -> None:
        self._running.inc()

    def _completed(self, event: Event) -> None:
        self._running.dec()
        self._finished["completed"].inc()
        agent = event.data["agent"]
        latency = self._agents.get(agent)
        if latency is None:
            latency = self._agents[agent] = self._latency.labels(agent)
        latency.observe(event.data["metadata"]["latency_ms"] / 1000)

    def _failed(self, event: Event) -> None:
        self._running.dec()
        self._finished["failed"].inc()
        self._failures.labels(event.data["code"]).inc()

    def _cancelled(self, event: Event) -> None:
        self._running.dec()
        self._finished["cancelled"].inc()

    def _model_finished(self, event: Event) -> None:
        data = event.data
        key = (data["provider"], data["model"])
        metrics = self._models.get(key)
        if metrics is None:
            metrics = self._models[key] = (
                self._model.labels(*key),
                self._tokens.labels(*key, "input"),
                self._tokens.labels(*key, "output"),
                self._cost.labels(*key),
            )
        usage = data["usage"]
        metrics[0].observe(data["duration_ms"] / 1000)
        metrics[1].inc(usage["input_tokens"])
        metrics[2].inc(usage["output_tokens"])
        metrics[3].inc(usage["cost_usd"])

    def _tool_finished(self, event: Event) -> None:
        self._tools.labels(event.data["name"], str(event.data["ok"]).lower()).inc()

    def _guardrail(self, event: Event) -> None:
        data = event.data
        self._guardrails.labels(data["stage"], data["type"], data["action"]).inc(data["count"])
