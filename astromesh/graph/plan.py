"""The compiled form of a graph, shared by all runs of an engine, with the audibility of its nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from astromesh.errors import (
    AstromeshError,
    BudgetExhausted,
    GraphError,
    InvalidGraph,
    IterationsExhausted,
    NodeFailed,
    described,
    text_of,
)
from astromesh.graph.audibility import (
    Audibility,
    AudibilityMap,
    audibility_in_graph,
    audibility_in_node,
    nodes_before_guards,
)
from astromesh.graph.base import BaseNode
from astromesh.graph.calls import as_model
from astromesh.graph.effects import NodeCall, NodeWrapper, with_flags
from astromesh.graph.flags import BIT, NodeFlag, mask
from astromesh.graph.graph import PromptGraph
from astromesh.graph.hooks import HookSet
from astromesh.graph.node_cache import with_cache
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes import AutonomousNode, is_built_in
from astromesh.graph.nodes.function import FunctionNode, as_result
from astromesh.graph.nodes.guard import Guard, GuardResults, as_guards, run_guards
from astromesh.graph.policies import ATTEMPTS, RetryPolicy, with_retries
from astromesh.graph.records import (
    ERROR_NODE,
    GRAPH_ONLY_STOPS,
    NO_USAGE,
    OUTPUT_SUFFIX,
    TOOL_CALLS_PRESENT,
    NodeResult,
    invalid_field,
)
from astromesh.graph.runner import bounded, unit, wrapped
from astromesh.graph.state import (
    NO_REDUCERS,
    RETRY_ERROR,
    GraphState,
    engine_forget,
    engine_write,
)
from astromesh.graph.topology import (
    contains_protected,
    declared_targets,
    is_protected,
    may_refuse,
    routable,
    targets,
)
from astromesh.graph.transitions import (
    ERROR_KEY,
    FORK,
    NO_TRANSITION,
    CompiledEdge,
    OnError,
    RoutedNode,
    Transition,
    as_test,
    repeat_with_tools,
    rules_for,
    unconditional_transition,
)
from astromesh.graph.typed_state import StateSchema
from astromesh.graph.validation import Processor, postprocessor, preprocessor
from astromesh.providers.base import ModelPort
from astromesh.types import Command

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
        result = replace(result)
        result.replace_output(processed)
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


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The settings with which an engine compiles.

    Args:
        max_node_iterations: The limit of visits of one node. The node's own limit may be lower.
        node_model: Returns what replaces a model that a node has as an object. None: the model of the run.
    """

    hooks: HookSet
    max_node_iterations: int = 25
    node_model: Callable[[ModelPort], ModelPort | None] | None = None


