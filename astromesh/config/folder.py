"""Reads a configuration folder: every file, and every fault at once (docs/configuration.md)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import SecretStr

from astromesh.config import checks
from astromesh.config.agent import AgentManifest, GraphManifest
from astromesh.config.base import (
    GraphCheck,
    GraphMention,
    Node,
    OptionsResolver,
    Place,
    PromptCheck,
    Steps,
    TemplateCheck,
)
from astromesh.config.checks import Finding, KnownNames, Names
from astromesh.config.file import BindingContext, ConfigFile, with_defaults
from astromesh.config.parser import manifest_fault
from astromesh.config.providers import ProviderEntryNode, ProviderManifest
from astromesh.config.rag import RAGManifest, Source
from astromesh.config.runtime import ChannelManifest, MCPManifest, OrchestrationDefaults, RuntimeManifest
from astromesh.config.skills import read_skills
from astromesh.config.validation import suggest_name
from astromesh.errors import InvalidConfiguration, InvalidManifest
from astromesh.providers.base import is_model_name
from astromesh.text import did_you_mean

Faults = tuple[InvalidManifest, ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of a configuration folder.

    Args:
        folder: where it was read.
        agents: valid agents by name.
        broken: agents with faults by name (a file whose name cannot be read counts under its file's name).
        faults: fatal faults: in providers.yaml, runtime.yaml, mcp.yaml or channels.yaml, or a
            missing folder.
        unusable: faults of pipelines and graphs by file; agents that need one of them are broken.
        cycles: one fault for each cycle of agents that call each other.
        warnings: for example a literal api_key or a provider that is skipped.
        edges: for each agent, broken ones too, the agents that it may call.
    """

    folder: Path
    agents: Mapping[str, AgentManifest] = field(default_factory=dict)
    broken: Mapping[str, Faults] = field(default_factory=dict)
    faults: Faults = ()
    unusable: Mapping[str, Faults] = field(default_factory=dict)
    cycles: Faults = ()
    warnings: Faults = ()
    providers: ProviderManifest = field(default_factory=ProviderManifest.absent)
    rag: Mapping[str, RAGManifest] = field(default_factory=dict)
    channels: ChannelManifest = field(default_factory=ChannelManifest.absent)
    mcp: MCPManifest = field(default_factory=MCPManifest.absent)
    runtime: RuntimeManifest = field(default_factory=RuntimeManifest.absent)
    graphs: Mapping[str, GraphManifest] = field(default_factory=dict)
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def every_fault(self) -> Faults:
        """Returns all faults, fatal or not, in file and line order."""
        return tuple(sorted(self._all(), key=lambda f: (f.file, f.line, f.column)))

    def require_sound(self, *, strict: bool = False) -> None:
        """Raises InvalidConfiguration with the fatal faults, or with every fault if `strict`."""
        faults = self.every_fault() if strict else self.faults
        if faults:
            raise InvalidConfiguration(faults)

    def with_storage(self, url: str) -> Configuration:
        """Returns the configuration with another `storage.url`."""
        spec = self.runtime.spec
        storage = spec.storage.model_copy(update={"url": SecretStr(url)})
        runtime = self.runtime.model_copy(update={"spec": spec.model_copy(update={"storage": storage})})
        return replace(self, runtime=runtime)

    def of_agents(self, names: Iterable[str]) -> Configuration:
        """Returns the configuration with only these agents, and those that they may call."""
        reachable = checks.reachable_agents(self.edges, names)
        return replace(
            self,
            agents={name: agent for name, agent in self.agents.items() if name in reachable},
            broken={name: faults for name, faults in self.broken.items() if name in reachable},
            edges={name: callees for name, callees in self.edges.items() if name in reachable},
        )

    def _all(self) -> Iterator[InvalidManifest]:
        yield from self.faults
        yield from self.cycles
        for faults in (*self.broken.values(), *self.unusable.values()):
            yield from faults


#: files that a folder contains at most once → kind
SINGLE_FILES = {
    "runtime.yaml": "RuntimeConfig",
    "providers.yaml": "ProviderConfig",
    "mcp.yaml": "MCPConfig",
    "channels.yaml": "ChannelConfig",
}
#: folder → what its files' names end in, their kind, what one is called
FILE_FOLDERS = {
    "agents": (".agent.yaml", "Agent", "agent"),
    "rag": (".rag.yaml", "RAGPipeline", "RAG pipeline"),
    "graphs": (".graph.yaml", "Graph", "graph"),
}


