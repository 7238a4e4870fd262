"""What a program may pass as a model, as a block of an agent's manifest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from astromesh.agents.manifest import Live
from astromesh.errors import ConfigError
from astromesh.graph.calls import FunctionModel, ModelFunction
from astromesh.plugins import Plugins
from astromesh.providers.base import Capabilities, ModelPort, Provider, split_model_name
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject, StreamBroken

#: a Provider, `provider:name`, a YAML block, or an async function
ModelLike: TypeAlias = "Provider | ModelPort | str | Mapping[str, Any] | ModelFunction"


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
    provider, name = split_model_name(text, plugins.names("providers"))
    return {"provider": provider, **({"model": name} if name else {})}


def _live_block(model: _BorrowedModel) -> JsonObject:
    about = f"the Python object {model.name}"
    return {"provider": Live("providers", model, "model", about), "model": model.model}


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
