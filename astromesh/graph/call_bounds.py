"""The most that a model call may cost: what budgets reserve before the call is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from astromesh.providers.base import Provider
from astromesh.tokens import FIRST_ANSWER_TOKENS, estimate_request
from astromesh.types import CompletionRequest

#: a call is not made if less than this is left for its answer
MIN_ANSWER_TOKENS = 16


class CallBounds(NamedTuple):
    """What a model call costs at most.

    Args:
        prompt_tokens: estimated.
        answer_tokens: the limit of the answer.
        prompt_usd: US dollars of the prompt.
        token_usd: US dollars of each token of the answer.
    """

    prompt_tokens: float
    answer_tokens: int
    prompt_usd: float = 0.0
    token_usd: float = 0.0

    @property
    def least(self) -> int:
        """The tokens of an answer below which the call is not made."""
        return min(MIN_ANSWER_TOKENS, self.answer_tokens)

    def answer_within(self, key: str, left: float) -> float:
        """Returns the tokens of an answer that fit what is left of `tokens` or `cost_usd`."""
        if key == "tokens":
            return left - self.prompt_tokens
        if not self.token_usd:
            return float("inf") if self.prompt_usd <= left else -1.0
        return (left - self.prompt_usd) / self.token_usd

    def amount(self, key: str, answer_tokens: float) -> float:
        """Returns what a call costs whose answer has so many tokens."""
        if key == "tokens":
            return self.prompt_tokens + answer_tokens
        return self.prompt_usd + self.token_usd * answer_tokens


def bounds_of(model: Any, request: CompletionRequest) -> CallBounds:
    """Returns the bounds of a call of a `ModelPort`. An object that states none has no price.

    A router states them itself, by its method `bounds`. For a `Provider` they follow from its protocol.
    """
    if (own := getattr(model, "bounds", None)) is not None:
        bounds: CallBounds = own(request)
        return bounds
    return bounds_of_providers((model,) if hasattr(model, "estimated_cost") else (), request)


def bounds_of_providers(
    providers: Iterable[Provider],
    request: CompletionRequest,
    correction: float = 1.0,
    usual: int = FIRST_ANSWER_TOKENS,
) -> CallBounds:
    """Returns the bounds of a call that any of these providers may answer.

    Args:
        correction: factor from estimated tokens to those that the model counts.
        usual: tokens of an answer for which neither the request nor the model's parameters set a limit.
    """
    providers = tuple(providers)
    asked = request.parameters.get("max_tokens")
    if not isinstance(asked, int) or asked < 1:
        asked = max((provider.capabilities.answer_tokens or usual for provider in providers), default=usual)
    prompt_usd = token_usd = 0.0
    for provider in providers:
        first, last = (
            provider.estimated_cost(replace(request, parameters={**request.parameters, "max_tokens": count}))
            for count in (0, asked)
        )
        prompt_usd = max(prompt_usd, first * correction)
        token_usd = max(token_usd, (last - first) / asked)
    return CallBounds(estimate_request(request) * correction, asked, prompt_usd, token_usd)


def limited(request: CompletionRequest, answer_tokens: int) -> CompletionRequest:
    """Returns the request with a limit of its answer."""
    return replace(request, parameters={**request.parameters, "max_tokens": answer_tokens})
