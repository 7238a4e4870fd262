"""What can be wrong with a graph before it runs. Each check is a function from a graph to sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

from astromesh.graph.base import BaseNode
from astromesh.graph.edges import Edge
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes.autonomous import SKIPPABLE
from astromesh.graph.nodes.guard import GuardNode
from astromesh.graph.problem import At, Problem, within
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


class Seen:
    """Nodes and graphs on the way down to where the check stands, and all that it has looked into."""

    def __init__(self) -> None:
        self.above: list[int] = []
        self.done: set[int] = set()


def problems(graph: Checked) -> list[str]:
    """Every problem of a graph and of what is nested in it, in words."""
    return [*_problems(graph, Seen())]


def problems_of_parts(graph: Checked) -> list[str]:
    """What is wrong with single nodes and names of a graph some of whose nodes could not be made."""
    if not graph.nodes:
        return []
    parts = (_entry, _finalizer) if graph.mode == "autonomous" else (_entry, _finalizer, _targets, _sources)
    return [*_nodes(graph, Seen()), *(problem for find in parts for problem in find(graph))]


def _problems(graph: Checked, seen: Seen) -> Iterator[str]:
    if not graph.nodes:
        yield f"The graph {graph.name!r} has no nodes."
        return
    for find in (_entry, _finalizer):
        yield from find(graph)
    seen.above.append(id(graph))
    yield from _nodes(graph, seen)
    seen.above.pop()
    for find in POOL if graph.mode == "autonomous" else WAYS:
        yield from find(graph)


def _entry(graph: Checked) -> Iterator[str]:
    if graph.entry not in graph.nodes:
        yield Problem(f"The entry {graph.entry!r} is not a node.", ("entry",))
    marked = [n.name for n in graph.nodes.values() if n.has_flag(NodeFlag.ENTRY)]
    if len(marked) > 1:
        at = ("nodes", marked[1], "is_entry")
        yield Problem(f"Several nodes are marked as the entry: {', '.join(marked)}.", at)


def _finalizer(graph: Checked) -> Iterator[str]:
    if graph.finalizer and graph.finalizer not in graph.nodes:
        yield Problem(f"The finalizer {graph.finalizer!r} is not a node.", ("finalizer",))


def _nodes(graph: Checked, seen: Seen) -> Iterator[str]:
    for node in graph.nodes.values():
        at = ("nodes", node.name)
        if node.inherit_context_from and node.inherit_context_from not in graph.nodes:
            text = f"Node {node.name!r} inherits from {node.inherit_context_from!r}, which is not a node."
            yield Problem(text, (*at, "inherit_context_from"))
        yield from (within(problem, f"Node {node.name!r}", *at) for problem in inner_problems(node, seen))


def _idle_keywords(node: BaseNode) -> Iterator[str]:
    """What was written and would be ignored: a graph must not do that in silence."""
    summed = {"model_override"} if node.has_flag(NodeFlag.SUMMARIZE_OUTPUT) else set()
    if idle := [key for key in node.meaningless() if key not in summed]:
        text = f"{', '.join(idle)}: means nothing to a {type(node).__name__}; it would be ignored."
        yield Problem(text, (idle[0],))
    if "guards" in node.handles and "strategy" not in node.ignores:
        return  # a PromptNode puts the rest into its prompt and its request
    if node.output_schema is not None and not node.has_flag(NodeFlag.VALIDATE_OUTPUT) and _is_built_in(node):
        text = "output_schema: give the flag VALIDATE_OUTPUT as well, so that the output is checked by it."
        yield Problem(text, ("output_schema",))
    if node.inherit_context_from and not (_INHERITING & node.flags) and not _has_prompt(node):
        text = "inherit_context_from: there is no prompt that it could stand in."
        yield Problem(text, ("inherit_context_from",))


def _is_built_in(node: BaseNode) -> bool:
    return type(node).__module__.startswith("astromesh.graph.")


def _has_prompt(node: BaseNode) -> bool:
    return "model_override" not in node.ignores or not _is_built_in(node)


_INHERITING = frozenset({NodeFlag.CACHEABLE, NodeFlag.ISOLATED_CONTEXT})


def _idle_ways(node: BaseNode) -> Iterator[str]:
    ways = [key for key in ("transitions", "default_next") if getattr(node, key)]
    if ways:
        text = f"{', '.join(ways)}: nobody follows the ways of a node that another one runs."
        yield Problem(text, (ways[0],))


def inner_problems(node: BaseNode, seen: Seen) -> Iterator[str]:
    """Problems of a node by itself, and of the nodes and graphs that it runs."""
    if id(node) in seen.done:
        return
    seen.done.add(id(node))
    yield from node.problems()
    if node.has_flag(NodeFlag.VALIDATE_OUTPUT) and node.output_schema is None:
        yield Problem("flags: VALIDATE_OUTPUT, but there is no output_schema.", ("flags",))
    yield from _idle_keywords(node)
    for child in node.children():
        if isinstance(child, BaseNode):
            yield from (within(problem, child.name, child.name) for problem in _idle_ways(child))
            inner = inner_problems(child, seen)
            yield from (within(problem, child.name, child.name) for problem in inner)
        elif id(child) in seen.above:
            yield Problem(f"The graph {child.name!r} contains itself.", ("graph",))
        elif hasattr(child, "get_edges_from"):
            below = _problems(cast(Checked, child), seen)
            yield from (within(problem, child.name, "graph") for problem in below)


def _targets(graph: Checked) -> Iterator[str]:
    for name, node in graph.nodes.items():
        drawn = {e.target for e in graph.get_edges_from(name)}
        for target in sorted(targets(graph, name) - {END}):
            if target not in graph.nodes:
                how = "an edge" if target in drawn else "a transition"
                text = f"Node {node.name!r} has {how} to {target!r}, which is not a node."
                yield Problem(text, _drawn_at(graph, name, target))


def _drawn_at(graph: Checked, name: str, target: str) -> At:
    """Where a way is written: an edge of the graph, or a keyword of the node."""
    for index, edge in enumerate(graph.edges):
        if (edge.source, edge.target) == (name, target):
            return ("edges", index, "to")
    node = graph.nodes[name]
    key = next((k for k, to in node.transitions.items() if to == target), None)
    if key is not None:
        return ("nodes", name, "transitions", str(key))
    return ("nodes", name, "default_next" if node.default_next == target else "routes")


def _sources(graph: Checked) -> Iterator[str]:
    for index, edge in enumerate(graph.edges):
        if edge.source not in graph.nodes:
            text = f"The edge {edge} starts at {edge.source!r}, which is not a node."
            yield Problem(text, ("edges", index, "from"))


def _reached(graph: Checked) -> Iterator[str]:
    starts = [graph.entry, ERROR_NODE, *([graph.finalizer] if graph.finalizer else [])]
    lost = graph.nodes.keys() - reachable(starts, lambda name: targets(graph, name))
    for name in sorted(lost):
        yield Problem(f"Node {name!r} is never reached.", ("nodes", name))


def _shadowed(graph: Checked) -> Iterator[str]:
    for name in graph.nodes:
        edges = graph.get_edges_from(name)
        first = next((i for i, e in enumerate(edges) if e.condition is None), len(edges))
        for edge in edges[first + 1 :]:
            text = f"The edge {edge} is never tried: {edges[first]} is unconditional and comes first."
            yield Problem(text, ("edges", next(i for i, e in enumerate(graph.edges) if e is edge)))


def _endless(graph: Checked) -> Iterator[str]:
    sources: dict[str, list[str]] = {}
    for name in graph.nodes:
        for target in targets(graph, name):
            sources.setdefault(target, []).append(name)
    ends = reachable([END], lambda name: sources.get(name, ()))
    for name in sorted(reachable([graph.entry], lambda n: declared_targets(graph, n)) - ends):
        if name in graph.nodes:
            yield Problem(f"From node {name!r} no way leads to an end.", ("nodes", name))


def _unfollowed(graph: Checked) -> Iterator[str]:
    """In autonomous mode the model chooses."""
    if graph.edges:
        drawn = ", ".join(map(str, graph.edges))
        yield Problem(
            f"The graph {graph.name!r} is autonomous; its edges would be ignored: {drawn}.", ("edges",)
        )
    for node in graph.nodes.values():
        at = ("nodes", node.name)
        yield from (within(problem, f"Node {node.name!r}", *at) for problem in _idle_ways(node))


def _skippable(graph: Checked) -> Iterator[str]:
    """What the model chooses it can leave out, a guard as well."""
    for node in graph.nodes.values():
        if isinstance(node, GuardNode) and node.name != graph.finalizer:
            yield Problem(f"Node {node.name!r}: {SKIPPABLE}", ("nodes", node.name))


POOL = (_unfollowed, _skippable)
WAYS = (_targets, _sources, _reached, _shadowed, _endless)
