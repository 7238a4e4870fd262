"""Metrics from events: names, labels, sums over processes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import orjson

from astromesh.telemetry.metrics import (
    COUNTERS,
    HISTOGRAMS,
    MetricReading,
    Metrics,
    WorkerMetrics,
    exposition,
)
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
    text = exposition(metrics).decode()
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
    told = orjson.loads(orjson.dumps(second.to_json()))
    first.other_workers = lambda: [told]
    found = lines(first)
    assert found['astromesh_runs_total{status="completed"}'] == 2
    assert found['astromesh_run_duration_seconds_sum{agent="a"}'] == 0.1
    assert found['astromesh_run_duration_seconds_bucket{agent="a",le="0.05"}'] == 2
    assert lines(second)['astromesh_runs_total{status="completed"}'] == 1


def test_every_name_has_its_family_before_anything_has_happened() -> None:
    metrics = Metrics()
    metrics.add(MetricReading("odd", "A number.", ("kind",), lambda: {("x",): 3.0}))
    text = exposition(metrics).decode()
    for name in (*COUNTERS, *HISTOGRAMS, "odd"):
        assert f"# TYPE astromesh_{name}" in text
    assert 'astromesh_odd{kind="x"} 3.0' in text


def one_of(wanted: Metrics, lag: float, dropped: float, running: int) -> Metrics:
    for number in range(running):
        wanted.send(Event(f"run_{number}", 1, 0.0, "run.started", {}))
    wanted.add(MetricReading("lag_seconds", "Lag.", (), lambda: {(): lag}, max))
    wanted.add(MetricReading("dropped", "Lost.", ("kind",), lambda: {("x",): dropped}, is_counter=True))
    return wanted


def test_readings_of_other_processes_are_joined_each_in_its_own_way() -> None:
    """The worst lag, the sum of what runs and of what was lost; what only counts is a counter by name."""
    first, second = one_of(Metrics(), 0.1, 3, 2), one_of(Metrics(), 0.4, 4, 5)
    first.other_workers = lambda: [orjson.loads(orjson.dumps(second.to_json()))]
    found = lines(first)
    assert found["astromesh_lag_seconds"] == 0.4
    assert found["astromesh_runs_in_progress"] == 7
    assert found['astromesh_dropped_total{kind="x"}'] == 7


async def test_of_a_process_that_is_gone_only_what_it_counted_stays(tmp_path: Path) -> None:
    """One that ended says so itself; one that was killed is found out by its id."""
    gone = one_of(Metrics(), 0.4, 4, 5)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f"{dead.pid}.json").write_bytes(orjson.dumps(gone.to_json()))
    (tmp_path / "0.json").write_bytes(orjson.dumps(gone.to_json(ended=True)))
    metrics, tallies = one_of(Metrics(), 0.1, 1, 1), WorkerMetrics(tmp_path)
    tallies.start(metrics)
    try:
        found = lines(metrics)
    finally:
        await tallies.stop()
    assert found["astromesh_lag_seconds"] == 0.1
    assert found["astromesh_runs_in_progress"] == 1
    assert found['astromesh_dropped_total{kind="x"}'] == 9


def test_the_time_of_the_pattern_is_a_step() -> None:
    metrics = Metrics()
    metrics.send(Event("run_1", 1, 10.0, "tools.listed", {"count": 0}))
    about = {"stage": "output", "actions": 0, "duration_ms": 0.0}
    metrics.send(Event("run_1", 2, 10.5, "guardrails.checked", about))
    assert lines(metrics)['astromesh_step_duration_seconds_sum{step="orchestration"}'] == 0.5
    metrics.send(Event("run_3", 1, 10.0, "tools.listed", {"count": 0}))
    metrics.send(Event("run_3", 2, 5.0, "guardrails.checked", about))
    assert lines(metrics)['astromesh_step_duration_seconds_sum{step="orchestration"}'] == 0.5
    metrics.send(Event("run_2", 1, 10.0, "tools.listed", {"count": 0}))
    send(metrics, "run.failed", code="internal", agent="a", usage=USAGE)
    assert lines(metrics)['astromesh_step_duration_seconds_count{step="orchestration"}'] == 2


def test_a_run_that_waited_and_goes_on_is_in_progress_once() -> None:
    """Whoever takes a run up counts it again, in any process; what was nested in it rests with it."""
    here, elsewhere = Metrics(), Metrics()
    send(here, "run.started")
    here.send(Event("run_2", 1, 0.0, "run.started", {"parent": "run_1.call_1"}))
    assert lines(here)["astromesh_runs_in_progress"] == 2
    here.leave("run_1")
    assert lines(here)["astromesh_runs_in_progress"] == 0
    for metrics in (here, elsewhere):
        send(metrics, "run.resumed", segment=2)
        assert lines(metrics)["astromesh_runs_in_progress"] == 1
        metrics.send(Event("run_2", 9, 0.0, "run.failed", {"code": "internal", "agent": "b", "usage": USAGE}))
        send(metrics, "run.completed", agent="a", metadata={"latency_ms": 50, "usage": USAGE})
        assert lines(metrics)["astromesh_runs_in_progress"] == 0
