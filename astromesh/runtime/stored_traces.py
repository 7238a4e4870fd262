"""Traces of the runs of this process and of those that are kept on disk: one face for the routes."""

from __future__ import annotations

from typing import NamedTuple

from astromesh.abc.durable import RunRow, Wanted
from astromesh.runtime.durable import DurableRuns
from astromesh.runtime.notes import Notes
from astromesh.runtime.registry import Viewer
from astromesh.telemetry.traces import TraceStore, spans
from astromesh.types import Event, JsonObject

#: events of a durable run that a trace is made of at most
_MOST_EVENTS = 10_000


class StoredTraces:
    """Traces by id and in lists.

    Args:
        present: those of this process.
        notes: what of them is on its way to the disk.
    """

    def __init__(self, present: TraceStore, durable: DurableRuns, notes: Notes) -> None:
        self._present, self._durable, self._notes = present, durable, notes

    async def get(self, trace_id: str, viewer: Viewer) -> JsonObject | None:
        """`{"trace_id", "spans"}` of what this principal may see, or None."""
        await self._notes.flush()
        present = self._present.runs(trace_id, tenant=viewer.tenant, owner=viewer.owner)
        known = {run.run_id for run in present}
        found = [span for run in present for span in spans(run)]
        if self._durable.is_open:
            for row, events in await self._durable.store.trace(trace_id):
                if row.run_id not in known and _visible(row, viewer):
                    told = events or await self._durable.store.events(row.run_id, 0, _MOST_EVENTS)
                    found += spans(
                        _Kept(
                            row.run_id, row.trace_id, row.session_id, row.parent, row.agent, row.status, told
                        )
                    )
        return {"trace_id": trace_id, "spans": found} if found else None

    async def list(
        self, viewer: Viewer, agent: str, status: str, limit: int, session: str = ""
    ) -> list[JsonObject]:
        """The newest runs first, one line each."""
        await self._notes.flush()
        found = self._present.list(
            tenant=viewer.tenant,
            owner=viewer.owner,
            agent=agent,
            session=session,
            status=status,
            limit=limit,
        )
        if self._durable.is_open:  # durable runs that rest are there alone
            known = {line["run_id"] for line in found}
            rows, _ = await self._durable.store.list(
                Wanted(*viewer, agent, session, status, limit + len(known))
            )
            found += [_line(row) for row in rows if row.run_id not in known]
        found.sort(key=lambda line: -float(line["start"]))
        return found[:limit]


class _Kept(NamedTuple):
    run_id: str
    trace_id: str
    session_id: str
    parent: str
    agent: str
    status: str
    events: tuple[Event, ...]
    remote_span: str = ""
    sampled: bool | None = None


def _visible(row: RunRow, viewer: Viewer) -> bool:
    return row.tenant == viewer.tenant and viewer.owner in (None, row.owner)


def _line(row: RunRow) -> JsonObject:
    return {
        "trace_id": row.trace_id,
        "run_id": row.run_id,
        "agent": row.agent,
        "status": row.status,
        "start": row.created_at,
        "duration_ms": round(max(row.finished_at - row.created_at, 0.0) * 1000, 3),
    }
