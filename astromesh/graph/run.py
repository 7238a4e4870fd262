"""One run of a graph: what its nodes are given, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import Any, cast

from astromesh.abc.clock import Clock
from astromesh.abc.provider import ModelPort
from astromesh.abc.tool import ToolPort
from astromesh.errors import ToolError
from astromesh.graph.base import BaseNode
from astromesh.graph.children import Children
from astromesh.graph.config import Node, NodeConfig
from astromesh.graph.loop import Ending, harvest, traverse
from astromesh.graph.nothing import STOPPED_MODEL
from astromesh.graph.own_keys import NODE_CACHE
from astromesh.graph.plan import Plan
from astromesh.graph.records import ExecutionReport, GraphResult
from astromesh.graph.state import GraphState, Shared
from astromesh.graph.step import Kit, Step
from astromesh.graph.toolset import tools_of
from astromesh.node.calls import call_tool, call_tools
from astromesh.node.scope import NO_EVENTS, Scope
from astromesh.node.tool_results import failed
from astromesh.types import Message, ToolCall, ToolResult, ToolSpec

log = logging.getLogger("astromesh.graph")

#: turns that a finalizer and its children have, beyond the limit that may just have ended the run
_LAST_TURNS = 25
#: of a run that was cancelled in the middle
_CANCELLED: Ending = (None, "", "cancelled")
#: retries of an engine that stands alone are limited by its nodes alone
PLENTY = 1_000_000


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine gives to each of its runs."""

    kit: Kit
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


