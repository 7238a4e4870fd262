"""Graph actions of a model: changes of the run's own copy of the graph, disabled by default.

An action is `{"op": "add_node" | "add_edge" | "remove_edge", …}` under `_graph_action` of an output:

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
from typing import Any, TypeAlias

from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes import KINDS
from astromesh.graph.records import ACTION_KEY, END, ERROR_NODE, Mutation
from astromesh.graph.topology import declared_targets, exposed, is_protected, reachable, targets

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
