"""PromptGraph: nodes and edges. Builder methods check what they can; `validate` finds all other problems.

A model may change the run's own copy of the graph by actions, which are disabled by default. An action is
`{"op": "add_node" | "add_edge" | "remove_edge", …}` under `_graph_action` of an output:

    add_node     name, kind (default `prompt`), and of the keywords only those in `ALLOWED_KEYWORDS`
    add_edge     from, to, label
    remove_edge  from, to

A malformed action raises nothing: each action records why it was rejected. Existing nodes are never replaced.
No change may let a run bypass a guard or a human, and nothing that a guard has not checked may come in after
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Generic, Literal, Self, TypeAlias

from astromesh.errors import InvalidGraph
from astromesh.graph import problems, topology
from astromesh.graph.base import BaseNode, Routing
from astromesh.graph.flags import NodeFlag
from astromesh.graph.node_config import MAX_CONCURRENCY
from astromesh.graph.nodes import KINDS
from astromesh.graph.records import ACTION_KEY, END, ERROR_NODE, Mutation, S
from astromesh.graph.serialization import read_graph, write_graph
from astromesh.graph.state import MAX_ITERATIONS, NO_REDUCERS, Reducer
from astromesh.graph.topology import declared_targets, exposed, is_protected, reachable, targets
from astromesh.graph.transitions import (
    Condition,
    Edge,
    Fork,
    OnConfidence,
    OnError,
    OnGuardFail,
    OnNoToolCall,
    OnOutput,
    OnToolCall,
    as_test,
    in_evaluation_order,
)
from astromesh.graph.typed_state import StateSchema
from astromesh.graph.validation import ON_NODE_ERROR, ROUTINGS, check_int, check_reducers
from astromesh.types import JsonObject

MODES = ("static", "autonomous")
Mode = Literal["static", "autonomous"]
OnNodeError = Literal["continue", "stop"]
#: The default priority of edges for failures. They are tried before the others.
FIRST = 10


class PromptGraph(Generic[S]):
    """Nodes, edges and an entry.

    Every builder method returns the graph itself, so that calls can be chained. A run never changes a graph.

    Args:
        name: Part of paths if the graph is nested.
        mode: `autonomous`: the model chooses among the nodes, and edges are not followed.
        nodes: The first nodes.
        routing: `edges_only`: in no node of this graph does the text of a model decide about the next node.
        on_error: `stop`: a failed node follows only edges and transitions for failures. `continue`: without
            one it goes on along its other edges.
        reducers: Functions by key of the context. Of what nodes that run concurrently write under the key,
            `function(value, written)` makes one value, in the order of the nodes. It begins with the value
            before them, if there is one. Nested graphs inherit them.
        state: The class of a typed state: a pydantic model, a dataclass or a TypedDict. See `typed_state`.
            `PromptGraph[State](name)` is the same.

    Raises:
        TypeError, ValueError: An argument has a wrong type or value.
    """

    def __init__(  # noqa: PLR0913 (the keywords of graph.md section 1)
        self,
        name: str = "graph",
        *,
        mode: Mode = "static",
        nodes: Iterable[BaseNode] | None = None,
        routing: Routing = "",
        on_error: OnNodeError = "continue",
        reducers: Mapping[str, Reducer] = NO_REDUCERS,
        state: type[S] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"A graph's name must be a text, not {name!r}.")
        for key, value, known in (
            ("mode", mode, MODES),
            ("routing", routing, ROUTINGS),
            ("on_error", on_error, ON_NODE_ERROR),
        ):
            if value not in known:
                choices = " or ".join(map(repr, known))
                raise ValueError(f"Graph {name!r}: {key} must be {choices}, not {value!r}.")
        check_reducers(f"Graph {name!r}", reducers)
        self.name, self.mode, self.routing = name, mode, routing
        self.schema = StateSchema(state) if state is not None else None
        self.own_reducers = MappingProxyType(dict(reducers))
        #: Whether `on_error` is `stop`.
        self.stops_on_error = on_error == "stop"
        self.finalizer = ""
        #: Counts changes, so that compiled plans know when they are stale.
        self.version = 0
        self._nodes: dict[str, BaseNode] = {}
        self._edges: list[Edge] = []
        self._forks: dict[str, Fork] = {}
        self._edge_index: dict[str, tuple[Edge, ...]] | None = None
        self._entry = ""
        for node in nodes or ():
            self.add_node(node)

    def __class_getitem__(cls, state: Any) -> Any:
        """Returns the class for graphs with this state, as `PromptGraph[State](name)`."""
        return partial(cls, state=state)

    @property
    def reducers(self) -> Mapping[str, Reducer]:
        """The reducers by key: those of the fields of the state, and those that were passed."""
        return self.own_reducers if self.schema is None else {**self.schema.reducers, **self.own_reducers}

    @classmethod
    def from_pool(cls, nodes: Iterable[BaseNode], name: str = "autonomous") -> Self:
        """Returns a graph whose path the model builds out of these nodes (autonomous mode)."""
        return cls(name, mode="autonomous", nodes=nodes)

    # -- nodes --------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, BaseNode]:
        """The nodes by name, in the order in which they were added."""
        return MappingProxyType(self._nodes)

    def add_node(self, node: BaseNode) -> Self:
        """Adds a node. Raises InvalidGraph if the name exists, TypeError if it is not a node."""
        if not isinstance(node, BaseNode):
            raise TypeError(f"Graph {self.name!r} contains nodes, not {node!r}.")
        if node.name in self._nodes:
            raise InvalidGraph([f"There is already a node named {node.name!r} in {self.name!r}."])
        self._nodes[node.name] = node
        return self._changed()

    def remove_node(self, name: str) -> Self:
        """Removes a node and its edges. Raises InvalidGraph if no node has this name."""
        self.get_node(name)
        del self._nodes[name]
        self._edges = [e for e in self._edges if name not in (e.source, e.target)]
        self._forks = {
            fork.source: fork for fork in self._forks.values() if name not in (fork.source, *fork.targets)
        }
        return self._changed()

    def get_node(self, name: str) -> BaseNode:
        """Returns a node.

        Raises InvalidGraph if no node has this name; the message lists the known ones.
        """
        if name not in self._nodes:
            raise InvalidGraph([f"{self.name!r} has no node {name!r}; it has {', '.join(self._nodes)}."])
        return self._nodes[name]

    def has_node(self, name: str) -> bool:
        return name in self._nodes

    @property
    def entry(self) -> str:
        """The first node of a run: that of `set_entry`, else one marked `is_entry`, else the first added."""
        if self._entry:
            return self._entry
        marked = (n.name for n in self._nodes.values() if n.has_flag(NodeFlag.ENTRY))
        return next(marked, next(iter(self._nodes), ""))

    def set_entry(self, name: str) -> Self:
        self._entry = name
        return self._changed()

    def set_finalizer(self, name: str) -> Self:
        """Sets the node that runs once, without a model, whenever a run stops before its end."""
        self.finalizer = name
        return self._changed()

    # -- edges --------------------------------------------------------------------------------------------

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges in the order in which they were added."""
        return tuple(self._edges)

    def get_edges_from(self, name: str) -> tuple[Edge, ...]:
        """Returns a node's edges in the order in which they are tried."""
        if self._edge_index is None:
            grouped: dict[str, list[Edge]] = {}
            for edge in self._edges:
                grouped.setdefault(edge.source, []).append(edge)
            self._edge_index = {source: in_evaluation_order(edges) for source, edges in grouped.items()}
        return self._edge_index.get(name, ())

    def add_edge(
        self,
        source: str,
        target: str,
        *,
        condition: Condition | None = None,
        label: str = "",
        priority: int = 0,
    ) -> Self:
        """Adds an edge. See `Edge`.

        Raises:
            TypeError: The condition is async or does not take `(result)` or `(result, state)`; an end of the
                edge is not a name, its label not a text, its priority not an integer.
        """
        for name in (source, target):
            if not isinstance(name, str):
                raise TypeError(f"The ends of an edge must be names of nodes, not {name!r}.")
        if not isinstance(label, str):
            raise TypeError(f"Edge {source} → {target}: label must be a text, not {label!r}.")
        check_int(f"Edge {source} → {target}", "priority", priority, least=None)
        edge = Edge(source, target, condition, label, priority)
        if condition is not None:
            as_test(condition, f"Edge {edge}")
        self._edges.append(edge)
        return self._changed()

    def fork(self, source: str, *targets: str, max_concurrency: int = MAX_CONCURRENCY) -> Self:
        """Takes several targets together, where an unconditional edge would be taken.

        Each branch works on a copy of the state. A node that several branches reach waits for them: see the
        keyword `join`. Then their writes are merged in the order of the targets, whatever ended first. If one
        branch fails, the others are cancelled, nothing is merged, and an error edge of `source` leads on.

        Raises:
            TypeError, ValueError: There are fewer than two different targets, or `source` has a fork.
        """
        owner = f"Fork of {source!r}"
        if not all(isinstance(name, str) for name in (source, *targets)):
            raise TypeError(f"{owner}: its ends must be names of nodes, not {targets!r}.")
        if len(set(targets)) < max(len(targets), 2) or END in targets:
            raise ValueError(f"{owner}: needs two or more different nodes as targets, not {targets!r}.")
        if source in self._forks:
            raise ValueError(f"{owner}: this node has a fork already.")
        check_int(owner, "max_concurrency", max_concurrency)
        self._forks[source] = Fork(source, targets, max_concurrency)
        return self._changed()

    @property
    def forks(self) -> Mapping[str, Fork]:
        """The forks by source."""
        return MappingProxyType(self._forks)

    def remove_edge(self, source: str, target: str) -> Self:
        """Removes every edge between two nodes. Raises InvalidGraph if there is none."""
        remaining = [e for e in self._edges if (e.source, e.target) != (source, target)]
        if len(remaining) == len(self._edges):
            raise InvalidGraph([f"{self.name!r} has no edge {source} → {target}."])
        self._edges = remaining
        return self._changed()

    def always(self, source: str, target: str, *, label: str = "", priority: int = 0) -> Self:
        return self.add_edge(source, target, label=label, priority=priority)

    def when(
        self, source: str, target: str, condition: Condition, *, label: str = "", priority: int = 0
    ) -> Self:
        return self.add_edge(source, target, condition=condition, label=label, priority=priority)

    def _when(self, source: str, target: str, condition: Condition, priority: int = 0) -> Self:
        """Adds an edge with a built-in condition, which is also its label."""
        return self.when(source, target, condition, label=str(condition), priority=priority)

    def sequential(self, *names: str) -> Self:
        """Connects each node to the next, unconditionally."""
        for source, target in pairwise(names):
            self.always(source, target)
        return self

    def on_tool_call(self, source: str, target: str) -> Self:
        """Adds an edge for tool calls of a node with `tool_loop=False`.

        All other nodes are entered again by themselves.
        """
        return self._when(source, target, OnToolCall())

    def on_no_tool_call(self, source: str, target: str) -> Self:
        return self._when(source, target, OnNoToolCall())

    def on_error(self, source: str, target: str, *, priority: int = FIRST) -> Self:
        """Adds an edge for a node that failed or is stuck."""
        return self._when(source, target, OnError(), priority)

    def on_guard_fail(self, source: str, target: str, *, priority: int = FIRST) -> Self:
        return self._when(source, target, OnGuardFail(), priority)

    def on_output(self, source: str, target: str, key: str, value: Any = True, *, priority: int = 0) -> Self:
        """Adds an edge for a value of a field of the output."""
        return self._when(source, target, OnOutput(key, value), priority)

    def on_confidence(self, source: str, target: str, min_confidence: float, *, priority: int = 0) -> Self:
        """Adds an edge for an output whose `confidence` is at least `min_confidence`."""
        return self._when(source, target, OnConfidence(min_confidence), priority)

    def loop_until(self, source: str, target: str, condition: Condition, *, back_to: str = "") -> Self:
        """Leads back to the node or to `back_to` until the condition holds, then to the target."""
        self.when(source, target, condition, label="until")
        return self.always(source, back_to or source, label="again")

    # -- the whole ----------------------------------------------------------------------------------------

    def copy(self) -> Self:
        """Returns an independent graph with the same nodes and edges."""
        other = type(self).__new__(type(self))
        other.__dict__.update(
            self.__dict__, _nodes=dict(self._nodes), _edges=list(self._edges), _forks=dict(self._forks)
        )
        return other

    def validate(self, *, max_iterations: int | None = MAX_ITERATIONS) -> list[str]:
        """Returns every problem of the graph.

        Args:
            max_iterations: The limit of the engine that will run it. What needs more node executions can
                never complete. None: not known.
        """
        return problems.problems(self, max_iterations)

    def describe(self) -> str:
        """Returns the graph as text: each node with its class, flags and targets."""
        return topology.describe(self)

    def to_mermaid(self) -> str:
        """Returns the graph as a Mermaid flowchart."""
        return topology.mermaid(self)

    def to_config(
        self,
        *,
        objects: Mapping[str, Any] | None = None,
        kinds: Mapping[str, type[BaseNode]] | None = None,
    ) -> JsonObject:
        """Returns the graph as plain data. See `serialization`.

        Raises InvalidGraph for objects without a name.
        """
        return write_graph(self, objects, kinds)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        objects: Mapping[str, Any] | None = None,
        kinds: Mapping[str, type[BaseNode]] | None = None,
    ) -> Self:
        """Returns the graph that plain data describes.

        Args:
            config: What `to_config` has returned, or the contents of a `*.graph.yaml`.
            objects: Python objects by the names that the data uses, in addition to `module:name`.
            kinds: Node classes by name, in addition to the built-in ones.

        Raises:
            InvalidGraph: Every problem with its location.
        """
        return read_graph(cls, config, objects, kinds)

    def _changed(self) -> Self:
        self.version += 1
        self._edge_index = None
        return self

    def __repr__(self) -> str:
        return f"PromptGraph({self.name!r}, {len(self._nodes)} nodes, {len(self._edges)} edges)"


