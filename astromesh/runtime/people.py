"""Which agents may have to wait for a person because of the graph they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astromesh.config.configuration import Configuration
from astromesh.graph.base import BaseNode
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes.human import HumanNode

#: kind of a node that asks a person, as data
_HUMAN = "human"


def with_people(
    pausing: frozenset[str], configuration: Configuration, graphs: Mapping[str, Any]
) -> frozenset[str]:
    """Those that pause anyway, those whose graph has a human node, and all that may call one of them.

    Args:
        graphs: what `orchestration: {pattern: graph}` may name, as PromptGraph or as data.
    """
    asking = set()
    for name, agent in configuration.agents.items():
        options = dict(agent.spec.orchestration.options)
        if asks_people(options) or asks_people(graphs.get(str(options.get("graph")))):
            asking.add(name)
    found = pausing | asking
    while more := {n for n, called in configuration.edges.items() if n not in found and found & set(called)}:
        found |= more
    return found


def asks_people(graph: Any) -> bool:
    """Whether a graph, or nodes as data, hold a human node, however deep."""
    if isinstance(graph, PromptGraph):
        return any(map(asks_people, graph.nodes.values()))
    if isinstance(graph, BaseNode):
        return isinstance(graph, HumanNode) or any(map(asks_people, graph.children()))
    if isinstance(graph, Mapping):
        return graph.get("kind") == _HUMAN or any(map(asks_people, graph.values()))
    return isinstance(graph, list | tuple) and any(map(asks_people, graph))
