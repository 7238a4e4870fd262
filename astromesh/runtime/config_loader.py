"""Loads a configuration folder; finds call circles, agents that wait for a person, and workflows."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from astromesh.config.agent import AgentManifest
from astromesh.config.base import GraphFindings, GraphMention
from astromesh.config.checks import find_cycles
from astromesh.config.folder import Configuration, PythonManifests, load
from astromesh.config.validation import suggest_name
from astromesh.core.prompt_engine import unprovided_names
from astromesh.core.templates import check_template
from astromesh.errors import CircularAgentReference, WorkflowNotFound
from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.problems import least_iterations, named_roles
from astromesh.graph.serialization import find_problems, references
from astromesh.plugins import Plugins
from astromesh.tools.functions import FunctionTool


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
    while more := {n for n, called in configuration.edges.items() if n not in found and found & set(called)}:
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
        asks = graph.has_flag(NodeFlag.REQUIRES_HUMAN) or any(map(_has_approval, graph.tools))
        return asks or any(map(has_human_node, graph.children()))
    if isinstance(graph, Mapping):
        flags = graph.get("flags")
        asks = isinstance(flags, list) and NodeFlag.REQUIRES_HUMAN.value in flags
        return asks or graph.get("kind") == _HUMAN_KIND or any(map(has_human_node, graph.values()))
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