# -- graph actions of a model -----------------------------------------------------------------------------


#: Kinds that a model may add to its own graph: those that only ask a model.
ADDABLE_KINDS = frozenset(
    {"prompt", "think", "reflect", "observe", "justify", "critique", "plan", "synthesize", "validate"}
)
ALLOWED_KEYWORDS = frozenset(
    {"instructions", "description", "input_keys", "output_key", "inherit_context_from"}
)

Action: TypeAlias = Mapping[str, Any]
#: Changes the graph, or returns why not.
Op: TypeAlias = Callable[[PromptGraph, Action], str]


def requested_actions(output: Any) -> list[Any]:
    """Returns the graph actions in an output, unchecked."""
    found = output.get(ACTION_KEY) if isinstance(output, Mapping) else None
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def apply_actions(
    graph: PromptGraph | None, actions: Sequence[Any], node: str, limit: int | None
) -> tuple[PromptGraph | None, list[Mutation]]:
    """Returns the graph with the allowed actions applied, and a record of each action.

    `graph` itself does not change. The actions of one output belong together: between them a path may be open
    that is closed at the end. If it stays open, each action is checked alone.

    Args:
        graph: The graph of the run. None for a node inside another one.
        actions: What the model wrote.
        node: The node whose output holds them.
        limit: The number of actions that may be applied. None if the engine allows none.
    """
    if limit is None:
        return graph, reject_actions(actions, node, "The engine does not allow self-modification.")
    if graph is None:
        return graph, reject_actions(actions, node, "A node inside another one cannot change the graph.")
    if not graph.has_node(node):
        return graph, reject_actions(actions, node, "Nodes of a pool have no edges that could be changed.")
    if "edges_only" in (graph.routing, graph.get_node(node).routing):
        return graph, reject_actions(actions, node, "The routing is edges_only.")
    changed, done = _apply(graph, actions, node, limit, one_by_one=False)
    if _bypassed_guard(graph, changed):
        changed, done = _apply(graph, actions, node, limit, one_by_one=True)
    return changed, done


