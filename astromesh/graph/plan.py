"""The compiled form of a graph: immutable, shared by all runs of an engine."""

from __future__ import annotations

from typing import Any

from astromesh.errors import InvalidGraph
from astromesh.graph.base import BaseNode
from astromesh.graph.edges import OnError, as_test
from astromesh.graph.graph import PromptGraph
from astromesh.graph.kinds import AUTONOMOUS, make_node
from astromesh.graph.records import ERROR_NODE
from astromesh.graph.speech import Speech
from astromesh.graph.step import Kit, Step
from astromesh.graph.transitions import (
    ERROR_KEY,
    Arrow,
    Way,
    rules_for,
    straight_way,
)
from astromesh.graph.voices import Voices, awaiting, speeches, speeches_of_child
from astromesh.graph.ways import declared_targets, is_protected, refuses, routable


class Plan:
    """What a traversal follows: a compiled graph, or a child alone.

    Args:
        steps: by name.
        graph: what it was compiled from; None for a child alone.
        ceiling: what may be heard of it at most, as whoever runs it has it.

    `unsure` are nodes whose output is no answer where the run is stopped: a guard or a human comes behind.
    `guarded` says whether anything in it may refuse what another node said. `nested` holds the plans of all
    children, by the identity of what they were compiled from.
    """

    __slots__ = (
        "ceiling", "entry", "finalizer", "graph", "guarded", "is_graph", "name", "nested", "steps", "unsure",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        steps: dict[str, Step],
        entry: str,
        graph: PromptGraph | None = None,
        ceiling: Speech = Speech.FREE,
    ) -> None:
        self.steps, self.entry, self.graph, self.ceiling = steps, entry, graph, ceiling
        static = graph is not None and graph.mode != "autonomous"
        self.unsure = awaiting(graph) - {graph.finalizer} if graph and static else frozenset()
        self.guarded = any(refuses(step.node) for step in steps.values())
        self.is_graph = graph is not None
        self.name = graph.name if graph else entry
        self.version = graph.version if graph else 0
        self.finalizer = graph.finalizer if graph else ""
        self.nested: dict[int, Plan] = {}

    @property
    def is_old(self) -> bool:
        """Whether the graph was changed since."""
        return self.graph is not None and self.graph.version != self.version

    @property
    def first(self) -> Step:
        """The step it begins with; of a child alone the only one."""
        return self.steps[self.entry]


def compile_graph(graph: PromptGraph, kit: Kit, ceiling: Speech = Speech.FREE) -> Plan:
    """A graph and everything nested in it.

    Args:
        ceiling: what may be heard of it at most.

    Raises:
        InvalidGraph: it has no nodes, or its entry is none of them.
    """
    nested: dict[int, Plan] = {}
    plan = _compile(graph, kit, nested, speeches(graph, ceiling), ceiling)
    plan.nested = nested
    return plan


def compile_child(child: Any, kit: Kit, ceiling: Speech = Speech.FREE) -> Plan:
    """A node or a graph that runs inside a node: alone, without ways out but the one into its tool loop."""
    if isinstance(child, PromptGraph):
        return compile_graph(child, kit, ceiling)
    return _alone(child, kit, speeches_of_child(child, ceiling).of(child))


def _alone(child: BaseNode, kit: Kit, speech: Speech) -> Plan:
    return Plan({child.name: Step(child, kit, speech)}, child.name, None, speech)


def _compile(
    graph: PromptGraph,
    kit: Kit,
    nested: dict[int, Plan],
    speech: Voices,
    ceiling: Speech = Speech.FREE,
) -> Plan:
    if graph.entry not in graph.nodes:
        raise InvalidGraph([f"The graph {graph.name!r} has no entry: {graph.entry or 'it has no nodes'}."])
    if graph.mode == "autonomous":
        pool = make_node(AUTONOMOUS, AUTONOMOUS, tuple(graph.nodes.values()))
        steps, entry = {pool.name: Step(pool, kit, ceiling)}, pool.name
        if graph.finalizer:
            steps[graph.finalizer] = Step(graph.get_node(graph.finalizer), kit)
    else:
        steps = {node.name: _placed(graph, node, kit, speech.of(node)) for node in graph.nodes.values()}
        entry = graph.entry
    plan = nested[id(graph)] = Plan(steps, entry, graph, ceiling)
    for step in steps.values():
        _compile_children(step.node, kit, nested, speech)
    return plan


def _compile_children(node: BaseNode, kit: Kit, nested: dict[int, Plan], speech: Voices) -> None:
    for child in node.children():
        if id(child) in nested:
            continue
        if isinstance(child, PromptGraph):
            _compile(child, kit, nested, speech, speech.of(child))
        elif isinstance(child, BaseNode):
            nested[id(child)] = _alone(child, kit, speech.of(child))
            _compile_children(child, kit, nested, speech)


def _placed(graph: PromptGraph, node: BaseNode, kit: Kit, speech: Speech) -> Step:
    """A node with its ways out."""
    step = Step(node, kit, speech)
    step.transitions = node.transitions
    edges = graph.get_edges_from(node.name)
    step.arrows = tuple(
        Arrow(
            None if e.condition is None else as_test(e.condition, f"Edge {e}"),
            Way(e.target, _reason(e.label)),
        )
        for e in edges
    )
    if node.default_next:
        step.default = Way(node.default_next, "default")
    if "edges_only" not in (node.routing, graph.routing):
        step.routes = _words(node, routable(graph, node.name))
    ahead = declared_targets(graph, node.name) - {node.default_next}
    step.guards = frozenset(name for name in ahead if is_protected(graph, name))
    failing = (e.target for e in edges if isinstance(e.condition, OnError))
    target = next(failing, "") or node.transitions.get(ERROR_KEY, "")
    fallback = ERROR_NODE if graph.has_node(ERROR_NODE) and node.name != ERROR_NODE else ""
    step.on_error = Way(target or fallback, "stuck")
    step.rules, step.straight = rules_for(step), straight_way(step)
    return step


def _reason(label: str) -> str:
    return f"edge: {label}" if label else "edge"


def _words(node: BaseNode, targets: set[str]) -> dict[str, str]:
    """What the model may say: targets by name, and keys of transitions."""
    keys = {k: t for k, t in node.transitions.items() if isinstance(k, str) and k != ERROR_KEY}
    return {**{t: t for t in targets}, **keys}
