"""Models of an engine by name: opened in each event loop when they are first asked, closed with it.

The engine imports this module when a model is written as `provider:name`: other graphs need no plugins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

from astromesh.event_loops import OpenPerLoop
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.providers.base import ModelPort, Provider, is_model_name, split_model_name
from astromesh.telemetry.clock import Clock
from astromesh.types import CompletionRequest, CompletionResult, Delta, StreamBroken


class _OpenModels:
    """The models as one event loop has them open."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._plugins, self._resources = clock, Plugins(), Resources()
        self._providers: dict[str, Provider] = {}
        self._opening = asyncio.Lock()

    async def bootstrap(self) -> None:
        """Opens nothing yet."""

    async def provider(self, text: str) -> Provider:
        """Returns the provider of `provider:name`. Raises: ConfigError: it cannot be opened."""
        async with self._opening:
            if text not in self._providers:
                self._providers[text] = await self._open(text)
        return self._providers[text]

    async def _open(self, text: str) -> Provider:
        kind, name = split_model_name(text, self._plugins.names("providers"))
        deps = Deps(await self._resources.shared("http", Http), self._clock, resources=self._resources)
        provider: Provider = await self._plugins.open("providers", kind, {"model": name}, deps)
        provider.provider, provider.name = kind, f"{kind}/{provider.model}"
        self._resources.on_close(provider.close)
        return provider

    async def close(self) -> None:
        await self._resources.close()


class NamedModels:
    """A `ModelPort` that asks the model that the role of a request names, else the main one.

    Args:
        main: A model, or its name.
        names: Roles, of which those with a known provider become models.
        clock: Of the engine.

    Raises:
        UnknownPlugin: `main` names no provider.
    """

    def __init__(self, main: ModelPort | str, names: Iterable[str], clock: Clock) -> None:
        known = Plugins().names("providers")
        if isinstance(main, str):
            split_model_name(main, known)
        self._main = main
        others = frozenset(getattr(main, "roles", ()))
        self._named = frozenset(name for name in names if is_model_name(name, known)) - others
        self.roles = self._named | others
        self._opened = OpenPerLoop(lambda: _OpenModels(clock), self)

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        return await (await self._model(request.role)).complete(request)

    async def stream(
        self, request: CompletionRequest
    ) -> AsyncIterator[Delta | StreamBroken | CompletionResult]:
        model = await self._model(request.role)
        async with aclosing(model.stream(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece

    async def _model(self, role: str) -> ModelPort:
        name = role if role in self._named else self._main
        return await (await self._opened.current()).provider(name) if isinstance(name, str) else name
