"""The store of runs, for both databases. The queries are in `sql/runs.sql`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import ClassVar, NamedTuple

from astromesh.durable.base import (
    ENDED_STATUSES,
    MAX_DEATHS,
    NO_AGENT_LIMITS,
    NO_CONTENTS,
    NO_RECORDINGS,
    CancelRequest,
    ConcurrencyPolicy,
    EventRequest,
    IdempotencyKey,
    JournalStep,
    LiveWorker,
    QueueDepth,
    QueuedRun,
    RunChange,
    RunChannel,
    RunQuery,
    RunRecording,
    RunRow,
    RunSample,
    RunTotals,
    Schedule,
    ScheduleQuery,
    SegmentClaim,
    StoredCallback,
    WaitingRun,
)
from astromesh.durable.callbacks import SqlCallbacks, callback_values
from astromesh.durable.serialization import (
    PLACE,
    archive_values,
    attachment_hashes,
    event_of,
    event_values,
    run_fragments,
    run_of,
    run_values,
    step_of,
    step_values,
    text_of,
    trace_of,
    usage_of,
    value_of,
)
from astromesh.errors import (
    DeadlineExceeded,
    IdempotencyConflict,
    Interrupted,
    LeaseLost,
    RunCrashed,
    SessionBusy,
)
from astromesh.storage.queries import Dialect, Row, SqlStore, Transaction, write_in_chunks
from astromesh.types import Event, JsonObject, SessionKey, Usage


class SqlSchedules(SqlStore):
    """A ScheduleStore in the database of the runs."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "runs"

    async def add_schedule(self, schedule: Schedule, limit: int) -> bool:
        async def add(tx: Transaction) -> bool:
            who = (schedule.tenant, schedule.owner)
            await tx.lock("schedules", *who)
            if (await tx.fetch("count_schedules", *who))[0][0] >= limit:
                return False
            await tx.execute("add_schedule", *schedule)
            return True

        return await self._queries.transact(add, synced=True)

    async def replace_file_schedules(self, schedules: Sequence[Schedule], current: Collection[str]) -> None:
        async def replace(tx: Transaction) -> None:
            await tx.lock("schedules")
            present = {one.id for one in schedules}
            for stored, kind, target in await tx.fetch("file_schedules"):
                if stored not in present and f"{kind} {target}" not in current:
                    await tx.execute("delete_schedule", stored)
            for one in schedules:
                await tx.execute("add_schedule", *one)

        await self._queries.transact(replace, synced=True)

    async def take_schedules(self, now: float, until: float, limit: int) -> tuple[Schedule, ...]:
        return tuple(Schedule(*row) for row in await self._queries.write("take_schedules", now, until, limit))

    async def next_schedule(self) -> float | None:
        due_at: float | None = (await self._queries.read("next_schedule"))[0][0]
        return due_at

    async def settle_schedule(self, settled: Schedule, instant: float, run_expires_at: float) -> None:
        async def settle(tx: Transaction) -> None:
            outcome = (settled.instant, settled.due_at, settled.last_at, settled.last_id, settled.error)
            await tx.execute("settle_schedule", settled.id, instant, *outcome)
            await tx.execute("shorten_key", settled.last_id, run_expires_at)

        await self._queries.transact(settle, synced=True)

    async def postpone_schedule(self, id: str, instant: float, due_at: float, error: str) -> None:
        await self._queries.write("postpone_schedule", id, instant, due_at, error)

    async def schedule(self, id: str, tenant: str, owner: str | None) -> Schedule | None:
        rows = await self._queries.read("schedule", id, tenant, owner)
        return Schedule(*rows[0]) if rows else None

    async def schedules(self, filter: ScheduleQuery) -> tuple[Schedule, ...]:
        return tuple(Schedule(*row) for row in await self._queries.read("schedules", *filter))

    async def pause_schedule(self, id: str, paused: bool, instant: float, due_at: float) -> None:
        await self._queries.write("pause_schedule", id, int(paused), instant, due_at)

    async def delete_schedule(self, id: str) -> None:
        await self._queries.write("delete_schedule", id, synced=True)


#: runs deleted in one transaction, so that others get their turn in between
_CHUNK = 200
#: seconds after which a worker that sends no heartbeat is deleted
_WORKER_RETENTION_SECONDS = 86_400.0


