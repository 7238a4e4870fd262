"""Hooks watch a run and may change or end it. A hook never harms a run.

Every method is optional, sync or async. Hooks are called in the order in which they were passed. An exception
is logged and changes nothing, with one exception: a `pre_tool` that raises blocks the call (fails closed). A
returned value counts if it has the right type; None changes nothing. Store the data of one run with
`state.local(self, make)`, never on the hook object, which all runs of an engine share.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from astromesh.errors import BudgetExhausted, ToolFailed, described, is_failure, text_of
from astromesh.graph.base import BaseNode
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.records import END, NO_USAGE, ExecutionReport, Mutation, NodeResult, invalid_field
from astromesh.graph.runner import HELD_SECONDS, call_inline, warn_of_hold
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
#: One execution of a node, and what hooks make of its result.
Execution: TypeAlias = Callable[[GraphState, NodeConfig], Awaitable[NodeResult]]
After: TypeAlias = Callable[[NodeResult, GraphState], Awaitable[NodeResult]]

_METHODS = tuple(name for name, value in vars(Hook).items() if callable(value) and not name.startswith("_"))


class HookSet:
    """The hooks of an engine, by method. An engine without hooks pays nothing for them."""

    __slots__ = ("methods", "paired_post_nodes", "watches_nodes")

    def __init__(self, hooks: Sequence[Any] = ()) -> None:
        for hook in hooks:
            if not any(callable(getattr(hook, name, None)) for name in _METHODS):
                log.warning("The hook %r is never called: it has none of %s.", hook, ", ".join(_METHODS))
        self.methods = {name: _methods_named(hooks, name) for name in _METHODS}
        #: for each `pre_node`, how many `post_node` belong to the hooks up to and with its own
        self.paired_post_nodes = tuple(
            len(_methods_named(hooks[: place + 1], "post_node"))
            for place, hook in enumerate(hooks)
            if _methods_named((hook,), "pre_node")
        )
        self.watches_nodes = any(self.methods[name] for name in ("pre_node", "post_node", "on_error"))

    async def notify(self, name: str, *arguments: Any) -> None:
        """Calls a method of all hooks that have it."""
        for method in self.methods[name]:
            await _notify(method, *arguments)

    def around(self, node: BaseNode, call: Execution) -> Execution:
        """Returns the execution of a node in its hooks: `pre_node`, the node, `on_error`, `post_node`."""
        before, paired = self.methods["pre_node"], self.paired_post_nodes

        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            current: int | None = None
            try:
                for place, method in enumerate(before):
                    current = place
                    if (value := _call(method, node, state)) is not None:
                        other = await _value_of(method, value)
                        if isinstance(other, GraphState) and other is not state:
                            state.replace_with(other)
                current = None
                if before and state.current_node == END:
                    result = NodeResult(node.name, transition_reason="stopped", skipped=True)
                else:
                    result = await call(state, config)
                if result.error:
                    await self.notify("on_error", node, result.exception or result.error, state)
            except BaseException:  # cancelled: only hooks that saw the start see the end
                await self.notify_cancelled(node, state, 0, None if current is None else paired[current])
                raise
            return result

        if not self.methods["post_node"]:
            return run
        after = self._after(node)

        async def run_and_after(state: GraphState, config: NodeConfig) -> NodeResult:
            return await after(await run(state, config), state)

        return run_and_after

    def after(self, node: BaseNode) -> After | None:
        """Returns the calls of `post_node` with a result of a node. None if hooks do anything else to it."""
        methods = self.methods
        if methods["pre_node"] or methods["on_error"] or not methods["post_node"]:
            return None
        return self._after(node)

    def _after(self, node: BaseNode) -> After:
        methods, name = self.methods["post_node"], node.name

        async def run(result: NodeResult, state: GraphState) -> NodeResult:
            count = 0
            try:
                for method in methods:
                    count += 1
                    if (value := _call(method, node, result, state)) is not None:
                        other = await _value_of(method, value)
                        if isinstance(other, NodeResult):
                            result = self._accepted(node, result, other)
            except BaseException:  # cancelled: the remaining hooks are called too
                await self.notify_cancelled(node, state, count)
                raise
            if (problem := invalid_field(result)) is not None:
                return NodeResult(
                    name, error=f"A hook returned an invalid NodeResult of {name!r}: {problem}."
                )
            result.node_name = result.node_name or name
            return result

        return run

    async def notify_cancelled(
        self, node: BaseNode, state: GraphState, first: int = 0, last: int | None = None
    ) -> None:
        """Calls `post_node` of some of the hooks for a cancelled node."""
        for method in self.methods["post_node"][first:last]:
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
        for method in self.methods["pre_tool"]:
            try:
                other = await _invoke(method, call, state)
            except BaseException as error:  # the boundary of a hook
                if not is_failure(error):
                    raise
                log.warning("pre_tool blocked %s: %s", call.name, described(error))
                reason = text_of(error) or type(error).__name__
                raise ToolFailed(f"The call of {call.name!r} was blocked: {reason}") from error
            if isinstance(other, ToolCall):
                call = other
        return call

    async def after_tool(self, call: ToolCall, result: ToolResult, state: GraphState) -> ToolResult:
        for method in self.methods["post_tool"]:
            other = await _notify(method, call, result, state)
            if isinstance(other, ToolResult):
                result = other
        return result


def _methods_named(hooks: Sequence[Any], name: str) -> tuple[Method, ...]:
    return tuple(method for hook in hooks if callable(method := getattr(hook, name, None)))


async def _invoke(method: Method, *arguments: Any) -> Any:
    value = call_inline("The hook", method, *arguments)
    return await value if hasattr(value, "__await__") else value


async def _notify(method: Method, *arguments: Any) -> Any:
    value = _call(method, *arguments)
    return None if value is None else await _value_of(method, value)


def _call(method: Method, *arguments: Any) -> Any:
    """Calls a hook. Returns its value, which may be awaitable, or None if it failed."""
    started = perf_counter()
    try:
        value = method(*arguments)
    except BaseException as error:  # the boundary of a hook
        if not _is_survived(method, error):
            raise
        return None
    if (held := perf_counter() - started) > HELD_SECONDS:
        warn_of_hold("The hook", method, held)
    return value


async def _value_of(method: Method, value: Any) -> Any:
    """Awaits the value of a hook if it is awaitable. Returns None if the hook failed."""
    try:
        return await value if hasattr(value, "__await__") else value
    except BaseException as error:  # the boundary of a hook
        if not _is_survived(method, error):
            raise
        return None


def _is_survived(method: Method, error: BaseException) -> bool:
    """Whether what a hook raised is a failure, which never harms the run. It is logged."""
    if not is_failure(error):
        return False
    log.warning("the hook %s failed", getattr(method, "__qualname__", method), exc_info=error)
    return True


class TimingHook:
    """Measures nodes, and fails those that exceed their time.

    It checks the time after the execution. Use the node's `timeout` to interrupt it.

    Args:
        budget_ms: Milliseconds for every node, or by name. None only measures.
    """

    def __init__(self, budget_ms: float | Mapping[str, float] | None = None) -> None:
        self._budget = budget_ms

    def post_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> NodeResult:
        durations = state.local(self, dict[str, float])
        durations[node.name] = durations.get(node.name, 0.0) + result.duration_ms
        budget = self._budget.get(node.name) if isinstance(self._budget, Mapping) else self._budget
        if budget is not None and result.duration_ms > budget and not result.error:
            result.error = f"{node.name!r} took {result.duration_ms:.0f} ms. Its limit is {budget:g} ms."
        return result

    def of(self, report: ExecutionReport) -> dict[str, float]:
        """Returns the milliseconds of each node, over all its executions."""
        durations: dict[str, float] = report.local.get(id(self), {})
        return durations


class BudgetHook:
    """Ends a run that exceeds its budget. A model call beyond a used-up budget is not made.

    Args:
        max_tokens: Of all model calls.
        max_cost_usd: US dollars.
        max_model_calls: The number of model calls.
        max_tool_calls: The number of tool calls. The next one is refused and ends the run.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        max_cost_usd: float | None = None,
        max_model_calls: int | None = None,
        max_tool_calls: int | None = None,
    ) -> None:
        caps = {
            "tokens": max_tokens,
            "cost_usd": max_cost_usd,
            "model_calls": max_model_calls,
            "tool_calls": max_tool_calls,
        }
        self._caps: dict[str, float] = {key: cap for key, cap in caps.items() if cap is not None}

    def pre_node(self, node: BaseNode, state: GraphState) -> None:
        state.local(self, lambda: self._cap(state))

    def post_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> None:
        used = state.ledger.used
        for key, cap in self._caps.items():
            if used.get(key, 0) > cap:
                state.stop("budget", f"The run spent {used[key]:g} {key}. Its budget is {cap:g}.")

    def post_tool(self, call: ToolCall, result: ToolResult, state: GraphState) -> None:
        cap = self._caps.get("tool_calls")
        if (
            cap is not None
            and result.error == BudgetExhausted.code
            and state.ledger.used.get("tool_calls", 0) >= cap
        ):
            state.stop("budget", f"The run asked for more tool calls than its budget of {cap:g}.")

    def _cap(self, state: GraphState) -> bool:
        caps = state.ledger.caps
        caps.update({key: min(cap, caps.get(key, cap)) for key, cap in self._caps.items()})
        return True


