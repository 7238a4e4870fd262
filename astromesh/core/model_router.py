"""The model router (document 001, step 8): ranks the providers and calls them in order.

After any failure the router calls the next provider, which costs no retry. It calls the same provider again
only if there is no other, the error is retryable, and the run still has retries (one budget for each run,
over all layers). It retries nothing after text of a stream has been sent; the reader of the stream knows
whether it has (`types.StreamBroken`).

The cost of failed tries (`types.attach_usage`) is part of the answer's usage, or is attached to the
error. Each failed try has a line among the attempts, which names the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from random import Random
from time import perf_counter
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from astromesh.core.circuit_breaker import CLOSED, BreakerRules, CircuitBreaker, CircuitOpen, Entry
from astromesh.core.guardrails import GuardrailsEngine, filter_error
from astromesh.core.routing import (
    NO_LIMITS,
    NOTHING,
    STRATEGIES,
    Candidate,
    ModelLimits,
    fitted,
    missing_capabilities,
    rank,
    request_needs,
)
from astromesh.errors import (
    AllProvidersFailed,
    AstromeshError,
    ProviderError,
    ProviderPaused,
    ProviderRateLimited,
    ProviderRejected,
    ProvidersRateLimited,
    ProviderTimeout,
    ProviderUnavailable,
)
from astromesh.graph.ledger import OPEN_CALL, CallBounds, bounds_of_providers, limited
from astromesh.graph.scope import Scope
from astromesh.providers.base import Provider
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tokens import (
    FIRST_ANSWER_TOKENS,
    TokenCorrection,
    estimate_request,
    estimate_size,
    utf8_size,
)
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    StreamBroken,
    Usage,
    attach_attempts,
    attach_usage,
    attached_usage,
)

#: of a run whose request brings none
NO_PARAMETERS: Mapping[str, Any] = {}
TakeRetry = Callable[[], bool]
#: charges a failed try, reserves the next one, and returns the request with an answer that fits
Renew = Callable[[CompletionRequest, Usage], Awaitable[CompletionRequest]]
E = TypeVar("E", bound=BaseException)

#: seconds between two checks whether calls have ended that keep this one from starting
_MIN_PAUSE = 0.05
#: seconds after which callers may ask again if no rate-limited provider has requested a time
_USUAL_WAIT = 1.0
#: calls whose reported tokens correct the estimates for a model: the first few, then one of sixteen
_LEARN_FIRST, _LEARN_EVERY = 4, 16
#: weight of the newest latency in the moving average
_SMOOTHING = 0.2


#: what is left of the longest answer's weight with each later answer
_FADING = 0.99
#: tokens that are expected of an answer at least, once a model has answered
_LEAST_ANSWER_TOKENS = 1024


class UsualAnswer:
    """The tokens that suffice for an answer of a model without a limit: twice its longest one of late.

    An answer is limited to what a budget reserves for it, so that this must be generous.
    """

    __slots__ = ("_longest",)

    def __init__(self) -> None:
        self._longest = 0.0

    def learn(self, reported: int) -> None:
        self._longest = max(float(reported), self._longest * _FADING)

    @property
    def tokens(self) -> int:
        if not self._longest:
            return FIRST_ANSWER_TOKENS
        return max(int(2 * self._longest), _LEAST_ANSWER_TOKENS)


class ProviderHealth:
    """The circuit, the latency and the counts of one provider and model."""

    __slots__ = (
        "answers", "breaker", "calls", "correction", "failures", "last_error", "latency_ms", "model", "name",
        "provider",
    )  # fmt: skip

    def __init__(self, provider: Provider, breaker: CircuitBreaker) -> None:
        self.name, self.provider, self.model = provider.name, provider.provider, provider.model
        self.breaker = breaker
        self.latency_ms = 0.0
        self.calls = 0
        self.failures = 0
        self.last_error = ""
        self.correction = TokenCorrection()
        self.answers = UsualAnswer()

    def record_latency(self, latency_ms: float) -> None:
        """Takes one more latency into the moving average."""
        known = self.latency_ms
        self.latency_ms = known + _SMOOTHING * (latency_ms - known) if known else latency_ms

    def to_json(self, now: float) -> JsonObject:
        return {
            "name": self.name,
            "provider": self.provider,
            "model": self.model,
            **self.breaker.to_json(now),
            "latency_ms": round(self.latency_ms, 1),
            "calls": self.calls,
            "failures": self.failures,
            "last_error": self.last_error,
        }


class Health:
    """The health of all providers: one record per provider and model, shared by all agents of the process.

    Args:
        rules: `routing.circuit_breaker` of providers.yaml.
        clock: its monotonic time drives the circuits.
    """

    def __init__(self, rules: BreakerRules | None = None, clock: Clock | None = None) -> None:
        self._rules = rules or BreakerRules()
        self.clock: Clock = clock or SystemClock()
        self._providers: dict[tuple[str, str], ProviderHealth] = {}

    def of(self, provider: Provider) -> ProviderHealth:
        """The record of this provider; agents share it if they name the same model at the same endpoint."""
        # an agent may give a named provider its own endpoint, which is another service
        key = (provider.name, str(getattr(provider, "endpoint", "")))
        if key not in self._providers:
            breaker = CircuitBreaker(provider.name, self._rules, self.clock.monotonic)
            self._providers[key] = ProviderHealth(provider, breaker)
        return self._providers[key]

    def addresses(self) -> dict[str, str]:
        """Returns the endpoints of the providers that have one, by name (`PROVIDER/MODEL`)."""
        return {name: endpoint for name, endpoint in self._providers if endpoint}

    def snapshot(self) -> list[JsonObject]:
        """Every provider's state for `GET /v1/providers`, ordered by name."""
        now = self.clock.monotonic()
        return [health.to_json(now) for _, health in sorted(self._providers.items())]


