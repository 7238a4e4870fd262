"""Runs in SQLite. Every query is in `sql/runs.sql` or `sql/sqlite/runs.sql`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple, Self, TypeVar

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
    RUN_VALUES,
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
    session_busy,
    sqlite_run_values,
    step_of,
    step_values,
    text_of,
    trace_of,
    usage_of,
    value_of,
)
from astromesh.errors import IdempotencyConflict, LeaseLost, SessionBusy
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema
from astromesh.storage.sqlite import Database, shared_database
from astromesh.telemetry.clock import Clock
from astromesh.types import Event, JsonObject, Usage

Item = TypeVar("Item")
Result = TypeVar("Result")

_PACKAGE = "astromesh.durable"
SCHEMA = Schema("runs", _PACKAGE, "sql/sqlite/runs")
SQL = run_queries("sqlite")

#: rows that one INSERT may have: every SQLite takes 999 values
_MAX_ROWS = 999 // RUN_VALUES
#: a numbered parameter, which stands in one row only
_NUMBER = re.compile(r"\?\d+")
#: runs deleted in one transaction, so that others get their turn in between
_CHUNK = 200
#: workers that have not been heard of for so long, in seconds, are forgotten
_WORKER_RETENTION_SECONDS = 86_400.0


class SqliteRuns:
    """A RunStore over one SQLite file, which it may share with others."""

    class Options(BaseModel):
        """None: `storage.url` of runtime.yaml says where."""

        model_config = ConfigDict(extra="forbid")

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        """Raises: StoreUnavailable: the file cannot be used. ConfigError: it is of a newer astromesh."""
        database = await shared_database(deps)
        await database.migrate(SCHEMA)
        return cls(database, deps.clock)

    async def accept(
        self, run: RunRow, key: IdempotencyKey | None = None, policy: ConcurrencyPolicy = "enqueue"
    ) -> RunRow:
        return await self._database.write(_accept, (run, key, policy, self._clock.now()))

    async def reserve_key(self, key: IdempotencyKey, candidate_id: str) -> str:
        return await self._database.write(_name, (key, candidate_id, self._clock.now()))

    async def archive(self, runs: Sequence[tuple[RunRow, Sequence[Event]]]) -> None:
        await self._database.write(_note, runs)

    async def trace(self, trace_id: str) -> tuple[tuple[RunRow, tuple[Event, ...]], ...]:
        return await self._database.read(_trace, trace_id)

    async def get(self, run_id: str) -> RunRow | None:
        return await self._database.read(_get, run_id)

    async def list(self, filter: RunQuery) -> tuple[tuple[RunRow, ...], Usage]:
        return await self._database.read(_list, filter)

    async def claim(
        self, run_id: str, segment: int, worker: str, limits: Mapping[str, int] = NO_AGENT_LIMITS
    ) -> RunRow | None:
        return await self._database.write(_claim, (run_id, segment, worker, self._clock.now(), limits))

    async def next_in_session(self, run: RunRow) -> tuple[str, int] | None:
        return await self._database.read(_following, (run.tenant, run.agent, run.session_id))

    async def next_of_agent(self, agent: str) -> tuple[str, int] | None:
        return await self._database.read(_next_of, (agent, self._clock.now()))

    async def queued(self, agent: str) -> int:
        return await self._database.read(_queued, agent)

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        await self._database.write(_commit, Commit(claim, steps, events, change, nested))

    async def steps(self, run_id: str) -> tuple[JournalStep, ...]:
        return await self._database.read(_steps, run_id)

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        return await self._database.read(_events, (run_id, after, limit))

    async def advance(self, run_id: str, segment: int, steps: Sequence[JournalStep] = ()) -> RunRow | None:
        return await self._database.write(_advance, (run_id, segment, steps, self._clock.now()))

    async def requeue(self, claim: SegmentClaim) -> RunRow | None:
        return await self._database.write(_hand_back, (*claim, self._clock.now()))

    async def cancel(self, run_id: str) -> RunRow | None:
        return await self._database.write(_cancel, (run_id, self._clock.now()))

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        return await self._database.read(_cancelling, worker)

    async def request_cancel(self, run_id: str, tenant: str, owner: str | None) -> None:
        await self._database.write(_run_all, ("ask_process", (run_id, tenant, owner, self._clock.now())))

    async def cancel_requests(self, since: float) -> tuple[CancelRequest, ...]:
        return await self._database.read(_ends_asked, since)

    async def answer_cancel(self, run_id: str, line: JsonObject | None) -> None:
        await self._database.write(_run_all, ("answer_process", (run_id, text_of(line) or "")))

    async def cancel_answer(self, run_id: str) -> tuple[bool, JsonObject | None]:
        return await self._database.read(_end_answered, run_id)

    async def delete_cancel(self, run_id: str, before: float) -> None:
        await self._database.write(_run_all, ("forget_asked", (run_id, before)))

    async def heartbeat(self, worker: str) -> None:
        await self._database.write(_beat, (worker, self._clock.now()))

    async def release_worker(self, worker: str) -> tuple[tuple[str, int], ...]:
        return await self._database.write(_leave, (worker, self._clock.now()))

    async def overdue(
        self,
        lease: float,
        limit: int = 100,
        *,
        queued: float = 0.0,
        limits: Mapping[str, int] = NO_AGENT_LIMITS,
    ) -> tuple[tuple[str, int], ...]:
        look = (self._clock.now(), lease, queued or lease, limit, limits)
        return await self._database.write(_overdue, look)

    async def waiting(self, tenant: str, owner: str | None, limit: int = 100) -> tuple[RunRow, ...]:
        return await self._database.read(_waiting, (tenant, owner, limit))

    async def expire(self, before: float, max_runs: int) -> int:
        await self._database.write(_expire_keys, self._clock.now())
        return await self._in_chunks("expire", before) + await self._in_chunks("expire_many", max_runs)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await self._database.write(_erase_owner, (tenant, owner, self._clock.now()))

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """Nothing: the file closes with the runtime's resources."""

    async def _in_chunks(self, name: str, bound: float) -> int:
        total = 0
        while gone := await self._database.write(_delete, (name, bound)):
            total += gone
        return total


