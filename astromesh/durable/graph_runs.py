"""Runs of graphs that a program starts and keeps in a store: begun, resumed, replayed and forked.

It is the journal of durable runs over a `GraphStore`, without a server: whoever calls the engine executes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, ClassVar, Protocol, Self, TypeAlias

from msgspec import convert
from msgspec.structs import replace
from pydantic import BaseModel

from astromesh.durable.approvals import ApprovalWaits, check_decision, decided_step, question_id
from astromesh.durable.base import (
    GraphRunRow,
    JournalStep,
    RunChange,
    RunRow,
    RunStatus,
    SegmentClaim,
)
from astromesh.durable.journal import RunJournal
from astromesh.durable.replay import NoReplays, ReplayJournal
from astromesh.durable.serialization import step_of, step_values, text_of, value_of
from astromesh.durable.step_log import StepLog
from astromesh.durable.writer import SegmentWriter
from astromesh.errors import ApprovalNotFound, Conflict, Divergence, InvalidInput, LeaseLost, RunNotFound
from astromesh.graph.node_json import NotRecordable, to_json
from astromesh.graph.records import Checkpoint, Interrupt
from astromesh.plugins import Deps
from astromesh.storage.queries import NoOptions, SqlStore, Transaction
from astromesh.telemetry.clock import Clock
from astromesh.types import Event, JsonObject, Usage


class GraphRuns:
    """The runs of one store.

    Args:
        store: Its rows and steps.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions

    def __init__(self, store: GraphStore, clock: Clock) -> None:
        self.store, self._clock = store, clock

    async def begin(
        self,
        graph: str,
        run_id: str,
        request: JsonObject,
        *,
        forked_from: tuple[str, int] = ("", 0),
        steps: Sequence[JournalStep] = (),
    ) -> OpenGraphRun:
        """Stores a new run, which the caller executes.

        Args:
            forked_from: The run and step that it continues, with the steps that it has of it.

        Raises:
            Conflict: There is a run of this id.
        """
        row = GraphRunRow(run_id, graph, "running", 1, self._clock.now(), 0.0, *forked_from, request)
        await self.store.add(row, steps)
        return OpenGraphRun(self.store, self._clock, row, steps)

    async def resume(self, run_id: str, answers: Mapping[str, Any]) -> OpenGraphRun:
        """Takes over a run that waits, or whose process has died, with answers by the ids of its questions.

        Raises:
            RunNotFound, ApprovalNotFound: There is no such run, or no such question.
            Conflict: The run has ended. InvalidInput: An answer does not fit its question.
        """
        if not isinstance(answers, Mapping):
            raise InvalidInput("The answers must be a mapping from the ids of questions to values.")
        claimed = await self.store.claim(run_id, partial(self._decided, run_id, answers))
        if claimed is None:
            status = (await self.row(run_id)).status
            raise Conflict(f"The run {run_id!r} has ended: it is {status}. `fork` continues from a step.")
        return OpenGraphRun(self.store, self._clock, *claimed)

    def _decided(
        self, run_id: str, answers: Mapping[str, Any], steps: Sequence[JournalStep]
    ) -> list[JournalStep]:
        """Returns the questions that are answered, with their decisions.

        Who answers together with others sees what they have decided, and no question is decided twice.
        """
        open_ones = {
            question_id(step.path, step.n): step
            for step in steps
            if step.kind == "wait" and step.state == "intent"
        }
        decided: list[JournalStep] = []
        for key, value in answers.items():
            if key not in open_ones:
                names = ", ".join(open_ones) or "none"
                raise ApprovalNotFound(f"The run {run_id!r} has no question {key!r}. Open: {names}.")
            step, now = open_ones[key], self._clock.now()
            question = step.output or {}
            answer = _decision_of(question, value)
            if question.get("expires_at", inf) <= now:  # too late: nobody has answered in time
                answer = {"decision": "expired"}
            decision = {**answer, "by": "", "decided_at": now}
            decided.append(decided_step(step, decision, [*steps, *decided]))
        return decided

    async def row(self, run_id: str) -> GraphRunRow:
        """Raises: RunNotFound: there is no such run."""
        row = await self.store.get(run_id)
        if row is None:
            raise RunNotFound(f"There is no run {run_id!r} in this store.")
        return row

    async def questions(self, run_id: str) -> list[Interrupt]:
        """Returns what a run waits for. Raises: RunNotFound."""
        row = await self.row(run_id)
        if row.status != "waiting":
            return []
        steps = await self.store.steps(run_id)
        return [
            interrupt_of(s.output) for s in steps if s.kind == "wait" and s.state == "intent" and s.output
        ]

    async def history(self, run_id: str) -> list[Checkpoint]:
        """Returns the finished nodes of a run, in order. Raises: RunNotFound."""
        await self.row(run_id)
        return [checkpoint_of(step) for step in finished_nodes(await self.store.steps(run_id))]

    async def replay(self, run_id: str, step: int) -> tuple[JsonObject, JournalStep | None, ReplayJournal]:
        """Returns the request of a run, its newest node at a step, and a journal that leads there.

        Raises:
            RunNotFound: There is no such run. InvalidInput: It has no such step.
        """
        row = await self.row(run_id)
        steps = steps_until(await self.store.steps(run_id), step)
        return row.request, node_at(steps, step), ReplayJournal(run_id, steps)

    async def fork(
        self,
        run_id: str,
        step: int,
        new_id: str,
        *,
        request: JsonObject,
        edit: tuple[JsonObject, Sequence[str]] | None = None,
    ) -> OpenGraphRun:
        """Stores a new run that has the steps of another one up to a step.

        Args:
            request: That of the new run.
            edit: Writes after the step, and the edge that follows.

        Raises:
            RunNotFound, InvalidInput, Conflict: As above.
        """
        row = await self.row(run_id)
        steps = steps_until(await self.store.steps(run_id), step)
        if edit is not None:
            steps = [edited(one, *edit) if one.ordinal == step else one for one in steps]
        return await self.begin(row.graph, new_id, request, forked_from=(run_id, step), steps=steps)

    async def delete(self, run_id: str) -> bool:
        return await self.store.delete(run_id)

    async def cached(self, key: str) -> str | None:
        return await self.store.cached(key)

    async def store_cached(self, key: str, value: str, seconds: float) -> None:
        await self.store.store_cached(key, value, seconds)

    async def close(self) -> None:
        await self.store.close()


