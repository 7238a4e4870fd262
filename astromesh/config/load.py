"""Reads a folder of configuration: every file, and every fault at once (api.md section 4)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from astromesh.config import checks
from astromesh.config.agent import AgentManifest
from astromesh.config.binding import Binder, Given
from astromesh.config.channels import ChannelManifest
from astromesh.config.checks import Finding, Known, Names
from astromesh.config.configuration import Configuration, Faults
from astromesh.config.endpoints import PlacedEntry
from astromesh.config.file import File, with_defaults
from astromesh.config.keys import did_you_mean
from astromesh.config.loader import fault
from astromesh.config.mcp import MCPManifest
from astromesh.config.nodes import Node, Place, Steps
from astromesh.config.providers import ProviderManifest
from astromesh.config.rag import RAGManifest
from astromesh.config.runtime import OrchestrationDefaults
from astromesh.config.seams import GraphCheck, GraphMention, OptionsResolver, TemplateCheck, Unsupported

#: files of which a folder holds one
SINGLE = {
    "runtime.yaml": "RuntimeConfig",
    "providers.yaml": "ProviderConfig",
    "mcp.yaml": "MCPConfig",
    "channels.yaml": "ChannelConfig",
}
#: folder → what its files' names end in, their kind, what one is called
MANY = {
    "agents": (".agent.yaml", "Agent", "agent"),
    "rag": (".rag.yaml", "RAGPipeline", "RAG pipeline"),
    "graphs": (".graph.yaml", "Graph", "graph"),
}


def load(  # noqa: PLR0913 (a keyword for each thing that a folder is checked against)
    folder: str | Path,
    *,
    env: Mapping[str, str] | None = None,
    resolver: OptionsResolver | None = None,
    check_template: TemplateCheck | None = None,
    unsupported: Unsupported | None = None,
    instead: Mapping[tuple[str, str], Path] | None = None,
    graphs: Iterable[str] = (),
    check_graph: GraphCheck | None = None,
) -> Configuration:
    """Reads a folder. What is wrong with it stands in the answer; nothing is raised.

    Args:
        folder: the configuration's; one without agents is sound, a missing one is a fault.
        env: environment variables; absent: the process's own.
        resolver: the plugins, e.g. `astromesh.plugins.Plugins()`; absent: plugin blocks are not looked into.
        check_template: says what is wrong with a Jinja template; absent: templates are not looked into.
        unsupported: what this runtime does not do yet.
        instead: by kind and name, e.g. `("Agent", "support")`, a file that stands in for the one there is.
        graphs: names of graphs that were made in Python, beside those of the folder.
        check_graph: says what is wrong with a graph; absent: graphs are not looked into.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "there is no such folder"
        return Configuration(folder, faults=(fault(folder, what, Place()),))
    variables = os.environ if env is None else env
    given = Given(folder, variables, resolver)
    looks = Looks(check_template, check_graph)
    return _Load(folder, given, looks, unsupported or {}, instead or {}, frozenset(graphs)).run()


class Looks(NamedTuple):
    """What looks into texts that the configuration itself cannot judge."""

    template: TemplateCheck | None
    graph: GraphCheck | None


