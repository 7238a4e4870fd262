"""What is asked for when somebody scrapes: numbers that stand somewhere already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.metrics import Reading
from astromesh.telemetry.tally import Labels
from astromesh.telemetry.watchdog import Watchdog

#: states of a circuit breaker as a number, as alerts want them
_CIRCUITS = {"closed": 0.0, "half_open": 1.0, "open": 2.0}


def add_readings(runtime: AgentRuntime, watchdog: Watchdog) -> None:
    """Adds the readings of a server to its runtime's metrics."""
    metrics = runtime.metrics

    def waiting() -> Mapping[Labels, float]:
        found: Counter[Labels] = Counter()
        for key, seat in runtime.sessions.held.items():
            found[key.agent,] += len(seat.waiting or ())
        return found

    def circuits() -> Mapping[Labels, float]:
        if not runtime.is_open:
            return {}
        return {
            (monitor["provider"], monitor["model"]): _CIRCUITS[monitor["circuit"]]
            for monitor in runtime.opened.health.snapshot()
        }

    for reading in (
        Reading("session_queue_depth", "Runs that wait for their session.", ("agent",), waiting),
        Reading("circuit_state", "0 closed, 1 half open, 2 open.", ("provider", "model"), circuits, max),
        Reading(
            "event_loop_lag_seconds",
            "The most that the event loop was late in the last 15 seconds.",
            (),
            lambda: {(): watchdog.worst()},
            max,
        ),
        Reading(
            "event_loop_blocks",
            "How often something held the event loop for over 100 ms.",
            (),
            lambda: {(): watchdog.blocks},
            counts=True,
        ),
        Reading(
            "workflow_tasks",
            "Tasks in progress by state: queued or running.",
            ("workflow", "state"),
            lambda: runtime.workflows.tasks.in_progress() if runtime.has_workflows else {},
        ),
        Reading(
            "workflow_stages_in_progress",
            "Stages that run now.",
            ("workflow",),
            lambda: runtime.workflows.loaded.stages_in_progress() if runtime.has_workflows else {},
        ),
        Reading(
            "traces_dropped",
            "Runs that were not exported by OTLP.",
            (),
            lambda: {(): runtime.traces_dropped},
            counts=True,
        ),
    ):
        metrics.add(reading)
