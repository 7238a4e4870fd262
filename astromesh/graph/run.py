"""One run of a graph: its settings, its end, the tools and children of its nodes, and the loop.

Every graph and every node, nested or not, runs through `traverse`, the loop of document 000:

is there a node of this name?   no                             → unknown_node
turns left?                     no                             → max_iterations
visits left?                    no: the node's error transition, else `__error__`, else → stuck_node
the node                        in its hooks, flags and retries; then its writes
stopped meanwhile?              by a hook, CRITICAL, a budget  → that reason
graph actions                   on the run's own copy
the transition                  seven steps                    → the next node, or the end
the end                         with an error that nothing has taken up → failed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from msgspec.structs import replace

from astromesh.errors import (
    ConfigError,
    GraphStopped,
    LimitReached,
    NodeFailed,
    NondeterministicGraph,
    ToolError,
    is_failure,
)
from astromesh.graph.active_node import enter_node, leave
from astromesh.graph.audibility import Audibility
from astromesh.graph.base import BaseNode
from astromesh.graph.branches import Branches, Branching
from astromesh.graph.call_record import to_lenient_json
from astromesh.graph.calls import SelectedTools, call_tool, call_tools
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.graph import apply_actions, requested_actions
from astromesh.graph.ledger import RunLedger
from astromesh.graph.node_cache import NodeCache
from astromesh.graph.node_config import NO_CONFIG, STOPPED_MODEL, Child, Graph, Node, NodeConfig, OnError
from astromesh.graph.node_record import NodeRecorder, RecordedVisit
from astromesh.graph.plan import CompileOptions, Plan, Step, as_branch, compile_child, compile_graph
from astromesh.graph.records import (
    ACTION_KEY,
    END,
    GRAPH_ONLY_STOPS,
    LIMIT_STOPS,
    NO_USAGE,
    PLAIN_FIELDS,
    TOOL_CALLS_PRESENT,
    ExecutionReport,
    GraphResult,
    Mutation,
    NodeError,
    NodeResult,
    StopReason,
    holds_output_alone,
    is_json_of,
)
from astromesh.graph.runner import HELD_SECONDS, together, warn_of_hold
from astromesh.graph.scope import NO_EVENTS, Scope
from astromesh.graph.state import (
    NODE_CACHE,
    RESERVED_KEYS,
    GraphState,
    NodeLimits,
    SharedState,
    engine_extend,
    engine_write,
)
from astromesh.graph.transitions import (
    BRANCHING,
    DECIDING_KEYS,
    SCALARS,
    Transition,
    decides_nothing,
    next_transition,
    takes_up_error,
)
from astromesh.providers.base import ModelPort
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import ms_since
from astromesh.telemetry.watchdog import run_watch
from astromesh.tools.base import ToolPort
from astromesh.tools.results import failed_result
from astromesh.tools.toolbox import NoTools
from astromesh.types import Command, Message, ToolCall, ToolResult

log = logging.getLogger("astromesh.graph")
#: The result of the last node or None, why the graph could not continue or an empty text, and the reason.
Ending: TypeAlias = tuple[NodeResult | None, str, StopReason]
#: The ending of a cancelled run.
_CANCELLED_ENDING: Ending = (None, "", "cancelled")
#: What a person decided is no failure of the node that asked.
_DENIALS = frozenset({"human_denied", "human_timeout"})
#: Node executions of a finalizer and its children, beyond the limit that may have ended the run.
_FINALIZER_ITERATIONS = 25
#: The retry budget of an engine that stands alone: only its nodes limit retries.
UNLIMITED_RETRIES = 1_000_000
_NO_TOOLS = NoTools()
_NO_GRAPHS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The arguments that an engine passes to each of its runs."""

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
    cache: NodeCache


