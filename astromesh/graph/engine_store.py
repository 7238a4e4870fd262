"""The store of an engine: opened by its name, while somebody uses it, once in each event loop.

The engine imports this module when it has a store: a graph without one needs no plugins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from astromesh.errors import ConfigError
from astromesh.graph.stored_runs import GraphRuns
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.telemetry.clock import Clock


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
