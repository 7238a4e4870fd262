"""Hooks watch a run and may change or end it. A hook never harms a run.

Every method is optional, sync or async. Hooks are called in the order in which they were passed. An exception
is logged and changes nothing, with one exception: a `pre_tool` that raises blocks the call (fails closed). A
returned value counts if it has the right type; None changes nothing. Store the data of one run with
`state.local(self, make)`, never on the hook object, which all runs of an engine share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from astromesh.errors import ToolFailed
from astromesh.graph.base import BaseNode
from astromesh.graph.records import NO_USAGE, Mutation, NodeResult, invalid_field
from astromesh.graph.state import GraphState
from astromesh.types import ToolCall, ToolResult, Usage

log = logging.getLogger("astromesh.graph")


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """The metrics of one execution of an OBSERVABLE node.

    Args:
        path: The place in the run's tree, e.g. `outer/inner`.
        tool_calls: Their number.
        error: Empty if the node succeeded.
    """

    node: str
    path: str
    duration_ms: float
    usage: Usage = NO_USAGE
    tool_calls: int = 0
    error: str = ""

    @property
    def tokens(self) -> int:
        return self.usage.total_tokens


class Hook(Protocol):
    """All methods that a hook may have. Any subset is a hook, sync or async.

    `pre_node` may change the state and end the run (`state.stop(reason)`, or setting `state.current_node` to
    `__end__`). `post_node` may return another result, `pre_tool` another call, `post_tool` another tool
    result.
    """

    async def pre_node(self, node: BaseNode, state: GraphState) -> GraphState | None: ...

    async def post_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> NodeResult | None: ...

    async def pre_tool(self, call: ToolCall, state: GraphState) -> ToolCall | None: ...

    async def post_tool(self, call: ToolCall, result: ToolResult, state: GraphState) -> ToolResult | None: ...

    async def on_error(self, node: BaseNode, error: BaseException | str, state: GraphState) -> None: ...

    async def on_node_metrics(self, node: BaseNode, metrics: NodeMetrics) -> None: ...

    async def on_observable_event(self, node: BaseNode, metrics: NodeMetrics) -> None: ...

    async def on_human_required(self, node: BaseNode, state: GraphState) -> None: ...

    async def on_graph_mutation(self, mutation: Mutation, state: GraphState) -> None: ...


Method: TypeAlias = Callable[..., Any]

_METHODS = (
    "pre_node", "post_node", "pre_tool", "post_tool", "on_error", "on_node_metrics", "on_observable_event",
    "on_human_required", "on_graph_mutation",
)  # fmt: skip


class HookSet:
    """The hooks of an engine, by method. An engine without hooks pays nothing for them."""

    __slots__ = (
        "on_error",
        "on_graph_mutation",
        "on_human_required",
        "on_metrics",
        "paired_post_nodes",
        "post_node",
        "post_tool",
        "pre_node",
        "pre_tool",
    )  # fmt: skip

    def __init__(self, hooks: Sequence[Any] = ()) -> None:
        for hook in hooks:
            if not any(callable(getattr(hook, name, None)) for name in _METHODS):
                log.warning("The hook %r is never called: it has none of %s.", hook, ", ".join(_METHODS))
        self.pre_node = _methods_named(hooks, "pre_node")
        self.post_node = _methods_named(hooks, "post_node")
        #: for each `pre_node`, how many `post_node` belong to the hooks up to and with its own
        self.paired_post_nodes = tuple(
            len(_methods_named(hooks[: place + 1], "post_node"))
            for place, hook in enumerate(hooks)
            if _methods_named((hook,), "pre_node")
        )
        self.pre_tool = _methods_named(hooks, "pre_tool")
        self.post_tool = _methods_named(hooks, "post_tool")
        self.on_error = _methods_named(hooks, "on_error")
        self.on_metrics = _methods_named(hooks, "on_node_metrics") + _methods_named(
            hooks, "on_observable_event"
        )
        self.on_human_required = _methods_named(hooks, "on_human_required")
        self.on_graph_mutation = _methods_named(hooks, "on_graph_mutation")

    @property
    def watches_nodes(self) -> bool:
        return bool(self.pre_node or self.post_node or self.on_error)

    async def before_node(self, node: BaseNode, state: GraphState) -> None:
        for method, begun in zip(self.pre_node, self.paired_post_nodes, strict=True):
            try:
                other = await _notify(method, node, state)
            except BaseException:  # cancelled: only hooks that saw the start see the end
                await self.notify_cancelled(node, state, 0, begun)
                raise
            if isinstance(other, GraphState) and other is not state:
                state.replace_with(other)

    async def after_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> NodeResult:
        for place, method in enumerate(self.post_node):
            try:
                other = await _notify(method, node, result, state)
            except BaseException:  # cancelled: the remaining hooks are called too
                await self.notify_cancelled(node, state, place + 1)
                raise
            if isinstance(other, NodeResult):
                result = self._accepted(node, result, other)
        return result

    async def notify_cancelled(
        self, node: BaseNode, state: GraphState, first: int = 0, last: int | None = None
    ) -> None:
        """Calls `post_node` of some of the hooks for a cancelled node."""
        for method in self.post_node[first:last]:
            await _notify(method, node, NodeResult(node.name, error="cancelled"), state)

    def _accepted(self, node: BaseNode, result: NodeResult, other: NodeResult) -> NodeResult:
        """Returns the result of a hook if it is valid, else the one before."""
        if other.node_name == node.name:
            return other
        other = replace(other, node_name=node.name)
        if (wrong := invalid_field(other)) is not None:
            log.warning("a post_node hook of %r returned an invalid result: %s", node.name, wrong)
            return result
        return other

    async def before_tool(self, call: ToolCall, state: GraphState) -> ToolCall:
        """Returns the call as the hooks want it.

        Raises:
            ToolFailed: A hook raised an exception. The call must not be made.
        """
        for method in self.pre_tool:
            try:
                other = await _invoke(method, call, state)
            except Exception as error:  # a hook's border
                log.warning("pre_tool blocked %s: %r", call.name, error)
                raise ToolFailed(f"The call of {call.name!r} was blocked: {error}") from error
            if isinstance(other, ToolCall):
                call = other
        return call

    async def after_tool(self, call: ToolCall, result: ToolResult, state: GraphState) -> ToolResult:
        for method in self.post_tool:
            other = await _notify(method, call, result, state)
            if isinstance(other, ToolResult):
                result = other
        return result

    async def error(self, node: BaseNode, result: NodeResult, state: GraphState) -> None:
        for method in self.on_error:
            await _notify(method, node, result.exception or result.error, state)

    async def metrics(self, node: BaseNode, metrics: NodeMetrics) -> None:
        for method in self.on_metrics:
            await _notify(method, node, metrics)

    async def human_required(self, node: BaseNode, state: GraphState) -> None:
        for method in self.on_human_required:
            await _notify(method, node, state)

    async def mutation(self, mutation: Mutation, state: GraphState) -> None:
        for method in self.on_graph_mutation:
            await _notify(method, mutation, state)


def _methods_named(hooks: Sequence[Any], name: str) -> tuple[Method, ...]:
    return tuple(method for hook in hooks if callable(method := getattr(hook, name, None)))


async def _invoke(method: Method, *arguments: Any) -> Any:
    try:
        value = method(*arguments)
        return await value if hasattr(value, "__await__") else value
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # nobody cancelled the run: the hook let the cancellation of something of its own out
        raise RuntimeError("The hook was cancelled from within.") from error


async def _notify(method: Method, *arguments: Any) -> Any:
    try:
        return await _invoke(method, *arguments)
    except Exception:  # a hook's border: it never harms the run
        log.warning("the hook %s failed", getattr(method, "__qualname__", method), exc_info=True)
        return None