class Run:
    """One run. Await `execute()` once. `result` exists afterwards, even if the run was cancelled.

    Args:
        settings: Those of the engine.
        plan: The compiled graph.
        messages: System, history, question.
        context: Initial values. They are copied.
        values: The caller's `config`. It is copied.
        scope: The scope of the surrounding run, or None for an engine that stands alone.

    Attributes:
        shared: What all states of the run share. It does not refer to the run: a reference cycle would leave
            every run to the garbage collector.
        visited: Paths of executed nodes, in order, over all levels of nesting.
        counts: Executions by path.
        limits: Of the run. Items of a FanOutNode and rounds of a LoopNode have their own.
        emit: Emits an event. None without listeners.
        errors: Every failure of a node, in order.
        skipped: The indexes in `visited` of nodes that did not run. They count for the limit too.
        changed_plans: Plans made by graph actions, by the prefix of their level.
        recorder: Records the finished nodes of a durable run. None in every other run.
        tells_state: Whether a listener receives the state after each node.
        is_local: Whether its events stay in the program, so that they may hold any objects.
    """

    # what a plain run reads is in `__init__`: a default of the class costs ten times as much to read
    is_local = False
    random: Random | None = None
    result: GraphResult | None = None
    #: the newest output of a nested graph, as the model wrote it
    nested_text = ""
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
        self.limits = NodeLimits(settings.max_iterations)
        self.visited: list[str] = []
        self.counts: dict[str, int] = {}
        self.model, self.tools = settings.model, settings.tools
        values_of_state = {} if plan.schema is None else plan.schema.initial()
        if context:
            values_of_state.update(context)
        self.state = GraphState(messages, values_of_state, shared)
        self.state.reducers = plan.reducers
        self.values: dict[str, Any] = dict(values) if values else {}
        self.tool_calls: list[str] = []
        self.guards: list[str] = []
        self.mutations: list[Mutation] = []
        self.errors: list[NodeError] = []
        self.skipped: tuple[int, ...] = ()
        self.changed_plans: dict[str, Plan] | None = None
        #: stopped nested graphs with a finalizer, by path, with their newest states
        self.stopped_graphs: Mapping[str, tuple[Plan, GraphState]] = _NO_GRAPHS
        self.is_unobserved, self.tells_state = True, False
        self.root: Scope | None = None
        self.emit: Callable[..., None] | None = None
        self.recorder: NodeRecorder | None = None
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
        started, watch = perf_counter(), run_watch()
        watch.active += 1
        try:
            try:
                ending = await traverse(self, self.plan, self.state)
            except NondeterministicGraph as error:
                ending = None, str(error), "nondeterministic_graph"
            except Exception as broken:  # noqa: BLE001 (foreign hooks and nodes may leave anything in the state)
                ending = self._broken_state(broken)
            if self.plan.finalizer or self.stopped_graphs:
                await self._finalize_all(ending)
        except asyncio.CancelledError:
            await self._finish_cancelled(started)
            raise
        finally:
            watch.active -= 1
        try:
            return self._conclude(ending, started)
        except Exception as broken:  # noqa: BLE001 (as above)
            return self._conclude(self._broken_state(broken), started)

    async def _finish_cancelled(self, started: float) -> None:
        """Ends a cancelled run: reports what exists, then what its finalizers make of it."""
        self.state.repair(self.shared)
        self.shared.stop_reason, self.shared.error = "cancelled", "The run was cancelled."
        self._conclude(_CANCELLED_ENDING, started)
        journal = self.root.journal if self.root is not None else None
        if (self.plan.finalizer or self.stopped_graphs) and (journal is None or not journal.suspended):
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
            last, error, reason = ending
            shared = self.shared
            if reason == "failed" and last is not None:
                error = last.open_error
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
        state.limits = NodeLimits(_FINALIZER_ITERATIONS)
        self.shared.stop_reason = None
        plan = Plan({name: Step(step.node, self.settings.options)}, name, plan_of_graph.graph)
        plan.is_branch = True  # it has no position: a run that is resumed may be stopped elsewhere
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
        if type(state.messages) is not list:  # a hook may leave anything behind, at the last node too
            raise TypeError("messages must be a list")
        if self.skipped:
            visited = [path for place, path in enumerate(visited) if place not in self.skipped]
        _, stuck, reason = ending
        reason = shared.stop_reason or reason
        stopped = reason != "completed"
        plan = self.changed_plans.get("", self.plan) if self.changed_plans else self.plan
        output, error = outcome_of(state.node_history, plan.steps, plan.unconfirmed if stopped else ())
        if stuck and not shared.stop_reason:
            output, error = None, stuck
        if error and not stopped:  # by a hook that ended the run after a failure
            reason = "failed"
        report = ExecutionReport(
            visited,
            len(visited),
            shared.opened_ledger.usage if shared.opened_ledger else NO_USAGE,
            (perf_counter() - started) * 1000,
            self.tool_calls,
            self.mutations,
            self.guards,
            reason,
            shared.error or error,
            shared.locals,
            self.errors,
        )
        context = state.context
        if NODE_CACHE in context:
            del context[NODE_CACHE]
        text = "" if output is None or type(output) is str else self._json_text(state.node_history, output)
        typed = None if plan.schema is None else plan.schema.read(context)
        self.result = result = GraphResult(state.messages, output, context, report, text, typed)
        return result

    # -- children of nodes -------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self.shared.stop_reason is not None

    def limits_within(self, path: str) -> NodeLimits:
        if path not in self.counts:
            return NodeLimits(self.limits.most)
        inner = f"{path}/"
        earlier = {p: visits for p, visits in self.counts.items() if p == path or p.startswith(inner)}
        return NodeLimits(self.limits.most, earlier)

    async def run_child(
        self, node: Node, state: GraphState, path: str, limits: NodeLimits | None = None
    ) -> NodeResult:
        loop, limits_around = state.loop, state.limits
        state.loop, state.limits = (), limits or limits_around
        path = self._claim(path)
        try:
            last, stuck, _ = await traverse(self, self._plan_of(node), state, path)
        finally:
            state.loop, state.limits = loop, limits_around
            self._release(path)
        if stuck:
            return NodeResult(node.name, error=stuck)
        if last is None or (self.stopping and last.wants_tools):
            raise GraphStopped(f"{path} does not continue: the run is being stopped.")
        return last

    async def run_graph(self, graph: Graph, state: GraphState, path: str) -> NodeResult:
        frame, plan = state.frame(), self._plan_of(graph)
        if plan.reducers:
            frame.reducers = {**frame.reducers, **plan.reducers}
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
        if output is not None and type(output) is not str:
            self.nested_text = self._json_text(frame.node_history, output)
        last = (result for result in reversed(frame.node_history) if result.node_name in plan.steps)
        cause = next((result.exception for result in last), None) if error else None
        return NodeResult(
            graph.name, output, error=error, exception=cause, stop_reason=GRAPH_ONLY_STOPS.get(reason, "")
        )

    def _json_text(self, history: Sequence[NodeResult], output: Any) -> str:
        """Returns an output that is data as the model wrote it, or an empty text."""
        found = (
            result.json_text
            for result in reversed(history)
            if result.output is output and (result.messages_added or result.raw_output is not None)
        )
        nested = self.nested_text if self.nested_text and is_json_of(self.nested_text, output) else ""
        return next(filter(None, found), nested)

    def _note_stopped(self, plan: Plan, frame: GraphState, path: str) -> None:
        if plan.finalizer:
            self.stopped_graphs = {**self.stopped_graphs, path: (plan, frame)}

    async def run_together(
        self, children: Sequence[Child], state: GraphState, path: str, on_error: OnError, max_concurrency: int
    ) -> list[NodeResult]:
        branches, places = Branches(state, children), asyncio.Semaphore(max_concurrency)

        async def run_one(index: int) -> NodeResult:
            async with places:
                node, is_item = children[index].node, children[index].is_item
                branch = branches.begin(index, self._plan_of(node).first_step.mask)
                inner = f"{path}/{branch.name}"
                limits = self.limits_within(inner) if is_item else None
                result = await self.run_child(node, branch.state, inner, limits)
            if result.error and on_error == "fail":
                raise NodeFailed(inner, result.error, result.exception, result.stop_reason)
            return result

        results = await together([run_one(index) for index in range(len(children))])
        branches.merge()
        return results

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
            plan = self._undeclared_plans[id(unit)] = compile_child(unit, self.settings.options, ceiling)
        return plan

    # -- what nodes ask for (`NodeRuntime`) ----------------------------------------------------------------

    def config_for(self, step: Step, path: str) -> NodeConfig:
        model = step.model
        if model is None or self.model is STOPPED_MODEL:
            model = self.model
        return NodeConfig(self, step.node, path, model, step.role, step.audibility)

    @property
    def lightweight_model(self) -> ModelPort | str | None:
        return None if self.model is STOPPED_MODEL else self.settings.lightweight_model

    @property
    def human_handler(self) -> Any:
        return self.settings.human_handler

    @property
    def graph_name(self) -> str:
        return self.plan.name

    @property
    def cache(self) -> NodeCache:
        return self.settings.cache

    @property
    def clock(self) -> Clock:
        return self.root.clock if self.root else self.settings.clock

    def note_error(self, path: str, result: NodeResult, *, again: bool = False) -> None:
        """Adds a failure to the report, to the events and to the log. The end of the run is none.

        Args:
            again: The failure is in the record of the run. It was logged when it happened.
        """
        error = result.exception
        if isinstance(error, GraphStopped) or (error is None and result.stop_reason in _DENIALS):
            return
        if error is not None and not again:
            result.error_type = type(error).__name__
        failure = NodeError.of(path, result)
        # limits, wrong settings and errors that callers see need no traceback; a child's was logged with it
        is_known = isinstance(error, LimitReached | ConfigError) or getattr(error, "public", False)
        is_known = is_known or any(e.exception is failure.cause for e in self.errors)
        self.errors.append(failure)
        if self.emit is not None:
            self.emit("node.failed", **failure.to_json())
        if again:
            return
        log.warning(
            "node %r%s failed: %s: %s",
            path,
            f" of {self.root.run_id}" if self.root and self.root.run_id else "",
            failure.type,
            failure.message,
            exc_info=None if is_known else error,
        )

    def drop(self, path: str) -> None:
        """Records, in a durable run, that a branch ends at a node."""
        if self.recorder is not None:
            self.recorder.drop(path)

    def note_repeated(self, path: str, result: NodeResult, mutations: Iterable[Sequence[Any]]) -> None:
        """Adds guards, graph actions and the failure of a recorded visit to the report."""
        record_guards(self, path, result)
        done = [Mutation(result.node_name, *fields) for fields in mutations]
        self.mutations += done
        for mutation in done:
            if self.emit is not None:
                self.emit("graph.mutated", node=mutation.node, op=mutation.op, rejected=mutation.rejected)
        if result.error:
            self.note_error(path, result, again=True)

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
            scope.node = path
        return scope

    async def call_tools(
        self, config: NodeConfig, state: GraphState, calls: Sequence[ToolCall]
    ) -> list[ToolResult]:
        port, scope = self.tools_of(config.node), config.scope
        results = await call_tools(scope, calls, lambda call: self._call_tool(scope, port, state, call))
        for result in results:
            if result.command is not None and result.command.update:
                self._update(state, result.command.update)
        return results

    def _update(self, state: GraphState, update: Mapping[str, Any]) -> None:
        """Writes the update of a tool's command."""
        schema = self.plan.schema
        if schema is not None:
            schema.update(state, dict(update))
        else:
            state.context.update(update)

    async def _call_tool(self, scope: Scope, port: ToolPort, state: GraphState, call: ToolCall) -> ToolResult:
        hooks = self.settings.options.hooks
        try:
            changed = await hooks.before_tool(call, state)
        except ToolError as error:
            return failed_result(call, error)
        if any(spec.name == changed.name for spec in port.specs()):  # an unknown tool is not called
            self.tool_calls.append(changed.name)
        result = await call_tool(scope, port, changed)
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
            if not base.tools:
                tools = self.tools if base.inject_tools else _NO_TOOLS
            else:
                tools, inject_all = base.own_tools.box, base.inject_tools
                names = [tool for tool in base.tools if isinstance(tool, str)]
                if names or inject_all:
                    tools = SelectedTools(base.name, names, tools, self.tools, inject_all=inject_all)
            toolsets[id(node)] = tools
        return tools


