"""Plugins: entry-point groups to factories, and the dependencies that `open(options, deps)` receives.

The name in YAML is the name of the entry point. It loads a class with a pydantic `Options` and a classmethod
`async open(options, deps)` that returns the implementation. Built-in plugins are registered in the same way.
A plugin is imported when the configuration first names it (docs/architecture.md).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, distributions
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel

from astromesh.errors import (
    AstromeshError,
    ConfigError,
    MissingExtra,
    UnknownPlugin,
    described,
    is_failure,
)
from astromesh.knowledge.base import Embedder, KnowledgePipeline
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.text import did_you_mean
from astromesh.tools.base import RunAgent, ToolSource
from astromesh.types import JsonObject

T = TypeVar("T")

#: a compiled `context_transform`: maps the arguments of a tool call to the context of the nested run; raises
#: ToolFailed
Transform: TypeAlias = Callable[[Mapping[str, Any]], JsonObject]


class _OpenAttempts:
    """Serializes the attempts to open a resource, and holds the last failure."""

    __slots__ = ("failure", "failures", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failures = 0
        self.failure: AstromeshError | None = None


#: whether what runs opens a resource, which its `Resources` closes
OPENS_RESOURCE: ContextVar[bool] = ContextVar("astromesh_opens_resource", default=False)


class Resources:
    """Resources that are opened once, shared, and closed in reverse order, e.g. databases and HTTP sessions.

    A resource is an async context manager. All users of a key share one object.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._opened: dict[object, Any] = {}
        self._opening: dict[object, _OpenAttempts] = {}

    async def shared(self, key: object, make: Callable[[], Any]) -> Any:
        """Returns the resource of this key; `make()` returns the async context manager on first use.

        Callers that wait for the same attempt share its failure instead of repeating the attempt.
        """
        opening = self._opening.setdefault(key, _OpenAttempts())
        failures_before = opening.failures
        async with opening.lock:
            if key not in self._opened:
                if opening.failure is not None and opening.failures > failures_before:
                    raise opening.failure
                token = OPENS_RESOURCE.set(True)
                try:
                    self._opened[key] = await self._stack.enter_async_context(make())
                except AstromeshError as error:
                    opening.failures, opening.failure = opening.failures + 1, error
                    raise
                finally:
                    OPENS_RESOURCE.reset(token)
        return self._opened[key]

    def of_type(self, kind: type[T]) -> list[T]:
        """Returns every opened resource of a type."""
        return [one for one in self._opened.values() if isinstance(one, kind)]

    def on_close(self, close: Callable[[], Awaitable[object]]) -> None:
        self._stack.push_async_callback(close)

    async def close(self) -> None:
        self._opened.clear()
        await self._stack.aclose()


@dataclass(frozen=True, slots=True)
class Deps:
    """Shared dependencies of plugins.

    Args:
        http: the shared `astromesh.net.http.Http` (typed loosely: this module does not import net).
        data_dir: folder for all stored data (`ASTROMESH_DATA_DIR`).
        listen_url: of the same database, for LISTEN beside a pooler; empty: `storage_url`.
        config_dir: folder of the configuration; relative paths in YAML start here.
        knowledge: RAG pipelines by name, opened before the tools.
        unavailable_knowledge: declared RAG pipelines that could not be opened, with the error.
        embedder: of the block that is opened, for stores that search by vectors; None for words only.
        servers: tool sources by name (mcp.yaml), opened before the agents' tools.
        graphs: graphs by name: a PromptGraph, or the plain data of one.
        roles: the names in `spec.model.roles` of the agent that is opened.
        agents: descriptions of the configured agents by name, for patterns that choose among them.
        node_model: returns what replaces a model that a node of a graph has as an object; None stands for
            the model of the agent.
        compile_transform: compiles a `context_transform`; raises ConfigError if the template is invalid.
    """

    http: Any = None
    clock: Clock = field(default_factory=SystemClock)
    data_dir: Path = Path(".astromesh")
    config_dir: Path = Path("config")
    storage_url: str = ""
    listen_url: str = ""
    sqlite_synchronous: Literal["full", "normal"] = "full"
    redis_url: str = ""
    resources: Resources = field(default_factory=Resources)
    knowledge: Mapping[str, KnowledgePipeline] = field(default_factory=dict)
    unavailable_knowledge: Mapping[str, AstromeshError] = field(default_factory=dict)
    embedder: Embedder | None = None
    servers: Mapping[str, ToolSource] = field(default_factory=dict)
    graphs: Mapping[str, Any] = field(default_factory=dict)
    roles: Collection[str] = ()
    agents: Mapping[str, str] = field(default_factory=dict)
    run_agent: RunAgent | None = None
    node_model: Callable[[Any], Any] | None = None
    compile_transform: Callable[[str], Transform] | None = None


PREFIX = "astromesh."
GROUPS = (
    "providers",
    "conversation_stores",
    "semantic_stores",
    "episodic_stores",
    "memory_strategies",
    "tools",
    "tool_sources",
    "guardrails",
    "patterns",
    "nodes",
    "channels",
    "inboxes",
    "inbox_workers",
    "embedders",
    "vector_stores",
    "chunkers",
    "pipelines",
    "readers",
    "authenticators",
    "run_stores",
    "task_stores",
    "graph_stores",
    "budget_stores",
    "call_limits",
    "exporters",
    "durable_backends",
    "publishers",
)
#: former group -> group; the former name is accepted for one version, with a warning
_RENAMED_GROUPS: Mapping[str, str] = {"desks": "inbox_workers"}

log = get_logger("astromesh.plugins")


