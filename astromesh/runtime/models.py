"""Models as `build_agent` takes them: a Provider, `provider:name`, a YAML model block, an async function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias, cast

from pydantic import BaseModel, ValidationError

from astromesh.abc.deps import Deps, Resources
from astromesh.abc.provider import ModelPort, Provider
from astromesh.errors import ConfigError, ProviderRejected
from astromesh.net.http import Http
from astromesh.plugins import Plugin, Plugins
from astromesh.types import CompletionRequest, CompletionResult, Delta

ModelFunction: TypeAlias = Callable[[CompletionRequest], Awaitable["CompletionResult | str"]]
ModelLike: TypeAlias = "ModelPort | str | Mapping[str, Any] | ModelFunction"


def as_model(model: ModelLike, plugins: Plugins, resources: Resources) -> ModelPort:
    """A model of whatever was given for one; providers are opened by their first call.

    Args:
        model: a Provider or router as it is; `provider:name`, or a block `{provider, model, …}` as in an
            agent's YAML, by the provider's plugin; an async function of the CompletionRequest that answers a
            text or a CompletionResult.
        plugins: where providers are looked up.
        resources: closes what is opened.

    Raises:
        UnknownPlugin, MissingExtra: of the provider's plugin.
        ConfigError: the block's options are wrong, or it is none of these.
    """
    if hasattr(model, "complete"):
        return cast("ModelPort", model)
    if isinstance(model, str):
        provider, _, name = model.partition(":")
        return _of_block({"provider": provider, "model": name}, plugins, resources)
    if isinstance(model, Mapping):
        return _of_block(model, plugins, resources)
    if callable(model):
        return FunctionModel(model)
    raise ConfigError(
        f"{model!r} is no model: give a Provider, 'provider:name', a block or an async function."
    )


def _of_block(block: Mapping[str, Any], plugins: Plugins, resources: Resources) -> OpenedByUse:
    options = {key: value for key, value in block.items() if key != "provider" and value != ""}
    name = block.get("provider", "")
    plugin = plugins.load("providers", name)
    try:
        valid = plugin.Options.model_validate(options)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise ConfigError(f"The model block of {name!r} is wrong: {faults}.") from error
    return OpenedByUse(plugin, valid, resources)


class OpenedByUse:
    """A provider that is opened by its first call.

    Args:
        plugin: the provider's.
        options: validated ones.
        resources: where the shared HTTP session lives, and what closes the provider.
    """

    def __init__(self, plugin: type[Plugin], options: BaseModel, resources: Resources) -> None:
        self._plugin, self._options, self._resources = plugin, options, resources
        self._provider: Provider | None = None
        self._opening = asyncio.Lock()

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        provider = self._provider or await self._open()
        return await provider.complete(request)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        provider = self._provider or await self._open()
        async with aclosing(provider.stream(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece

    async def _open(self) -> Provider:
        async with self._opening:
            if self._provider is None:
                deps = replace(Deps(resources=self._resources), http=await self._resources.shared(Http, Http))
                opened: Provider = await self._plugin.open(self._options, deps)
                self._resources.on_close(opened.close)
                self._provider = opened
        return self._provider


class FunctionModel:
    """An async function as a model.

    Args:
        function: of the CompletionRequest; answers a text or a CompletionResult.
    """

    def __init__(self, function: Callable[[CompletionRequest], Any]) -> None:
        self._function = function

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        said = self._function(request)
        if inspect.isawaitable(said):
            said = await said
        if isinstance(said, str):
            return CompletionResult(said)
        if isinstance(said, CompletionResult):
            return said
        raise ProviderRejected(
            f"The model function answered {said!r}, neither a text nor a CompletionResult."
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result
