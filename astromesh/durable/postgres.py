"""The stores of runs, Tasks, budgets and the inbox in PostgreSQL, for several servers.

A round trip costs more than the row in it, so concurrent calls of runs are batched (`storage.postgres`).
Such a statement takes its rows as arrays, one for each column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from asyncpg import Record
from pydantic import BaseModel

from astromesh.channels.base import InboundMessage
from astromesh.durable.base import (
    NO_AGENT_LIMITS,
    RunRow,
    SegmentClaim,
)
from astromesh.durable.budgets import SqlBudgets
from astromesh.durable.graph_runs import GraphRuns, SqlGraphs
from astromesh.durable.serialization import (
    CHANGE_COLUMNS,
    change_values,
    event_values,
    run_of,
    run_values,
    step_values,
)
from astromesh.durable.sql_inbox import SqlInbox
from astromesh.durable.sql_runs import Commit, SqlRuns
from astromesh.durable.sql_tasks import SqlTasks
from astromesh.plugins import Deps
from astromesh.storage.postgres import Address, GroupCommit, PostgresChannel, PostgresQueries, PostgresStore
from astromesh.storage.queries import Dialect, Transaction
from astromesh.telemetry.clock import Clock

#: columns of the claims, steps and events of a commit
_CLAIM, _STEP, _EVENT = 3, 11, 5
#: tells which runs have new events
_CHANNEL = "astromesh_runs"


class PostgresTasks(SqlTasks, PostgresStore):
    """A TaskStore in the database of `storage.url`."""


class PostgresBudgets(SqlBudgets, PostgresStore):
    """A BudgetStore in the database of `storage.url`."""


class PostgresGraphs(SqlGraphs, PostgresStore):
    """A GraphStore in a database of PostgreSQL."""


class PostgresGraphRuns(GraphRuns):
    """Runs of graphs in a database of PostgreSQL."""

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        return cls(await PostgresGraphs.open(options, deps), deps.clock)


class PostgresInbox(SqlInbox, PostgresStore):
    """An Inbox in the database of `storage.url`."""

    async def put(self, messages: Sequence[InboundMessage]) -> int:
        if not messages:
            return 0
        count: int = (await self._queries.write("put", *_columns(len(messages[0]), messages)))[0][0]
        return count


class _CommitValues(NamedTuple):
    """A commit of one run as rows."""

    claim: SegmentClaim
    steps: Sequence[tuple[object, ...]]
    events: Sequence[tuple[object, ...]]
    change: tuple[object, ...] | None


class PostgresRuns(SqlRuns, PostgresStore):
    """A RunStore in the database of `storage.url`."""

    def __init__(self, queries: PostgresQueries, clock: Clock) -> None:
        super().__init__(queries, clock)
        self._accepting = GroupCommit(self._accept_all)
        self._getting = GroupCommit(self._get_all)
        self._claiming = GroupCommit(self._claim_all)
        self._committing = GroupCommit(self._commit_all)
        self._following = GroupCommit(self._next_in_sessions)
        self.listen_url = ""

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        store = await super().open(options, deps)
        store.listen_url = deps.listen_url
        return store

    def channel(self, received: Callable[[str, int], None], changed: Callable[[], None]) -> PostgresChannel:
        database = self._queries.database
        address = Address.parse(self.listen_url) if self.listen_url else database.address
        return PostgresChannel(database, _CHANNEL, address, received, changed)

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        first = _CLAIM + _STEP + _EVENT + 2  # after the id of the run
        arrays = (f"${n}::{column.sql_type}[]" for n, column in enumerate(CHANGE_COLUMNS, first))
        return {
            **super().fragments(dialect),
            "change_columns": ", ".join(column.name for column in CHANGE_COLUMNS),
            "change_parameters": ", ".join(arrays),
            "assignments": ", ".join(f"{c.name} = coalesce(c.{c.name}, r.{c.name})" for c in CHANGE_COLUMNS),
        }

    async def get(self, run_id: str) -> RunRow | None:
        row = await self._getting(run_id)
        return run_of(row) if row else None

    async def claim(
        self, run_id: str, segment: int, worker: str, limits: Mapping[str, int] = NO_AGENT_LIMITS
    ) -> RunRow | None:
        """Runs of agents with a limit are claimed one by one."""
        row = await self._claiming((SegmentClaim(run_id, segment, worker), frozenset(limits)))
        if row is not None:
            return run_of(row)
        return await super().claim(run_id, segment, worker, limits) if limits else None

    async def next_in_session(self, run: RunRow) -> tuple[str, int] | None:
        return await self._following((run.tenant, run.agent, run.session_id, run.owner))

    async def _claim_segment(self, claim: SegmentClaim, tx: Transaction) -> RunRow | None:
        rows = await tx.fetch("claim", *_columns(_CLAIM, [claim]), self._clock.now(), [])
        return run_of(rows[0]) if rows else None

    async def _add(self, run: RunRow) -> None:
        await self._accepting((*run_values(run), self._clock.now()))

    async def _commit_run(self, commit: Commit) -> bool:
        return await self._committing(_commit_values(commit))

    async def _write_segment(self, commit: Commit, tx: Transaction) -> bool:
        query, values = _statement([_commit_values(commit._replace(events=()))])
        return bool(await tx.fetch(query, *values))

    # -- batches -------------------------------------------------------------------------------------------

    async def _accept_all(self, rows: Sequence[tuple[object, ...]]) -> Sequence[None]:
        await self._queries.write_many("add", rows)
        return [None] * len(rows)

    async def _get_all(self, run_ids: Sequence[str]) -> Sequence[Record | None]:
        if len(run_ids) == 1:
            return await self._queries.read("get", run_ids[0]) or [None]
        rows = {row["run_id"]: row for row in await self._queries.read("get_all", run_ids)}
        return [rows.get(run_id) for run_id in run_ids]

    async def _claim_all(
        self, claims: Sequence[tuple[SegmentClaim, frozenset[str]]]
    ) -> Sequence[Record | None]:
        by_run = {claim.run_id: claim for claim, _ in claims}
        limited = frozenset[str]().union(*(agents for _, agents in claims))
        columns = _columns(_CLAIM, by_run.values())
        found = await self._queries.write("claim", *columns, self._clock.now(), list(limited))
        rows = {row["run_id"]: row for row in found}
        # of two claims of one run, the last one was made
        return [rows.get(claim.run_id) if by_run[claim.run_id] is claim else None for claim, _ in claims]

    async def _commit_all(self, batch: Sequence[_CommitValues]) -> Sequence[bool]:
        held = [False] * len(batch)
        for part in _once_each(batch):
            query, values = _statement([values for _, values in part])
            runs = {row[0] for row in await self._queries.write(query, *values)}
            for number, one in part:
                held[number] = one.claim.run_id in runs
        return held

    async def _next_in_sessions(
        self, sessions: Sequence[tuple[str, str, str, str]]
    ) -> Sequence[tuple[str, int] | None]:
        rows = await self._queries.read("next_in_session", *_columns(4, sessions))
        found = {n: (run_id, segment) for n, run_id, segment in rows}
        return [found.get(n) for n in range(1, len(sessions) + 1)]


def _columns(count: int, rows: Iterable[Sequence[object]]) -> list[list[object]]:
    """Rows as columns, of which `unnest` makes rows again."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(count)]


