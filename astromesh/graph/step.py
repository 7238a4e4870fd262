"""A compiled node: its body in its wrappers, and what becomes of a value or an exception of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from astromesh.abc.provider import ModelPort
from astromesh.errors import AstromeshError, BudgetExhausted, IterationsExhausted, NodeFailed
from astromesh.graph.base import BaseNode
from astromesh.graph.config import NodeConfig
from astromesh.graph.effects import flagged
from astromesh.graph.flags import BIT, NodeFlag, mask
from astromesh.graph.function import FunctionNode
from astromesh.graph.hooks import HookSet
from astromesh.graph.kinds import speaks_for_itself
from astromesh.graph.processing import processed
from astromesh.graph.records import END, LOCAL, TOOL_CALLS_PRESENT, ZERO, NodeResult
from astromesh.graph.results import fault
from astromesh.graph.retry import ATTEMPTS, NodeCall, NodeWrapper, retrying
from astromesh.graph.speech import Speech
from astromesh.graph.state import GraphState
from astromesh.graph.transitions import THE_END, Arrow, Rule, Way, again_with_tools
from astromesh.graph.visit import OUTPUT_SUFFIX
from astromesh.graph.ways import protects
from astromesh.node.runner import bounded, unit, wrapped

NOWHERE = Way("", "")


@dataclass(frozen=True, slots=True)
class Kit:
    """What an engine compiles with.

    Args:
        max_node_iterations: visits of one node; the node's own limit may be smaller.
    """

    hooks: HookSet
    max_node_iterations: int = 25


class Step:
    """A compiled node.

    `call` is its body in its wrappers. A `bare` step has none: where nobody listens, the loop awaits its
    `body` itself and makes the result by `settle` and `fail`, as `call` would. A `plain` one looks at nothing
    but the state, so no config is made for it; the body of one that stands `alone` is not even given one.
    `function` is the body of a bare step where that is a plain function: a coroutine would double its cost.
    `model` and `role` come from `model_override`. The rest is what transitions look at (`Crossing`).
    """

    __slots__ = (
        "alone", "arrows", "bare", "body", "call", "default", "fail", "function", "guards", "hooks", "mask",
        "max_visits", "model", "name", "node", "on_error", "output_key", "output_name", "plain", "role",
        "routes", "rules", "settle", "speech", "straight", "tool_loop", "transitions",
    )  # fmt: skip

    def __init__(self, node: BaseNode, kit: Kit, speech: Speech = Speech.FREE) -> None:
        self.node, self.name, self.hooks, self.speech = node, node.name, kit.hooks, speech
        self.mask = mask(node.flags)
        self.output_key, self.output_name = node.output_key, node.name + OUTPUT_SUFFIX
        self.tool_loop = node.tool_loop
        override = node.model_override
        self.model: ModelPort | None = None if isinstance(override, str) else override
        self.role: str = override if isinstance(override, str) else ""
        self.max_visits = self._most_visits(kit.max_node_iterations)
        self.arrows: tuple[Arrow, ...] = ()
        self.transitions: Mapping[Any, str] = {}
        self.default, self.on_error = NOWHERE, NOWHERE
        self.routes: Mapping[str, str] = {}
        self.guards: frozenset[str] = frozenset()
        self.rules: tuple[Rule, ...] = (again_with_tools,) if node.tool_loop else ()
        self.straight: Way | None = THE_END
        takes_state = isinstance(node, FunctionNode) and node.arity == 1
        self.alone = isinstance(node, FunctionNode) and node.arity == 1 and node.is_async
        body = node.body()
        if (around := processed(node, body, alone=self.alone)) is not None:
            body, self.alone, takes_state = around, False, False
        self.body = body if node.timeout is None else bounded(body, node.timeout, self.name)
        self.settle, self.fail = _settle(self.name, foreign=not speaks_for_itself(node)), _fail(self.name)
        wrappers = tuple(self._wrappers())
        self.bare = not wrappers
        self.plain = self.bare and takes_state
        self.function: Callable[..., Any] | None = None
        if self.plain and isinstance(node, FunctionNode) and node.timeout is None:
            self.function = node.plain_function
        self.call: NodeCall = wrapped(unit(self.body, self.settle, self.fail, alone=self.alone), wrappers)

    def has(self, flag: NodeFlag) -> bool:
        return bool(self.mask & BIT[flag])

    def _most_visits(self, limit: int) -> int:
        own = self.node.max_iterations
        return limit if own is None or self.has(NodeFlag.RETRYABLE) else min(own, limit)

    def _wrappers(self) -> Iterable[NodeWrapper]:
        """Hooks outside flags outside retry: hooks see what flags made of a result, flags the last try."""
        if protects(self.node):
            yield _closed
        if self.hooks.watches_nodes:
            yield _hooked(self.node, self.hooks)
        if (flags := flagged(self, self.mask)) is not None:
            yield flags
        if self.has(NodeFlag.RETRYABLE):
            yield retrying(self.node.max_iterations or ATTEMPTS)


def _closed(call: NodeCall) -> NodeCall:
    """A guard or a human that breaks lets nobody through: only ways for failures lead on."""

    async def run(state: GraphState, config: NodeConfig) -> NodeResult:
        result = await call(state, config)
        if result.error and not result.stop_reason and not result.next_node:
            result.stop_reason = "critical_error"
        return result

    return run


def _hooked(node: BaseNode, hooks: HookSet) -> NodeWrapper:
    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            await hooks.before_node(node, state)
            result = NodeResult(node.name, transition_reason="stopped", skipped=True)
            try:
                if state.current_node != END:
                    result = await call(state, config)
                if result.error:
                    await hooks.error(node, result, state)
            except BaseException:  # cancelled: what was begun is told its end
                await hooks.cut_short(node, state)
                raise
            result = await hooks.after_node(node, result, state)
            if (wrong := fault(result)) is not None:
                error = f"A hook left a NodeResult of {node.name!r} whose {wrong}."
                return NodeResult(node.name, error=error)
            result.node_name = result.node_name or node.name
            return result

        return run

    return wrap


def _settle(name: str, *, foreign: bool) -> Any:
    """`foreign`: its results are made by somebody else's code and looked at before they are believed."""

    def settle(value: Any, state: GraphState, config: NodeConfig, duration_ms: float) -> NodeResult:
        if isinstance(value, NodeResult):
            if foreign:
                if (wrong := fault(value)) is not None:
                    value = NodeResult(name, error=f"{name!r} answered a NodeResult whose {wrong}.")
                elif value.transition_reason not in ("", TOOL_CALLS_PRESENT):  # of an earlier visit
                    value = replace(value, transition_reason="", usage=ZERO)
            result = value if value.node_name == name else _own(name, value, state)
            if result.usage is not ZERO and config.usage is ZERO:  # spent past the engine: it counts too
                state.ledger.add_usage(result.usage)
        else:
            result = NodeResult(name, value)
        result.duration_ms = duration_ms
        if config.usage is not ZERO:
            result.usage = config.usage
        return result

    return settle


def _own(name: str, result: NodeResult, state: GraphState) -> NodeResult:
    """A result under the node's name. A child's is passed on as a copy: what it cost is booked already."""
    if any(result is earlier for earlier in state.node_history):
        return replace(result, node_name=name, usage=ZERO, transition_reason="")
    result.node_name = name
    return result


def _fail(name: str) -> Any:
    def fail(error: BaseException, state: GraphState, config: NodeConfig, duration_ms: float) -> NodeResult:
        if isinstance(error, BudgetExhausted):
            state.stop("budget", str(error))
        elif isinstance(error, IterationsExhausted):
            state.stop("max_iterations", str(error))
        text = str(error) if isinstance(error, AstromeshError) else f"{type(error).__name__}: {error}"
        result = NodeResult(name, error=text, usage=config.usage, duration_ms=duration_ms, exception=error)
        if isinstance(error, NodeFailed) and (why := LOCAL.get(error.stop_reason)):
            result.stop_reason = why
        return result

    return fail
