"""Nodes that run other nodes: ParallelNode, FanOutNode, LoopNode, SubgraphNode, RetryNode.

Children go through the engine's runner like everything else: hooks, flags, budgets, limits, cancellation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import WITHOUT_MODEL, BaseNode, NodeKeywords
from astromesh.graph.config import Child, Graph, Node, NodeConfig, OnError
from astromesh.graph.flags import NodeFlag
from astromesh.graph.keywords import check_key, check_whole
from astromesh.graph.nodes.transform import declared_input
from astromesh.graph.records import NodeResult
from astromesh.graph.retry import heals
from astromesh.graph.signature import positional_arguments
from astromesh.graph.state import GraphState


class ParallelNode(BaseNode):
    """Runs several nodes on the same state: at once if each is READONLY or PARALLEL_SAFE, else in order.

    Its output is a dict of their outputs by name, in declared order.

    Args:
        nodes: the children, with different names.
        on_error: `fail`: the first failure cancels the others and fails this node; `collect`: a failed child
            has `{"error": message}` for its output, and this node fails only if all did.
        keywords: see `NodeKeywords`.
    """

    own = ("nodes", "on_error")
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

    def __init__(
        self,
        name: str,
        nodes: Iterable[BaseNode],
        *,
        on_error: OnError = "fail",
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        super().__init__(name, **keywords)
        self.nodes = all_nodes(name, nodes)
        self.on_error: OnError = _checked(name, on_error)
        if len({child.name for child in self.nodes}) != len(self.nodes):
            raise ValueError(f"The children of {name!r} must have different names.")
        if not self.nodes:
            raise ValueError(f"{name!r} needs children.")

    def children(self) -> Iterable[BaseNode]:
        return self.nodes

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        results = await config.together([Child(n) for n in self.nodes], state, on_error=self.on_error)
        outputs = {child.name: _collected(result) for child, result in zip(self.nodes, results, strict=True)}
        return _together(self.name, outputs, results)


class FanOutNode(BaseNode):
    """Runs one node once for each item of a list. Its output is the list of outputs, in the items' order.

    Args:
        node: the worker; it finds its item in `context[item_key]` and its position in `context["index"]`.
        items: the list, or a function of the state; by default the value of the one input key.
        item_key: name in the context under which a worker sees its item.
        on_error: as in ParallelNode; under `collect` failed items have `{"error": message}` in their place.
        max_items: more items than this fail the node before anything runs.
        keywords: see `NodeKeywords`.
    """

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.PARALLEL_SAFE})

    own = ("node", "items", "item_key", "on_error", "max_items")
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

    def __init__(
        self,
        name: str,
        node: BaseNode,
        items: Sequence[Any] | Callable[[GraphState], Any] | None = None,
        *,
        item_key: str = "item",
        on_error: OnError = "fail",
        max_items: int = 1000,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        super().__init__(name, **keywords)
        all_nodes(name, (node,))
        check_key(f"Node {name!r}", "item_key", item_key)
        check_whole(f"Node {name!r}", "max_items", max_items, least=0)
        self.node, self.items, self.item_key, self.max_items = node, items, item_key, max_items
        self.on_error: OnError = _checked(name, on_error)

    def children(self) -> Iterable[BaseNode]:
        return (self.node,)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        items = self.items(state) if callable(self.items) else self.items
        items = declared_input(self, state) if items is None else items
        if inspect.isawaitable(items):
            items = await items
        if not isinstance(items, list | tuple):
            return NodeResult(
                self.name, error=f"{self.name!r} needs a list of items, not {type(items).__name__}."
            )
        if len(items) > self.max_items:
            return NodeResult(
                self.name, error=f"{self.name!r} takes at most {self.max_items} items, not {len(items)}."
            )
        children = [self._child(index, item) for index, item in enumerate(items)]
        results = await config.together(children, state, on_error=self.on_error)
        outputs = [_collected(result) for result in results]
        return _together(self.name, outputs, results)

    def _child(self, index: int, item: Any) -> Child:
        return Child(self.node, f"{self.node.name}[{index}]", {self.item_key: item, "index": index})


class LoopNode(BaseNode):
    """Runs its body again and again until a condition holds. Its output is the last one of the body.

    Args:
        body: a node, or several to run one after another in each round.
        until: function of `(result)` or `(result, state)` of the last node, or the name of a value in the
            context (or in an output that is a dict) that ends the loop when it is true.
        max_loops: rounds after which the node fails: a limit is never a silent end.
        keywords: see `NodeKeywords`.
    """

    own = ("body", "until", "max_loops")
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

    def __init__(
        self,
        name: str,
        body: BaseNode | Iterable[BaseNode],
        until: Callable[..., Any] | str,
        *,
        max_loops: int = 10,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        super().__init__(name, **keywords)
        self.steps = (body,) if isinstance(body, BaseNode) else all_nodes(name, body)
        check_whole(f"Node {name!r}", "max_loops", max_loops)
        self.until, self.max_loops = until, max_loops
        if not self.steps:
            raise ValueError(f"Loop {name!r} needs a body.")
        self._arity = 0 if isinstance(until, str) else positional_arguments(until, f"Node {name!r}", most=2)

    def given(self, key: str) -> Any:
        return self.steps if key == "body" else super().given(key)

    def children(self) -> Iterable[BaseNode]:
        return self.steps

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result, first = NodeResult(self.name), 0
        for _ in range(self.max_loops):
            for child in self.steps[first:]:
                result = await config.run(child, state)
                if result.error:
                    break
            first = self._back_to(result)
            if first < 0:
                error = f"{result.node_name}: {result.error}"
                return NodeResult(
                    self.name, error=error, exception=result.exception, stop_reason=result.stop_reason
                )
            if not result.error and await self._done(result, state):
                return NodeResult(self.name, result.output, result.raw_output, is_answer=result.is_answer)
        return NodeResult(
            self.name,
            None,
            result.raw_output,
            error=f"{self.name!r} did not end within {self.max_loops} rounds.",
        )

    def _back_to(self, result: NodeResult) -> int:
        """Where the next round begins: where a guard sent the work back to; -1 where the body failed."""
        if not result.error:
            return 0
        names = [child.name for child in self.steps]
        return names.index(result.next_node) if result.next_node in names else -1

    async def _done(self, result: NodeResult, state: GraphState) -> bool:
        if isinstance(self.until, str):
            output = result.output
            named = output.get(self.until) if isinstance(output, dict) else None
            return bool(named or state.context.get(self.until))
        said = self.until(result) if self._arity == 1 else self.until(result, state)
        return bool(await said if inspect.isawaitable(said) else said)


class SubgraphNode(BaseNode):
    """Runs a whole graph as one step. Its output is the graph's.

    Args:
        graph: a PromptGraph; a run never changes it.
        keywords: see `NodeKeywords`.
    """

    own = ("graph",)
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

    def __init__(self, name: str, graph: Graph, **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        if not hasattr(graph, "get_edges_from"):
            raise TypeError(f"{name!r} runs a PromptGraph, not {graph!r}.")
        self.graph = graph

    def children(self) -> Iterable[Node | Graph]:
        return (self.graph,)

    def lets_speak(self, child: Node | Graph) -> bool:
        return True

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await config.run_graph(self.graph, state)
        return NodeResult(
            self.name, result.output, result.raw_output, error=result.error, exception=result.exception,
            stop_reason=result.stop_reason,
        )  # fmt: skip


class RetryNode(BaseNode):
    """Runs a child and, by the flag RETRYABLE, runs it again when it failed, with growing pauses between.

    Args:
        node: the child; it finds the last error in `context["_retry_error"]`.
        max_attempts: executions of the child, the first one included.
        keywords: see `NodeKeywords`.
    """

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.RETRYABLE})

    own = ("node",)
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

    def __init__(
        self, name: str, node: BaseNode, *, max_attempts: int = 3, **keywords: Unpack[NodeKeywords]
    ) -> None:
        keywords.setdefault("max_iterations", max_attempts)
        super().__init__(name, **keywords)
        (self.node,) = all_nodes(name, (node,))

    def children(self) -> Iterable[BaseNode]:
        return (self.node,)

    def lets_speak(self, child: Node | Graph) -> bool:
        return True

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await config.run(self.node, state)
        return NodeResult(
            self.name,
            result.output,
            result.raw_output,
            error=result.error,
            stop_reason=result.stop_reason,
            exception=result.exception,
            is_answer=result.is_answer,
        )


def all_nodes(name: str, nodes: Any) -> tuple[BaseNode, ...]:
    """The children of a node. Raises: TypeError: one of them is no node."""
    found = tuple(nodes) if isinstance(nodes, Iterable) and not isinstance(nodes, str) else (nodes,)
    for child in found:
        if not isinstance(child, BaseNode):
            raise TypeError(f"{name!r} runs nodes, not {child!r}.")
    return found


def _checked(name: str, on_error: OnError) -> OnError:
    if on_error not in ("fail", "collect"):
        raise ValueError(f"Node {name!r}: on_error is fail or collect, not {on_error!r}.")
    return on_error


def _collected(result: NodeResult) -> Any:
    return {"error": result.error} if result.error else result.output


def _together(name: str, outputs: Any, results: Sequence[NodeResult]) -> NodeResult:
    """What several children came to. Where all failed, its cause is one that can heal, if there is any."""
    error = _all_failed(results)
    causes = [result.exception for result in results] if error else [None]
    cause = next((cause for cause in causes if heals(cause)), causes[0])
    return NodeResult(name, outputs, error=error, exception=cause, is_answer=_answers(results))


def _all_failed(results: Sequence[NodeResult]) -> str:
    if results and all(result.error for result in results):
        return "; ".join(f"{result.node_name}: {result.error}" for result in results)
    return ""


def _answers(results: Sequence[NodeResult]) -> bool:
    """Whether anything in there may be an answer: the results of tools alone are none."""
    return not results or any(result.is_answer for result in results)
