"""Runs in PostgreSQL. Every query is in `sql/runs.sql` or `sql/postgres/runs.sql`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

from asyncpg import Record
from pydantic import BaseModel, ConfigDict

from astromesh.durable.base import (
    NO_AGENT_LIMITS,
    CancelRequest,
    ConcurrencyPolicy,
    IdempotencyKey,
    JournalStep,
    RunChange,
    RunQuery,
    RunRow,
    SegmentClaim,
)
from astromesh.durable.rows import (
    archive_values,
    can_merge,
    change_values,
    deadline_error,
    event_of,
    event_values,
    interrupted_error,
    key_conflict,
    last_event_data,
    merge_requests,
    run_lost,
    run_of,
    run_queries,
    run_values,
    session_busy,
    step_of,
    step_values,
    text_of,
    trace_of,
    usage_of,
    value_of,
)
from astromesh.errors import IdempotencyConflict, LeaseLost
from astromesh.plugins import Deps
from astromesh.storage.group_commit import GroupCommit
from astromesh.storage.migrations import Schema
from astromesh.storage.postgres import Connection, Postgres, shared_postgres
from astromesh.telemetry.clock import Clock
from astromesh.types import Event, JsonObject, Usage

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("runs", _PACKAGE, "sql/postgres/runs")
SQL = run_queries("postgres")


_HOLD, _CHANGE = (SQL["kept"].replace("CHANGED", more) for more in ("", SQL["changed"]))

#: runs deleted in one statement, so that others get their turn in between
_CHUNK = 200
#: workers that have not been heard of for so long, in seconds, are forgotten
_WORKER_RETENTION_SECONDS = 86_400.0


class _Commit(NamedTuple):
    """One commit as values: of steps and events a row each, of the run's row one or none."""

    claim: SegmentClaim
    steps: Sequence[tuple[object, ...]]
    events: Sequence[tuple[object, ...]]
    change: tuple[object, ...] | None


