"""The next node of a run: the seven steps of document 000, a table of pure functions.

    1  tool calls in the result             the same node again
    2  the model's route, _next or goto     if the target is declared, and skips no guard and no human
    3  sends, NodeResult.next_node          set by the node's own code
    4  edges, forks                         by priority; conditional ones before unconditional ones
    5  the node's transitions               by the output, or `error`
    6  the node's default_next
    7  the end

The first step that returns a target counts. Its name becomes the `transition_reason`. A result with a
`stop_reason` (a denial, for example) follows no unconditional edge, nor does a failed one in a graph with
`on_error: stop`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import lru_cache, update_wrapper
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from astromesh.errors import described, is_failure
from astromesh.graph.records import ACTION_KEY, END, ERROR_NODE, TOOL_CALLS_PRESENT, NodeResult
from astromesh.graph.runner import call_inline
from astromesh.graph.state import GraphState
from astromesh.graph.validation import positional_arity

#: Takes `(result)` or `(result, state)`.
Condition: TypeAlias = Callable[..., Any]
Test: TypeAlias = Callable[[NodeResult, GraphState], Any]


@dataclass(frozen=True, slots=True)
class Edge:
    """A directed connection of two nodes.

    Args:
        condition: Takes `(result)` or `(result, state)`. None: the edge is unconditional.
        label: For drawings and for `transition_reason`.
        priority: Higher values are tried first. Within one priority conditional edges come first.
    """

    source: str
    target: str
    condition: Condition | None = None
    label: str = ""
    priority: int = 0

    def __str__(self) -> str:
        return f"{self.source} → {self.target}" + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True, slots=True)
class Fork:
    """Targets that are taken together, where an unconditional edge would be taken.

    Args:
        targets: In the order in which the writes of their branches are merged.
        max_concurrency: The branches that run at a time.
    """

    source: str
    targets: tuple[str, ...]
    max_concurrency: int = 10

    def __str__(self) -> str:
        return f"{self.source} → {', '.join(self.targets)} (fork)"


class Send(Struct, frozen=True):
    """A value for a node. A node that returns a list of these sends each to its node, all at once.

    The node finds the value in `context["item"]`, and its position in the list in `context["index"]`.

    Args:
        node: A target that the sending node declares: of an edge, a transition, or `routes`.
    """

    node: str
    value: Any = None


# -- built-in conditions: records whose text says when they hold -------------------------------------------


@dataclass(frozen=True, slots=True)
class OnToolCall:
    """The model requested tools."""

    def __str__(self) -> str:
        return "tool call"

    def __call__(self, result: NodeResult) -> bool:
        return bool(result.tool_calls)


@dataclass(frozen=True, slots=True)
class OnNoToolCall:
    """The node answered without asking for tools."""

    def __str__(self) -> str:
        return "no tool call"

    def __call__(self, result: NodeResult) -> bool:
        return not result.tool_calls and not result.error


@dataclass(frozen=True, slots=True)
class OnError:
    """The node failed. A field `error` of its output does not count."""

    def __str__(self) -> str:
        return "error"

    def __call__(self, result: NodeResult) -> bool:
        return bool(result.error)


@dataclass(frozen=True, slots=True)
class OnGuardFail:
    """A guard of the node failed."""

    def __str__(self) -> str:
        return "guard failed"

    def __call__(self, result: NodeResult) -> bool:
        return bool(result.guards_failed)


@dataclass(frozen=True, slots=True)
class OnOutput:
    """A field of the output has a value."""

    key: str
    value: Any = True

    def __str__(self) -> str:
        return f"{self.key} = {self.value}"

    def __call__(self, result: NodeResult) -> bool:
        found = field_of(result.output, self.key)
        # True does not equal 1 here
        return found is self.value if isinstance(self.value, bool) else bool(found == self.value)


@dataclass(frozen=True, slots=True)
class OnConfidence:
    """The output's `confidence` is a number of at least `min_confidence`."""

    min_confidence: float

    def __str__(self) -> str:
        return f"confidence ≥ {self.min_confidence:g}"

    def __call__(self, result: NodeResult) -> bool:
        found = field_of(result.output, "confidence")
        return isinstance(found, int | float) and not isinstance(found, bool) and found >= self.min_confidence


def describe_condition(condition: Condition) -> str:
    """Returns a label for a condition: the text of a built-in one, else its name."""
    if type(condition).__module__ == __name__:
        return str(condition)
    return getattr(condition, "__name__", type(condition).__name__).strip("<>")


def field_of(output: Any, key: str) -> Any:
    """Returns a field of an output: of a mapping by key, of a pydantic model or dataclass by attribute."""
    if isinstance(output, Mapping):
        return output.get(key)
    if hasattr(output, "__dataclass_fields__") or hasattr(output, "model_fields_set"):
        return getattr(output, key, None)
    return None


