"""Loads a configuration folder; finds call circles, agents that wait for a person, and workflows.

A snapshot has the manifests as they were when a run was accepted: a durable run ends under those that it
began with. It is `{"source": text of the agent's file, "agents": {…}, "graphs": {…}}`, with the agents that
the run may start, and the graphs of all of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import orjson
import yaml

from astromesh.config.agent import AgentManifest
from astromesh.config.base import GraphFindings, GraphMention
from astromesh.config.checks import find_cycles
from astromesh.config.environment import HIDDEN_KEY, hide_api_keys, literal, restore_api_keys
from astromesh.config.folder import Configuration, PythonManifests, load
from astromesh.config.validation import suggest_name
from astromesh.core.prompt_engine import unprovided_names
from astromesh.core.templates import check_template
from astromesh.errors import CircularAgentReference, InvalidInput, InvalidManifest, WorkflowNotFound
from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.problems import least_iterations, named_roles
from astromesh.graph.serialization import find_problems, references
from astromesh.plugins import Plugins
from astromesh.tools.functions import FunctionTool
from astromesh.types import JsonObject


def check_graph(spec: Mapping[str, Any]) -> GraphFindings:
    """Returns the problems of a graph's spec, and the tools and roles that it names."""
    faults = [(problem.location, problem.message) for problem in find_problems(PromptGraph, spec)]
    return GraphFindings(
        faults,
        [GraphMention(*mention) for mention in references(spec)],
        0 if faults else least_iterations(PromptGraph.from_config(spec)),
    )


