"""What can be wrong with a graph before it runs. Each check yields sentences that know their location."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from math import inf
from typing import Any, Self, cast

from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes.composite import FanOutNode, LoopNode, ParallelNode, RetryNode, SubgraphNode
from astromesh.graph.nodes.guard import GuardNode
from astromesh.graph.nodes.routing import SKIPPABLE_GUARD
from astromesh.graph.records import END, ERROR_NODE, OUTPUT_SUFFIX
from astromesh.graph.topology import GraphView, declared_targets, is_graph, nested_nodes, reachable, targets
from astromesh.providers.base import missing_provider
from astromesh.text import did_you_mean
from astromesh.types import STANDARD_ROLES

#: Keys and positions as in the plain form of a graph. Nodes of a list stand by position or by name.
Location = tuple[str | int, ...]


class Problem(str):
    """A sentence. `location` is its place in the graph, `message` the sentence without that place."""

    __slots__ = ("location", "message")

    location: Location
    message: str

    def __new__(cls, text: str, location: Location = (), message: str = "") -> Self:
        made = super().__new__(cls, text)
        made.location, made.message = location, message or text
        return made


# -- roles of models ---------------------------------------------------------------------------------------


def known_roles(model: Any) -> frozenset[str]:
    """Returns the roles that every agent has, and those that a model names in its `roles`."""
    return frozenset((*STANDARD_ROLES, *getattr(model, "roles", ())))


def named_roles(graph: GraphView) -> frozenset[str]:
    """Returns the texts that nodes, nested ones too, have as `model_override`: roles and names of models."""
    return frozenset(role for node in nested_nodes(graph) if isinstance(role := node.model_override, str))


def unknown_roles(graph: GraphView, known: Collection[str]) -> list[str]:
    """Returns a problem for each node, nested ones too, whose `model_override` names no known role."""
    return [
        Problem(f"Node {node.name!r}: model_override: {unknown_role(role, known)}", ("nodes", node.name))
        for node in nested_nodes(graph)
        if isinstance(role := node.model_override, str) and role not in known
    ]


def unknown_role(role: str, known: Collection[str]) -> str:
    """Returns the sentence about a role that does not exist."""
    names = sorted(known)
    hint = missing_provider(role) or did_you_mean(role, names) or f"Known: {', '.join(names)}."
    provider, is_model, _ = role.partition(":")
    return f"there is no role {role!r}{f', and no provider {provider!r}' if is_model else ''}. {hint}"


def within(problem: str, prefix: str, *at: str | int) -> Problem:
    """Returns a problem of a part as one of the whole. A plain sentence gets the location of the part."""
    location, message = (problem.location, problem.message) if isinstance(problem, Problem) else ((), problem)
    return Problem(f"{prefix}: {problem}", (*at, *location), message)


def location_in(data: Any, at: Location, lists: frozenset[str]) -> Location:
    """Returns the location of a problem in the plain form of a graph, without steps that do not exist there.

    Args:
        data: The plain form.
        lists: Keys whose values are nodes. A node may be named without such a key.
    """
    steps: list[str | int] = []
    for step in at:
        found = _resolve_step(data, step, lists)
        for key in found:
            data = data[key]
        steps += found
    return tuple(steps)


def _resolve_step(data: Any, step: str | int, lists: frozenset[str]) -> Location:
    if isinstance(data, dict):
        if step in data:
            return (step,)
        for key in lists & data.keys():
            if isinstance(data[key], dict) and data[key].get("name") == step:
                return (key,)
            if isinstance(data[key], list) and (below := _resolve_step(data[key], step, lists)):
                return (key, *below)
    elif isinstance(data, list):
        if isinstance(step, int):
            return (step,) if step < len(data) else ()
        for index, item in enumerate(data):
            if isinstance(item, dict) and item.get("name") == step:
                return (index,)
    return ()


class SeenParts:
    """The nodes and graphs above the current part, and all parts that were checked."""

    def __init__(self) -> None:
        self.ancestors: list[int] = []
        self.checked: set[int] = set()


def problems(graph: GraphView, max_iterations: int | None) -> list[str]:
    """Returns every problem of a graph and of everything nested in it.

    Args:
        max_iterations: The node executions that a run, an item or a round may have. None: not known.
    """
    return [*_problems(graph, SeenParts()), *_beyond_limit(graph, max_iterations or sys.maxsize)]


def problems_of_parts(graph: GraphView) -> list[str]:
    """Returns the problems of single nodes and names of a graph, some of whose nodes could not be made."""
    if not graph.nodes:
        return []
    parts = (
        (_entry, _finalizer)
        if graph.mode == "autonomous"
        else (_entry, _finalizer, _unknown_targets, _unknown_sources)
    )
    return [*_nodes(graph, SeenParts()), *(problem for find in parts for problem in find(graph))]


def _problems(graph: GraphView, seen: SeenParts) -> Iterator[str]:
    if not graph.nodes:
        yield f"The graph {graph.name!r} has no nodes."
        return
    for find in (_entry, _finalizer):
        yield from find(graph)
    seen.ancestors.append(id(graph))
    yield from _nodes(graph, seen)
    seen.ancestors.pop()
    for find in AUTONOMOUS_CHECKS if graph.mode == "autonomous" else STATIC_CHECKS:
        yield from find(graph)


def _entry(graph: GraphView) -> Iterator[str]:
    if graph.entry not in graph.nodes:
        yield Problem(f"The entry {graph.entry!r} is not a node.", ("entry",))
    marked = [n.name for n in graph.nodes.values() if n.has_flag(NodeFlag.ENTRY)]
    if len(marked) > 1:
        at = ("nodes", marked[1], "is_entry")
        yield Problem(f"Several nodes are marked as the entry: {', '.join(marked)}.", at)


def _finalizer(graph: GraphView) -> Iterator[str]:
    if graph.finalizer and graph.finalizer not in graph.nodes:
        yield Problem(f"The finalizer {graph.finalizer!r} is not a node.", ("finalizer",))


def _nodes(graph: GraphView, seen: SeenParts) -> Iterator[str]:
    for node in graph.nodes.values():
        at = ("nodes", node.name)
        if node.inherit_context_from and node.inherit_context_from not in graph.nodes:
            text = f"Node {node.name!r} inherits from {node.inherit_context_from!r}, which is not a node."
            yield Problem(text, (*at, "inherit_context_from"))
        yield from (within(problem, f"Node {node.name!r}", *at) for problem in inner_problems(node, seen))


def _ignored_keywords(node: BaseNode) -> Iterator[str]:
    """Yields keywords that were passed and would be ignored silently."""
    summed = {"model_override"} if node.has_flag(NodeFlag.SUMMARIZE_OUTPUT) else set()
    if unused := [key for key in node.ignored_keywords() if key not in summed]:
        yield Problem(f"{', '.join(unused)}: not used by a {type(node).__name__}.", (unused[0],))
    if "guards" in node.handles and "strategy" not in node.ignores:
        return  # a PromptNode puts the rest into its prompt and its request
    if node.output_schema is not None and not node.has_flag(NodeFlag.VALIDATE_OUTPUT) and _is_built_in(node):
        text = "output_schema: add the flag VALIDATE_OUTPUT, so that the output is checked."
        yield Problem(text, ("output_schema",))
    if node.inherit_context_from and not (_INHERITING & node.flags) and not _has_prompt(node):
        text = "inherit_context_from: this node has no prompt to add the output to."
        yield Problem(text, ("inherit_context_from",))


def _is_built_in(node: BaseNode) -> bool:
    return type(node).__module__.startswith("astromesh.graph.")


def _has_prompt(node: BaseNode) -> bool:
    return "model_override" not in node.ignores or not _is_built_in(node)


_INHERITING = frozenset({NodeFlag.CACHEABLE, NodeFlag.ISOLATED_CONTEXT})


def _ignored_routes(node: BaseNode) -> Iterator[str]:
    keys = [key for key in ("transitions", "default_next") if getattr(node, key)]
    if keys:
        text = f"{', '.join(keys)}: not used, because the node that runs this one decides what follows."
        yield Problem(text, (keys[0],))


def inner_problems(node: BaseNode, seen: SeenParts) -> Iterator[str]:
    """Yields the problems of a node by itself, and of the nodes and graphs that it runs."""
    if id(node) in seen.checked:
        return
    seen.checked.add(id(node))
    yield from node.problems()
    if node.has_flag(NodeFlag.VALIDATE_OUTPUT) and node.output_schema is None:
        yield Problem("flags: VALIDATE_OUTPUT, but there is no output_schema.", ("flags",))
    yield from _ignored_keywords(node)
    for child in node.children():
        if isinstance(child, BaseNode):
            yield from (within(problem, child.name, child.name) for problem in _ignored_routes(child))
            inner = inner_problems(child, seen)
            yield from (within(problem, child.name, child.name) for problem in inner)
        elif id(child) in seen.ancestors:
            yield Problem(f"The graph {child.name!r} contains itself.", ("graph",))
        elif is_graph(child):
            below = _problems(cast(GraphView, child), seen)
            yield from (within(problem, child.name, "graph") for problem in below)


def _unknown_targets(graph: GraphView) -> Iterator[str]:
    for name, node in graph.nodes.items():
        edge_targets = {e.target for e in graph.get_edges_from(name)}
        fork_targets = graph.forks[name].targets if name in graph.forks else ()
        for target in sorted(targets(graph, name) - {END}):
            if target not in graph.nodes:
                how = "an edge" if target in edge_targets else "a transition"
                how = "a fork" if target in fork_targets else how
                text = f"Node {node.name!r} has {how} to {target!r}, which is not a node."
                yield Problem(text, _location_of_target(graph, name, target))


def _location_of_target(graph: GraphView, name: str, target: str) -> Location:
    """Returns where a target is written: an edge of the graph, or a keyword of the node."""
    for index, edge in enumerate(graph.edges):
        if (edge.source, edge.target) == (name, target):
            return ("edges", index, "to")
    for index, fork in enumerate(graph.forks.values()):
        if fork.source == name and target in fork.targets:
            return ("forks", index, "to")
    node = graph.nodes[name]
    key = next((k for k, to in node.transitions.items() if to == target), None)
    if key is not None:
        return ("nodes", name, "transitions", str(key))
    return ("nodes", name, "default_next" if node.default_next == target else "routes")


def _unknown_sources(graph: GraphView) -> Iterator[str]:
    for index, edge in enumerate(graph.edges):
        if edge.source not in graph.nodes:
            text = f"The edge {edge} starts at {edge.source!r}, which is not a node."
            yield Problem(text, ("edges", index, "from"))


def _unknown_fields(graph: GraphView) -> Iterator[str]:
    """Yields keys of nodes that the typed state does not have."""
    schema = graph.schema
    if schema is None:
        return
    known = {*schema.fields, *(name + OUTPUT_SUFFIX for name in graph.nodes)}
    for node in graph.nodes.values():
        for key, names in (("input_keys", node.input_keys), ("output_key", (node.output_key,))):
            for name in names:
                if name and name not in known:
                    hint = schema.suggestion(name)
                    text = f"Node {node.name!r}: {key}: {schema.name} has no field {name!r}.{hint}"
                    yield Problem(text, ("nodes", node.name, key))


def _useless_forks(graph: GraphView) -> Iterator[str]:
    """Yields forks that are never taken, or whose source is no node."""
    for index, (name, fork) in enumerate(graph.forks.items()):
        at = ("forks", index, "from")
        if name not in graph.nodes:
            yield Problem(f"The fork {fork} starts at {name!r}, which is not a node.", at)
            continue
        if any(edge.condition is None for edge in graph.get_edges_from(name)):
            yield Problem(f"The fork {fork} is never taken: {name!r} has an unconditional edge.", at)
        if graph.nodes[name].default_next:
            yield Problem(f"Node {name!r}: default_next is never taken: it has a fork.", at)


def _unreachable(graph: GraphView) -> Iterator[str]:
    starts = [graph.entry, ERROR_NODE, *([graph.finalizer] if graph.finalizer else [])]
    unreached = graph.nodes.keys() - reachable(starts, lambda name: targets(graph, name))
    for name in sorted(unreached):
        yield Problem(f"Node {name!r} is never reached.", ("nodes", name))


def _shadowed(graph: GraphView) -> Iterator[str]:
    for name in graph.nodes:
        edges = graph.get_edges_from(name)
        first = next((i for i, e in enumerate(edges) if e.condition is None), len(edges))
        for edge in edges[first + 1 :]:
            text = f"The edge {edge} is never tried: {edges[first]} is unconditional and comes first."
            yield Problem(text, ("edges", next(i for i, e in enumerate(graph.edges) if e is edge)))


def _endless_loops(graph: GraphView) -> Iterator[str]:
    sources: dict[str, list[str]] = {}
    for name in graph.nodes:
        for target in targets(graph, name):
            sources.setdefault(target, []).append(name)
    ends = reachable([END], lambda name: sources.get(name, ()))
    for name in sorted(reachable([graph.entry], lambda n: declared_targets(graph, n)) - ends):
        if name in graph.nodes:
            yield Problem(f"From node {name!r} no path leads to an end.", ("nodes", name))


# -- the node executions that the shortest way needs -------------------------------------------------------


def least_iterations(graph: GraphView) -> int:
    """Returns the `max_iterations` without which no run of the graph, item or round in it completes."""
    least = _least_in_graph(graph, ())
    works = [node for part in graph.nodes.values() for node in nested_nodes(part)]
    repeated = (node for node in works if isinstance(node, FanOutNode | LoopNode))
    each = (sum(_least(child, ()) for child in node.children()) for node in repeated)
    return int(max((needed for needed in (least, *each) if needed < inf), default=0))


def _beyond_limit(graph: GraphView, limit: int) -> Iterator[str]:
    needed = _least_in_graph(graph, ())
    if limit < needed < inf:
        yield Problem(_NEEDS.format(f"The graph {graph.name!r}", needed, limit), ("nodes",))
    for node in graph.nodes.values():
        at = ("nodes", node.name)
        for problem in _beyond_limit_in(node, limit, {id(graph)}):
            yield within(problem, f"Node {node.name!r}", *at)


_NEEDS = "{0} needs at least {1} node executions, but max_iterations is {2}."


def _beyond_limit_in(node: Any, limit: int, seen: set[int]) -> Iterator[str]:
    """Yields items and rounds that need more than the limit, which each of them has for itself."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, FanOutNode | LoopNode):
        needed = sum(_least(child, ()) for child in node.children())
        if limit < needed < inf:
            what = "A round" if isinstance(node, LoopNode) else "An item"
            yield Problem(_NEEDS.format(what, needed, limit))
    for child in node.nodes.values() if is_graph(node) else node.children():
        yield from (within(problem, child.name) for problem in _beyond_limit_in(child, limit, seen))


