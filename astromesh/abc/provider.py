"""The model seam: a provider is one endpoint with one model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from astromesh.types import BrokeOff, CompletionRequest, CompletionResult, Delta


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model can do and is worth; the router's strategies and the pipeline ask.

    Args:
        json: whether it can keep to an output schema. The embedded provider cannot.
        context_window: tokens, 0 where unknown.
        quality: 0 to 100, for `quality_first`.
        priced: whether `estimated_cost` knows a price; a free endpoint's price is known, it is nothing.
        language_model: False for what stands in where no model answers; every strategy asks it last.
    """

    tools: bool = True
    streaming: bool = True
    vision: bool = False
    json: bool = True
    context_window: int = 0
    quality: float = 50.0
    priced: bool = True
    language_model: bool = True


class Provider(Protocol):
    """One model behind one endpoint. Errors are `ProviderError`s, translated here and nowhere else."""

    #: `provider/model`, e.g. `openai/gpt-4o-mini`: the name of the breaker, of metrics and of errors
    name: str
    #: the configured provider name, e.g. `openai`, and the model's, e.g. `gpt-4o-mini`
    provider: str
    model: str
    capabilities: Capabilities

    async def complete(self, request: CompletionRequest) -> CompletionResult: ...

    def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | CompletionResult]:
        """The provider's own deltas, one by one, then exactly one CompletionResult that holds the whole.

        An async generator; closing it closes the model's connection. A stream that ends early raises.
        """

    def estimated_cost(self, request: CompletionRequest) -> float:
        """US dollars that this request will cost, estimated; 0.0 where no price is known."""

    async def ping(self) -> str | None:
        """Answers what could not be asked, e.g. whether the key is right; nothing where all is well.

        Spends no tokens.

        Raises:
            ProviderError: the endpoint does not answer.
        """

    async def close(self) -> None: ...


class ModelPort(Protocol):
    """The model seam as runs see it: a Provider is one, the model router is one, a wrapper is one."""

    async def complete(self, request: CompletionRequest) -> CompletionResult: ...

    def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | BrokeOff | CompletionResult]:
        """As a provider's; one that can ask somebody else says `BrokeOff` where an answer ends early."""