# -- the loop ----------------------------------------------------------------------------------------------

_new_without_init = object.__new__
#: The usual return types of functions. A value of another type may be awaitable.
_NEVER_AWAITABLE = frozenset({type(None), str, dict, list, bool, int, float, NodeResult})
#: The event of the state after a node, for listeners in the program.
UPDATED_EVENT = "node.updated"
HELD_MS = HELD_SECONDS * 1000
#: The usual types of outputs, and those of which `Step.settle` makes the result.
_VALUES = SCALARS | {dict, list}
_SETTLED = (NodeResult, Command)
_ISOLATED = BIT[NodeFlag.ISOLATED_CONTEXT]


# One long function: a call for each of its steps would double the cost of a node. It reads straight down, in
# the order of the table above.
async def traverse(  # noqa: C901, PLR0912, PLR0915
    run: Run, plan: Plan, state: GraphState, prefix: str = ""
) -> Ending:
    """Runs a plan from entry to end: a graph, or a single child until its tool loop is over.

    Args:
        run: Counts, limits and listeners, over all levels.
        plan: What to run.
        state: The state of this level. A single child runs on the state of the node that runs it.
        prefix: For a nested graph the path of its node, with a slash. For a single child its path.
    """
    steps, counts, visited, emit, is_graph = plan.steps, run.counts, run.visited, run.emit, plan.is_graph
    shared, limits = run.shared, state.limits or run.limits
    recorder = run.recorder
    is_observed = emit is not None or recorder is not None
    active, tells_state, before = None, run.tells_state, state.context
    visit: RecordedVisit | None = None
    name, stuck = plan.entry, ""
    result: NodeResult | None = None
    while (step := steps.get(name)) is not None:
        path = (prefix + name if prefix else name) if is_graph else prefix
        if limits.used >= limits.most:
            state.stop("max_iterations", f"The run was stopped after {limits.most} node executions.")
            break
        visits = counts.get(path, 0)
        if visits >= step.max_visits and limits.are_reached(path, visits, step.max_visits):
            stuck = f"The node {path!r} is stuck after {step.max_visits} visits."
            name = target_when_stuck(plan, step, counts, prefix, limits)
            continue
        limits.used += 1
        counts[path] = visits + 1
        visited.append(path)
        if is_graph:
            state.current_node = name
            state.visited.append(name)
        config = NO_CONFIG if step.needs_no_config else run.config_for(step, path)
        message_count = len(state.messages)
        is_plain = False  # whether the result holds at most a value that decides nothing
        if is_observed:
            if emit is not None:
                emit("node.started", node=path)
            active = enter_node(run, path, name, visits + 1)
            if tells_state:
                before = dict(state.context)
        started = perf_counter()
        try:
            if recorder is not None:
                frame = prefix if is_graph and not plan.is_branch else None
                visit = await recorder.begin(state, path, step.node.effect, frame, limits)
                result = await recorder.execute(run, visit, plan, step, state, config)
            elif not step.is_unwrapped:
                result = await step.call(state, config)
            else:
                try:
                    if step.is_simple:
                        value = await step.body(state)
                    elif step.function is not None:
                        value = step.function(state)
                        if is_awaitable := type(value) not in _NEVER_AWAITABLE and hasattr(
                            value, "__await__"
                        ):
                            value = await value
                    else:
                        value = await (
                            step.body(state) if step.takes_state_only else step.body(state, config)
                        )
                    if not step.is_simple and (schema := step.updates) is not None and value is not None:
                        if type(value) is dict:
                            schema.update(state, value)
                        else:
                            value = step.write_update(value, schema, state)
                except BaseException as error:  # the boundary of a node, as in its call
                    if not is_failure(error):
                        if step.after is not None:
                            await step.hooks.notify_cancelled(step.node, state)
                        raise
                    result = step.fail(error, state, config, (perf_counter() - started) * 1000)
                else:
                    duration_ms = (perf_counter() - started) * 1000
                    if duration_ms > HELD_MS and step.function is not None and not is_awaitable:
                        warn_of_hold("The inline function", step.function, duration_ms / 1000)
                    kind = type(value)
                    if kind is NodeResult and not config.is_verbatim and holds_output_alone(value):
                        value = value.output  # there is nothing that `settle` would look at
                        kind = type(value)
                    if config.is_verbatim:
                        result, is_plain = value, True
                        result.duration_ms, result.usage = duration_ms, config.usage
                    elif config.usage is NO_USAGE and (kind in _VALUES or not isinstance(value, _SETTLED)):
                        # defaults stand in the class: a third of the constructor's cost
                        result = _new_without_init(NodeResult)
                        result.node_name = name
                        result.output = value
                        result.duration_ms = duration_ms
                        is_plain = kind in SCALARS or (
                            DECIDING_KEYS.isdisjoint(value) if kind is dict else decides_nothing(value, kind)
                        )
                    else:
                        result = step.settle(value, state, config, duration_ms)
                if step.after is not None:
                    result, is_plain = await step.after(result, state), False
        finally:
            if active is not None:  # somebody listens, or records
                leave(active)
                if emit is not None:
                    emit("node.finished", node=path, duration_ms=ms_since(started))
        output = result.output
        if not is_plain and PLAIN_FIELDS.issuperset(result.__dict__):
            kind = type(output)
            is_plain = kind in SCALARS or decides_nothing(output, kind)
        if is_plain:
            stuck = ""
            state.node_history.append(result)
            if config.is_verbatim:
                if type(state.messages) is list:
                    state.messages.extend(result.messages_added)
                else:
                    engine_extend(state.messages, result.messages_added)
            if output is not None and not step.output_key and type(state.context) is dict:
                state.context[step.output_name] = output  # as `write_output` does, without its call
            elif output is not None or step.output_key:
                write_output(step, state, output, None)
        elif result.skipped:
            discount_skipped(run, state, path, is_graph=is_graph)
        else:
            stuck = ""
            state.node_history.append(result)
            if result.messages_added or result.error or result.tool_calls:
                write_result(step, state, result, message_count)
            elif output is not None or step.output_key:
                write_output(step, state, output, result.raw_output)
            if result.guards_passed or result.guards_failed:
                record_guards(run, path, result)
        if tells_state and not (visit is not None and visit.is_repeated):
            tell_state(run, plan, path, state, before)
        if shared.stop_reason is not None or state.current_node == END:
            if result.error:
                run.note_error(path, result, again=visit is not None and visit.is_repeated)
            # by a hook that gave no reason
            shared.stop_reason = shared.stop_reason or ("failed" if result.open_error else "completed")
            if recorder is not None and visit is not None:
                await recorder.finish(run, visit, step, result, None, state)
            break
        if not is_plain:
            if type(output) is dict and ACTION_KEY in output:
                plan = await apply_mutations(run, plan, state, result, prefix)
                steps = plan.steps
                step = steps[name]
            is_plain = not (result.next_node or result.tool_calls or result.stop_reason or result.error) and (
                type(output) in SCALARS or decides_nothing(output, type(output))
            )
        transition = step.unconditional
        if visit is not None or transition is None or not is_plain:  # most results decide nothing
            if visit is not None:
                transition = await conclude_visit(run, visit, plan, step, result, state)
            else:
                transition = decided_transition(run, step, path, result, state)
            if transition.reason in BRANCHING:
                result.transition_reason = transition.reason
                before = dict(state.context)
                branching = Branching(run, partial(traverse, run), plan, step, state, prefix)
                transition, result = await branching.run(result, transition.reason)
                if tells_state:
                    tell_state(run, plan, path, state, before)
                if run.stopping:
                    break
        name, reason = transition.target, transition.reason
        result.transition_reason = reason
        if state.loop or reason is TOOL_CALLS_PRESENT:
            state.loop = (*state.loop, *result.messages_added) if reason is TOOL_CALLS_PRESENT else ()
    else:
        if name != END:
            if name in plan.stops:  # of a branch: others come here too
                state.current_node = name
                return result, "", "completed"
            missing = f"There is no node {name!r} in {plan.name!r}."
            log.error("%s", missing)
            return result, missing, "unknown_node"
        if result is not None and (why := result.stop_reason):
            if prefix and why in GRAPH_ONLY_STOPS:  # of a nested graph: the node that runs it may lead on
                return result, "", why
            stopped = f"The node {result.node_name!r} was stopped: {why}." if why in LIMIT_STOPS else ""
            state.stop(why, result.error or stopped)
        if is_graph and not stuck and result is not None and (result.error or result.skipped):
            last = state.last_result  # skipped nodes are transparent
            if last is not None and last.open_error:
                return last, "", "failed"
    return result, stuck, "stuck_node" if stuck else "completed"