class PostgresRuns:
    """A RunStore over one database, which it shares with others."""

    class Options(BaseModel):
        """None: `storage.url` of runtime.yaml says where."""

        model_config = ConfigDict(extra="forbid")

    def __init__(self, database: Postgres, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._accepting = GroupCommit(self._accept_all)
        self._getting = GroupCommit(self._get_all)
        self._claiming = GroupCommit(self._claim_all)
        self._committing = GroupCommit(self._commit_all)
        self._looking = GroupCommit(self._follow_all)

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        """Raises: ConfigError: a database of a newer astromesh. StoreError: it refuses us."""
        database = await shared_postgres(deps)
        await database.migrate(SCHEMA)
        return cls(database, deps.clock)

    async def accept(
        self, run: RunRow, key: IdempotencyKey | None = None, policy: ConcurrencyPolicy = "enqueue"
    ) -> RunRow:
        if key is None and policy == "enqueue":
            await self._accepting((*run_values(run), self._clock.now()))
            return run
        return await self._database.transact(partial(_accept, run, key, policy, self._clock.now()))

    async def reserve_key(self, key: IdempotencyKey, candidate_id: str) -> str:
        return await self._database.transact(partial(_name, key, candidate_id, self._clock.now()))

    async def archive(self, runs: Sequence[tuple[RunRow, Sequence[Event]]]) -> None:
        await self._database.transact(partial(_note, [archive_values(run, events) for run, events in runs]))

    async def trace(self, trace_id: str) -> tuple[tuple[RunRow, tuple[Event, ...]], ...]:
        return tuple(map(trace_of, await self._database.read(SQL["trace"], trace_id)))

    async def get(self, run_id: str) -> RunRow | None:
        row = await self._getting(run_id)
        return run_of(row) if row else None

    async def list(self, filter: RunQuery) -> tuple[tuple[RunRow, ...], Usage]:
        rows = await self._database.read(SQL["list"], *filter)
        numbers = await self._database.read(SQL["used"], *filter[:5])
        return tuple(map(run_of, rows)), usage_of(numbers[0])

    async def claim(
        self, run_id: str, segment: int, worker: str, limits: Mapping[str, int] = NO_AGENT_LIMITS
    ) -> RunRow | None:
        asked = SegmentClaim(run_id, segment, worker)
        row = await self._claiming((asked, frozenset(limits)))
        if row is not None:
            return run_of(row)
        if limits:  # it may be of an agent that has one, which are counted one by one
            return await self._database.transact(partial(_claim, asked, self._clock.now(), limits))
        return None

    async def next_in_session(self, run: RunRow) -> tuple[str, int] | None:
        return await self._looking((run.tenant, run.agent, run.session_id))

    async def next_of_agent(self, agent: str) -> tuple[str, int] | None:
        rows = await self._database.read(SQL["next_of"], agent, self._clock.now())
        return (rows[0][0], rows[0][1]) if rows else None

    async def queued(self, agent: str) -> int:
        found: int = (await self._database.read(SQL["queued"], agent))[0][0]
        return found

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        written = _Commit(
            claim,
            [step_values(claim.run_id, step) for step in steps],
            [event_values(event) for event in events],
            None if change is None else (claim.run_id, *change_values(change)),
        )
        ends = change.finished_at if change is not None and claim.segment > 1 else None
        if nested or ends or any(event.run_id != claim.run_id for event in events):
            error = change.error if change is not None else None
            held = await self._database.transact(partial(_commit, written, nested, ends, error))
        else:
            held = await self._committing(written)
        if not held:
            raise LeaseLost(run_lost(claim))

    async def steps(self, run_id: str) -> tuple[JournalStep, ...]:
        return tuple(map(step_of, await self._database.read(SQL["steps"], run_id)))

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        rows = await self._database.read(SQL["events"], run_id, after, limit)
        return tuple(map(partial(event_of, run_id), rows))

    async def advance(self, run_id: str, segment: int, steps: Sequence[JournalStep] = ()) -> RunRow | None:
        return await self._database.transact(partial(_advance, run_id, segment, steps, self._clock.now()))

    async def requeue(self, claim: SegmentClaim) -> RunRow | None:
        rows = await self._database.write(SQL["hand_back"], *claim, self._clock.now())
        return run_of(rows[0]) if rows else None

    async def cancel(self, run_id: str) -> RunRow | None:
        return await self._database.transact(partial(_cancel, run_id, self._clock.now()))

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._database.read(SQL["cancelling"], worker))

    async def request_cancel(self, run_id: str, tenant: str, owner: str | None) -> None:
        await self._database.write(SQL["ask_process"], run_id, tenant, owner, self._clock.now())

    async def cancel_requests(self, since: float) -> tuple[CancelRequest, ...]:
        return tuple(CancelRequest(*row) for row in await self._database.read(SQL["asked_processes"], since))

    async def answer_cancel(self, run_id: str, line: JsonObject | None) -> None:
        await self._database.write(SQL["answer_process"], run_id, text_of(line) or "")

    async def cancel_answer(self, run_id: str) -> tuple[bool, JsonObject | None]:
        rows = await self._database.read(SQL["answered"], run_id)
        answer = rows[0][0] if rows else None
        return answer is not None, value_of(answer or None)

    async def delete_cancel(self, run_id: str, before: float) -> None:
        await self._database.write(SQL["forget_asked"], run_id, before)

    async def heartbeat(self, worker: str) -> None:
        await self._database.write(SQL["beat"], worker, self._clock.now())

    async def release_worker(self, worker: str) -> tuple[tuple[str, int], ...]:
        return await self._database.transact(partial(_leave, worker, self._clock.now()))

    async def overdue(
        self,
        lease: float,
        limit: int = 100,
        *,
        queued: float = 0.0,
        limits: Mapping[str, int] = NO_AGENT_LIMITS,
    ) -> tuple[tuple[str, int], ...]:
        now = self._clock.now()
        if not (await self._database.read(SQL["anything_due"], now, now - lease, now - (queued or lease)))[0][
            0
        ]:
            return ()
        return await self._database.transact(partial(_overdue, now, lease, queued or lease, limit, limits))

    async def waiting(self, tenant: str, owner: str | None, limit: int = 100) -> tuple[RunRow, ...]:
        rows = await self._database.read(SQL["waiting"], tenant, owner, limit)
        return tuple(map(run_of, rows))

    async def expire(self, before: float, max_runs: int) -> int:
        await self._database.write(SQL["expire_keys"], self._clock.now())
        await self._database.write(SQL["forget_workers"], self._clock.now() - _WORKER_RETENTION_SECONDS)
        return await self._in_chunks("expire", before) + await self._in_chunks("expire_many", max_runs)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.transact(partial(_erase_owner, tenant, owner, self._clock.now()))

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the pool closes with the runtime's resources."""

    # -- many at once --------------------------------------------------------------------------------------

    async def _accept_all(self, rows: Sequence[tuple[object, ...]]) -> Sequence[None]:
        await self._database.write_many(SQL["add"], rows)
        return [None] * len(rows)

    async def _get_all(self, run_ids: Sequence[str]) -> Sequence[Record | None]:
        if len(run_ids) == 1:
            return await self._database.read(SQL["get"], run_ids[0]) or [None]
        rows = await self._database.read(SQL["get_all"], run_ids)
        found = {row["run_id"]: row for row in rows}
        return [found.get(run_id) for run_id in run_ids]

    async def _claim_all(
        self, asked: Sequence[tuple[SegmentClaim, frozenset[str]]]
    ) -> Sequence[Record | None]:
        wanted = {one.run_id: one for one, _ in asked}
        counted = frozenset[str]().union(*(limited for _, limited in asked))
        claims = _columns(3, wanted.values())
        rows = await self._database.write(SQL["claim"], *claims, self._clock.now(), list(counted))
        found = {row["run_id"]: row for row in rows}
        # two who want one run here: the last of them had it
        return [found.get(one.run_id) if wanted[one.run_id] is one else None for one, _ in asked]

    async def _commit_all(self, batch: Sequence[_Commit]) -> Sequence[bool]:
        held = [False] * len(batch)
        for some in _once_each(batch):
            for number in await self._commit_some(some):
                held[number] = True
        return held

    async def _commit_some(self, some: Sequence[tuple[int, _Commit]]) -> Iterable[int]:
        statement, values = _statement([one for _, one in some])
        held = {row[0] for row in await self._database.write(statement, *values)}
        return [number for number, one in some if one.claim.run_id in held]

    async def _follow_all(self, sessions: Sequence[tuple[str, str, str]]) -> Sequence[tuple[str, int] | None]:
        rows = await self._database.read(SQL["following"], *_columns(3, sessions))
        found = {n: (run_id, segment) for n, run_id, segment in rows}
        return [found.get(n) for n in range(1, len(sessions) + 1)]

    async def _in_chunks(self, name: str, bound: float) -> int:
        total = 0
        while gone := await self._database.write(SQL[name], bound, _CHUNK):
            total += len(gone)
        return total


