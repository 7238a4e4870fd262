"""Agents that are declared in Python, as a runtime opens them: a manifest, and live objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from astromesh.config.base import Node
from astromesh.config.folder import PythonManifests
from astromesh.errors import ConfigError
from astromesh.graph.graph import PromptGraph
from astromesh.plugins import Plugins
from astromesh.tools.base import ToolContext

#: returns the system prompt of a run, which is no template
SystemPrompt: TypeAlias = Callable[[ToolContext], "str | Awaitable[str]"]


@dataclass(frozen=True, slots=True)
class LiveParts:
    """What an agent has that no manifest can hold.

    Args:
        system: Makes the system prompt of each run; None: `prompts.system` does.
        output_type: The type of the answer, whose JSON Schema is `output_schema`; None: the schema itself.
        deps: `ToolContext.deps` of runs that bring none of their own.
        wrap_model: Wraps each of its providers and models of nodes, e.g. to record their calls.
        is_one_model: Whether its main model answers for every role and node, e.g. in a test.
    """

    system: SystemPrompt | None = None
    output_type: Any = None
    deps: Any = None
    wrap_model: Callable[[Any], Any] | None = None
    is_one_model: bool = False

    def node_model(self, model: Any) -> Any:
        """Returns what replaces a model that a node has as an object. None: the main model."""
        if self.is_one_model:
            return None
        return model if self.wrap_model is None else self.wrap_model(model)


NO_LIVE_PARTS = LiveParts()


@dataclass(frozen=True, slots=True)
class Declaration:
    """One agent.

    Args:
        manifest: The content of its file.
        servers: Blocks of mcp.yaml that it needs, by name.
        plugins: Its live objects as plugins, by group and name. The names begin with that of the agent.
        graphs: Its graphs by name.
        called: The agents that it may call.
        folder: The configuration folder that the manifest belongs to; None: it belongs to none.
        file: The file that the manifest was read from, if there is one.
    """

    name: str
    manifest: Node
    servers: Mapping[str, Node] = field(default_factory=dict)
    plugins: Mapping[str, Mapping[str, type[Any]]] = field(default_factory=dict)
    graphs: Mapping[str, PromptGraph] = field(default_factory=dict)
    live: LiveParts = NO_LIVE_PARTS
    called: tuple[Declaration, ...] = ()
    folder: Path | None = None
    file: Path | None = None

    def every(self) -> Iterator[Declaration]:
        """Yields the agent, and all that it may call."""
        yield self
        for one in self.called:
            yield from one.every()


class DeclaredAgent(Protocol):
    """An agent that is declared in Python: `astromesh.Agent`."""

    @property
    def declaration(self) -> Declaration: ...


class Declarations:
    """The declared agents of one runtime.

    Args:
        agents: Their declarations; agents that they may call come with them.

    Raises:
        ConfigError: Two agents or servers have one name, or the agents belong to several folders.
    """

    def __init__(self, agents: Iterable[DeclaredAgent] = ()) -> None:
        self._agents: dict[str, Declaration] = {}
        self._servers: dict[str, Node] = {}
        for agent in agents:
            for one in agent.declaration.every():
                self._add(one)
        folders = sorted({str(one.folder) for one in self._agents.values() if one.folder is not None})
        if len(folders) > 1:
            raise ConfigError(f"The agents belong to several configuration folders: {', '.join(folders)}.")
        #: the configuration folder of its agents
        self.folder = Path(folders[0]) if folders else None

    def __bool__(self) -> bool:
        return bool(self._agents)

    @property
    def live(self) -> Mapping[str, LiveParts]:
        return {name: one.live for name, one in self._agents.items()}

    @property
    def graphs(self) -> dict[str, PromptGraph]:
        return {name: graph for one in self._agents.values() for name, graph in one.graphs.items()}

    def manifests(self, *, only: bool) -> PythonManifests:
        """Args: only: whether the runtime has no configuration folder."""
        agents = {n: (a.file or Path(f"Agent({n!r})"), a.manifest) for n, a in self._agents.items()}
        one_model = frozenset(name for name, one in self._agents.items() if one.live.is_one_model)
        return PythonManifests(agents, self._servers, only, one_model)

    def extend(self, plugins: Plugins) -> Plugins:
        """Returns the plugins of a runtime with the live objects of its agents."""
        for one in self._agents.values():
            plugins = plugins.with_extra(one.plugins)
        return plugins

    def _add(self, one: Declaration) -> None:
        known = self._agents.setdefault(one.name, one)
        if known is not one:
            raise ConfigError(f"Two agents are named {one.name!r}. Give one of them another `name`.")
        for name, block in one.servers.items():
            if self._servers.setdefault(name, block).value != block.value:
                raise ConfigError(f"Two MCP servers are named {name!r}. Give one of them another name.")