def tell_state(run: Run, plan: Plan, path: str, state: GraphState, before: Mapping[str, Any]) -> None:
    """Emits what a node has changed, and the state after it: copies, whose values are those of the state."""
    schema, context = plan.schema, state.context
    names = schema.fields if schema is not None else [key for key in context if key not in RESERVED_KEYS]
    update = {
        key: context[key]
        for key in names
        if key in context and not (key in before and before[key] is context[key])
    }
    values = (
        {key: context[key] for key in names if key in context} if schema is None else schema.read(context)
    )
    if run.emit is None:
        return
    if run.is_local:
        run.emit(UPDATED_EVENT, node=path, update=update, values=values)
    elif visible := {key: value for key, value in update.items() if key[0] != "_"}:
        run.emit(UPDATED_EVENT, node=path, update=to_lenient_json(visible))


def decided_transition(run: Run, step: Step, path: str, result: NodeResult, state: GraphState) -> Transition:
    """Returns the transition that the seven steps decide on."""
    transition = next_transition(step, result, state)
    if result.error:
        result.handled = takes_up_error(step, transition)
        run.note_error(path, result)
    return transition


async def conclude_visit(
    run: Run, visit: RecordedVisit, plan: Plan, step: Step, result: NodeResult, state: GraphState
) -> Transition:
    """Returns the transition of a visit in a durable run, and records the visit."""
    recorder = run.recorder
    assert recorder is not None
    if not visit.is_repeated:
        transition = decided_transition(run, step, visit.path, result, state)
        await recorder.finish(run, visit, step, result, transition, state)
        return transition
    recorder.write_edit(visit, plan, step, state)
    if not visit.is_decided:
        return decided_transition(run, step, visit.path, result, state)
    if result.error:
        run.note_error(visit.path, result, again=True)
    return recorder.recorded_transition(visit, plan, step, result, state)