class OpenGraphRun:
    """A run that this process executes.

    Args:
        steps: Those of its record.

    Attributes:
        is_waiting: It waits for answers, and its task was cancelled for that.
        is_lost: Somebody else has continued it, and its task was cancelled for that.
    """

    def __init__(
        self, store: GraphStore, clock: Clock, row: GraphRunRow, steps: Sequence[JournalStep]
    ) -> None:
        self.run_id, self.request = row.run_id, row.request
        self.is_waiting = self.is_lost = False
        self._store, self._clock = store, clock
        self._claim = SegmentClaim(row.run_id, row.segment, "")
        self._waits = ApprovalWaits(clock, self._pause)
        self._writer = SegmentWriter(store, self._claim, self._lost, lambda events: None)  # type: ignore[arg-type]
        self._log = StepLog(row.run_id, row.graph, self._writer, self._waits, steps)
        self.journal = RunJournal(self._log, "", row.run_id, NoReplays())
        self._cancel: Callable[[], object] = lambda: None

    @property
    def failure(self) -> Divergence | None:
        """How the run differs from its record, if it does."""
        return self._log.failure

    def start(self, cancel: Callable[[], object]) -> None:
        """Notes how the execution is ended if the run waits, or is taken over."""
        self._cancel = cancel

    async def wait(self) -> list[Interrupt]:
        """Stores the questions, and that the run waits for their answers. Returns them."""
        questions = [question for _, question in self._waits.pending]
        for step, question in self._waits.pending:
            self._log.add(step._replace(output=question))
        await self._end("waiting")
        return list(map(interrupt_of, questions))

    async def end(self, status: RunStatus) -> None:
        """Stores that the run has ended."""
        await self._end(status)

    async def leave(self) -> None:
        """Stores what was done. The run may be resumed."""
        await self._flush()
        self._close()

    async def _end(self, status: RunStatus) -> None:
        await self._flush()
        await self._store.end(self._claim, status, 0.0 if status == "waiting" else self._clock.now())
        self._close()

    async def _flush(self) -> None:
        flushed = asyncio.ensure_future(self._writer.flush())
        while not flushed.done() and not self.is_lost:
            await asyncio.wait([flushed], timeout=0.05)
        flushed.cancel()

    def _close(self) -> None:
        self._writer.close()
        self._waits.close()

    def _pause(self) -> None:
        self.is_waiting = self._log.suspended = True
        self._cancel()

    def _lost(self) -> None:
        self.is_lost = self._log.suspended = True
        self._cancel()


