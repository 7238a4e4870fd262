"""What an engine opens by name, once in each event loop: its models, and the store while it is used.

The engine imports this module when a model is written as `provider:name`, or when it has a store. Other
graphs need no plugins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from astromesh.errors import ConfigError
from astromesh.event_loops import OpenPerLoop
from astromesh.graph.stored_runs import GraphRuns
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
        from astromesh.net.http import Http  # aiohttp: a graph with a store needs none

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


# -- the store --------------------------------------------------------------------------------------------


class _Opened:
    """The store as one event loop has it open, with connections of its own."""

    def __init__(self) -> None:
        self.users = 0
        self.runs: GraphRuns | None = None
        self.resources = Resources()
        self._lock = asyncio.Lock()

    async def open(self, kind: str, deps: Deps) -> GraphRuns:
        async with self._lock:
            if self.runs is None:
                self.runs = await Plugins().open(
                    "graph_stores", kind, {}, replace(deps, resources=self.resources)
                )
        return self.runs

    async def close(self) -> None:
        if self.runs is not None:
            await self.runs.close()
        await self.resources.close()


class EngineStore:
    """The store of an engine, open while somebody uses it, once in each event loop. `memory` stays open.

    Args:
        url: `memory`, `sqlite:PATH` or `postgres://…`.

    Raises:
        ConfigError: It names no store.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        kind, _, rest = url.partition(":")
        if url == "memory":
            self._kind, self._deps = "memory", Deps(clock=clock)
        elif kind == "sqlite" and rest not in ("", ":memory:"):
            path = Path(rest.removeprefix("//")).absolute()
            self._kind = "sqlite"
            self._deps = Deps(clock=clock, data_dir=path.parent, storage_url=f"sqlite:///{path}")
        elif kind in ("postgres", "postgresql") and rest:
            self._kind, self._deps = "postgres", Deps(clock=clock, storage_url=url)
        else:
            raise ConfigError(
                f"store={url!r} names no store. Pass 'memory', 'sqlite:PATH', or 'postgres://…'."
            )
        self._loops: dict[asyncio.AbstractEventLoop, _Opened] = {}
        self._memory: GraphRuns | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[GraphRuns]:
        """Opens the store unless it is open, and closes it when its last user leaves."""
        if self._memory is not None:
            yield self._memory
            return
        loop = asyncio.get_running_loop()
        found = self._loops.setdefault(loop, _Opened())
        found.users += 1
        try:
            runs = await found.open(self._kind, self._deps)
            if self._kind == "memory":
                self._memory = runs
            yield runs
        finally:
            found.users -= 1
            if not found.users:
                self._loops.pop(loop, None)
                await found.close()
