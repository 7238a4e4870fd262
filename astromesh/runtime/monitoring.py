"""A running server: its gauges, its readiness checks, and the faults of its configuration."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from astromesh.errors import AgentNotFoundError, AstromeshError, InvalidManifest
from astromesh.runtime.bootstrap import relative_fault
from astromesh.runtime.config_loader import manifest_text
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.metrics import Labels, MetricReading
from astromesh.telemetry.watchdog import Watchdog
from astromesh.text import did_you_mean

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
            "Longest delay of the event loop in the last 15 seconds.",
            (),
            lambda: {(): watchdog.worst()},
            max,
        ),
        MetricReading(
            "event_loop_blocks",
            "Blocks of the event loop for more than 100 ms.",
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


# -- readiness: for `GET /health/ready` and `astromesh doctor` -----------------------------------------------

#: seconds in which each store and provider must answer
CHECK_TIMEOUT_SECONDS = 3.0


class CheckResult(NamedTuple):
    """The result of checking a store or provider.

    Args:
        code: `ok`, `timeout`, `circuit_open` for a provider that answers but whose last calls failed, or the
            stable code of the error, which anybody may see.
        detail: The error in words, or what could not be checked, for the operator.
    """

    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The results of all checks.

    Args:
        results: By `store:…` and `provider:…`.
        agents_without_model: Agents none of whose models answers.
        agents_unavailable: Agents that cannot run because of their file, or of what could not be opened.
        all_agents_broken: Whether no agent can run, though some are configured.
    """

    results: Mapping[str, CheckResult]
    agents_without_model: tuple[str, ...]
    agents_unavailable: tuple[str, ...] = ()
    all_agents_broken: bool = False

    @property
    def ready(self) -> bool:
        """Whether every store answers, what places durable runs, and a model of each agent that can run."""
        stores = (answer for name, answer in self.results.items() if name.startswith(("store:", "durable:")))
        return not (self.all_agents_broken or self.agents_without_model) and all(
            answer.code == "ok" for answer in stores
        )


async def check_readiness(runtime: AgentRuntime) -> Readiness:
    """Checks all stores and providers concurrently."""
    checks = dict(runtime.state.checks)  # others may open meanwhile
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
    """Returns the providers that answer but have an open circuit: these servers stay in the balancer."""
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


class ListedFault(NamedTuple):
    severity: Literal["error", "warning"]
    fault: InvalidManifest


class ShownManifest(NamedTuple):
    """The manifest of an agent.

    Args:
        file: relative to the folder of the configuration; empty: the agent was declared in Python.
        source: its text as it was loaded, without literal API keys; empty: there is none.
    """

    file: str
    source: str
    faults: tuple[ListedFault, ...]


def configuration_faults(runtime: AgentRuntime) -> list[ListedFault]:
    """Returns the faults of all files by file and place.

    Those of workflows are there only while a changed file has them and its last good version stays in use. A
    file that has changed, and that only a restart applies, is a warning.
    """
    configuration = runtime.state.configuration
    errors = [fault for faults in runtime.broken.values() for fault in faults]
    errors += [fault for faults in configuration.unusable.values() for fault in faults]
    errors += runtime.state.rejected
    found = [ListedFault("error", relative_fault(configuration.folder, fault)) for fault in errors]
    warnings = (*configuration.warnings, *runtime.state.outdated)
    found += [ListedFault("warning", relative_fault(configuration.folder, w)) for w in warnings]
    unique = {str(one.fault): one for one in found}
    return sorted(unique.values(), key=lambda one: (one.fault.file, one.fault.line, one.fault.column))


def agent_manifest(runtime: AgentRuntime, name: str) -> ShownManifest:
    """Raises: AgentNotFoundError: there is no such agent."""
    state = runtime.state
    folder, known = state.configuration.folder, state.configuration.agents.get(name)
    broken = runtime.broken.get(name, ())
    if known is None and not broken:
        raise AgentNotFoundError(name, did_you_mean(name, state.agents) or "GET /v1/agents lists them.")
    file = str(known.file) if known is not None else next((f.file for f in broken if f.file), "")
    file = file.removeprefix(f"{folder}/")
    faults = tuple(one for one in configuration_faults(runtime) if one.fault.file == file)
    source = ""
    if (agent := state.agents.get(name)) is not None:
        source = str(agent.snapshot.get("source", ""))
    elif file:
        source = manifest_text(folder / file)
    return ShownManifest(file if source else "", source, faults)