class PythonManifests(NamedTuple):
    """Manifests that were made in Python, beside those of a folder.

    Args:
        agents: by name, the file of an agent, or what stands for one in messages, and its content. They
            replace files of the same name.
        servers: blocks of mcp.yaml by name, in addition to those of the file.
        only: whether there is no folder; relative paths start in the working directory.
        one_model: agents whose main model answers for every other one.
    """

    agents: Mapping[str, tuple[Path, Node]] = {}
    servers: Mapping[str, Node] = {}
    only: bool = False
    one_model: Collection[str] = ()


_NONE_IN_PYTHON = PythonManifests()
_NO_FOLDER = "'astromesh new DIR' writes a project, and 'astromesh init' adds a configuration to one."


def load(  # noqa: PLR0913 (a keyword for each thing that the checks depend on)
    folder: str | Path,
    *,
    env: Mapping[str, str] | None = None,
    resolver: OptionsResolver | None = None,
    check_template: TemplateCheck | None = None,
    replacements: Mapping[tuple[str, str], Path] | None = None,
    graphs: Mapping[str, Collection[str]] = MappingProxyType({}),
    check_graph: GraphCheck | None = None,
    check_prompt: PromptCheck | None = None,
    python: PythonManifests = _NONE_IN_PYTHON,
) -> Configuration:
    """Reads a folder. Faults are part of the result; raises nothing.

    Args:
        folder: the configuration's; one without agents is sound, a missing one is a fault.
        env: environment variables; absent: the process's own.
        resolver: the plugins, e.g. `astromesh.plugins.Plugins()`; absent: plugin blocks are not looked into.
        check_template: says what is wrong with a Jinja template; absent: templates are not looked into.
        replacements: by kind and name, e.g. `("Agent", "support")`, a file that replaces the folder's.
        graphs: graphs that were made in Python, in addition to those of the folder: by name, the models and
            roles that their nodes name.
        check_graph: says what is wrong with a graph; absent: graphs are not looked into.
        check_prompt: names variables of a system prompt that nothing provides; absent: no such warnings.
        python: manifests that were made in Python.
    """
    folder = Path(folder)
    if not python.only and not folder.is_dir():
        if folder.exists():
            return Configuration(folder, faults=(manifest_fault(folder, "is not a folder", Place()),))
        absent = manifest_fault(folder, "the folder does not exist", Place(), hint=_NO_FOLDER)
        return Configuration(folder, faults=(absent,))
    variables = os.environ if env is None else env
    context = BindingContext(folder, variables, resolver)
    checkers = Checkers(check_template, check_graph, check_prompt)
    return _FolderLoader(folder, context, checkers, replacements or {}, graphs, python).run()


class Checkers(NamedTuple):
    """Checks of templates and graphs, which the configuration package cannot do itself."""

    template: TemplateCheck | None
    graph: GraphCheck | None
    prompt: PromptCheck | None


