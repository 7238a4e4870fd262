"""The record of a finished node in the journal of a durable run, and how a resumed run takes it as done.

A record is JSON:

    node     its path
    result   the fields of its NodeResult that have no default
    writes   what the node itself wrote to the state: values of the context, what was added to lists, and
             fields of the notes of a pattern
    edge     the next node and the rule that chose it, or None if the run was stopped
    stop     the reason and the error with which the node stopped the run, or None
    calls    the visits of children, model calls, tool calls, questions and nested runs in it (by the journal)
    missing  why the record of a plain run lacks result and writes: a value has no JSON form
    dropped  of a visit that a join has cancelled, instead of result, writes, edge and calls: its calls
    edit     what a fork has written to the state after it; then, and where a fork has edited the result,
             there is no edge: the run decides where it leads

What the engine writes after a node (`output_key`, messages) follows from the result, so the loop writes it
again. `node_json` says what JSON can carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

from msgspec.structs import astuple

from astromesh.errors import BranchDropped, NondeterministicGraph
from astromesh.graph.call_record import known_contents
from astromesh.graph.calls import call_tool, call_tools
from astromesh.graph.node_json import (
    NO_CONTENTS,
    NotRecordable,
    Snapshot,
    apply_writes,
    exception_of,
    result_of,
    result_to_json,
)
from astromesh.graph.plan import Plan, Step
from astromesh.graph.records import END, ERROR_NODE, NO_USAGE, TOOL_CALLS_PRESENT, NodeResult, is_json_of
from astromesh.graph.scope import Journal, JournaledNode, NodeEffect, Scope
from astromesh.graph.state import (
    GraphState,
    NodeLimits,
)
from astromesh.graph.topology import targets
from astromesh.graph.transitions import END_TRANSITION, Transition
from astromesh.tools.base import ToolPort
from astromesh.types import JsonObject, Message, ToolCall

_DEFAULT_RESULT = NodeResult()

# -- recording and resuming ----------------------------------------------------------------------------------


class RepeatedRun(Protocol):
    """The members of a run that a repeated visit writes to. `run.Run` has them."""

    counts: dict[str, int]
    visited: list[str]
    tool_calls: list[str]
    nested_text: str
    tools: ToolPort
    emit: Callable[..., None] | None

    def scope_at(self, path: str) -> Scope: ...

    def note_repeated(self, path: str, result: NodeResult, mutations: Iterable[Sequence[Any]]) -> None:
        """Adds guards, graph actions and the failure of a repeated visit to the report."""


class RecordedVisit:
    """One visit of a node, from its beginning to its record."""

    __slots__ = ("before", "entry", "has_own_limits", "limits", "notes", "path", "record", "stopped")

    def __init__(
        self, path: str, entry: JournaledNode, state: GraphState, limits: NodeLimits, notes: Any = None
    ) -> None:
        self.path, self.entry, self.limits, self.notes = path, entry, limits, notes
        self.has_own_limits = False
        self.before = None if entry.record is not None else Snapshot(state, notes)
        self.stopped = state.shared.stop_reason is not None
        self.record: JsonObject = {}

    @property
    def is_repeated(self) -> bool:
        """Whether the visit ended in an earlier process, and is taken as done."""
        return self.entry.record is not None

    @property
    def is_decided(self) -> bool:
        """Whether the record says where the run went from here. An edit of a fork leaves that open."""
        return self.entry.record is not None and "edge" in self.entry.record


class NodeRecorder:
    """Records the finished nodes of one run of a graph, and takes recorded ones as done.

    Args:
        notes: A dataclass that the nodes of the graph itself change, beside the state. None if there is none.
        passed: Called after each visit that was taken as done, with its plan (None if it stopped the run),
            step, result and state. For runs that are replayed.
    """

    def __init__(
        self,
        journal: Journal,
        notes: Any = None,
        passed: Callable[[RecordedVisit, Plan | None, Step, NodeResult, GraphState], None] | None = None,
    ) -> None:
        self._journal, self._notes, self._passed = journal, notes, passed
        self._exceptions: dict[bytes, BaseException] = {}
        #: the limits that active visits count against, by path
        self._limits: dict[str, NodeLimits] = {}

    async def begin(
        self, state: GraphState, path: str, effect: NodeEffect, frame: str | None, limits: NodeLimits
    ) -> RecordedVisit:
        """Begins a visit.

        Args:
            limits: The limits that it counts against.
            frame: The path of the graph that the node is visited in. None for a child that runs alone.

        Raises:
            NondeterministicGraph: The run takes another path than the recorded one. It is stopped.
        """
        try:
            entry = await self._journal.visit(path, effect, frame)
        except NondeterministicGraph as error:
            state.stop("nondeterministic_graph", str(error))
            raise
        visit = RecordedVisit(path, entry, state, limits, None if frame else self._notes)
        around = self._limits.get(path.rpartition("/")[0].partition("#")[0])
        visit.has_own_limits = around is not None and around is not limits
        self._limits[path.partition("#")[0]] = limits
        return visit

    async def execute(
        self, run: RepeatedRun, visit: RecordedVisit, plan: Plan, step: Step, state: GraphState, config: Any
    ) -> NodeResult:
        """Returns the result of a visit: the recorded one, or that of the node.

        Raises:
            BranchDropped: A join has cancelled the visit.
        """
        entry = visit.entry
        if entry.dropped is not None:
            try:
                await self._repeat_calls(run, entry.dropped, state.node_history, visit.limits)
            finally:
                entry.leave()
            raise BranchDropped(f"A join has cancelled the branch at {visit.path!r}.")
        if entry.record is not None:
            return await self._repeat(run, visit, entry.record, plan, step, state)
        if entry.refusal is not None:
            result = step.fail(entry.refusal, state, config, 0.0)
        else:
            has_ended = False
            try:
                result = await step.call(state, config)
                has_ended = True
            finally:
                if not has_ended:
                    entry.leave()
        try:
            visit.record = self._described(visit, result, state, config)
        except NotRecordable as error:
            if not self._journal.is_durable:  # the recording of a plain run changes nothing in it
                visit.record = {"node": visit.path, "result": {}, "writes": {}, "missing": str(error)}
                return result
            result = step.fail(error, state, config, result.duration_ms)
            result.error = str(error)
            assert visit.before is not None
            visit.before.forget_unrecordable(state)
            visit.record = self._described(visit, result, state, config)
        return result

    def _described(
        self, visit: RecordedVisit, result: NodeResult, state: GraphState, config: Any
    ) -> JsonObject:
        assert visit.before is not None
        writes = visit.before.writes(state, visit.notes)
        same, _ = writes.get("lists", {}).get("messages", (len(state.messages), ()))
        data = result_to_json(result, state.messages[same:])
        if result.usage is not NO_USAGE and config.usage is NO_USAGE:
            data["charged"] = True
        return {"node": visit.path, "result": data, "writes": writes}

    async def finish(
        self,
        run: RepeatedRun,
        visit: RecordedVisit,
        step: Step,
        result: NodeResult,
        transition: Transition | None,
        state: GraphState,
    ) -> None:
        """Stores the record of a visit whose transition is chosen, unless it is stored."""
        shared = state.shared
        self._limits.pop(visit.path.partition("#")[0], None)
        if visit.is_repeated and self._passed is not None:
            self._passed(visit, None, step, result, state)
        if visit.is_repeated or shared.stop_reason == "nondeterministic_graph":
            return
        if not result.error and shared.stop_reason is None:
            self._journal.check_children(visit.path)
        record = visit.record
        data = record["result"]
        for key in (
            "error",
            "handled",
            "transition_reason",
            "error_type",
        ):  # the transition may have set them
            if (value := getattr(result, key)) != getattr(_DEFAULT_RESULT, key):
                data[key] = value
        if result.graph_mutations:
            data["mutations"] = [[m.op, dict(m.action), m.rejected] for m in result.graph_mutations]
        if visit.has_own_limits:
            record["own_limits"] = True
        if run.nested_text and type(result.output) is not str and is_json_of(run.nested_text, result.output):
            record["text"] = run.nested_text
        record["edge"] = None if transition is None else list(astuple(transition))
        if shared.stop_reason is not None and not visit.stopped:
            record["stop"] = [shared.stop_reason, shared.error]
        await visit.entry.finish(record)

    def drop(self, path: str) -> None:
        """Records that a branch ends at a node, whose visit is cancelled."""
        self._journal.drop(path)

    # -- a resumed run -------------------------------------------------------------------------------------

    async def _repeat(
        self,
        run: RepeatedRun,
        visit: RecordedVisit,
        record: JsonObject,
        plan: Plan,
        step: Step,
        state: GraphState,
    ) -> NodeResult:
        """Takes a visit as done: its calls are emitted and charged, its writes are repeated."""
        try:
            await self._repeat_calls(run, record["calls"], state.node_history, visit.limits)
        finally:
            visit.entry.leave()
        own = apply_writes(state, record["writes"], visit.notes, plan.restores)
        if step.schema is not None:
            step.schema.restore(state, record["writes"])
        contents = known_contents(state.messages)
        result = self._result(step.name, record["result"], own, step.node.output_schema, contents)
        if record["result"].get("charged"):
            state.ledger.add_usage(result.usage)
        run.nested_text = record.get("text", run.nested_text)
        if record.get("stop"):
            state.stop(*record["stop"])
        return result

    def write_edit(self, visit: RecordedVisit, plan: Plan, step: Step, state: GraphState) -> None:
        """Writes what a fork has changed in the state after a visit."""
        edit = (visit.entry.record or {}).get("edit")
        if edit is not None:
            apply_writes(state, edit, restores=plan.restores)
            if step.schema is not None:
                step.schema.restore(state, edit)

    def recorded_transition(
        self, visit: RecordedVisit, plan: Plan, step: Step, result: NodeResult, state: GraphState
    ) -> Transition:
        """Returns the transition of a visit that is taken as done.

        Raises:
            NondeterministicGraph: The graph does not lead there any more. The run is stopped.
        """
        record = visit.entry.record
        if self._passed is not None:
            self._passed(visit, plan, step, result, state)
        target, reason = (record and record["edge"]) or astuple(END_TRANSITION)
        name = visit.path if plan.graph is None else state.visited[-1]
        if target not in (END, name) and plan.graph is not None and not _may_lead(plan, name, target, reason):
            self._diverge(
                state,
                "The run cannot be resumed: its graph was changed. The recorded run went from "
                f"{visit.path!r} to {target!r}, and nothing leads there any more. Start the run again.",
            )
        return Transition(target, TOOL_CALLS_PRESENT if reason == TOOL_CALLS_PRESENT else reason)

    def _diverge(self, state: GraphState, message: str) -> NoReturn:
        state.stop("nondeterministic_graph", message)
        self._journal.diverge(message)

    def _result(
        self,
        name: str,
        data: JsonObject,
        own: Sequence[Message] = (),
        schema: Any = None,
        contents: Mapping[str, str] = NO_CONTENTS,
    ) -> NodeResult:
        result = result_of(name, data, own, schema, contents)
        if "exception" in data:
            result.exception = exception_of(data["exception"], self._exceptions)
        return result

    async def _repeat_calls(
        self,
        run: RepeatedRun,
        calls: Iterable[JsonObject],
        history: list[NodeResult],
        limits: NodeLimits | None,
    ) -> None:
        for call in calls:
            if call["kind"] == "node":
                await self._repeat_child(run, call, history, limits)
                continue
            scope = run.scope_at(call["at"])
            if call["kind"] == "tool" and call.get("done"):
                made = ToolCall(call["id"], call["name"], call["arguments"])
                await call_tools(scope, (made,), partial(call_tool, scope, run.tools))
                run.tool_calls.append(call["name"])
            else:
                self._journal.repeat(scope, call)

    async def _repeat_child(
        self, run: RepeatedRun, call: JsonObject, history: list[NodeResult], limits: NodeLimits | None
    ) -> None:
        """Counts and emits the visit of a child, with everything in it.

        Args:
            history: Receives the results of nodes at this level.
            limits: The limits that the child counts against, unless it has its own.
        """
        path = call["at"]
        record = self._journal.repeat(run.scope_at(path), call) or {}
        run.counts[path] = run.counts.get(path, 0) + 1
        run.visited.append(path)
        limits = None if record.get("own_limits") else limits
        if limits is not None:
            limits.used += 1
        if run.emit is not None:
            run.emit("node.started", node=path)
        if record:
            history = history if call["frame"] is None else []
            await self._repeat_calls(run, record["calls"], history, limits)
            result = self._result(path.rpartition("/")[2], record["result"])
            run.note_repeated(path, result, record["result"].get("mutations", ()))
            if not result.skipped:
                history.append(result)
        if run.emit is not None:
            run.emit("node.finished", node=path, duration_ms=0.0)


def _may_lead(plan: Plan, name: str, target: str, reason: str) -> bool:
    """Whether a graph may lead from a node to another one, by the rule that was recorded."""
    if target not in plan.steps and target not in plan.stops:
        return False
    assert plan.graph is not None
    return reason == "next_node" or target == ERROR_NODE or target in targets(plan.graph, name)