class _Load:
    """One load. Files come in an order in which each finds what it refers to."""

    def __init__(
        self,
        folder: Path,
        given: Given,
        looks: Looks,
        unsupported: Unsupported,
        instead: Mapping[tuple[str, str], Path],
        made: frozenset[str],
    ) -> None:
        self._instead = instead
        self._made = made
        self._folder = folder
        self._given = given
        self._looks = looks
        #: by graph: what it names that its agents must have, each with where it stands
        self._mentions: dict[str, list[tuple[GraphMention, str]]] = {}
        self._unsupported = unsupported

    def run(self) -> Configuration:
        runtime, providers, mcp, channels = (self._single(name) for name in SINGLE)
        agents, pipelines, graphs = (self._many(name) for name in MANY)
        self._runtime(runtime)
        self._providers(providers)
        self._mcp(mcp)
        self._pipelines(pipelines)
        self._graphs(graphs)
        names = _names(agents)
        self._channels(channels, names)
        defaults = (
            runtime.manifest.spec.defaults.orchestration if runtime.manifest else OrchestrationDefaults()
        )
        known = Known(
            agents=names,
            pipelines=_names(pipelines),
            graphs=_names(graphs, self._made),
            servers=None if mcp.faults or mcp.manifest is None else set(mcp.manifest.spec.servers),
            broken=_first_faults((*pipelines, *graphs)),
        )
        for file in agents:
            self._agent(file, defaults, known)
        edges = {file.name: _calls(file, defaults.pattern) for file in agents}
        single = (runtime, providers, mcp, channels)
        every = (*single, *agents, *pipelines, *graphs)
        return Configuration(
            folder=self._folder,
            agents={file.name: file.manifest for file in agents if not file.faults},
            broken=_by_name(agents),
            faults=tuple(found for file in single for found in file.sorted_faults()),
            unusable={str(f.path): f.sorted_faults() for f in (*pipelines, *graphs) if f.faults},
            circles=tuple(_circles(agents, edges, defaults.pattern)),
            warnings=(*self._strangers(), *(found for file in every for found in file.warnings)),
            rag={file.name: file.manifest for file in pipelines if not file.faults},
            graphs={file.name: file.manifest for file in graphs if not file.faults},
            edges=edges,
            **_sound(runtime=runtime, providers=providers, mcp=mcp, channels=channels),
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def _single(self, name: str) -> File:
        path, kind = self._folder / name, SINGLE[name]
        if not path.exists():
            return File.absent(kind, path)
        return File.read(kind, path, self._given.env)

    def _many(self, name: str) -> list[File]:
        suffix, kind, what = MANY[name]
        paths = sorted((self._folder / name).glob(f"*{suffix}"))
        files = [File.read(kind, path, self._given.env) for path in paths]
        if given := {name: path for (of, name), path in self._instead.items() if of == kind}:
            files = [file for file in files if file.name not in given]
            files += [File.read(kind, path, self._given.env) for path in given.values()]
        _refuse_twins(files, what)
        return files

    def _strangers(self) -> Iterator[Any]:
        """YAML files that nobody reads are more often a slip than a wish."""
        for path in sorted(self._folder.glob("*.y*ml")):
            if path.name not in SINGLE:
                yield fault(path, "is not read", Place(), (), did_you_mean(path.name, SINGLE))
        for name, (suffix, _, _) in MANY.items():
            for path in sorted((self._folder / name).glob("*.y*ml")):
                if not path.name.endswith(suffix):
                    yield fault(path, "is not read", Place(), (), f"the name must end in {suffix}")
            # hidden folders are how Kubernetes mounts files: those that we read are links to theirs
            for path in sorted((self._folder / name).glob("[!.]*/**/*.y*ml")):
                yield fault(path, "is not read", Place(), (), f"it must stand in {name}/ itself")

    # -- kinds -----------------------------------------------------------------------------------------------

    def _runtime(self, file: File) -> None:
        data_dir = self._given.env.get("ASTROMESH_DATA_DIR") or ".astromesh"
        url = {"url": f"sqlite:///{data_dir}/astromesh.db"}
        file.validate(lambda root: with_defaults(root, ("spec", "storage"), url))
        file.refuse(self._unsupported)
        file.check(lambda manifest, _: checks.authentication(manifest.spec.auth, self._given.env))

    def _providers(self, file: File) -> None:
        file.validate()
        file.refuse(self._unsupported)
        file.bind(self._given, _bind_entries)
        if file.manifest is not None:
            entries = {
                name: PlacedEntry(record, file.sound.get("spec", "providers", name) or Node({}))
                for name, record in file.manifest.spec.providers.items()
            }
            self._given = self._given._replace(entries=entries)

    def _mcp(self, file: File) -> None:
        file.validate()
        file.refuse(self._unsupported)
        file.check(_servers)

    def _channels(self, file: File, agents: Names) -> None:
        file.validate()
        file.refuse(self._unsupported)
        file.bind(self._given, _bind_channels)
        file.check(lambda manifest, _: _channel_agents(manifest, agents))

    def _pipelines(self, files: Iterable[File]) -> None:
        for file in files:
            file.validate()
            file.refuse(self._unsupported)
            file.bind(self._given, lambda binder, manifest: binder.pipeline(manifest.spec))
            file.check(_pipeline)

    def _graphs(self, files: Iterable[File]) -> None:
        for file in files:
            file.validate()
            file.refuse(self._unsupported)
            if self._looks.graph is not None and file.manifest is not None:
                found = self._looks.graph(file.manifest.spec)
                file.take(Finding(("spec", *steps), message) for steps, message in found.faults)
                self._mentions[file.name] = [
                    (mention, file.where(("spec", *mention.steps))) for mention in found.mentions
                ]

    def _agent(self, file: File, defaults: OrchestrationDefaults, known: Known) -> None:
        file.validate(lambda root: _with_orchestration(root, defaults))
        file.refuse(self._unsupported)
        file.bind(self._given, Binder.agent)
        file.check(lambda m, root: checks.agent(m, root, file.root, known, self._looks.template))
        file.check(lambda m, _: self._needs(m))
        if file.manifest is not None:
            file.manifest.release(checks.released(file.manifest))

    def _needs(self, manifest: AgentManifest) -> Iterator[Finding]:
        block = manifest.spec.orchestration
        graph = block.own("graph") if block.pattern == "graph" else None
        if isinstance(graph, str) and graph not in self._made:
            yield from checks.graph_needs(manifest, graph, self._mentions.get(graph, ()))


# -- details of a kind ---------------------------------------------------------------------------------------


def _with_orchestration(root: Node, defaults: OrchestrationDefaults) -> Node:
    """The defaults of runtime.yaml, where the agent says nothing."""
    at = ("spec", "orchestration")
    pattern = root.text(*at, "pattern") or defaults.pattern
    iterations = checks.ITERATIONS.get(pattern, defaults.max_iterations)
    values = {"pattern": pattern, "max_iterations": iterations, "timeout_seconds": defaults.timeout_seconds}
    return with_defaults(root, at, values)


def _bind_entries(binder: Binder, manifest: ProviderManifest) -> None:
    for name, record in manifest.spec.providers.items():
        binder.entry(name, record)


def _bind_channels(binder: Binder, manifest: ChannelManifest) -> None:
    for name, block in manifest.spec.channels.items():
        binder.channel(name, block)


def _servers(manifest: MCPManifest, _: Node) -> Iterator[Finding]:
    for name, record in manifest.spec.servers.items():
        yield from checks.server(name, record)


def _channel_agents(manifest: ChannelManifest, agents: Names) -> Iterator[Finding]:
    for name, block in manifest.spec.channels.items():
        at: Steps = ("spec", "channels", name)
        named = {(*at, "default_agent"): block.default_agent}
        named |= {(*at, "agents", ours): agent for ours, agent in block.agents.items()}
        for where, agent in named.items():
            if agents is not None and agent not in agents:
                yield Finding(where, f"there is no agent {agent!r}", did_you_mean(agent, agents))


def _pipeline(manifest: RAGManifest, _: Node) -> Iterator[Finding]:
    spec = manifest.spec
    if spec.embeddings is None and spec.mode != "lexical":
        yield Finding(("spec", "retrieval", "mode"), f"{spec.mode} needs spec.embeddings")
    for i, source in enumerate(spec.sources):
        if not manifest.folder(source).is_dir():
            yield Finding(("spec", "sources", i, "path"), f"there is no folder {manifest.folder(source)}")


# -- details of the whole ------------------------------------------------------------------------------------


def _names(files: Iterable[File], others: Iterable[str] = ()) -> Names:
    """The names of these files and others, unless a file cannot be read: nobody knows its name."""
    files = tuple(files)
    return {*others, *(file.name for file in files)} if all(file.root.entries for file in files) else None


def _what(file: File) -> str:
    return next(what for _, kind, what in MANY.values() if kind == file.kind)


def _first_faults(files: Iterable[File]) -> dict[str, str]:
    """By what they define, where the first fault of each broken file stands."""
    found = {f"{_what(file)} {file.name}": (file, file.sorted_faults()[0]) for file in files if file.faults}
    return {
        what: f"{file.path}:{first.line}:{first.column}" if first.line else str(file.path)
        for what, (file, first) in found.items()
    }


def _refuse_twins(files: Iterable[File], what: str) -> None:
    """Two files of one name: nobody can tell which is meant, so neither runs."""
    first: dict[str, File] = {}
    for file in files:
        if (twin := first.setdefault(file.name, file)) is not file:
            twin.take([_twin(file, what)])
            file.take([_twin(twin, what)])


def _twin(other: File, what: str) -> Finding:
    at: Steps = ("metadata", "name")
    return Finding(at, f"another {what} has the name {other.name!r}: {other.where(at)}")


def _calls(file: File, pattern: str) -> tuple[str, ...]:
    """Agents that a file's agent may call, as far as it can be read.

    Args:
        pattern: that of an agent that names none.
    """
    return tuple(dict.fromkeys(name for name, _ in _callings(file.root, pattern)))


def _callings(root: Node, default: str) -> Iterator[tuple[str, Steps]]:
    """Each agent that is named to be called, and where. A key that its pattern does not know calls nobody."""
    for i, tool in root.children("spec", "tools"):
        if tool.text("type") == "agent" and tool.text("agent"):
            yield tool.text("agent"), ("spec", "tools", i, "agent")
    orchestration: Steps = ("spec", "orchestration")
    pattern = root.text(*orchestration, "pattern") or default
    key = checks.CALLED.get(pattern)
    for steps in ((*orchestration, key), (*orchestration, pattern, key)) if key else ():
        for i, node in root.children(*steps):
            if isinstance(node.value, str) and node.value:
                yield node.value, (*steps, i)


def _circles(agents: Iterable[File], edges: Mapping[str, tuple[str, ...]], pattern: str) -> Iterator[Any]:
    by_name = {file.name: file for file in agents}
    for circle in checks.circles({name: edges[name] for name in by_name}):
        file = by_name[circle[0]]
        steps = dict(_callings(file.root, pattern)).get(circle[1], ("spec", "tools"))
        message = f"agents call each other in a circle: {' → '.join(circle)}"
        yield fault(file.path, message, file.root.place_of(steps), steps)


def _by_name(files: Iterable[File]) -> dict[str, Faults]:
    broken: dict[str, Faults] = {}
    for file in files:
        if file.faults:
            broken[file.name] = (*broken.get(file.name, ()), *file.sorted_faults())
    return broken


def _sound(**files: File) -> dict[str, Any]:
    return {
        name: file.manifest for name, file in files.items() if file.manifest is not None and not file.faults
    }