def _least_in_graph(graph: GraphView, around: tuple[int, ...]) -> float:
    """Returns the executions on the shortest way from the entry to the end, infinity if there is none."""
    if graph.mode == "autonomous":
        return 1
    costs = {name: _least(node, around) for name, node in graph.nodes.items()}
    least: dict[str, float] = {}
    queue = [(costs.get(graph.entry, inf), graph.entry)]
    while queue:
        cost, name = heappop(queue)
        if name == END:
            return cost
        if name not in least and name in costs:
            least[name] = cost
            ways = targets(graph, name)
            ways |= {END} if graph.nodes[name].is_terminal else set()
            for target in ways:
                heappush(queue, (cost + costs.get(target, 0), target))
    return inf


def _least(node: Any, around: tuple[int, ...]) -> float:
    """Returns the executions that a node needs: itself, and children that it always runs."""
    if id(node) in around:
        return inf
    around = (*around, id(node))
    if is_graph(node):
        return _least_in_graph(node, around)
    if isinstance(node, ParallelNode | RetryNode | SubgraphNode):
        return 1 + sum(_least(child, around) for child in node.children())
    return 1


def _ignored_edges(graph: GraphView) -> Iterator[str]:
    """Yields edges of an autonomous graph, whose path the model chooses."""
    if graph.edges:
        edges = ", ".join(map(str, graph.edges))
        yield Problem(
            f"The graph {graph.name!r} is autonomous; its edges would be ignored: {edges}.", ("edges",)
        )
    for node in graph.nodes.values():
        at = ("nodes", node.name)
        yield from (within(problem, f"Node {node.name!r}", *at) for problem in _ignored_routes(node))


def _skippable(graph: GraphView) -> Iterator[str]:
    """Yields guards in a pool. The model can leave out what it chooses."""
    for node in graph.nodes.values():
        if isinstance(node, GuardNode) and node.name != graph.finalizer:
            yield Problem(f"Node {node.name!r}: {SKIPPABLE_GUARD}", ("nodes", node.name))


AUTONOMOUS_CHECKS = (_ignored_edges, _skippable)
STATIC_CHECKS = (
    _unknown_targets, _unknown_sources, _unknown_fields, _useless_forks, _unreachable, _shadowed,
    _endless_loops,
)  # fmt: skip
