"""Recorded runs: their steps, what each one has read and written."""

from __future__ import annotations

from typing import NamedTuple

from astromesh.access.scopes import Viewer
from astromesh.durable.base import JournalStep, RunRow
from astromesh.durable.run_worker import RunWorker
from astromesh.durable.steps import listed, step_content, steps_json
from astromesh.errors import NotRecorded, RunNotFound
from astromesh.runtime.runs import Runs
from astromesh.types import JsonObject


class RecordedRun(NamedTuple):
    """A run with its record.

    Args:
        steps: in the order of their paths and numbers.
    """

    row: RunRow
    steps: tuple[JournalStep, ...]


class TimeTravel:
    """The recorded runs of a runtime. Methods with a `run_id` raise what those of `Runs` raise."""

    def __init__(self, runs: Runs, durable: RunWorker) -> None:
        self._runs, self._durable = runs, durable

    async def steps(self, run_id: str, viewer: Viewer) -> list[JsonObject]:
        """Returns the steps of a run in order.

        Raises:
            NotRecorded: the run has no record.
        """
        return steps_json((await self.recorded(run_id, viewer)).steps)

    async def step(self, run_id: str, step: int, viewer: Viewer) -> JsonObject:
        """Returns one step with its input and output.

        Raises:
            NotRecorded: the run has no record.
            RunNotFound: the run has no such step.
        """
        found = step_content((await self.recorded(run_id, viewer)).steps, step)
        if found is None:
            raise RunNotFound(f"The run {run_id!r} has no step {step}.")
        return found

    async def recorded(self, run_id: str, viewer: Viewer) -> RecordedRun:
        """Returns a run with its record."""
        row = await self._runs.row(run_id, viewer)
        steps = await self._durable.store.steps(run_id) if row.durable else ()
        if not listed(steps):
            raise _not_recorded(row)
        return RecordedRun(row, steps)


def _not_recorded(row: RunRow) -> NotRecorded:
    if row.nested:
        return NotRecorded(f"The run {row.run_id!r} is part of {row.worker!r}, which has its steps.")
    if row.durable:
        return NotRecorded(
            f"The run {row.run_id!r} has no steps: it has not begun, or an earlier version of astromesh "
            "ran it."
        )
    return NotRecorded(
        f"The run {row.run_id!r} has no record: only durable runs have one. "
        f"Start it by POST /v1/agents/{row.agent}/runs."
    )
