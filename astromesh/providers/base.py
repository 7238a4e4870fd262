"""The model protocols: a provider is one endpoint with one model, written `provider:name`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Protocol

from astromesh.errors import UnknownPlugin
from astromesh.text import did_you_mean
from astromesh.types import CompletionRequest, CompletionResult, Delta, StreamBroken

#: the sampling parameters that a request may bring, by the names of `CompletionRequest.parameters`
SAMPLING = frozenset({
    "temperature", "top_p", "max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features and quality of a model, for the router's strategies and the pipeline.

    Args:
        json: whether it supports output schemas. The embedded provider does not.
        context_window: tokens; 0 if unknown.
        quality: 0 to 100, for `quality_first`.
        priced: whether `estimated_cost` knows a price; a free endpoint has the known price 0.
        language_model: False for a stand-in; every strategy uses it last.
        answer_tokens: most tokens of an answer by its configured parameters; 0: they set no limit.
        parameters: names of the sampling parameters that its requests have.
        audio: whether it accepts audio.
        files: whether it reads PDF files.
        text_only: the operator says that it accepts no images; without it a call with images may succeed.
    """

    tools: bool = True
    streaming: bool = True
    vision: bool = False
    json: bool = True
    context_window: int = 0
    quality: float = 50.0
    priced: bool = True
    language_model: bool = True
    answer_tokens: int = 0
    text_only: bool = False
    audio: bool = False
    files: bool = False
    parameters: frozenset[str] = SAMPLING


class Provider(Protocol):
    """One model behind one endpoint. It translates all errors to `ProviderError`s."""

    #: `provider/model`, e.g. `openai/gpt-4o-mini`: the name of the breaker, of metrics and of errors
    name: str
    #: the configured provider name, e.g. `openai`, and the model's, e.g. `gpt-4o-mini`
    provider: str
    model: str
    capabilities: Capabilities

    async def complete(self, request: CompletionRequest) -> CompletionResult: ...

    def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | CompletionResult]:
        """Yields the provider's deltas, then exactly one CompletionResult with the whole answer.

        Closing the async generator closes the model's connection. A stream that ends early raises an error.
        """

    def estimated_cost(self, request: CompletionRequest) -> float:
        """Returns the estimated cost of a request in US dollars; 0.0 if no price is known.

        The answer counts with the request's `max_tokens`, else with a usual length.
        """

    async def ping(self) -> str | None:
        """Checks the endpoint. Returns what could not be checked, e.g. the key; None if all is well.

        Spends no tokens.

        Raises:
            ProviderError: the endpoint does not answer.
        """

    async def close(self) -> None: ...


class ModelPort(Protocol):
    """A model as runs see it: a Provider, the model router, or a wrapper."""

    async def complete(self, request: CompletionRequest) -> CompletionResult: ...

    def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | StreamBroken | CompletionResult]:
        """Yields as a provider does, and `StreamBroken` if an answer ends early and another model answers."""


# -- models by name ------------------------------------------------------------------------------------------

#: what names of models begin with -> their provider
_PROVIDERS = (
    (re.compile(r"gpt-|chatgpt|o[1-9]\b|text-embedding"), "openai"),
    (re.compile(r"claude"), "anthropic"),
    (re.compile(r"gemini|gemma-"), "gemini"),
    (re.compile(r"llama|mistral|qwen|phi|deepseek|gemma"), "ollama"),
)


def is_model_name(text: str, providers: Collection[str]) -> bool:
    """Whether a text is `provider:name` with one of these providers."""
    provider, colon, name = text.partition(":")
    return bool(colon and name) and provider in providers


def missing_provider(text: str) -> str:
    """Returns the sentence about a name of a model without its provider, or an empty text."""
    guess = next((owner for pattern, owner in _PROVIDERS if pattern.match(text)), "")
    if not guess or ":" in text:
        return ""
    return f"{text!r} does not say whose model it is. Write {f'{guess}:{text}'!r}."


def split_model_name(text: str, providers: Collection[str]) -> tuple[str, str]:
    """Returns the provider and the name of a model. A provider alone has an empty name.

    Args:
        providers: The known ones.

    Raises:
        UnknownPlugin: The text names none of them. The message says how to write it.
    """
    provider, _, name = text.partition(":")
    if provider in providers:
        return provider, name
    if hint := missing_provider(text):
        raise UnknownPlugin(hint)
    hint = did_you_mean(provider, providers) or f"Known: {', '.join(providers)}."
    raise UnknownPlugin(f"There is no provider {provider!r}. {hint} A model is written 'provider:name'.")
