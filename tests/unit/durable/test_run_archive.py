"""Notes of runs wait for a store that is away, each is written once, and what is lost is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from astromesh.durable.base import RunRow
from astromesh.durable.run_registry import RunArchive
from astromesh.errors import StoreError, StoreUnavailable
from astromesh.graph.ledger import RunLedger
from astromesh.telemetry.events import MODEL_DELTA, EventStream
from astromesh.telemetry.run_log import RunLog
from astromesh.testing import RecordingSink
from astromesh.types import Event


class _Store:
    """A store of runs that is away for so many tries."""

    def __init__(self, away: int = 0, error: Exception | None = None) -> None:
        self.away, self.error = away, error or StoreUnavailable("The database is locked.")
        self.runs: list[str] = []

    async def archive(self, runs: Sequence[tuple[RunRow, Any]], recordings: Any = ()) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise self.error
        self.runs += [row.run_id for row, _ in runs]


def notes_in(store: _Store) -> RunArchive:
    async def opened() -> Any:
        return store

    return RunArchive(opened)


def ended(number: int) -> RunLog:
    log = RunLog(f"run_{number}", "t", "acme", "ann", "helper", "s", "", RunLedger(), [])
    for seq, kind in enumerate(("run.started", "run.completed"), 1):
        log.events.append(Event(log.run_id, seq, float(number), kind, {"agent": "helper"}))
    return log


async def test_what_a_store_did_not_take_is_written_when_it_is_back() -> None:
    """Who needs all of it hears meanwhile that the store is away; the log says it once."""
    store = _Store(away=2)
    notes = notes_in(store)
    with capture_logs() as lines:
        notes.add(ended(1))
        for number in (2, 3):
            with pytest.raises(StoreUnavailable, match="locked"):
                await notes.flush()
            notes.add(ended(number))
        await notes.flush()
    assert store.runs == ["run_1", "run_2", "run_3"]
    assert [line["event"] for line in lines] == ["notes_wait_for_store"]


async def test_they_are_tried_again_by_themselves() -> None:
    store = _Store(away=1)
    notes = notes_in(store)
    notes.add(ended(1))
    with pytest.raises(StoreUnavailable):
        await notes.flush()
    async with asyncio.timeout(60):
        while not store.runs:
            await asyncio.sleep(0.01)
    assert store.runs == ["run_1"]


async def test_what_is_lost_at_the_end_or_refused_is_told_with_its_number() -> None:
    with capture_logs() as lines:
        errors = (StoreUnavailable("The database is locked."), StoreError("no such column"), KeyError("n"))
        for store in (_Store(away=9, error=error) for error in errors):
            notes = notes_in(store)
            for number in range(3):
                notes.add(ended(number))
            await notes.close()
    lost = [(line["count"], line["error"]) for line in lines if line["event"] == "runs_not_noted"]
    assert lost == [(3, "The database is locked."), (3, "no such column"), (3, "'n'")]


async def test_many_are_written_in_batches_and_the_oldest_are_given_up_beyond_a_bound() -> None:
    store = _Store(away=1)
    notes = notes_in(store)
    with capture_logs() as lines:
        notes.add(ended(0))
        with pytest.raises(StoreUnavailable):
            await notes.flush()
        for number in range(1, 10_300):
            notes.add(ended(number))
        await notes.flush()
    assert store.runs == [f"run_{number}" for number in range(300, 10_300)]
    assert [line["count"] for line in lines if line["event"] == "runs_not_noted"] == [300]


async def test_the_pieces_of_an_answer_are_packed_when_their_run_is_archived() -> None:
    streamed, heard = ended(1), RecordingSink()
    del streamed.events[:]
    stream = EventStream(streamed.run_id, (heard,), streamed)
    stream.emit("run.started", agent="helper")
    for n in range(200):
        stream.emit(MODEL_DELTA, step=1, role="assistant", content=f"word {n} ")
    stream.emit("run.completed", response="all")
    notes = notes_in(_Store())
    notes.add(streamed)
    await notes.flush()
    assert [event.type for event in streamed.events] == ["run.started", "run.completed"]
    assert [(e.seq, e.data) for e in streamed.after(0)] == [(e.seq, e.data) for e in heard.events]