def _columns(count: int, rows: Iterable[Sequence[object]]) -> list[list[object]]:
    """Rows as columns, which `unnest` makes rows of again."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(count)]


def _statement(some: Sequence[_Commit]) -> tuple[str, list[list[object]]]:
    """What writes commits, and its values."""
    values = [
        *_columns(3, (one.claim for one in some)),
        *_columns(7, (step for one in some for step in one.steps)),
        *_columns(5, (event for one in some for event in one.events)),
    ]
    changes = [one.change for one in some if one.change is not None]
    return (_CHANGE, values + _columns(15, changes)) if changes else (_HOLD, values)


def _once_each(batch: Iterable[_Commit]) -> list[list[tuple[int, _Commit]]]:
    """The commits of a batch with their numbers, in lists that name no run twice, in order."""
    lists: list[list[tuple[int, _Commit]]] = []
    times: Counter[str] = Counter()
    for number, one in enumerate(batch):
        nth = times[one.claim.run_id]
        times[one.claim.run_id] += 1
        if nth == len(lists):
            lists.append([])
        lists[nth].append((number, one))
    return lists


# -- in one transaction each ---------------------------------------------------------------------------------


async def _accept(
    run: RunRow, key: IdempotencyKey | None, policy: ConcurrencyPolicy, now: float, connection: Connection
) -> RunRow:
    if key is not None:
        await connection.execute(SQL["lock_key"], *key[:4])
        found = await connection.fetchrow(SQL["key"], *key[:4], now)
        if found is not None and (earlier := await _get(run_id=found[1], connection=connection)):
            if found[0] != key.body_hash:
                raise IdempotencyConflict(key_conflict(key.key))
            return earlier
    kept = run if policy == "enqueue" else await _apply_policy(run, policy, now, connection)
    if key is not None:
        await connection.execute(SQL["put_key"], *key[:5], kept.run_id, key.expires_at)
    if kept is run:
        await connection.execute(SQL["add"], *run_values(run), now)
    return kept


async def _name(key: IdempotencyKey, kept_as: str, now: float, connection: Connection) -> str:
    await connection.execute(SQL["lock_key"], *key[:4])
    found = await connection.fetchrow(SQL["key"], *key[:4], now)
    if found is None:
        await connection.execute(SQL["put_key"], *key[:5], kept_as, key.expires_at)
        return kept_as
    if found[0] != key.body_hash:
        raise IdempotencyConflict(key_conflict(key.key))
    return str(found[1])


async def _apply_policy(run: RunRow, policy: ConcurrencyPolicy, now: float, connection: Connection) -> RunRow:
    """The run, or the one that it has become part of."""
    session = (run.tenant, run.agent, run.session_id)
    await connection.execute(SQL["lock_session"], *session)
    others = tuple(map(run_of, await connection.fetch(SQL["open_of_session"], *session)))
    if policy == "reject" and others:
        raise session_busy()
    for other in others:
        if policy == "interrupt":
            await _cancel(other.run_id, now, connection)
        elif policy == "merge" and can_merge(run, other, now):
            both = text_of(merge_requests(other.request, run.request))
            await connection.execute(SQL["join_in"], other.run_id, both, run.priority)
            return other
    return run


async def _claim(
    asked: SegmentClaim, now: float, limits: Mapping[str, int], connection: Connection
) -> RunRow | None:
    agent = await connection.fetchval(SQL["agent"], asked.run_id)
    if agent in limits:
        await connection.execute(SQL["lock_agent"], agent)
        if await connection.fetchval(SQL["running"], agent, asked.run_id) >= limits[agent]:
            return None
    row = await connection.fetchrow(SQL["claim"], *_columns(3, [asked]), now, [])
    return run_of(row) if row else None


async def _note(
    rows: Sequence[tuple[tuple[object, ...], tuple[object, ...]]], connection: Connection
) -> None:
    await connection.executemany(SQL["note"], [row for row, _ in rows])
    await connection.executemany(SQL["put_trace"], [trace for _, trace in rows])


async def _get(run_id: str, connection: Connection, *, query: str = "get") -> RunRow | None:
    row = await connection.fetchrow(SQL[query], run_id)
    return run_of(row) if row else None


async def _advance(
    run_id: str, segment: int, steps: Sequence[JournalStep], now: float, connection: Connection
) -> RunRow | None:
    row = await connection.fetchrow(SQL["advance"], run_id, segment, now)
    if row is None:
        return None
    if steps:
        await connection.executemany(SQL["put_step"], [step_values(run_id, step) for step in steps])
    return run_of(row)


async def _cancel(run_id: str, now: float, connection: Connection) -> RunRow | None:
    run = await _get(run_id, connection, query="lock")
    if run is None:
        return None
    if run.status in ("queued", "waiting"):
        await _end(run, "cancelled", now, connection)
    else:
        await connection.execute(SQL["ask_end"], run_id)
    return await _get(run_id, connection)


async def _end(
    run: RunRow, status: str, now: float, connection: Connection, error: JsonObject | None = None
) -> None:
    """The end of a run that nobody works on, with its last event."""
    await connection.execute(SQL["end_idle"], run.run_id, status, now, text_of(error))
    data = text_of({**(error or {}), **last_event_data(run)})
    await connection.execute(SQL["put_last_event"], run.run_id, now, f"run.{status}", data)
    await _end_nested(run.run_id, now, error, connection)


async def _commit(
    written: _Commit,
    nested: Sequence[RunRow],
    ends: float | None,
    error: JsonObject | None,
    connection: Connection,
) -> bool:
    """A commit of several runs; False where the first is no longer this worker's."""
    statement, values = _statement([written._replace(events=())])
    if not await connection.fetch(statement, *values):
        return False
    if nested:
        await connection.executemany(SQL["put_nested"], [(*run_values(r), r.created_at) for r in nested])
    if written.events:
        await connection.executemany(SQL["put_event"], written.events)
    if ends:
        await _end_nested(written.claim.run_id, ends, error, connection)
    return True