def _apply(
    graph: PromptGraph, actions: Sequence[Any], node: str, limit: int, *, one_by_one: bool
) -> tuple[PromptGraph, list[Mutation]]:
    done: list[Mutation] = []
    for action in actions:
        if sum(mutation.applied for mutation in done) >= limit:
            # one record is enough: a model may ask for thousands
            return graph, [
                *done,
                *reject_actions([action], node, "The run has reached its limit of graph actions."),
            ]
        changed, mutation = _apply_action(graph, action, node)
        if one_by_one and mutation.applied and (weakened := _bypassed_guard(graph, changed)):
            mutation = replace(mutation, rejected=weakened)
        graph = changed if mutation.applied else graph
        done.append(mutation)
    return graph, done


def _apply_action(graph: PromptGraph, action: Any, node: str) -> tuple[PromptGraph, Mutation]:
    if not isinstance(action, Mapping):
        return graph, Mutation(node, "", {}, f"A graph action is an object, not {type(action).__name__}.")
    op = action.get("op")
    change = OPS.get(op) if isinstance(op, str) else None
    if change is None:
        return graph, Mutation(node, str(op), action, f"There is no op {op!r}. Known: {', '.join(OPS)}.")
    changed = graph.copy()
    return changed, Mutation(node, str(op), action, change(changed, action))