# -- in the database's threads -------------------------------------------------------------------------------


class Commit(NamedTuple):
    claim: SegmentClaim
    steps: Sequence[JournalStep]
    events: Sequence[Event]
    change: RunChange | None
    nested: Sequence[RunRow]


def _each(
    work: Callable[[sqlite3.Connection, Item], Result],
    connection: sqlite3.Connection,
    items: Sequence[Item],
) -> Sequence[Result | BaseException]:
    """`work` for one item after the other; an error of ours is that item's result."""
    results: list[Result | BaseException] = []
    for item in items:
        try:
            results.append(work(connection, item))
        except (IdempotencyConflict, LeaseLost, SessionBusy) as error:
            results.append(error)
    return results


def _accept_one(
    connection: sqlite3.Connection, item: tuple[RunRow, IdempotencyKey | None, ConcurrencyPolicy, float]
) -> RunRow:
    run, key, policy, now = item
    if key is not None:
        found = connection.execute(SQL["key"], (*key[:4], now)).fetchone()
        if found is not None and (earlier := _run(connection, found[1])) is not None:
            if found[0] != key.body_hash:
                raise IdempotencyConflict(key_conflict(key.key))
            return earlier
    kept = run if policy == "enqueue" else _apply_policy(connection, run, policy, now)
    if key is not None:
        connection.execute(SQL["put_key"], (*key[:5], kept.run_id, key.expires_at))
    if kept is run:
        connection.execute(SQL["add"], (*sqlite_run_values(run), now))
    return kept


def _name_one(connection: sqlite3.Connection, item: tuple[IdempotencyKey, str, float]) -> str:
    key, kept_as, now = item
    found = connection.execute(SQL["key"], (*key[:4], now)).fetchone()
    if found is None:
        connection.execute(SQL["put_key"], (*key[:5], kept_as, key.expires_at))
        return kept_as
    if found[0] != key.body_hash:
        raise IdempotencyConflict(key_conflict(key.key))
    return str(found[1])


