"""Ways through a graph, as sets of names: where nodes lead, what can be reached, what guards protect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from astromesh.graph.base import BaseNode
from astromesh.graph.edges import Edge
from astromesh.graph.records import END


class Drawn(Protocol):
    """What of a graph is looked at here."""

    @property
    def nodes(self) -> Mapping[str, BaseNode]: ...

    def get_edges_from(self, name: str) -> tuple[Edge, ...]: ...


def declared_targets(graph: Drawn, name: str) -> set[str]:
    """Where a node's edges, transitions and default lead, or the end where nothing holds it."""
    node = graph.nodes.get(name)
    if node is None:
        return set()
    edges = graph.get_edges_from(name)
    targets = {e.target for e in edges} | set(node.transitions.values())
    if node.default_next:
        targets.add(node.default_next)
    elif not any(e.condition is None for e in edges):
        targets.add(END)
    return targets


def targets(graph: Drawn, name: str) -> set[str]:
    """Declared targets, and those that only the model's word leads to."""
    node = graph.nodes.get(name)
    return declared_targets(graph, name) | set(node.routes if node else ())


def reachable(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    """Everything that can be reached, the start included."""
    seen, ahead = set(start), list(start)
    while ahead:
        for name in step(ahead.pop()):
            if name not in seen:
                seen.add(name)
                ahead.append(name)
    return seen


def is_protected(graph: Drawn, name: str) -> bool:
    node = graph.nodes.get(name)
    return node is not None and protects(node)


def protects(node: BaseNode) -> bool:
    """Whether a node is a guard or a human, or runs one somewhere inside."""
    return any(inner.protected for inner in _within(node))


def refuses(node: BaseNode) -> bool:
    """Whether a node may refuse what was said before it: it protects, or something in it has guards."""
    return any(inner.protected or inner.guards for inner in _within(node))


def _within(node: BaseNode) -> Iterator[BaseNode]:
    """A node and all that it runs, each once, however deep."""
    seen: set[int] = set()
    ahead: list[Any] = [node]
    while ahead:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, BaseNode):
            yield one
            ahead.extend(one.children())
        else:
            ahead.extend(one.nodes.values())


def reachable_around(graph: Drawn, starts: Iterable[str], guards: set[str]) -> set[str]:
    """What can be reached from these nodes on ways that pass none of these guards."""
    return reachable(starts, lambda name: () if name in guards else targets(graph, name))


def exposed(graph: Drawn, starts: Iterable[str]) -> dict[str, set[str]]:
    """By guard: what can be reached without passing it. A change must not let any of these sets grow."""
    guards = [n.name for n in graph.nodes.values() if protects(n)]
    return {guard: reachable_around(graph, starts, {guard}) - {guard} for guard in guards}


def routable(graph: Drawn, name: str) -> set[str]:
    """Targets that the model may name at a node: those declared, without ways around a guard.

    What an edge or a transition leads to is the author's own way. A target that stands only in `routes`, or
    the end of a terminal node, must not be one that edges reach only through a guard or a human.
    """
    node = graph.nodes[name]
    drawn = {e.target for e in graph.get_edges_from(name)} | set(node.transitions.values())
    spoken = set(node.routes) | ({END} if node.is_terminal else set())
    guards = {n.name for n in graph.nodes.values() if protects(n)} - {name}
    if not guards or not spoken:
        return drawn | spoken
    ahead = declared_targets(graph, name)
    free = reachable(ahead, lambda n: () if n in guards else targets(graph, n))
    every = reachable(ahead, lambda n: targets(graph, n))
    return drawn | {s for s in spoken if s in free or s not in every}
