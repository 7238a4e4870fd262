"""A compiled node: its body in its wrappers, and the result of each value or exception."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from astromesh.errors import AstromeshError, BudgetExhausted, IterationsExhausted, NodeFailed
from astromesh.graph.audibility import Audibility
from astromesh.graph.base import BaseNode
from astromesh.graph.cache import OUTPUT_SUFFIX
from astromesh.graph.effects import with_flags
from astromesh.graph.flags import BIT, NodeFlag, mask
from astromesh.graph.hooks import HookSet
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.function import FunctionNode, as_result
from astromesh.graph.nodes.guard import Guard, GuardResults, as_guards, run_guards
from astromesh.graph.nodes.kinds import is_built_in
from astromesh.graph.records import (
    END,
    GRAPH_ONLY_STOPS,
    NO_USAGE,
    TOOL_CALLS_PRESENT,
    NodeResult,
    as_json,
    invalid_field,
)
from astromesh.graph.retry import ATTEMPTS, NodeCall, NodeWrapper, with_retries
from astromesh.graph.runner import bounded, unit, wrapped
from astromesh.graph.state import RETRY_ERROR, GraphState, engine_forget, engine_write
from astromesh.graph.topology import contains_protected
from astromesh.graph.transitions import END_TRANSITION, CompiledEdge, Rule, Transition, repeat_with_tools
from astromesh.graph.validation import Processor, postprocessor, preprocessor
from astromesh.providers.base import ModelPort

# -- guards, pre- and postprocessors of nodes that do not apply them themselves ----------------------------
#
# A PromptNode applies them in its nine steps. For every other node the preprocessor runs first, guards check
# the final output, the postprocessor replaces it, and guards check the new one. A guard of mode `retry` runs
# the node again; `context["_retry_error"]` holds the reason.

Body = Callable[..., Awaitable[Any]]


def with_processors(node: BaseNode, body: Body, *, state_only: bool) -> Body | None:
    """Returns a body with the node's processors and guards around it, or None if it has none.

    Args:
        state_only: The body takes the state without a config.
    """
    own = node.handles
    guards = () if "guards" in own else as_guards(node.guards)
    before = None if "preprocessor" in own else preprocessor(node.preprocessor)
    after = None if "postprocessor" in own else postprocessor(node.postprocessor)
    if not guards and before is None and after is None:
        return None

    async def run(state: GraphState, config: NodeConfig) -> NodeResult:
        if before is not None:
            await before(state, config)
        tries = 0
        try:
            while True:
                value = await (body(state) if state_only else body(state, config))
                result, checked = await _check_and_process(
                    as_result(node.name, value), guards, after, state, config
                )
                if not checked.refused or not checked.may_retry(tries):
                    return result
                tries += 1
                engine_write(state.context, RETRY_ERROR, checked.feedback)
        finally:
            if tries:
                engine_forget(state.context, RETRY_ERROR)

    return run


async def _check_and_process(
    result: NodeResult,
    guards: tuple[Guard, ...],
    after: Processor | None,
    state: GraphState,
    config: NodeConfig,
) -> tuple[NodeResult, GuardResults]:
    """Returns a result after guards and postprocessor. Failures and steps of a tool loop are not checked."""
    sent_back = result.guards_failed and result.output is None
    if result.error or result.stop_reason or result.wants_tools or sent_back:
        return result, GuardResults()
    checked = await run_guards(guards, result.output, state)
    if after is not None and not checked.refused:
        output = result.output
        processed = await after(output, state, config)
        result = replace(
            result, output=processed, messages_added=_rewrite_messages(result, output, processed)
        )
        if processed is not output and processed != output:
            checked = await run_guards(guards, processed, state)
    if checked.refused:
        raw_output = result.output if result.raw_output is None else result.raw_output
        error = f"The output of {result.node_name!r} was {checked.error}"
        return NodeResult(
            result.node_name,
            None,
            raw_output,
            guards_passed=checked.passed,
            guards_failed=checked.failed,
            error=error,
            exception=checked.refusal(error),
        ), checked
    result.guards_passed = (*result.guards_passed, *checked.passed)
    result.guards_failed = (*result.guards_failed, *checked.failed)
    return result, checked


def _rewrite_messages(result: NodeResult, before: Any, after: Any) -> list[Any]:
    """Returns the messages for the conversation with the processed text."""
    old, new = (value if isinstance(value, str) else as_json(value) for value in (before, after))
    return [
        structs.replace(m, content=new) if m.role == "assistant" and m.content == old else m
        for m in result.messages_added
    ]


NO_TRANSITION = Transition("", "")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What an engine compiles with.

    Args:
        max_node_iterations: The limit of visits of one node. The node's own limit may be lower.
    """

    hooks: HookSet
    max_node_iterations: int = 25


