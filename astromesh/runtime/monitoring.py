"""Readiness checks and gauges of a running server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from astromesh.errors import AstromeshError
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.metrics import Labels, MetricReading
from astromesh.telemetry.watchdog import Watchdog

#: states of a circuit breaker as a number, as alerts want them
_CIRCUIT_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0}


def add_gauges(runtime: AgentRuntime, watchdog: Watchdog) -> None:
    """Adds the readings of a server to its runtime's metrics."""
    metrics = runtime.metrics

    def waiting() -> Mapping[Labels, float]:
        found: Counter[Labels] = Counter()
        for key, lock in runtime.runner.sessions.active.items():
            found[key.agent,] += len(lock.waiting or ())
        return found

    def circuits() -> Mapping[Labels, float]:
        if not runtime.is_open:
            return {}
        return {
            (monitor["provider"], monitor["model"]): _CIRCUIT_STATES[monitor["circuit"]]
            for monitor in runtime.state.health.snapshot()
        }

    for reading in (
        MetricReading("session_queue_depth", "Runs that wait for their session.", ("agent",), waiting),
        MetricReading(
            "circuit_state", "0 closed, 1 half open, 2 open.", ("provider", "model"), circuits, max
        ),
        MetricReading(
            "event_loop_lag_seconds",
            "The most that the event loop was late in the last 15 seconds.",
            (),
            lambda: {(): watchdog.worst()},
            max,
        ),
        MetricReading(
            "event_loop_blocks",
            "How often something held the event loop for over 100 ms.",
            (),
            lambda: {(): watchdog.blocks},
            is_counter=True,
        ),
        MetricReading(
            "workflow_tasks",
            "Tasks in progress by state: queued or running.",
            ("workflow", "state"),
            lambda: runtime.workflows.tasks.in_progress() if runtime.has_workflows else {},
        ),
        MetricReading(
            "workflow_stages_in_progress",
            "Stages that run now.",
            ("workflow",),
            lambda: runtime.workflows.loaded.stages_in_progress() if runtime.has_workflows else {},
        ),
        MetricReading(
            "traces_dropped",
            "Runs that were not exported by OTLP.",
            (),
            lambda: {(): runtime.runner.traces_dropped},
            is_counter=True,
        ),
    ):
        metrics.add(reading)


# Whether what the agents need answers: asked by `GET /health/ready` and by `astromesh doctor`.

#: seconds that each store and provider gets
CHECK_TIMEOUT_SECONDS = 3.0


class CheckResult(NamedTuple):
    """What a store or provider said.

    Args:
        code: `ok`, `timeout`, `circuit_open` of a provider whose last calls failed though it answers now, or
            the error's stable code, which is safe to show to anybody.
        detail: the error in words, or what could not be asked, for the operator.
    """

    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """What was found.

    Args:
        answers: by `store:…` and `provider:…`.
        without_model: agents none of whose models answers.
        unavailable: agents that cannot run, because of their own file or of what could not be opened.
        idle: no agent can run, though some should.
    """

    results: Mapping[str, CheckResult]
    agents_without_model: tuple[str, ...]
    agents_unavailable: tuple[str, ...] = ()
    all_agents_broken: bool = False

    @property
    def ready(self) -> bool:
        """Every store answers, and for each agent a model. One that its own file breaks stops no others."""
        stores = (answer for name, answer in self.results.items() if name.startswith("store:"))
        return not (self.all_agents_broken or self.agents_without_model) and all(
            answer.code == "ok" for answer in stores
        )


async def check_readiness(runtime: AgentRuntime) -> Readiness:
    """Asks all stores and providers at once."""
    checks = dict(runtime.state.checks)  # more may be opened meanwhile
    found = await asyncio.gather(*(_check(ping) for ping in checks.values()))
    answers = dict(zip(checks, found, strict=True))
    working = {name for name, answer in answers.items() if answer.code == "ok"}
    without = tuple(
        name
        for name, agent in runtime.agents.items()
        if not any(f"provider:{model}" in working for model in agent.model_names)
    )
    answers |= _with_open_circuits(runtime, answers)
    broken = tuple(runtime.broken)
    return Readiness(answers, without, broken, all_agents_broken=bool(broken) and not runtime.agents)


def _with_open_circuits(runtime: AgentRuntime, answers: Mapping[str, CheckResult]) -> dict[str, CheckResult]:
    """Providers that answer and are left alone: that alone takes no server out of the balancer."""
    found = {}
    for state in runtime.state.health.snapshot():
        name = f"provider:{state['name']}"
        if state["circuit"] != "closed" and name in answers and answers[name].code == "ok":
            found[name] = CheckResult("circuit_open", f"its last calls failed: {state['last_error']}")
    return found


async def _check(ping: Callable[[], Awaitable[str | None]]) -> CheckResult:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            unasked = await ping()
    except TimeoutError:
        return CheckResult("timeout", f"no answer within {CHECK_TIMEOUT_SECONDS:g} s")
    except AstromeshError as error:
        return CheckResult(error.code, str(error))
    return CheckResult("ok", unasked or "")
