"""What may be the model of an engine or of a node: a model, a function, or a name."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias

from astromesh.errors import ConfigError, ProviderRejected
from astromesh.providers.base import ModelPort
from astromesh.types import CompletionRequest, CompletionResult, Delta

#: Takes a CompletionRequest, returns a text or a CompletionResult.
ModelFunction: TypeAlias = Callable[[CompletionRequest], Awaitable["CompletionResult | str"]]


def as_model(value: Any) -> ModelPort:
    """Returns a model, or a function as one.

    Raises:
        ConfigError: It is neither.
    """
    if hasattr(value, "complete"):
        return value  # type: ignore[no-any-return]
    if callable(value):
        return FunctionModel(value)
    raise ConfigError(f"{value!r} is not a model. Pass 'provider:name', a Provider or an async function.")


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
