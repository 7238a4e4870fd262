"""Nodes and graphs that run inside the nodes of a run: one, a whole graph, several together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from astromesh.errors import GraphStopped, NodeFailed
from astromesh.graph.config import Child, Graph, Node, OnError
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.loop import cause_of, harvest, traverse
from astromesh.graph.plan import Plan, compile_child
from astromesh.graph.progress import Progress
from astromesh.graph.records import LOCAL, NodeResult
from astromesh.graph.speech import Speech
from astromesh.graph.state import GraphState
from astromesh.node.runner import together

#: a child with one of these may run at the same time as others
_SAFE = BIT[NodeFlag.READONLY] | BIT[NodeFlag.PARALLEL_SAFE]


class Children(Progress):
    """The part of a run that nodes ask to run others (`config.Nesting`).

    `cut_off` are nested graphs that were stopped and have a finalizer, by path, with their newest states.
    """

    plan: Plan
    cut_off: Mapping[str, tuple[Plan, GraphState]] = MappingProxyType({})
    # made when they are first asked for: a run of plain functions needs none of them
    _active: set[str] | None = None
    _adhoc: dict[int, Plan] | None = None

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
            raise GraphStopped(f"{path} does not go on: the run is being stopped.")
        return last

    async def run_graph(self, graph: Graph, state: GraphState, path: str) -> NodeResult:
        frame, plan = state.frame(), self._plan_of(graph)
        path = self._claim(path + "/")
        try:
            _, stuck, reason = await traverse(self, plan, frame, path)
        except BaseException:
            self._cut(plan, frame, path)
            raise
        finally:
            self._release(path)
            plan = self.changed.pop(path, plan) if self.changed else plan
        if (self.shared.stop_reason or reason) != "completed":
            self._cut(plan, frame, path)
        if stuck:
            return NodeResult(graph.name, error=stuck, stop_reason=reason)
        unsure = plan.unsure if (self.shared.stop_reason or reason) != "completed" else ()
        output, error = harvest(frame.node_history, plan.steps, unsure)
        cause = cause_of(frame.node_history, plan.steps) if error else None
        return NodeResult(graph.name, output, error=error, exception=cause, stop_reason=LOCAL.get(reason, ""))

    def _cut(self, plan: Plan, frame: GraphState, path: str) -> None:
        if plan.finalizer:
            self.cut_off = {**self.cut_off, path: (plan, frame)}

    async def run_together(
        self, children: Sequence[Child], state: GraphState, path: str, on_error: OnError
    ) -> list[NodeResult]:
        safe: list[int] = []
        alone: list[list[int]] = []
        for i, child in enumerate(children):
            if self._plan_of(child.node).first.mask & _SAFE:
                safe.append(i)
            else:
                alone.append([i])
        results: dict[int, NodeResult] = {}
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
            raise NodeFailed(path, result.error, result.exception, result.stop_reason)
        return result

    def _claim(self, path: str) -> str:
        """The path, numbered where a child of the same path runs at the same time.

        Raises:
            GraphStopped: the run is being stopped.
        """
        if self.stopping:
            raise GraphStopped(f"{path} does not begin: the run is being stopped.")
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
        if self._adhoc is None:
            self._adhoc = {}
        plan = self._adhoc.get(id(unit)) or self.plan.nested.get(id(unit))
        if plan is None or plan.is_old:
            # one that was not declared may come anywhere
            unknown = Speech.SILENT if self.plan.guarded else Speech.INWARD
            ceiling = unknown if plan is None else plan.ceiling
            plan = self._adhoc[id(unit)] = compile_child(unit, self.kit, ceiling)
        return plan


def _fork(state: GraphState, child: Child) -> GraphState:
    fork = state.fork()
    fork.context.update(child.context)
    return fork


def _forget_own(fork: GraphState, child: Child) -> None:
    """What a child alone was given stays with it, unless it made something else of it."""
    for key, value in child.context.items():
        if fork.context.get(key) is value:
            del fork.context[key]