class CycleDetectionHook:
    """Ends a run that repeats the same nodes in the same order several times in a row.

    Rounds of a tool loop do not count, nor cycles through a node with `max_iterations`, which limits them.

    Args:
        repeats: The number of repetitions that end the run.
        max_length: The longest sequence that is detected, in nodes.
        exempt: Names of nodes whose cycles are allowed.
    """

    def __init__(self, repeats: int = 3, *, max_length: int = 4, exempt: Iterable[str] = ()) -> None:
        if repeats < 2 or max_length < 1:
            raise ValueError("repeats must be at least 2 and max_length at least 1.")
        self._repeats, self._max_length, self._exempt = repeats, max_length, frozenset(exempt)

    def post_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> None:
        if result.skipped or result.wants_tools or state.current_node != node.name:
            return
        levels = state.local(self, dict[int, tuple[list[str], list[BaseNode]]])
        # by level; storing the list keeps its identity from being reused
        _, path = levels.setdefault(id(state.visited), (state.visited, []))
        path.append(node)
        cycle = cycle_at_end([n.name for n in path], self._max_length, self._repeats)
        if cycle and not any(self._is_wanted(n) for n in path[-len(cycle) :]):
            path_text = " → ".join(cycle)
            state.stop("cycle", f"The run repeats a cycle: {path_text}, {self._repeats} times.")

    def _is_wanted(self, node: BaseNode) -> bool:
        return node.max_iterations is not None or node.name in self._exempt


