"""Loads a configuration folder and checks it against the installed plugins.

Finds call circles and agents that wait for a person.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from astromesh.config.agent import AgentManifest
from astromesh.config.base import GraphFindings, GraphMention
from astromesh.config.checks import find_cycles
from astromesh.config.folder import Configuration, load
from astromesh.core.templates import check_template
from astromesh.errors import CircularAgentReference, WorkflowNotFound
from astromesh.graph.base import BaseNode
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes.human import HumanNode
from astromesh.graph.serialization import find_problems, references
from astromesh.plugins import Plugins


def check_graph(spec: Mapping[str, Any]) -> GraphFindings:
    """What is wrong with the spec of a graph, and which tools and roles it names."""
    return GraphFindings(
        [(problem.location, problem.message) for problem in find_problems(PromptGraph, spec)],
        [GraphMention(*mention) for mention in references(spec)],
    )


def load_configuration(
    folder: Path, plugins: Plugins, env: Mapping[str, str] | None = None, graphs: Iterable[str] = ()
) -> Configuration:
    """What a folder says, checked against the installed plugins and against what this runtime can do.

    Args:
        graphs: names of graphs that were made in Python.
    """
    _make_importable(folder)
    return load(
        folder,
        env=os.environ if env is None else env,
        resolver=plugins,
        check_template=check_template,
        graphs=graphs,
        check_graph=check_graph,
    )


def detect_circular_refs(edges: Mapping[str, tuple[str, ...]]) -> None:
    """Checks who may call whom (document 001, circular reference safety).

    Raises:
        CircularAgentReference: prints the circle, e.g. `a → b → a`.
    """
    for cycle in find_cycles(edges):
        path = " → ".join(cycle)
        raise CircularAgentReference(
            f"Agents call each other in a circle: {path}. Remove one of these tools."
        )


def agents_with_approval(configuration: Configuration) -> frozenset[str]:
    """Agents that have a tool which a person must approve, or may call such an agent."""
    found = {name for name, agent in configuration.agents.items() if _needs_approval(agent)}
    while more := {n for n, called in configuration.edges.items() if n not in found and found & set(called)}:
        found |= more
    return frozenset(found)


def _needs_approval(agent: AgentManifest) -> bool:
    tools, tainted = agent.spec.tools, agent.spec.permissions.tainted == "approval"
    harmless = ("read", "write")
    return any(t.approval != "none" or (tainted and t.effective_effect not in harmless) for t in tools)


def _make_importable(folder: Path) -> None:
    """`function: module:name` is found beside the configuration folder, in it, and on the Python path."""
    for place in (folder.resolve(), folder.resolve().parent, *_working_directory()):
        if str(place) not in sys.path:
            sys.path.append(str(place))


def _working_directory() -> tuple[Path, ...]:
    try:
        return (Path.cwd(),)
    except FileNotFoundError:  # deleted meanwhile: an absolute folder can be read all the same
        return ()


# Which agents may have to wait for a person because of the graph they run.

#: kind of a node that asks a person, as data
_HUMAN_KIND = "human"


def add_human_nodes(
    pausing: frozenset[str], configuration: Configuration, graphs: Mapping[str, Any]
) -> frozenset[str]:
    """Those that pause anyway, those whose graph has a human node, and all that may call one of them.

    Args:
        graphs: what `orchestration: {pattern: graph}` may name, as PromptGraph or as data.
    """
    asking = set()
    for name, agent in configuration.agents.items():
        options = dict(agent.spec.orchestration.options)
        if has_human_node(options) or has_human_node(graphs.get(str(options.get("graph")))):
            asking.add(name)
    found = pausing | asking
    while more := {n for n, called in configuration.edges.items() if n not in found and found & set(called)}:
        found |= more
    return found


def has_human_node(graph: Any) -> bool:
    """Whether a graph, or nodes as data, hold a human node, however deep."""
    if isinstance(graph, PromptGraph):
        return any(map(has_human_node, graph.nodes.values()))
    if isinstance(graph, BaseNode):
        return isinstance(graph, HumanNode) or any(map(has_human_node, graph.children()))
    if isinstance(graph, Mapping):
        return graph.get("kind") == _HUMAN_KIND or any(map(has_human_node, graph.values()))
    return isinstance(graph, list | tuple) and any(map(has_human_node, graph))


# Where workflows stand: `workflows/NAME/` of a configuration folder.

WORKFLOWS_FOLDER = "workflows"


def workflow_names(config: Path) -> Sequence[str]:
    """Folders that hold a workflow.yaml, sorted."""
    return sorted(file.parent.name for file in (config / WORKFLOWS_FOLDER).glob("*/workflow.yaml"))


def workflow_folder(config: Path, name: str) -> Path:
    """The folder of a workflow, by its name or as a path.

    Raises:
        WorkflowNotFound: there is none.
    """
    for folder in (config / WORKFLOWS_FOLDER / name, Path(name)):
        if (folder / "workflow.yaml").exists():
            return folder
    raise workflow_not_found(name, workflow_names(config))


def workflow_not_found(name: str, known: Sequence[str]) -> WorkflowNotFound:
    """The error for a name that no workflow has."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    return WorkflowNotFound(f"There is no workflow {name!r}. {hint}")