class Commit(NamedTuple):
    """The data that one call of `RunStore.commit` writes."""

    claim: SegmentClaim
    steps: Sequence[JournalStep]
    events: Sequence[Event]
    change: RunChange | None
    nested: Sequence[RunRow]


class _StoredKey(NamedTuple):
    body_hash: str
    run_id: str

    def require_body(self, key: IdempotencyKey) -> None:
        """Raises: IdempotencyConflict: the key was stored with another body."""
        if self.body_hash != key.body_hash:
            raise IdempotencyConflict(
                "This Idempotency-Key was used with another request; send a new key, or the same "
                "request again."
            )


class SqlRuns(SqlCallbacks, SqlSchedules):
    """A RunStore over one database, which it may share with others."""

    #: a run as the values of `RUN_COLUMNS`
    values = staticmethod(run_values)

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        return {**super().fragments(dialect), **run_fragments(dialect)}

    async def accept(
        self,
        run: RunRow,
        key: IdempotencyKey | None = None,
        policy: ConcurrencyPolicy = "enqueue",
        steps: Sequence[JournalStep] = (),
        callback: StoredCallback | None = None,
        attachments: Mapping[str, bytes] = NO_CONTENTS,
    ) -> RunRow:
        has_more = steps or callback is not None or attachment_hashes(run.request)
        if key is None and policy == "enqueue" and not has_more:
            await self._add(run)
            return run
        accept = partial(self._accept, run, key, policy, steps, callback, attachments)
        return await self._queries.transact(accept, synced=True)

    async def reserve_key(self, key: IdempotencyKey, candidate_id: str) -> str:
        return await self._queries.transact(partial(self._reserve_key, key, candidate_id), synced=True)

    async def archive(
        self,
        runs: Sequence[tuple[RunRow, Sequence[Event]]],
        recordings: Mapping[str, RunRecording] = NO_RECORDINGS,
    ) -> None:
        async def archive(tx: Transaction) -> None:
            rows = [archive_values(run, events, self.values) for run, events in runs]
            await tx.execute_many("archive", [row for row, _ in rows])
            await tx.execute_many("store_trace", [trace for _, trace in rows])
            found = [(run.run_id, recordings[run.run_id]) for run, _ in runs if run.run_id in recordings]
            if found:
                requests = [(run_id, *map(text_of, (r.request, r.manifest, r.caller))) for run_id, r in found]
                await tx.execute_many("store_recording", requests)
                steps = [step_values(run_id, step) for run_id, r in found for step in r.steps]
                await tx.execute_many("store_step", steps)
                for run, _ in runs:
                    if r := recordings.get(run.run_id):
                        await _store_attachments(run, r.request, r.attachments, tx)

        await self._queries.transact(archive)

    async def trace(self, trace_id: str) -> tuple[tuple[RunRow, tuple[Event, ...]], ...]:
        return tuple(map(trace_of, await self._queries.read("trace", trace_id)))

    async def get(self, run_id: str) -> RunRow | None:
        rows = await self._queries.read("get", run_id)
        return run_of(rows[0]) if rows else None

    async def list(self, filter: RunQuery) -> tuple[tuple[RunRow, ...], Usage]:
        where = _where(filter)
        rows = await self._queries.read("list", *where, filter.limit, filter.after)
        numbers = await self._queries.read("usage", *where)
        return tuple(map(run_of, rows)), usage_of(numbers[0])

    async def count(self, filter: RunQuery) -> int:
        return int((await self._queries.read("count", *_where(filter)))[0][0])

    async def samples(self, tenant: str, owner: str | None, since: str, limit: int) -> tuple[RunSample, ...]:
        return tuple(
            RunSample(*row) for row in await self._queries.read("samples", tenant, owner, since, limit)
        )

    async def totals(self, tenant: str, owner: str | None, since: str) -> RunTotals:
        return RunTotals(*(await self._queries.read("totals", tenant, owner, since))[0])

    async def claim(
        self, run_id: str, segment: int, worker: str, limits: Mapping[str, int] = NO_AGENT_LIMITS
    ) -> RunRow | None:
        claim = SegmentClaim(run_id, segment, worker)
        return await self._queries.transact(partial(self._claim_within, claim, limits))

    async def next_in_session(self, run: RunRow) -> tuple[str, int] | None:
        rows = await self._queries.read("next_in_session", run.tenant, run.agent, run.session_id, run.owner)
        return _first_segment(rows)

    async def next_of_agent(self, agent: str) -> tuple[QueuedRun, ...]:
        rows = await self._queries.read("next_of_agent", agent, self._clock.now())
        return tuple(QueuedRun(*row) for row in rows)

    async def queued(self, agent: str, tenant: str) -> tuple[int, float]:
        rows = await self._queries.read("queued", agent, self._clock.now(), tenant)
        return rows[0][0], rows[0][1]

    async def queues(self) -> tuple[QueueDepth, ...]:
        return tuple(QueueDepth(*row) for row in await self._queries.read("queues", self._clock.now()))

    async def workers(self, since: float) -> tuple[LiveWorker, ...]:
        return tuple(LiveWorker(*row) for row in await self._queries.read("live_workers", since))

    async def commit(
        self, claim: SegmentClaim, *, steps: Sequence[JournalStep] = (), events: Sequence[Event] = (),
        change: RunChange | None = None, nested: Sequence[RunRow] = (),
    ) -> None:  # fmt: skip
        if not await self._commit(Commit(claim, steps, events, change, nested)):
            raise LeaseLost(f"The run {claim.run_id!r} is no longer this worker's, or it has ended.")

    def scrub_soon(self) -> None:
        self._queries.scrub_soon()

    async def steps(self, run_id: str) -> tuple[JournalStep, ...]:
        return tuple(map(step_of, await self._queries.read("steps", run_id)))

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        rows = await self._queries.read("events", run_id, after, limit)
        return tuple(map(partial(event_of, run_id), rows))

    async def advance(self, run_id: str, segment: int, steps: Sequence[JournalStep] = ()) -> RunRow | None:
        async def advance(tx: Transaction) -> RunRow | None:
            rows = await tx.fetch("advance", run_id, segment, self._clock.now())
            if not rows:
                return None
            await tx.execute_many("store_step", [step_values(run_id, step) for step in steps])
            return run_of(rows[0])

        return await self._queries.transact(advance, synced=True)

    async def requeue(self, claim: SegmentClaim) -> RunRow | None:
        rows = await self._queries.write("requeue_claimed", *claim, self._clock.now())
        return run_of(rows[0]) if rows else None

    async def cancel(self, run_id: str) -> RunRow | None:
        return await self._queries.transact(partial(self._cancel, run_id), synced=True)

    async def raw(self, limit: int = 100) -> tuple[RunRow, ...]:
        return tuple(map(run_of, await self._queries.read("raw", limit)))

    async def redact(self, run_id: str, steps: Sequence[JournalStep], events: Sequence[Event]) -> None:
        async def redact(tx: Transaction) -> None:
            if await tx.execute("settle_raw", run_id):
                texts = [(run_id, step.path, step.n, text_of(step.output)) for step in steps]
                await tx.execute_many("redact_step", texts)
                await tx.execute_many("redact_event", [(run_id, e.seq, text_of(e.data)) for e in events])

        await self._queries.transact(redact)
        self.scrub_soon()

    async def cancelling(self, worker: str) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._queries.read("cancelling", worker))

    async def request_cancel(self, request: CancelRequest) -> None:
        await self._queries.write("add_cancel_request", *request, self._clock.now())

    async def cancel_requests(self, since: float) -> tuple[CancelRequest, ...]:
        return tuple(CancelRequest(*row) for row in await self._queries.read("cancel_requests", since))

    async def answer_cancel(self, id: str, line: JsonObject | None) -> None:
        await self._queries.write("answer_cancel", id, text_of(line) or "")

    async def cancel_answer(self, id: str) -> tuple[bool, JsonObject | None]:
        rows = await self._queries.read("cancel_answer", id)
        answer = rows[0][0] if rows else None
        return answer is not None, value_of(answer or None)

    async def delete_cancel(self, id: str, before: float) -> None:
        await self._queries.write("delete_cancel", id, before)

    async def request_events(self, request: EventRequest, now: float) -> None:
        await self._queries.write("request_events", *request, now)

    async def event_requests(self, since: float) -> tuple[EventRequest, ...]:
        return tuple(EventRequest(*row) for row in await self._queries.read("event_requests", since))

    async def accept_events(self, request: EventRequest, now: float, since: int) -> None:
        await self._queries.write("accept_events", *request, now, since)

    async def events_accepted(self, request: EventRequest) -> tuple[float, int]:
        rows = await self._queries.read("events_accepted", *request)
        return (rows[0][0], rows[0][1]) if rows else (0.0, 0)

    async def write_heard(self, events: Sequence[Event]) -> None:
        async def write(tx: Transaction) -> None:
            await tx.execute_many("write_heard", [event_values(event) for event in events])

        await self._queries.transact(write)

    async def heard(self, run_id: str, after: int, limit: int) -> tuple[Event, ...]:
        rows = await self._queries.read("heard", run_id, after, limit)
        return tuple(map(partial(event_of, run_id), rows))

    async def request_state(self, id: str, request: EventRequest, now: float) -> None:
        await self._queries.write("request_state", id, *request, now)

    async def state_requests(self, since: float) -> tuple[tuple[str, EventRequest], ...]:
        rows = await self._queries.read("state_requests", since)
        return tuple((row[0], EventRequest(*tuple(row)[1:])) for row in rows)

    async def answer_state(self, id: str, state: JsonObject) -> None:
        await self._queries.write("answer_state", id, text_of(state))

    async def state_answer(self, id: str) -> JsonObject | None:
        rows = await self._queries.read("state_answer", id)
        return value_of(rows[0][0]) if rows else None

    async def delete_lookup(self, id: str, before: float) -> None:
        await self._queries.write("delete_lookup", id, before)

    async def expire_listeners(self, before: float) -> None:
        async def expire(tx: Transaction) -> None:
            if await tx.execute("expire_listeners", before):
                await tx.execute("expire_heard")

        await self._queries.transact(expire)

    def channel(self, received: Callable[[str, int], None], changed: Callable[[], None]) -> RunChannel | None:
        return None

    async def heartbeat(self, worker: str) -> None:
        await self._queries.write("heartbeat", worker, self._clock.now())

    async def release_worker(self, worker: str, *, died: bool = False) -> tuple[tuple[str, int], ...]:
        async def release(tx: Transaction) -> tuple[tuple[str, int], ...]:
            await tx.execute("delete_worker", worker)
            rows = await tx.fetch("requeue_of_worker", worker, self._clock.now(), int(died))
            return await self._without_crashed(rows, tx)

        return await self._queries.transact(release)

    async def overdue(
        self,
        lease: float,
        limit: int = 100,
        *,
        queued: float = 0.0,
        limits: Mapping[str, int] = NO_AGENT_LIMITS,
    ) -> tuple[tuple[str, int], ...]:
        now = self._clock.now()
        rows = await self._queries.read("anything_due", now, now - lease, now - (queued or lease))
        if not rows[0][0]:
            return ()
        return await self._queries.transact(partial(self._overdue, lease, limit, queued or lease, limits))

    async def waiting(self, tenant: str, owner: str | None, limit: int = 100) -> tuple[WaitingRun, ...]:
        rows = await self._queries.read("waiting", tenant, owner, limit)
        return tuple(WaitingRun(agent, session, value_of(found) or None) for agent, session, found in rows)

    async def attachments(self, run_id: str) -> Mapping[str, bytes]:
        return {row[0]: bytes(row[1]) for row in await self._queries.read("attachments", run_id)}

    async def erase_attachments(self, key: SessionKey) -> int:
        async def erase(tx: Transaction) -> int:
            return await tx.execute("erase_attachments", *key)

        return await self._queries.transact(erase)

    async def withdraw(self, claim: SegmentClaim) -> None:
        async def withdraw(tx: Transaction) -> None:
            if await tx.execute("withdraw", *claim):
                await tx.execute("free_key", claim.run_id)

        await self._queries.transact(withdraw)

    async def delete(self, run_id: str) -> None:
        async def delete(tx: Transaction) -> None:
            await tx.execute("free_key", run_id)
            await tx.execute("delete", run_id)

        await self._queries.transact(delete)
        self.scrub_soon()

    async def delete_recording(self, run_id: str) -> None:
        async def delete(tx: Transaction) -> None:
            await tx.execute("delete_steps", run_id)
            await tx.execute("forget_request", run_id)

        await self._queries.transact(delete)

    async def expire_recordings(self, before: float) -> int:
        return await write_in_chunks(self._queries, "expire_steps", before, chunk=_CHUNK)

    async def expire(self, before: float, max_runs: int) -> int:
        await self._queries.write("expire_keys", self._clock.now())
        await self._queries.write("expire_workers", self._clock.now() - _WORKER_RETENTION_SECONDS)
        old = await write_in_chunks(self._queries, "expire", before, chunk=_CHUNK)
        return old + await write_in_chunks(self._queries, "expire_many", max_runs, chunk=_CHUNK)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        async def erase(tx: Transaction) -> int:
            for run in map(run_of, await tx.fetch("open_of_owner", tenant, owner)):
                await self._cancel(run.run_id, tx)
            await tx.execute("erase_keys", tenant, owner)
            schedules = await tx.execute("erase_schedules", tenant, owner)
            return schedules + await tx.execute("erase_owner", tenant, owner)

        return await self._queries.transact(erase)

    # -- what the databases do in different ways -----------------------------------------------------------

    async def _add(self, run: RunRow) -> None:
        """Stores a run that nothing comes with, in one transaction with others."""
        raise NotImplementedError

    async def _commit_run(self, commit: Commit) -> bool:
        """Writes a commit without nested runs, in one transaction with others.

        Returns False if the claim is lost.
        """
        raise NotImplementedError

    async def _claim_segment(self, claim: SegmentClaim, tx: Transaction) -> RunRow | None:
        """Claims a segment that is due, and renews the lease of its worker."""
        raise NotImplementedError

    async def _write_segment(self, commit: Commit, tx: Transaction) -> bool:
        """Writes steps and the change of a run. Returns False if the claim is lost."""
        raise NotImplementedError

    # -- parts of a transaction ----------------------------------------------------------------------------

    async def _accept(  # noqa: PLR0913 (what is stored in one transaction)
        self,
        run: RunRow,
        key: IdempotencyKey | None,
        policy: ConcurrencyPolicy,
        steps: Sequence[JournalStep],
        callback: StoredCallback | None,
        attachments: Mapping[str, bytes],
        tx: Transaction,
    ) -> RunRow:
        if key is not None:
            stored_key = await self._find_key(key, tx)
            if stored_key is not None and (rows := await tx.fetch("get", stored_key.run_id)):
                stored_key.require_body(key)
                return run_of(rows[0])
        stored = run if policy == "enqueue" else await self._apply_policy(run, policy, tx)
        if key is not None:
            await tx.execute("store_key", *_stored_key(key), stored.run_id, key.expires_at)
        if stored is run:
            await tx.execute("add", *self.values(run), self._clock.now())
            if steps:
                await tx.execute_many("store_step", [step_values(run.run_id, step) for step in steps])
        await _store_attachments(stored, run.request, attachments, tx)
        if callback is not None:
            await tx.execute("add_callback", *callback_values(stored.run_id, callback))
        return stored

    async def _reserve_key(self, key: IdempotencyKey, candidate_id: str, tx: Transaction) -> str:
        stored_key = await self._find_key(key, tx)
        if stored_key is not None:
            stored_key.require_body(key)
            return stored_key.run_id
        await tx.execute("store_key", *_stored_key(key), candidate_id, key.expires_at)
        return candidate_id

    async def _find_key(self, key: IdempotencyKey, tx: Transaction) -> _StoredKey | None:
        """Finds what a key was stored with. No other transaction stores it meanwhile."""
        place = _stored_key(key)[:4]
        await tx.lock(*place)
        rows = await tx.fetch("key", *place, self._clock.now())
        return _StoredKey(*rows[0]) if rows else None

    async def _apply_policy(self, run: RunRow, policy: ConcurrencyPolicy, tx: Transaction) -> RunRow:
        """Returns the run, or the run that it was merged into."""
        session = (run.tenant, run.agent, run.session_id, run.owner)
        await tx.lock("session", *session)
        others = tuple(map(run_of, await tx.fetch("open_of_session", *session)))
        if policy == "reject" and others:
            raise SessionBusy(
                "The session is answering another message; send this one again when it is done."
            )
        for other in others:
            if policy == "interrupt" and not _came_later(other, run):
                await self._cancel(other.run_id, tx)
            elif policy == "merge" and _can_merge(run, other, self._clock.now()):
                request = text_of(merge_requests(other.request, run.request))
                await tx.execute("merge", other.run_id, request, run.priority)
                return other
        return run

    async def _claim_within(
        self, claim: SegmentClaim, limits: Mapping[str, int], tx: Transaction
    ) -> RunRow | None:
        """Claims a segment unless its agent runs as often as it may."""
        agents = await tx.fetch("agent_of", claim.run_id) if limits else ()
        if agents and (agent := agents[0][0]) in limits:
            await tx.lock("agent", agent)
            if (await tx.fetch("running", agent, claim.run_id))[0][0] >= limits[agent]:
                return None
        return await self._claim_segment(claim, tx)

    async def _commit(self, commit: Commit) -> bool:
        writers = {event.run_id for event in commit.events}
        if not (commit.nested or ends_nested(commit) or writers - {commit.claim.run_id}):
            return await self._commit_run(commit)
        return await self._queries.transact(partial(self._commit_tree, commit), synced=is_promise(commit))

    async def _commit_tree(self, commit: Commit, tx: Transaction) -> bool:
        """Writes a commit with its nested runs. Returns False if the claim is lost."""
        if not await self._write_segment(commit, tx):
            return False
        if commit.nested:
            nested = [(*self.values(run), run.created_at) for run in commit.nested]
            await tx.execute_many("store_nested", nested)
        if commit.events:
            await tx.execute_many("add_event", [event_values(event) for event in commit.events])
        if ends_nested(commit):
            assert commit.change is not None
            await self._end_nested(
                commit.claim.run_id, commit.change.finished_at or 0.0, commit.change.error, tx
            )
        return True

    async def _cancel(self, run_id: str, tx: Transaction) -> RunRow | None:
        rows = await tx.fetch("lock", run_id)
        if not rows:
            return None
        run = run_of(rows[0])
        if run.status in ("queued", "waiting"):
            await self._end(run, "cancelled", self._clock.now(), None, tx)
        else:
            await tx.execute("request_cancel", run_id)
        return run_of((await tx.fetch("get", run_id))[0])

    async def _end(
        self, run: RunRow, status: str, now: float, error: JsonObject | None, tx: Transaction
    ) -> None:
        """Ends a run that no worker executes, with its last event. Its record is raw, without its rules."""
        await tx.execute("end", run.run_id, status, now, text_of(error))
        data = {**(error or {}), "response": "", "agent": run.agent, "usage": run.usage.to_json()}
        await tx.execute("add_last_event", run.run_id, now, f"run.{status}", text_of(data))
        await self._end_nested(run.run_id, now, error, tx)

    async def _without_crashed(self, rows: Sequence[Row], tx: Transaction) -> tuple[tuple[str, int], ...]:
        """Ends runs that were queued again once too often; returns the others as (run_id, segment)."""
        runs = tuple(map(run_of, rows))
        for run in runs:
            if run.deaths >= MAX_DEATHS:
                await self._end(run, "failed", self._clock.now(), _CRASHED_ERROR, tx)
        return tuple((run.run_id, run.segment) for run in runs if run.deaths < MAX_DEATHS)

    async def _end_nested(self, run_id: str, now: float, error: JsonObject | None, tx: Transaction) -> None:
        """Ends the runs nested in a run that has ended."""
        for run in map(run_of, await tx.fetch("open_of_parent", run_id)):
            await self._end(run, "failed" if error else "cancelled", now, error, tx)

    async def _overdue(
        self, lease: float, limit: int, queued: float, limits: Mapping[str, int], tx: Transaction
    ) -> tuple[tuple[str, int], ...]:
        now = self._clock.now()
        due: list[tuple[str, int]] = []
        for run in map(run_of, await tx.fetch("orphaned", now - lease, limit)):
            if run.cancelling:
                await self._end(run, "cancelled", now, None, tx)
            elif 0.0 < run.deadline_at <= now:
                await self._end(run, "failed", now, _DEADLINE_ERROR, tx)
            else:
                rows = await tx.fetch("requeue", run.run_id, run.segment, now, 1)
                due += await self._without_crashed(rows, tx)
        for run in map(run_of, await tx.fetch("woken", now, limit)):
            if run.cancelling:
                await self._end(run, "cancelled", now, None, tx)
                continue
            rows = await tx.fetch("requeue", run.run_id, run.segment, now, 0)
            due += await self._without_crashed(rows, tx)
        for run in map(run_of, await tx.fetch("interrupted", now - lease, limit)):
            await tx.execute("end", run.run_id, "failed", now, text_of(_INTERRUPTED_ERROR))
            await tx.execute("free_key", run.run_id)
        full = [a for a, most in limits.items() if (await tx.fetch("running", a, ""))[0][0] >= most]
        due += [(row[0], row[1]) for row in await tx.fetch("redispatch", now - queued, now, limit, full)]
        return tuple(dict.fromkeys(due))


