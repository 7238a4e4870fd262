"""From the arguments of an agent, or from its YAML file, to what a runtime opens."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from astromesh.agents.arguments import AgentTool
from astromesh.agents.manifest import Live, live_objects, live_plugin, replace_live, to_yaml
from astromesh.config.base import Node, node_from_value
from astromesh.config.parser import read_file
from astromesh.errors import ConfigError, InvalidConfiguration, InvalidGraph
from astromesh.plugins import Deps, Plugins
from astromesh.runtime.declarations import NO_LIVE_PARTS, Declaration, LiveParts
from astromesh.types import JsonObject

_GRAPHS = "graphs"


@dataclass(frozen=True)
class Source:
    """What an agent is made of.

    Args:
        manifest: The content of its file, with live objects.
        text: Its YAML file, if it was read from one and nothing has been replaced since.
        servers: Blocks of mcp.yaml by name.
        called: The agents that it may call.
        folder: The configuration folder of its file.
        file, node: Its file as it was read, if nothing has been replaced since.
    """

    name: str
    manifest: JsonObject
    live: LiveParts = NO_LIVE_PARTS
    text: str = ""
    servers: Mapping[str, JsonObject] = field(default_factory=dict)
    called: tuple[Any, ...] = ()
    folder: Path | None = None
    file: Path | None = None
    node: Node | None = None

    def yaml(self, *, strict: bool) -> str:
        """Raises: ConfigError: `strict`, and something cannot be written."""
        return self.text or to_yaml(self.manifest, strict=strict)

    def with_model(self, block: JsonObject) -> Source:
        """Returns the agent with one model in place of all."""
        changed = self._with_spec("model", {"primary": block})
        return replace(changed, live=replace(self.live, is_one_model=True))

    def with_tools(self, blocks: list[JsonObject], called: Iterable[AgentTool]) -> Source:
        """Returns the agent with other tools."""
        changed = self._with_spec("tools", blocks)
        return replace(changed, called=tuple(one.agent for one in called), servers={})

    def _with_spec(self, key: str, value: Any) -> Source:
        spec = {**self.manifest.get("spec", {}), key: value}
        return replace(self, manifest={**self.manifest, "spec": spec}, text="", file=None, node=None)

    @property
    def declaration(self) -> Declaration:
        """Returns what a runtime opens. Each live object is a plugin, or a graph, with a name of its own."""
        plugins: dict[str, dict[str, type[Any]]] = {}
        graphs = {}
        names: dict[int, str] = {}
        for _, one in live_objects(self.manifest):
            name = names.setdefault(id(one), self._free_name(one, names.values()))
            if one.group == _GRAPHS:
                graphs[name] = one.value
            elif one.group:
                plugin = one.value if isinstance(one.value, type) else live_plugin(one.value)
                plugins.setdefault(one.group, {})[name] = plugin
        named = replace_live(self.manifest, lambda one: names[id(one)])
        return Declaration(
            self.name,
            self.node or node_from_value(named),
            {name: node_from_value(block) for name, block in self.servers.items()},
            plugins,
            graphs,
            self.live,
            tuple(agent.declaration for agent in self.called),
            self.folder,
            self.file,
        )

    def _free_name(self, one: Live, taken: Iterable[str]) -> str:
        name, number = f"{self.name}.{one.label}", 1
        while name in taken:
            number += 1
            name = f"{self.name}.{one.label}-{number}"
        return name

    def require_sound_graphs(self) -> None:
        """Raises: InvalidGraph: a graph of the agent cannot run."""
        for _, one in live_objects(self.manifest):
            if one.group == _GRAPHS and (problems := one.value.validate()):
                raise InvalidGraph(problems)


def source_of_file(path: Path, live: LiveParts) -> Source:
    """Reads the file of an agent.

    A file `FOLDER/agents/NAME.agent.yaml` belongs to the configuration in FOLDER.

    Raises:
        InvalidConfiguration: The file cannot be read, or is not YAML.
    """
    document = read_file(path, os.environ)
    if document.node is None or document.faults:
        raise InvalidConfiguration(document.faults)
    folder = path.absolute().parent
    return Source(
        document.node.text("metadata", "name") or path.name.split(".")[0],
        document.node.value,
        live,
        document.text,
        folder=folder.parent if folder.name == "agents" else None,
        file=path,
        node=document.node,
    )


class KeptStores:
    """Stores in memory of one agent, by group. They live as long as the agent, not as an event loop."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._live: dict[str, Live] = {}

    def live(self, group: str) -> Live:
        """Returns the store of a group for a manifest."""
        if group not in self._live:
            plugin = self._plugins.load(group, "in_memory")
            written = {"backend": "in_memory"}
            kept = _kept_plugin(plugin)
            self._live[group] = Live(group, kept, f"memory.{group}", "a store in memory", written)
        return self._live[group]


def _kept_plugin(plugin: type[Any]) -> type[Any]:
    opened: list[Any] = []

    class KeptStore:
        """Opens the store once; the runtimes of all event loops share it."""

        Options = plugin.Options

        def __init__(self, store: Any) -> None:
            self._store = store

        @classmethod
        async def open(cls, options: Any, deps: Deps) -> Any:
            if not opened:
                opened.append(await plugin.open(options, deps))
            return cls(opened[0])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def close(self) -> None:
            """Does nothing: the next event loop finds the conversations here."""

    return KeptStore


# -- where runs are stored ---------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where an agent stores what its runs leave.

    Args:
        data_dir: A folder; None: `.astromesh`.
        storage_url: `storage.url` of its runtime; empty: a file in the folder.
    """

    data_dir: str | Path | None = None
    storage_url: str = ""


def place_of(store: str | None, data_dir: str | Path | None, owner: object) -> Place:
    """Returns where runs are stored that wait for a person.

    Args:
        store: `memory`, `sqlite:PATH`, or `postgres://…`.
        owner: What a store in memory lives as long as: it is a folder that goes with it.

    Raises:
        ConfigError: The text names no store.
    """
    if store is None:
        return Place(data_dir)
    kind, _, rest = store.partition(":")
    if store == "memory":
        folder = mkdtemp(prefix="astromesh-")
        weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
        return Place(data_dir or folder, f"sqlite:///{folder}/runs.db")
    if kind == "sqlite" and rest not in ("", ":memory:"):
        return Place(data_dir, f"sqlite:///{Path(rest.removeprefix('//')).absolute()}")
    if kind in ("postgres", "postgresql") and rest:
        return Place(data_dir, store)
    raise ConfigError(f"store={store!r} names no store. Pass 'memory', 'sqlite:PATH', or 'postgres://…'.")
