"""Paths through a graph as sets of names, and the graph as text or as a Mermaid flowchart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from astromesh.graph.flags import NodeFlag
from astromesh.graph.records import END, ERROR_NODE
from astromesh.graph.transitions import Edge, Fork, describe_condition


class GraphView(Protocol):
    """What these functions, the checks and the writer read of a graph. `PromptGraph` implements it.

    Its nodes are `BaseNode`s. They have no type here, because the base class imports this module indirectly.
    """

    name: str
    finalizer: str

    @property
    def mode(self) -> str: ...

    @property
    def routing(self) -> str: ...

    @property
    def stops_on_error(self) -> bool: ...

    @property
    def reducers(self) -> Mapping[str, Callable[[Any, Any], Any]]: ...

    @property
    def own_reducers(self) -> Mapping[str, Callable[[Any, Any], Any]]: ...

    #: the `StateSchema` of a typed graph, or None
    schema: Any

    @property
    def entry(self) -> str: ...

    @property
    def nodes(self) -> Mapping[str, Any]: ...

    @property
    def edges(self) -> tuple[Edge, ...]: ...

    @property
    def forks(self) -> Mapping[str, Fork]: ...

    def get_edges_from(self, name: str) -> tuple[Edge, ...]: ...


def is_graph(part: Any) -> bool:
    """Whether a child of a node is a graph, and not a node."""
    return hasattr(part, "get_edges_from")


def declared_targets(graph: GraphView, name: str) -> set[str]:
    """Returns the targets of a node's edges, transitions and default, or the end if it has no other."""
    node = graph.nodes.get(name)
    if node is None:
        return set()
    edges = graph.get_edges_from(name)
    targets = {e.target for e in edges} | set(node.transitions.values())
    if name in graph.forks:
        targets.update(graph.forks[name].targets)
    elif node.default_next:
        targets.add(node.default_next)
    elif not any(e.condition is None for e in edges):
        targets.add(END)
    return targets


def targets(graph: GraphView, name: str) -> set[str]:
    """Returns the declared targets, and those that only the model can choose."""
    node = graph.nodes.get(name)
    return declared_targets(graph, name) | set(node.routes if node else ())


