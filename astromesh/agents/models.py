"""What a program may pass as a model, as a block of an agent's manifest."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from astromesh.agents.manifest import Live
from astromesh.errors import ConfigError, ProviderRejected, UnknownPlugin
from astromesh.plugins import Plugins
from astromesh.providers.base import Capabilities, ModelPort, Provider
from astromesh.text import did_you_mean
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject, StreamBroken

#: takes a CompletionRequest, returns a text or a CompletionResult
ModelFunction: TypeAlias = Callable[[CompletionRequest], Awaitable["CompletionResult | str"]]
#: a Provider, `provider:name`, a YAML block, or an async function
ModelLike: TypeAlias = "Provider | ModelPort | str | Mapping[str, Any] | ModelFunction"

#: what names of models begin with -> their provider
_PROVIDERS = (
    (re.compile(r"gpt-|chatgpt|o[1-9]\b|text-embedding"), "openai"),
    (re.compile(r"claude"), "anthropic"),
    (re.compile(r"gemini|gemma-"), "gemini"),
    (re.compile(r"llama|mistral|qwen|phi|deepseek|gemma"), "ollama"),
)


def model_block(model: ModelLike, plugins: Plugins) -> JsonObject:
    """Returns the block of `spec.model` that a model is.

    Args:
        plugins: Where providers are looked up.

    Raises:
        UnknownPlugin: A text names no provider; the message says how to write it.
        ConfigError: The argument is nothing that can be a model.
    """
    if isinstance(model, str):
        return _named_block(model, plugins)
    if isinstance(model, Mapping):
        return dict(model)
    if hasattr(model, "complete"):
        return _live_block(_BorrowedModel(model))
    if callable(model):
        return _live_block(_BorrowedModel(FunctionModel(model)))
    raise ConfigError(
        f"{model!r} is not a model. Pass 'provider:name', a Provider, a YAML block or an async function."
    )


def _named_block(text: str, plugins: Plugins) -> JsonObject:
    provider, colon, name = text.partition(":")
    known = plugins.names("providers")
    if provider in known:
        return {"provider": provider, **({"model": name} if name else {})}
    guess = next((owner for pattern, owner in _PROVIDERS if pattern.match(text)), "")
    if guess and not colon:
        raise UnknownPlugin(f"{text!r} does not say whose model it is. Write {f'{guess}:{text}'!r}.")
    hint = did_you_mean(provider, known) or f"Known: {', '.join(known)}."
    raise UnknownPlugin(f"There is no provider {provider!r}. {hint} A model is written 'provider:name'.")


def _live_block(model: _BorrowedModel) -> JsonObject:
    about = f"the Python object {model.name}"
    return {"provider": Live("providers", model, "model", about), "model": model.model}


class FunctionModel:
    """A model that calls a function.

    Args:
        function: Takes a CompletionRequest; returns a text or a CompletionResult, or a coroutine of one.
    """

    def __init__(self, function: Callable[[CompletionRequest], Any]) -> None:
        self._function = function
        self.model = getattr(function, "__name__", type(function).__name__)
        self.name = f"function/{self.model}"

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        result = self._function(request)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, str):
            return CompletionResult(result, provider="function", model=self.model)
        if isinstance(result, CompletionResult):
            return result
        raise ProviderRejected(
            f"The model function returned {result!r}, neither a text nor a CompletionResult."
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result


class _BorrowedModel:
    """A model of the program as a Provider. It keeps its name, and the program closes it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._name: str = getattr(model, "name", "") or type(model).__name__
        self.model: str = getattr(model, "model", "") or self._name.rpartition("/")[2]
        self.provider: str = getattr(model, "provider", "") or self._name.partition("/")[0]
        self.capabilities: Capabilities = getattr(model, "capabilities", None) or Capabilities()

    @property
    def name(self) -> str:
        return self._name

    @name.setter
    def name(self, of_block: str) -> None:
        """Ignores the name of the model's block, which the runtime sets."""

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        result: CompletionResult = await self._model.complete(request)
        return result

    async def stream(
        self, request: CompletionRequest
    ) -> AsyncIterator[Delta | StreamBroken | CompletionResult]:
        async with aclosing(self._model.stream(request)) as pieces:
            async for piece in pieces:
                yield piece

    def estimated_cost(self, request: CompletionRequest) -> float:
        estimate = getattr(self._model, "estimated_cost", None)
        return float(estimate(request)) if estimate is not None else 0.0

    async def ping(self) -> str | None:
        ping = getattr(self._model, "ping", None)
        found: str | None = await ping() if ping is not None else None
        return found

    async def close(self) -> None:
        """Does nothing: the program has made the model, and may use it elsewhere."""
