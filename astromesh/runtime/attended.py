"""Waiting for a durable run as if it were a plain one: who asked hears its events and gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from astromesh.abc.durable import RunRow, RunStore
from astromesh.abc.events import EventSink
from astromesh.errors import ApprovalRequired, Interrupted, RunFailed, RunNotFound
from astromesh.runtime.records import RunAnswer
from astromesh.runtime.registry import Viewer
from astromesh.runtime.stored_runs import StoredRuns
from astromesh.telemetry.stream import TERMINAL, tell
from astromesh.types import Event


class UntilItRests:
    """A listener that knows when a run has ended, or waits for a person.

    Args:
        sinks: hear everything, too.
    """

    wants_deltas = True

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = tuple(sinks)
        self.rests = asyncio.Event()

    def send(self, event: Event) -> None:
        if broken := tell(self._sinks, event):
            self._sinks = tuple(sink for sink in self._sinks if sink not in broken)
        if event.type in TERMINAL or event.type == "run.waiting":
            self.rests.set()


async def attend(runs: StoredRuns, store: RunStore, row: RunRow, sinks: Sequence[EventSink]) -> RunAnswer:
    """The answer of an accepted run.

    Raises:
        ApprovalRequired: it waits for a person; it goes on without this caller.
        RunFailed, Interrupted: it failed, or was cancelled.
    """
    listener = UntilItRests(sinks)
    leave = await runs.follow(row.run_id, Viewer(row.tenant, row.owner), 0, listener)
    try:
        await listener.rests.wait()
    finally:
        if leave is not None:
            leave()
    return answer_of(await store.get(row.run_id), row.run_id)


def answer_of(row: RunRow | None, run_id: str) -> RunAnswer:
    """What became of a run that rests, as a plain run would have said it."""
    if row is None:
        raise RunNotFound(f"The run {run_id!r} was erased.")
    if row.status == "completed" and row.result is not None:
        return RunAnswer(**row.result)
    if row.status == "failed" and row.error is not None:
        failed = RunFailed(row.error["code"], row.error["detail"], row.error.get("more"))
        failed.run_id, failed.trace_id = run_id, row.trace_id
        raise failed
    if row.status == "cancelled":
        stopped = Interrupted("The run was cancelled.")
        stopped.run_id, stopped.trace_id = run_id, row.trace_id
        raise stopped
    waits = ApprovalRequired("The run waits for a person's decision.", run_id, row.waiting_for)
    waits.trace_id = row.trace_id
    raise waits
