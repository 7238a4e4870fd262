"""The model router (document 001, step 8): rank, ask the first whose circuit is closed, else the next.

What is retried, and by whom: the next provider is asked after any failure, for nothing. The same provider is
asked again only when no other is left, the error can heal, and the run still has retries (one budget per run,
over all layers). Nothing is retried once a delta has left: the text can't be taken back.

What failed tries have cost (`types.charge`) is part of the answer's usage, or noted on the error; whose it is
stands in their lines among the attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import TypeVar, cast

from astromesh.abc.clock import Clock
from astromesh.abc.provider import Provider
from astromesh.core.circuit_breaker import Outcome
from astromesh.core.health import Health, Monitor
from astromesh.core.routing import STRATEGIES, Candidate, lacking, needs_of, rank
from astromesh.errors import (
    AllProvidersFailed,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from astromesh.tokens import estimate_request
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    Usage,
    blame,
    charge,
    charged,
)

TakeRetry = Callable[[], bool]
E = TypeVar("E", bound=Exception)
#: reported token counts that a model's correction is learned from: the first few, then one of sixteen
_LEARN_FIRST, _LEARN_EVERY = 4, 16
#: spreads retries; not the process's own generator, which belongs to who embeds the runtime and seeds it
_chance = Random()  # noqa: S311 (no secret)


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


class ModelRouter:
    """One agent's models. A `ModelPort`.

    Args:
        providers: primary first, then the fallbacks.
        strategy: one of `astromesh.core.routing.STRATEGIES`.
        roles: routers of `model.roles`; a request with an unknown role gets this one.
        health: shared by all routers of the process.
        retries: when to try again.
        chance: random numbers in [0, 1), for jitter.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        *,
        strategy: str = "priority",
        roles: Mapping[str, ModelRouter] | None = None,
        health: Health | None = None,
        retries: RetryRules | None = None,
        chance: Callable[[], float] = _chance.random,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"unknown routing strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
        self.providers = tuple(providers)
        self.strategy = strategy
        self.roles = dict(roles or {})
        self.health = health or Health()
        self.retries = retries or RetryRules()
        self.chance = chance
        self.monitors = tuple(self.health.monitor(p) for p in self.providers)
        self._turn = 0
        self._tried = [0] * len(self.providers)
        self._counts_tokens = any(p.capabilities.context_window for p in self.providers)

    @property
    def clock(self) -> Clock:
        return self.health.clock

    def for_role(self, role: str) -> ModelRouter:
        """The router of a role of `model.roles`, or this one."""
        return self.roles.get(role, self)

    async def route(
        self, request: CompletionRequest, *, take_retry: TakeRetry | None = None
    ) -> CompletionResult:
        """One model call, answered by the first provider that can.

        Args:
            request: its `role` picks the router of `model.roles`.
            take_retry: takes one try from the run's budget, False when it is used up; None: no budget.

        Raises:
            ProviderRejected: everybody who was asked said that the request is wrong.
            AllProvidersFailed: nobody answered; it holds who failed how.
        """
        call = _RoutedCall(self.for_role(request.role), request, take_retry)
        while (provider := await call.next_provider()) is not None:
            try:
                result = await provider.complete(request)
            except ProviderError as error:
                call.failed(error)
            except asyncio.CancelledError as cancelled:
                call.cancelled(cancelled)
                raise
            else:
                return call.succeeded(result)
            finally:
                call.left()
        raise call.verdict()

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        return await self.route(request)

    async def stream(
        self, request: CompletionRequest, *, take_retry: TakeRetry | None = None
    ) -> AsyncGenerator[Delta | CompletionResult, None]:
        """As `route`, with the provider's own deltas first; after the first one an error ends the stream."""
        call = _RoutedCall(self.for_role(request.role), request, take_retry)
        while (provider := await call.next_provider()) is not None:
            sent = False
            try:
                async with aclosing(_pieces(provider, request)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Delta):
                            sent = True
                            yield piece
                        else:
                            yield call.succeeded(piece)
                            return
                raise ProviderUnavailable("The stream ended without a result.")
            except ProviderError as error:
                call.failed(error)
                if sent:
                    raise call.charging(AllProvidersFailed([error], begun=True)) from error
            except asyncio.CancelledError as cancelled:
                call.cancelled(cancelled)
                raise
            finally:
                call.left()
        raise call.verdict()

    def ranked(self, request: CompletionRequest) -> tuple[int, ...]:
        """Indices of the providers in the order to ask them."""
        if len(self.providers) == 1 and self.strategy != "capability_match":
            return (0,)
        self._turn += 1
        tokens = estimate_request(request) if self._counts_tokens else 0
        return rank(self.strategy, self._candidates(request), needs_of(request, tokens), self._turn - 1)

    def tried(self, index: int) -> None:
        self._tried[index] = self._turn

    def _candidates(self, request: CompletionRequest) -> list[Candidate]:
        costs = self.strategy == "cost_optimized"
        return [
            Candidate(
                index,
                provider.capabilities,
                provider.estimated_cost(request) * monitor.correction.factor if costs else 0.0,
                monitor.latency_ms,
                self._turn - tried,
                monitor.correction.factor,
            )
            for index, (provider, monitor, tried) in enumerate(
                zip(self.providers, self.monitors, self._tried, strict=True)
            )
        ]

    def unfit(self, request: CompletionRequest) -> str:
        """What no provider has that the request needs, for the error."""
        needs = needs_of(request, estimate_request(request))
        missing = {name for c in self._candidates(request) for name in lacking(c, needs)}
        return ", ".join(sorted(missing))


