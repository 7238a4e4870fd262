"""One run of a graph: its resources, its children, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import Any, cast

from astromesh.abc.clock import Clock
from astromesh.abc.provider import ModelPort
from astromesh.abc.tool import ToolPort
from astromesh.errors import GraphStopped, NodeFailed, ToolError
from astromesh.graph.base import BaseNode
from astromesh.graph.config import Child, Graph, Node, NodeConfig, OnError
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.loop import Outcome, stop_at_limit, traverse, visit
from astromesh.graph.nothing import STOPPED_MODEL
from astromesh.graph.plan import Kit, Plan, Step, compile_child
from astromesh.graph.progress import Progress
from astromesh.graph.records import ExecutionReport, GraphResult, NodeResult
from astromesh.graph.state import GraphState, Shared
from astromesh.graph.toolset import tools_of
from astromesh.graph.visit import NODE_CACHE
from astromesh.node.calls import call_tool
from astromesh.node.ledger import RunLedger
from astromesh.node.runner import together
from astromesh.node.scope import NO_EVENTS, Scope
from astromesh.node.tool_results import failed
from astromesh.types import Message, ToolCall, ToolResult, ToolSpec

#: a child with one of these may run at the same time as others
_SAFE = BIT[NodeFlag.READONLY] | BIT[NodeFlag.PARALLEL_SAFE]
#: turns that a finalizer and its children have, beyond the limit that may just have ended the run
_LAST_TURNS = 25


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine gives to each of its runs."""

    kit: Kit
    model: ModelPort
    tools: ToolPort
    lightweight_model: ModelPort | None
    human_handler: Any
    clock: Clock
    max_iterations: int
    max_mutations: int
    allow_self_modification: bool
    seed: int | None