def _commit_values(commit: Commit) -> _CommitValues:
    run_id, change = commit.claim.run_id, commit.change
    return _CommitValues(
        commit.claim,
        [step_values(run_id, step) for step in commit.steps],
        [event_values(event) for event in commit.events],
        None if change is None else (run_id, *change_values(change)),
    )


def _statement(commits: Sequence[_CommitValues]) -> tuple[str, list[list[object]]]:
    """The name of the query that writes commits, and its values."""
    values = [
        *_columns(_CLAIM, (commit.claim for commit in commits)),
        *_columns(_STEP, (step for commit in commits for step in commit.steps)),
        *_columns(_EVENT, (event for commit in commits for event in commit.events)),
    ]
    changes = [commit.change for commit in commits if commit.change is not None]
    if not changes:
        return "commit", values
    return "commit_changes", values + _columns(len(CHANGE_COLUMNS) + 1, changes)


def _once_each(batch: Iterable[_CommitValues]) -> list[list[tuple[int, _CommitValues]]]:
    """The commits of a batch with their numbers, in lists that name no run twice, in order."""
    lists: list[list[tuple[int, _CommitValues]]] = []
    times: Counter[str] = Counter()
    for number, commit in enumerate(batch):
        nth = times[commit.claim.run_id]
        times[commit.claim.run_id] += 1
        if nth == len(lists):
            lists.append([])
        lists[nth].append((number, commit))
    return lists