def as_test(condition: Condition, owner: str) -> Test:
    """Returns a condition as a function of result and state.

    Raises:
        TypeError: It is async, or takes neither one nor two arguments.
    """
    if inspect.iscoroutinefunction(condition):
        raise TypeError(f"{owner}: a condition must not be async.")
    if positional_arity(condition, owner, most=2) == 2:
        return condition

    def test(result: NodeResult, state: GraphState) -> Any:
        return condition(result)

    return update_wrapper(test, condition, updated=())  # warnings name the condition


def in_evaluation_order(edges: list[Edge]) -> tuple[Edge, ...]:
    """Sorts edges by priority, then conditional before unconditional, then as they were added."""
    return tuple(sorted(edges, key=lambda edge: (-edge.priority, edge.condition is None)))


log = logging.getLogger("astromesh.graph")
_CONDITION = "The condition"

#: The fields by which the model names the next node.
ROUTE_FIELDS = ("route", "_next", "goto")
ERROR_KEY = "error"
#: How the reason of a transition of step 5 begins.
_BY_TRANSITION = "transition: "
#: Types of outputs that may be a key of the transitions.
_KEYS = (str, int, float, Enum)
#: Types of outputs that decide only by conditions and transitions.
SCALARS = frozenset({type(None), str, int, float, bool})
DECIDING_KEYS = frozenset({*ROUTE_FIELDS, ACTION_KEY})


class Transition(Struct, frozen=True):
    """A decision: the next node, and the rule that made it."""

    target: str
    reason: str


class CompiledEdge(NamedTuple):
    """A compiled edge."""

    test: Test | None
    transition: Transition


END_TRANSITION, NO_TRANSITION = Transition(END, "end"), Transition("", "")
#: The reasons of transitions that begin branches. Their target is the first one.
FORK, SEND = "fork", "send"
BRANCHING = frozenset({FORK, SEND})


@dataclass
class RoutedNode:
    """The fields of a compiled node that a transition reads.

    Args:
        routes: What the model may answer, and the target that it means.
        guards: The guards and humans that edges or transitions of this node lead to directly.
        rules: Those of the seven steps that can apply to this node.
        unconditional: The transition of a result that decides nothing, or None if that depends on the result.
        stops_on_error: Whether the graph has `on_error: stop`.
        fork: The branches that begin after it, or None.
        declared: All targets, to which it may send.
    """

    name: str
    tool_loop: bool = True
    edges: tuple[CompiledEdge, ...] = ()
    transitions: Mapping[Any, str] = field(default_factory=dict)
    default: Transition = NO_TRANSITION
    routes: Mapping[str, str] = field(default_factory=dict)
    guards: frozenset[str] = frozenset()
    rules: tuple[Rule, ...] = ()
    unconditional: Transition | None = END_TRANSITION
    stops_on_error: bool = False
    fork: Fork | None = None
    declared: frozenset[str] = frozenset()

    def must_stop(self, result: NodeResult) -> bool:
        """Whether a result follows neither unconditional edges nor the default."""
        return bool(result.stop_reason or (result.error and self.stops_on_error))


Rule: TypeAlias = Callable[[RoutedNode, NodeResult, GraphState], Transition | None]