class Step(RoutedNode):
    """A compiled node.

    Attributes:
        call: The body in its wrappers.
        is_unwrapped: Whether there are no wrappers. Then the loop awaits `body` itself and makes the result
            with `settle` and `fail`, as `call` would.
        after: What hooks make of the results of an unwrapped node. None without such hooks.
        updates: The typed state, which the values of an unwrapped function update. Else None.
        needs_no_config: Whether the node reads nothing but the state, so that no config is made for it.
        takes_state_only: Whether `body` is called without a config.
        function: The body, if it is a plain function: a coroutine would double its cost.
        is_simple: Whether its value is that of an async function of the state, and updates no typed state.
        model, role: From `model_override`.
    """

    def __init__(
        self,
        node: BaseNode,
        options: CompileOptions,
        audibility: Audibility = Audibility.STREAMED,
        schema: StateSchema | None = None,
    ) -> None:
        super().__init__(node.name, node.tool_loop, rules=(repeat_with_tools,) if node.tool_loop else ())
        self.node, self.hooks, self.audibility, self.on_error = node, options.hooks, audibility, NO_TRANSITION
        self.mask = mask(node.flags)
        self.output_key, self.output_name = node.output_key, node.name + OUTPUT_SUFFIX
        self.schema, self.goto = schema, frozenset[str]()
        if schema is not None:
            if node.output_key in schema.fields:
                self.output_key = ""  # written as an update
            if isinstance(node, FunctionNode):
                node = schema.adapted(node)
        override = node.model_override
        is_named = override is None or isinstance(override, str)
        self.model: ModelPort | None = None if is_named else as_model(override)
        if self.model is not None and options.node_model is not None:
            self.model = options.node_model(self.model)
        self.role: str = override if isinstance(override, str) else ""
        own, limit = node.max_iterations, options.max_node_iterations
        counts_attempts = self._has(NodeFlag.RETRYABLE) and not node.retry
        self.max_visits = limit if own is None or counts_attempts else min(own, limit)
        is_function = isinstance(node, FunctionNode)
        takes_state = isinstance(node, FunctionNode) and node.arity == 1
        self.takes_state_only = isinstance(node, FunctionNode) and node.takes_state_only
        body = node.body()
        if (around := with_processors(node, body, state_only=self.takes_state_only)) is not None:
            body, self.takes_state_only, takes_state = around, False, False
        self.body = body if node.timeout is None else bounded(body, node.timeout, self.name)
        self.is_foreign = not is_built_in(node)
        writes_plainly = schema is not None and is_function and node.output_key not in schema.fields
        wrappers = tuple(self._wrappers())
        is_bare = len(wrappers) == writes_plainly + self.hooks.watches_nodes  # no flags, no retries
        #: hooks that only see results need no wrapper
        self.after = self.hooks.after(node) if is_bare and not writes_plainly else None
        self.is_unwrapped = is_bare and (self.after is not None or not self.hooks.watches_nodes)
        self.updates = schema if writes_plainly else None
        self.needs_no_config = is_bare and takes_state
        self.function: Callable[..., Any] | None = None
        if takes_state and isinstance(node, FunctionNode) and node.timeout is None:
            self.function = node.plain_function
        self.is_simple = self.takes_state_only and self.function is None and self.updates is None
        self.call: NodeCall = wrapped(
            unit(self.body, self.settle, self.fail, subject_only=self.takes_state_only), wrappers
        )

    def write_update(self, value: Any, schema: StateSchema, state: GraphState) -> Any:
        """Writes what a function of a typed graph returns, and returns it, a Command as a result.

        Raises:
            GraphError: It is not a valid update.
        """
        if isinstance(value, NodeResult | Command):
            result = as_result(self.name, value)
            if not (result.error or result.skipped or result.wants_tools):
                _apply_update(self, schema, result, state)
            return result
        if schema.is_update(value):
            schema.update(state, value)
        return value

    def settle(self, value: Any, state: GraphState, config: NodeConfig, duration_ms: float) -> NodeResult:
        """Makes a result from the value of the body. It checks results that foreign code has made."""
        name = self.name
        if isinstance(value, NodeResult):
            result = value
            if self.is_foreign:
                if (wrong := invalid_field(value)) is not None:
                    result = NodeResult(name, error=f"{name!r} returned an invalid NodeResult: {wrong}.")
                elif value.transition_reason not in ("", TOOL_CALLS_PRESENT):  # of an earlier visit
                    result = replace(value, transition_reason="", usage=NO_USAGE)
            if result.node_name not in ("", name) and any(result is one for one in state.node_history):
                # a child's result, whose cost is already charged
                result = replace(result, usage=NO_USAGE, transition_reason="")
            result.node_name = name
            if result.usage is not NO_USAGE and config.usage is NO_USAGE:
                state.ledger.add_usage(result.usage)  # spent past the engine: it counts too
        else:
            result = NodeResult(name, value)
        if type(result.output) is Command and self.schema is None:
            _apply_command(self, result, state)
        result.duration_ms = duration_ms
        if config.usage is not NO_USAGE:
            result.usage = config.usage
        return result

    def fail(
        self, error: BaseException, state: GraphState, config: NodeConfig, duration_ms: float
    ) -> NodeResult:
        """Makes a result from the exception of the body."""
        if isinstance(error, BudgetExhausted):
            state.stop("budget", str(error))
        elif isinstance(error, IterationsExhausted):
            state.stop("max_iterations", str(error))
        text = text_of(error) if isinstance(error, AstromeshError) else described(error)
        result = NodeResult(
            self.name, error=text, usage=config.usage, duration_ms=duration_ms, exception=error
        )
        if isinstance(error, NodeFailed) and (why := GRAPH_ONLY_STOPS.get(error.stop_reason)):
            result.stop_reason = why
        return result

    def _has(self, flag: NodeFlag) -> bool:
        return bool(self.mask & BIT[flag])

    def _wrappers(self) -> Iterable[NodeWrapper]:
        """Yields hooks, flags, retries, outermost first. Each wrapper sees the result of those inside it."""
        if contains_protected(self.node):
            yield _fail_closed
        if self.schema is not None:
            yield _with_state_updates(self, self.schema)
        if self.hooks.watches_nodes:
            yield partial(self.hooks.around, self.node)
        if self.node.cache is not None:
            yield with_cache(self.node, self.node.cache)
        if (flags := with_flags(self.node, self.hooks, self.mask)) is not None:
            yield flags
        if self._has(NodeFlag.RETRYABLE):
            yield with_retries(self.node.retry or (RetryPolicy(self.node.max_iterations or ATTEMPTS),))


