"""The stores of runs, Tasks, budgets and the inbox in SQLite, and what is different there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel

from astromesh.durable.base import RunRow, SegmentClaim
from astromesh.durable.budgets import SqlBudgets
from astromesh.durable.graph_runs import GraphRuns, SqlGraphs
from astromesh.durable.serialization import (
    CHANGE_COLUMNS,
    change_values,
    run_of,
    sqlite_run_values,
    step_values,
)
from astromesh.durable.sql_inbox import SqlInbox
from astromesh.durable.sql_runs import Commit, SqlRuns
from astromesh.durable.sql_tasks import SqlTasks
from astromesh.plugins import Deps
from astromesh.storage.queries import Dialect, Transaction
from astromesh.storage.sqlite import SqliteStore


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

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        assignments = (f"{c.name} = coalesce(?{n}, {c.name})" for n, c in enumerate(CHANGE_COLUMNS, 4))
        return {**super().fragments(dialect), "assignments": ", ".join(assignments)}

    async def _claim_segment(self, claim: SegmentClaim, tx: Transaction) -> RunRow | None:
        now = self._clock.now()
        rows = await tx.fetch("claim", *claim, now)
        if not rows:
            return None
        await tx.execute("heartbeat", claim.worker, now)
        return run_of(rows[0])

    async def _write_segment(self, commit: Commit, tx: Transaction) -> bool:
        claim, change = commit.claim, commit.change
        if change is None:
            held = bool(await tx.fetch("check_claim", *claim))
        else:
            held = await tx.execute("change", *claim, *change_values(change)) > 0
        if held and commit.steps:
            await tx.execute_many("store_step", [step_values(claim.run_id, step) for step in commit.steps])
        return held
