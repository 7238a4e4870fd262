"""A graph for people: in words, and as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterator

from astromesh.graph.base import BaseNode
from astromesh.graph.check import Checked
from astromesh.graph.edges import Edge, in_words
from astromesh.graph.flags import NodeFlag
from astromesh.graph.records import END, ERROR_NODE
from astromesh.graph.ways import declared_targets


def describe(graph: Checked) -> str:
    """Each node with its class, flags and ways out, a line each."""
    head = f"{graph.name} ({graph.mode}): {len(graph.nodes)} nodes, entry {graph.entry}"
    lines = [head + (f", finalizer {graph.finalizer}" if graph.finalizer else "")]
    for node in graph.nodes.values():
        lines.append(f"  {node.name}: {_kind(node)}")
        if graph.mode != "autonomous":
            lines += [
                f"    → {target}{f' [{label}]' if label else ''}" for target, label in _ways(graph, node)
            ]
    return "\n".join(lines)


def mermaid(graph: Checked) -> str:
    """A Mermaid flowchart; names are quoted, so that any name can be drawn."""
    ids = {name: f"n{i}" for i, name in enumerate(graph.nodes)}
    lines = ["flowchart TD", *(f"    {ids[n.name]}{_box(n)}" for n in graph.nodes.values())]
    if graph.mode == "autonomous":
        return "\n".join(
            [*lines, '    model{"the model chooses"}', *(f"    model --> {i}" for i in ids.values())]
        )
    lines += ["    start((start))", '    end__(("end"))']
    if graph.entry in ids:
        lines.append(f"    start --> {ids[graph.entry]}")
    for node in graph.nodes.values():
        for target, label in _ways(graph, node):
            to = "end__" if target == END else ids.setdefault(target, f"n{len(ids)}")
            lines.append(f"    {ids[node.name]} -->" + (f'|"{_quoted(label)}"| {to}' if label else f" {to}"))
    lines += [f'    {i}["{_quoted(name)} (missing)"]' for name, i in ids.items() if name not in graph.nodes]
    if graph.finalizer in ids:
        lines.append(f"    stop((stop)) -.-> {ids[graph.finalizer]}")
    return "\n".join(lines)


def _ways(graph: Checked, node: BaseNode) -> Iterator[tuple[str, str]]:
    edges = graph.get_edges_from(node.name)
    yield from ((edge.target, _label(edge)) for edge in edges)
    yield from ((target, str(key)) for key, target in node.transitions.items())
    yield from ((target, "model") for target in node.routes)
    if node.default_next:
        yield node.default_next, "default"
    elif END in declared_targets(graph, node.name) and not any(e.target == END for e in edges):
        yield END, "otherwise" if edges or node.transitions or node.routes else ""


def _label(edge: Edge) -> str:
    if edge.label or edge.condition is None:
        return edge.label
    return in_words(edge.condition)


def _kind(node: BaseNode) -> str:
    flags = sorted(f.name if isinstance(f, NodeFlag) else str(f) for f in node.flags)
    return type(node).__name__ + (f" {{{', '.join(flags)}}}" if flags else "")


_SHAPES = (("{{", "}}"), ("([", "])"), ("[", "]"))


def _box(node: BaseNode) -> str:
    kind = 0 if node.protected else 1 if node.is_terminal or node.name == ERROR_NODE else 2
    left, right = _SHAPES[kind]
    label = _quoted(node.name)
    inner = [child.name for child in node.children()]
    if inner:
        label += f"<br/>({_quoted(', '.join(inner))})"
    return f'{left}"{label}"{right}'


#: what Mermaid reads as something else: entities (`#quot;`, `&quot;`), Markdown between backticks, tags
_ESCAPES = str.maketrans({
    "#": "#35;", "`": "#96;", "&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;",
})  # fmt: skip


def _quoted(text: str) -> str:
    return text.translate(_ESCAPES)
