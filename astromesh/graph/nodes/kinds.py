"""Kinds of nodes by name, for graph actions of a model and for autonomous mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astromesh.errors import InvalidGraph
from astromesh.graph.base import BaseNode
from astromesh.graph.nodes import KINDS

#: Kinds that a model may add to its own graph: those that only ask a model.
ADDABLE_KINDS = frozenset(
    {"prompt", "think", "reflect", "observe", "justify", "critique", "plan", "synthesize", "validate"}
)

#: The kind whose `(name, pool)` runs a graph in autonomous mode.
AUTONOMOUS = "autonomous"

__all__ = ["ADDABLE_KINDS", "AUTONOMOUS", "KINDS", "is_built_in", "make_node"]

#: Kinds whose results are made by a user's function.
_FUNCTION_CLASSES = frozenset({KINDS["function"], KINDS["transform"]})
_BUILT_IN_CLASSES = frozenset(KINDS.values()) - _FUNCTION_CLASSES


def is_built_in(node: BaseNode) -> bool:
    """Whether the engine's own code makes the results of a node, so that they need no check."""
    return type(node) in _BUILT_IN_CLASSES


def make_node(kind: str, name: str, *arguments: Any, **keywords: Any) -> BaseNode:
    """Returns a node of a kind.

    Raises:
        InvalidGraph: There is no such kind. The message lists the known ones.
    """
    if kind not in KINDS:
        raise InvalidGraph([f"There is no kind of node {kind!r}. Known: {', '.join(sorted(KINDS))}."])
    make: Callable[..., BaseNode] = KINDS[kind]
    return make(name, *arguments, **keywords)