async def _store_attachments(
    run: RunRow, request: JsonObject, contents: Mapping[str, bytes], tx: Transaction
) -> None:
    """Stores contents once per tenant, and what a run refers to."""
    hashes = attachment_hashes(request)
    known = [(run.tenant, name, contents[name]) for name in hashes if name in contents]
    if known:
        await tx.execute_many("store_attachment", known)
    if hashes:
        await tx.execute_many("refer_to_attachment", [(run.run_id, run.tenant, name) for name in hashes])


def _where(filter: RunQuery) -> tuple[object, ...]:
    """Returns the parameters of the fragment `matches`."""
    # a text, and a number or boolean, as JSON writes them
    values = [(key, json.dumps(value, ensure_ascii=False), value) for key, value in filter.metadata]
    labels = json.dumps(filter.tags), json.dumps(values)
    return *filter[:5], *labels, filter.since, filter.until, filter.min_cost_usd, filter.min_seconds


def _first_segment(rows: Sequence[Row]) -> tuple[str, int] | None:
    return (rows[0][0], rows[0][1]) if rows else None


def is_promise(commit: Commit) -> bool:
    """Whether a commit must survive a loss of power.

    It begins an effect, or ends a run, which a caller may be told.
    """
    if commit.change is not None and commit.change.status in ENDED_STATUSES:
        return True
    return any(step.state == "intent" and _must_not_repeat(step) for step in commit.steps)


