"""Names in a graph of plain data that only whoever runs it can look up: tools and models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from astromesh.graph.plain.tables import NODES
from astromesh.graph.problem import At


class Mention(NamedTuple):
    """A name and where it stands.

    Args:
        what: `tool` or `role`.
    """

    what: str
    name: str
    at: At


def mentions(data: Any, at: At = ()) -> Iterator[Mention]:
    """Tools and roles that the nodes of a graph name, nested ones too. What is malformed names nothing."""
    nodes = data.get("nodes") if isinstance(data, dict) else None
    for index, node in enumerate(nodes if isinstance(nodes, list) else ()):
        yield from _of_node(node, (*at, "nodes", index))


def _of_node(node: Any, at: At) -> Iterator[Mention]:
    if not isinstance(node, dict):
        return
    given = node.get("tools")
    tools: list[Any] = given if isinstance(given, list) else []
    own = [i for i, tool in enumerate(tools) if isinstance(tool, str)]
    yield from (Mention("tool", tools[i], (*at, "tools", i)) for i in own)
    # a tool that the node brings along has a name that only its code knows
    if node.get("kind") == "tool" and isinstance(node.get("tool"), str) and len(own) == len(tools):
        yield Mention("tool", node["tool"], (*at, "tool"))
    if isinstance(node.get("model_override"), str):
        yield Mention("role", node["model_override"], (*at, "model_override"))
    for key in sorted(NODES & node.keys()):
        below = node[key]
        if isinstance(below, list):
            for index, child in enumerate(below):
                yield from _of_node(child, (*at, key, index))
        else:
            yield from _of_node(below, (*at, key))
    yield from mentions(node.get("graph"), (*at, "graph"))