def interrupt_of(question: JsonObject) -> Interrupt:
    """Returns a question as callers see it."""
    return Interrupt(
        question_id(question["path"], question["n"]),
        question["kind"],
        question["name"],
        question["arguments"],
        question["question"],
        question["expires_at"],
    )


def _decision_of(question: JsonObject, value: Any) -> JsonObject:
    """Returns the answer of a program as a decision: of an interrupt, any value.

    Raises:
        InvalidInput: The question does not allow it, or it is not JSON.
    """
    try:
        value = to_json(value, "The answer")
    except NotRecordable as error:
        raise InvalidInput(str(error)) from error
    if question.get("kind") == "interrupt":
        return {"decision": "answer", "answer": value}
    if isinstance(value, Mapping) and value.get("decision") in ("approve", "deny", "answer"):
        decision = dict(value)
    elif isinstance(value, bool):
        decision = {"decision": "approve" if value else "deny"}
    elif value in ("approve", "deny"):
        decision = {"decision": value}
    else:
        decision = {"decision": "answer", "answer": value}
    if unknown := decision.keys() - {"decision", "answer", "arguments"}:
        raise InvalidInput(f"A decision has no {sorted(unknown)[0]!r}. Known: decision, answer, arguments.")
    check_decision(question, decision)
    return decision


class MemoryGraphRuns(GraphRuns):
    """Runs in the memory of the program."""

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        return cls(await MemoryGraphs.open(options, deps), deps.clock)


# -- the history of a record -------------------------------------------------------------------------------


# steps that are done are numbered in the order in which they ended: what a step has used has a smaller one


def finished_nodes(steps: Iterable[JournalStep]) -> list[JournalStep]:
    """Returns the steps of finished nodes, in order."""
    found = [
        s for s in steps if s.kind == "node" and s.state == "done" and s.ordinal and s.output is not None
    ]
    return sorted(found, key=lambda step: step.ordinal)


def checkpoint_of(step: JournalStep) -> Checkpoint:
    """Returns a finished node as callers see it."""
    record = step.output or {}
    result, edge = record["result"], record.get("edge")
    return Checkpoint(
        step.ordinal,
        record["node"],
        edge[0] if edge else "",
        result.get("output"),
        result.get("error", ""),
        result.get("duration_ms", 0.0),
        convert(result["usage"], Usage) if "usage" in result else Usage(),
        step.started_at + step.duration_ms / 1000,
    )


def steps_until(steps: Sequence[JournalStep], number: int) -> list[JournalStep]:
    """Returns the record of a run as it was when a step was done. 0: an empty one.

    Raises:
        InvalidInput: There is no such step.
    """
    numbers = {step.ordinal for step in steps if step.ordinal}
    if number != 0 and number not in numbers:
        known = f"It has steps 1 to {max(numbers)}." if numbers else "It has none yet."
        raise InvalidInput(f"The run has no step {number}. {known}")
    return [step for step in steps if 0 < step.ordinal <= number]


def node_at(steps: Iterable[JournalStep], number: int) -> JournalStep | None:
    """Returns the newest node that had finished at a step. None: none had."""
    return next((step for step in reversed(finished_nodes(steps)) if step.ordinal <= number), None)


def edited(step: JournalStep, edit: JsonObject, edge: Sequence[str]) -> JournalStep:
    """Returns a finished node whose state is changed after it, and which leads on from there.

    Args:
        edit: Writes, in the form of `node_json.Snapshot.writes`.
        edge: The next node, and the rule that chose it.
    """
    return step._replace(output={**(step.output or {}), "edit": edit, "edge": list(edge)})