def _apply_policy(
    connection: sqlite3.Connection, run: RunRow, policy: ConcurrencyPolicy, now: float
) -> RunRow:
    """The run, or the one that it has become part of."""
    session = (run.tenant, run.agent, run.session_id)
    others = tuple(map(run_of, connection.execute(SQL["open_of_session"], session).fetchall()))
    if policy == "reject" and others:
        raise session_busy()
    for other in others:
        if policy == "interrupt":
            _cancel_one(connection, (other.run_id, now))
        elif policy == "merge" and can_merge(run, other, now):
            both = text_of(merge_requests(other.request, run.request))
            connection.execute(SQL["join_in"], (other.run_id, both, run.priority))
            return other
    return run


def _note(
    connection: sqlite3.Connection, items: Sequence[Sequence[tuple[RunRow, Sequence[Event]]]]
) -> Sequence[None]:
    rows = [archive_values(run, events, sqlite_run_values) for item in items for run, events in item]
    _put(connection, "note", [row for row, _ in rows])
    _put(connection, "put_trace", [trace for _, trace in rows])
    return [None] * len(items)


def _put(connection: sqlite3.Connection, name: str, rows: Sequence[tuple[object, ...]]) -> None:
    """An INSERT of all rows in few statements: each costs SQLite about as much as a row."""
    for at in range(0, len(rows), _MAX_ROWS):
        some = rows[at : at + _MAX_ROWS]
        connection.execute(_of_several(name, len(some)), tuple(chain.from_iterable(some)))


@lru_cache(maxsize=2 * _MAX_ROWS)
def _of_several(name: str, rows: int) -> str:
    """An INSERT with the values of so many rows."""
    head, values, tail = re.split("(?<= VALUES )(.+)(?= ON CONFLICT )", SQL[name])
    return f"{head}{', '.join([re.sub(_NUMBER, '?', values)] * rows)}{tail}"


def _trace_one(connection: sqlite3.Connection, trace_id: str) -> tuple[tuple[RunRow, tuple[Event, ...]], ...]:
    return tuple(map(trace_of, connection.execute(SQL["trace"], (trace_id,)).fetchall()))


def _run(connection: sqlite3.Connection, run_id: str) -> RunRow | None:
    row = connection.execute(SQL["get"], (run_id,)).fetchone()
    return run_of(row) if row else None


def _list_one(connection: sqlite3.Connection, wanted: RunQuery) -> tuple[tuple[RunRow, ...], Usage]:
    rows = connection.execute(SQL["list"], wanted).fetchall()
    numbers = connection.execute(SQL["used"], wanted[:5]).fetchone()
    return tuple(map(run_of, rows)), usage_of(numbers)


def _claim_one(
    connection: sqlite3.Connection, item: tuple[str, int, str, float, Mapping[str, int]]
) -> RunRow | None:
    run_id, segment, worker, now, limits = item
    if limits and _is_full(connection, run_id, limits):
        return None
    row = connection.execute(SQL["claim"], (run_id, segment, worker, now)).fetchone()
    if row is None:
        return None
    connection.execute(SQL["beat"], (worker, now))
    return run_of(row)


def _is_full(connection: sqlite3.Connection, run_id: str, limits: Mapping[str, int]) -> bool:
    """Whether as many other runs of a run's agent are running as may."""
    found = connection.execute(SQL["agent"], (run_id,)).fetchone()
    if found is None or found[0] not in limits:
        return False
    running: int = connection.execute(SQL["running"], (found[0], run_id)).fetchone()[0]
    return running >= limits[found[0]]


def _next_of_one(connection: sqlite3.Connection, item: tuple[str, float]) -> tuple[str, int] | None:
    row: tuple[str, int] | None = connection.execute(SQL["next_of"], item).fetchone()
    return row


def _queued_one(connection: sqlite3.Connection, agent: str) -> int:
    found: int = connection.execute(SQL["queued"], (agent,)).fetchone()[0]
    return found


def _following_one(connection: sqlite3.Connection, session: tuple[str, str, str]) -> tuple[str, int] | None:
    row: tuple[str, int] | None = connection.execute(SQL["following"], session).fetchone()
    return row


