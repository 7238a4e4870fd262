"""One execution of a flagged node, as the effects of its flags see and change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from astromesh.graph.base import BaseNode
from astromesh.graph.config import NodeConfig
from astromesh.graph.hooks import HookSet
from astromesh.graph.own_keys import NODE_CACHE
from astromesh.graph.records import NodeResult
from astromesh.graph.state import WRITTEN, GraphState
from astromesh.types import Message

OUTPUT_SUFFIX = "_output"


class Compiled(Protocol):
    """What effects look at in a compiled node."""

    name: str
    node: BaseNode
    hooks: HookSet


class Visit:
    """One execution.

    Args:
        step: the compiled node.
        base: the state at this level.
        config: what the node is given.

    `state` is what the node sees: `base`, or a view of it. `result` is set by an effect that answers instead
    of the node, or by the node; `ran` says which. `shown` is how many messages NO_HISTORY left to see;
    `cache_key` and `before` belong to CACHEABLE.
    """

    __slots__ = ("base", "before", "cache_key", "config", "ran", "result", "shown", "state", "step")

    def __init__(self, step: Compiled, base: GraphState, config: NodeConfig) -> None:
        self.step = step
        self.base = base
        self.state = base
        self.config = config
        self.result: NodeResult | None = None
        self.ran = False
        self.shown = 0
        self.cache_key = b""
        self.before: Traces | None = None

    @property
    def done(self) -> NodeResult:
        """The result, for effects that come after the node."""
        return self.result or NodeResult(self.step.name)

    def show(self, state: GraphState) -> None:
        """Lets the node see another state than the level's."""
        self.state = state


class Traces:
    """What the state held before a node ran, to tell its own writes afterwards."""

    __slots__ = ("context", "lengths")

    def __init__(self, state: GraphState) -> None:
        self.context = dict(state.context)
        self.lengths = {name: len(getattr(state, name)) for name in WRITTEN}

    def written(self, state: GraphState) -> Writes:
        old = self.context
        context = {
            k: v for k, v in state.context.items() if k != NODE_CACHE and (k not in old or old[k] is not v)
        }
        gathered = {name: getattr(state, name)[length:] for name, length in self.lengths.items()}
        return Writes(context, gathered)


class Writes:
    """A node's own writes to the state, kept so that a cache hit can repeat them."""

    __slots__ = ("context", "gathered")

    def __init__(self, context: Mapping[str, Any], gathered: Mapping[str, list[Any]]) -> None:
        self.context, self.gathered = context, gathered

    def repeat(self, state: GraphState) -> None:
        state.context.update(self.context)
        for name, added in self.gathered.items():
            getattr(state, name).extend(added)


def declared_inputs(node: BaseNode, context: Mapping[str, Any]) -> dict[str, Any]:
    """What a node declares to read, of what is there."""
    return {name: context[name] for name in declared_names(node) if name in context}


def declared_names(node: BaseNode) -> tuple[str, ...]:
    """The names in the context that a node declares to read."""
    if node.inherit_context_from:
        return (*node.input_keys, node.inherit_context_from + OUTPUT_SUFFIX)
    return node.input_keys


def without_history(state: GraphState, *, hidden_loop: bool) -> list[Message]:
    """System messages, the current question, and the node's own tool loop.

    Args:
        state: at the node's level.
        hidden_loop: whether the loop's messages stand apart from the state's (ISOLATED_CONTEXT).
    """
    own = {id(message) for message in state.loop}
    question = next((m for m in reversed(state.messages) if m.role == "user" and id(m) not in own), None)
    kept = [m for m in state.messages if m.role == "system" or m is question or id(m) in own]
    return [*kept, *state.loop] if hidden_loop else kept
