"""The compiled form of a graph, shared by all runs of an engine, with the audibility of its nodes."""

from __future__ import annotations

from typing import Any

from astromesh.errors import InvalidGraph
from astromesh.graph.audibility import (
    Audibility,
    AudibilityMap,
    audibility_in_graph,
    audibility_in_node,
    nodes_before_guards,
)
from astromesh.graph.base import BaseNode
from astromesh.graph.edges import OnError, as_test
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes.kinds import AUTONOMOUS, make_node
from astromesh.graph.records import ERROR_NODE
from astromesh.graph.step import CompileOptions, Step
from astromesh.graph.topology import declared_targets, is_protected, may_refuse, routable
from astromesh.graph.transitions import (
    ERROR_KEY,
    CompiledEdge,
    Transition,
    rules_for,
    unconditional_transition,
)


class Plan:
    """What a traversal follows: a compiled graph, or a single child.

    Args:
        steps: By name.
        graph: The source. None for a single child.
        ceiling: The least audibility of everything inside, set by the node that runs it.

    Attributes:
        unconfirmed: Nodes whose output is no answer if the run is stopped, because a guard or a human
            follows.
        guarded: Whether anything inside may refuse another node's text.
        nested: The plans of all children, by the identity of their source.
    """

    __slots__ = (
        "ceiling", "entry", "finalizer", "graph", "guarded", "is_graph", "name", "nested", "steps",
        "unconfirmed", "version",
    )  # fmt: skip

    def __init__(
        self,
        steps: dict[str, Step],
        entry: str,
        graph: PromptGraph | None = None,
        ceiling: Audibility = Audibility.STREAMED,
    ) -> None:
        self.steps, self.entry, self.graph, self.ceiling = steps, entry, graph, ceiling
        static = graph is not None and graph.mode != "autonomous"
        self.unconfirmed = nodes_before_guards(graph) - {graph.finalizer} if graph and static else frozenset()
        self.guarded = any(may_refuse(step.node) for step in steps.values())
        self.is_graph = graph is not None
        self.name = graph.name if graph else entry
        self.version = graph.version if graph else 0
        self.finalizer = graph.finalizer if graph else ""
        self.nested: dict[int, Plan] = {}

    @property
    def is_stale(self) -> bool:
        """Whether the graph was changed since it was compiled."""
        return self.graph is not None and self.graph.version != self.version

    @property
    def first_step(self) -> Step:
        """The first step. A single child has no other."""
        return self.steps[self.entry]


def compile_graph(
    graph: PromptGraph, options: CompileOptions, ceiling: Audibility = Audibility.STREAMED
) -> Plan:
    """Compiles a graph and everything nested in it.

    Args:
        ceiling: The least audibility of everything inside.

    Raises:
        InvalidGraph: The graph has no nodes, or its entry is not one of them.
    """
    nested: dict[int, Plan] = {}
    plan = _compile(graph, options, nested, audibility_in_graph(graph, ceiling), ceiling)
    plan.nested = nested
    return plan


def compile_child(child: Any, options: CompileOptions, ceiling: Audibility = Audibility.STREAMED) -> Plan:
    """Compiles a node or a graph that runs inside a node.

    A node alone has no targets but its own tool loop.
    """
    if isinstance(child, PromptGraph):
        return compile_graph(child, options, ceiling)
    return _compile_single(child, options, audibility_in_node(child, ceiling).get(child))


def _compile_single(child: BaseNode, options: CompileOptions, audibility: Audibility) -> Plan:
    return Plan({child.name: Step(child, options, audibility)}, child.name, None, audibility)


def _compile(
    graph: PromptGraph,
    options: CompileOptions,
    nested: dict[int, Plan],
    audibilities: AudibilityMap,
    ceiling: Audibility = Audibility.STREAMED,
) -> Plan:
    if graph.entry not in graph.nodes:
        raise InvalidGraph([f"The graph {graph.name!r} has no entry: {graph.entry or 'it has no nodes'}."])
    if graph.mode == "autonomous":
        pool = make_node(AUTONOMOUS, AUTONOMOUS, tuple(graph.nodes.values()))
        steps, entry = {pool.name: Step(pool, options, ceiling)}, pool.name
        if graph.finalizer:
            steps[graph.finalizer] = Step(graph.get_node(graph.finalizer), options)
    else:
        steps = {
            node.name: _compile_node(graph, node, options, audibilities.get(node))
            for node in graph.nodes.values()
        }
        entry = graph.entry
    plan = nested[id(graph)] = Plan(steps, entry, graph, ceiling)
    for step in steps.values():
        _compile_children(step.node, options, nested, audibilities)
    return plan


def _compile_children(
    node: BaseNode, options: CompileOptions, nested: dict[int, Plan], audibilities: AudibilityMap
) -> None:
    for child in node.children():
        if id(child) in nested:
            continue
        if isinstance(child, PromptGraph):
            _compile(child, options, nested, audibilities, audibilities.get(child))
        elif isinstance(child, BaseNode):
            nested[id(child)] = _compile_single(child, options, audibilities.get(child))
            _compile_children(child, options, nested, audibilities)


def _compile_node(
    graph: PromptGraph, node: BaseNode, options: CompileOptions, audibility: Audibility
) -> Step:
    """Compiles a node with its targets."""
    step = Step(node, options, audibility)
    step.transitions = node.transitions
    edges = graph.get_edges_from(node.name)
    step.edges = tuple(
        CompiledEdge(
            None if e.condition is None else as_test(e.condition, f"Edge {e}"),
            Transition(e.target, _reason(e.label)),
        )
        for e in edges
    )
    if node.default_next:
        step.default = Transition(node.default_next, "default")
    if "edges_only" not in (node.routing, graph.routing):
        step.routes = _routes_of(node, routable(graph, node.name))
    ahead = declared_targets(graph, node.name) - {node.default_next}
    step.guards = frozenset(name for name in ahead if is_protected(graph, name))
    failing = (e.target for e in edges if isinstance(e.condition, OnError))
    target = next(failing, "") or node.transitions.get(ERROR_KEY, "")
    fallback = ERROR_NODE if graph.has_node(ERROR_NODE) and node.name != ERROR_NODE else ""
    step.on_error = Transition(target or fallback, "stuck")
    step.rules, step.unconditional = rules_for(step), unconditional_transition(step)
    return step


def _reason(label: str) -> str:
    return f"edge: {label}" if label else "edge"


def _routes_of(node: BaseNode, targets: set[str]) -> dict[str, str]:
    """Returns what the model may answer as a route: targets by name, and keys of transitions."""
    keys = {k: t for k, t in node.transitions.items() if isinstance(k, str) and k != ERROR_KEY}
    return {**{t: t for t in targets}, **keys}