def _commit_one(connection: sqlite3.Connection, item: Commit) -> None:
    claim, run_id = item.claim, item.claim.run_id
    if item.change is None:
        held = connection.execute(SQL["holds"], claim).fetchone() is not None
    else:
        held = connection.execute(SQL["change"], (*claim, *change_values(item.change))).rowcount == 1
    if not held:
        raise LeaseLost(run_lost(claim))
    if item.steps:
        connection.executemany(SQL["put_step"], [step_values(run_id, step) for step in item.steps])
    if item.nested:
        connection.executemany(
            SQL["put_nested"], [(*sqlite_run_values(r), r.created_at) for r in item.nested]
        )
    if item.events:
        connection.executemany(SQL["put_event"], [event_values(event) for event in item.events])
    if item.change is not None and item.change.finished_at and claim.segment > 1:
        _end_nested(connection, run_id, item.change.finished_at, item.change.error)


def _steps_one(connection: sqlite3.Connection, run_id: str) -> tuple[JournalStep, ...]:
    return tuple(map(step_of, connection.execute(SQL["steps"], (run_id,)).fetchall()))


def _events_one(connection: sqlite3.Connection, item: tuple[str, int, int]) -> tuple[Event, ...]:
    rows = connection.execute(SQL["events"], item).fetchall()
    return tuple(map(partial(event_of, item[0]), rows))


def _advance_one(
    connection: sqlite3.Connection, item: tuple[str, int, Sequence[JournalStep], float]
) -> RunRow | None:
    run_id, segment, steps, now = item
    row = connection.execute(SQL["advance"], (run_id, segment, now)).fetchone()
    if row is None:
        return None
    connection.executemany(SQL["put_step"], [step_values(run_id, step) for step in steps])
    return run_of(row)


def _hand_back_one(connection: sqlite3.Connection, item: tuple[str, int, str, float]) -> RunRow | None:
    row = connection.execute(SQL["hand_back"], item).fetchone()
    return run_of(row) if row else None


def _cancel_one(connection: sqlite3.Connection, item: tuple[str, float]) -> RunRow | None:
    run_id, now = item
    run = _run(connection, run_id)
    if run is None:
        return None
    if run.status in ("queued", "waiting"):
        _end(connection, run, "cancelled", now)
    else:
        connection.execute(SQL["ask_end"], (run_id,))
    return _run(connection, run_id)


def _end(
    connection: sqlite3.Connection, run: RunRow, status: str, now: float, error: JsonObject | None = None
) -> None:
    """The end of a run that nobody works on, with its last event."""
    connection.execute(SQL["end_idle"], (run.run_id, status, now, text_of(error)))
    data = text_of({**(error or {}), **last_event_data(run)})
    connection.execute(SQL["put_last_event"], (run.run_id, now, f"run.{status}", data))
    _end_nested(connection, run.run_id, now, error)


def _end_nested(connection: sqlite3.Connection, top: str, now: float, error: JsonObject | None) -> None:
    """What was nested in a run, and continues no more."""
    for run in map(run_of, connection.execute(SQL["nested_open"], (top,)).fetchall()):
        _end(connection, run, "failed" if error else "cancelled", now, error)


def _cancelling_one(connection: sqlite3.Connection, worker: str) -> tuple[str, ...]:
    return tuple(row[0] for row in connection.execute(SQL["cancelling"], (worker,)).fetchall())


def _beat_one(connection: sqlite3.Connection, item: tuple[str, float]) -> None:
    connection.execute(SQL["beat"], item)


def _leave_one(connection: sqlite3.Connection, item: tuple[str, float]) -> tuple[tuple[str, int], ...]:
    connection.execute(SQL["leave"], item[:1])
    return tuple(connection.execute(SQL["hand_over"], item).fetchall())


