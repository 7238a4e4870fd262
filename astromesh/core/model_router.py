"""The model router (document 001, step 8): rank, ask the first whose circuit is closed, else the next.

What is retried, and by whom: the next provider is asked after any failure, for nothing. The same provider is
asked again only when no other is left, the error can heal, and the run still has retries (one budget per run,
over all layers). Nothing is retried once text has left: it can't be taken back. Whether it has, the reader of
the stream knows (`types.BrokeOff`).

What failed tries have cost (`types.charge`) is part of the answer's usage, or noted on the error; whose it is
stands in their lines among the attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import cast

from astromesh.abc.clock import Clock
from astromesh.abc.provider import Provider
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.core.health import Health
from astromesh.core.routed_call import RetryRules, RoutedCall, TakeRetry
from astromesh.core.routing import STRATEGIES, Candidate, lacking, needs_of, rank
from astromesh.errors import AllProvidersFailed, ProviderError, ProviderUnavailable
from astromesh.tokens import estimate_request, size_of
from astromesh.types import BrokeOff, CompletionRequest, CompletionResult, Delta

#: spreads retries; not the process's own generator, which belongs to who embeds the runtime and seeds it
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
        rules: of the agent; its output rules hold for what providers say of their failures.
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
        call = RoutedCall(self.for_role(request.role), request, take_retry)
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
    ) -> AsyncGenerator[Delta | BrokeOff | CompletionResult, None]:
        """As `route`, with the provider's own deltas first; after the first one an error ends the stream.

        But not where the reader answers the `BrokeOff` before it with `unheard`.
        """
        call = RoutedCall(self.for_role(request.role), request, take_retry)
        while (provider := await call.next_provider()) is not None:
            said = 0
            try:
                async with aclosing(_pieces(provider, request)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Delta):
                            said += size_of(piece.content)
                            yield piece
                        else:
                            yield call.succeeded(piece)
                            return
                raise ProviderUnavailable("The stream ended without a result.")
            except ProviderError as error:
                call.failed(error, said)
                if said:
                    yield (broken := BrokeOff())
                    if not broken.unheard:
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
