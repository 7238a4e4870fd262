"""Plain runs with an `Idempotency-Key`: the same key and body is the same run, executed once.

A durable run takes its key when it is accepted. The row of a plain one is on disk before the run starts, with
the key, and has the result before a caller is answered. A second caller with the key waits for that row,
whichever process executes the run. The run continues when its callers leave: they come back for the answer.

If its process dies, the row fails with `interrupted`, and the key may be used again. What the tools of the
run have done until then stays done. A durable run does more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from astromesh.durable.base import ENDED_STATUSES, IdempotencyKey, RunChange, RunRow, SegmentClaim
from astromesh.durable.run_registry import row_of
from astromesh.durable.run_worker import RunWorker
from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import AstromeshError, EventsGone, LeaseLost, StoreError, stored_details
from astromesh.logs import get_logger
from astromesh.runtime.records import RunAnswer
from astromesh.runtime.runs import Runs, answer_of
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import EventSink
from astromesh.telemetry.run_log import RunLog
from astromesh.types import Event, JsonObject

#: seconds for which a key is stored
KEY_SECONDS = 86_400.0
#: seconds between two polls at the row of another process: the first, the longest
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS = 0.02, 0.25
#: runs that have not begun, and whose rows wait for the store to be deleted
_MAX_WITHDRAWALS = 1000

Work = Callable[[], Awaitable[RunAnswer]]
Leave = Callable[[], None]

log = get_logger("astromesh.runs")


class IdempotentRuns:
    """The plain runs with keys of one process.

    Args:
        runs: Has the events of those that this process executes.
    """

    def __init__(self, durable: RunWorker, runs: Runs, clock: Clock) -> None:
        self._durable, self._runs, self._clock = durable, runs, clock
        self._local: dict[str, _SharedRun] = {}
        self._withdrawals: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        key: IdempotencyKey,
        run: RunLog,
        work: Work,
        sinks: Sequence[EventSink],
        *,
        abandoned: bool = False,
    ) -> RunAnswer:
        """Returns the answer of `work`, or of the run that has the key already.

        Args:
            run: The record of the run that `work` executes.
            sinks: The listeners of `work`. If another run has the key, they receive its events.
            abandoned: Whether the run is cancelled when its last caller leaves.

        Raises:
            IdempotencyConflict: the key was used with another body.
            AstromeshError: the error of the run.
        """
        await self._durable.start()
        row = self._row(run)
        stored = await self._accept(row, key)
        if stored.run_id == row.run_id:
            self._local[row.run_id] = _SharedRun(
                asyncio.create_task(self._perform(row, run, work)), abandoned
            )
            return await self._local[row.run_id].result()
        followed = await self._follow(stored, sinks)
        try:
            if (call := self._local.get(stored.run_id)) is not None:
                return await call.result()
            ended = await self._wait_for_end(stored)
            if ended is None:  # it was withdrawn, or erased: its key is free
                return await self.answer(key, run, work, sinks, abandoned=abandoned)
            for sink in sinks:
                if sink not in followed:
                    sink.send(last_event(ended))
            return answer_of(ended, stored.run_id)
        finally:
            for leave in filter(None, followed.values()):
                leave()

    def _row(self, run: RunLog) -> RunRow:
        return RunRow(
            run.run_id, run.tenant, run.owner, run.agent, run.session_id, run.trace_id, "running",
            self._clock.now(), worker=self._durable.worker, metadata=dict(run.metadata), tags=run.tags,
        )  # fmt: skip

    async def _accept(self, row: RunRow, key: IdempotencyKey) -> RunRow:
        """Stores the row of a run with its key, or returns the run that has the key already.

        If the caller leaves meanwhile, or the store fails, the run does not begin, and its key is free.
        """
        accepting = asyncio.ensure_future(self._durable.store.accept(row, key))
        try:
            return await asyncio.shield(accepting)
        except (asyncio.CancelledError, StoreError):
            if len(self._withdrawals) < _MAX_WITHDRAWALS:
                withdrawal = asyncio.create_task(self._withdraw(row, accepting))
                self._withdrawals.add(withdrawal)
                withdrawal.add_done_callback(self._withdrawals.discard)
            raise

    async def _withdraw(self, row: RunRow, accepting: asyncio.Future[RunRow]) -> None:
        await asyncio.wait([accepting])
        await retry_while_unavailable(partial(self._durable.store.withdraw, _claim_of(row)))

    async def _perform(self, row: RunRow, run: RunLog, work: Work) -> RunAnswer:
        try:
            answer = await work()
        except AstromeshError as error:
            await self._settle(row, run, stored_details(error))
            raise
        except asyncio.CancelledError:  # the last caller has left
            await asyncio.shield(self._settle(row, run, {}))
            raise
        else:
            await self._settle(row, run, {})
            return answer
        finally:
            self._local.pop(row.run_id, None)

    async def _settle(self, row: RunRow, run: RunLog, details: JsonObject) -> None:
        ended = row_of(run)
        change = RunChange(
            status=ended.status,
            result=ended.result,
            error={**ended.error, "more": details} if ended.error else None,
            usage=ended.usage,
            attempts=ended.attempts,
            finished_at=self._clock.now(),
        )
        try:
            commit = partial(self._durable.store.commit, _claim_of(row), change=change)
            await retry_while_unavailable(commit)
        except LeaseLost:  # other processes thought this one dead; its callers get their answer all the same
            log.warning("named_run_given_up", run_id=row.run_id)

    # -- the second caller ---------------------------------------------------------------------------------

    async def _follow(self, stored: RunRow, sinks: Sequence[EventSink]) -> dict[EventSink, Leave | None]:
        """Sends the events of a run of this process; of other processes only the last one is known.

        Returns the listeners that receive them, and what ends that.
        """
        followed = {}
        for sink in sinks:
            with suppress(EventsGone):
                followed[sink] = await self._runs.follow_here(stored, sink)
        return followed

    async def _wait_for_end(self, row: RunRow) -> RunRow | None:
        """Returns the row once the run has ended, or None once there is none."""
        pause, store = _FIRST_POLL_SECONDS, self._durable.store
        while row.status not in ENDED_STATUSES:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_SECONDS)
            found = await retry_while_unavailable(partial(store.get, row.run_id))
            if found is None:
                return None
            row = found
        return row


class _SharedRun:
    """An active run and its callers.

    Args:
        abandoned: Whether the run is cancelled when the last of them leaves.
    """

    def __init__(self, task: asyncio.Task[RunAnswer], abandoned: bool) -> None:
        self._task, self._abandoned = task, abandoned
        self._callers = 0
        task.add_done_callback(_retrieve_error)

    async def result(self) -> RunAnswer:
        self._callers += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._callers -= 1
            if self._abandoned and not self._callers and not self._task.done():
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task


def _retrieve_error(task: asyncio.Task[RunAnswer]) -> None:
    """Retrieves the error of a run without callers; it is stored in the row."""
    if not task.cancelled():
        task.exception()


def _claim_of(row: RunRow) -> SegmentClaim:
    return SegmentClaim(row.run_id, row.segment, row.worker)


def last_event(row: RunRow) -> Event:
    """Builds the last event of a run of another process."""
    data = row.result if row.status == "completed" and row.result else {}
    if row.status != "completed":
        response = (row.result or {}).get("response", "")
        data = {"response": response, "agent": row.agent, "usage": row.usage.to_json()}
    if row.error is not None:
        data = {"code": row.error["code"], "detail": row.error["detail"], **data}
    return Event(row.run_id, 1, row.finished_at, f"run.{row.status}", data)