class Step:
    """A compiled node.

    Attributes:
        call: The body in its wrappers.
        is_unwrapped: Whether there are no wrappers. Then the loop awaits `body` itself and makes the result
            with `settle` and `fail`, as `call` would.
        needs_no_config: Whether the node reads nothing but the state, so that no config is made for it.
        takes_state_only: Whether `body` is called without a config.
        function: The body, if it is a plain function: a coroutine would double its cost.
        model, role: From `model_override`.

    All other attributes are what transitions read (`RoutedNode`).
    """

    __slots__ = (
        "audibility",
        "body",
        "call",
        "default",
        "edges",
        "fail",
        "function",
        "guards",
        "hooks",
        "is_unwrapped",
        "mask",
        "max_visits",
        "model",
        "name",
        "needs_no_config",
        "node",
        "on_error",
        "output_key",
        "output_name",
        "role",
        "routes",
        "rules",
        "settle",
        "takes_state_only",
        "tool_loop",
        "transitions",
        "unconditional",
    )  # fmt: skip

    def __init__(
        self, node: BaseNode, options: CompileOptions, audibility: Audibility = Audibility.STREAMED
    ) -> None:
        self.node, self.name, self.hooks, self.audibility = node, node.name, options.hooks, audibility
        self.mask = mask(node.flags)
        self.output_key, self.output_name = node.output_key, node.name + OUTPUT_SUFFIX
        self.tool_loop = node.tool_loop
        override = node.model_override
        self.model: ModelPort | None = None if isinstance(override, str) else override
        self.role: str = override if isinstance(override, str) else ""
        self.max_visits = self._most_visits(options.max_node_iterations)
        self.edges: tuple[CompiledEdge, ...] = ()
        self.transitions: Mapping[Any, str] = {}
        self.default, self.on_error = NO_TRANSITION, NO_TRANSITION
        self.routes: Mapping[str, str] = {}
        self.guards: frozenset[str] = frozenset()
        self.rules: tuple[Rule, ...] = (repeat_with_tools,) if node.tool_loop else ()
        self.unconditional: Transition | None = END_TRANSITION
        takes_state = isinstance(node, FunctionNode) and node.arity == 1
        self.takes_state_only = isinstance(node, FunctionNode) and node.arity == 1 and node.is_async
        body = node.body()
        if (around := with_processors(node, body, state_only=self.takes_state_only)) is not None:
            body, self.takes_state_only, takes_state = around, False, False
        self.body = body if node.timeout is None else bounded(body, node.timeout, self.name)
        self.settle, self.fail = (
            _result_maker(self.name, foreign=not is_built_in(node)),
            _failure_maker(self.name),
        )
        wrappers = tuple(self._wrappers())
        self.is_unwrapped = not wrappers
        self.needs_no_config = self.is_unwrapped and takes_state
        self.function: Callable[..., Any] | None = None
        if self.needs_no_config and isinstance(node, FunctionNode) and node.timeout is None:
            self.function = node.plain_function
        self.call: NodeCall = wrapped(
            unit(self.body, self.settle, self.fail, subject_only=self.takes_state_only), wrappers
        )

    def has(self, flag: NodeFlag) -> bool:
        return bool(self.mask & BIT[flag])

    def _most_visits(self, limit: int) -> int:
        own = self.node.max_iterations
        return limit if own is None or self.has(NodeFlag.RETRYABLE) else min(own, limit)

    def _wrappers(self) -> Iterable[NodeWrapper]:
        """Yields hooks, flags, retries, outermost first. Each wrapper sees the result of those inside it."""
        if contains_protected(self.node):
            yield _fail_closed
        if self.hooks.watches_nodes:
            yield _with_hooks(self.node, self.hooks)
        if (flags := with_flags(self.node, self.hooks, self.mask)) is not None:
            yield flags
        if self.has(NodeFlag.RETRYABLE):
            yield with_retries(self.node.max_iterations or ATTEMPTS)


