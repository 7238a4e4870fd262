"""Edges and their conditions: small callable records, so that a graph can be written to YAML."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from astromesh.graph.records import NodeResult
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


# -- built-in conditions: records whose text says when they hold -------------------------------------------


@dataclass(frozen=True, slots=True)
class OnToolCall:
    """The model asked for tools."""

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
    """Returns a label for a condition: built-in ones in words, others by their name."""
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
    return lambda result, state: condition(result)


def in_evaluation_order(edges: list[Edge]) -> tuple[Edge, ...]:
    """Sorts edges by priority, then conditional before unconditional, then as they were added."""
    return tuple(sorted(edges, key=lambda edge: (-edge.priority, edge.condition is None)))