def roles_of_graphs(graphs: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Returns the models and roles that the nodes of graphs from Python name."""
    return {
        name: named_roles(graph) if isinstance(graph, PromptGraph) else frozenset()
        for name, graph in graphs.items()
    }


def load_configuration(
    folder: Path,
    plugins: Plugins,
    env: Mapping[str, str] | None = None,
    graphs: Mapping[str, Any] = MappingProxyType({}),
    *,
    lint: bool = False,
    python: PythonManifests | None = None,
) -> Configuration:
    """Reads a folder and checks it against the installed plugins.

    Args:
        graphs: Graphs that were made in Python, by name.
        lint: Warns of what may be intended, too: variables of prompts that only requests provide.
        python: Manifests that were made in Python.
    """
    python = python or PythonManifests()
    if not python.only:
        _make_importable(folder)
    return load(
        folder,
        env=os.environ if env is None else env,
        resolver=plugins,
        check_template=check_template,
        graphs=roles_of_graphs(graphs),
        check_graph=check_graph,
        check_prompt=unprovided_names if lint else None,
        python=python,
    )


def detect_circular_refs(edges: Mapping[str, tuple[str, ...]]) -> None:
    """Checks who may call whom (document 001, circular reference safety).

    Raises:
        CircularAgentReference: names the circle, e.g. `a → b → a`.
    """
    for cycle in find_cycles(edges):
        path = " → ".join(cycle)
        raise CircularAgentReference(
            f"Agents call each other in a circle: {path}. Remove one of these tools."
        )


def _make_importable(folder: Path) -> None:
    """Makes `function: module:name` importable from the configuration folder and the folder above it."""
    for place in (folder.resolve(), folder.resolve().parent, *_working_directory()):
        if str(place) not in sys.path:
            sys.path.append(str(place))


def _working_directory() -> tuple[Path, ...]:
    try:
        return (Path.cwd(),)
    except FileNotFoundError:  # it was deleted; an absolute folder can be read all the same
        return ()


# -- agents that wait for a person ---------------------------------------------------------------------------

#: kind of a node that asks a person, as data
_HUMAN_KIND = "human"


def agents_with_approval(configuration: Configuration, graphs: Mapping[str, Any]) -> frozenset[str]:
    """Returns the agents whose runs may have to wait for a person.

    These are agents with a tool that needs approval or a graph with a human node, and all agents that may
    call one of them.

    Args:
        graphs: What `orchestration: {pattern: graph}` may name, as PromptGraph or as data.
    """
    found = set()
    for name, agent in configuration.agents.items():
        options = dict(agent.spec.orchestration.options)
        graph = graphs.get(str(options.get("graph")))
        if _needs_approval(agent) or has_human_node(options) or has_human_node(graph):
            found.add(name)
    while more := {
        n for n, callees in configuration.edges.items() if n not in found and found & set(callees)
    }:
        found |= more
    return frozenset(found)


def _needs_approval(agent: AgentManifest) -> bool:
    tools, tainted = agent.spec.tools, agent.spec.permissions.tainted == "approval"
    harmless = ("read", "write")
    return any(t.approval != "none" or (tainted and t.effective_effect not in harmless) for t in tools)


def has_human_node(graph: Any) -> bool:
    """Whether a graph, or nodes as data, contain a node or tool that asks people, at any depth."""
    if isinstance(graph, PromptGraph):
        return any(map(has_human_node, graph.nodes.values()))
    if isinstance(graph, BaseNode):
        has_human = graph.has_flag(NodeFlag.REQUIRES_HUMAN) or any(map(_has_approval, graph.tools))
        return has_human or any(map(has_human_node, graph.children()))
    if isinstance(graph, Mapping):
        flags = graph.get("flags")
        has_human = isinstance(flags, list) and NodeFlag.REQUIRES_HUMAN.value in flags
        return has_human or graph.get("kind") == _HUMAN_KIND or any(map(has_human_node, graph.values()))
    return isinstance(graph, list | tuple) and any(map(has_human_node, graph))


def _has_approval(tool: Any) -> bool:
    return isinstance(tool, FunctionTool) and tool.policy.get("approval", "none") != "none"


# -- workflows: `workflows/NAME/` of a configuration folder --------------------------------------------------

WORKFLOWS_FOLDER = "workflows"


def workflow_names(config: Path) -> Sequence[str]:
    """Returns the folders that contain a workflow.yaml, sorted."""
    return sorted(file.parent.name for file in (config / WORKFLOWS_FOLDER).glob("*/workflow.yaml"))


def workflow_folder(config: Path, name: str) -> Path:
    """Returns the folder of a workflow by its name, or by its path.

    Raises:
        WorkflowNotFound: there is no such workflow.
    """
    for folder in (config / WORKFLOWS_FOLDER / name, Path(name)):
        if (folder / "workflow.yaml").exists():
            return folder
    raise workflow_not_found(name, workflow_names(config))


def workflow_not_found(name: str, known: Sequence[str]) -> WorkflowNotFound:
    """Returns the error for a name that no workflow has."""
    return WorkflowNotFound(f"There is no workflow {name!r}. {suggest_name(name, known)}")


def snapshot_of(
    configuration: Configuration, name: str, texts: Mapping[Path, str] = MappingProxyType({})
) -> JsonObject:
    """Returns the snapshot of an agent. Args: texts: what replaces the present text of files."""
    agents, graphs = configuration.agents, configuration.graphs
    callees = _called_agents(configuration, name)
    graph_names = {str(dict(agents[n].spec.orchestration.options).get("graph")) for n in (name, *callees)}

    def text(file: Path) -> str:
        return texts[file] if file in texts else manifest_text(file)

    parts = {
        "agents": {n: text(agents[n].file) for n in callees},
        "graphs": {n: text(graphs[n].file) for n in sorted(graph_names & graphs.keys())},
    }
    return {"source": text(agents[name].file), **{key: value for key, value in parts.items() if value}}


def _called_agents(configuration: Configuration, name: str) -> list[str]:
    """Returns the agents that an agent may call, those included that they may call."""
    found: set[str] = set()
    open_names = [name]
    while open_names:
        callees = set(configuration.edges.get(open_names.pop(), ())) & configuration.agents.keys()
        callees -= found | {name}
        found |= callees
        open_names += callees
    return sorted(found)


def manifest_text(file: Path) -> str:
    """Returns a manifest as it was written, with unresolved variables and without literal API keys."""
    try:
        text = file.read_text("utf-8-sig")
    except OSError:  # it was there a moment ago: runs of this agent cannot resume under another manifest
        return ""
    return hide_api_keys(text)


def load_snapshot(
    folder: Path,
    name: str,
    snapshot: JsonObject,
    env: Mapping[str, str],
    plugins: Plugins,
    graphs: Mapping[str, Any] = MappingProxyType({}),
) -> Configuration:
    """Returns the configuration of a snapshot, with the other files of the folder as they are now.

    Args:
        name: The agent of the snapshot.
        graphs: All present graphs, those made in Python included.

    Raises:
        InvalidManifest: the snapshot does not fit the other files.
    """
    agents = {**snapshot.get("agents", {}), name: snapshot["source"]}
    texts = {("Agent", n): _with_keys(text, folder, n) for n, text in agents.items()}
    texts |= {("Graph", n): text for n, text in snapshot.get("graphs", {}).items()}
    with TemporaryDirectory() as place:
        instead = {}
        for number, (what, text) in enumerate(texts.items()):
            instead[what] = Path(place) / f"{number}.{what[0].lower()}.yaml"
            instead[what].write_text(text, "utf-8")
        found = load(
            folder,
            env=env,
            resolver=plugins,
            check_template=check_template,
            replacements=instead,
            graphs=roles_of_graphs(graphs),
        )
    if faults := found.broken.get(name):
        raise InvalidManifest(
            f"The manifest of {name!r} that the run started with is no longer valid: {faults[0]}"
        )
    return found


def _with_keys(source: str, folder: Path, name: str) -> str:
    """Returns a text with the literal API keys of the agent's present file, in their order."""
    file = folder / "agents" / f"{name}.agent.yaml"
    return restore_api_keys(source, file.read_text("utf-8-sig")) if file.exists() else source


# -- a snapshot with another model ---------------------------------------------------------------------------

#: keys of a model block that a caller may choose: where requests go, and with which key, is the operator's
_BLOCK = frozenset({"provider", "model", "parameters"})


def with_model(
    manifest: JsonObject, name: str, model: str | JsonObject, providers: Collection[str]
) -> JsonObject:
    """Returns a manifest in which an agent has another primary model.

    Args:
        name: of one of the agents that the agent may call; empty: the agent itself.
        model: a name, `provider:name`, or a block.
        providers: the known ones.

    Raises:
        InvalidInput: the manifest is not stored, or has a key that would be lost.
    """
    source = manifest.get("agents", {}).get(name, "") if name else manifest.get("source", "")
    node = _node_at(source, ("spec", "model", "primary"))
    if node is None:
        raise InvalidInput("edit.model: the manifest of the run has no spec.model.primary.")
    block, scalar = _block_of(model, providers), None
    if isinstance(model, str) and "provider" not in block:
        scalar = _value_of(node, "model")
        provider = _value_of(node, "provider")
        block = {"provider": provider.value if provider is not None else "", **block}
    if scalar is not None:
        text = _replaced(source, scalar, block["model"])
    elif HIDDEN_KEY in source:
        raise InvalidInput(
            "edit.model: the manifest has literal keys, which are not stored with a run. Name a model of the "
            "same provider."
        )
    else:
        text = _replaced(source, node, block)
    if not name:
        return {**manifest, "source": text}
    return {**manifest, "agents": {**manifest["agents"], name: text}}


def _block_of(model: str | JsonObject, providers: Collection[str]) -> JsonObject:
    if not isinstance(model, str):
        if unknown := model.keys() - _BLOCK:
            raise InvalidInput(
                f"edit.model: `{min(unknown)}` cannot be edited: a block has `provider`, `model` and "
                "`parameters`. Endpoints and keys are in providers.yaml."
            )
        return model
    provider, _, name = model.partition(":")
    return {"provider": provider, "model": name} if provider in providers and name else {"model": model}


def _node_at(source: str, path: Sequence[str]) -> yaml.Node | None:
    found: Any = yaml.compose(source, yaml.SafeLoader) if source else None
    for key in path:
        found = _value_of(found, key)
    return found if isinstance(found, yaml.MappingNode) else None


def _value_of(node: yaml.Node | None, key: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in pairs if name.value == key), None)


def _replaced(source: str, node: Any, value: Any) -> str:
    """Returns a text in which a value stands in place of a node. JSON is YAML."""
    start, end = node.start_mark.index, node.end_mark.index
    before = source[start:end]
    rest = before[len(before.rstrip()) :]  # a block ends where the next token begins
    return f"{source[:start]}{literal(orjson.dumps(value).decode())}{rest}{source[end:]}"
