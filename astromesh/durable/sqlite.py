"""The stores of runs, Tasks, budgets and the inbox in SQLite, and what is different there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import BaseModel

from astromesh.durable.base import NO_AGENT_LIMITS, RunRow, SegmentClaim
from astromesh.durable.budgets import SqlBudgets
from astromesh.durable.graph_runs import GraphRuns, SqlGraphs
from astromesh.durable.serialization import (
    CHANGE_COLUMNS,
    change_values,
    event_values,
    run_of,
    sqlite_run_values,
    step_values,
)
from astromesh.durable.sql_inbox import SqlInbox
from astromesh.durable.sql_runs import Commit, SqlRuns, is_promise
from astromesh.durable.sql_tasks import SqlTasks
from astromesh.plugins import Deps
from astromesh.storage.queries import Dialect, Transaction
from astromesh.storage.sqlite import SqliteQueries, SqliteStore
from astromesh.telemetry.clock import Clock


class SqliteTasks(SqlTasks, SqliteStore):
    """A TaskStore in the runtime's own file."""


class SqliteBudgets(SqlBudgets, SqliteStore):
    """A BudgetStore in the runtime's own file."""


class SqliteGraphs(SqlGraphs, SqliteStore):
    """A GraphStore in a file of SQLite."""


class SqliteGraphRuns(GraphRuns):
    """Runs of graphs in a file of SQLite."""

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        return cls(await SqliteGraphs.open(options, deps), deps.clock)


class SqliteInbox(SqlInbox, SqliteStore):
    """An Inbox in the runtime's own file."""


class SqliteRuns(SqlRuns, SqliteStore):
    """A RunStore in the runtime's own file. The thread of the database executes concurrent calls together."""

    values = staticmethod(sqlite_run_values)

    def __init__(self, queries: SqliteQueries, clock: Clock) -> None:
        super().__init__(queries, clock)
        self._adding = queries.batched(self._add_all)
        self._claiming = queries.batched(self._claim_all)
        self._committing = queries.batched(self._commit_all)

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        assignments = (f"{c.name} = coalesce(?{n}, {c.name})" for n, c in enumerate(CHANGE_COLUMNS, 4))
        return {**super().fragments(dialect), "assignments": ", ".join(assignments)}

    async def claim(
        self, run_id: str, segment: int, worker: str, limits: Mapping[str, int] = NO_AGENT_LIMITS
    ) -> RunRow | None:
        if limits:
            return await super().claim(run_id, segment, worker, limits)
        return await self._claiming(SegmentClaim(run_id, segment, worker))

    async def _add(self, run: RunRow) -> None:
        await self._adding(run, synced=True)

    async def _commit_run(self, commit: Commit) -> bool:
        return await self._committing(commit, synced=is_promise(commit))

    # -- parts of a transaction ----------------------------------------------------------------------------

    async def _add_all(self, runs: Sequence[RunRow], tx: Transaction) -> Sequence[None]:
        now = self._clock.now()
        await tx.execute_many("add", [(*self.values(run), now) for run in runs])
        return [None] * len(runs)

    async def _claim_all(self, claims: Sequence[SegmentClaim], tx: Transaction) -> Sequence[RunRow | None]:
        now = self._clock.now()
        found = [await tx.fetch("claim", *claim, now) for claim in claims]
        for worker in {claim.worker for claim, rows in zip(claims, found, strict=True) if rows}:
            await tx.execute("heartbeat", worker, now)
        return [run_of(rows[0]) if rows else None for rows in found]

    async def _claim_segment(self, claim: SegmentClaim, tx: Transaction) -> RunRow | None:
        return (await self._claim_all([claim], tx))[0]

    async def _commit_all(self, commits: Sequence[Commit], tx: Transaction) -> Sequence[bool]:
        held = [await self._hold(commit, tx) for commit in commits]
        kept = [commit for commit, is_held in zip(commits, held, strict=True) if is_held]
        steps = [step_values(commit.claim.run_id, step) for commit in kept for step in commit.steps]
        await tx.execute_many("store_step", steps)
        await tx.execute_many(
            "add_event", [event_values(event) for commit in kept for event in commit.events]
        )
        return held

    async def _hold(self, commit: Commit, tx: Transaction) -> bool:
        """Changes the row of a run. Returns False if the claim is lost."""
        if commit.change is None:
            return bool(await tx.fetch("check_claim", *commit.claim))
        return await tx.execute("change", *commit.claim, *change_values(commit.change)) > 0

    async def _write_segment(self, commit: Commit, tx: Transaction) -> bool:
        return (await self._commit_all([commit._replace(events=())], tx))[0]
