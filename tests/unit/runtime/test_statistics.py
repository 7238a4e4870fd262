"""Statistics of runs, minute by minute."""

from __future__ import annotations

from astromesh.durable.base import RunSample, RunTotals
from astromesh.runtime.runs import run_statistics

NOW = 60_000_030.0


def sample(ago: float, *, took: float = 1.0, status: str = "completed", tokens: int = 10) -> RunSample:
    ended = 0.0 if status == "running" else NOW - ago + took
    return RunSample(NOW - ago, ended, status, tokens, 0.25)  # type: ignore[arg-type]


def test_runs_count_in_the_minute_in_which_they_began() -> None:
    samples = [sample(0), sample(29), sample(31, status="failed"), sample(1000)]
    found = run_statistics(samples, RunTotals(9, 1, 90, 2.0), NOW, 2)
    assert [(one["at"], one["runs"], one["failed"]) for one in found["minutes"]] == [
        (59_999_940, 1, 1),
        (60_000_000, 2, 0),
    ]
    assert (found["total"]["runs"], found["total"]["tokens"], found["total"]["cost_usd"]) == (3, 30, 0.75)
    assert found["today"] == {"runs": 9, "failed": 1, "tokens": 90, "cost_usd": 2.0}


def test_durations_are_those_of_completed_runs() -> None:
    samples = [sample(1, took=n / 100) for n in range(1, 101)]
    total = run_statistics([*samples, sample(1, took=99, status="failed")], RunTotals(), NOW, 1)["total"]
    assert (total["p50_ms"], total["p95_ms"]) == (500.0, 950.0)


def test_without_runs_there_are_no_durations() -> None:
    total = run_statistics([sample(1, status="running")], RunTotals(), NOW, 1)["total"]
    assert (total["runs"], total["p50_ms"], total["p95_ms"]) == (1, None, None)
