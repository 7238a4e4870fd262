"""Hooks: what watches a run and may change or end it. A hook never harms a run.

Every method is optional, sync or async. Hooks run in the order they were given. What one raises is logged and
changes nothing, with one exception: a `pre_tool` that raises blocks the call (fails closed). What one returns
counts where it is of the right kind; None leaves things as they are. Data of one run belongs into
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
from astromesh.graph.records import ZERO, Mutation, NodeResult
from astromesh.graph.results import fault
from astromesh.graph.state import GraphState
from astromesh.types import ToolCall, ToolResult, Usage

log = logging.getLogger("astromesh.graph")


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """What an OBSERVABLE node's execution came to.

    Args:
        path: where in the run's tree, e.g. `outer/inner`.
        tool_calls: how many.
        error: empty where it succeeded.
    """

    node: str
    path: str
    duration_ms: float
    usage: Usage = ZERO
    tool_calls: int = 0
    error: str = ""

    @property
    def tokens(self) -> int:
        return self.usage.total_tokens


class Hook(Protocol):
    """All that a hook may have; any subset will do, sync or async.

    `pre_node` may change the state and end the run (`state.stop(reason)`, or setting `state.current_node` to
    `__end__`); `post_node` may answer another result, `pre_tool` another call, `post_tool` another answer.
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
    """The hooks of an engine, by method; an engine without hooks pays nothing for them."""

    __slots__ = (
        "begun", "on_error", "on_graph_mutation", "on_human_required", "on_metrics", "post_node", "post_tool",
        "pre_node", "pre_tool",
    )  # fmt: skip

    def __init__(self, hooks: Sequence[Any] = ()) -> None:
        for hook in hooks:
            if not any(callable(getattr(hook, name, None)) for name in _METHODS):
                log.warning("The hook %r is never called: it has none of %s.", hook, ", ".join(_METHODS))
        self.pre_node = _having(hooks, "pre_node")
        self.post_node = _having(hooks, "post_node")
        #: for each `pre_node`, how many `post_node` belong to the hooks up to and with its own
        self.begun = tuple(
            len(_having(hooks[: place + 1], "post_node"))
            for place, hook in enumerate(hooks)
            if _having((hook,), "pre_node")
        )
        self.pre_tool = _having(hooks, "pre_tool")
        self.post_tool = _having(hooks, "post_tool")
        self.on_error = _having(hooks, "on_error")
        self.on_metrics = _having(hooks, "on_node_metrics") + _having(hooks, "on_observable_event")
        self.on_human_required = _having(hooks, "on_human_required")
        self.on_graph_mutation = _having(hooks, "on_graph_mutation")

    @property
    def watches_nodes(self) -> bool:
        return bool(self.pre_node or self.post_node or self.on_error)

    async def before_node(self, node: BaseNode, state: GraphState) -> None:
        for method, begun in zip(self.pre_node, self.begun, strict=True):
            try:
                other = await _tell(method, node, state)
            except BaseException:  # cancelled: hooks that began are told the end, the others nothing
                await self.cut_short(node, state, 0, begun)
                raise
            if isinstance(other, GraphState) and other is not state:
                state.become(other)

    async def after_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> NodeResult:
        for place, method in enumerate(self.post_node):
            try:
                other = await _tell(method, node, result, state)
            except BaseException:  # cancelled: the rest are told all the same
                await self.cut_short(node, state, place + 1)
                raise
            if isinstance(other, NodeResult):
                result = self._changed(node, result, other)
        return result

    async def cut_short(
        self, node: BaseNode, state: GraphState, first: int = 0, last: int | None = None
    ) -> None:
        """Tells some of the hooks that a node was cancelled."""
        for method in self.post_node[first:last]:
            await _tell(method, node, NodeResult(node.name, error="cancelled"), state)

    def _changed(self, node: BaseNode, result: NodeResult, other: NodeResult) -> NodeResult:
        """What a hook answered; an odd one changes nothing."""
        if other.node_name == node.name:
            return other
        other = replace(other, node_name=node.name)
        if (wrong := fault(other)) is not None:
            log.warning("a post_node hook of %r answered a result whose %s", node.name, wrong)
            return result
        return other

    async def before_tool(self, call: ToolCall, state: GraphState) -> ToolCall:
        """The call as the hooks want it.

        Raises:
            ToolFailed: a hook raised: the call must not be made.
        """
        for method in self.pre_tool:
            try:
                other = await _ask(method, call, state)
            except Exception as error:  # a hook's border
                log.warning("pre_tool blocked %s: %r", call.name, error)
                raise ToolFailed(f"The call of {call.name!r} was blocked: {error}") from error
            if isinstance(other, ToolCall):
                call = other
        return call

    async def after_tool(self, call: ToolCall, result: ToolResult, state: GraphState) -> ToolResult:
        for method in self.post_tool:
            other = await _tell(method, call, result, state)
            if isinstance(other, ToolResult):
                result = other
        return result

    async def error(self, node: BaseNode, result: NodeResult, state: GraphState) -> None:
        for method in self.on_error:
            await _tell(method, node, result.exception or result.error, state)

    async def metrics(self, node: BaseNode, metrics: NodeMetrics) -> None:
        for method in self.on_metrics:
            await _tell(method, node, metrics)

    async def human_required(self, node: BaseNode, state: GraphState) -> None:
        for method in self.on_human_required:
            await _tell(method, node, state)

    async def mutation(self, mutation: Mutation, state: GraphState) -> None:
        for method in self.on_graph_mutation:
            await _tell(method, mutation, state)


def _having(hooks: Sequence[Any], name: str) -> tuple[Method, ...]:
    return tuple(method for hook in hooks if callable(method := getattr(hook, name, None)))


async def _ask(method: Method, *arguments: Any) -> Any:
    try:
        said = method(*arguments)
        return await said if hasattr(said, "__await__") else said
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # nobody cancelled the run: the hook let the cancellation of something of its own out
        raise RuntimeError("The hook was cancelled from within.") from error


async def _tell(method: Method, *arguments: Any) -> Any:
    try:
        return await _ask(method, *arguments)
    except Exception:  # a hook's border: it never harms the run
        log.warning("the hook %s failed", getattr(method, "__qualname__", method), exc_info=True)
        return None