def cycle_at_end(names: list[str], max_length: int, repeats: int) -> tuple[str, ...]:
    """Returns the shortest sequence that ends a path several times over, or an empty tuple."""
    for length in range(1, max_length + 1):
        end = names[-length * repeats :]
        if len(end) == length * repeats and end == end[:length] * repeats:
            return tuple(end[:length])
    return ()


class LoggingHook:
    """Logs what a run does. It does not log outputs: use the flag VERBOSE for them.

    Args:
        logger: The default is `astromesh.graph.run`.
        level: The level of the lines. Failures are warnings.
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._log = logger or logging.getLogger("astromesh.graph.run")
        self._level = level

    def pre_node(self, node: BaseNode, state: GraphState) -> None:
        self._log.log(self._level, "node %s begins", node.name)

    def post_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> None:
        end = "was skipped" if result.skipped else f"ended after {result.duration_ms:.1f} ms"
        self._log.log(self._level, "node %s %s", node.name, end)

    def pre_tool(self, call: ToolCall, state: GraphState) -> None:
        self._log.log(self._level, "tool %s is called", call.name)

    def post_tool(self, call: ToolCall, result: ToolResult, state: GraphState) -> None:
        end = "answered" if result.ok else f"failed: {result.error}"
        self._log.log(self._level, "tool %s %s", call.name, end)

    def on_error(self, node: BaseNode, error: BaseException | str, state: GraphState) -> None:
        self._log.warning(
            "node %s failed: %s", node.name, error if isinstance(error, str) else text_of(error)
        )

    def on_human_required(self, node: BaseNode, state: GraphState) -> None:
        self._log.log(self._level, "node %s needs a person", node.name)

    def on_graph_mutation(self, mutation: Mutation, state: GraphState) -> None:
        self._log.log(self._level, "node %s changed the graph: %s", mutation.node, mutation.op)


@dataclass(slots=True)
class NodeTotals:
    """The sums over all executions of one node in a run."""

    visits: int = 0
    errors: int = 0
    duration_ms: float = 0.0
    tokens: int = 0
    tool_calls: int = 0

    def add(self, result: NodeResult) -> None:
        self.visits += 1
        self.errors += bool(result.error)
        self.duration_ms += result.duration_ms
        self.tokens += result.usage.total_tokens
        self.tool_calls += len(result.tool_calls)


class MetricsHook:
    """Sums up what nodes did, and passes on the metrics of OBSERVABLE ones.

    Args:
        sink: Called with the NodeMetrics of every execution of an OBSERVABLE node.
    """

    def __init__(self, sink: Callable[[NodeMetrics], Any] | None = None) -> None:
        self._sink = sink

    def post_node(self, node: BaseNode, result: NodeResult, state: GraphState) -> None:
        if not result.skipped:
            totals = state.local(self, dict[str, NodeTotals])
            totals.setdefault(node.name, NodeTotals()).add(result)

    def on_node_metrics(self, node: BaseNode, metrics: NodeMetrics) -> Any:
        return self._sink(metrics) if self._sink else None

    def of(self, report: ExecutionReport) -> dict[str, NodeTotals]:
        """Returns the totals by node."""
        totals: dict[str, NodeTotals] = report.local.get(id(self), {})
        return totals