@dataclass(frozen=True, slots=True)
class RetryRules:
    """When the router calls the last remaining provider again.

    Args:
        tries: most further tries of one call.
        backoff: seconds before the first; doubles each time, times 0.5 to 1.5 at random.
        max_wait: seconds; the router does not wait for a provider that requests more.
    """

    tries: int = 2
    backoff: float = 0.25
    max_wait: float = 10.0


class RoutedCall:
    """One model call on its way through the providers: the next one, and the result and cost of each try.

    Args:
        router: the router of the role that the request names.
        take_retry: takes one try from the budget of the run; None: no budget.
        log: records the result, and the tries of a call that failed.
        renew: charges a failed try and reserves the next one; None: nothing is reserved.

    Attributes:
        request: of the try that is made now.
        uncharged: the cost of failed tries that `renew` has not been told; `reserve` does so.
    """

    __slots__ = (
        "_attempts", "_counted", "_entry", "_failed_usage", "_failures", "_health", "_index", "_log",
        "_order", "_position", "_renew", "_retry_after", "_retry_index", "_router", "_started",
        "_take_retry", "_tries", "request", "settled", "uncharged",
    )  # fmt: skip
    #: the provider of the running try, its start, and how the circuit has let it in
    _index: int
    _health: ProviderHealth
    _started: float
    _entry: Entry
    #: seconds that the provider to call again requested
    _retry_after: float

    def __init__(
        self,
        router: ModelRouter,
        request: CompletionRequest,
        take_retry: TakeRetry | None,
        log: RunModel | None = None,
        renew: Renew | None = None,
    ) -> None:
        self._router, self.request, self._take_retry, self._log = router, request, take_retry, log
        self._renew = renew
        self._order = (0,) if router.is_single else router.ranked(request)
        self._position = 0
        self._tries = 0
        #: the provider to call again if there is no other; -1: none
        self._retry_index = -1
        #: providers whose circuit has counted this call as a failure
        self._counted: tuple[int, ...] = ()
        self._failures: list[ProviderError] = []
        self._attempts: list[JsonObject] = []
        self._failed_usage: Usage | None = None
        self.uncharged: Usage | None = None
        #: whether the end of the running try is recorded
        self.settled = True

    async def next_provider(self) -> Provider | None:
        """The provider to call now; waits if the last remaining one may recover."""
        now = self._router.clock.monotonic()
        while self._position < len(self._order):
            index = self._order[self._position]
            self._position += 1
            if self._enter(index, now):
                return self._router.providers[index]
            self._record_skip(index, now)
        while await self._wait_to_retry():
            now = self._router.clock.monotonic()
            if self._enter(self._retry_index, now):
                return self._router.providers[self._retry_index]
            breaker = self._router.healths[self._retry_index].breaker
            self._retry_after = self._jittered(breaker.seconds_until_admission(now))
        return None

    async def reserve(self) -> None:
        """Charges the tries before the one that begins now, and reserves it.

        Raises:
            BudgetExhausted: what is left does not fit another try.
            StoreUnavailable: the accounts cannot be read or written.
        """
        usage, self.uncharged = self.uncharged, None
        if usage is None or self._renew is None:
            return
        try:
            self.request = await self._renew(self.request, usage)
        except (AstromeshError, asyncio.CancelledError) as error:
            self.abandon()
            raise self.with_costs(error) from None
        self._started = perf_counter()

    def succeeded(self, result: CompletionResult) -> CompletionResult:
        """Records a result; returns it with the cost and the lines of the failed tries."""
        health = self._health
        latency_ms = (perf_counter() - self._started) * 1000
        health.calls += 1
        health.record_latency(latency_ms)
        health.answers.learn(result.usage.output_tokens)
        if health.breaker.circuit is not CLOSED:
            health.breaker.record_success(self._entry)
        self.settled = True
        if health.calls <= _LEARN_FIRST or health.calls % _LEARN_EVERY == 0:
            health.correction.learn(estimate_request(self.request), result.usage.input_tokens)
        if self._failed_usage is not None:
            result = replace(result, usage=self._failed_usage + result.usage)
        if self._attempts or not result.latency_ms:
            result = replace(
                result, attempts=tuple(self._attempts), latency_ms=result.latency_ms or latency_ms
            )
        if self._log is not None:
            self._log.record_result(self.request, result)
        return result

    def failed(self, error: ProviderError, streamed_bytes: int = 0) -> None:
        """Records a failed try.

        Args:
            streamed_bytes: of the text that arrived before; they estimate the cost if none is reported.
        """
        if streamed_bytes and attached_usage(error) is None:
            attach_usage(
                error, Usage(estimate_request(self.request), estimate_size(streamed_bytes), estimated=True)
            )
        filter_error(self._router.rules, error)
        health, wait = self._health, self._jittered(error.retry_after)
        health.calls += 1
        health.failures += 1
        health.last_error = error.code
        counts = self._entry == "probe" or self._index not in self._counted
        now = self._router.clock.monotonic()
        if health.breaker.record_failure(error, self._entry, counts=counts, now=now, wait=wait):
            self._counted += (self._index,)
        self.settled = True
        self._record_failure(error)
        self._add_cost(attached_usage(error))
        timed_out = isinstance(error, ProviderTimeout)
        if timed_out:
            health.record_latency((perf_counter() - self._started) * 1000)
        if error.retryable and not timed_out:
            self._retry_index, self._retry_after = self._index, wait
        elif self._retry_index == self._index:
            self._retry_index = -1  # an earlier error of it was retryable, this one is not

    def cancelled(self, error: asyncio.CancelledError) -> None:
        """Records that the caller cancelled the call: its cost so far, and that of the tries before."""
        now = attached_usage(error) or Usage(estimate_request(self.request), estimated=True)
        self._attempts.append(_attempt(self._health.name, "cancelled", 0, now))
        attach_attempts(error, self._attempts)
        if self._failed_usage is not None:
            attach_usage(error, self._failed_usage + now)

    def with_costs(self, error: E) -> E:
        """The error, with the lines and the cost of all tries of this call."""
        attach_attempts(error, self._attempts)
        if self._failed_usage is not None:
            attach_usage(error, self._failed_usage)
        if self._log is not None:
            self._log.attempts += self._attempts
        return error

    def abandon(self) -> None:
        """Ends a try whose end is not recorded, so that its probe does not block the circuit for ever."""
        self.settled = True
        self._health.breaker.record_abandoned(self._entry, now=self._router.clock.monotonic())

    def final_error(self) -> Exception:
        """The error of a call that no provider answered."""
        return self.with_costs(self._build_error())

    def _build_error(self) -> Exception:
        if not self._order and self._router.providers:
            return ProviderRejected(
                "No configured model can serve this request; "
                f"missing: {self._router.describe_missing(self.request)}."
            )
        answers = [f for f in self._failures if not isinstance(f, (CircuitOpen, ProviderPaused))]
        if answers and all(isinstance(f, ProviderRejected) for f in answers):
            first = answers[0]
            return ProviderRejected(
                f"{first.provider}: {first}", provider=first.provider, status=first.upstream_status
            )
        if self._failures and all(isinstance(f, ProviderRateLimited) for f in self._failures):
            now = self._router.clock.monotonic()
            waits = (self._router.healths[i].breaker.seconds_until_admission(now) for i in self._order)
            return ProvidersRateLimited(self._failures, retry_after=min(w or _USUAL_WAIT for w in waits))
        return AllProvidersFailed(self._failures)

    def _enter(self, index: int, now: float) -> bool:
        health = self._router.healths[index]
        breaker = health.breaker
        entry: Entry | None = "free" if breaker.circuit is CLOSED else breaker.enter(now)
        if entry is None:
            return False
        self._index, self._health, self._entry, self.settled = index, health, entry, False
        self._router.last_tried[index] = self._router.turn
        self._started = perf_counter()
        return True

    def _record_skip(self, index: int, now: float) -> None:
        breaker = self._router.healths[index].breaker
        self._record_failure(breaker.skip_error(now))
        if self._retry_index < 0:
            self._retry_index, self._retry_after = index, self._jittered(breaker.seconds_until_admission(now))

    def _record_failure(self, error: ProviderError) -> None:
        if not error.provider:
            error.provider = self._health.name
        # without the traceback, whose frames hold this call: the circle would keep responses for minutes
        self._failures.append(error.with_traceback(None))
        self._attempts.append(
            _attempt(error.provider, error.code, error.upstream_status, attached_usage(error))
        )

    async def _wait_to_retry(self) -> bool:
        """Waits before the last remaining provider is called again; returns False if it must not be."""
        rules, router = self._router.retries, self._router
        if self._retry_index < 0 or self._tries >= rules.tries:
            return False
        backoff = rules.backoff * 2**self._tries * (0.5 + router.chance())
        wait = max(backoff, self._retry_after)
        if wait > rules.max_wait or not (self._take_retry is None or self._take_retry()):
            return False
        self._tries += 1
        self._retry_after = 0.0
        try:
            await router.clock.sleep(wait)
            return await self._may_enter()
        except asyncio.CancelledError as cancelled:
            attach_usage(cancelled, self._failed_usage or Usage())
            attach_attempts(cancelled, self._attempts)
            raise

    async def _may_enter(self) -> bool:
        """Waits for the calls of others that keep this one from starting; False if they take too long."""
        rules, router = self._router.retries, self._router
        breaker, left = router.healths[self._retry_index].breaker, rules.max_wait
        while (is_full := breaker.is_full(router.clock.monotonic())) and left > 0:
            pause = max(rules.backoff * (0.5 + router.chance()), _MIN_PAUSE)
            left -= pause
            await router.clock.sleep(pause)
        return not is_full

    def _add_cost(self, usage: Usage | None) -> None:
        if usage is not None:
            self._failed_usage = usage if self._failed_usage is None else self._failed_usage + usage
            self.uncharged = usage if self.uncharged is None else self.uncharged + usage

    def _jittered(self, seconds: float) -> float:
        """The seconds, and up to a fifth more."""
        return seconds * (1 + 0.2 * self._router.chance())