class Run(Children):
    """One run. `await execute()` once; `result` is there afterwards, also when the run was cancelled.

    Args:
        setup: of the engine.
        plan: the compiled graph.
        messages: system, history, question.
        context: initial values; copied.
        values: of the caller's `config`; copied.
        scope: of the run that this is part of, or None where the engine stands alone.
    """

    unheard = True
    root: Scope | None = None
    random: Random | None = None
    result: GraphResult | None = None
    # made when they are first asked for: a run of plain functions needs none of them
    _scopes: dict[str, Scope] | None = None
    _toolsets: dict[int, ToolPort] | None = None

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
        self.shared = shared = Shared(scope.ledger if scope else None)
        self.setup, self.plan = setup, plan
        self.max_iterations = setup.max_iterations
        self.visited, self.counts = [], {}
        self.model, self.tools = setup.model, setup.tools
        self.state = GraphState(messages, dict(context) if context else {}, shared)
        self.values: dict[str, Any] = dict(values) if values else {}
        self.tool_calls: list[str] = []
        if setup.allow_self_modification:
            self.mutable, self.max_mutations = True, setup.max_mutations
        if scope is not None:
            self.unheard = False
            self.root = scope.charging(shared.ledger)
            self.emit = None if scope.events is NO_EVENTS else scope.events.emit

    # -- from beginning to end ----------------------------------------------------------------------------

    async def execute(self) -> GraphResult:
        """Runs the graph to its end.

        Raises:
            asyncio.CancelledError: the run was cancelled; the finalizer ran, `result` holds what there is.
        """
        started = perf_counter()
        try:
            try:
                ending = await traverse(self, self.plan, self.state)
            except Exception as broken:  # noqa: BLE001 (anybody's hook or node may leave anything in the state)
                ending = self._broken(broken)
            if self.plan.finalizer or self.cut_off:
                await self._finalize_all(ending)
        except asyncio.CancelledError:
            await self._cut_short(started)
            raise
        try:
            return self._conclude(ending, started)
        except Exception as broken:  # noqa: BLE001 (as above)
            return self._conclude(self._broken(broken), started)

    async def _cut_short(self, started: float) -> None:
        """The end of a run that was cancelled: what there is, then what its finalizers make of it."""
        self.state.mend(self.shared)
        self.shared.stop_reason, self.shared.error = "cancelled", "The run was cancelled."
        self._conclude(_CANCELLED, started)
        if self.plan.finalizer or self.cut_off:
            await self._finalize_all(_CANCELLED)
            self._conclude(_CANCELLED, started)

    def _broken(self, error: Exception) -> Ending:
        """How a run ends whose state is no longer one; what else breaks the engine is its own fault."""
        wrong = self.state.mend(self.shared)
        if not wrong:
            raise error
        last = self.visited[-1] if self.visited else self.plan.entry
        text = f"At the node {last!r} the state was broken, by it, one before, or a hook: {wrong}."
        log.error("%s", text, exc_info=error)
        return None, text, "critical_error"

    async def _finalize_all(self, ending: Ending) -> None:
        """Those of nested graphs that were stopped, innermost first, now that nothing runs; then its own."""
        for path, (plan, frame) in self.cut_off.items():
            await self._finalize(plan, frame, path)
        if self.plan.finalizer:
            _, error, reason = ending
            shared = self.shared
            shared.stop_reason, shared.error = shared.stop_reason or reason, shared.error or error
            if shared.stop_reason != "completed":
                await self._finalize(self.plan, self.state)

    async def _finalize(self, of: Plan, state: GraphState, path: str = "") -> None:
        """Runs a finalizer without a model, unless it has begun; its output stands for the missing one."""
        name = of.finalizer
        step = of.steps.get(name)
        if step is None or state.visited[-1:] == [name]:
            return
        reason, error = self.shared.stop_reason, self.shared.error
        self.model = STOPPED_MODEL
        self.max_iterations = len(self.visited) + _LAST_TURNS
        self.shared.stop_reason = None
        plan = Plan({name: Step(step.node, self.setup.kit)}, name, of.graph)
        failure = ""
        try:
            async with asyncio.timeout(self.setup.finalizer_seconds):
                last, _, _ = await traverse(self, plan, state, path)
            failure = last.error if last else ""
        except TimeoutError:
            failure = f"it did not end within {self.setup.finalizer_seconds:g} s."
        except Exception as broken:  # noqa: BLE001 (as above)
            _, failure, _ = self._broken(broken)
        self.shared.stop_reason, self.shared.error = reason, error
        if failure:
            self.shared.error = f"{error} The finalizer failed: {failure}".lstrip()

    def _conclude(self, ending: Ending, started: float) -> GraphResult:
        state, visited, shared = self.state, self.visited, self.shared
        if self.skipped:
            visited = [path for place, path in enumerate(visited) if place not in self.skipped]
        _, stuck, reason = ending
        stopped = (shared.stop_reason or reason) != "completed"
        plan = self.changed.get("", self.plan) if self.changed else self.plan
        output, error = harvest(state.node_history, plan.steps, plan.unsure if stopped else ())
        if stuck and not shared.stop_reason:
            output, error = None, stuck
        report = ExecutionReport(
            visited,
            len(visited),
            shared.usage,
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

    # -- what nodes ask for (`config.Nesting`) ------------------------------------------------------------

    def config_for(self, step: Step, path: str) -> NodeConfig:
        model = step.model
        if model is None or self.model is STOPPED_MODEL:
            model = self.model
        return NodeConfig(self, step.node, path, model, step.role, step.speech)

    @property
    def kit(self) -> Kit:
        return self.setup.kit

    @property
    def lightweight_model(self) -> ModelPort | str | None:
        return None if self.model is STOPPED_MODEL else self.setup.lightweight_model

    @property
    def human_handler(self) -> Any:
        return self.setup.human_handler

    @property
    def clock(self) -> Clock:
        return self.root.clock if self.root else self.setup.clock

    def chance(self) -> float:
        if self.random is None:
            self.random = Random(self.setup.seed)  # noqa: S311 (jitter of a pause, nothing secret)
        return self.random.random()

    def scope_at(self, path: str) -> Scope:
        scopes = self._scopes
        if scopes is None:
            scopes = self._scopes = {}
        scope = scopes.get(path)
        if scope is None:
            if self.root is None:
                self.unheard = False
                self.root = Scope(ledger=self.shared.ledger, clock=self.setup.clock, retries=PLENTY)
                self.root.steps[0] = int(self.shared.ledger.used.get("model_calls", 0))
            scope = scopes[path] = self.root.child(path)
        return scope

    def specs(self, node: Node) -> tuple[ToolSpec, ...]:
        return self._tools_of(node).specs()

    async def call_tools(
        self, config: NodeConfig, state: GraphState, calls: Sequence[ToolCall]
    ) -> list[ToolResult]:
        port, scope = self._tools_of(config.node), config.scope
        return await call_tools(scope, calls, lambda call: self._call_tool(scope, port, state, call))

    async def _call_tool(self, scope: Scope, port: ToolPort, state: GraphState, call: ToolCall) -> ToolResult:
        hooks = self.setup.kit.hooks
        try:
            wanted = await hooks.before_tool(call, state) if hooks.pre_tool else call
        except ToolError as error:
            return failed(call, error)
        if any(spec.name == wanted.name for spec in port.specs()):  # what nobody has is not called
            self.tool_calls.append(wanted.name)
        result = await call_tool(scope, port, wanted)
        if hooks.post_tool:
            result = await hooks.after_tool(wanted, result, state)
        # whatever hooks made of them: the result belongs to the call that the model made
        return result if result.call_id == call.id else replace(result, call_id=call.id)

    def _tools_of(self, node: Node) -> ToolPort:
        toolsets = self._toolsets
        if toolsets is None:
            toolsets = self._toolsets = {}
        tools = toolsets.get(id(node))
        if tools is None:
            tools = toolsets[id(node)] = tools_of(cast(BaseNode, node), self.tools)
        return tools
