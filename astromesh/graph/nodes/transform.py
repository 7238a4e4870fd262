"""TransformNode: a pure step from value to value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import WITHOUT_MODEL, BaseNode, NodeKeywords
from astromesh.graph.config import NodeConfig
from astromesh.graph.function import as_result
from astromesh.graph.records import NodeResult
from astromesh.graph.signature import positional_arguments
from astromesh.graph.state import GraphState


class TransformNode(BaseNode):
    """Makes a new value of older ones, without a model.

    Args:
        transform: function of `(value)` or `(value, state)`, sync or async. The value is that of the one
            input key, a dict of the values of several, or without input keys the last node's output.
        keywords: see `NodeKeywords`.
    """

    own = ("transform",)
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

    def __init__(self, name: str, transform: Callable[..., Any], **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        self.transform = transform
        self._arity = positional_arguments(transform, f"Node {name!r}", most=2)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        value = declared_input(self, state)
        made = self.transform(value) if self._arity == 1 else self.transform(value, state)
        result = as_result(self.name, await made if inspect.isawaitable(made) else made)
        if result.output is value and not may_answer(value, state):  # only passed on
            result.is_answer = False
        return result


def declared_input(node: BaseNode, state: GraphState) -> Any:
    """What a node works on: its one input, a dict of its inputs, or the last output.

    Raises:
        KeyError: a declared input is not there.
    """
    keys = node.input_keys
    if not keys:
        last = state.last_result
        return state.question if last is None else last.output
    missing = [key for key in keys if key not in state.context]
    if missing:
        raise KeyError(f"{node.name!r} needs {', '.join(missing)} in the context, which nobody wrote.")
    return state.context[keys[0]] if len(keys) == 1 else {key: state.context[key] for key in keys}


def may_answer(value: Any, state: GraphState) -> bool:
    """Whether a value that a node only passes on can be the answer: not the question, no tool's result."""
    source = next((r for r in reversed(state.node_history) if r.output is value), None)
    return value is not state.question if source is None else source.is_answer