class Plugins:
    """The plugins of one runtime: the installed ones, and those passed in Python.

    Args:
        extra: `{group: {name: class}}`; take precedence over installed ones. For tests and embedding.
    """

    def __init__(self, extra: Mapping[str, Mapping[str, type[Any]]] | None = None) -> None:
        self._extra = {_current_group(group): dict(classes) for group, classes in (extra or {}).items()}
        self._loaded: dict[tuple[str, str], type[Any]] = {}

    def with_extra(self, extra: Mapping[str, Mapping[str, type[Any]]]) -> Plugins:
        """Returns plugins with more classes, `{group: {name: class}}`, which take precedence."""
        groups = {*self._extra, *extra}
        return Plugins({group: {**self._extra.get(group, {}), **extra.get(group, {})} for group in groups})

    def names(self, group: str) -> tuple[str, ...]:
        """Returns every name of a group, sorted; imports nothing."""
        return tuple(sorted({*self._extra.get(group, ()), *self._installed(group)}))

    def load(self, group: str, name: str) -> type[Any]:
        """Returns the class of a name.

        Raises:
            UnknownPlugin: no plugin has the name; the message lists the known names.
            MissingExtra: its optional dependency is not installed.
        """
        if name in self._extra.get(group, ()):
            return self._extra[group][name]
        if (group, name) not in self._loaded:
            self._loaded[group, name] = self._import(group, name)
        return self._loaded[group, name]

    def origin(self, group: str, name: str) -> str:
        """Returns `module:Class distribution==version` of a plugin, or an empty string; imports nothing."""
        extra = self._extra.get(group, {}).get(name)
        if extra is not None:
            return f"{extra.__module__}:{extra.__qualname__}"
        point = self._installed(group).get(name)
        if point is None:
            return ""
        return f"{point.value} {point.dist.name}=={point.dist.version}" if point.dist else point.value

    def options(self, group: str, name: str) -> type[BaseModel]:
        """Returns the `Options` of a name. `config` uses Plugins as its resolver by this and `names`."""
        options: type[BaseModel] = self.load(group, name).Options
        return options

    async def open(self, group: str, name: str, options: Mapping[str, Any] | BaseModel, deps: Deps) -> Any:
        """Imports the plugin and opens it.

        The first import runs in a thread: some libraries take seconds, and the event loop stays free.

        Args:
            options: its `Options`, or their values.

        Raises:
            ConfigError: the plugin cannot be imported, or it ended with `SystemExit`.
        """
        is_loaded = name in self._extra.get(group, ()) or (group, name) in self._loaded
        plugin = self.load(group, name) if is_loaded else await asyncio.to_thread(self.load, group, name)
        if isinstance(options, Mapping):
            options = plugin.Options.model_validate(dict(options))
        with _contained_exit(group, name):
            return await plugin.open(options, deps)

    def _installed(self, group: str) -> dict[str, EntryPoint]:
        return _entry_points(tuple(sys.path)).get(PREFIX + group, {})

    def _import(self, group: str, name: str) -> type[Any]:
        point = self._installed(group).get(name)
        if point is None:
            known = self.names(group)
            hint = did_you_mean(name, known)
            raise UnknownPlugin(
                f"There is no {group} plugin `{name}`. {hint + ' ' if hint else ''}"
                f"Known: {', '.join(known) or 'none'}."
            )
        try:
            with _contained_exit(group, name):
                loaded: type[Any] = point.load()
        except (ImportError, AttributeError) as error:
            if isinstance(error, AttributeError) or (error.name or "").startswith(point.module.split(".")[0]):
                raise MissingExtra(
                    f"The {group} plugin `{name}` is registered as {point.value}, which does not exist. "
                    f"Reinstall its package; in a checkout: make venv."
                ) from error
            extra = f"'astromesh[{point.extras[0]}]'" if point.extras else (error.name or str(error))
            raise MissingExtra(
                f"The {group} plugin `{name}` needs a package that is not installed. Run: pip install {extra}"
            ) from error
        return loaded


@contextmanager
def _contained_exit(group: str, name: str) -> Iterator[None]:
    """Raises a ConfigError where a plugin would end the process."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception | asyncio.CancelledError) or not is_failure(error):
            raise
        raise ConfigError(
            f"The {group} plugin `{name}` could not be loaded: it raised {described(error)}."
        ) from error


@lru_cache(maxsize=8)
def _entry_points(path: tuple[str, ...]) -> dict[str, dict[str, EntryPoint]]:
    """Returns the installed entry points by group and name."""
    found: dict[str, dict[str, EntryPoint]] = {PREFIX + known: {} for known in GROUPS}
    seen = set()
    for name, points in chain.from_iterable(map(_entry_points_in, path)):
        if name in seen:
            continue  # the first copy on the path is the one that Python imports
        seen.add(name)
        for point in points:
            group = PREFIX + _current_group(point.group.removeprefix(PREFIX), name)
            if group in found:
                found[group][point.name] = point
    return found


@cache
def _entry_points_in(folder: str) -> tuple[tuple[str, tuple[EntryPoint, ...]], ...]:
    """Returns the names of the distributions in a folder of the path, and their entry points for astromesh.

    Reading takes milliseconds, and parses only distributions that name a group of astromesh. The folders of
    projects come and go; that of the packages is read once.
    """
    return tuple(
        (one.name, tuple(point for point in one.entry_points if point.group.startswith(PREFIX)))
        for one in distributions(path=[folder])
        if PREFIX in (one.read_text("entry_points.txt") or "")
    )


def _current_group(group: str, distribution: str = "") -> str:
    """Returns the current name of an entry-point group; logs a warning for a former one."""
    current = _RENAMED_GROUPS.get(group, group)
    if current != group:
        log.warning(
            "plugin_group_renamed", group=PREFIX + group, use=PREFIX + current, distribution=distribution
        )
    return current
