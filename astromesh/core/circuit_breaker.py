"""The circuit breaker of a provider and model (document 001, step 8): a table of states.

    closed     calls pass; `failure_threshold` failures in a row open it. A 429 with Retry-After pauses it
    open       calls are skipped until `until`
    half_open  one call, the probe, is running; it alone decides the next state

A closed circuit that is paused skips calls until `until`. Then it admits `FIRST_AT_ONCE` calls at once, and
one more for each success, until it no longer counts them: a service that was just too busy does not get all
waiting calls in one moment. The failures in a row stay as they were.

`admits`, `enter` and `leave` are pure: the time is an argument (seconds of a monotonic clock), a circuit is a
value. Errors that the caller caused never open a circuit (`ProviderError.trips_breaker`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Literal, NamedTuple

from astromesh.errors import ProviderError, ProviderPaused, ProviderRateLimited, ProviderUnavailable
from astromesh.logs import OutageLog, get_logger
from astromesh.types import JsonObject

State = Literal["closed", "open", "half_open"]
#: how a call started. `returning`: after a pause, and counted; `probe`: from an open circuit
Entry = Literal["free", "returning", "probe"]
#: how a call ended. `repeated`: one more failure of a call that was counted; `rejected`: by the fault of the
#: caller; `throttled`: 429 with a time to wait; `abandoned`: before the provider answered
Outcome = Literal["success", "failure", "repeated", "rejected", "throttled", "abandoned"]
#: calls that run at once after a pause, and the number from which they are no longer counted
FIRST_AT_ONCE, ALL_AT_ONCE = 2, 16


class Circuit(NamedTuple):
    """One circuit at one moment.

    Args:
        failures: failures in a row.
        until: when an open circuit admits a probe, and a paused one the first calls.
        throttled: whether the provider requested the pause by a 429.
        at_once: calls that may run at once after a pause; 0: any number.
        returning: calls that run now and count for `at_once`.
    """

    state: State = "closed"
    failures: int = 0
    until: float = 0.0
    throttled: bool = False
    at_once: int = 0
    returning: int = 0


CLOSED = Circuit()


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """`routing.circuit_breaker` of providers.yaml. `recovery_timeout` in seconds."""

    failure_threshold: int = 3
    recovery_timeout: float = 60.0


def admits(circuit: Circuit, now: float) -> bool:
    """Whether a call may start now."""
    if circuit.state == "half_open" or now < circuit.until:
        return False
    return circuit.state == "open" or not circuit.at_once or circuit.returning < circuit.at_once


def enter(circuit: Circuit) -> tuple[Circuit, Entry]:
    """The circuit after an admitted call starts, and how the call has started."""
    if circuit.state != "closed":
        return circuit._replace(state="half_open"), "probe"
    if circuit.at_once:
        return circuit._replace(returning=circuit.returning + 1), "returning"
    return circuit, "free"


def leave(
    circuit: Circuit, outcome: Outcome, entry: Entry, *, now: float, rules: BreakerRules, wait: float = 0.0
) -> Circuit:
    """The circuit after a call ends.

    Args:
        circuit: as it is now, which may differ from the start of the call.
        outcome: how the call ended.
        entry: how it started; while a probe runs, other calls change nothing.
        now: monotonic seconds.
        rules: thresholds.
        wait: seconds that the provider requested, with jitter.
    """
    if entry == "returning":
        circuit = circuit._replace(returning=max(circuit.returning - 1, 0))
    if circuit.state == "half_open" and entry != "probe":
        return circuit
    if circuit.at_once and outcome == "success" and entry == "returning" and circuit.state == "closed":
        circuit = _widen(circuit)
    return _TABLE[circuit.state, outcome](circuit, now, rules, wait)


_Step = Callable[[Circuit, float, BreakerRules, float], Circuit]


def _widen(circuit: Circuit) -> Circuit:
    """Admits one more call at once; the last step ends the pause."""
    if circuit.at_once < ALL_AT_ONCE:
        return circuit._replace(at_once=circuit.at_once + 1)
    return Circuit(failures=circuit.failures)


def _stay(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    return circuit


def _close(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    return CLOSED


def _reset(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    """Forgets the failures; a success of a call that started before a pause does not end the pause."""
    return circuit._replace(failures=0) if circuit.at_once else CLOSED


def _count(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    circuit = circuit._replace(failures=circuit.failures + 1)
    if circuit.failures < rules.failure_threshold:
        return _hold(circuit, now, rules, wait)
    return Circuit("open", circuit.failures, now + max(wait, rules.recovery_timeout))


def _reopen(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    return Circuit("open", circuit.failures + 1, now + max(wait, rules.recovery_timeout))


def _hold(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    """Skips calls for the time that a failed provider requested, if any."""
    return _pause(circuit, now + wait, throttled=False) if wait else circuit


def _throttle(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    return _pause(circuit, now + wait, throttled=True)


def _pause(circuit: Circuit, until: float, *, throttled: bool) -> Circuit:
    """Extends the pause; the longest request counts."""
    if until < circuit.until:
        until, throttled = circuit.until, circuit.throttled
    return circuit._replace(until=until, throttled=throttled, at_once=FIRST_AT_ONCE)


def _postpone(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    """Postpones the next probe by at least the time that the provider requested."""
    return Circuit("open", circuit.failures, max(now + wait, circuit.until))


def _retry_probe(circuit: Circuit, now: float, rules: BreakerRules, wait: float) -> Circuit:
    """The probe got no answer; the next call is the probe."""
    return Circuit("open", circuit.failures, now)


_TABLE: dict[tuple[State, Outcome], _Step] = {
    ("closed", "success"): _reset,
    ("closed", "failure"): _count,
    ("closed", "repeated"): _hold,
    ("closed", "rejected"): _stay,
    ("closed", "throttled"): _throttle,
    ("closed", "abandoned"): _stay,
    ("open", "success"): _stay,
    ("open", "failure"): _postpone,
    ("open", "repeated"): _postpone,
    ("open", "rejected"): _stay,
    ("open", "throttled"): _postpone,
    ("open", "abandoned"): _stay,
    ("half_open", "success"): _close,
    ("half_open", "failure"): _reopen,
    ("half_open", "repeated"): _reopen,
    ("half_open", "rejected"): _close,
    ("half_open", "throttled"): _postpone,
    ("half_open", "abandoned"): _retry_probe,
}


# -- the breaker of one provider ---------------------------------------------------------------------------

_log = get_logger("astromesh.models")
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

    def enter(self, now: float) -> Entry | None:
        """How a call has started, whose end must be recorded; None if no call may start now."""
        if not admits(self.circuit, now):
            return None
        self.circuit, entry = enter(self.circuit)
        return entry

    def is_full(self, now: float) -> bool:
        """Whether only calls that are running keep another one from starting."""
        return now >= self.circuit.until and not admits(self.circuit, now)

    def seconds_until_admission(self, now: float) -> float:
        """Seconds until an open circuit admits a probe, or a pause ends; 0 if only calls are waited for."""
        return max(0.0, self.circuit.until - now)

    def skip_error(self, now: float) -> ProviderError:
        """Why a call was not admitted."""
        state, left = self.circuit.state, self.seconds_until_admission(now)
        if state == "half_open":
            return CircuitOpen("another call is probing whether it works again", provider=self._name)
        if state == "open":
            return CircuitOpen(f"its circuit is open for another {left:.0f} s", provider=self._name)
        reason = (
            f"it asked for a pause of another {left:.0f} s"
            if left
            else "its pause ends with few calls at once"
        )
        if not self.circuit.throttled:
            return CircuitOpen(reason, provider=self._name)
        return ProviderPaused(reason, provider=self._name, status=429, retry_after=left)

    def record_success(self, entry: Entry) -> None:
        """Records a call that the provider answered."""
        self._leave("success", entry, 0.0)
        if entry == "probe":
            self._openings.succeeded()
            self._refusals.succeeded()

    def record_failure(
        self, error: ProviderError, entry: Entry, *, counts: bool, now: float, wait: float
    ) -> bool:
        """Records a try that failed, and logs a circuit that opens or a provider that is misconfigured.

        Args:
            counts: whether a failure counts; the tries of one call are one failure.
            wait: seconds that the provider requested, with jitter.

        Returns:
            whether it counted as a failure.
        """
        before, outcome = self.circuit.state, _outcome_of(error, counts)
        self._leave(outcome, entry, now, wait)
        if before == "closed" and self.circuit.state == "open":
            self._openings.failed(str(error))
        elif error.upstream_status in _MISCONFIGURED:
            self._refusals.failed(str(error))
        return outcome == "failure"

    def record_abandoned(self, entry: Entry, *, now: float) -> None:
        """Records a call that ended before the provider answered."""
        self._leave("abandoned", entry, now)

    def _leave(self, outcome: Outcome, entry: Entry, now: float, wait: float = 0.0) -> None:
        self.circuit = leave(self.circuit, outcome, entry, now=now, rules=self._rules, wait=wait)

    def to_json(self, now: float) -> JsonObject:
        state, failures = self.circuit[:2]
        wait = 0.0 if state == "half_open" else self.seconds_until_admission(now)
        return {"circuit": state, "failures_in_a_row": failures, "retry_in_seconds": round(wait, 1)}


def _outcome_of(error: ProviderError, counts: bool) -> Outcome:
    if not error.trips_breaker:
        return "rejected"
    if isinstance(error, ProviderRateLimited) and error.retry_after:
        return "throttled"
    return "failure" if counts else "repeated"
