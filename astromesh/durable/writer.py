"""Writes the record of a durable run: in order, in batches, under the fencing token of its segment.

Steps, events and changes of the row that queue up during a transaction go into the next one. Events without a
waiting caller (deltas) are written within 25 ms. A store that is unavailable is retried until it answers. A
lost lease ends the writer, and nothing of its segment counts any more. Steps that the store refuses for any
other reason fail the run, which ends without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple, TypeVar

from astromesh.durable.base import JournalStep, RunChange, RunRow, RunStore, SegmentClaim
from astromesh.errors import AstromeshError, LeaseLost, StoreError
from astromesh.logs import OutageLog, get_logger
from astromesh.types import Event

T = TypeVar("T")

#: seconds that an event waits for others, and between two attempts while the store is unavailable
DELAY_SECONDS, RETRY_SECONDS = 0.025, 0.2
#: seconds for which a commit has shown that the lease is held
_LEASE_CHECK_SECONDS = 0.5
#: changes nothing, and is rejected if the lease is lost
_CHECK_LEASE = RunChange(wake_at=0.0)

#: outages of the store of runs, for all retries of this process
outages = OutageLog(get_logger("astromesh.durable"), "run_store_away", "run_store_back")


async def retry_while_unavailable(work: Callable[[], Awaitable[T]]) -> T:
    """Retries `work` while the store is unavailable, so that no accepted run is lost."""
    while True:
        try:
            result = await work()
        except StoreError as error:
            outages.failed(str(error))
            await asyncio.sleep(RETRY_SECONDS)
        else:
            outages.succeeded()
            return result


class _Batch(NamedTuple):
    steps: Sequence[JournalStep]
    events: Sequence[Event]
    change: RunChange | None
    nested: Sequence[RunRow]
    mark: int
    scrubs: bool


class SegmentWriter:
    """The one writer of a segment.

    Args:
        lost: called once, when another worker has the run.
        written: called after each transaction with its events.

    Attributes:
        last: the event that ends the segment.
        is_suspect: processes of the run have died; a step that ends now shows that they need not.
    """

    def __init__(
        self,
        store: RunStore,
        claim: SegmentClaim,
        lost: Callable[[], None],
        written: Callable[[Sequence[Event]], None],
    ) -> None:
        self.claim = claim
        self._store, self._lost, self._written = store, lost, written
        self._steps: dict[tuple[str, int], JournalStep] = {}
        self._events: list[Event] = []
        self._change: RunChange | None = None
        self._nested: dict[str, RunRow] = {}
        self.last: Event | None = None
        self.is_suspect = False
        self._scrubs = False
        self._added = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._lease_seen_at = -_LEASE_CHECK_SECONDS
        self._refusal: AstromeshError | None = None
        self._finished: asyncio.Future[None] | None = None
        self.closed = False

    def step(self, step: JournalStep) -> None:
        """Adds a step to the next transaction."""
        self._steps[step.path, step.n] = step
        if self.is_suspect and step.state == "done":
            self.is_suspect = False
            self.change(RunChange(deaths=0))
        self._add()

    def event(self, event: Event, *, last: bool = False) -> None:
        """Adds an event. The `last` one is written with the change that ends the segment, and not before."""
        if last:
            self.last = event
            return
        self._events.append(event)
        self._add()

    def nested(self, run: RunRow) -> None:
        """Adds the row of a nested run, before its first event and when it has ended."""
        self._nested[run.run_id] = run
        self._add()

    def change(self, change: RunChange) -> None:
        """Adds a change of the row. Later values replace earlier ones."""
        if self._change is not None:
            values = {name: value for name, value in change._asdict().items() if value is not None}
            change = self._change._replace(**values)
        self._change = change
        self._add()

    def scrub_soon(self) -> None:
        """Removes the text that the next transaction overwrites from the log of the database, too."""
        self._scrubs = True

    async def flush(self) -> None:
        """Returns when everything added so far is on disk. Never returns if the lease is lost.

        Raises:
            AstromeshError: The store has refused steps. The run is to end.
        """
        if self._refusal is not None:
            raise self._refusal
        await self._flushed()

    def _flushed(self) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._added, done))
        self._begin()
        return done

    async def require_lease(self) -> None:
        """Returns once every step is on disk and the lease is confirmed. Never returns if the lease is lost.

        Usually the commit of the last step has just shown that, and only events are left, which may wait.
        """
        is_fresh = monotonic() - self._lease_seen_at < _LEASE_CHECK_SECONDS
        if (
            is_fresh
            and self._task is None
            and not (self._steps or self._change or self._nested or self.closed)
        ):
            return
        self.change(_CHECK_LEASE)
        await self.flush()

    async def finish(self, change: RunChange) -> bool:
        """Writes the last transaction with the last event. Returns False if the lease is lost.

        Raises:
            AstromeshError: The store has refused it: the row of the run is as it was.
        """
        if self.closed:
            return False
        if self.last is not None:
            self._events.append(self.last)
        self.change(change)
        self._refusal = None
        self._finished = self._flushed()
        await asyncio.wait([self._finished])
        self.close()
        if self._finished.cancelled():
            return False
        self._finished.result()
        return True

    def close(self) -> None:
        """Stops writing. A `finish` returns, a `flush` never does."""
        self.closed = True
        if self._finished is not None:
            self._finished.cancel()
        self._steps, self._events, self._change, self._nested = {}, [], None, {}
        if self._timer is not None:
            self._timer.cancel()

    # -- transactions --------------------------------------------------------------------------------------

    def _add(self) -> None:
        self._added += 1
        if self._timer is None and self._task is None and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and not self.closed:
            self._task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while not self.closed and (self._has_more or self._waiting):
                batch = self._take()
                try:
                    is_held = await self._commit(batch)
                except Exception as error:  # noqa: BLE001 (of any store: it fails the run that waits for it)
                    self._refuse(batch, error)
                    continue
                if not is_held:
                    self.close()
                    self._lost()
                    return
                self._written(batch.events)
                self._resolve(batch.mark)
        finally:
            self._task = None

    @property
    def _has_more(self) -> bool:
        return bool(self._steps or self._events or self._change or self._nested)

    def _take(self) -> _Batch:
        steps, nested = tuple(self._steps.values()), tuple(self._nested.values())
        batch = _Batch(steps, self._events, self._change, nested, self._added, self._scrubs)
        self._steps, self._events, self._change, self._nested = {}, [], None, {}
        self._scrubs = False
        return batch

    async def _commit(self, batch: _Batch) -> bool:
        steps, events, change, nested = batch[:4]
        if not (steps or events or change or nested):
            return True
        write = partial(
            self._store.commit, self.claim, steps=steps, events=events, change=change, nested=nested
        )
        sent = monotonic()
        try:
            await retry_while_unavailable(write)
        except LeaseLost:
            return False
        self._lease_seen_at = sent
        if batch.scrubs:
            self._store.scrub_soon()
        return True

    def _refuse(self, batch: _Batch, error: Exception) -> None:
        """Fails those who wait, and keeps of a batch with steps what else is in it."""
        what = "Steps" if batch.steps else "The events or the result"
        self._refusal = refusal = AstromeshError(f"{what} of the run cannot be stored: {error}")
        refusal.__cause__ = error
        waiting, self._waiting = self._waiting, []
        if batch.steps:
            # the end follows without them
            self._waiting = [one for one in waiting if one[1] is self._finished]
            self._events = [*batch.events, *self._events]
            self._nested = {**{run.run_id: run for run in batch.nested}, **self._nested}
            newer, self._change = self._change, batch.change
            if newer is not None:
                self.change(newer)
        for one in waiting:
            if one not in self._waiting and not one[1].done():
                one[1].set_exception(refusal)

    def _resolve(self, mark: int) -> None:
        for upto, done in self._waiting:
            if upto <= mark and not done.done():
                done.set_result(None)
        self._waiting = [one for one in self._waiting if one[0] > mark]