class _FolderLoader:
    """Loads one folder. Processes files in an order in which each finds what it refers to."""

    def __init__(
        self,
        folder: Path,
        context: BindingContext,
        checkers: Checkers,
        replacements: Mapping[tuple[str, str], Path],
        python_graphs: Mapping[str, Collection[str]],
        python: PythonManifests,
    ) -> None:
        self._replacements, self._python = replacements, python
        self._python_graphs = python_graphs
        self._folder = folder
        self._context = context
        self._checkers = checkers
        self._runtime_spec = RuntimeManifest.absent().spec
        #: graph → names that its agents must declare, each with its place
        self._mentions: dict[str, list[tuple[GraphMention, str]]] = {}
        #: graph → node executions that it needs
        self._least_iterations: dict[str, int] = {}
        #: graph → models and roles that its nodes name
        self._roles: dict[str, Collection[str]] = dict(python_graphs)

    def run(self) -> Configuration:
        runtime, providers, mcp, channels = (self._single(name) for name in SINGLE_FILES)
        agents, pipelines, graphs = (self._many(name) for name in FILE_FOLDERS)
        self._runtime(runtime)
        self._providers(providers)
        self._mcp(mcp)
        self._pipelines(pipelines)
        self._graphs(graphs)
        names = _file_names(agents)
        self._channels(channels, names)
        defaults = (
            runtime.manifest.spec.defaults.orchestration if runtime.manifest else OrchestrationDefaults()
        )
        known = KnownNames(
            agents=names,
            pipelines=_file_names(pipelines),
            graphs=_file_names(graphs, self._python_graphs),
            servers=None if mcp.faults or mcp.manifest is None else set(mcp.manifest.spec.servers),
            broken=_first_faults((*pipelines, *graphs)),
        )
        for file in agents:
            self._agent(file, defaults, known)
        edges = {file.name: _called_agents(file, defaults.pattern) for file in agents}
        _check_prices(agents, edges)
        single = (runtime, providers, mcp, channels)
        every = (*single, *agents, *pipelines, *graphs)
        return Configuration(
            folder=self._folder,
            agents={file.name: file.manifest for file in agents if not file.faults},
            broken=_faults_by_name(agents),
            faults=(*self._unreadable_folders(), *(one for file in single for one in file.sorted_faults())),
            unusable={str(f.path): f.sorted_faults() for f in (*pipelines, *graphs) if f.faults},
            cycles=tuple(_call_cycles(agents, edges, defaults.pattern)),
            warnings=(*self._unread_files(), *(found for file in every for found in file.warnings)),
            rag={file.name: file.manifest for file in pipelines if not file.faults},
            graphs={file.name: file.manifest for file in graphs if not file.faults},
            edges=edges,
            **_sound_manifests(runtime=runtime, providers=providers, mcp=mcp, channels=channels),
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def _single(self, name: str) -> ConfigFile:
        path, kind = self._folder / name, SINGLE_FILES[name]
        if self._python.only or not os.path.lexists(path):
            return ConfigFile.absent(kind, path)
        return ConfigFile.read(kind, path, self._context.env)

    def _many(self, name: str) -> list[ConfigFile]:
        suffix, kind, what = FILE_FOLDERS[name]
        paths = [] if self._python.only else sorted((self._folder / name).glob(f"*{suffix}"))
        files = [ConfigFile.read(kind, path, self._context.env) for path in paths]
        if replacing := {name: path for (of, name), path in self._replacements.items() if of == kind}:
            files = [file for file in files if file.name not in replacing]
            files += [ConfigFile.read(kind, path, self._context.env) for path in replacing.values()]
        if kind == "Agent":
            made = self._python.agents
            files = [file for file in files if file.name not in made]
            files += [ConfigFile(kind, path, root) for path, root in made.values()]
        _reject_duplicate_names(files, what)
        return files

    def _unreadable_folders(self) -> Iterator[InvalidManifest]:
        """Yields a fault for each folder that cannot be listed: a glob finds nothing there."""
        for name in () if self._python.only else FILE_FOLDERS:
            folder = self._folder / name
            try:
                list(folder.iterdir())
            except OSError as error:
                if os.path.lexists(folder):
                    yield manifest_fault(folder, f"cannot be read: {error.strerror}", Place())

    def _unread_files(self) -> Iterator[Any]:
        """Yields a warning for each YAML file that is not read."""
        if self._python.only:
            return
        for path in sorted(self._folder.glob("*.y*ml")):
            if path.name not in SINGLE_FILES:
                yield manifest_fault(path, "is not read", Place(), (), did_you_mean(path.name, SINGLE_FILES))
        for name, (suffix, _, _) in FILE_FOLDERS.items():
            for path in sorted((self._folder / name).glob("*.y*ml")):
                if not path.name.endswith(suffix):
                    yield manifest_fault(path, "is not read", Place(), (), f"Its name must end in {suffix}.")
            # Kubernetes mounts files as links into hidden folders
            for path in sorted((self._folder / name).glob("[!.]*/**/*.y*ml")):
                yield manifest_fault(path, "is not read", Place(), (), f"It must be in {name}/ itself.")

    # -- kinds -----------------------------------------------------------------------------------------------

    def _runtime(self, file: ConfigFile) -> None:
        data_dir = self._context.env.get("ASTROMESH_DATA_DIR") or ".astromesh"
        url = {"url": f"sqlite:///{data_dir}/astromesh.db"}
        file.validate(lambda root: with_defaults(root, ("spec", "storage"), url))
        file.bind(self._context)
        file.check(lambda manifest, _: checks.check_authentication(manifest.spec.auth, self._context.env))
        if file.manifest is not None:
            self._runtime_spec = file.manifest.spec

    def _providers(self, file: ConfigFile) -> None:
        file.validate()
        file.bind(self._context)
        if file.manifest is not None:
            entries = {
                name: ProviderEntryNode(record, file.sound.get("spec", "providers", name) or Node({}))
                for name, record in file.manifest.spec.providers.items()
            }
            self._context = self._context._replace(entries=entries)

    def _mcp(self, file: ConfigFile) -> None:
        file.validate(lambda root: _with_servers(root, self._python.servers))
        file.check(_check_servers)

    def _channels(self, file: ConfigFile, agents: Names) -> None:
        file.validate()
        file.bind(self._context)
        file.check(lambda manifest, _: _check_channel_agents(manifest, agents))

    def _pipelines(self, files: Iterable[ConfigFile]) -> None:
        for file in files:
            file.validate()
            file.bind(self._context)
            file.check(_check_pipeline)
            file.warn(lambda m, _: self._backends((("spec", "store"), m.spec.store)))

    def _graphs(self, files: Iterable[ConfigFile]) -> None:
        for file in files:
            file.validate()
            self._roles[file.name] = frozenset(_named_roles(file.root.value))
            if self._checkers.graph is not None and file.manifest is not None:
                found = self._checkers.graph(file.manifest.spec)
                file.add_findings(Finding(("spec", *steps), message) for steps, message in found.faults)
                self._mentions[file.name] = [
                    (mention, file.location(("spec", *mention.steps))) for mention in found.mentions
                ]
                self._least_iterations[file.name] = found.least_iterations

    def _agent(self, file: ConfigFile, defaults: OrchestrationDefaults, known: KnownNames) -> None:
        file.validate(lambda root: self._with_node_models(_with_orchestration(root, defaults), file.name))
        file.bind(self._context)
        file.check(lambda m, root: checks.check_agent(m, root, file.root, known, self._checkers.template))
        self._skills(file)
        file.check(lambda m, _: self._graph_requirements(m))
        file.warn(lambda m, _: self._backends(*_memory_blocks(m)))
        if (check := self._checkers.prompt) is not None and not file.faults:
            file.warn(lambda m, root: checks.unprovided_variables(m, root, check))

    def _with_node_models(self, root: Node, agent: str) -> Node:
        """Makes a role of each model that a node of the agent names as `provider:name`."""
        block = root.get("spec", "orchestration")
        if block is None:
            return root
        plugins = () if self._context.resolver is None else self._context.resolver.names("providers")
        named = {*self._roles.get(block.text("graph"), ()), *_named_roles(block.value)}
        at: Steps = ("spec", "model", "roles")
        if agent in self._python.one_model:
            primary = root.get("spec", "model", "primary")
            models = dict.fromkeys(sorted(named), {} if primary is None else primary.value)
        else:
            models = {
                name: dict(zip(("provider", "model"), name.split(":", 1), strict=True))
                for name in sorted(named)
                if is_model_name(name, {*plugins, *self._context.entries})
            }
        return with_defaults(root, at, {name: {"primary": one} for name, one in models.items()})

    def _skills(self, file: ConfigFile) -> None:
        if file.manifest is None:
            return
        found = read_skills(self._folder / path for path in file.manifest.spec.skills)
        file.add_findings(checks.check_skills(file.manifest, found))
        file.warnings += found.warnings
        file.manifest.bind_skills(found.skills)

    def _backends(self, *blocks: tuple[Steps, Any]) -> Iterator[Finding]:
        return checks.backends_without_url(blocks, self._runtime_spec)

    def _graph_requirements(self, manifest: AgentManifest) -> Iterator[Finding]:
        block = manifest.spec.orchestration
        graph = block.plugin_value("graph") if block.pattern == "graph" else None
        if isinstance(graph, str) and graph not in self._python_graphs:
            yield from checks.check_graph_requirements(manifest, graph, self._mentions.get(graph, ()))
            yield from checks.check_graph_length(manifest, graph, self._least_iterations.get(graph, 0))


def _named_roles(value: Any) -> Iterator[str]:
    """Yields the texts at the key `model_override` of nodes, nested ones too."""
    if isinstance(value, dict):
        if isinstance(role := value.get("model_override"), str):
            yield role
        value = value.values()
    elif not isinstance(value, list):
        return
    for below in value:
        yield from _named_roles(below)


# -- details of a kind ---------------------------------------------------------------------------------------
def _with_orchestration(root: Node, defaults: OrchestrationDefaults) -> Node:
    """Applies the defaults of runtime.yaml."""
    at = ("spec", "orchestration")
    pattern = root.text(*at, "pattern") or defaults.pattern
    iterations = checks.PATTERN_ITERATIONS.get(pattern, defaults.max_iterations)
    values = {"pattern": pattern, "max_iterations": iterations, "timeout_seconds": defaults.timeout_seconds}
    return with_defaults(root, at, values)


def _memory_blocks(manifest: AgentManifest) -> Iterator[tuple[Steps, Any]]:
    memory = manifest.spec.memory
    for kind in ("conversational", "semantic", "episodic"):
        yield ("spec", "memory", kind), getattr(memory, kind)


def _with_servers(root: Node, servers: Mapping[str, Node]) -> Node:
    """Adds servers that were declared in Python to mcp.yaml."""
    if not servers or not isinstance(root.value, dict):
        return root
    spec = root.get("spec") or Node({})
    declared = spec.get("servers") or Node({})
    for name, block in servers.items():
        declared = declared.with_entry(name, block)
    return root.with_entry("spec", spec.with_entry("servers", declared))


def _check_servers(manifest: MCPManifest, _: Node) -> Iterator[Finding]:
    for name, record in manifest.spec.servers.items():
        yield from checks.check_mcp_server(name, record)


def _check_channel_agents(manifest: ChannelManifest, agents: Names) -> Iterator[Finding]:
    for name, block in manifest.spec.channels.items():
        at: Steps = ("spec", "channels", name)
        named = {(*at, "default_agent"): block.default_agent}
        named |= {(*at, "agents", ours): agent for ours, agent in block.agents.items()}
        for where, agent in named.items():
            if agents is not None and agent not in agents:
                yield Finding(where, f"unknown agent `{agent}`", suggest_name(agent, agents))


def _check_pipeline(manifest: RAGManifest, _: Node) -> Iterator[Finding]:
    spec = manifest.spec
    if spec.embeddings is None and spec.mode != "lexical":
        yield Finding(
            ("spec", "retrieval", "mode"),
            f"{spec.mode} needs spec.embeddings",
            "Add them, or write `mode: lexical`.",
        )
    if spec.shared and not spec.owner:
        message = "`shared: true` needs `owner`, whose documents every tenant then reads"
        yield Finding(("spec", "shared"), message, "Add `owner: TENANT`.")
    if spec.owner and not spec.shared:
        yield Finding(("spec", "owner"), "has no effect without `shared: true`", "Add it, or remove `owner`.")
    if spec.retrieval.reranker and spec.retrieval.cross_encoder:
        message = "has no effect with `reranker`: one of them orders the passages"
        yield Finding(("spec", "retrieval", "cross_encoder"), message, "Remove one of them.")
    for i, source in enumerate(spec.sources):
        yield from _check_source(manifest, source, ("spec", "sources", i))


def _check_source(manifest: RAGManifest, source: Source, at: Steps) -> Iterator[Finding]:
    if bool(source.path) == bool(source.url):
        yield Finding(at, "needs either `path` or `url`", "Write `path: FOLDER` or `url: https://…`.")
    elif source.type is not None and (source.type == "http") != bool(source.url):
        yield Finding(
            (*at, "type"),
            f"a source of the type {source.type} does not have the key `{'path' if source.path else 'url'}`",
            "Remove `type`, or correct the other key.",
        )
    elif source.path and not manifest.folder(source).is_dir():
        message = f"the folder {manifest.folder(source)} does not exist"
        yield Finding((*at, "path"), message, "Create it, or correct the path.")


# -- details of the whole ------------------------------------------------------------------------------------
def _file_names(files: Iterable[ConfigFile], others: Iterable[str] = ()) -> Names:
    """Returns the names of these files and others; None where an unreadable file may define more."""
    files = tuple(files)
    return {*others, *(file.name for file in files)} if all(file.root.entries for file in files) else None


def _kind_noun(file: ConfigFile) -> str:
    return next(what for _, kind, what in FILE_FOLDERS.values() if kind == file.kind)


def _first_faults(files: Iterable[ConfigFile]) -> dict[str, str]:
    """Returns the place of the first fault of each broken file, by what the file defines."""
    found = {
        f"{_kind_noun(file)} {file.name}": (file, file.sorted_faults()[0]) for file in files if file.faults
    }
    return {
        what: f"{file.path}:{first.line}:{first.column}" if first.line else str(file.path)
        for what, (file, first) in found.items()
    }


def _reject_duplicate_names(files: Iterable[ConfigFile], what: str) -> None:
    """Adds a fault to both of two files with the same name."""
    first: dict[str, ConfigFile] = {}
    for file in files:
        if (other := first.setdefault(file.name, file)) is not file:
            other.add_findings([_duplicate_name(file, what)])
            file.add_findings([_duplicate_name(other, what)])


def _duplicate_name(other: ConfigFile, what: str) -> Finding:
    at: Steps = ("metadata", "name")
    message = f"duplicate {what} `{other.name}`, also in {other.location(at)}"
    return Finding(at, message, "Rename one of them.")


def _called_agents(file: ConfigFile, pattern: str) -> tuple[str, ...]:
    """Returns the agents that a file's agent may call, as far as the file is readable.

    Args:
        pattern: that of an agent that names none.
    """
    return tuple(dict.fromkeys(name for name, _ in _agent_references(file.root, pattern)))


def _agent_references(root: Node, default: str) -> Iterator[tuple[str, Steps]]:
    """Yields each agent that an agent may call, with its path.

    Ignores keys that the pattern does not know.
    """
    for i, tool in root.children("spec", "tools"):
        if tool.text("type") == "agent" and tool.text("agent"):
            yield tool.text("agent"), ("spec", "tools", i, "agent")
    orchestration: Steps = ("spec", "orchestration")
    pattern = root.text(*orchestration, "pattern") or default
    key = checks.AGENT_LISTS.get(pattern)
    for steps in ((*orchestration, key), (*orchestration, pattern, key)) if key else ():
        for i, node in root.children(*steps):
            if isinstance(node.value, str) and node.value:
                yield node.value, (*steps, i)


def _check_prices(files: Collection[ConfigFile], edges: Mapping[str, tuple[str, ...]]) -> None:
    manifests = {file.name: file.manifest for file in files if file.manifest is not None}
    for file in files:
        names = checks.reachable_agents(edges, edges[file.name]) - {file.name}
        below = [manifests[name] for name in sorted(names) if name in manifests]
        if file.manifest is not None:
            file.add_findings(checks.check_prices(file.manifest, below))


def _call_cycles(
    agents: Iterable[ConfigFile], edges: Mapping[str, tuple[str, ...]], pattern: str
) -> Iterator[Any]:
    by_name = {file.name: file for file in agents}
    for circle in checks.find_cycles({name: edges[name] for name in by_name}):
        file = by_name[circle[0]]
        steps = dict(_agent_references(file.root, pattern)).get(circle[1], ("spec", "tools"))
        message = f"agents call each other in a cycle: {' → '.join(circle)}"
        yield manifest_fault(
            file.path, message, file.root.place_of(steps), steps, "Remove one of the references."
        )


def _faults_by_name(files: Iterable[ConfigFile]) -> dict[str, Faults]:
    broken: dict[str, Faults] = {}
    for file in files:
        if file.faults:
            broken[file.name] = (*broken.get(file.name, ()), *file.sorted_faults())
    return broken


def _sound_manifests(**files: ConfigFile) -> dict[str, Any]:
    return {
        name: file.manifest for name, file in files.items() if file.manifest is not None and not file.faults
    }
