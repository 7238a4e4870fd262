"""One run of a graph: the tools, children and settings of its nodes, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from time import perf_counter
from types import MappingProxyType
from typing import Any, cast

from msgspec.structs import replace

from astromesh.errors import ConfigError, GraphStopped, InvalidToolCall, NodeFailed, ToolError
from astromesh.graph.audibility import Audibility
from astromesh.graph.base import BaseNode
from astromesh.graph.calls import call_tool, call_tools
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.ledger import RunLedger
from astromesh.graph.loop import Ending, RunProgress, cause_of, outcome_of, traverse
from astromesh.graph.node_config import STOPPED_MODEL, Child, Graph, Node, NodeConfig, OnError
from astromesh.graph.plan import Plan, compile_child
from astromesh.graph.records import GRAPH_ONLY_STOPS, NO_USAGE, ExecutionReport, GraphResult, NodeResult
from astromesh.graph.runner import together
from astromesh.graph.scope import NO_EVENTS, Scope
from astromesh.graph.state import NODE_CACHE, GraphState, SharedState
from astromesh.graph.step import CompileOptions, Step
from astromesh.providers.base import ModelPort
from astromesh.telemetry.clock import Clock
from astromesh.tools.base import ToolContext, ToolPort
from astromesh.tools.results import failed_result, unknown_tool
from astromesh.tools.toolbox import NoTools, ToolBox
from astromesh.types import Message, ToolCall, ToolResult, ToolSpec

#: A child with one of these flags may run concurrently with others.
_CONCURRENT_FLAGS = BIT[NodeFlag.READONLY] | BIT[NodeFlag.PARALLEL_SAFE]


def _fork(state: GraphState, child: Child) -> GraphState:
    fork = state.fork()
    fork.context.update(child.context)
    return fork


def _drop_child_context(fork: GraphState, child: Child) -> None:
    """Removes the values that only this child was given, unless it has replaced them."""
    for key, value in child.context.items():
        if fork.context.get(key) is value:
            del fork.context[key]


class NodeTools:
    """A `ToolPort` with the tools that one node may call. Any other name is unknown to it.

    Args:
        node: The node.
        engine: The engine's tools.

    Raises:
        ConfigError: The node names a tool that the engine does not have.
    """

    def __init__(self, node: BaseNode, engine: ToolPort) -> None:
        self._own = ToolBox(tool for tool in node.tools if not isinstance(tool, str))
        self._engine = engine
        own = {spec.name: spec for spec in self._own.specs()}
        self._names = frozenset(own)
        self._specs = {**self._selected(node, engine), **own}

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._all

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if call.name in self._names:
            return await self._own.execute(call, context)
        if call.name in self._specs:
            return await self._engine.execute(call, context)
        return failed_result(call, InvalidToolCall(unknown_tool(call.name, tuple(self._specs))))

    @cached_property
    def _all(self) -> tuple[ToolSpec, ...]:
        return tuple(self._specs.values())

    def _selected(self, node: BaseNode, engine: ToolPort) -> dict[str, ToolSpec]:
        offered = {spec.name: spec for spec in engine.specs()}
        names: Iterable[str] = [tool for tool in node.tools if isinstance(tool, str)]
        for name in names:
            if name not in offered:
                known = ", ".join(offered) or "none"
                raise ConfigError(f"Node {node.name!r} names the tool {name!r}. The engine has: {known}.")
        return offered if node.inject_tools else {name: offered[name] for name in names}


_NO_TOOLS = NoTools()


log = logging.getLogger("astromesh.graph")
#: Node executions of a finalizer and its children, beyond the limit that may have ended the run.
_FINALIZER_ITERATIONS = 25
#: The ending of a cancelled run.
_CANCELLED_ENDING: Ending = (None, "", "cancelled")
#: The retry budget of an engine that stands alone: only its nodes limit retries.
UNLIMITED_RETRIES = 1_000_000


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What an engine passes to each of its runs."""

    options: CompileOptions
    model: ModelPort
    tools: ToolPort
    lightweight_model: ModelPort | str | None
    human_handler: Any
    clock: Clock
    max_iterations: int
    max_mutations: int
    allow_self_modification: bool
    seed: int | None
    finalizer_seconds: float


