"""Kinds of nodes by name, for graph actions of a model and for autonomous mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astromesh.errors import InvalidGraph
from astromesh.graph.base import BaseNode
from astromesh.graph.nodes import KINDS

#: kinds that a model may add to its own graph: those that only ask a model
OPEN = frozenset(
    {"prompt", "think", "reflect", "observe", "justify", "critique", "plan", "synthesize", "validate"}
)

#: the kind whose `(name, pool)` runs a graph in autonomous mode
AUTONOMOUS = "autonomous"

__all__ = ["AUTONOMOUS", "KINDS", "OPEN", "make_node", "speaks_for_itself"]

#: kinds whose results are what a user's function made
_OF_FUNCTIONS = frozenset({KINDS["function"], KINDS["transform"]})
_BUILT_IN = frozenset(KINDS.values()) - _OF_FUNCTIONS


def speaks_for_itself(node: BaseNode) -> bool:
    """Whether a node's results are made by the engine's own code, and need not be looked at."""
    return type(node) in _BUILT_IN


def make_node(kind: str, name: str, *arguments: Any, **keywords: Any) -> BaseNode:
    """A node of a kind.

    Raises:
        InvalidGraph: there is no such kind; the message names those that are known.
    """
    if kind not in KINDS:
        raise InvalidGraph([f"There is no kind of node {kind!r}. Known: {', '.join(sorted(KINDS))}."])
    make: Callable[..., BaseNode] = KINDS[kind]
    return make(name, *arguments, **keywords)
