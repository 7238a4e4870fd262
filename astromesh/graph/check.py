"""What can be wrong with a graph before it runs. Each check is a function from a graph to sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from astromesh.graph.base import BaseNode
from astromesh.graph.edges import Edge
from astromesh.graph.flags import NodeFlag
from astromesh.graph.records import END, ERROR_NODE
from astromesh.graph.ways import Drawn, declared_targets, reachable, targets


class Checked(Drawn, Protocol):
    """What of a graph is checked."""

    name: str
    finalizer: str

    @property
    def mode(self) -> str: ...

    @property
    def entry(self) -> str: ...

    @property
    def edges(self) -> tuple[Edge, ...]: ...


def problems(graph: Checked) -> list[str]:
    """Every problem of a graph, in words."""
    if not graph.nodes:
        return [f"The graph {graph.name!r} has no nodes."]
    ways = POOL if graph.mode == "autonomous" else WAYS
    return [problem for find in (*CHECKS, *ways) for problem in find(graph)]


def _entry(graph: Checked) -> Iterator[str]:
    if graph.entry not in graph.nodes:
        yield f"The entry {graph.entry!r} is not a node."
    marked = [n.name for n in graph.nodes.values() if n.has_flag(NodeFlag.ENTRY)]
    if len(marked) > 1:
        yield f"Several nodes are marked as the entry: {', '.join(marked)}."


def _finalizer(graph: Checked) -> Iterator[str]:
    if graph.finalizer and graph.finalizer not in graph.nodes:
        yield f"The finalizer {graph.finalizer!r} is not a node."


def _nodes(graph: Checked) -> Iterator[str]:
    for node in graph.nodes.values():
        if node.has_flag(NodeFlag.VALIDATE_OUTPUT) and node.output_schema is None:
            yield f"Node {node.name!r} has the flag VALIDATE_OUTPUT but no output_schema."
        if node.inherit_context_from and node.inherit_context_from not in graph.nodes:
            yield f"Node {node.name!r} inherits from {node.inherit_context_from!r}, which is not a node."
        yield from (f"Node {node.name!r}: {problem}" for problem in inner_problems(node, set()))


def _idle_keywords(node: BaseNode) -> Iterator[str]:
    """What was written and would be ignored: a graph must not do that in silence."""
    summed = {"model_override"} if node.has_flag(NodeFlag.SUMMARIZE_OUTPUT) else set()
    if idle := [key for key in node.meaningless() if key not in summed]:
        yield f"{', '.join(idle)}: means nothing to a {type(node).__name__}; it would be ignored."
    if "guards" in node.handles and "strategy" not in node.ignores:
        return  # a PromptNode puts the rest into its prompt and its request
    if node.output_schema is not None and not node.has_flag(NodeFlag.VALIDATE_OUTPUT) and _is_built_in(node):
        yield "output_schema: give the flag VALIDATE_OUTPUT as well, so that the output is checked by it."
    if node.inherit_context_from and not (_INHERITING & node.flags) and not _has_prompt(node):
        yield "inherit_context_from: there is no prompt that it could stand in."


def _is_built_in(node: BaseNode) -> bool:
    return type(node).__module__.startswith("astromesh.graph.")


def _has_prompt(node: BaseNode) -> bool:
    return "model_override" not in node.ignores or not _is_built_in(node)


_INHERITING = frozenset({NodeFlag.CACHEABLE, NodeFlag.ISOLATED_CONTEXT})


def _idle_ways(node: BaseNode) -> Iterator[str]:
    ways = [key for key in ("transitions", "default_next") if getattr(node, key)]
    if ways:
        yield f"{', '.join(ways)}: nobody follows the ways of a node that another one runs."


def inner_problems(node: BaseNode, seen: set[int]) -> Iterator[str]:
    """Problems of a node by itself, and of the nodes and graphs that it runs."""
    if id(node) in seen:
        return
    seen.add(id(node))
    yield from node.problems()
    yield from _idle_keywords(node)
    for child in node.children():
        if isinstance(child, BaseNode):
            yield from (f"{child.name}: {problem}" for problem in _idle_ways(child))
            yield from (f"{child.name}: {problem}" for problem in inner_problems(child, seen))


def _targets(graph: Checked) -> Iterator[str]:
    for name, node in graph.nodes.items():
        drawn = {e.target for e in graph.get_edges_from(name)}
        for target in sorted(targets(graph, name) - {END}):
            if target not in graph.nodes:
                how = "an edge" if target in drawn else "a transition"
                yield f"Node {node.name!r} has {how} to {target!r}, which is not a node."


def _sources(graph: Checked) -> Iterator[str]:
    for edge in graph.edges:
        if edge.source not in graph.nodes:
            yield f"The edge {edge} starts at {edge.source!r}, which is not a node."


def _reached(graph: Checked) -> Iterator[str]:
    starts = [graph.entry, ERROR_NODE, *([graph.finalizer] if graph.finalizer else [])]
    lost = graph.nodes.keys() - reachable(starts, lambda name: targets(graph, name))
    for name in sorted(lost):
        yield f"Node {name!r} is never reached."


def _shadowed(graph: Checked) -> Iterator[str]:
    for name in graph.nodes:
        edges = graph.get_edges_from(name)
        first = next((i for i, e in enumerate(edges) if e.condition is None), len(edges))
        for edge in edges[first + 1 :]:
            yield f"The edge {edge} is never tried: {edges[first]} is unconditional and comes first."


def _endless(graph: Checked) -> Iterator[str]:
    sources: dict[str, list[str]] = {}
    for name in graph.nodes:
        for target in targets(graph, name):
            sources.setdefault(target, []).append(name)
    ends = reachable([END], lambda name: sources.get(name, ()))
    for name in sorted(reachable([graph.entry], lambda n: declared_targets(graph, n)) - ends):
        if name in graph.nodes:
            yield f"From node {name!r} no way leads to an end."


def _unfollowed(graph: Checked) -> Iterator[str]:
    """In autonomous mode the model chooses."""
    if graph.edges:
        drawn = ", ".join(map(str, graph.edges))
        yield f"The graph {graph.name!r} is autonomous; its edges would be ignored: {drawn}."
    for node in graph.nodes.values():
        yield from (f"Node {node.name!r}: {problem}" for problem in _idle_ways(node))


POOL = (_unfollowed,)
CHECKS = (_entry, _finalizer, _nodes)
WAYS = (_targets, _sources, _reached, _shadowed, _endless)