def discount_skipped(run: Run, state: GraphState, path: str, *, is_graph: bool) -> None:
    """Removes a skipped node from the visits.

    It counts for the limit, so that a cycle of skipped nodes ends. It takes up no error.
    """
    if state.last_result is not None:
        state.last_result.handled = False
    run.skipped = (*run.skipped, len(run.visited) - 1 - run.visited[::-1].index(path))
    if is_graph:
        state.visited.pop()


def record_guards(run: Run, path: str, result: NodeResult) -> None:
    """Adds the results of guards to the report."""
    run.guards += [f"{path}: {guard} passed" for guard in result.guards_passed]
    run.guards += [f"{path}: {guard} failed" for guard in result.guards_failed]


def write_result(step: Step, state: GraphState, result: NodeResult, message_count: int) -> None:
    """Writes the messages, `output_key` and `NAME_output` of a result. A failed node writes no output.

    An output of None leaves what stands under `output_key`.

    Args:
        message_count: The number of messages before the node. Those that it appended itself are not added
            twice.
    """
    if result.messages_added and not step.mask & _ISOLATED:
        add_messages(state, result.messages_added, message_count)
    if not result.error and not result.tool_calls:
        write_output(step, state, result.output, result.raw_output)


def add_messages(state: GraphState, added: Sequence[Message], message_count: int) -> None:
    messages = state.messages
    if len(messages) > message_count:
        own = {id(message) for message in messages[message_count:]}
        added = [message for message in added if id(message) not in own]
    engine_extend(messages, added)