def _must_not_repeat(step: JournalStep) -> bool:
    return step.kind != "model" and (step.kind != "node" or bool(step.output and step.output["once"]))


def ends_nested(commit: Commit) -> bool:
    """Whether runs of earlier segments may be nested in the run that a commit ends."""
    return commit.claim.segment > 1 and commit.change is not None and bool(commit.change.finished_at)


def _can_merge(run: RunRow, earlier: RunRow, now: float) -> bool:
    """Whether a run becomes part of an earlier one of its session that has not begun."""
    whole = all(one.request.get("history") is None and "persist" not in one.request for one in (run, earlier))
    return whole and earlier.status == "queued" and earlier.owner == run.owner and earlier.wake_at > now


def _stored_key(key: IdempotencyKey) -> tuple[str, str, str, str, str]:
    """Returns tenant, owner, route, the SHA-256 hex digits of the key, and the hash of the body."""
    return (*key[:3], sha256(key.key.encode()).hexdigest(), key.body_hash)


def _came_later(other: RunRow, run: RunRow) -> bool:
    """Whether a run took its place after another one whose transaction comes later."""
    place, others = int(run.request.get(PLACE, 0)), int(other.request.get(PLACE, 0))
    return 0 < place < others


def merge_requests(earlier: JsonObject, request: JsonObject) -> JsonObject:
    """Two requests as one: texts by newline, attachments in order, the rest of the first.

    What the input rules did to either counts, and they check the joined text, too.
    """
    both = {**earlier, "query": f"{earlier['query']}\n{request['query']}"}
    for key in ("images", "attachments"):  # `images`: as an earlier version stored them
        if found := [*earlier.get(key, ()), *request.get(key, ())]:
            both[key] = found
    if screenings := [one["screening"] for one in (earlier, request) if "screening" in one]:
        refused = next((one for one in screenings if one["guardrail"]), screenings[0])
        actions = [action for one in screenings for action in one["actions"]]
        both["screening"] = {**refused, "actions": actions, "again": True}
    return both


_INTERRUPTED_ERROR: JsonObject = {
    "code": Interrupted.code,
    "detail": "The server stopped in the middle of this run. Send it again; the same key may be used.",
}
_CRASHED_ERROR: JsonObject = {
    "code": RunCrashed.code,
    "detail": f"The process of this run died {MAX_DEATHS} times in a row, and no step of it ended between.",
}
_DEADLINE_ERROR: JsonObject = {
    "code": DeadlineExceeded.code,
    "detail": "The run reached its deadline before another worker could resume it.",
}
