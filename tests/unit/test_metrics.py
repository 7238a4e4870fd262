"""Metrics from events: names, labels, sums over processes."""

from __future__ import annotations

from typing import Any

import orjson

from astromesh.telemetry.metrics import COUNTERS, HISTOGRAMS, Gauge, Metrics
from astromesh.types import Event

USAGE = {"input_tokens": 10, "output_tokens": 2, "cached_tokens": 1, "cost_usd": 0.5}


def send(metrics: Metrics, kind: str, **data: Any) -> None:
    metrics.send(Event("run_1", 1, 0.0, kind, data))


def one_run(metrics: Metrics) -> None:
    send(metrics, "run.started")
    send(metrics, "guardrails.checked", stage="input", actions=0, duration_ms=1.0)
    send(metrics, "guardrail.action", stage="input", type="pii_detection", action="redact", count=2)
    send(metrics, "memory.loaded", duration_ms=2.0)
    send(metrics, "model.finished", provider="p", model="m", usage=USAGE, duration_ms=30, first_token_ms=7)
    send(metrics, "tool.finished", name="look", ok=False, duration_ms=3.0)
    send(metrics, "run.completed", agent="a", metadata={"latency_ms": 50, "usage": USAGE})


def lines(metrics: Metrics) -> dict[str, float]:
    text = metrics.render().decode()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in text.splitlines() if line[:1] != "#")
    }


def test_each_event_counts() -> None:
    metrics = Metrics()
    one_run(metrics)
    send(metrics, "run.started")
    send(metrics, "run.failed", code="internal", agent="a", usage=USAGE)
    send(metrics, "run.started")
    found = lines(metrics)
    assert found['astromesh_runs_total{status="completed"}'] == 1
    assert found['astromesh_run_failures_total{code="internal"}'] == 1
    assert found["astromesh_runs_in_progress"] == 1
    assert found['astromesh_agent_tokens_total{agent="a"}'] == 24
    assert found['astromesh_tokens_total{direction="cached",model="m",provider="p"}'] == 1
    assert found['astromesh_guardrail_actions_total{action="redact",stage="input",type="pii_detection"}'] == 2
    assert found['astromesh_tool_calls_total{ok="false",tool="look"}'] == 1
    for name, label in (
        ("run_duration_seconds", 'agent="a"'),
        ("step_duration_seconds", 'step="guardrails.input"'),
        ("step_duration_seconds", 'step="memory_build"'),
        ("model_call_duration_seconds", 'model="m",provider="p"'),
        ("time_to_first_token_seconds", 'model="m",provider="p"'),
        ("tool_call_duration_seconds", 'tool="look"'),
    ):
        assert found[f"astromesh_{name}_count{{{label}}}"] == 1
    assert found['astromesh_time_to_first_token_seconds_sum{model="m",provider="p"}'] == 0.007


def test_the_numbers_of_other_processes_are_added() -> None:
    first, second = Metrics(), Metrics()
    one_run(first)
    one_run(second)
    told = orjson.loads(orjson.dumps(second.tally.to_json()))
    first.others = lambda: [told]
    found = lines(first)
    assert found['astromesh_runs_total{status="completed"}'] == 2
    assert found['astromesh_run_duration_seconds_sum{agent="a"}'] == 0.1
    assert found['astromesh_run_duration_seconds_bucket{agent="a",le="0.05"}'] == 2
    assert lines(second)['astromesh_runs_total{status="completed"}'] == 1


def test_every_name_has_its_family_before_anything_has_happened() -> None:
    metrics = Metrics()
    metrics.gauge(Gauge("odd", "A number.", ("kind",), lambda: {("x",): 3.0}))
    text = metrics.render().decode()
    for name in (*COUNTERS, *HISTOGRAMS, "odd"):
        assert f"# TYPE astromesh_{name}" in text
    assert 'astromesh_odd{kind="x"} 3.0' in text