class Run(RunProgress):
    """One run. Await `execute()` once. `result` exists afterwards, even if the run was cancelled.

    Args:
        settings: Those of the engine.
        plan: The compiled graph.
        messages: System, history, question.
        context: Initial values. They are copied.
        values: The caller's `config`. It is copied.
        scope: The scope of the surrounding run, or None for an engine that stands alone.
    """

    plan: Plan
    is_unobserved = True
    root: Scope | None = None
    random: Random | None = None
    result: GraphResult | None = None
    #: stopped nested graphs with a finalizer, by path, with their newest states
    stopped_graphs: Mapping[str, tuple[Plan, GraphState]] = MappingProxyType({})
    # created on first use: a run of plain functions needs none of them
    _scopes: dict[str, Scope] | None = None
    _toolsets: dict[int, ToolPort] | None = None
    _active: set[str] | None = None
    _undeclared_plans: dict[int, Plan] | None = None

    def __init__(
        self,
        settings: RunSettings,
        plan: Plan,
        messages: Sequence[Message],
        context: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.shared = shared = SharedState()
        self.settings, self.plan = settings, plan
        self.max_iterations = settings.max_iterations
        self.visited, self.counts = [], {}
        self.model, self.tools = settings.model, settings.tools
        self.state = GraphState(messages, dict(context) if context else {}, shared)
        self.values: dict[str, Any] = dict(values) if values else {}
        self.tool_calls: list[str] = []
        if settings.allow_self_modification:
            self.mutable, self.max_mutations = True, settings.max_mutations
        if scope is not None:
            self.is_unobserved = False
            # the run's own ledger, which charges the scope's: the report states the cost of this run
            shared.opened_ledger = RunLedger(None, scope.ledger)
            self.root = scope.child(ledger=shared.opened_ledger)
            self.emit = None if scope.events is NO_EVENTS else scope.events.emit

    # -- from beginning to end ----------------------------------------------------------------------------

    async def execute(self) -> GraphResult:
        """Runs the graph to its end.

        Raises:
            asyncio.CancelledError: The run was cancelled. The finalizer has run, and `result` is set.
        """
        started = perf_counter()
        try:
            try:
                ending = await traverse(self, self.plan, self.state)
            except Exception as broken:  # noqa: BLE001 (foreign hooks and nodes may leave anything in the state)
                ending = self._broken_state(broken)
            if self.plan.finalizer or self.stopped_graphs:
                await self._finalize_all(ending)
        except asyncio.CancelledError:
            await self._finish_cancelled(started)
            raise
        try:
            return self._conclude(ending, started)
        except Exception as broken:  # noqa: BLE001 (as above)
            return self._conclude(self._broken_state(broken), started)

    async def _finish_cancelled(self, started: float) -> None:
        """Ends a cancelled run: reports what exists, then what its finalizers make of it."""
        self.state.repair(self.shared)
        self.shared.stop_reason, self.shared.error = "cancelled", "The run was cancelled."
        self._conclude(_CANCELLED_ENDING, started)
        if self.plan.finalizer or self.stopped_graphs:
            await self._finalize_all(_CANCELLED_ENDING)
            self._conclude(_CANCELLED_ENDING, started)

    def _broken_state(self, error: Exception) -> Ending:
        """Ends a run whose state is invalid.

        Any other exception is a fault of the engine and is raised again.
        """
        wrong = self.state.repair(self.shared)
        if not wrong:
            raise error
        last = self.visited[-1] if self.visited else self.plan.entry
        text = (
            f"At the node {last!r} the state became invalid, by this node, an earlier one or a hook: {wrong}."
        )
        log.error("%s", text, exc_info=error)
        return None, text, "critical_error"

    async def _finalize_all(self, ending: Ending) -> None:
        """Runs the finalizers of stopped nested graphs, innermost first, then that of the graph itself."""
        for path, (plan, frame) in self.stopped_graphs.items():
            await self._finalize(plan, frame, path)
        if self.plan.finalizer:
            _, error, reason = ending
            shared = self.shared
            shared.stop_reason, shared.error = shared.stop_reason or reason, shared.error or error
            if shared.stop_reason != "completed":
                await self._finalize(self.plan, self.state)

    async def _finalize(self, plan_of_graph: Plan, state: GraphState, path: str = "") -> None:
        """Runs a finalizer without a model unless it has already started.

        Its output replaces the missing one.
        """
        name = plan_of_graph.finalizer
        step = plan_of_graph.steps.get(name)
        if step is None or state.visited[-1:] == [name]:
            return
        reason, error = self.shared.stop_reason, self.shared.error
        self.model = STOPPED_MODEL
        self.max_iterations = len(self.visited) + _FINALIZER_ITERATIONS
        self.shared.stop_reason = None
        plan = Plan({name: Step(step.node, self.settings.options)}, name, plan_of_graph.graph)
        failure = ""
        try:
            async with asyncio.timeout(self.settings.finalizer_seconds):
                last, _, _ = await traverse(self, plan, state, path)
            failure = last.error if last else ""
        except TimeoutError:
            failure = f"it did not end within {self.settings.finalizer_seconds:g} s."
        except Exception as broken:  # noqa: BLE001 (as above)
            _, failure, _ = self._broken_state(broken)
        self.shared.stop_reason, self.shared.error = reason, error
        if failure:
            self.shared.error = f"{error} The finalizer failed: {failure}".lstrip()

    def _conclude(self, ending: Ending, started: float) -> GraphResult:
        state, visited, shared = self.state, self.visited, self.shared
        if self.skipped:
            visited = [path for place, path in enumerate(visited) if place not in self.skipped]
        _, stuck, reason = ending
        stopped = (shared.stop_reason or reason) != "completed"
        plan = self.changed_plans.get("", self.plan) if self.changed_plans else self.plan
        output, error = outcome_of(state.node_history, plan.steps, plan.unconfirmed if stopped else ())
        if stuck and not shared.stop_reason:
            output, error = None, stuck
        report = ExecutionReport(
            visited,
            len(visited),
            shared.opened_ledger.usage if shared.opened_ledger else NO_USAGE,
            (perf_counter() - started) * 1000,
            self.tool_calls,
            [*self.mutations],
            [*self.guards],
            shared.stop_reason or reason,
            shared.error or error,
            shared.locals,
        )
        context = state.context
        if NODE_CACHE in context:
            del context[NODE_CACHE]
        self.result = result = GraphResult(state.messages, output, context, report)
        return result

    # -- children of nodes -------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self.shared.stop_reason is not None

    async def run_child(self, node: Node, state: GraphState, path: str) -> NodeResult:
        around, state.loop = state.loop, ()
        path = self._claim(path)
        try:
            last, stuck, _ = await traverse(self, self._plan_of(node), state, path)
        finally:
            state.loop = around
            self._release(path)
        if stuck:
            return NodeResult(node.name, error=stuck)
        if last is None or (self.stopping and last.wants_tools):
            raise GraphStopped(f"{path} does not continue: the run is being stopped.")
        return last

    async def run_graph(self, graph: Graph, state: GraphState, path: str) -> NodeResult:
        frame, plan = state.frame(), self._plan_of(graph)
        path = self._claim(path + "/")
        try:
            _, stuck, reason = await traverse(self, plan, frame, path)
        except BaseException:
            self._note_stopped(plan, frame, path)
            raise
        finally:
            self._release(path)
            plan = self.changed_plans.pop(path, plan) if self.changed_plans else plan
        if (self.shared.stop_reason or reason) != "completed":
            self._note_stopped(plan, frame, path)
        if stuck:
            return NodeResult(graph.name, error=stuck, stop_reason=reason)
        unconfirmed = plan.unconfirmed if (self.shared.stop_reason or reason) != "completed" else ()
        output, error = outcome_of(frame.node_history, plan.steps, unconfirmed)
        cause = cause_of(frame.node_history, plan.steps) if error else None
        return NodeResult(
            graph.name, output, error=error, exception=cause, stop_reason=GRAPH_ONLY_STOPS.get(reason, "")
        )

    def _note_stopped(self, plan: Plan, frame: GraphState, path: str) -> None:
        if plan.finalizer:
            self.stopped_graphs = {**self.stopped_graphs, path: (plan, frame)}

    async def run_together(
        self, children: Sequence[Child], state: GraphState, path: str, on_error: OnError
    ) -> list[NodeResult]:
        safe: list[int] = []
        alone: list[list[int]] = []
        for i, child in enumerate(children):
            if self._plan_of(child.node).first_step.mask & _CONCURRENT_FLAGS:
                safe.append(i)
            else:
                alone.append([i])
        results: dict[int, NodeResult] = {}
        for group in [safe, *alone] if safe else alone:
            forks = [_fork(state, children[i]) for i in group]
            works = zip(group, forks, strict=True)
            done = await together([self._run_one(children[i], fork, path, on_error) for i, fork in works])
            results.update(zip(group, done, strict=True))
            for i, fork in zip(group, forks, strict=True):
                _drop_child_context(fork, children[i])
            state.join(forks)
        return [results[i] for i in range(len(children))]

    async def _run_one(self, child: Child, state: GraphState, path: str, on_error: OnError) -> NodeResult:
        path = f"{path}/{child.name or child.node.name}"
        result = await self.run_child(child.node, state, path)
        if result.error and on_error == "fail":
            raise NodeFailed(path, result.error, result.exception, result.stop_reason)
        return result

    def _claim(self, path: str) -> str:
        """Reserves a path. Adds a number if a child of the same path is running.

        Raises:
            GraphStopped: The run is being stopped.
        """
        if self.stopping:
            raise GraphStopped(f"{path} does not start: the run is being stopped.")
        if self._active is None:
            self._active = set()
        free, number = path, 1
        while free in self._active:
            number += 1
            free = f"{path.rstrip('/')}#{number}{'/' if path.endswith('/') else ''}"
        self._active.add(free)
        return free

    def _release(self, path: str) -> None:
        if self._active:
            self._active.discard(path)

    def _plan_of(self, unit: Node | Graph) -> Plan:
        if self._undeclared_plans is None:
            self._undeclared_plans = {}
        plan = self._undeclared_plans.get(id(unit)) or self.plan.nested.get(id(unit))
        if plan is None or plan.is_stale:
            # an undeclared child may stand anywhere
            unknown = Audibility.HIDDEN if self.plan.guarded else Audibility.INTERNAL
            ceiling = unknown if plan is None else plan.ceiling
            plan = self._undeclared_plans[id(unit)] = compile_child(unit, self.options, ceiling)
        return plan

    # -- what nodes ask for (`NodeRuntime`) ----------------------------------------------------------------

    def config_for(self, step: Step, path: str) -> NodeConfig:
        model = step.model
        if model is None or self.model is STOPPED_MODEL:
            model = self.model
        return NodeConfig(self, step.node, path, model, step.role, step.audibility)

    @property
    def options(self) -> CompileOptions:
        return self.settings.options

    @property
    def lightweight_model(self) -> ModelPort | str | None:
        return None if self.model is STOPPED_MODEL else self.settings.lightweight_model

    @property
    def human_handler(self) -> Any:
        return self.settings.human_handler

    @property
    def clock(self) -> Clock:
        return self.root.clock if self.root else self.settings.clock

    def jitter(self) -> float:
        if self.random is None:
            self.random = Random(self.settings.seed)  # noqa: S311 (jitter of a pause, nothing secret)
        return self.random.random()

    def scope_at(self, path: str) -> Scope:
        scopes = self._scopes
        if scopes is None:
            scopes = self._scopes = {}
        scope = scopes.get(path)
        if scope is None:
            if self.root is None:
                self.is_unobserved = False
                self.root = Scope(
                    ledger=self.shared.ledger, clock=self.settings.clock, retries=UNLIMITED_RETRIES
                )
                self.root.steps[0] = int(self.shared.ledger.used.get("model_calls", 0))
            scope = scopes[path] = self.root.child(path)
        return scope

    async def call_tools(
        self, config: NodeConfig, state: GraphState, calls: Sequence[ToolCall]
    ) -> list[ToolResult]:
        port, scope = self.tools_of(config.node), config.scope
        return await call_tools(scope, calls, lambda call: self._call_tool(scope, port, state, call))

    async def _call_tool(self, scope: Scope, port: ToolPort, state: GraphState, call: ToolCall) -> ToolResult:
        hooks = self.settings.options.hooks
        try:
            changed = await hooks.before_tool(call, state) if hooks.pre_tool else call
        except ToolError as error:
            return failed_result(call, error)
        if any(spec.name == changed.name for spec in port.specs()):  # an unknown tool is not called
            self.tool_calls.append(changed.name)
        result = await call_tool(scope, port, changed)
        if hooks.post_tool:
            result = await hooks.after_tool(changed, result, state)
        # whatever hooks have changed: the result belongs to the call that the model made
        return result if result.call_id == call.id else replace(result, call_id=call.id)

    def tools_of(self, node: Node) -> ToolPort:
        """Returns the tools that a node may call. All of the engine's, or none, need no port of their own.

        Raises:
            ConfigError: The node names a tool that the engine does not have.
        """
        toolsets = self._toolsets
        if toolsets is None:
            toolsets = self._toolsets = {}
        tools = toolsets.get(id(node))
        if tools is None:
            base = cast(BaseNode, node)
            if base.tools:
                tools = NodeTools(base, self.tools)
            else:
                tools = self.tools if base.inject_tools else _NO_TOOLS
            toolsets[id(node)] = tools
        return tools