async def _end_nested(top: str, now: float, error: JsonObject | None, connection: Connection) -> None:
    """What was nested in a run, and continues no more."""
    for run in map(run_of, await connection.fetch(SQL["nested_open"], top)):
        await _end(run, "failed" if error else "cancelled", now, connection, error)


async def _leave(worker: str, now: float, connection: Connection) -> tuple[tuple[str, int], ...]:
    await connection.execute(SQL["leave"], worker)
    return tuple((row[0], row[1]) for row in await connection.fetch(SQL["hand_over"], worker, now))


async def _overdue(
    now: float, lease: float, queued: float, limit: int, limits: Mapping[str, int], connection: Connection
) -> tuple[tuple[str, int], ...]:
    due: list[tuple[str, int]] = []
    for run in map(run_of, await connection.fetch(SQL["orphans"], now - lease, limit)):
        if run.cancelling:
            await _end(run, "cancelled", now, connection)
        elif 0.0 < run.deadline_at <= now:
            await _end(run, "failed", now, connection, deadline_error())
        else:
            due += await _requeued(run, now, connection)
    for run in map(run_of, await connection.fetch(SQL["awake"], now, limit)):
        due += await _requeued(run, now, connection)
    await _fail_interrupted(now, lease, limit, connection)
    full = [a for a, most in limits.items() if await connection.fetchval(SQL["running"], a, "") >= most]
    stale = await connection.fetch(SQL["stale"], now - queued, now, limit, full)
    due += [(row[0], row[1]) for row in stale]
    return tuple(dict.fromkeys(due))


async def _fail_interrupted(now: float, lease: float, limit: int, connection: Connection) -> None:
    """Runs whose process is dead; nobody takes those up, and their callers may send them again."""
    for run in map(run_of, await connection.fetch(SQL["lost"], now - lease, limit)):
        await connection.execute(SQL["end_idle"], run.run_id, "failed", now, text_of(interrupted_error()))
        await connection.execute(SQL["free_key"], run.run_id)


async def _requeued(run: RunRow, now: float, connection: Connection) -> list[tuple[str, int]]:
    rows = await connection.fetch(SQL["requeue"], run.run_id, run.segment, now)
    return [(row[0], row[1]) for row in rows]


async def _erase_owner(tenant: str, owner: str, now: float, connection: Connection) -> int:
    for run in map(run_of, await connection.fetch(SQL["owned_open"], tenant, owner)):
        await _cancel(run.run_id, now, connection)
    await connection.execute(SQL["erase_keys"], tenant, owner)
    return len(await connection.fetch(SQL["erase_owner"], tenant, owner))
