"""Statistics of runs: how many, how many failed, tokens, cost and durations, minute by minute. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from astromesh.durable.base import RunSample, RunTotals
from astromesh.types import JsonObject

#: runs that one set of statistics reads; of more, the newest count
MAX_SAMPLES = 20_000


def run_statistics(samples: Sequence[RunSample], today: RunTotals, now: float, minutes: int) -> JsonObject:
    """Returns `{"minutes": […], "total", "today"}`.

    Args:
        samples: runs of the last minutes.
        today: the sums since midnight UTC.
        now: in seconds since the epoch.
        minutes: how many minutes there are; the last one is not over.
    """
    first = int(now // 60) - minutes + 1
    by_minute: list[list[RunSample]] = [[] for _ in range(minutes)]
    for sample in samples:
        if 0 <= (place := int(sample.created_at // 60) - first) < minutes:
            by_minute[place].append(sample)
    return {
        "minutes": [{"at": (first + place) * 60, **_sums(found)} for place, found in enumerate(by_minute)],
        "total": _sums([sample for found in by_minute for sample in found]),
        "today": today._asdict(),
    }


def _sums(samples: Sequence[RunSample]) -> JsonObject:
    took = sorted((s.finished_at - s.created_at) * 1000 for s in samples if s.status == "completed")
    return {
        "runs": len(samples),
        "failed": sum(s.status == "failed" for s in samples),
        "tokens": sum(s.tokens for s in samples),
        "cost_usd": sum(s.cost_usd for s in samples),
        "p50_ms": _percentile(took, 0.50),
        "p95_ms": _percentile(took, 0.95),
    }


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Returns the nearest-rank percentile of ordered values; None without values."""
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else None