def _fail_closed(call: NodeCall) -> NodeCall:
    """Wraps a guard or a human. If it fails, only edges and transitions for failures lead on."""

    async def run(state: GraphState, config: NodeConfig) -> NodeResult:
        result = await call(state, config)
        if result.error and not result.stop_reason and not result.next_node:
            result.stop_reason = "critical_error"
        return result

    return run


def _with_state_updates(step: Step, schema: StateSchema) -> NodeWrapper:
    """Writes the updates of the typed state that a node returns, and its output under its key."""
    node = step.node
    is_function = isinstance(node, FunctionNode)
    key = node.output_key if node.output_key in schema.fields else ""

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            result = await call(state, config)
            if result.error or result.skipped or result.wants_tools:
                return result
            try:
                if is_function:
                    _apply_update(step, schema, result, state)
                if key:
                    schema.update(state, {key: result.output})
            except GraphError as error:
                result.error, result.exception, result.output = str(error), error, None
            return result

        return run

    return wrap


def _apply_update(step: Step, schema: StateSchema, result: NodeResult, state: GraphState) -> None:
    output = result.output
    if isinstance(output, Command):
        _take_command(step, result, output)
    elif not schema.is_update(output) or result.raw_output is not None:
        return
    if result.output and step.mask & BIT[NodeFlag.READONLY]:
        raise GraphError(f"{step.name!r} is READONLY and may not update the state.")
    schema.update(state, result.output)


def _apply_command(step: Step, result: NodeResult, state: GraphState) -> None:
    """Writes the update of a command to the context of a graph without a typed state."""
    command, result.output = result.output, None
    try:
        _take_command(step, result, command)
        state.context.update(command.update)
    except (GraphError, TypeError) as error:  # a READONLY node may not write
        result.error, result.exception, result.output = str(error), error, None


def _take_command(step: Step, result: NodeResult, command: Command) -> None:
    if not isinstance(command.goto, str):
        raise GraphError(f"{step.name!r}: `goto` is the name of a node, not {command.goto!r}.")
    if command.goto and command.goto not in step.goto:
        raise GraphError(f"{step.name!r} may not go to {command.goto!r}, which is not one of its targets.")
    result.output, result.next_node = dict(command.update), command.goto


class Plan:
    """What a traversal follows: a compiled graph, or a single child.

    Args:
        steps: By name.
        graph: The source. None for a single child.
        ceiling: The least audibility of everything inside, set by the node that runs it.

    Attributes:
        unconfirmed: Nodes whose output is not an answer if the run is stopped, because a guard or a human
            follows.
        guarded: Whether anything inside may refuse another node's text.
        nested: The plans of all children, by the identity of their source.
        is_branch: Whether it is a branch of a graph. Other branches may run at the same time.
        stops: Names of nodes at which a branch ends, because it meets others there.
    """

    def __init__(
        self,
        steps: dict[str, Step],
        entry: str,
        graph: PromptGraph | None = None,
        ceiling: Audibility = Audibility.STREAMED,
    ) -> None:
        self.steps, self.entry, self.graph, self.ceiling = steps, entry, graph, ceiling
        static = graph is not None and graph.mode != "autonomous"
        self.unconfirmed = nodes_before_guards(graph) - {graph.finalizer} if graph and static else frozenset()
        self.guarded = any(may_refuse(step.node) for step in steps.values())
        self.is_graph = graph is not None
        self.restores = {key: make for step in steps.values() for key, make in step.node.restores.items()}
        self.name = graph.name if graph else entry
        self.version = graph.version if graph else 0
        self.finalizer = graph.finalizer if graph else ""
        self.reducers = graph.reducers if graph else NO_REDUCERS
        self.schema = graph.schema if graph else None
        self.nested: dict[int, Plan] = {}
        self.is_branch = False
        self.stops: frozenset[str] = frozenset()

    @property
    def is_stale(self) -> bool:
        """Whether the graph was changed since it was compiled."""
        return self.graph is not None and self.graph.version != self.version

    @property
    def first_step(self) -> Step:
        """The first step. A single child has no other."""
        return self.steps[self.entry]


def as_branch(plan: Plan, entry: str, stops: frozenset[str]) -> Plan:
    """Returns the plan of a branch of a graph: it begins at `entry` and ends before the nodes of `stops`."""
    branch = copy(plan)
    branch.entry, branch.stops, branch.is_branch = entry, stops, True
    branch.steps = {name: step for name, step in plan.steps.items() if name not in stops}
    return branch


