"""Runs that an engine keeps in a store: their start, their waits, and the way back to a step.

`GraphRuns` and `OpenRun` are what the engine needs of a store. The implementation is
`astromesh.durable.graph_runs`, which the engine opens by the name in `store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import orjson
from msgspec import convert, to_builtins
from msgspec.structs import astuple, replace

from astromesh.durable.base import GraphRunRow, JournalStep, RunStatus
from astromesh.errors import Divergence, GraphError, InvalidInput
from astromesh.graph.node_json import NotRecordable, Snapshot, context_to_json, to_json
from astromesh.graph.node_record import NodeRecorder, RecordedVisit
from astromesh.graph.plan import Plan, Step
from astromesh.graph.records import TOOL_CALLS_PRESENT, Checkpoint, Interrupt, NodeResult
from astromesh.graph.run import Run
from astromesh.graph.scope import Journal
from astromesh.graph.state import RESERVED_KEYS, GraphState
from astromesh.graph.transitions import BRANCHING, next_transition
from astromesh.graph.typed_state import StateSchema
from astromesh.types import CallerContext, JsonObject, Message


class OpenRun(Protocol):
    """A stored run that this process executes."""

    run_id: str
    request: JsonObject
    is_waiting: bool
    is_lost: bool

    @property
    def journal(self) -> Journal: ...

    @property
    def failure(self) -> Divergence | None: ...

    def start(self, cancel: Callable[[], object]) -> None:
        """Notes how the execution is ended if the run waits, or is taken over."""

    async def wait(self) -> list[Interrupt]:
        """Stores that the run waits. Returns its questions."""

    async def end(self, status: RunStatus) -> None:
        """Stores that the run has ended."""

    async def leave(self) -> None:
        """Stores what was done. The run may be resumed."""


class ReplayedJournal(Journal, Protocol):
    """A journal that leads to a step and makes no call."""

    has_stopped: asyncio.Event
    stopped_at: list[str]


class GraphRuns(Protocol):
    """The runs in a store."""

    async def begin(self, graph: str, run_id: str, request: JsonObject) -> OpenRun: ...

    async def resume(self, run_id: str, answers: Mapping[str, Any]) -> OpenRun: ...

    async def row(self, run_id: str) -> GraphRunRow: ...

    async def questions(self, run_id: str) -> list[Interrupt]: ...

    async def history(self, run_id: str) -> list[Checkpoint]: ...

    async def replay(self, run_id: str, step: int) -> tuple[JsonObject, JournalStep | None, Any]: ...

    async def fork(
        self,
        run_id: str,
        step: int,
        new_id: str,
        *,
        request: JsonObject,
        edit: tuple[JsonObject, Sequence[str]] | None = None,
    ) -> OpenRun: ...

    async def delete(self, run_id: str) -> bool: ...

    async def cached(self, key: str) -> str | None: ...

    async def store_cached(self, key: str, value: str, seconds: float) -> None: ...

    async def close(self) -> None: ...


class RunsStore(Protocol):
    """The store of an engine. `engine_plugins.EngineStore` is one."""

    def opened(self) -> AbstractAsyncContextManager[GraphRuns]:
        """Opens the store unless it is open."""


# -- what a run begins with ----------------------------------------------------------------------------------


def request_of(messages: Sequence[Message], context: Mapping[str, Any]) -> JsonObject:
    """Returns what a run begins with, as JSON.

    Raises:
        InvalidInput: A value of the context has no JSON form.
    """
    try:
        values: JsonObject = orjson.loads(orjson.dumps(context_to_json(context)))
        return {"messages": to_builtins(list(messages)), "context": values}
    except NotRecordable as error:
        raise InvalidInput(str(error)) from error


def with_call(
    request: JsonObject, config: Mapping[str, Any] | None, caller: CallerContext | None
) -> JsonObject:
    """Returns what a run begins with, and how it is called: without a token, and without what is not JSON."""
    found = {**request, "config": {**request.get("config", {}), **_json_values(config or {})}}
    if caller is not None:
        had_token = caller.had_token or bool(caller.bearer_token)
        stored = replace(caller, bearer_token="", had_token=had_token, metadata=_json_values(caller.metadata))
        found["caller"] = to_builtins(stored)
    return found


def config_of(request: JsonObject, config: Mapping[str, Any] | None) -> JsonObject:
    """Returns the `config` of a stored run. What is passed now replaces what was stored."""
    return {**request.get("config", {}), **(config or {})}


def caller_of(request: JsonObject, caller: CallerContext | None) -> CallerContext | None:
    """Returns who has called a stored run, or who calls it now."""
    if caller is None and "caller" in request:
        return convert(request["caller"], CallerContext)
    return caller


def _json_values(values: Mapping[str, Any]) -> JsonObject:
    """Returns the values that are the same after a way through JSON."""
    found = {}
    for key, value in values.items():
        try:
            stored = to_json(value, key)
        except NotRecordable:
            continue
        if type(stored) is type(value) and stored == value:
            found[key] = stored
    return found


def start_of(request: JsonObject, schema: StateSchema | None) -> tuple[list[Message], dict[str, Any]]:
    """Returns the messages and the context that a stored run begins with, its fields in their types."""
    context = dict(request["context"])
    if schema is not None:
        fields = {key: value for key, value in context.items() if key in schema.fields}
        context.update(schema.initial(fields, is_record=True))
    return convert(request["messages"], list[Message]), context


def with_update(request: JsonObject, update: Mapping[str, Any], schema: StateSchema | None) -> JsonObject:
    """Returns the start of a run with an update of its state."""
    messages, context = start_of(request, schema)
    state = GraphState(messages, context)
    write_update(state, update, schema)
    return {**request, **request_of(messages, state.context)}


def write_update(state: GraphState, update: Mapping[str, Any], schema: StateSchema | None) -> None:
    """Writes an update: to the fields of a typed state, else to the context.

    Raises:
        InvalidInput: It does not fit the state.
    """
    if schema is None:
        state.context.update(update)
        return
    try:
        schema.update(state, dict(update))
    except GraphError as error:
        raise InvalidInput(str(error)) from error


# -- replays -------------------------------------------------------------------------------------------------


#: Seconds without progress after which a replay that has stopped somewhere does not come to its step.
_IDLE_SECONDS = 2.0


class Replayed(NamedTuple):
    """A run as it was after a node.

    Args:
        context, messages: Copies.
        next: The node that follows.
        edit: What an update has written, and the edge after it, or None.
    """

    context: dict[str, Any]
    messages: list[Message]
    next: str
    edit: tuple[JsonObject, Sequence[str]] | None


class Replay:
    """Leads a run along its record to a node, and looks at the state there.

    Args:
        target: The step of the node.
        update: Is written to the state after it.
    """

    def __init__(self, target: JournalStep, update: Mapping[str, Any] | None, schema: StateSchema | None):
        self._target, self._update, self._schema = target, update, schema
        self._found: asyncio.Future[Replayed] = asyncio.get_running_loop().create_future()

    async def run(self, run: Run, journal: ReplayedJournal) -> Replayed:
        """Returns the state after the node.

        Raises:
            NondeterministicGraph: The graph was changed.
            InvalidInput: The step is inside a function that had not ended, or the update does not fit.
        """
        run.recorder = NodeRecorder(journal, passed=self._look)
        task = asyncio.ensure_future(run.execute())
        path = (self._target.output or {})["node"]
        while not self._found.done() and not task.done():
            journal.has_stopped.clear()
            stopped = asyncio.ensure_future(journal.has_stopped.wait())
            awaited: set[asyncio.Future[Any]] = {task, self._found, stopped}
            patience = _IDLE_SECONDS if journal.stopped_at else None
            done, _ = await asyncio.wait(awaited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not done or any(path.startswith(f"{at}/") for at in journal.stopped_at):
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._found.done():
            return self._found.result()
        if run.result is not None and run.result.report.stop_reason == "nondeterministic_graph":
            raise InvalidInput(run.result.report.error)
        raise InvalidInput(
            f"The run does not come to step {self._target.ordinal} again: it is inside a function that had "
            "not ended there, or the graph was changed. Choose another step."
        )

    def _look(
        self, visit: RecordedVisit, plan: Plan | None, step: Step, result: NodeResult, state: GraphState
    ) -> None:
        if visit.entry.ordinal != self._target.ordinal or self._found.done():
            return
        try:
            self._found.set_result(self._at(visit, plan, step, result, state))
        except InvalidInput as error:
            self._found.set_exception(error)
        except NotRecordable as error:
            self._found.set_exception(InvalidInput(str(error)))

    def _at(
        self, visit: RecordedVisit, plan: Plan | None, step: Step, result: NodeResult, state: GraphState
    ) -> Replayed:
        record = visit.entry.record or {}
        edge = record["edge"]
        edit = None
        if self._update is not None:
            before = Snapshot(state)
            write_update(state, self._update, self._schema)
            if edge and plan is not None and edge[1] not in (*BRANCHING, TOOL_CALLS_PRESENT):
                edge = astuple(next_transition(step, result, state))
            edit = (
                merged_writes(record.get("edit", {}), before.writes(state)),
                list(edge or ("", "")),
            )
        context = {key: value for key, value in state.context.items() if key not in RESERVED_KEYS}
        return Replayed(deepcopy(context), list(state.messages), edge[0] if edge else "", edit)


def merged_writes(earlier: JsonObject, later: JsonObject) -> JsonObject:
    """Returns the writes of two edits of one step, as JSON."""
    later = orjson.loads(orjson.dumps(later))
    updates = dict(earlier.get("updates", {}))
    for key, values in later.get("updates", {}).items():
        updates[key] = [*updates.get(key, ()), *values]
    return {"context": {**earlier.get("context", {}), **later.get("context", {})}, "updates": updates}
