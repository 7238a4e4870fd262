"""Profiling: what the Tasks of a process took, as metrics (document 004, section 8.4)."""

from __future__ import annotations

from collections.abc import Callable

from astromesh.runtime.task_log import LiveTask
from astromesh.telemetry.tally import Labels, Tally
from astromesh.types import JsonObject
from astromesh.workflow.profiling import METRICS


class TaskMetrics:
    """A listener to the records of Tasks.

    Args:
        tally: what is counted into.
        wanted: the metrics that a workflow keeps, by its name.
    """

    def __init__(self, tally: Tally, wanted: Callable[[str], frozenset[str]]) -> None:
        self._tally, self._wanted = tally, wanted

    def __call__(self, live: LiveTask, record: JsonObject) -> None:
        wanted, name = self._wanted(live.row.workflow), live.row.workflow
        if record["type"] == "stage":
            self._stage(wanted, name, record["entry"])
            if not live.begun_at:
                live.begun_at = record["entry"]["started_at"]
                waited = max(live.begun_at - live.row.created_at, 0.0)
                self._observe(wanted, "queue_latency", (name,), waited)
        elif record["type"] == "end":
            took = max(record["at"] - live.row.created_at, 0.0)
            self._observe(wanted, "task_total_duration", (name, record["status"]), took)

    def _stage(self, wanted: frozenset[str], name: str, entry: JsonObject) -> None:
        took = entry["finished_at"] - entry["started_at"]
        self._observe(wanted, "node_execution_duration", (name, entry["node_id"]), took)
        if "node_execution_count" in wanted:
            counter = self._tally.counter(METRICS["node_execution_count"][1])
            counter[name, entry["node_id"], entry["status"]] += 1
        for call in entry["tool_calls"]:
            labels = (name, entry["node_id"], call["tool"])
            self._observe(wanted, "tool_invocation_duration", labels, call["duration_ms"] / 1000)

    def _observe(self, wanted: frozenset[str], metric: str, labels: Labels, seconds: float) -> None:
        if metric in wanted:
            self._tally.histogram(METRICS[metric][1])[labels].observe(seconds)