#: Returns the steps that a new segment of a run changes, from those that it has.
DecideSteps: TypeAlias = Callable[[Sequence[JournalStep]], Sequence[JournalStep]]


def no_decisions(_steps: Sequence[JournalStep]) -> Sequence[JournalStep]:
    return ()


class GraphStore(Protocol):
    """Runs of graphs that programs start, their journals, and results of nodes across runs.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def add(self, run: GraphRunRow, steps: Sequence[JournalStep] = ()) -> None:
        """Stores a new run. Raises: Conflict: there is one of this id."""

    async def get(self, run_id: str) -> GraphRunRow | None: ...

    async def claim(
        self, run_id: str, decide: DecideSteps = no_decisions
    ) -> tuple[GraphRunRow, tuple[JournalStep, ...]] | None:
        """Begins the next segment of a run. Returns it with its steps. None: it has ended.

        Args:
            decide: Returns the steps that the segment adds to or changes in those of the run. The run stays
                as it was if this raises. It may be called more than once.
        """

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        """Writes steps and nothing else. Raises: LeaseLost: the run is in another segment, or not running."""

    async def end(self, claim: SegmentClaim, status: RunStatus, finished_at: float) -> None:
        """Ends a segment: the run waits, or has ended. Raises: LeaseLost, as `commit`."""

    async def steps(self, run_id: str) -> tuple[JournalStep, ...]:
        """Returns the steps of a run by their numbers."""

    async def delete(self, run_id: str) -> bool:
        """Deletes a run with its steps. Returns whether there was one."""

    async def cached(self, key: str) -> str | None:
        """Returns a stored result of a node, unless its time is over."""

    async def store_cached(self, key: str, value: str, seconds: float) -> None: ...

    async def close(self) -> None: ...


#: the results of nodes that the store in memory keeps; more push the oldest ones out
MAX_CACHED = 10_000


class SqlGraphs(SqlStore):
    """A GraphStore over one database. The queries are in `sql/graphs.sql`.

    A run is a row, and its journal the steps beside it. A segment number is the fencing token: whoever
    continues a run takes the next one, and the writes of earlier segments are refused.
    """

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "graphs"

    async def add(self, run: GraphRunRow, steps: Sequence[JournalStep] = ()) -> None:
        async def add(tx: Transaction) -> None:
            if not await tx.execute("add", *_values_of(run)):
                raise _exists(run.run_id)
            await tx.execute_many("store_step", [step_values(run.run_id, step) for step in steps])

        await self._queries.transact(add, synced=True)

    async def get(self, run_id: str) -> GraphRunRow | None:
        rows = await self._queries.read("get", run_id)
        return _run_of(rows[0]) if rows else None

    async def claim(
        self, run_id: str, decide: DecideSteps = no_decisions
    ) -> tuple[GraphRunRow, tuple[JournalStep, ...]] | None:
        async def claim(tx: Transaction) -> tuple[GraphRunRow, tuple[JournalStep, ...]] | None:
            rows = await tx.fetch("claim", run_id)
            if not rows:
                return None
            steps = tuple(map(step_of, await tx.fetch("steps", run_id)))
            if decided := decide(steps):
                await tx.execute_many("store_step", [step_values(run_id, step) for step in decided])
                steps = tuple(map(step_of, await tx.fetch("steps", run_id)))
            return _run_of(rows[0]), steps

        return await self._queries.transact(claim, synced=True)

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        async def commit(tx: Transaction) -> bool:
            if not await tx.execute("hold", claim.run_id, claim.segment):
                return False
            await tx.execute_many("store_step", [step_values(claim.run_id, step) for step in steps])
            return True

        if not await self._queries.transact(commit):
            raise _lost(claim)

    async def end(self, claim: SegmentClaim, status: str, finished_at: float) -> None:
        async def end(tx: Transaction) -> bool:
            return bool(await tx.execute("end", claim.run_id, claim.segment, status, finished_at))

        if not await self._queries.transact(end, synced=True):
            raise _lost(claim)

    async def steps(self, run_id: str) -> tuple[JournalStep, ...]:
        return tuple(map(step_of, await self._queries.read("steps", run_id)))

    async def delete(self, run_id: str) -> bool:
        async def delete(tx: Transaction) -> bool:
            await tx.execute("delete_steps", run_id)
            return bool(await tx.execute("delete", run_id))

        return await self._queries.transact(delete, synced=True)

    async def cached(self, key: str) -> str | None:
        rows = await self._queries.read("cached", key, self._clock.now())
        return rows[0][0] if rows else None

    async def store_cached(self, key: str, value: str, seconds: float) -> None:
        async def store(tx: Transaction) -> None:
            await tx.execute("expire_cached", self._clock.now())
            await tx.execute("store_cached", key, value, self._clock.now() + seconds)

        await self._queries.transact(store)


class MemoryGraphs:
    """A GraphStore in the memory of the program."""

    Options: ClassVar[type[BaseModel]] = NoOptions

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runs: dict[str, GraphRunRow] = {}
        self._steps: dict[str, dict[tuple[str, int], JournalStep]] = {}
        self._cached: dict[str, tuple[str, float]] = {}

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        return cls(deps.clock)

    async def add(self, run: GraphRunRow, steps: Sequence[JournalStep] = ()) -> None:
        if run.run_id in self._runs:
            raise _exists(run.run_id)
        self._runs[run.run_id] = _run_of(_values_of(run))
        self._store(run.run_id, steps)

    async def get(self, run_id: str) -> GraphRunRow | None:
        return self._runs.get(run_id)

    async def claim(
        self, run_id: str, decide: DecideSteps = no_decisions
    ) -> tuple[GraphRunRow, tuple[JournalStep, ...]] | None:
        run = self._runs.get(run_id)
        if run is None or run.status not in ("running", "waiting"):
            return None
        self._store(run_id, decide(await self.steps(run_id)))
        claimed = self._runs[run_id] = replace(run, segment=run.segment + 1, status="running")
        return claimed, await self.steps(run_id)

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        self._held(claim)
        self._store(claim.run_id, steps)

    async def end(self, claim: SegmentClaim, status: Any, finished_at: float) -> None:
        self._runs[claim.run_id] = replace(self._held(claim), status=status, finished_at=finished_at)

    async def steps(self, run_id: str) -> tuple[JournalStep, ...]:
        found = self._steps.get(run_id, {}).values()
        return tuple(sorted(found, key=lambda step: (step.ordinal, step.path, step.n)))

    async def delete(self, run_id: str) -> bool:
        self._steps.pop(run_id, None)
        return self._runs.pop(run_id, None) is not None

    async def cached(self, key: str) -> str | None:
        value, expires_at = self._cached.get(key, ("", 0.0))
        return value if expires_at > self._clock.now() else None

    async def store_cached(self, key: str, value: str, seconds: float) -> None:
        self._cached.pop(key, None)
        self._cached[key] = (value, self._clock.now() + seconds)
        while len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]

    async def close(self) -> None:
        """Keeps everything: it lives as long as the program."""

    def _held(self, claim: SegmentClaim) -> GraphRunRow:
        run = self._runs.get(claim.run_id)
        if run is None or run.segment != claim.segment or run.status != "running":
            raise _lost(claim)
        return run

    def _store(self, run_id: str, steps: Iterable[JournalStep]) -> None:
        stored = self._steps.setdefault(run_id, {})
        for step in steps:  # as the other stores return it: JSON, which nobody else holds
            stored[step.path, step.n] = step._replace(output=value_of(text_of(step.output)))


def _values_of(run: GraphRunRow) -> tuple[object, ...]:
    return (
        run.run_id, run.graph, run.status, run.segment, run.created_at, run.finished_at, run.forked_from,
        run.forked_at, text_of(run.request),
    )  # fmt: skip


def _run_of(row: Iterable[Any]) -> GraphRunRow:
    run_id, graph, status, segment, created_at, finished_at, forked_from, forked_at, request = row
    return GraphRunRow(
        run_id, graph, status, segment, created_at, finished_at, forked_from, forked_at, value_of(request)
    )


def _exists(run_id: str) -> Conflict:
    return Conflict(f"There is already a run {run_id!r}. Choose another `run_id`, or resume this one.")


def _lost(claim: SegmentClaim) -> LeaseLost:
    return LeaseLost(f"The run {claim.run_id!r} was resumed elsewhere, was deleted, or has ended.")
