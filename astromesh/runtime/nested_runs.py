"""Runs nested in a durable run: their rows and events are written with those of the run at the top."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from astromesh.durable.base import RunRow
from astromesh.durable.event_stream import DurableStream
from astromesh.durable.run_archive import row_of
from astromesh.durable.writer import SegmentWriter
from astromesh.graph.calls import ASSISTANT
from astromesh.graph.scope import Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.run import GatedEvents, Run
from astromesh.telemetry.events import MODEL_DELTA, TERMINAL_EVENTS, EventSink
from astromesh.tools.base import NestedRunOptions
from astromesh.types import Event


class _NestedWriter:
    """The writer of the run at the top, whose segment does not end with this run's last event."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer = writer

    @property
    def closed(self) -> bool:
        return self._writer.closed

    def event(self, event: Event, *, last: bool = False) -> None:
        self._writer.event(event)


async def begin_nested_run(
    run: Run, agent: Agent, own: Iterable[EventSink], again: Iterable[EventSink]
) -> None:
    """From here on the run's events go to disk.

    Args:
        own: hear what was not said before.
        again: hear everything.
    """
    assert run.journal is not None
    book = run.journal.step_log
    past = await book.past(run.id)
    stream = DurableStream(run.id, _NestedWriter(book.writer), run.log, own, past, again)
    run.stream = run.log.stream = stream
    run.events = run.scope.events = GatedEvents(stream, agent, run.scope.ledger, run.model)
    run.replayed_text = stream.partial_text
    run.journal.attach(stream)
    log = run.log
    book.writer.nested(
        RunRow(
            log.run_id, log.tenant, log.owner, log.agent, log.session_id, log.trace_id, "running",
            run.scope.clock.now(), log.parent, worker=book.run_id,
        )
    )  # fmt: skip


def end_nested_run(run: Run) -> None:
    """The run has ended: so does its row, with its last event."""
    assert run.journal is not None
    if run.log.events and run.log.events[-1].type in TERMINAL_EVENTS:
        book = run.journal.step_log
        book.writer.nested(replace(row_of(run.log), worker=book.run_id))


# A nested run that speaks for the outer one: its words become the outer run's tokens (swarm).
#
# Only text passes, through the outer run's own output rules; model calls, tools and their cost stay events of
# the nested run, so that nothing is counted twice.

#: a text that begins with one of these may be data that nobody should see
_DATA_PREFIXES = ("{", "`")


def forward_events(outer: Scope, terms: NestedRunOptions) -> tuple[ForwardedEvents, ...]:
    """The listeners that a nested run gets: one where it speaks and somebody listens to the outer run."""
    events = outer.events
    if not terms.streams_to_caller or not isinstance(events, GatedEvents) or not events.streaming:
        return ()
    return (ForwardedEvents(outer, events, terms.is_withheld),)


class ForwardedEvents:
    """A listener to a nested run.

    Args:
        outer: the scope of the run that it speaks for; it numbers the steps.
        events: that run's emitter.
        withheld: whether a whole step that looks like data is to be kept back.
    """

    wants_deltas = True

    def __init__(self, outer: Scope, events: GatedEvents, withheld: Callable[[str], bool] | None) -> None:
        self._outer, self._events, self._withheld = outer, events, withheld
        #: the step under way, in the outer run's numbers; 0 where none is
        self._step = 0
        #: text that may turn out to be no answer, or None where everything passes
        self._held_text: list[str] | None = None

    def send(self, event: Event) -> None:
        data = event.data
        if event.type == MODEL_DELTA and data["role"] == ASSISTANT:
            self._add_text(data["content"])
        elif event.type == "model.started" and data["role"] == ASSISTANT:
            self._begin_step()
        elif event.type == "model.finished" and data["role"] == ASSISTANT:
            self._end_step(data["usage"]["output_tokens"])
        elif event.type == "run.completed":
            self._end_step(0)

    def _begin_step(self) -> None:
        self._events.begin()
        self._step = 0

    def _add_text(self, text: str) -> None:
        if not self._step:
            self._step = self._outer.next_step()
            self._held_text = None if self._withheld is None else []
        if self._held_text is None:
            self._emit_text(text)
            return
        self._held_text.append(text)
        begun = "".join(self._held_text).lstrip()
        if begun and not begun.startswith(_DATA_PREFIXES):
            self._release_text()

    def _release_text(self) -> None:
        held, self._held_text = self._held_text, None
        if held:
            self._emit_text("".join(held))

    def _emit_text(self, text: str) -> None:
        self._events.emit(MODEL_DELTA, step=self._step, role=ASSISTANT, content=text)

    def _end_step(self, output_tokens: int) -> None:
        if not self._step:
            return
        if self._held_text and not (self._withheld and self._withheld("".join(self._held_text))):
            self._release_text()
        self._events.end(self._step, output_tokens)
        self._step, self._held_text = 0, None
