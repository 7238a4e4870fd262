"""Plugins: entry-point groups to factories (architecture.md section 4).

The name in YAML is the entry point's name. What it loads is a class with a pydantic `Options` and
`async open(options, deps)`, a classmethod that answers the implementation. Built-ins come through the same
door. A plugin loads when the configuration first names it.
"""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from astromesh.abc.deps import Deps
from astromesh.errors import MissingExtra, UnknownPlugin

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
    "desks",
    "embedders",
    "vector_stores",
    "chunkers",
    "pipelines",
    "readers",
    "authenticators",
    "run_stores",
    "task_stores",
    "budget_stores",
    "exporters",
    "durable_backends",
    "publishers",
)


class Plugin(Protocol):
    """A class that can be named in YAML."""

    Options: ClassVar[type[BaseModel]]

    @classmethod
    async def open(cls, options: Any, deps: Deps) -> Any: ...


class Plugins:
    """The plugins of one runtime: those installed, plus those given in Python.

    Args:
        extra: `{group: {name: class}}`, taking precedence over installed ones; for tests and embedding.
    """

    def __init__(self, extra: Mapping[str, Mapping[str, type[Any]]] | None = None) -> None:
        self._extra = {group: dict(named) for group, named in (extra or {}).items()}
        self._loaded: dict[tuple[str, str], type[Any]] = {}

    def names(self, group: str) -> tuple[str, ...]:
        """Every name of a group, sorted, loading nothing."""
        return tuple(sorted({*self._extra.get(group, ()), *self._installed(group)}))

    def load(self, group: str, name: str) -> type[Any]:
        """The class of a name.

        Raises:
            UnknownPlugin: nobody offers it; the message lists the known names.
            MissingExtra: its optional dependency is not installed.
        """
        if name in self._extra.get(group, ()):
            return self._extra[group][name]
        if (group, name) not in self._loaded:
            self._loaded[group, name] = self._import(group, name)
        return self._loaded[group, name]

    def origin(self, group: str, name: str) -> str:
        """Where a plugin is from, as `module:Class distribution==version`, or ''; loads nothing."""
        given = self._extra.get(group, {}).get(name)
        if given is not None:
            return f"{given.__module__}:{given.__qualname__}"
        point = self._installed(group).get(name)
        if point is None:
            return ""
        return f"{point.value} {point.dist.name}=={point.dist.version}" if point.dist else point.value

    def options(self, group: str, name: str) -> type[BaseModel]:
        """The `Options` of a name; with `names` this makes Plugins the resolver that `config` asks."""
        options: type[BaseModel] = self.load(group, name).Options
        return options

    async def open(self, group: str, name: str, options: Mapping[str, Any], deps: Deps) -> Any:
        """Loads, validates the options and opens. Options are validated at load already; see config.

        What nobody has loaded yet is imported in a thread: some libraries take seconds, the loop stays free.
        """
        here = name in self._extra.get(group, ()) or (group, name) in self._loaded
        plugin = self.load(group, name) if here else await asyncio.to_thread(self.load, group, name)
        return await plugin.open(plugin.Options.model_validate(dict(options)), deps)

    def _installed(self, group: str) -> dict[str, EntryPoint]:
        return _points(tuple(sys.path)).get(PREFIX + group, {})

    def _import(self, group: str, name: str) -> type[Any]:
        point = self._installed(group).get(name)
        if point is None:
            known = self.names(group)
            near = difflib.get_close_matches(name, known, 1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise UnknownPlugin(
                f"There is no {group} plugin {name!r}.{guess} Known: {', '.join(known) or 'none'}."
            )
        try:
            loaded: type[Any] = point.load()
        except ImportError as error:
            extra = f"'astromesh[{point.extras[0]}]'" if point.extras else (error.name or str(error))
            raise MissingExtra(
                f"{group} plugin {name!r} needs what is not installed: pip install {extra}"
            ) from error
        return loaded


@cache
def _points(_path: tuple[str, ...]) -> dict[str, dict[str, EntryPoint]]:
    """What is installed, by group and name. Reading it takes a few milliseconds: once for a search path.

    Only the entry points of distributions that name a group of ours are parsed: `entry_points()` parses all.
    """
    found: dict[str, dict[str, EntryPoint]] = {PREFIX + known: {} for known in GROUPS}
    seen = set()
    for distribution in distributions():
        if PREFIX not in (distribution.read_text("entry_points.txt") or "") or distribution.name in seen:
            continue  # the first one on the path is the one that is imported
        seen.add(distribution.name)
        for point in distribution.entry_points:
            if point.group in found:
                found[point.group][point.name] = point
    return found
