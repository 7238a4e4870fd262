"""The health of providers: one record per provider and model, shared by all agents of the process."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import structlog

from astromesh.core.circuit_breaker import CLOSED, BreakerRules, Circuit, Outcome, admits, enter, leave
from astromesh.errors import ProviderError
from astromesh.providers.base import Provider
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.telemetry.logs import OutageLog
from astromesh.tokens import TokenCorrection
from astromesh.types import JsonObject

log = structlog.get_logger("astromesh.models")
#: statuses that only the operator can fix: key, account, address, name of the model
_MISCONFIGURED = frozenset({401, 402, 403, 404, 405, 407, 410})
#: weight of the newest latency in the moving average
SMOOTHING = 0.2


class Monitor:
    """The circuit, the latency and the counts of one provider and model.

    Args:
        provider: the provider that it watches.
        rules: when its circuit opens.
        now: monotonic seconds, for the log.
    """

    __slots__ = (
        "_circuits", "_refusals", "calls", "circuit", "correction", "failures", "last_error", "latency_ms",
        "model", "name", "provider", "rules",
    )  # fmt: skip

    def __init__(self, provider: Provider, rules: BreakerRules, now: Callable[[], float] = monotonic) -> None:
        self.name, self.provider, self.model = provider.name, provider.provider, provider.model
        self.rules = rules
        self.circuit: Circuit = CLOSED
        self.latency_ms = 0.0
        self.calls = 0
        self.failures = 0
        self.last_error = ""
        self.correction = TokenCorrection()
        self._circuits = OutageLog(log, "circuit_opened", "circuit_closed", now, provider=self.name)
        self._refusals = OutageLog(log, "provider_refuses", "provider_answers", now, provider=self.name)

    def admit(self, now: float) -> bool:
        """Whether a call may start now; if so, it has started and must be settled."""
        if self.circuit is not CLOSED:
            if not admits(self.circuit, now):
                return False
            self.circuit = enter(self.circuit)
        return True

    @property
    def probing(self) -> bool:
        """Right after `admit`: whether that call is the probe."""
        return self.circuit.state == "half_open"

    def record_success(self, latency_ms: float, *, probe: bool) -> None:
        """Records a call that succeeded: its latency, and a circuit that closes."""
        self.calls += 1
        self.record_latency(latency_ms)
        if self.circuit is not CLOSED:
            self.settle("success", probe=probe, now=0.0)
            if probe:
                self._circuits.succeeded()
                self._refusals.succeeded()

    def settle(self, outcome: Outcome, *, probe: bool, now: float, wait: float = 0.0) -> None:
        """Ends an admitted call; see `circuit_breaker.leave`."""
        self.circuit = leave(self.circuit, outcome, probe=probe, now=now, rules=self.rules, wait=wait)

    def record_failure(
        self, error: ProviderError, outcome: Outcome, *, probe: bool, now: float, wait: float
    ) -> None:
        """Records a call that failed, and logs a circuit that opens or a provider that is misconfigured."""
        self.calls += 1
        self.failures += 1
        self.last_error = error.code
        before = self.circuit.state
        self.settle(outcome, probe=probe, now=now, wait=wait)
        if before == "closed" and self.circuit.state == "open":
            self._circuits.failed(str(error))
        elif error.upstream_status in _MISCONFIGURED:
            self._refusals.failed(str(error))

    def record_latency(self, latency_ms: float) -> None:
        """Takes one more latency into the moving average."""
        known = self.latency_ms
        self.latency_ms = known + SMOOTHING * (latency_ms - known) if known else latency_ms

    def to_json(self, now: float) -> JsonObject:
        state, failures, until = self.circuit
        return {
            "name": self.name,
            "provider": self.provider,
            "model": self.model,
            "circuit": state,
            "failures_in_a_row": failures,
            "retry_in_seconds": round(max(0.0, until - now), 1) if state == "open" else 0.0,
            "latency_ms": round(self.latency_ms, 1),
            "calls": self.calls,
            "failures": self.failures,
            "last_error": self.last_error,
        }


class Health:
    """The monitors of a process.

    Args:
        rules: `routing.circuit_breaker` of providers.yaml.
        clock: its monotonic time drives the circuits.
    """

    def __init__(self, rules: BreakerRules | None = None, clock: Clock | None = None) -> None:
        self.rules = rules or BreakerRules()
        self.clock: Clock = clock or SystemClock()
        self._monitors: dict[tuple[str, str], Monitor] = {}

    def monitor(self, provider: Provider) -> Monitor:
        """The record of this provider; agents share it if they name the same model at the same endpoint."""
        # an agent may give a named provider its own endpoint, which is another service
        key = (provider.name, str(getattr(provider, "endpoint", "")))
        if key not in self._monitors:
            self._monitors[key] = Monitor(provider, self.rules, self.clock.monotonic)
        return self._monitors[key]

    def snapshot(self) -> list[JsonObject]:
        """Every provider's state for `GET /v1/providers`, ordered by name."""
        now = self.clock.monotonic()
        return [m.to_json(now) for _, m in sorted(self._monitors.items())]
