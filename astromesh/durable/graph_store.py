"""The stores of graph runs that a program starts: in memory, SQLite and PostgreSQL.

A run is a row, and its journal the steps beside it. A segment number is the fencing token: whoever continues
a run takes the next one, and the writes of earlier segments are refused. Queries are in `sql/graphs.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from msgspec.structs import replace
from pydantic import BaseModel

from astromesh.durable.base import (
    DecideSteps,
    GraphRunRow,
    JournalStep,
    RunChange,
    RunRow,
    SegmentClaim,
    no_decisions,
)
from astromesh.durable.rows import step_of, step_values, text_of, value_of
from astromesh.errors import Conflict, LeaseLost
from astromesh.plugins import Deps
from astromesh.storage.queries import NoOptions, SqlStore, Transaction
from astromesh.telemetry.clock import Clock
from astromesh.types import Event

#: the results of nodes that the store in memory keeps; more push the oldest ones out
MAX_CACHED = 10_000


class SqlGraphs(SqlStore):
    """A GraphStore over one database."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "graphs"

    async def add(self, run: GraphRunRow, steps: Sequence[JournalStep] = ()) -> None:
        async def add(tx: Transaction) -> None:
            if not await tx.execute("add", *_values(run)):
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
        self._runs[run.run_id] = _run_of(_values(run))
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


def _values(run: GraphRunRow) -> tuple[object, ...]:
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