def reject_actions(actions: Iterable[Any], node: str, reason: str) -> list[Mutation]:
    """Records actions as rejected, unchecked."""
    known = (a if isinstance(a, Mapping) else {} for a in actions)
    return [Mutation(node, str(action.get("op", "")), action, reason) for action in known]


def _add_node(graph: PromptGraph, action: Action) -> str:
    name, kind = action.get("name"), action.get("kind", "prompt")
    if not isinstance(name, str) or not name or name.startswith("__") or "/" in name:
        return f"A node needs a name without '/' and not beginning with '__', not {name!r}."
    if graph.has_node(name):
        return f"There is already a node {name!r}; nodes are never replaced."
    if not isinstance(kind, str) or kind not in ADDABLE_KINDS:
        return f"A model may not add a node of kind {kind!r}. Allowed: {', '.join(sorted(ADDABLE_KINDS))}."
    unknown = action.keys() - ALLOWED_KEYWORDS - {"op", "name", "kind"}
    if unknown:
        return f"A model may not set {', '.join(sorted(map(str, unknown)))}."
    return _make_node(graph, kind, name, {k: action[k] for k in ALLOWED_KEYWORDS & action.keys()})


def _make_node(graph: PromptGraph, kind: str, name: str, keywords: dict[str, Any]) -> str:
    texts = [k for k in keywords if k != "input_keys" and not isinstance(keywords[k], str)]
    keys = keywords.get("input_keys", [])
    if texts or not isinstance(keys, list) or not all(isinstance(k, str) for k in keys):
        return f"{', '.join(texts) or 'input_keys'}: must be text, input_keys a list of texts."
    names = [*keys, keywords.get("output_key", ""), keywords.get("inherit_context_from", "")]
    if own := [key for key in names if key.startswith("_")]:
        return f"{', '.join(own)}: names that begin with '_' are reserved."
    graph.add_node(KINDS[kind](name, **keywords))
    return ""