class Run(Progress):
    """One run. `await execute()` once; `result` is there afterwards, also when the run was cancelled.

    Args:
        setup: of the engine.
        plan: the compiled graph.
        messages: system, history, question.
        context: initial values; copied.
        values: of the caller's `config`; copied.
        scope: of the run that this is part of, or None where the engine stands alone.
    """

    __slots__ = (
        "active", "adhoc", "child_visits", "clock", "human_handler", "lightweight_model", "model", "plan",
        "random", "result", "root", "scopes", "setup", "state", "tool_calls", "tools", "toolsets", "values",
    )  # fmt: skip

    def __init__(
        self,
        setup: Setup,
        plan: Plan,
        messages: Sequence[Message],
        context: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        scope: Scope | None = None,
    ) -> None:
        # a ledger of its own, which charges the scope's: the report tells what this run cost
        ledger = RunLedger(None, scope.ledger if scope else None)
        super().__init__(setup.kit, Shared(ledger), setup.max_iterations)
        self.setup, self.plan = setup, plan
        self.mutable, self.max_mutations = setup.allow_self_modification, setup.max_mutations
        self.state = GraphState(messages, dict(context) if context else {}, shared=self.shared)
        self.values: dict[str, Any] = dict(values) if values else {}
        self.model, self.tools = setup.model, setup.tools
        self.lightweight_model, self.human_handler = setup.lightweight_model, setup.human_handler
        self.root: Scope | None = None
        self.clock: Clock = setup.clock
        if scope is not None:
            self.root, self.clock = scope.charging(ledger), scope.clock
            self.emit = None if scope.events is NO_EVENTS else scope.events.emit
        self.random: Random | None = None
        self.result: GraphResult | None = None
        self.tool_calls: list[str] = []
        self.scopes: dict[str, Scope] = {}
        self.toolsets: dict[int, ToolPort] = {}
        self.adhoc: dict[int, Step | Plan] = {}
        self.child_visits: dict[str, int] = {}
        self.active: set[str] = set()

    # -- from beginning to end ----------------------------------------------------------------------------

    async def execute(self) -> GraphResult:
        """Runs the graph to its end.

        Raises:
            asyncio.CancelledError: the run was cancelled; the finalizer ran, `result` holds what there is.
        """
        started = perf_counter()
        try:
            outcome = await traverse(self, self.plan, self.state)
            outcome = self._stopped(outcome)
            if outcome.reason != "completed" and self.plan.finalizer:
                outcome = await self._finalize(outcome)
        except asyncio.CancelledError:
            cancelled = Outcome(None, "The run was cancelled.", "cancelled")
            self._conclude(cancelled, started)
            if self.plan.finalizer:
                self._conclude(await self._finalize(cancelled), started)
            raise
        return self._conclude(outcome, started)

    def _stopped(self, outcome: Outcome) -> Outcome:
        """How the run ended, where it was not by coming to its end."""
        reason = self.shared.stop_reason
        if reason is None:
            return outcome
        return Outcome(outcome.output, self.shared.error or outcome.error, reason)

    async def _finalize(self, outcome: Outcome) -> Outcome:
        """The finalizer's output in place of the one that is missing; it runs once, without a model."""
        step = self.plan.steps.get(self.plan.finalizer)
        if step is None or self.state.visited[-1:] == [step.name]:
            return outcome
        self.model, self.lightweight_model = STOPPED_MODEL, None
        self.max_iterations = self.turns + _LAST_TURNS
        self.shared.stop_reason = None
        self.state.current_node = step.name
        self.state.visited.append(step.name)
        result = await visit(self, step, self.state, step.name)
        if result.error:
            return outcome._replace(error=f"{outcome.error} The finalizer failed: {result.error}")
        return outcome if result.output is None else outcome._replace(output=result.output)

    def _conclude(self, outcome: Outcome, started: float) -> GraphResult:
        visited = self.visited
        if self.skipped:
            visited = [path for place, path in enumerate(visited) if place not in self.skipped]
        report = ExecutionReport(
            visited,
            len(visited),
            self.shared.ledger.usage,
            (perf_counter() - started) * 1000,
            self.tool_calls,
            self.mutations,
            self.guards,
            outcome.reason,
            outcome.error,
            self.shared.locals,
        )
        self.state.context.pop(NODE_CACHE, None)
        self.result = GraphResult(self.state.messages, outcome.output, self.state.context, report)
        return self.result

    # -- what nodes ask for (`config.Nesting`) ------------------------------------------------------------

    def config_for(self, step: Step, path: str) -> NodeConfig:
        stopped = self.model is STOPPED_MODEL
        model = self.model if stopped or step.model is None else step.model
        return NodeConfig(self, step.node, path, model, step.role)

    @property
    def stopping(self) -> bool:
        return self.shared.stop_reason is not None

    def chance(self) -> float:
        if self.random is None:
            self.random = Random(self.setup.seed)  # noqa: S311 (jitter of a pause, nothing secret)
        return self.random.random()

    def scope_at(self, path: str) -> Scope:
        scope = self.scopes.get(path)
        if scope is None:
            if self.root is None:
                self.root = Scope(ledger=self.shared.ledger, clock=self.clock, retries=_PLENTY)
            scope = self.scopes[path] = self.root.child(path)
        return scope

    def specs(self, node: Node) -> tuple[ToolSpec, ...]:
        return self._tools_of(node).specs()

    async def call_tools(
        self, config: NodeConfig, state: GraphState, calls: Sequence[ToolCall]
    ) -> list[ToolResult]:
        port, scope = self._tools_of(config.node), config.scope
        return await together([self._call_tool(scope, port, state, call) for call in calls])

    async def _call_tool(self, scope: Scope, port: ToolPort, state: GraphState, call: ToolCall) -> ToolResult:
        hooks = self.kit.hooks
        try:
            wanted = await hooks.before_tool(call, state) if hooks.pre_tool else call
        except ToolError as error:
            return failed(call, error)
        self.tool_calls.append(wanted.name)
        result = await call_tool(scope, port, wanted)
        if hooks.post_tool:
            result = await hooks.after_tool(wanted, result, state)
        # whatever hooks made of them: the result belongs to the call that the model made
        return result if result.call_id == call.id else replace(result, call_id=call.id)

    def _tools_of(self, node: Node) -> ToolPort:
        tools = self.toolsets.get(id(node))
        if tools is None:
            tools = self.toolsets[id(node)] = tools_of(cast(BaseNode, node), self.tools)
        return tools

    # -- children -----------------------------------------------------------------------------------------

    async def run_child(self, node: Node, state: GraphState, path: str) -> NodeResult:
        step, path = self._step_of(node), self._claim(path)
        around, state.loop = state.loop, []
        try:
            result = await self._to_the_answer(step, state, path)
        finally:
            state.loop = around
            self.active.discard(path)
        if result.stop_reason:
            state.stop(result.stop_reason, result.error)
        return result

    async def _to_the_answer(self, step: Step, state: GraphState, path: str) -> NodeResult:
        while True:
            if self.turns >= self.max_iterations:
                stop_at_limit(self, state)
            if self.stopping:
                raise GraphStopped(f"{path} does not begin: the run is being stopped.")
            visits = self.child_visits.get(path, 0)
            if visits >= step.max_visits:
                return NodeResult(step.name, error=f"The node {path!r} is stuck after {visits} visits.")
            self.child_visits[path] = visits + 1
            result = await visit(self, step, state, path)
            if result.error or not (step.tool_loop and result.wants_tools):
                return result
            state.loop.extend(result.messages_added)

    async def run_together(
        self, children: Sequence[Child], state: GraphState, path: str, on_error: OnError
    ) -> list[NodeResult]:
        results: dict[int, NodeResult] = {}
        safe = [i for i, child in enumerate(children) if self._step_of(child.node).mask & _SAFE]
        alone = [[i] for i in range(len(children)) if i not in set(safe)]
        for group in [safe, *alone] if safe else alone:
            forks = [_fork(state, children[i]) for i in group]
            works = zip(group, forks, strict=True)
            done = await together([self._one(children[i], fork, path, on_error) for i, fork in works])
            results.update(zip(group, done, strict=True))
            for i, fork in zip(group, forks, strict=True):
                _forget_own(fork, children[i])
            state.join(forks)
        return [results[i] for i in range(len(children))]

    async def _one(self, child: Child, state: GraphState, path: str, on_error: OnError) -> NodeResult:
        path = f"{path}/{child.name or child.node.name}"
        result = await self.run_child(child.node, state, path)
        if result.error and on_error == "fail":
            raise NodeFailed(path, result.error, result.exception)
        return result

    async def run_graph(self, graph: Graph, state: GraphState, path: str) -> NodeResult:
        if self.stopping:
            raise GraphStopped(f"{path} does not begin: the run is being stopped.")
        path = self._claim(path)
        try:
            outcome = await traverse(self, self._plan_of(graph), state.frame(), path + "/")
        finally:
            self.active.discard(path)
        return NodeResult(graph.name, outcome.output, error=outcome.error)

    def _claim(self, path: str) -> str:
        """The path, numbered where a child of the same path runs at the same time."""
        free, number = path, 1
        while free in self.active:
            number += 1
            free = f"{path}#{number}"
        self.active.add(free)
        return free

    def _step_of(self, node: Node) -> Step:
        return cast(Step, self._compiled(node))

    def _plan_of(self, graph: Graph) -> Plan:
        return cast(Plan, self._compiled(graph))

    def _compiled(self, unit: Node | Graph) -> Step | Plan:
        found = self.adhoc.get(id(unit), self.plan.nested.get(id(unit)))
        if found is None or _is_old(found):
            found = self.adhoc[id(unit)] = compile_child(unit, self.kit)
        return found


def _is_old(unit: Step | Plan) -> bool:
    return isinstance(unit, Plan) and unit.version != unit.graph.version


#: retries of an engine that stands alone are limited by its nodes alone
_PLENTY = 1_000_000


def _fork(state: GraphState, child: Child) -> GraphState:
    fork = state.fork()
    fork.context.update(child.context)
    return fork


def _forget_own(fork: GraphState, child: Child) -> None:
    """What a child alone was given stays with it, unless it made something else of it."""
    for key, value in child.context.items():
        if fork.context.get(key) is value:
            del fork.context[key]
