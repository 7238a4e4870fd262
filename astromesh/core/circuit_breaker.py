"""The circuit breaker of a provider and model (document 001, step 8): a table of states.

    closed     calls pass; `failure_threshold` failures in a row open it, a 429 with Retry-After at once
    open       calls are skipped until `until`
    half_open  one call, the probe, is running; it alone decides the next state

`admits`, `enter` and `leave` are pure: the time is an argument (seconds of a monotonic clock), a circuit is a
value. Errors that the caller caused never open a circuit (`ProviderError.trips_breaker`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Literal, NamedTuple

import structlog

from astromesh.errors import ProviderError, ProviderUnavailable
from astromesh.telemetry.logs import OutageLog
from astromesh.types import JsonObject

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
        wait: seconds that a throttled provider requested, with jitter.
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
    """Opens for at least the time that the provider requested."""
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


# -- the breaker of one provider ---------------------------------------------------------------------------

_log = structlog.get_logger("astromesh.models")
#: statuses that only the operator can fix: key, account, address, name of the model
_MISCONFIGURED = frozenset({401, 402, 403, 404, 405, 407, 410})


class CircuitOpen(ProviderUnavailable):
    """The router skips a provider."""

    code = "circuit_open"


class CircuitBreaker:
    """The circuit of one provider and model, and the log of its outages.

    Args:
        name: the provider, for the log.
        now: monotonic seconds, for the log.
    """

    __slots__ = ("_name", "_openings", "_refusals", "_rules", "circuit")

    def __init__(self, name: str, rules: BreakerRules, now: Callable[[], float] = monotonic) -> None:
        self._name, self._rules = name, rules
        self.circuit = CLOSED
        self._openings = OutageLog(_log, "circuit_opened", "circuit_closed", now, provider=name)
        self._refusals = OutageLog(_log, "provider_refuses", "provider_answers", now, provider=name)

    def admit(self, now: float) -> bool:
        """Whether a call may start now; if so, it has started, and its end must be recorded."""
        if not admits(self.circuit, now):
            return False
        self.circuit = enter(self.circuit)
        return True

    @property
    def probing(self) -> bool:
        """Whether the probe is running; right after `admit`: whether that call is the probe."""
        return self.circuit.state == "half_open"

    def seconds_until_probe(self, now: float) -> float:
        """Seconds until an open circuit admits a probe; 0 while a probe is running."""
        return max(0.0, self.circuit.until - now)

    def skip_error(self, now: float) -> CircuitOpen:
        """Why a call was not admitted."""
        reason = f"its circuit is open for another {self.seconds_until_probe(now):.0f} s"
        if self.probing:
            reason = "another call is probing whether it works again"
        return CircuitOpen(reason, provider=self._name)

    def record_success(self, *, probe: bool) -> None:
        """Records a call that the provider answered."""
        self._leave("success", probe, 0.0)
        if probe:
            self._openings.succeeded()
            self._refusals.succeeded()

    def record_failure(
        self, error: ProviderError, *, probe: bool, counts: bool, now: float, wait: float
    ) -> None:
        """Records a call that failed, and logs a circuit that opens or a provider that is misconfigured.

        Args:
            counts: whether this is a failure of its own; repeated tries of one call are one failure.
            wait: seconds that the provider requested, with jitter.
        """
        outcome: Outcome = "failure" if counts else "abandoned"
        if not error.trips_breaker:
            outcome = "rejected"
        elif error.retry_after:
            outcome = "throttled"
        before = self.circuit.state
        self._leave(outcome, probe, now, wait)
        if before == "closed" and self.circuit.state == "open":
            self._openings.failed(str(error))
        elif error.upstream_status in _MISCONFIGURED:
            self._refusals.failed(str(error))

    def record_abandoned(self, *, probe: bool, now: float) -> None:
        """Records a call that ended before the provider answered."""
        self._leave("abandoned", probe, now)

    def _leave(self, outcome: Outcome, probe: bool, now: float, wait: float = 0.0) -> None:
        self.circuit = leave(self.circuit, outcome, probe=probe, now=now, rules=self._rules, wait=wait)

    def to_json(self, now: float) -> JsonObject:
        state, failures, _ = self.circuit
        wait = self.seconds_until_probe(now) if state == "open" else 0.0
        return {"circuit": state, "failures_in_a_row": failures, "retry_in_seconds": round(wait, 1)}