def _overdue_one(
    connection: sqlite3.Connection, item: tuple[float, float, float, int, Mapping[str, int]]
) -> tuple[tuple[str, int], ...]:
    now, lease, queued, limit, limits = item
    connection.execute(SQL["forget_workers"], (now - _WORKER_RETENTION_SECONDS,))
    orphans = map(run_of, connection.execute(SQL["orphans"], (now - lease, limit)).fetchall())
    awake = map(run_of, connection.execute(SQL["awake"], (now, limit)).fetchall())
    due: list[tuple[str, int]] = []
    for run in orphans:
        if run.cancelling:
            _end(connection, run, "cancelled", now)
        elif 0.0 < run.deadline_at <= now:
            _end(connection, run, "failed", now, deadline_error())
        else:
            due += connection.execute(SQL["requeue"], (run.run_id, run.segment, now)).fetchall()
    for run in awake:
        due += connection.execute(SQL["requeue"], (run.run_id, run.segment, now)).fetchall()
    _fail_interrupted(connection, now, lease, limit)
    full = [
        a for a, most in limits.items() if connection.execute(SQL["running"], (a, "")).fetchone()[0] >= most
    ]
    due += connection.execute(SQL["stale"], (now - queued, now, limit, text_of(full))).fetchall()
    return tuple(dict.fromkeys(due))


def _fail_interrupted(connection: sqlite3.Connection, now: float, lease: float, limit: int) -> None:
    """Runs whose process is dead; nobody takes those up, and their callers may send them again."""
    for run in map(run_of, connection.execute(SQL["lost"], (now - lease, limit)).fetchall()):
        connection.execute(SQL["end_idle"], (run.run_id, "failed", now, text_of(interrupted_error())))
        connection.execute(SQL["free_key"], (run.run_id,))


def _run_one(connection: sqlite3.Connection, item: tuple[str, tuple[object, ...]]) -> None:
    connection.execute(SQL[item[0]], item[1])


def _ends_asked_one(connection: sqlite3.Connection, since: float) -> tuple[CancelRequest, ...]:
    return tuple(
        CancelRequest(*row) for row in connection.execute(SQL["asked_processes"], (since,)).fetchall()
    )


def _end_answered_one(connection: sqlite3.Connection, run_id: str) -> tuple[bool, JsonObject | None]:
    row = connection.execute(SQL["answered"], (run_id,)).fetchone()
    return bool(row and row[0] is not None), value_of(row[0] or None) if row else None


def _waiting_one(connection: sqlite3.Connection, item: tuple[str, str | None, int]) -> tuple[RunRow, ...]:
    return tuple(map(run_of, connection.execute(SQL["waiting"], item).fetchall()))


def _expire_keys_one(connection: sqlite3.Connection, now: float) -> None:
    connection.execute(SQL["expire_keys"], (now,))


def _delete_one(connection: sqlite3.Connection, item: tuple[str, float]) -> int:
    name, bound = item
    return connection.execute(SQL[name], (bound, _CHUNK)).rowcount


def _erase_one(connection: sqlite3.Connection, item: tuple[str, str, float]) -> int:
    tenant, owner, now = item
    for run in map(run_of, connection.execute(SQL["owned_open"], (tenant, owner)).fetchall()):
        _cancel_one(connection, (run.run_id, now))
    connection.execute(SQL["erase_keys"], (tenant, owner))
    return connection.execute(SQL["erase_owner"], (tenant, owner)).rowcount


_accept = partial(_each, _accept_one)
_name = partial(_each, _name_one)
_get = partial(_each, _run)
_list = partial(_each, _list_one)
_trace = partial(_each, _trace_one)
_claim = partial(_each, _claim_one)
_following = partial(_each, _following_one)
_next_of = partial(_each, _next_of_one)
_queued = partial(_each, _queued_one)
_commit = partial(_each, _commit_one)
_steps = partial(_each, _steps_one)
_events = partial(_each, _events_one)
_advance = partial(_each, _advance_one)
_hand_back = partial(_each, _hand_back_one)
_cancel = partial(_each, _cancel_one)
_cancelling = partial(_each, _cancelling_one)
_beat = partial(_each, _beat_one)
_leave = partial(_each, _leave_one)
_overdue = partial(_each, _overdue_one)
_run_all = partial(_each, _run_one)
_ends_asked = partial(_each, _ends_asked_one)
_end_answered = partial(_each, _end_answered_one)
_waiting = partial(_each, _waiting_one)
_expire_keys = partial(_each, _expire_keys_one)
_delete = partial(_each, _delete_one)
_erase_owner = partial(_each, _erase_one)
