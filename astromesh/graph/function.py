"""Functions as nodes: `@node`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import ASKING, WITHOUT_MODEL, BaseNode, NodeKeywords
from astromesh.graph.config import NodeConfig
from astromesh.graph.records import NodeResult
from astromesh.graph.signature import positional_arguments
from astromesh.graph.state import GraphState

Function = Callable[..., Any]


class FunctionNode(BaseNode):
    """A function as a node. A plain function runs in the event loop: keep it short, or make it async.

    Args:
        function: takes `(state)` or `(state, config)`, returns a NodeResult or any value, its output.
    """

    own = ("function",)
    ignores: ClassVar[frozenset[str]] = ASKING

    def __init__(self, name: str, function: Function, **keywords: Unpack[NodeKeywords]) -> None:
        keywords.setdefault("description", (inspect.getdoc(function) or "").partition("\n")[0])
        super().__init__(name, **keywords)
        self.function = function
        self.arity = positional_arguments(function, f"Node {name!r}", most=2)
        self.is_async = inspect.iscoroutinefunction(function)
        if self.arity == 1:  # it is not given what reaches model and tools
            self.ignores = WITHOUT_MODEL - {"tool_loop"}  # type: ignore[misc]  # of this node

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        value = self.function(state) if self.arity == 1 else self.function(state, config)
        if self.is_async or hasattr(value, "__await__"):
            value = await value
        return as_result(self.name, value)

    @property
    def plain_function(self) -> Function | None:
        """The function where it is all there is to the node: not async, of the state alone."""
        is_all = type(self).execute is FunctionNode.execute and not self.is_async and self.arity == 1
        return self.function if is_all else None

    def body(self) -> Callable[..., Awaitable[Any]]:
        """The function itself where it is async, one coroutine less than `execute`."""
        return self.function if self.is_async else self.execute


def node(name: str, **keywords: Unpack[NodeKeywords]) -> Callable[[Function], FunctionNode]:
    """Makes a function a node: `@node("validate", flags={NodeFlag.RETRYABLE})`."""

    def decorate(function: Function) -> FunctionNode:
        return FunctionNode(name, function, **keywords)

    return decorate


def as_result(name: str, value: Any) -> NodeResult:
    """A node's answer as a result: itself, or any other value as the output."""
    if isinstance(value, NodeResult):
        value.node_name = value.node_name or name
        return value
    return NodeResult(name, value)