def _add_edge(graph: PromptGraph, action: Action) -> str:
    source, target, label = action.get("from"), action.get("to"), action.get("label", "")
    if refused := _unknown_ends(graph, source, target):
        return refused
    assert isinstance(source, str)
    assert isinstance(target, str)
    if is_protected(graph, source) or any(is_protected(graph, t) for t in declared_targets(graph, source)):
        return f"The edges of {source!r} lead to or from a guard or a human and cannot be changed."
    if any((e.source, e.target) == (source, target) for e in graph.edges):
        return f"There is already an edge {source} → {target}."
    graph.add_edge(source, target, label=label if isinstance(label, str) else "")
    return ""


def _remove_edge(graph: PromptGraph, action: Action) -> str:
    source, target = action.get("from"), action.get("to")
    if refused := _unknown_ends(graph, source, target):
        return refused
    assert isinstance(source, str)
    assert isinstance(target, str)
    if is_protected(graph, source) or is_protected(graph, target):
        return "Edges of guards and humans cannot be changed."
    if not any((e.source, e.target) == (source, target) for e in graph.edges):
        return f"There is no edge {source} → {target}."
    graph.remove_edge(source, target)
    return ""


OPS: dict[str, Op] = {"add_node": _add_node, "add_edge": _add_edge, "remove_edge": _remove_edge}


def _unknown_ends(graph: PromptGraph, source: Any, target: Any) -> str:
    if not isinstance(source, str) or not graph.has_node(source):
        return f"'from' must name a node, not {source!r}."
    if not isinstance(target, str) or not (target == END or graph.has_node(target)):
        return f"'to' must name a node or {END}, not {target!r}."
    return ""


def _bypassed_guard(old: PromptGraph, new: PromptGraph) -> str:
    """Returns why a change would let a run bypass a guard or a human, or an empty string."""
    starts = (old.entry, ERROR_NODE)
    before, after = exposed(old, starts), exposed(new, starts)
    existing, every = {*old.nodes, END}, reachable(starts, lambda name: targets(old, name))
    for guard, open_to in before.items():
        around = (after[guard] & existing) - open_to
        if around:
            return f"That would bypass {guard!r} on the way to {', '.join(sorted(around))}."
        # nothing may come between a guard and the nodes behind it
        for name in sorted(every - open_to - {guard}):
            if old.get_edges_from(name) != new.get_edges_from(name):
                return f"The nodes behind {guard!r} cannot be changed, {name!r} included."
    return ""
