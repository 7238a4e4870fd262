"""What every plugin's `open(options, deps)` is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.rag import Embedder, Knowledge
from astromesh.abc.run import RunAgent
from astromesh.abc.tool import ToolSource
from astromesh.errors import AstromeshError
from astromesh.types import JsonObject

T = TypeVar("T")

#: a compiled `context_transform`: a tool call's arguments to the nested run's context; raises ToolFailed
Transform: TypeAlias = Callable[[Mapping[str, Any]], JsonObject]


class _Opening:
    """Who tries to open a resource, and how that ended last."""

    __slots__ = ("failure", "failures", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failures = 0
        self.failure: AstromeshError | None = None


class Resources:
    """Things opened once and shared, closed in reverse: databases, the HTTP session, sub-processes.

    A resource is an async context manager; two users of one key get the same object.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._opened: dict[object, Any] = {}
        self._opening: dict[object, _Opening] = {}

    async def shared(self, key: object, make: Callable[[], Any]) -> Any:
        """The resource of this key; `make()` answers an async context manager on first use.

        Who waits while somebody else tries gets the same failure: it is not waited for once more.
        """
        opening = self._opening.setdefault(key, _Opening())
        asked = opening.failures
        async with opening.lock:
            if key not in self._opened:
                if opening.failure is not None and opening.failures > asked:
                    raise opening.failure
                try:
                    self._opened[key] = await self._stack.enter_async_context(make())
                except AstromeshError as error:
                    opening.failures, opening.failure = opening.failures + 1, error
                    raise
        return self._opened[key]

    def of_type(self, kind: type[T]) -> list[T]:
        """Every opened resource of a type."""
        return [one for one in self._opened.values() if isinstance(one, kind)]

    def on_close(self, close: Callable[[], Awaitable[object]]) -> None:
        self._stack.push_async_callback(close)

    async def close(self) -> None:
        self._opened.clear()
        await self._stack.aclose()


@dataclass(frozen=True, slots=True)
class Deps:
    """What there is to share.

    Args:
        http: the one shared `astromesh.net.http.Http` (typed loosely: abc does not import net).
        data_dir: folder for everything that is kept (`ASTROMESH_DATA_DIR`).
        config_dir: folder of the configuration; relative paths in YAML start here.
        knowledge: RAG pipelines by name, filled before tools open.
        unopened: RAG pipelines that are declared and could not be opened, with the reason.
        embedder: of the block that is opened, for stores that search by vectors; None for words only.
        servers: sources of tools by name (mcp.yaml), opened before the agents' tools.
        graphs: graphs by name: a PromptGraph, or the plain data of one.
        agents: what each agent of the configuration is for, by name; for patterns that choose among them.
        compile_transform: compiles a `context_transform`; raises ConfigError where the template is wrong.
    """

    http: Any = None
    clock: Clock = field(default_factory=SystemClock)
    data_dir: Path = Path(".astromesh")
    config_dir: Path = Path("config")
    storage_url: str = ""
    redis_url: str = ""
    resources: Resources = field(default_factory=Resources)
    knowledge: Mapping[str, Knowledge] = field(default_factory=dict)
    unopened: Mapping[str, AstromeshError] = field(default_factory=dict)
    embedder: Embedder | None = None
    servers: Mapping[str, ToolSource] = field(default_factory=dict)
    graphs: Mapping[str, Any] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    run_agent: RunAgent | None = None
    compile_transform: Callable[[str], Transform] | None = None
