"""The circuit breaker of a provider and model: a table of states (document 001, step 8; reliability.md R9).

    closed     calls pass; `failure_threshold` failures in a row open it, a 429 with Retry-After at once
    open       calls are skipped until `until`
    half_open  one call, the probe, is running; it alone decides the next state

Pure: the time is an argument (seconds of a monotonic clock), a circuit is a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

State = Literal["closed", "open", "half_open"]
#: how a call ended. `rejected`: by the fault of the caller; `throttled`: 429 with a time to wait;
#: `abandoned`: before the provider answered
Outcome = Literal["success", "failure", "rejected", "throttled", "abandoned"]


class Circuit(NamedTuple):
    """One circuit at one moment.

    Args:
        failures: failures in a row.
        until: when an open circuit admits a probe.
    """

    state: State = "closed"
    failures: int = 0
    until: float = 0.0


CLOSED = Circuit()


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """`routing.circuit_breaker` of providers.yaml. `recovery_timeout` in seconds."""

    failure_threshold: int = 3
    recovery_timeout: float = 60.0


def admits(circuit: Circuit, now: float) -> bool:
    """Whether a call may start now."""
    return circuit.state == "closed" or (circuit.state == "open" and now >= circuit.until)


def enter(circuit: Circuit) -> Circuit:
    """The circuit after an admitted call starts; from an open circuit the call is the probe."""
    return circuit if circuit.state == "closed" else circuit._replace(state="half_open")


def leave(
    circuit: Circuit, outcome: Outcome, *, probe: bool, now: float, rules: BreakerRules, wait: float = 0.0
) -> Circuit:
    """The circuit after a call ends.

    Args:
        circuit: as it is now, which may differ from the start of the call.
        outcome: how the call ended.
        probe: whether this call was the probe; while a probe runs, other calls change nothing.
        now: monotonic seconds.
        rules: thresholds.
        wait: seconds that a throttled provider asked for, with jitter.
    """
    if circuit.state == "half_open" and not probe:
        return circuit
    return _TABLE[circuit.state, outcome](circuit, now, rules, wait)


_Step = Callable[[Circuit, float, BreakerRules, float], Circuit]


def _stay(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    return circuit


def _close(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    return CLOSED


def _count(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    failures = circuit.failures + 1
    if failures < rules.failure_threshold:
        return circuit._replace(failures=failures)
    return _open(circuit, now, rules, wait)


def _open(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    return Circuit("open", circuit.failures + 1, now + rules.recovery_timeout)


def _hold(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    """Opens for at least the time that the provider asked for."""
    return Circuit("open", circuit.failures, max(now + wait, circuit.until))


def _reopen(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    """The probe got no answer; the next call is the probe."""
    return circuit._replace(state="open", until=now)


_TABLE: dict[tuple[State, Outcome], _Step] = {
    ("closed", "success"): _close,
    ("closed", "failure"): _count,
    ("closed", "rejected"): _stay,
    ("closed", "throttled"): _hold,
    ("closed", "abandoned"): _stay,
    ("open", "success"): _stay,
    ("open", "failure"): _stay,
    ("open", "rejected"): _stay,
    ("open", "throttled"): _hold,
    ("open", "abandoned"): _stay,
    ("half_open", "success"): _close,
    ("half_open", "failure"): _open,
    ("half_open", "rejected"): _close,
    ("half_open", "throttled"): _hold,
    ("half_open", "abandoned"): _reopen,
}
