"""Where a run goes after a node: the seven steps of document 000, a table of pure functions.

    1  tool calls in the result             the same node again
    2  the model's route, _next or goto     if the target is declared, and skips no guard and no human
    3  NodeResult.next_node                 set by the node's own code
    4  edges                                by priority; conditional ones before unconditional ones
    5  the node's transitions               by the output, or `error`
    6  the node's default_next
    7  the end

The first that answers wins; which one it was is written into `transition_reason`. A result that carries a
`stop_reason` (a denial, for example) follows no unconditional way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from astromesh.graph.edges import Test, field_of
from astromesh.graph.records import END, TOOL_CALLS_PRESENT, NodeResult
from astromesh.graph.state import GraphState

log = logging.getLogger("astromesh.graph")

#: where the model says where to go
SPOKEN = ("route", "_next", "goto")
ERROR_KEY = "error"
#: outputs that may be a key of the transitions as a whole
_SCALARS = (str, int, float, Enum)


class Way(NamedTuple):
    """A decision: the next node, and the rule that made it."""

    target: str
    reason: str


class Arrow(NamedTuple):
    """A compiled edge."""

    test: Test | None
    way: Way


class Crossing(Protocol):
    """What a transition looks at in a compiled node.

    Args:
        routes: what the model may say, and the target it means.
        guards: guards and humans that edges or transitions of this node lead to directly.
        rules: those of the seven steps that can answer for this node.
        straight: where a result without anything to decide by leads, or None where that has to be asked.
    """

    name: str
    tool_loop: bool
    arrows: tuple[Arrow, ...]
    transitions: Mapping[Any, str]
    default: Way
    routes: Mapping[str, str]
    guards: frozenset[str]
    rules: tuple[Rule, ...]
    straight: Way | None


Rule: TypeAlias = "Callable[[Crossing, NodeResult, GraphState], Way | None]"

THE_END = Way(END, "end")


def next_way(crossing: Crossing, result: NodeResult, state: GraphState) -> Way:
    """Where to go after a node; asked where a result can decide something (else `straight_way` says it)."""
    for rule in crossing.rules:
        way = rule(crossing, result, state)
        if way is not None:
            return way
    return THE_END


def straight_way(crossing: Crossing) -> Way | None:
    """Where a result that says nothing leads, if neither conditions nor transitions have a word in it."""
    if crossing.arrows:
        first = crossing.arrows[0]
        return first.way if first.test is None else None
    if crossing.transitions:
        return None
    return crossing.default if crossing.default.target else THE_END


def rules_for(crossing: Crossing) -> tuple[Rule, ...]:
    """The steps that can answer for a node, in order; the others would only cost time."""
    return tuple(rule for rule, applies in STEPS if applies(crossing))


def again_with_tools(crossing: Crossing, result: NodeResult, state: GraphState) -> Way | None:
    """Step 1."""
    if result.tool_calls and result.transition_reason == TOOL_CALLS_PRESENT and not result.error:
        return Way(crossing.name, TOOL_CALLS_PRESENT)
    return None


def by_the_model(crossing: Crossing, result: NodeResult, state: GraphState) -> Way | None:
    """Step 2."""
    said = spoken(result.output)
    if said is None or result.error or result.stop_reason:
        return None
    field, word = said
    target = crossing.routes.get(word)
    if target is None:
        log.debug("%s may not lead to %r: not declared", crossing.name, word)
        return None
    if crossing.guards and target not in crossing.guards:
        for rule in (by_the_node, by_edges, by_transitions):
            way = rule(crossing, result, state)
            if way is not None:
                return way if way.target in crossing.guards else Way(target, field)
    return Way(target, field)


def by_the_node(crossing: Crossing, result: NodeResult, state: GraphState) -> Way | None:
    """Step 3."""
    return Way(result.next_node, "next_node") if result.next_node else None


def by_edges(crossing: Crossing, result: NodeResult, state: GraphState) -> Way | None:
    """Step 4."""
    for test, way in crossing.arrows:
        if test is None:
            if not result.stop_reason:
                return way
        elif passes(test, way, result, state):
            return way
    return None


def by_transitions(crossing: Crossing, result: NodeResult, state: GraphState) -> Way | None:
    """Step 5."""
    key = matching_key(crossing.transitions, result)
    return None if key is None else Way(crossing.transitions[key], f"transition: {key}")


def by_default(crossing: Crossing, result: NodeResult, state: GraphState) -> Way | None:
    """Step 6."""
    return None if result.stop_reason else crossing.default


STEPS: tuple[tuple[Rule, Callable[[Crossing], object]], ...] = (
    (again_with_tools, lambda c: c.tool_loop),
    (by_the_model, lambda c: c.routes),
    (by_the_node, lambda c: True),
    (by_edges, lambda c: c.arrows),
    (by_transitions, lambda c: c.transitions),
    (by_default, lambda c: c.default.target),
)


def spoken(output: Any) -> tuple[str, str] | None:
    """Which field of an output says where to go, and what it says."""
    if output is None or isinstance(output, str):
        return None
    for field in SPOKEN:
        word = field_of(output, field)
        if isinstance(word, str) and word:
            return field, word
    return None


def matching_key(transitions: Mapping[Any, str], result: NodeResult) -> Any:
    """The transition that a result matches: `error` where it failed, else the output or a true field of it.

    The key `error` is for failures alone: no output, whatever its fields, can take it.
    """
    if result.error:
        return ERROR_KEY if ERROR_KEY in transitions else None
    output = result.output
    if isinstance(output, str):
        output = output.strip()
    if isinstance(output, _SCALARS):
        return output if output != ERROR_KEY and output in transitions else None
    fields = (k for k in transitions if isinstance(k, str) and k != ERROR_KEY)
    return next((k for k in fields if field_of(output, k) is True), None)


def passes(test: Test, way: Way, result: NodeResult, state: GraphState) -> bool:
    """Whether a condition holds. One that raises does not, and fails the node if it had not failed."""
    try:
        return bool(test(result, state))
    except Exception as error:  # noqa: BLE001 (part of the node's border: a condition is the author's code)
        log.warning("the condition of the %s to %s raised %r", way.reason, way.target, error)
        result.error = (
            result.error or f"The condition of the {way.reason} to {way.target!r} failed: {error!r}"
        )
        return False
