"""Runs nested in a durable one: rows and events of their own, written with those of the run at the top.

Whoever asks for them by their id, in any process and after a restart, is answered from the disk. They are
never claimed: the claim of the run at the top covers them, and they are taken up again by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from astromesh.abc.durable import RunRow
from astromesh.abc.events import EventSink
from astromesh.runtime.agent import Agent
from astromesh.runtime.durable_stream import DurableStream
from astromesh.runtime.notes import row_of
from astromesh.runtime.run import GatedEvents, Run
from astromesh.runtime.writer import Writer
from astromesh.telemetry.stream import TERMINAL
from astromesh.types import Event


class _Nested:
    """The writer of the run at the top, whose segment does not end with this run's last event."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def closed(self) -> bool:
        return self._writer.closed

    def event(self, event: Event, *, last: bool = False) -> None:
        self._writer.event(event)


async def begin(run: Run, agent: Agent, own: Iterable[EventSink], again: Iterable[EventSink]) -> None:
    """From here on the run's events go to disk.

    Args:
        own: hear what was not said before.
        again: hear everything.
    """
    assert run.journal is not None
    book = run.journal.book
    past = await book.past(run.id)
    stream = DurableStream(run.id, _Nested(book.writer), run.log, own, past, again)
    run.stream = run.log.stream = stream
    run.events = run.scope.events = GatedEvents(stream, agent, run.scope.ledger)
    run.said = stream.said
    run.journal.hear(stream)
    log = run.log
    book.writer.nested(
        RunRow(
            log.run_id, log.tenant, log.owner, log.agent, log.session_id, log.trace_id, "running",
            run.scope.clock.now(), log.parent, worker=book.run_id,
        )
    )  # fmt: skip


def end(run: Run) -> None:
    """The run has ended: so does its row, with its last event."""
    assert run.journal is not None
    if run.log.events and run.log.events[-1].type in TERMINAL:
        book = run.journal.book
        book.writer.nested(replace(row_of(run.log), worker=book.run_id))
