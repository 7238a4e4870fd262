"""One model call on its way through the providers: whom to ask next, what became of it, what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol, TypeVar

from astromesh.abc.clock import Clock
from astromesh.abc.provider import Provider
from astromesh.core.checked_errors import check_error
from astromesh.core.circuit_breaker import Outcome
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.core.health import Monitor
from astromesh.errors import (
    AllProvidersFailed,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from astromesh.tokens import estimate_request, of_bytes
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    JsonObject,
    Usage,
    blame,
    charge,
    charged,
)

TakeRetry = Callable[[], bool]
E = TypeVar("E", bound=Exception)
#: seconds between two looks whether a probe is back
_LEAST_PAUSE = 0.05
#: reported token counts that a model's correction is learned from: the first few, then one of sixteen
_LEARN_FIRST, _LEARN_EVERY = 4, 16


@dataclass(frozen=True, slots=True)
class RetryRules:
    """When the last provider left is asked again.

    Args:
        tries: most further tries of one call.
        backoff: seconds before the first of them; doubles each time, half of it to one and a half at random.
        longest_wait: seconds; a provider that asks for more is not waited for.
    """

    tries: int = 2
    backoff: float = 0.25
    longest_wait: float = 10.0


class Routes(Protocol):
    """What a call needs of its router; `ModelRouter` is the implementation."""

    providers: tuple[Provider, ...]
    monitors: tuple[Monitor, ...]
    retries: RetryRules
    chance: Callable[[], float]
    rules: GuardrailsEngine

    @property
    def clock(self) -> Clock: ...

    def ranked(self, request: CompletionRequest) -> tuple[int, ...]: ...

    def tried(self, index: int) -> None: ...

    def unfit(self, request: CompletionRequest) -> str: ...


class RoutedCall:
    """The way of one call through the providers: whom to ask next, what became of it."""

    __slots__ = (
        "_again", "_attempts", "_failures", "_index", "_order", "_position", "_probe", "_request",
        "_retry_after", "_router", "_settled", "_started", "_take_retry", "_tries", "_wasted",
    )  # fmt: skip
    #: the provider that is asked now, since when, whether it is a probe, and whether its end is known
    _index: int
    _started: float
    _probe: bool
    _settled: bool
    #: how long the one to ask again wants to be left alone
    _retry_after: float

    def __init__(self, router: Routes, request: CompletionRequest, take_retry: TakeRetry | None) -> None:
        self._router, self._request, self._take_retry = router, request, take_retry
        self._order = router.ranked(request)
        self._position = 0
        self._tries = 0
        #: whom to ask again when nobody is left; -1: nobody
        self._again = -1
        self._failures: list[ProviderError] = []
        self._attempts: list[JsonObject] = []
        self._wasted: Usage | None = None

    async def next_provider(self) -> Provider | None:
        """The provider to ask now, its circuit entered; waits where the last one left may heal."""
        now = self._router.clock.monotonic()
        while self._position < len(self._order):
            index = self._order[self._position]
            self._position += 1
            if self._enter(index, now):
                return self._router.providers[index]
            self._skipped(index, now)
        while await self._waited():
            now = self._router.clock.monotonic()
            if self._enter(self._again, now):
                return self._router.providers[self._again]
            self._retry_after = self._jittered(self._closed_for(self._again, now))
        return None

    def succeeded(self, result: CompletionResult) -> CompletionResult:
        monitor = self._monitor
        latency_ms = (perf_counter() - self._started) * 1000
        monitor.calls += 1
        monitor.timed(latency_ms)
        self._settle("success")
        if self._probe:
            monitor.recovered()
        self._learn(monitor, result)
        if self._wasted is not None:
            result = replace(result, usage=self._wasted + result.usage)
        if self._attempts or not result.latency_ms:
            return replace(result, attempts=tuple(self._attempts), latency_ms=result.latency_ms or latency_ms)
        return result

    def failed(self, error: ProviderError, said: int = 0) -> None:
        """Notes a failed try.

        Args:
            said: bytes of text that had come; where nobody has counted, they are what the try has cost.
        """
        if said and charged(error) is None:
            charge(error, Usage(estimate_request(self._request), of_bytes(said), estimated=True))
        check_error(self._router.rules, error)
        monitor = self._monitor
        monitor.calls += 1
        monitor.failures += 1
        monitor.last_error = error.code
        # a repeated try of one call is still one failure; a probe always tells
        first = self._tries == 0 or self._probe
        wait, before = self._jittered(error.retry_after), monitor.circuit.state
        self._settle(_outcome(error, first), wait)
        self._note(error)
        monitor.tell(error, before)
        self._waste(charged(error))
        late = isinstance(error, ProviderTimeout)
        if late:  # it has used its time, and was that slow
            monitor.timed((perf_counter() - self._started) * 1000)
        if error.retryable and not late:
            self._again, self._retry_after = self._index, wait
        elif self._again == self._index:
            self._again = -1  # what it said before could heal

    def cancelled(self, error: asyncio.CancelledError) -> None:
        """The call was given up: it has cost what it had by then, and what the tries before have."""
        now = charged(error) or Usage(estimate_request(self._request), estimated=True)
        self._attempts.append(_attempt(self._monitor.name, "cancelled", 0, now))
        blame(error, self._attempts)
        if self._wasted is not None:
            charge(error, self._wasted + now)

    def charging(self, error: E) -> E:
        """The error, with what all tries of this call have cost."""
        blame(error, self._attempts)
        if self._wasted is not None:
            charge(error, self._wasted)
        return error

    def left(self) -> None:
        """However the call was left: a probe must not stay out for ever."""
        if not self._settled:
            self._settle("abandoned")

    def verdict(self) -> Exception:
        """The error where nobody answered."""
        return self.charging(self._verdict())

    def _verdict(self) -> Exception:
        if not self._order and self._router.providers:
            return ProviderRejected(
                f"No configured model can serve this request; missing: {self._router.unfit(self._request)}."
            )
        asked = [f for f in self._failures if not isinstance(f, _CircuitOpen)]
        if asked and all(isinstance(f, ProviderRejected) for f in asked):
            said = asked[0]
            return ProviderRejected(f"{said.provider}: {said}", provider=said.provider, status=said.status)
        return AllProvidersFailed(self._failures)

    @property
    def _monitor(self) -> Monitor:
        return self._router.monitors[self._index]

    def _enter(self, index: int, now: float) -> bool:
        monitor = self._router.monitors[index]
        if not monitor.admit(now):
            return False
        self._index, self._settled, self._probe = index, False, monitor.probing
        self._router.tried(index)
        self._started = perf_counter()
        return True

    def _settle(self, outcome: Outcome, wait: float = 0.0) -> None:
        self._settled = True
        self._monitor.settle(outcome, probe=self._probe, now=self._router.clock.monotonic(), wait=wait)

    def _skipped(self, index: int, now: float) -> None:
        monitor, wait = self._router.monitors[index], self._closed_for(index, now)
        said = "another call is trying whether it works again"
        if not monitor.probing:
            said = f"its circuit is open for another {wait:.0f} s"
        self._note(_CircuitOpen(said, provider=monitor.name))
        if self._again < 0:
            self._again, self._retry_after = index, self._jittered(wait)

    def _closed_for(self, index: int, now: float) -> float:
        """Seconds until an open circuit lets a probe through; nobody knows how long one that is out takes."""
        return max(0.0, self._router.monitors[index].circuit.until - now)

    def _note(self, error: ProviderError) -> None:
        if not error.provider:
            error.provider = self._router.monitors[self._index].name
        # without its traceback, whose frames hold this call: a circle keeps what was received for minutes
        self._failures.append(error.with_traceback(None))
        self._attempts.append(_attempt(error.provider, error.code, error.status, charged(error)))

    async def _waited(self) -> bool:
        """Waits before the last one left is asked again; False where that is not to be."""
        rules, router = self._router.retries, self._router
        if self._again < 0 or self._tries >= rules.tries:
            return False
        backoff = rules.backoff * 2**self._tries * (0.5 + router.chance())
        wait = max(backoff, self._retry_after)
        if wait > rules.longest_wait or not (self._take_retry is None or self._take_retry()):
            return False
        self._tries += 1
        self._retry_after = 0.0
        try:
            await router.clock.sleep(wait)
            return await self._probe_is_back()
        except asyncio.CancelledError as cancelled:
            charge(cancelled, self._wasted or Usage())
            blame(cancelled, self._attempts)
            raise

    async def _probe_is_back(self) -> bool:
        """Waits for another call that tries the one to ask again; False where that takes too long."""
        rules, router = self._router.retries, self._router
        monitor, left = router.monitors[self._again], rules.longest_wait
        while monitor.probing and left > 0:
            pause = max(rules.backoff * (0.5 + router.chance()), _LEAST_PAUSE)
            left -= pause
            await router.clock.sleep(pause)
        return not monitor.probing

    def _waste(self, usage: Usage | None) -> None:
        if usage is not None:
            self._wasted = usage if self._wasted is None else self._wasted + usage

    def _jittered(self, seconds: float) -> float:
        """A floor: never less than asked, up to a fifth more."""
        return seconds * (1 + 0.2 * self._router.chance())

    def _learn(self, monitor: Monitor, result: CompletionResult) -> None:
        if monitor.calls <= _LEARN_FIRST or monitor.calls % _LEARN_EVERY == 0:
            monitor.correction.learn(estimate_request(self._request), result.usage.input_tokens)


def _attempt(provider: str, error: str, status: int, usage: Usage | None) -> JsonObject:
    """The line of a failed try; with what it has cost, where that is known."""
    line: JsonObject = {"provider": provider, "error": error, "status": status}
    return line if usage is None else line | {"usage": usage.to_json()}


class _CircuitOpen(ProviderUnavailable):
    code = "circuit_open"


def _outcome(error: ProviderError, first: bool) -> Outcome:
    if not error.counts:
        return "rejected"
    if error.retry_after:
        return "throttled"
    return "failure" if first else "abandoned"