def reachable(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    """Returns everything that can be reached, the start included."""
    seen, pending = set(start), list(start)
    while pending:
        for name in step(pending.pop()):
            if name not in seen:
                seen.add(name)
                pending.append(name)
    return seen


def ahead_of(graph: GraphView, name: str, source: str) -> set[str]:
    """Returns what can be reached from a node of a branch, up to the source of the branches."""

    def step(node: str) -> Iterable[str]:
        return () if node == source else targets(graph, node)

    return reachable(step(name), step)


def joins(graph: GraphView, source: str, starts: Sequence[str]) -> frozenset[str]:
    """Returns the nodes where branches meet.

    They are those that two branches can reach, and starts that another branch can reach.

    Args:
        source: The node after which the branches begin. A way back to it begins them anew.
        starts: The first node of each branch.
    """
    ahead = [ahead_of(graph, start, source) - {END} for start in starts]
    counted = Counter(name for names in ahead for name in names)
    meeting = {name for name, times in counted.items() if times > 1} - set(starts)
    for start in starts:
        if any(start in names for other, names in zip(starts, ahead, strict=True) if other != start):
            meeting.add(start)
    return frozenset(meeting)


def branch_nodes(graph: GraphView) -> frozenset[str]:
    """Returns the nodes that run in branches, of which several may run at once."""
    found: set[str] = set()
    for fork in graph.forks.values():
        ends = joins(graph, fork.source, fork.targets)
        found |= reachable(fork.targets, partial(_targets_unless, graph, ends)) - ends
    return frozenset(found - {END})


def _targets_unless(graph: GraphView, ends: frozenset[str], name: str) -> Iterable[str]:
    return () if name in ends else targets(graph, name)


def is_protected(graph: GraphView, name: str) -> bool:
    node = graph.nodes.get(name)
    return node is not None and contains_protected(node)


def contains_protected(node: Any) -> bool:
    """Whether a node is a guard or a human, or runs one somewhere inside."""
    return any(inner.protected for inner in nested_nodes(node))


def may_refuse(node: Any) -> bool:
    """Whether a node may refuse earlier text: it is protected, or something in it has guards."""
    return any(inner.protected or inner.guards for inner in nested_nodes(node))


def nested_nodes(node: Any) -> Iterator[Any]:
    """Yields a node and everything that it runs, each once, however deep."""
    seen: set[int] = set()
    pending: list[Any] = [node]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if is_graph(one):
            pending.extend(one.nodes.values())
        else:
            yield one
            pending.extend(one.children())


def exposed(graph: GraphView, starts: Iterable[str]) -> dict[str, set[str]]:
    """Returns by guard what can be reached without passing it.

    A change must not let any of these sets grow.
    """

    def around(guard: str) -> set[str]:
        return reachable(starts, lambda name: () if name == guard else targets(graph, name)) - {guard}

    return {name: around(name) for name, node in graph.nodes.items() if contains_protected(node)}


def routable(graph: GraphView, name: str) -> set[str]:
    """Returns the targets that the model may name at a node: the declared ones, without paths around a guard.

    Edges and transitions are the author's own choice. A target that stands only in `routes`, or the end of a
    terminal node, must not be one that edges reach only through a guard or a human.
    """
    node = graph.nodes[name]
    declared = {e.target for e in graph.get_edges_from(name)} | set(node.transitions.values())
    by_model = set(node.routes) | ({END} if node.is_terminal else set())
    guards = {n.name for n in graph.nodes.values() if contains_protected(n)} - {name}
    if not guards or not by_model:
        return declared | by_model
    ahead = declared_targets(graph, name)
    free = reachable(ahead, lambda n: () if n in guards else targets(graph, n))
    every = reachable(ahead, lambda n: targets(graph, n))
    return declared | {s for s in by_model if s in free or s not in every}


# -- a graph as text, and as a Mermaid flowchart- ----------------------------------------------------------


def describe(graph: GraphView) -> str:
    """Returns each node with its class, flags and targets, one line each."""
    head = f"{graph.name} ({graph.mode}): {len(graph.nodes)} nodes, entry {graph.entry}"
    lines = [head + (f", finalizer {graph.finalizer}" if graph.finalizer else "")]
    for node in graph.nodes.values():
        lines.append(f"  {node.name}: {_class_and_flags(node)}")
        if graph.mode != "autonomous":
            lines += [
                f"    → {target}{f' [{label}]' if label else ''}"
                for target, label in _targets_with_labels(graph, node)
            ]
    return "\n".join(lines)


def mermaid(graph: GraphView) -> str:
    """Returns a Mermaid flowchart with nested graphs as subgraphs. Names are quoted: any can be drawn."""
    return "\n".join(["flowchart TD", *_draw_graph(graph, "", "    ", (id(graph),))])


def _draw_graph(graph: GraphView, place: str, indent: str, around: tuple[int, ...]) -> Iterator[str]:
    """Yields the lines of a graph.

    Args:
        place: The start of all ids in it.
        around: The graphs that contain it and itself, by identity.
    """
    ids = {name: f"{place}n{i}" for i, name in enumerate(graph.nodes)}
    for node in graph.nodes.values():
        yield from _draw_node(node, ids[node.name], indent, around)
    if graph.mode == "autonomous":
        yield f'{indent}{place}model{{"the model chooses"}}'
        yield from (f"{indent}{place}model --> {i}" for i in ids.values())
        return
    start, end, stop = f"{place}start", f"{place}end__", f"{place}stop"
    yield from (f"{indent}{start}((start))", f'{indent}{end}(("end"))')
    if graph.entry in ids:
        yield f"{indent}{start} --> {ids[graph.entry]}"
    for node in graph.nodes.values():
        for target, label in _targets_with_labels(graph, node):
            to = end if target == END else ids.setdefault(target, f"{place}n{len(ids)}")
            yield f"{indent}{ids[node.name]} -->" + (f'|"{mermaid_text(label)}"| {to}' if label else f" {to}")
    missing = (name for name in ids if name not in graph.nodes)
    yield from (f'{indent}{ids[name]}["{mermaid_text(name)} (missing)"]' for name in missing)
    if graph.finalizer in ids:
        yield f"{indent}{stop}((stop)) -.-> {ids[graph.finalizer]}"


def _draw_node(node: Any, place: str, indent: str, around: tuple[int, ...]) -> Iterator[str]:
    """Yields a node as a box, or with graphs in it as a subgraph. A graph in itself is not drawn again."""
    if not _holds_graph(node, around):
        yield f"{indent}{place}{_box(node)}"
        return
    yield f'{indent}subgraph {place}["{mermaid_text(node.name)}"]'
    for number, child in enumerate(node.children()):
        inner = f"{place}_{number}"
        if not is_graph(child):
            yield from _draw_node(child, inner, indent + "    ", around)
        elif id(child) not in around:
            yield from _draw_graph(child, f"{inner}_", indent + "    ", (*around, id(child)))
    yield f"{indent}end"


def _holds_graph(node: Any, around: tuple[int, ...]) -> bool:
    children = [*node.children()]
    graphs = [child for child in children if is_graph(child)]
    if graphs:
        return any(id(child) not in around for child in graphs)
    return any(_holds_graph(child, around) for child in children)


def _targets_with_labels(graph: GraphView, node: Any) -> Iterator[tuple[str, str]]:
    edges = graph.get_edges_from(node.name)
    yield from ((edge.target, _label(edge)) for edge in edges)
    yield from ((target, str(key)) for key, target in node.transitions.items())
    yield from ((target, "model") for target in node.routes)
    if node.name in graph.forks:
        yield from ((target, "fork") for target in graph.forks[node.name].targets)
    elif node.default_next:
        yield node.default_next, "default"
    elif END in declared_targets(graph, node.name) and not any(e.target == END for e in edges):
        yield END, "otherwise" if edges or node.transitions or node.routes else ""


def _label(edge: Edge) -> str:
    if edge.label or edge.condition is None:
        return edge.label
    return describe_condition(edge.condition)


def _class_and_flags(node: Any) -> str:
    flags = sorted(f.name if isinstance(f, NodeFlag) else str(f) for f in node.flags)
    return type(node).__name__ + (f" {{{', '.join(flags)}}}" if flags else "")


_SHAPES = (("{{", "}}"), ("([", "])"), ("[", "]"))


def _box(node: Any) -> str:
    kind = 0 if node.protected else 1 if node.is_terminal or node.name == ERROR_NODE else 2
    left, right = _SHAPES[kind]
    label = mermaid_text(node.name)
    inner = [child.name for child in node.children()]
    if inner:
        label += f"<br/>({mermaid_text(', '.join(inner))})"
    return f'{left}"{label}"{right}'


#: What Mermaid interprets: entities (`#quot;`, `&quot;`), Markdown between backticks, tags.
_ESCAPES = str.maketrans({
    "#": "#35;", "`": "#96;", "&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;",
})  # fmt: skip


def mermaid_text(text: str) -> str:
    """Returns a text so that Mermaid shows it as it is, between quotes."""
    return text.translate(_ESCAPES)