def compile_graph(
    graph: PromptGraph, options: CompileOptions, ceiling: Audibility = Audibility.STREAMED
) -> Plan:
    """Compiles a graph and everything nested in it.

    Args:
        ceiling: The least audibility of everything inside.

    Raises:
        InvalidGraph: The graph has no nodes, or its entry is not one of them.
    """
    nested: dict[int, Plan] = {}
    plan = _compile(graph, options, nested, audibility_in_graph(graph, ceiling), ceiling)
    plan.nested = nested
    return plan


def compile_child(child: Any, options: CompileOptions, ceiling: Audibility = Audibility.STREAMED) -> Plan:
    """Compiles a node or a graph that runs inside a node.

    A node alone has no targets but its own tool loop.
    """
    if isinstance(child, PromptGraph):
        return compile_graph(child, options, ceiling)
    return _compile_single(child, options, audibility_in_node(child, ceiling).get(child))


def _compile_single(
    child: BaseNode, options: CompileOptions, audibility: Audibility, schema: StateSchema | None = None
) -> Plan:
    return Plan({child.name: Step(child, options, audibility, schema)}, child.name, None, audibility)


def _compile(
    graph: PromptGraph,
    options: CompileOptions,
    nested: dict[int, Plan],
    audibilities: AudibilityMap,
    ceiling: Audibility = Audibility.STREAMED,
) -> Plan:
    if graph.entry not in graph.nodes:
        raise InvalidGraph([f"The graph {graph.name!r} has no entry: {graph.entry or 'it has no nodes'}."])
    if graph.mode == "autonomous":
        pool = AutonomousNode(graph.nodes.values())
        steps, entry = {pool.name: Step(pool, options, ceiling)}, pool.name
        if graph.finalizer:
            steps[graph.finalizer] = Step(graph.get_node(graph.finalizer), options)
    else:
        steps = {
            node.name: _compile_node(graph, node, options, audibilities.get(node))
            for node in graph.nodes.values()
        }
        entry = graph.entry
    plan = nested[id(graph)] = Plan(steps, entry, graph, ceiling)
    for step in steps.values():
        _compile_children(step.node, options, nested, audibilities, graph.schema)
    return plan


def _compile_children(
    node: BaseNode,
    options: CompileOptions,
    nested: dict[int, Plan],
    audibilities: AudibilityMap,
    schema: StateSchema | None,
) -> None:
    for child in node.children():
        if id(child) in nested:
            continue
        if isinstance(child, PromptGraph):
            _compile(child, options, nested, audibilities, audibilities.get(child))
        elif isinstance(child, BaseNode):
            nested[id(child)] = _compile_single(child, options, audibilities.get(child), schema)
            _compile_children(child, options, nested, audibilities, schema)


def _compile_node(
    graph: PromptGraph, node: BaseNode, options: CompileOptions, audibility: Audibility
) -> Step:
    """Compiles a node with its targets."""
    step = Step(node, options, audibility, graph.schema)
    step.goto = frozenset(declared_targets(graph, node.name) | routable(graph, node.name))
    step.transitions = node.transitions
    edges = graph.get_edges_from(node.name)
    step.edges = tuple(
        CompiledEdge(
            None if e.condition is None else as_test(e.condition, f"Edge {e}"),
            Transition(e.target, _reason(e.label)),
        )
        for e in edges
    )
    if (fork := graph.forks.get(node.name)) is not None:
        step.fork = fork
        step.edges = (*step.edges, CompiledEdge(None, Transition(fork.targets[0], FORK)))
    step.declared = frozenset(targets(graph, node.name))
    if node.default_next:
        step.default = Transition(node.default_next, "default")
    if "edges_only" not in (node.routing, graph.routing):
        step.routes = _routes_of(node, routable(graph, node.name))
    ahead = declared_targets(graph, node.name) - {node.default_next}
    step.guards = frozenset(name for name in ahead if is_protected(graph, name))
    failing = (e.target for e in edges if isinstance(e.condition, OnError))
    target = next(failing, "") or node.transitions.get(ERROR_KEY, "")
    fallback = ERROR_NODE if graph.has_node(ERROR_NODE) and node.name != ERROR_NODE else ""
    step.on_error = Transition(target or fallback, "stuck")
    step.stops_on_error = graph.stops_on_error
    step.rules, step.unconditional = rules_for(step), unconditional_transition(step)
    return step


def _reason(label: str) -> str:
    return f"edge: {label}" if label else "edge"


def _routes_of(node: BaseNode, targets: set[str]) -> dict[str, str]:
    """Returns what the model may answer as a route: targets by name, and keys of transitions."""
    keys = {k: t for k, t in node.transitions.items() if isinstance(k, str) and k != ERROR_KEY}
    return {**{t: t for t in targets}, **keys}
