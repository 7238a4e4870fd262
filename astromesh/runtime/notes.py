"""What stays of the runs that lived in this process: a row and a trace each, written off the hot path.

A run costs an append to a list. Rows and traces are made and written in batches, a moment after the runs have
ended; a process that is killed loses the notes of that moment, and no turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from astromesh.abc.durable import ENDED, RunRow, RunStore
from astromesh.errors import AstromeshError
from astromesh.runtime.registry import outcome_of
from astromesh.telemetry.runs import RunLog
from astromesh.telemetry.traces import outline

#: seconds after which a batch is written, runs that make one at once, runs that may wait at all
_DELAY, _BATCH, _MOST = 0.25, 256, 10_000

log = structlog.get_logger("astromesh.runs")


class Notes:
    """The notes of one runtime.

    Args:
        store: opens the store of runs, or answers the open one.
    """

    def __init__(self, store: Callable[[], Awaitable[RunStore]]) -> None:
        self._store = store
        self._waiting: list[RunLog] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, ended: RunLog) -> None:
        """Notes a run that has ended."""
        self._waiting.append(ended)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY, self._begin)
        elif len(self._waiting) == _BATCH:
            self._timer.cancel()
            self._begin()

    async def flush(self) -> None:
        """Everything so far is in the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        await self.flush()

    def _begin(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting[:_MOST], []
        task = asyncio.create_task(self._write(waiting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, ended: list[RunLog]) -> None:
        try:
            store = await self._store()
            await store.note([(row_of(one), outline(one.events)) for one in ended if one.events])
        except AstromeshError as error:  # a note is a help, and there is nobody to tell
            log.warning("runs_not_noted", count=len(ended), error=str(error))


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