def _attempt(provider: str, error: str, status: int, usage: Usage | None) -> JsonObject:
    """The line of a failed try, with its cost if that is known."""
    line: JsonObject = {"provider": provider, "error": error, "status": status}
    return line if usage is None else line | {"usage": usage.to_json()}


#: spreads retries; a generator of its own, because an embedding program may seed the global one
_chance = Random()  # noqa: S311 (no secret)


class ModelRouter:
    """One agent's models. A `ModelPort`.

    Args:
        providers: primary first, then the fallbacks.
        strategy: one of `astromesh.core.routing.STRATEGIES`.
        roles: routers of `model.roles`; a request with an unknown role gets this one.
        health: shared by all routers of the process.
        retries: when to try again.
        chance: random numbers in [0, 1), for jitter.
        rules: of the agent; its output rules apply to error messages of providers.
    """

    def __init__(  # noqa: PLR0913 (what all calls of an agent share)
        self,
        providers: Sequence[Provider],
        *,
        strategy: str = "priority",
        roles: Mapping[str, ModelRouter] | None = None,
        health: Health | None = None,
        retries: RetryRules | None = None,
        chance: Callable[[], float] = _chance.random,
        rules: GuardrailsEngine | None = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"unknown routing strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
        self.providers = tuple(providers)
        self.strategy = strategy
        self.roles = dict(roles or {})
        self.health = health or Health()
        self.retries = retries or RetryRules()
        self.chance = chance
        self.rules = rules or GuardrailsEngine()
        self.healths = tuple(self.health.of(p) for p in self.providers)
        self.clock = self.health.clock
        #: whether there is nothing to rank
        self.is_single = len(self.providers) == 1 and strategy != "capability_match"
        #: calls so far, and the newest call of each provider
        self.turn = 0
        self.last_tried = [0] * len(self.providers)
        self.limits = ModelLimits.of(self.providers)
        self._counts_tokens = any(p.capabilities.context_window for p in self.providers)

    def only(self, name: str) -> ModelRouter:
        """A router with one of the providers, by its name; its roles stay."""
        chosen = [provider for provider in self.providers if provider.name == name]
        return ModelRouter(
            chosen, strategy=self.strategy, roles=self.roles, health=self.health, retries=self.retries,
            chance=self.chance, rules=self.rules,
        )  # fmt: skip

    async def route(
        self,
        request: CompletionRequest,
        *,
        take_retry: TakeRetry | None = None,
        log: RunModel | None = None,
        renew: Renew | None = None,
    ) -> CompletionResult:
        """One model call, answered by the first provider that can.

        Args:
            request: its `role` picks the router of `model.roles`.
            take_retry: takes one try from the budget of the run, False when it is used up; None: no budget.
            log: records the result and failed tries.
            renew: charges a failed try and reserves the next one; None: nothing is reserved.

        Raises:
            ProviderRejected: every provider that was called rejected the request.
            AllProvidersFailed: no provider answered; it lists the failures.
        """
        call = RoutedCall(self.roles.get(request.role, self), request, take_retry, log, renew)
        while (provider := await call.next_provider()) is not None:
            if call.uncharged is not None:
                await call.reserve()
            try:
                result = await provider.complete(call.request)
            except ProviderError as error:
                call.failed(error)
            except asyncio.CancelledError as cancelled:
                call.cancelled(cancelled)
                raise
            else:
                return call.succeeded(result)
            finally:
                if not call.settled:
                    call.abandon()
        raise call.final_error()

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        return await self.route(request)

    def bounds(self, request: CompletionRequest) -> CallBounds:
        """The most that a call costs, whichever of the models answers it."""
        router = self.roles.get(request.role, self)
        factor = max((health.correction.factor for health in router.healths), default=1.0)
        usual = max((health.answers.tokens for health in router.healths), default=FIRST_ANSWER_TOKENS)
        return bounds_of_providers(router.providers, request, factor, usual)

    async def stream(
        self,
        request: CompletionRequest,
        *,
        take_retry: TakeRetry | None = None,
        log: RunModel | None = None,
        renew: Renew | None = None,
    ) -> AsyncGenerator[Delta | StreamBroken | CompletionResult, None]:
        """As `route`, with the deltas of the provider first.

        After the first delta an error ends the stream, unless the reader marks the `StreamBroken` before it
        as discarded.
        """
        call = RoutedCall(self.roles.get(request.role, self), request, take_retry, log, renew)
        while (provider := await call.next_provider()) is not None:
            if call.uncharged is not None:
                await call.reserve()
            streamed = 0
            try:
                async with aclosing(_pieces(provider, call.request)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Delta):
                            text = piece.content
                            streamed += len(text) if text.isascii() else utf8_size(text)
                            yield piece
                        else:
                            yield call.succeeded(piece)
                            return
                raise ProviderUnavailable("The stream ended without a result.")
            except ProviderError as error:
                call.failed(error, streamed)
                if streamed:
                    yield (broken := StreamBroken())
                    if not broken.discarded:
                        raise call.with_costs(AllProvidersFailed([error], begun=True)) from error
            except asyncio.CancelledError as cancelled:
                call.cancelled(cancelled)
                raise
            finally:
                if not call.settled:
                    call.abandon()
        raise call.final_error()

    def ranked(self, request: CompletionRequest) -> tuple[int, ...]:
        """Indices of the providers in the order to ask them."""
        self.turn += 1
        tokens = estimate_request(request) if self._counts_tokens else 0
        return rank(self.strategy, self._candidates(request), request_needs(request, tokens), self.turn - 1)

    def _candidates(self, request: CompletionRequest) -> list[Candidate]:
        costs = self.strategy == "cost_optimized"
        return [
            Candidate(
                index,
                provider.capabilities,
                provider.estimated_cost(request) * health.correction.factor if costs else 0.0,
                health.latency_ms,
                self.turn - tried,
                health.correction.factor,
            )
            for index, (provider, health, tried) in enumerate(
                zip(self.providers, self.healths, self.last_tried, strict=True)
            )
        ]

    def describe_missing(self, request: CompletionRequest) -> str:
        """The capabilities that the request needs and no provider has, for the error."""
        needs = request_needs(request, estimate_request(request))
        missing = {name for c in self._candidates(request) for name in missing_capabilities(c, needs)}
        return ", ".join(sorted(missing))


def _pieces(provider: Provider, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
    """The stream of a provider; one that cannot stream answers in one piece."""
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


class RunModel:
    """The model of one run, a `ModelPort`: the agent's router with the retry budget and records of the run.

    Args:
        schema: the agent's output schema, or None.
        parameters: of the run's request. They apply to calls whose result may be the answer.

    `attempts` has one line for each failed try of the whole run, `{provider, error, status}`.
    `raises_limit` is whether the parameters may raise the limit of an answer.
    `earlier_messages` is how many messages of the session came before those that the run recalls.
    `left_out` is what the newest request that did not fit its models has lost.
    `streaming_request` is the newest request whose answer streams.
    """

    __slots__ = (
        "_parameters", "_requests", "_router", "_schema", "_scope", "attempts", "earlier_messages", "last",
        "left_out", "raises_limit", "streaming_request",
    )  # fmt: skip

    def __init__(
        self,
        router: ModelRouter,
        scope: Scope,
        schema: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] = NO_PARAMETERS,
    ) -> None:
        self._router, self._scope, self._schema, self._parameters = router, scope, schema, parameters
        self.raises_limit = False
        self.attempts: list[JsonObject] = []
        self.last: CompletionResult | None = None
        self.left_out: JsonObject = {}
        self.earlier_messages = 0
        self.streaming_request: CompletionRequest | None = None
        #: requests by the text of their results; only recorded if there is a schema
        self._requests: dict[str, CompletionRequest] = {}

    def bounds(self, request: CompletionRequest) -> CallBounds:
        """The most that a call costs."""
        return self._router.bounds(self._of_run(request))

    def complete(
        self, request: CompletionRequest, renew: Renew | None = None
    ) -> Coroutine[Any, Any, CompletionResult]:
        return self._router.route(
            self._fitted(request),
            take_retry=self._scope.take_retry,
            log=self,
            renew=partial(self._renew, renew),
        )

    def stream(
        self, request: CompletionRequest, renew: Renew | None = None
    ) -> AsyncGenerator[Delta | StreamBroken | CompletionResult, None]:
        self.streaming_request = request = self._fitted(request)
        return self._router.stream(
            request, take_retry=self._scope.take_retry, log=self, renew=partial(self._renew, renew)
        )

    async def _renew(
        self, renew: Renew | None, request: CompletionRequest, usage: Usage
    ) -> CompletionRequest:
        """Charges a failed try to the ledger of its run and reserves the next one; then so does `renew`."""
        if (opened := OPEN_CALL.get()) is not None:
            request = limited(request, await opened.renew(usage, self._router.bounds(request)))
        return request if renew is None else await renew(request, usage)

    def _fitted(self, request: CompletionRequest) -> CompletionRequest:
        """Returns the request with the agent's schema, as the models accept it. Raises: as of `fitted`."""
        request = self._of_run(request)
        limits = self._router.roles.get(request.role, self._router).limits
        if limits is NO_LIMITS:
            return request
        if not (limits.window or request.tools or any(one.attachments for one in request.messages)):
            return request  # text alone, which every model reads
        request, left_out = fitted(request, limits, self.earlier_messages)
        if left_out is not NOTHING:
            self.left_out = left_out.to_json(limits)
        return request

    def record_result(self, request: CompletionRequest, result: CompletionResult) -> None:
        """Records the result of a call."""
        self.last = result
        choice = self._scope.tool_choice
        if choice != "auto" and request.tool_choice == choice:
            self._scope.tool_choice = "auto"
        if self._schema is not None and not result.tool_calls:
            self._requests[result.content] = request
        if result.attempts:
            self.attempts += result.attempts

    @property
    def keeps_requests(self) -> bool:
        """Whether `request_for` may be asked."""
        return self._schema is not None

    def record_replay(self, request: CompletionRequest, result: CompletionResult) -> None:
        """Records the result of a call that was made before the run was resumed."""
        self.record_result(self._of_run(request), result)

    def request_for(self, text: str) -> CompletionRequest | None:
        """The request whose result has this text; None if no call of the run has."""
        return self._requests.get(text)

    def _of_run(self, request: CompletionRequest) -> CompletionRequest:
        """Returns a request whose result may be the answer, with the schema and parameters of the run."""
        if request.role or not request.answers:
            return request
        if self._parameters:
            request = replace(request, parameters=self._merged(request.parameters))
        if request.tools and request.tool_choice == "auto" and self._scope.tool_choice != "auto":
            request = replace(request, tool_choice=self._scope.tool_choice)  # as the caller has chosen
        if self._schema is None or request.output_schema is not None:
            return request
        return replace(request, output_schema=self._schema)

    def _merged(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the parameters of a call with those of the run; the smaller limit of the answer counts."""
        merged = {**own, **self._parameters}
        requested = self._parameters.get("max_tokens")
        if requested is not None and not self.raises_limit:
            limits = [provider.capabilities.answer_tokens for provider in self._router.providers]
            most = own.get("max_tokens") or (max(limits) if all(limits) else requested)
            merged["max_tokens"] = min(requested, most)
        return merged