def write_output(step: Step, state: GraphState, output: Any, raw: Any) -> None:
    context = state.context
    key = step.output_key
    if not key and type(context) is dict:
        if output is not None:
            context[step.output_name] = output if raw is None or isinstance(output, str) else raw
        return
    if key and (output is not None or key not in context):  # None does not erase what the node itself wrote
        engine_write(context, key, output)
    if output is not None:
        engine_write(context, step.output_name, output if raw is None or isinstance(output, str) else raw)


def outcome_of(
    history: Sequence[NodeResult], names: Container[str], unconfirmed: Container[str] = ()
) -> tuple[Any, str]:
    """Returns output and error of a graph: those of the last node that has one.

    A failure and a step of a tool loop leave no answer, whatever came before.

    Args:
        unconfirmed: Nodes whose output is not an answer, because the run stopped before a guard or a human
            behind them.
    """
    error_counts = True
    for result in reversed(history):
        if result.node_name not in names:  # a child's result: its parent reports it
            continue
        if result.error:
            return None, result.open_error if error_counts else ""
        if result.tool_calls:
            break
        if result.output is not None and result.is_answer:
            return (None if result.node_name in unconfirmed else result.output), ""
        error_counts = False
    return None, ""


def target_when_stuck(
    plan: Plan, step: Step, counts: Mapping[str, int], prefix: str, limits: NodeLimits
) -> str:
    """Returns the error transition of a stuck node, or `__error__`, or the end if that is stuck too."""
    target = plan.steps.get(step.on_error.target)
    if target is None:
        return END
    path = prefix + target.name
    return END if limits.are_reached(path, counts.get(path, 0), target.max_visits) else target.name


async def apply_mutations(run: Run, plan: Plan, state: GraphState, result: NodeResult, prefix: str) -> Plan:
    """Returns the plan with the graph actions of a result applied. The caller's graph does not change."""
    node, settings = result.node_name, run.settings
    left = settings.max_mutations - sum(m.applied for m in run.mutations)
    limit = left if settings.allow_self_modification else None
    graph, done = apply_actions(plan.graph, requested_actions(result.output), node, limit)
    result.graph_mutations = done
    run.mutations += done
    for mutation in done:
        if run.emit is not None:
            run.emit("graph.mutated", node=node, op=mutation.op, rejected=mutation.rejected)
        if mutation.applied:
            await settings.options.hooks.notify("on_graph_mutation", mutation, state)
    if graph is None or graph is plan.graph:
        return plan
    around, plan = plan, compile_graph(graph, settings.options, plan.ceiling)
    if around.is_branch:
        return as_branch(plan, around.entry, around.stops)
    run.changed_plans = {**(run.changed_plans or {}), prefix: plan}
    return plan
