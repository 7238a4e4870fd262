"""What stays of the runs that lived in this process: a row and a trace each, written off the hot path.

A run costs an append to a list. Rows and traces are made and written in batches, a moment after the runs have
ended; a process that is killed loses the notes of that moment, and no turn. While the store is away they
wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from astromesh.abc.durable import ENDED, RunRow, RunStore
from astromesh.errors import AstromeshError, StoreUnavailable
from astromesh.runtime.registry import outcome_of
from astromesh.telemetry.runs import RunLog
from astromesh.telemetry.traces import outline

#: seconds after which notes are written, as late as that: runs that end together are not held up by notes;
#: and between two tries while the store is away
_DELAY, _PAUSE = 1.0, 1.0
#: runs whose notes are written at once, those of one batch, and those that may wait at all
_MANY, _BATCH, _MOST = 512, 256, 10_000

log = structlog.get_logger("astromesh.runs")


class Notes:
    """The notes of one runtime.

    Args:
        store: opens the store of runs, or answers the open one.
    """

    def __init__(self, store: Callable[[], Awaitable[RunStore]]) -> None:
        self._store = store
        self._waiting: list[RunLog] = []
        #: those that the store did not take, and why
        self._left: list[RunLog] = []
        self._away: StoreUnavailable | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, ended: RunLog) -> None:
        """Notes a run that has ended."""
        self._waiting.append(ended)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY, self._begin)
        elif len(self._waiting) == _MANY and not self._left:
            self._begin()

    async def flush(self) -> None:
        """Everything so far is in the store.

        Raises:
            StoreUnavailable: some of it has to wait for the store.
        """
        self._begin()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._left and self._away is not None:
            raise self._away

    async def close(self) -> None:
        """The last try."""
        try:
            await self.flush()
        except StoreUnavailable as error:
            _given_up(len(self._left), error)
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._waiting, self._left = [*self._left, *self._waiting], [], []
        if len(ended) > _MOST:
            _given_up(len(ended) - _MOST, self._away)
            del ended[:-_MOST]
        if ended:
            task = asyncio.create_task(self._write(ended))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write(self, ended: Sequence[RunLog]) -> None:
        try:
            store = await self._store()
            while ended:
                batch, later = ended[:_BATCH], ended[_BATCH:]
                await store.note([(row_of(one), outline(one.events)) for one in batch if one.events])
                ended = later
                if not self._left:
                    self._away = None
        except StoreUnavailable as error:
            self._wait(ended, error)
        except AstromeshError as error:  # a note is a help, and there is nobody to tell
            _given_up(len(ended), error)

    def _wait(self, ended: Sequence[RunLog], error: StoreUnavailable) -> None:
        if self._away is None:
            log.warning("notes_wait_for_store", count=len(ended), error=str(error))
        self._left += ended
        self._away = error
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._begin)


def _given_up(count: int, error: AstromeshError | None) -> None:
    log.warning("runs_not_noted", count=count, error=str(error))


def row_of(ended: RunLog) -> RunRow:
    """The row of a run that has ended."""
    first, last = ended.events[0], ended.events[-1]
    status = ended.status
    result, error = outcome_of(ended)
    return RunRow(
        ended.run_id, ended.tenant, ended.owner, ended.agent, ended.session_id, ended.trace_id,
        status if status in ENDED else "failed", first.ts, ended.parent, finished_at=last.ts,  # type: ignore[arg-type]
        result=result, error=error, usage=ended.meter.usage, attempts=tuple(ended.attempts),
    )  # fmt: skip
