"""Nodes that run other nodes: ParallelNode, FanOutNode, LoopNode, SubgraphNode, RetryNode.

The engine runs children like all other nodes: with hooks, flags, budgets, limits and cancellation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import MODEL_KEYWORDS, BaseNode, NodeKeywords
from astromesh.graph.flags import NodeFlag
from astromesh.graph.node_config import MAX_CONCURRENCY, Child, Graph, Node, NodeConfig, OnError
from astromesh.graph.nodes.function import declared_input
from astromesh.graph.policies import is_retryable
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import call_inline
from astromesh.graph.state import GraphState
from astromesh.graph.topology import is_graph
from astromesh.graph.validation import check_int, check_key, positional_arity


class ParallelNode(BaseNode):
    """Runs its children concurrently. Its output is a dict of theirs, by name.

    Each child works on a copy of the state. The writes of all are merged when all have ended: see `branches`.

    Args:
        nodes: The children, with different names.
        on_error: `fail`: the first failure cancels the others and fails this node. `collect`: the output of a
            failed child is `{"error": message}`, and this node fails only if all children did.
        max_concurrency: The children that run at a time. With 1 they run one after another.
        keywords: See `NodeKeywords`.
    """

    constructor_keys = ("nodes", "on_error", "max_concurrency")
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

    def __init__(
        self,
        name: str,
        nodes: Iterable[BaseNode],
        *,
        on_error: OnError = "fail",
        max_concurrency: int = MAX_CONCURRENCY,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        super().__init__(name, **keywords)
        check_int(f"Node {name!r}", "max_concurrency", max_concurrency)
        self.max_concurrency = max_concurrency
        self.nodes = all_nodes(name, nodes)
        self.on_error: OnError = _valid_on_error(name, on_error)
        if len({child.name for child in self.nodes}) != len(self.nodes):
            raise ValueError(f"The children of {name!r} must have different names.")
        if not self.nodes:
            raise ValueError(f"{name!r} needs children.")

    def children(self) -> Iterable[BaseNode]:
        return self.nodes

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        children = [Child(n) for n in self.nodes]
        results = await config.together(
            children, state, on_error=self.on_error, max_concurrency=self.max_concurrency
        )
        names = [child.name for child in self.nodes]
        outputs = dict(zip(names, map(_collected_output, results), strict=True))
        return _joined_result(self.name, outputs, results)


class FanOutNode(BaseNode):
    """Runs a node once for each item of a list. Its output is the list of outputs, in the order of the items.

    The items are worked on concurrently, each with a copy of the state and with all iterations of the engine.
    The outputs of the worker and of the nodes in it stay there: only the list reaches the context.

    Args:
        node: The worker. It finds its item in `context[item_key]` and its position in `context["index"]`.
        items: The list, or a function of the state. The default is the value of the one input key.
        item_key: The name in the context under which a worker sees its item.
        on_error: As in ParallelNode. Under `collect` failed items have `{"error": message}` in their place.
        max_items: With more items the node fails before anything runs.
        max_concurrency: The items that are worked on at a time. With 1 they run one after another.
        keywords: See `NodeKeywords`.
    """

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.PARALLEL_SAFE})

    constructor_keys = ("node", "items", "item_key", "on_error", "max_items", "max_concurrency")
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

    def __init__(  # noqa: PLR0913 (the constructor keys)
        self,
        name: str,
        node: BaseNode,
        items: Sequence[Any] | Callable[[GraphState], Any] | None = None,
        *,
        item_key: str = "item",
        on_error: OnError = "fail",
        max_items: int = 1000,
        max_concurrency: int = MAX_CONCURRENCY,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        super().__init__(name, **keywords)
        all_nodes(name, (node,))
        check_key(f"Node {name!r}", "item_key", item_key)
        check_int(f"Node {name!r}", "max_items", max_items, least=0)
        check_int(f"Node {name!r}", "max_concurrency", max_concurrency)
        self.max_concurrency = max_concurrency
        self.node, self.items, self.item_key, self.max_items = node, items, item_key, max_items
        self.on_error: OnError = _valid_on_error(name, on_error)

    def children(self) -> Iterable[BaseNode]:
        return (self.node,)

    def problems(self) -> Iterable[str]:
        count = len(self.items) if isinstance(self.items, list | tuple) else 0
        if count > self.max_items:
            yield f"items: {count} items, but max_items is {self.max_items}."

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        items = (
            call_inline("The function of items", self.items, state) if callable(self.items) else self.items
        )
        items = declared_input(self, state) if items is None else items
        if inspect.isawaitable(items):
            items = await items
        if not isinstance(items, list | tuple):
            error = f"{self.name!r} needs a list of items, not {type(items).__name__}."
            return NodeResult(self.name, error=error)
        if len(items) > self.max_items:
            error = f"{self.name!r} takes at most {self.max_items} items, not {len(items)}."
            return NodeResult(self.name, error=error)
        children = [
            Child(self.node, f"{self.node.name}[{index}]", {self.item_key: item, "index": index}, True, items)
            for index, item in enumerate(items)
        ]
        results = await config.together(
            children, state, on_error=self.on_error, max_concurrency=self.max_concurrency
        )
        return _joined_result(self.name, [_collected_output(result) for result in results], results)


class LoopNode(BaseNode):
    """Repeats its body until a condition holds. Its output is the last one of the body.

    Args:
        body: A node, or several that run one after another in each round.
        until: A function of `(result)` or `(result, state)` of the last node, or the name of a value in the
            context (or in an output that is a dict) that ends the loop when it is true.
        max_loops: The limit of rounds. After it the node fails. Each round has all iterations of the engine.
        keywords: See `NodeKeywords`.
    """

    constructor_keys = ("body", "until", "max_loops")
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

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
        check_int(f"Node {name!r}", "max_loops", max_loops)
        self.until, self.max_loops = until, max_loops
        if not self.steps:
            raise ValueError(f"Loop {name!r} needs a body.")
        self._arity = 0 if isinstance(until, str) else positional_arity(until, f"Node {name!r}", most=2)

    def constructor_value(self, key: str) -> Any:
        return self.steps if key == "body" else super().constructor_value(key)

    def children(self) -> Iterable[BaseNode]:
        return self.steps

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result, first = NodeResult(self.name), 0
        for _ in range(self.max_loops):
            limits = config.limits()
            for child in self.steps[first:]:
                result = await config.run(child, state, limits=limits)
                if result.error:
                    break
            first = self._first_step_of_next_round(result)
            if first < 0:
                error = f"{result.node_name}: {result.error}"
                return NodeResult(
                    self.name, error=error, exception=result.exception, stop_reason=result.stop_reason
                )
            if not result.error and await self._is_done(result, state):
                return NodeResult(self.name, result.output, result.raw_output, is_answer=result.is_answer)
        error = f"{self.name!r} did not end within {self.max_loops} rounds."
        return NodeResult(self.name, None, result.raw_output, error=error)

    def _first_step_of_next_round(self, result: NodeResult) -> int:
        """Returns the first index of the next round: where a guard sent work back, or -1 after a failure."""
        if not result.error:
            return 0
        names = [child.name for child in self.steps]
        return names.index(result.next_node) if result.next_node in names else -1

    async def _is_done(self, result: NodeResult, state: GraphState) -> bool:
        if isinstance(self.until, str):
            output = result.output
            named = output.get(self.until) if isinstance(output, dict) else None
            return bool(named or state.context.get(self.until))
        arguments = (result,) if self._arity == 1 else (result, state)
        value = call_inline("The condition", self.until, *arguments)
        return bool(await value if inspect.isawaitable(value) else value)


class SubgraphNode(BaseNode):
    """Runs a whole graph as one step. Its output is the graph's.

    Args:
        graph: A PromptGraph. A run never changes it.
        keywords: See `NodeKeywords`.
    """

    constructor_keys = ("graph",)
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

    def __init__(self, name: str, graph: Graph, **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        if not is_graph(graph):
            raise TypeError(f"{name!r} runs a PromptGraph, not {graph!r}.")
        self.graph = graph

    def children(self) -> Iterable[Node | Graph]:
        return (self.graph,)

    def streams_child(self, child: Node | Graph) -> bool:
        return True

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        return (await config.run_graph(self.graph, state)).passed_on(self.name)


class RetryNode(BaseNode):
    """Runs a child, and runs it again after a failure, with growing pauses (flag RETRYABLE).

    Args:
        node: The child. It finds the last error in `context["_retry_error"]`.
        max_attempts: Executions of the child, the first one included.
        keywords: See `NodeKeywords`.
    """

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.RETRYABLE})

    constructor_keys = ("node",)
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

    def __init__(
        self, name: str, node: BaseNode, *, max_attempts: int = 3, **keywords: Unpack[NodeKeywords]
    ) -> None:
        keywords.setdefault("max_iterations", max_attempts)
        super().__init__(name, **keywords)
        (self.node,) = all_nodes(name, (node,))

    def children(self) -> Iterable[BaseNode]:
        return (self.node,)

    def streams_child(self, child: Node | Graph) -> bool:
        return True

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        return (await config.run(self.node, state)).passed_on(self.name)


def all_nodes(name: str, nodes: Any) -> tuple[BaseNode, ...]:
    """Returns the children of a node. Raises TypeError if one of them is not a node."""
    found = tuple(nodes) if isinstance(nodes, Iterable) and not isinstance(nodes, str) else (nodes,)
    for child in found:
        if not isinstance(child, BaseNode):
            raise TypeError(f"{name!r} runs nodes, not {child!r}.")
    return found


def _valid_on_error(name: str, on_error: OnError) -> OnError:
    if on_error not in ("fail", "collect"):
        raise ValueError(f"Node {name!r}: on_error must be fail or collect, not {on_error!r}.")
    return on_error


def _collected_output(result: NodeResult) -> Any:
    return {"error": result.error} if result.error else result.output


def _joined_result(name: str, outputs: Any, results: Sequence[NodeResult]) -> NodeResult:
    """Returns the result of several children. It is an answer unless all of them are results of tools.

    If all failed, it failed too. Its cause is one that a retry may heal, if there is any.
    """
    error, cause = "", None
    if results and all(result.error for result in results):
        error = "; ".join(f"{result.node_name}: {result.error}" for result in results)
        causes = [result.exception for result in results]
        cause = next((cause for cause in causes if is_retryable(cause)), causes[0])
    is_answer = not results or any(result.is_answer for result in results)
    return NodeResult(name, outputs, error=error, exception=cause, is_answer=is_answer)