def _fail_closed(call: NodeCall) -> NodeCall:
    """Wraps a guard or a human. If it fails, only edges and transitions for failures lead on."""

    async def run(state: GraphState, config: NodeConfig) -> NodeResult:
        result = await call(state, config)
        if result.error and not result.stop_reason and not result.next_node:
            result.stop_reason = "critical_error"
        return result

    return run


def _with_hooks(node: BaseNode, hooks: HookSet) -> NodeWrapper:
    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            await hooks.before_node(node, state)
            result = NodeResult(node.name, transition_reason="stopped", skipped=True)
            try:
                if state.current_node != END:
                    result = await call(state, config)
                if result.error:
                    await hooks.error(node, result, state)
            except BaseException:  # cancelled: hooks that saw the start see the end
                await hooks.notify_cancelled(node, state)
                raise
            result = await hooks.after_node(node, result, state)
            if (problem := invalid_field(result)) is not None:
                error = f"A hook returned an invalid NodeResult of {node.name!r}: {problem}."
                return NodeResult(node.name, error=error)
            result.node_name = result.node_name or node.name
            return result

        return run

    return wrap


def _result_maker(name: str, *, foreign: bool) -> Any:
    """Returns the function that makes a result from a value.

    Args:
        foreign: Whether other code than the engine's makes the results. They are checked.
    """

    def settle(value: Any, state: GraphState, config: NodeConfig, duration_ms: float) -> NodeResult:
        if isinstance(value, NodeResult):
            if foreign:
                if (wrong := invalid_field(value)) is not None:
                    value = NodeResult(name, error=f"{name!r} returned an invalid NodeResult: {wrong}.")
                elif value.transition_reason not in ("", TOOL_CALLS_PRESENT):  # of an earlier visit
                    value = replace(value, transition_reason="", usage=NO_USAGE)
            result = value if value.node_name == name else _named_result(name, value, state)
            if (
                result.usage is not NO_USAGE and config.usage is NO_USAGE
            ):  # spent past the engine: it counts too
                state.ledger.add_usage(result.usage)
        else:
            result = NodeResult(name, value)
        result.duration_ms = duration_ms
        if config.usage is not NO_USAGE:
            result.usage = config.usage
        return result

    return settle


def _named_result(name: str, result: NodeResult, state: GraphState) -> NodeResult:
    """Returns a result under the node's name.

    A child's result is copied, because its cost is already charged.
    """
    if any(result is earlier for earlier in state.node_history):
        return replace(result, node_name=name, usage=NO_USAGE, transition_reason="")
    result.node_name = name
    return result


def _failure_maker(name: str) -> Any:
    def fail(error: BaseException, state: GraphState, config: NodeConfig, duration_ms: float) -> NodeResult:
        if isinstance(error, BudgetExhausted):
            state.stop("budget", str(error))
        elif isinstance(error, IterationsExhausted):
            state.stop("max_iterations", str(error))
        text = str(error) if isinstance(error, AstromeshError) else f"{type(error).__name__}: {error}"
        result = NodeResult(name, error=text, usage=config.usage, duration_ms=duration_ms, exception=error)
        if isinstance(error, NodeFailed) and (why := GRAPH_ONLY_STOPS.get(error.stop_reason)):
            result.stop_reason = why
        return result

    return fail