def next_transition(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition:
    """Returns the transition after a node.

    The loop uses `unconditional` instead if the result decides nothing.
    """
    for rule in node.rules:
        transition = rule(node, result, state)
        if transition is not None:
            return transition
    return END_TRANSITION


def unconditional_transition(node: RoutedNode) -> Transition | None:
    """Returns the transition of a result that decides nothing, or None if conditions decide."""
    if node.edges:
        first = node.edges[0]
        return first.transition if first.test is None and node.fork is None else None
    if node.transitions:
        return None
    return node.default if node.default.target else END_TRANSITION


def rules_for(node: RoutedNode) -> tuple[Rule, ...]:
    """Returns the steps that can apply to a node, in order. The others would only cost time."""
    return tuple(rule for rule, applies in STEPS if applies(node))


def repeat_with_tools(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition | None:
    """Step 1: tool calls."""
    if result.tool_calls and result.transition_reason == TOOL_CALLS_PRESENT and not result.error:
        return Transition(node.name, TOOL_CALLS_PRESENT)
    return None


def by_the_model(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition | None:
    """Step 2: the model's route."""
    route = route_in(result.output)
    if route is None or result.error or result.stop_reason:
        return None
    field, word = route
    target = node.routes.get(word)
    if target is None:
        log.debug("%s may not lead to %r: not declared", node.name, word)
        return None
    if node.guards and target not in node.guards:
        for rule in (by_the_node, by_edges, by_transitions):
            transition = rule(node, result, state)
            if transition is not None:
                return transition if transition.target in node.guards else Transition(target, field)
    return Transition(target, field)


def by_the_node(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition | None:
    """Step 3: the node's own code."""
    return Transition(result.next_node, "next_node") if result.next_node else None


def by_edges(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition | None:
    """Step 4: edges."""
    for test, transition in node.edges:
        if test is None:
            if not node.must_stop(result):
                return transition
        elif condition_holds(test, transition, result, state):
            return transition
    return None


def by_transitions(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition | None:
    """Step 5: transitions."""
    key = matching_transition(node.transitions, result)
    return None if key is None else Transition(node.transitions[key], f"{_BY_TRANSITION}{key}")


def by_default(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition | None:
    """Step 6: `default_next`."""
    return None if node.must_stop(result) else node.default


def by_sends(node: RoutedNode, result: NodeResult, state: GraphState) -> Transition | None:
    """Step 3 too: the node sends items to other nodes."""
    sends = sends_in(result.output)
    if not sends or result.error:
        return None
    if unknown := [send.node for send in sends if send.node not in node.declared]:
        result.error = f"{node.name!r} sends to {unknown[0]!r}, which is not one of its targets or routes."
        return None
    return Transition(sends[0].node, SEND)


def sends_in(output: Any, *, recorded: bool = False) -> tuple[Send, ...]:
    """Returns the sends of an output that is a list of them, else nothing.

    Args:
        recorded: The output comes from the record of a durable run, where they are mappings.
    """
    if not isinstance(output, list | tuple) or not output:
        return ()
    if recorded and all(isinstance(one, Mapping) for one in output):
        return tuple(Send(one["node"], one.get("value")) for one in output)
    return tuple(output) if all(isinstance(one, Send) for one in output) else ()


STEPS: tuple[tuple[Rule, Callable[[RoutedNode], object]], ...] = (
    (repeat_with_tools, lambda c: c.tool_loop),
    (by_the_model, lambda c: c.routes),
    (by_sends, lambda c: c.declared),
    (by_the_node, lambda c: True),
    (by_edges, lambda c: c.edges),
    (by_transitions, lambda c: c.transitions),
    (by_default, lambda c: c.default.target),
)


def takes_up_error(node: RoutedNode, transition: Transition) -> bool:
    """Whether the transition of a failed node is one for failures.

    Those are conditional edges, transitions by `error`, what the node's own code chose, and `__error__`.
    """
    return (
        transition.target == ERROR_NODE
        or transition.reason == "next_node"
        or transition.reason.startswith(_BY_TRANSITION)
        or any(test is not None and edge is transition for test, edge in node.edges)
    )


def decides_nothing(output: Any, kind: type) -> bool:
    """Whether an output of a type holds no route, no graph action and no sends."""
    if kind is dict:
        return DECIDING_KEYS.isdisjoint(output)
    if kind is list:
        return not (output and isinstance(output[0], Send))
    return _has_no_route(kind)


@lru_cache(256)
def _has_no_route(kind: type) -> bool:
    """Whether the instances of a class are records without a field that names the next node."""
    is_model = hasattr(kind, "model_fields")
    if not is_model and not is_dataclass(kind):
        return False
    record: Any = kind
    fields = record.model_fields if is_model else record.__dataclass_fields__
    has_more_fields = is_model and record.model_config.get("extra") == "allow"
    return not has_more_fields and not any(hasattr(kind, n) or n in fields for n in ROUTE_FIELDS)


def route_in(output: Any) -> tuple[str, str] | None:
    """Returns the field of an output that names the next node, and its value."""
    if output is None or isinstance(output, str):
        return None
    for key in ROUTE_FIELDS:
        word = field_of(output, key)
        if isinstance(word, str) and word:
            return key, word
    return None


def matching_transition(transitions: Mapping[Any, str], result: NodeResult) -> Any:
    """Returns the key that a result matches: `error` if it failed, else the output or a true field of it.

    Only failures match the key `error`. No output does, whatever its fields.
    """
    if result.error:
        return ERROR_KEY if ERROR_KEY in transitions else None
    output = result.output
    if isinstance(output, str):
        output = output.strip()
    if isinstance(output, _KEYS):
        return output if output != ERROR_KEY and output in transitions else None
    fields = (k for k in transitions if isinstance(k, str) and k != ERROR_KEY)
    return next((k for k in fields if field_of(output, k) is True), None)


def condition_holds(test: Test, transition: Transition, result: NodeResult, state: GraphState) -> bool:
    """Whether a condition holds. A condition that raises an exception does not, and fails the node."""
    try:
        return bool(call_inline(_CONDITION, test, result, state))
    except BaseException as error:  # boundary of a node: a condition is foreign code
        if not is_failure(error):
            raise
        log.warning(
            "the condition of the %s to %s raised %s", transition.reason, transition.target, described(error)
        )
        if not result.error:
            where = f"the {transition.reason} to {transition.target!r}"
            result.error, result.exception = f"The condition of {where} failed: {described(error)}", error
        return False