class _RoutedCall:
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

    def __init__(self, router: ModelRouter, request: CompletionRequest, take_retry: TakeRetry | None) -> None:
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
            if self._enter(self._again, self._router.clock.monotonic()):
                return self._router.providers[self._again]
        return None

    def succeeded(self, result: CompletionResult) -> CompletionResult:
        monitor = self._monitor
        latency_ms = (perf_counter() - self._started) * 1000
        monitor.calls += 1
        monitor.timed(latency_ms)
        self._settle("success")
        self._learn(monitor, result)
        if self._wasted is not None:
            result = replace(result, usage=self._wasted + result.usage)
        if self._attempts or not result.latency_ms:
            return replace(result, attempts=tuple(self._attempts), latency_ms=result.latency_ms or latency_ms)
        return result

    def failed(self, error: ProviderError) -> None:
        monitor = self._monitor
        monitor.calls += 1
        monitor.failures += 1
        monitor.last_error = error.code
        # a repeated try of one call is still one failure; a probe always tells
        first = self._tries == 0 or self._probe
        wait = self._jittered(error.retry_after)
        self._settle(_outcome(error, first), wait)
        self._note(error)
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
        monitor = self._router.monitors[index]
        wait = max(0.0, monitor.circuit.until - now)
        self._note(_CircuitOpen(f"its circuit is open for another {wait:.0f} s", provider=monitor.name))
        if self._again < 0:
            self._again, self._retry_after = index, self._jittered(wait)

    def _note(self, error: ProviderError) -> None:
        if not error.provider:
            error.provider = self._router.monitors[self._index].name
        self._failures.append(error)
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
        except asyncio.CancelledError as cancelled:
            charge(cancelled, self._wasted or Usage())
            blame(cancelled, self._attempts)
            raise
        return True

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


def _pieces(provider: Provider, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
    """A provider's own stream, with no generator in between; one that cannot stream answers in one piece."""
    if provider.capabilities.streaming:
        return cast("AsyncGenerator[Delta | CompletionResult, None]", provider.stream(request))
    return _in_one_piece(provider, request)


async def _in_one_piece(
    provider: Provider, request: CompletionRequest
) -> AsyncGenerator[Delta | CompletionResult, None]:
    result = await provider.complete(request)
    if result.content:
        yield Delta(result.content)
    yield result
