"""Archives plain runs: a row and a trace each, written after the run has ended.

A run costs one append to a list. Rows and traces are built and written in batches. A killed process loses the
runs of the last second from the archive, and no turn of a conversation. While the store is unavailable, the
runs wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from astromesh.durable.base import RunStore
from astromesh.durable.run_registry import row_of
from astromesh.errors import AstromeshError, StoreUnavailable
from astromesh.logs import get_logger
from astromesh.telemetry.run_log import RunLog
from astromesh.telemetry.traces import trace_events

#: seconds after which ended runs are written, so that active runs do not wait for that, and seconds between
#: two attempts while the store is unavailable
_DELAY_SECONDS, _RETRY_SECONDS = 1.0, 1.0
#: number of runs that are written at once, of one batch, and of waiting runs at most
_FLUSH_SIZE, _BATCH_SIZE, _MAX_WAITING = 512, 256, 10_000

log = get_logger("astromesh.runs")


class RunArchive:
    """The archive of one runtime.

    Args:
        store: opens the store of runs, or returns the open one.
    """

    def __init__(self, store: Callable[[], Awaitable[RunStore]]) -> None:
        self._store = store
        self._waiting: list[RunLog] = []
        #: runs that the store did not accept, and the reason
        self._unwritten: list[RunLog] = []
        self._store_error: StoreUnavailable | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, ended: RunLog) -> None:
        """Adds a run that has ended."""
        self._waiting.append(ended)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._begin)
        elif len(self._waiting) == _FLUSH_SIZE and not self._unwritten:
            self._begin()

    async def flush(self) -> None:
        """Writes everything so far to the store.

        Raises:
            StoreUnavailable: some runs wait for the store.
        """
        self._begin()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._unwritten and self._store_error is not None:
            raise self._store_error

    async def close(self) -> None:
        """Makes the last attempt."""
        try:
            await self.flush()
        except StoreUnavailable as error:
            _log_dropped(len(self._unwritten), error)
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._waiting, self._unwritten = [*self._unwritten, *self._waiting], [], []
        if len(ended) > _MAX_WAITING:
            _log_dropped(len(ended) - _MAX_WAITING, self._store_error)
            del ended[:-_MAX_WAITING]
        if ended:
            task = asyncio.create_task(self._write(ended))
            self._tasks.add(task)
            task.add_done_callback(partial(self._written, len(ended)))

    def _written(self, count: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a fault of the store's own code
            _log_dropped(count, error)

    async def _write(self, ended: Sequence[RunLog]) -> None:
        try:
            store = await self._store()
            while ended:
                batch, later = ended[:_BATCH_SIZE], ended[_BATCH_SIZE:]
                recordings = {one.run_id: one.recording for one in batch if one.recording is not None}
                runs = [(row_of(one), trace_events(one.events)) for one in batch if one.events]
                await store.archive(runs, recordings)
                for one in batch:
                    one.recording = None
                ended = later
                if not self._unwritten:
                    self._store_error = None
        except StoreUnavailable as error:
            self._wait(ended, error)
        except AstromeshError as error:  # no caller waits for the archive
            _log_dropped(len(ended), error)

    def _wait(self, ended: Sequence[RunLog], error: StoreUnavailable) -> None:
        if self._store_error is None:
            log.warning("notes_wait_for_store", count=len(ended), error=str(error))
        self._unwritten += ended
        self._store_error = error
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._begin)


def _log_dropped(count: int, error: BaseException | None) -> None:
    log.warning("runs_not_noted", count=count, error=str(error))
